"""FLARE's exchange objects as named arrays, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import ModelLearnable, ModelLearnableKey

from cepam.protocol.models import Arrays, Layout, kept_positive, travels

PAYLOAD = "cepam.v1"
Weights = dict[str, Any]


def weights_of(dxo: DXO) -> Weights:
    """The weights of a training task, as arrays of their own."""
    if dxo.data_kind != DataKind.WEIGHTS:
        raise ValueError(f"a training task must carry {DataKind.WEIGHTS}, got {dxo.data_kind}")
    return {name: np.array(value) for name, value in dxo.data.items()}


def learned(model: object) -> Weights:
    """The weights of a workflow's global model; none where it holds no weights."""
    found = model.get(ModelLearnableKey.WEIGHTS) if isinstance(model, ModelLearnable) else None
    return {name: np.array(value) for name, value in found.items()} if isinstance(found, dict) else {}


def is_difference(dxo: DXO) -> bool:
    """Whether a training result holds weights' differences (else whole weights); ValueError for anything else."""
    if dxo.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
        raise ValueError(f"a training result must be weights or their difference, got {dxo.data_kind}")
    return bool(dxo.data_kind == DataKind.WEIGHT_DIFF)


def difference_of(decoded: Arrays, reference: Arrays) -> Weights:
    """A decoded vector as a difference: arrays that do not travel have not moved."""
    return {name: value if travels(name, reference[name]) else np.zeros_like(value) for name, value in decoded.items()}


def publishable(whole: Arrays, reference: Arrays, layout: Layout) -> Weights:
    """An aggregated model with integers as integers and variances above zero."""
    return kept_positive(layout.restored({name: np.asarray(value) for name, value in whole.items()}), reference)


def replace_result(result: object, reference: Arrays, layout: Layout, model: Arrays | None) -> None:
    """Make an aggregation result publishable: that of the workflow, or the whole `model` where one is given."""
    if isinstance(result, FLModel):
        if result.params or model is not None:
            whole = result.params_type != ParamsType.DIFF
            result.params = _corrected(result.params or {}, reference, layout, whole, model)
    elif isinstance(result, Shareable):
        dxo = from_shareable(result)
        if dxo.data_kind in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
            dxo.data = _corrected(dxo.data, reference, layout, dxo.data_kind == DataKind.WEIGHTS, model)
            dxo.update_shareable(result)


def _corrected(data: Weights, reference: Arrays, layout: Layout, whole: bool, model: Arrays | None) -> Weights:
    known = {name: np.asarray(value) for name, value in data.items() if name in reference}
    if model is not None:
        moved = model
    else:
        moved = known if whole else {name: reference[name] + value for name, value in known.items()}
    made = publishable(moved, reference, layout)
    return made if whole else {name: made[name] - reference[name] for name in moved}
