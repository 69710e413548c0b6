"""The kernels compile for cards that are not here, and the committed record is of this very source.

They are compiled in a process of their own: in this one they are interpreted.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def benchmark(repository):
    spec = importlib.util.spec_from_file_location("kernels_benchmark", repository / "benchmarks" / "kernels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def committed(repository):
    return json.loads((repository / "benchmarks" / "results" / "kernels.json").read_text())


def test_the_kernels_compile_to_cubins_that_do_not_spill(repository, benchmark, committed, tmp_path):
    output = tmp_path / "kernels.json"
    done = subprocess.run(
        [sys.executable, repository / "benchmarks" / "kernels.py", "--output", output],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    kernels = result["kernels"]
    bfloat16 = [shape for shape in benchmark.SHAPES if shape.dtype == "bfloat16" and not shape.e4m3]
    eight_bits = {shape.name for shape in benchmark.SHAPES if shape.e4m3} | {"store d128 e4m3"}
    assert len(eight_bits) == 4
    for target in ("sm_80", "sm_90", "sm_100"):
        names = {k["kernel"] for k in kernels if k["target"] == target}
        assert len(bfloat16) == 12
        assert names >= {shape.name for shape in bfloat16} | eight_bits | {
            "reduce d128",
            "reduce d256",
            "store d128",
            "store d256",
        }
    for kernel in kernels:
        assert 0 < kernel["registers"] <= 255
        if kernel["head_dim"] <= 128:
            assert kernel["spill_store_bytes"] == kernel["spill_load_bytes"] == 0, kernel
        # What a card has: 99 KiB of shared memory a program on the smallest with capability 8.x, 227 KiB on the others.
        assert kernel["shared_bytes"] <= (99 if kernel["target"] == "sm_80" else 227) * 1024, kernel
    if result["triton"] == committed["triton"]:
        assert kernels == committed["kernels"]


def test_the_committed_record_belongs_to_this_source(benchmark, committed):
    assert committed["source_sha256"] == benchmark.source_hash(), "run `python benchmarks/kernels.py`"


def test_the_listed_shapes_have_every_head_dim_group_and_path(benchmark):
    shapes = [shape for shape in benchmark.SHAPES if shape.dtype == "bfloat16" and not shape.e4m3]
    assert {shape.head_dim for shape in shapes} == {64, 128, 256}
    assert {shape.groups for shape in shapes} == {1, 4, 7, 8}
    for head_dim in (64, 128, 256):
        assert {shape.split for shape in shapes if shape.head_dim == head_dim} == {False, True}


def test_an_assembler_that_says_nothing_of_spills_is_not_taken_for_one_without(benchmark):
    said = "ptxas info: 8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\nptxas info: Used 96 registers"
    assert benchmark.read_assembler(said) == {"registers": 96, "spill_store_bytes": 12, "spill_load_bytes": 16}
    with pytest.raises(ValueError, match="no registers and spills"):
        benchmark.read_assembler("ptxas info: Used 96 registers")
