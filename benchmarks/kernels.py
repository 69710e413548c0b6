"""Compiles the Triton kernels for sm_80, sm_90 and sm_100 and records what the assembler says of them. Needs no card.

    python benchmarks/kernels.py                    writes benchmarks/results/kernels.json
    python benchmarks/kernels.py --output FILE      writes FILE

Listed are 12 shapes in bfloat16 (head dim 64, 128, 256; 1, 4, 7 and 8 query heads a KV head; decode and verify by the
split path, long chunks by the 2D path), the reduction, the store, one shape in float32, three with K/V in e4m3. What
was compiled from the same source by the same Triton is read back from `build/kernels/`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import re
import resource
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from inferdoc.engine.attention import triton_launch, triton_paged
from inferdoc.engine.attention.layer import LayerSpec
from inferdoc.engine.attention.triton_launch import STORE_TOKENS, constants, lanes, tile_for

CAPABILITIES = (80, 90, 100)
KV_HEADS = 8
BLOCK_SIZE = 16
REPOSITORY = Path(__file__).resolve().parent.parent
RESULT = REPOSITORY / "benchmarks" / "results" / "kernels.json"
CACHE = REPOSITORY / "build" / "kernels"
TYPES = {"float32": "*fp32", "bfloat16": "*bf16"}


@dataclass(frozen=True)
class Shape:
    """One launch of `attend_kernel`."""

    head_dim: int
    groups: int
    max_query_len: int
    split: bool
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    dtype: str = "bfloat16"
    e4m3: bool = False
    """Pages of 8-bit K/V."""

    @property
    def name(self) -> str:
        options = "".join(f" {name}" for name in ("window", "softcap", "sinks", "e4m3") if getattr(self, name))
        path = "split" if self.split else "2d"
        return f"attend {self.dtype} d{self.head_dim} g{self.groups} q{self.max_query_len} {path}{options}"


DECODE, VERIFY, CHUNK = 1, 5, 512
SHAPES = (
    Shape(64, 1, CHUNK, split=False),
    Shape(64, 4, DECODE, split=True),
    Shape(64, 7, VERIFY, split=True),
    Shape(64, 8, DECODE, split=False, window=128, sinks=True),
    Shape(128, 1, DECODE, split=True),
    Shape(128, 4, CHUNK, split=False),
    Shape(128, 4, DECODE, split=True),
    Shape(128, 7, CHUNK, split=False),
    Shape(128, 8, VERIFY, split=False),
    Shape(256, 1, DECODE, split=False, window=1024),
    Shape(256, 4, CHUNK, split=False, softcap=50.0),
    Shape(256, 8, DECODE, split=True),
    Shape(128, 4, DECODE, split=True, dtype="float32"),
    Shape(64, 4, DECODE, split=True, e4m3=True),
    Shape(128, 4, DECODE, split=True, e4m3=True),
    Shape(128, 4, CHUNK, split=False, e4m3=True),
)


def source_hash() -> str:
    """Of the kernels, how they are launched, and which shapes are compiled."""
    digest = hashlib.sha256()
    for file in (triton_paged.__file__, triton_launch.__file__, __file__):
        digest.update(Path(str(file)).read_bytes())
    return digest.hexdigest()


def attend(shape: Shape, capability: int) -> dict[str, Any]:
    spec = LayerSpec(KV_HEADS, shape.head_dim, shape.head_dim, 1.0, shape.window, shape.softcap, shape.sinks)
    itemsize = 4 if shape.dtype == "float32" else 2
    tile = tile_for(shape.groups, shape.max_query_len, spec, itemsize, capability)
    fixed = constants(spec, shape.groups, tile, BLOCK_SIZE, shape.max_query_len)
    fixed |= {"E4M3": shape.e4m3, "SPLIT": shape.split}
    pages = TYPES[shape.dtype]
    pointers = dict.fromkeys(("query", "keys", "values", "sinks"), pages)
    if shape.e4m3:
        pointers |= {"keys": "*u8", "values": "*u8"}
    pointers |= {"out": "*fp32" if shape.split else pages, "maxima": "*fp32", "sums": "*fp32"}
    pointers |= dict.fromkeys(("block_tables", "query_starts", "lengths"), "*i64")
    found = compile_kernel(triton_paged.attend_kernel, pointers, fixed, capability, tile.warps, tile.stages)
    return {"tile": [tile.m, tile.n], **found}


def reduce(head_dim: int, capability: int) -> dict[str, Any]:
    pointers = {"partial": "*fp32", "maxima": "*fp32", "sums": "*fp32", "sinks": "*bf16", "out": "*bf16"}
    fixed = {
        "VALUE_DIM": head_dim,
        "VALUE_LANES": lanes(head_dim),
        "SEGMENTS": triton_launch.MOST_SEGMENTS,
        "SINKS": True,
    }
    return compile_kernel(triton_paged.reduce_kernel, pointers, fixed, capability)


def store(head_dim: int, capability: int, *, e4m3: bool = False) -> dict[str, Any]:
    pointers = dict.fromkeys(("key", "value", "keys", "values"), "*bf16") | {"slots": "*i64"}
    if e4m3:
        pointers |= {"keys": "*u8", "values": "*u8"}
    fixed = {
        "KEY_DIM": head_dim,
        "VALUE_DIM": head_dim,
        "KEY_LANES": lanes(head_dim),
        "VALUE_LANES": lanes(head_dim),
        "TOKENS": STORE_TOKENS,
        "E4M3": e4m3,
    }
    return compile_kernel(triton_paged.store_kernel, pointers, fixed, capability)


def compile_kernel(
    kernel: Any, pointers: dict[str, str], fixed: dict[str, Any], capability: int, warps: int = 4, stages: int = 3
) -> dict[str, Any]:
    """Compile for one capability, with the arguments as they are at run time: pointers and strides divisible by 16."""
    signature: dict[str, str] = {}
    attributes = {}
    for index, name in enumerate(kernel.arg_names):
        if name in fixed:
            signature[name] = "constexpr"
        elif name in ("scale", "value_scale", "softcap", "key_factor", "value_factor"):
            signature[name] = "fp32"
        else:
            signature[name] = pointers.get(name, "i32")
            if name not in kernel.do_not_specialize:
                attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, fixed, attributes)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        compiled = triton.compile(
            source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, "num_stages": stages}
        )
    return read_assembler(said.getvalue()) | {
        "shared_bytes": compiled.metadata.shared,
        "warps": warps,
        "stages": stages,
    }


def read_assembler(said: str) -> dict[str, int]:
    """Registers and spills from the output of `ptxas -v`; raises ValueError where it says nothing of them."""
    registers = re.search(r"Used (\d+) registers", said)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    if registers is None or spills is None:
        raise ValueError(f"the assembler reported no registers and spills: {said[:500]!r}")
    return {
        "registers": int(registers[1]),
        "spill_store_bytes": int(spills[1]),
        "spill_load_bytes": int(spills[2]),
    }


def compile_all() -> dict[str, Any]:
    """Every kernel for every capability, from the cache where this source was compiled before."""
    CACHE.mkdir(parents=True, exist_ok=True)
    cached = CACHE / f"{source_hash()[:16]}-{triton.__version__}.json"
    if cached.exists():
        found: dict[str, Any] = json.loads(cached.read_text())
        return found
    # Only the assembler's own output tells of spills, and it speaks only when it runs.
    knobs.compilation.always_compile = True
    knobs.nvidia.dump_ptxas_log = True
    begin = cpu_seconds()
    kernels = []
    for capability in CAPABILITIES:
        named = [(shape.name, shape.head_dim, shape.dtype, attend, shape) for shape in SHAPES]
        named += [(f"reduce d{d}", d, "bfloat16", reduce, d) for d in (128, 256)]
        named += [(f"store d{d}", d, "bfloat16", store, d) for d in (128, 256)]
        named += [("store d128 e4m3", 128, "bfloat16", partial(store, e4m3=True), 128)]
        for name, head_dim, dtype, build, what in named:
            entry = {"kernel": name, "head_dim": head_dim, "dtype": dtype, "target": f"sm_{capability}"}
            kernels.append(entry | build(what, capability))
    result = {
        "source_sha256": source_hash(),
        "triton": triton.__version__,
        "compile_cpu_s": round(cpu_seconds() - begin),
        "kernels": kernels,
    }
    part = cached.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    part.replace(cached)
    return result


def cpu_seconds() -> float:
    """Of this process and the assemblers that it ran."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULT)
    output = parser.parse_args().output
    result = compile_all()
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")
    for k in result["kernels"]:
        print(
            f"{k['target']:7} {k['kernel']:45} {k['registers']:4} registers  {k['spill_store_bytes']:4} B spilled  "
            f"{k['shared_bytes']:7} B shared"
        )
    print(f"compiled in {result['compile_cpu_s']} CPU seconds by Triton {result['triton']}")


if __name__ == "__main__":
    main()
