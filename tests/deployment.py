"""Options of a deployment as tests like to write them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from cepam.protocol.account import Accounting

ACCOUNTING = {field.name for field in fields(Accounting)}


def flat(accounting: Accounting | None = None, **options: Any) -> dict[str, Any]:
    """Options of a strategy or filter in which those of `Accounting` are given beside the others."""
    own = {name: options.pop(name) for name in ACCOUNTING & set(options)}
    return {"accounting": replace(accounting or Accounting(), **own), **options}
