from __future__ import annotations

import numpy as np
import pytest

from cepam import L2, Gaussian, privacy
from cepam.fl import ClientOverride, Settings
from cepam.fl.aggregation.accounting import after_round, empty_accountant, mechanism_of, plan_clients
from cepam.fl.clients.sending import usual_codec

PRIVATE = Settings.of(
    {
        "training.update": "examples",
        "training.record_sampling": "poisson",
        "training.local_steps": 1,
        "training.expected_batch_size": 960.0,
        "training.rounds": 600,
        "privacy.clipping_norm": 0.1,
        "privacy.epsilon": 1.97,
        "privacy.delta": 1e-5,
        "privacy.adjacency": "add-remove",
    }
)
EVEN = np.full(30, 2000)


def test_target_is_met_by_noise_split_over_clients() -> None:
    members = plan_clients(PRIVATE, EVEN, 6422, 8)
    total = sum((m.weight * m.law.scale) ** 2 for m in members) ** 0.5
    assert total / (0.1 / 960) == pytest.approx(1.1, abs=0.005)
    mechanism = mechanism_of(PRIVATE, members, 6422)
    views = empty_accountant(PRIVATE).add(mechanism.over(600)).observers(1e-5)
    assert views["outsider"] <= 1.97
    assert views["outsider"] == pytest.approx(1.97, abs=1e-3)
    assert views["one curious client"] == pytest.approx(2.03, abs=0.02)
    assert views["29 colluders"] > 200


def test_every_client_meets_its_own_target() -> None:
    own = (
        ClientOverride((0, 1), epsilon=0.5),
        ClientOverride((2,), clipping_norm=0.05, lattice="E8"),
        ClientOverride((3,), noise_scale=0.004),
        ClientOverride((4,), weight=0.1),
    )
    settings = PRIVATE.updated({"clients.overrides": own, "training.rounds": 50})
    members = plan_clients(settings, EVEN, 6422, 8)
    mechanism = mechanism_of(settings, members, 6422).over(50)
    wanted = {k: 0.5 if k in (0, 1) else 1.97 for k in range(30) if k != 3}
    for client in (0, 2, 4, 5):
        assert privacy.epsilon(mechanism, 1e-5, client) <= wanted[client]
    assert members[3].law == Gaussian(0.004)
    assert members[2].clip == L2(0.05)
    assert sum(m.weight for m in members) == pytest.approx(1.0)
    assert members[0].law.scale > members[5].law.scale


def test_tensor_clips_are_charged_whole() -> None:
    settings = Settings.of({"privacy.clip_scope": "tensor", "privacy.noise_scale": 0.01})
    assert plan_clients(settings, EVEN, 6422, 8)[0].clip.bound == pytest.approx(8**0.5)


def test_no_noise_no_mechanism() -> None:
    settings = Settings.of({"compression.scheme": "fl+sdq"})
    assert mechanism_of(settings, plan_clients(settings, EVEN, 6422, 8), 6422) is None
    assert after_round(empty_accountant(settings), None, range(30)) == empty_accountant(settings)


def test_absent_clients_cost_more() -> None:
    settings = PRIVATE.updated({"training.rounds": 40})
    mechanism = mechanism_of(settings, plan_clients(settings, EVEN, 100, 8), 100)
    accountant = empty_accountant(settings)
    for _ in range(40):
        accountant = after_round(accountant, mechanism, range(10, 30))
    assert accountant.rounds == 40
    assert accountant.running(1e-5, 40) > 1.97 * 1.1
    assert after_round(accountant, mechanism, ()) == accountant


def test_impossible_target_is_refused() -> None:
    with pytest.raises(ValueError, match="delta"):
        plan_clients(PRIVATE.updated({"privacy.delta": 0.9999999}), EVEN, 100, 8)
    assert isinstance(PRIVATE, Settings)


@pytest.mark.parametrize(
    "settings",
    [
        PRIVATE,
        Settings.of(
            {
                "compression.scheme": "cepam-laplace",
                "privacy.noise_scale": 0.3,
                "privacy.norm_type": "l1",
                "compression.lattice": "Z1",
                "compression.padding": 64,
            }
        ),
        Settings.of({"compression.scheme": "fl+sdq", "compression.lattice": "E8", "privacy.noise_scale": None}),
        Settings.of({"compression.scheme": "fl+gaussian", "privacy.noise_scale": 0.3}),
        Settings.of({"compression.scheme": "fl", "privacy.noise_scale": None}),
    ],
)
def test_the_usual_codec_is_a_clients_but_for_its_noise(settings: Settings) -> None:
    """What a GPU's kernels are compiled for before the clients are planned."""
    usual, planned = usual_codec(settings, 6422), plan_clients(settings, EVEN, 6422, 8)[3].codec
    kinds = [[type(each), getattr(each, "on", None), getattr(each, "padding", None)] for each in (usual, planned)]
    assert kinds[0] == kinds[1]
