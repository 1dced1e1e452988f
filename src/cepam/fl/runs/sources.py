"""Where a run's data and model come from: a name, a file, or a function of the user's."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from cepam.fl.config.settings import OWN, Settings
from cepam.fl.data.catalog import CATALOG, load
from cepam.fl.data.dataset import TABLES, Dataset, from_arrays, from_clients, from_table
from cepam.fl.data.fetch import Report
from cepam.fl.data.fetch import quiet as quiet_fetch
from cepam.fl.models.model import Model, frozen, resolved


def prepared(settings: Settings, report: Callable[[Report], None] = quiet_fetch) -> Dataset:
    """The settings' data set, with its pixels as they ask, and frozen features in the cache.

    Args:
        settings: Name the data set and the model.
        report: Hears about downloads and features.

    Returns:
        A data set.

    Raises:
        ValueError: The settings name data or a model that were handed over in Python, or that are unknown.
    """
    for name in ("data", "model"):
        known = str(getattr(settings, name).name)
        if known.startswith(OWN):
            raise ValueError(
                f"the run has {name} of its own ({known.removeprefix(OWN)}), which are no file here: "
                "resume it in Python with fl.train(settings, folder, data, model, resume=True)"
            )
    data = _read(settings, report)
    if settings.data.pixels == "centred" and data.train_inputs.dtype == np.uint8:
        data = replace(data, scale=2.0 / 255.0, shift=-1.0)
    made, where = frozen(settings.model.name, data, report), resolved(settings.run.device)
    if made is not None and (made.portable or where != "cuda"):
        made.of(data, "cuda" if where == "cuda" else "cpu", report)  # with progress; the run finds them in the cache
    return data


def _catalogued(name: str, folder: Path | None, report: Callable[[Report], None]) -> Dataset:
    """A data set by name; what is fetched for the first time is logged with its licence and whom to cite."""
    about = CATALOG.get(name)
    new = about is not None and folder is None and not about.fetched
    data = load(name, folder, report)
    if about is not None and new:
        text = f"fetched {name}; licence: {about.licence}; cite: {about.citation}"
        logging.getLogger("cepam").warning("cepam: %s", f"{text}. {about.note}" if about.note else text)
    return data


def _read(settings: Settings, report: Callable[[Report], None]) -> Dataset:
    if settings.data.name.endswith(TABLES):
        if settings.data.target_column is None:
            raise ValueError(f"{settings.data.name} needs data.target_column, the column to predict")
        made = from_table(
            settings.data.name, settings.data.target_column, settings.data.client_column, seed=settings.run.seed
        )
        return replace(made, name=settings.data.name)
    if not settings.refers("data"):
        return _catalogued(settings.data.name, Path(settings.data.folder) if settings.data.folder else None, report)
    make = function_of(settings.data.name)
    with _named(settings.data.name):
        found = make()
    if isinstance(found, Mapping):
        found = from_clients(found, seed=settings.run.seed)
    elif isinstance(found, tuple) and len(found) == 2:
        train, test = found
        found = (
            from_clients(train, test, seed=settings.run.seed)
            if isinstance(train, Mapping)
            else from_arrays(train, test)
        )
    if not isinstance(found, Dataset):
        kinds = "a data set, clients by name, (clients, test) or (train, test)"
        raise ValueError(f"{settings.data.name} must give {kinds}, got {type(found).__name__}")
    return replace(found, name=settings.data.name)


def referred(settings: Settings, data: Dataset) -> Model | None:
    """The model that the settings' `module:function` makes; None where they name one."""
    if not settings.refers("model"):
        return None
    make = function_of(settings.model.name)
    takes = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty]

    def built() -> Any:
        with _named(settings.model.name):
            return make(data) if takes else make()

    found = built()
    if isinstance(found, Model):
        found.name = settings.model.name
        return found
    if isinstance(found, nn.Module):
        return Model(built, settings.model.name)
    raise ValueError(f"{settings.model.name} must give an fl.Model or a torch module, got {type(found).__name__}")


@contextmanager
def _named(reference: str) -> Iterator[None]:
    """Add a note to what the block raises that says whose function raised it, and where."""
    try:
        yield
    except Exception as raised:
        last = traceback.extract_tb(raised.__traceback__)[-1]
        raised.add_note(f"raised by {reference}, {Path(last.filename).name} line {last.lineno}")
        raise


def function_of(reference: str) -> Callable[..., Any]:
    """The function of a `module:function`; modules are looked for in the working directory first."""
    module, _, name = reference.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as problem:
        if problem.name is None or not module.startswith(problem.name):
            raise
        raise ValueError(f"{reference}: no module {problem.name!r} here ({here}) or installed") from None
    if not callable(found):
        raise ValueError(f"{reference}: module {module} has no function {name!r}")
    made: Callable[..., Any] = found
    return made
