"""Units, cohorts and missing replies: what goes together, and what is refused, with the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cepam.fl.engine.checks.values import at_least_one

if TYPE_CHECKING:
    from cepam.fl.engine.settings import Settings


def check_unit(settings: Settings) -> None:
    """Nothing, or a refusal of a unit, a cohort or a policy that the run cannot keep."""
    s = settings
    if s.participations is not None:
        at_least_one("participations", s.participations)
    if s.cohort_cap < 0 or isinstance(s.cohort_cap, bool):
        raise ValueError(f"cohort_cap must be a whole number of at least 0, got {s.cohort_cap!r}")
    gaussian = "gaussian" in s.scheme and all(each.scheme is None or "gaussian" in each.scheme for each in s.client)
    if s.policy == "top-up" and not gaussian:
        raise ValueError(
            f"policy top-up needs Gaussian noise of every client, got scheme {s.scheme}: use charge or wait"
        )
    if s.policy == "top-up" and (s.streams or s.update == "dp-sgd"):
        raise ValueError("policy top-up brings noise of single rounds, not of streams or local steps: use charge")
    if s.policy == "top-up" and s.trust != "server":
        raise ValueError(f"policy top-up needs a trusted server, got trust {s.trust}: use policy charge")
    if s.clip_quantile is not None and not (0.0 < s.clip_quantile < 1.0 and s.downlink == "float32"):
        raise ValueError(
            f"clip_quantile must lie in (0, 1), with downlink float32 (a grid's step is of one clip), got "
            f"{s.clip_quantile!r} and downlink {s.downlink}"
        )
    if s.unit == "client":
        for refused, why in _refusals(s):
            if refused:
                raise ValueError(f"unit client {why}")
    elif s.cohort != "fixed" or s.cohort_cap or s.participations is not None or s.clip_quantile is not None:
        raise ValueError(
            "cohort poisson, cohort_cap, participations and clip_quantile are of whole clients: set unit client"
        )


def _refusals(s: Settings) -> Iterator[tuple[bool, str]]:
    yield s.trust != "server", f"is accounted for where the server is trusted, got trust {s.trust}"
    yield "gaussian" not in s.scheme, f"needs Gaussian noise, got scheme {s.scheme}: use cepam-gaussian"
    yield (
        s.on_silence != "top-up",
        f"has noise that does not depend on who replied: policy must be top-up, got {s.policy}",
    )
    yield s.streams, "goes without streams: sampling must not be cyclic, noise_shape not matrix"
    yield (
        s.update in ("examples", "dp-sgd"),
        f"clips a whole update: update must be gradient or difference, got {s.update}",
    )
    yield (
        s.clip_norm != "l2" or s.clip_scope != "vector",
        f"clips the whole vector in l2, got clip_norm {s.clip_norm} and clip_scope {s.clip_scope}",
    )
    yield bool(s.client), "has clients of one law, one clip and one weight: leave client out"
    yield (
        s.cohort_cap > 0 and s.cohort != "poisson",
        f"has a cap where cohorts are poisson: cohort_cap must be 0 with cohort {s.cohort}, got {s.cohort_cap}",
    )
