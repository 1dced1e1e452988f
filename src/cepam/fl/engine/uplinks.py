"""Which uplink a run has: the settings choose."""

from __future__ import annotations

from cepam.fl.engine.adaptive_uplink import AdaptiveUplink
from cepam.fl.engine.cohort_uplink import CohortUplink
from cepam.fl.engine.correlated_uplink import CorrelatedUplink
from cepam.fl.engine.local_uplink import LocalUplink
from cepam.fl.engine.server_uplink import ServerUplink
from cepam.fl.engine.uplink import EngineUplink, SeedRow


def uplink_of(row: SeedRow) -> EngineUplink:
    """The uplink of one seed's row."""
    if row.settings.unit == "client":
        return CohortUplink(row) if row.settings.clip_quantile is None else AdaptiveUplink(row)
    if row.settings.trust == "sum":
        from cepam.fl.engine.sum_uplink import SumUplink  # needs `cryptography`: a run without sums does without

        return SumUplink(row)
    if row.settings.update == "dp-sgd":
        return LocalUplink(row)
    return CorrelatedUplink(row) if row.settings.streams else ServerUplink(row)
