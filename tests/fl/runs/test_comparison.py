from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cepam.fl import Dataset, Settings, compare
from cepam.fl.runs import comparison
from cepam.fl.runs.comparison import with_scheme


def test_schemes_by_name(quick: Settings) -> None:
    assert with_scheme(quick, "fl").privacy.noise_scale is None
    assert with_scheme(quick, "cepam-gaussian-n3").compression.lattice == "Z3"
    assert with_scheme(quick, "cepam-laplace-A2").compression.lattice == "A2"
    grid = quick.updated({"compression.downlink": "quantized"})
    downs = [
        with_scheme(grid, name).compression.downlink for name in ("fl", "fl+sdq", "fl+gaussian", "fl+gaussian+sdq")
    ]
    assert downs == ["float32", "float32", "float32", "quantized"]
    assert with_scheme(grid, "cepam-gaussian-n2").compression.downlink == "quantized"
    sums = with_scheme(quick, "cepam-gaussian-secure-aggregation")
    assert (sums.privacy.trust, sums.compression.scheme) == ("secure-aggregation", "cepam-gaussian")
    assert with_scheme(sums.updated({"compression.sketch": 70}), "fl+gaussian").privacy.trust == "server"
    for name in ("cepam", "fl-E8", "cepam-gaussian-n11", ""):
        with pytest.raises(ValueError, match="unknown scheme"):
            with_scheme(quick, name)


def test_comparison_is_paired_and_makes_a_page(
    tmp_path: Path, small: Dataset, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "prepared", lambda settings: small)
    quick = quick.updated({"privacy.noise_scale": 0.5, "compression.downlink": "quantized"})
    schemes = ["fl+gaussian", "cepam-gaussian", "cepam-gaussian-secure-aggregation"]
    rows = compare(quick.updated({"run.seeds": 2}), schemes, tmp_path)
    assert [row.scheme for row in rows] == schemes
    # Summed vectors are never of the search coder, whose arithmetic costs a little more.
    server, outsider = rows[2].epsilon_against["server"], rows[1].epsilon_against["outsider"]
    assert server is not None
    assert outsider is not None
    assert server <= outsider == pytest.approx(server, rel=1e-5)
    assert "server" not in rows[1].epsilon_against
    assert rows[0].gain == 0.0
    assert rows[1].half_width is not None
    assert rows[0].uplink_bytes > 20 * rows[1].uplink_bytes
    for row in rows:
        assert row.round_trip_bytes == row.uplink_bytes + row.downlink_bytes
    assert rows[0].bits_per_coordinate_down == 32.0 > 8 * rows[1].bits_per_coordinate_down
    page = (tmp_path / "index.html").read_text()
    assert "cepam-gaussian" in page
    assert "http:" not in page
    assert "https:" not in page
    assert json.loads((tmp_path / "comparison.json").read_text())[1]["scheme"] == "cepam-gaussian"
    assert "lying server" in page
    assert all((tmp_path / path).is_file() for path in re.findall(r'href="([^":]+)"', page))
    assert page.count("/index.html") == len(schemes)
    again = compare(quick.updated({"run.seeds": 2}), ["fl+gaussian", "cepam-gaussian"], tmp_path)
    assert [row.accuracy for row in again] == [row.accuracy for row in rows[:2]]
    with pytest.raises(ValueError, match="differs"):
        compare(quick, ["cepam-gaussian"], tmp_path)
