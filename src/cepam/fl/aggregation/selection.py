"""Which aggregator a run has: the settings choose."""

from __future__ import annotations

from cepam.fl.aggregation.cohorts import AdaptiveClipAggregator, CohortAggregator
from cepam.fl.aggregation.correlated import CorrelatedNoiseAggregator
from cepam.fl.aggregation.local import LocalDpAggregator
from cepam.fl.aggregation.trusted_server import Aggregator, AggregatorContext, TrustedServerAggregator


def aggregator_for(row: AggregatorContext) -> Aggregator:
    """Return the aggregator that the settings of one seed's run choose."""
    if row.settings.privacy.unit == "client":
        return CohortAggregator(row) if row.settings.privacy.clip_quantile is None else AdaptiveClipAggregator(row)
    if row.settings.privacy.trust == "secure-aggregation":
        from cepam.fl.aggregation.secure import (
            SecureAggregator,  # needs `cryptography`: a run without sums does without
        )

        return SecureAggregator(row)
    if row.settings.training.update == "dp-sgd":
        return LocalDpAggregator(row)
    return CorrelatedNoiseAggregator(row) if row.settings.sliced else TrustedServerAggregator(row)
