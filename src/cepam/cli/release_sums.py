"""What `cepam privacy` says where the server learns sums only: each observer's epsilon, and what an audit attacks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from cepam import privacy
from cepam.cli.release_options import ReleaseOptions
from cepam.noise.laws import Gaussian


def observers_of_sums(options: ReleaseOptions, delta: float) -> dict[str, Any]:
    """epsilon of each observer where the server learns sums only; nothing where it is trusted.

    `observers` is for rounds in which nobody dropped out, `observers_at_quorum` for rounds with no more clients than
    the quorum, the fewest that a sum is opened for. Against a server that lies both are the same.
    """
    if options.trust != "sum":
        return {}
    quorum, release = _quorum(options), replace(options, colluders=0).release()
    from cepam.secure import epsilons  # with its kernels: other questions need none of it

    return {
        "quorum": quorum,
        "observers": epsilons(release, delta, quorum, options.colluders),
        "observers_at_quorum": epsilons(release, delta, quorum, options.colluders, survivors=quorum),
    }


def rows_of_sums(found: dict[str, Any]) -> dict[str, float] | None:
    """The observers of a page: each as if nobody dropped out, and at the quorum where that is more."""
    if not found:
        return None
    rows: dict[str, float] = {}
    for who, spent in found["observers"].items():
        least = found["observers_at_quorum"][who]
        rows |= {who: spent} if least == spent else {
            f"{who}, nobody dropped out": spent, f"{who}, at the quorum of {found['quorum']}": least
        }  # fmt: skip
    return rows


def _quorum(options: ReleaseOptions) -> int:
    """Clients in every sum; ValueError for what no sum carries."""
    if options.cohort or options.noise != "independent" or options.law != "gaussian":
        raise ValueError("--trust sum goes with Gaussian noise, independent from round to round, and no --cohort")
    return options.quorum or math.ceil(0.8 * options.clients)


def views_of_sums(options: ReleaseOptions, actual: float) -> dict[str, tuple[privacy.Mechanism, privacy.Release]]:
    """By observer: sums as the server opens them, of as many clients as hide one from it, and the account of that."""
    quorum, release = _quorum(options), replace(options, colluders=0).release(sampling="all")
    from cepam.secure.channel import OpenedSum
    from cepam.secure.observers import release_to, views

    law = Gaussian(release.clients[0].law.scale * actual)
    _, *known = views(options.clients, quorum, options.colluders)  # an outsider sees what the server sees
    return {view.observer: (OpenedSum(law, view.shares), release_to(view, release)) for view in known}
