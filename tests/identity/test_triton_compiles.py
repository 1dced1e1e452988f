"""Triton's compiler takes every kernel for an H200; the interpreter, which other tests use, takes more than it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the GPU path needs Triton")

KERNELS = {
    *("flatten_heads", "correlate_heads", "score_heads", "measure_scales", "begin_encoding", "begin_decoding"),
    *("fill_stage", "put_values", "walk_flat", "walk_lanes", "finish_encoding", "gather_blocks"),
    *("fill_radii", "encode_vectors", "decode_vectors", "fill_fractions", "skip_refused"),
    *("quantize_scalars", "reconstruct_scalars", "quantize_vectors", "reconstruct_vectors"),
    *("read_trees", "find_shifts", "fill_signs", "fill_values", "mark_left", "begin_left", "stage_left", "put_left"),
    *("measure_segments", "measure_energies", "fill_draws", "fill_pads", "fill_sign_words", "race_vectors"),
    *("race_shifts", "see_parts", "write_trees", "begin_left_encoding"),
    *("add_noise", "add_masks", "pack_top_bits", "add_packed"),
}


@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu() -> None:
    script = Path(__file__).with_name("compiles.py")
    made = subprocess.run([sys.executable, script], env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True)
    assert made.returncode == 0, made.stderr.decode()
    found = json.loads(made.stdout)
    assert found["refused"] == {}
    assert set(found["made"]) == KERNELS
