"""Whole clients whose clip follows a quantile of the norms: one noisy bit a client, in the same sealed message.

All is in units of the current clip C: a client sends its update over C, clipped to 1, and beside it, as one more
coordinate, whether its norm was at most C, scaled so that both have the same noise. Paper: Andrew et al. 2021.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cepam.clip import L2
from cepam.fl.engine.cohort_uplink import Alike, CohortUplink
from cepam.fl.engine.sending import Senders
from cepam.fl.engine.uplink import Collected, SeedRow
from cepam.privacy import fraction_within, next_clip

CLIP_RATE = 0.2


class AdaptiveUplink(CohortUplink):
    """Cohorts whose updates and bits are one Gaussian mechanism, whatever the clip is in which round.

    Guarantee: the account does not depend on the clips, which follow from what was published (docs/privacy.md, "A clip
    that follows the norms"; tests/fl/engine/test_adaptive.py).
    """

    def __init__(self, row: SeedRow) -> None:
        self.clip = row.settings.clip
        noise = None if row.settings.noise is None else row.settings.noise / self.clip
        within = replace(row.vectors, size=row.vectors.size + 1)
        super().__init__(replace(row, settings=replace(row.settings, clip=1.0, noise=noise), vectors=within))
        bit = self.release.bit
        assert bit is not None
        self.scale = 2.0 * self.topup.total / bit
        plan = replace(self.plans[0], clip=L2(float(np.hypot(1.0, self.scale / 2.0))))
        self.plans = Alike(plan, self.settings.clients)
        self.senders = Senders(self.settings, row.draws, row.run_id, self.plans, row.vectors.arrays, None)

    def collect(self, number: int, clients: list[int], raw: Any) -> Collected:
        used, arrays = self.clip, self.vectors.arrays
        came = super().collect(number, clients, arrays.put(self._joint(arrays.fetch(raw))))
        bits = float(came.aggregate[-1]) * self.cohort.size / self.scale
        fraction = fraction_within(bits, self.cohort.size)
        self.clip = next_clip(used, fraction, self.settings.clip_quantile or 0.5, CLIP_RATE)
        return replace(came, aggregate=came.aggregate[:-1] * used, line=came.line | {"clip": used})

    def _joint(self, rows: Any) -> Any:
        """Each update over the clip, at most 1 long, and the scaled bit; zeros for an update that is not finite."""
        norms = np.linalg.norm(rows.astype(np.float64), axis=1)
        sound = np.isfinite(norms)
        factors = np.where(sound, 1.0 / np.maximum(np.where(sound, norms, 1.0), self.clip), 0.0)
        updates = np.where(sound[:, None], rows, 0.0) * factors[:, None]
        bits = self.scale * ((sound & (norms <= self.clip)) - 0.5)
        return np.concatenate([updates, bits[:, None]], axis=1).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"clip": self.clip}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.clip = float(state["clip"])
