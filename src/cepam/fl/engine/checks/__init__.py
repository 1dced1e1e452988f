"""What settings must satisfy, one function a subject: each raises a ValueError that names setting, value and range.

A new subject is a function and a line here; the order is that in which refusals are made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cepam.fl.engine.checks.noise import check_noise
from cepam.fl.engine.checks.personal import check_personal
from cepam.fl.engine.checks.streams import check_streams
from cepam.fl.engine.checks.trust import check_trust
from cepam.fl.engine.checks.unit import check_unit
from cepam.fl.engine.checks.values import check_seeds, check_values
from cepam.fl.engine.checks.work import check_clients, check_downlink, check_work

if TYPE_CHECKING:
    from cepam.fl.engine.settings import Settings

CHECKS: tuple[Callable[[Settings], None], ...] = (
    check_values,
    check_seeds,
    check_noise,
    check_work,
    check_streams,
    check_downlink,
    check_clients,
    check_unit,
    check_personal,
    check_trust,
)
