"""The load gate on a dummy model of Llama-8B's shape: logits through the paged engine against transformers' own.

python benchmarks/gate_on_card.py                              on a card
python benchmarks/gate_on_card.py --device cpu --shape tiny    the same code on a CPU
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peers.results import write_json
from shapes import SHAPES, write_config

from inferdoc.devices import find_device
from inferdoc.engine.gate import check_model
from inferdoc.errors import ModelError
from inferdoc.models import load_model


def check(shape: str, device: str, dtype: str, backend: Any) -> dict[str, Any]:
    start = time.perf_counter()
    with TemporaryDirectory() as folder:
        loaded = load_model(write_config(shape, Path(folder)), dtype=dtype, device=device, load_format="dummy")
    read = time.perf_counter()
    try:
        gate = check_model(
            loaded.model,
            expected_layers=len(loaded.spec.layers),
            vocabulary=loaded.spec.vocab_size,
            name=shape,
            max_model_len=4096,
            attention_backend=backend,
        )
        outcome = {"passed": True, **asdict(gate)}
    except ModelError as error:
        outcome = {"passed": False, "reason": str(error)}
    gated = time.perf_counter()
    return {"dtype": dtype, "backend": backend, **outcome, "load_s": read - start, "gate_s": gated - read}


def main() -> int:
    parser = argparse.ArgumentParser(description="the load gate on a dummy model")
    parser.add_argument("--device", default="auto", help="auto (a card), cuda, cuda:N or cpu")
    parser.add_argument("--shape", choices=SHAPES, default="llama-8b")
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    device = find_device(options.device)
    if device.kind == "cpu" and options.device != "cpu":
        print("no card here: nothing was checked (--device cpu --shape tiny runs the code on a CPU)")
        return 0
    if device.kind == "cuda":
        torch.cuda.set_device(device.torch_name)  # kernels are launched on the current device
    cases = [("float32", "torch")] if device.kind == "cpu" else [("bfloat16", "triton"), ("bfloat16", "torch")]
    results = []
    for case in cases:
        results.append(check(options.shape, device.torch_name, *case))
        print(json.dumps(results[-1]), flush=True)
        if options.output is not None:
            partial = len(results) < len(cases)
            write_json(
                options.output, {"benchmark": "gate", "partial": partial, "shape": options.shape, "cases": results}
            )
    return 0 if all(result["passed"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
