"""Paged attention on a CPU that reads the pages in place: a C function, compiled once for the machine it runs on.

Gathering K/V into one tensor, as the torch path does, costs more than the attention itself where contexts are short and
batches large. Without a C compiler, or in another dtype than float32, there is only the torch path.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from inferdoc.engine.attention.layer import KvScales, LayerPages, LayerSpec, rows_in_place
from inferdoc.engine.attention.reference import attend_chunk, chunks_of
from inferdoc.engine.batch import StepInput

FEW_QUERIES = 8
"""Rows with at most so many query tokens go through the C function; longer chunks are worth a gather and a matmul."""
_SOURCE = Path(__file__).with_name("paged_cpu.c")
# Compiling and linking apart: linked with -ffast-math, a library would switch denormals off for the whole process.
_COMPILE = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC", "-c")
_LINK = ("-shared", "-lm")


class KernelUnavailableError(Exception):
    """Why this machine has no C kernel."""


class CpuLayout:
    """A step's geometry for the C function; one with the torch path's interface.

    Args:
        step: the packed input.

    Raises:
        KernelUnavailableError: see `load_library`.
    """

    def __init__(self, step: StepInput) -> None:
        self._library = load_library()
        self._slots = np.ascontiguousarray(step.slots, dtype=np.int64)
        counts = np.diff(step.query_starts)
        few = np.flatnonzero(counts <= FEW_QUERIES)
        self._rows = np.repeat(few, counts[few])
        place = np.arange(len(self._rows)) - np.repeat(np.cumsum(counts[few]) - counts[few], counts[few])
        self._tokens = step.query_starts[self._rows] + place
        self._lengths = step.lengths[self._rows] - counts[self._rows] + place + 1
        self._tables = np.ascontiguousarray(step.block_tables, dtype=np.int64)
        self._block_size = step.block_size
        self._chunks = chunks_of(step, np.flatnonzero(counts > FEW_QUERIES), torch.device("cpu"))
        self._shapes: dict[tuple[LayerSpec, KvScales | None, tuple[int, ...], tuple[int, ...]], _Shape] = {}

    def store(self, key: Tensor, value: Tensor, layer: LayerPages) -> None:
        key, value = layer.stored(key, value)
        key, value = rows_in_place(key), rows_in_place(value)
        spec, size = layer.spec, key.element_size()
        self._library.store(
            key.data_ptr(),
            value.data_ptr(),
            self._slots.ctypes.data,
            len(self._slots),
            spec.kv_heads,
            spec.key_dim * size,
            spec.value_dim * size,
            *(stride * size for stride in key.stride()[:2]),
            *(stride * size for stride in value.stride()[:2]),
            layer.keys.data_ptr(),
            layer.values.data_ptr(),
        )

    def attend(self, query: Tensor, layer: LayerPages, sinks: Tensor | None) -> Tensor:
        heads, tokens, _ = query.shape
        spec = layer.spec
        out = query.new_empty(tokens, heads, spec.value_dim)
        if len(self._rows):
            self._attend_few(query, layer, sinks, out)
        for chunk in self._chunks:
            out[chunk.begin : chunk.end] = attend_chunk(
                query, layer.keys, layer.values, chunk, spec, sinks, layer.scales
            )
        return out

    def _attend_few(self, query: Tensor, layer: LayerPages, sinks: Tensor | None, out: Tensor) -> None:
        query = rows_in_place(query)
        sinks = None if sinks is None else sinks.contiguous()
        failed = self._library.paged_attention(
            ctypes.byref(self._shape(query, layer)),
            query.data_ptr(),
            layer.keys.data_ptr(),
            layer.values.data_ptr(),
            self._tables.ctypes.data,
            self._tokens.ctypes.data,
            self._rows.ctypes.data,
            self._lengths.ctypes.data,
            None if sinks is None else sinks.data_ptr(),
            out.data_ptr(),
        )
        if failed:
            raise MemoryError("no memory for the scores of paged attention")

    def _shape(self, query: Tensor, layer: LayerPages) -> _Shape:
        """The same for all like layers of a step."""
        spec, scales = layer.spec, layer.scales
        key = spec, scales, tuple(query.shape), query.stride()
        if key not in self._shapes:
            self._shapes[key] = _Shape(
                items=len(self._rows),
                width=self._tables.shape[1],
                kv_heads=spec.kv_heads,
                groups=query.shape[0] // spec.kv_heads,
                key_dim=spec.key_dim,
                value_dim=spec.value_dim,
                block_size=self._block_size,
                query_head_stride=query.stride(0),
                query_token_stride=query.stride(1),
                longest=int(self._lengths.max()),
                window=spec.window or 0,
                e4m3=scales is not None,
                scale=spec.scale * (scales.key if scales else 1.0),
                value_scale=scales.value if scales else 1.0,
                softcap=spec.softcap or 0.0,
            )
        return self._shapes[key]


class _Shape(ctypes.Structure):
    """`Shape` of the C source."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in (
                "items",
                "width",
                "kv_heads",
                "groups",
                "key_dim",
                "value_dim",
                "block_size",
                "query_head_stride",
                "query_token_stride",
                "longest",
                "window",
                "e4m3",
            )
        ),
        ("scale", ctypes.c_float),
        ("value_scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    ]


def why_unavailable(dtype: torch.dtype, device: torch.device) -> str | None:
    """The reason why a model cannot use the C function; None where it can."""
    if device.type != "cpu":
        return f"the model is on {device.type}"
    if dtype != torch.float32:
        return f"it computes in float32, and the model is in {str(dtype).removeprefix('torch.')}"
    try:
        load_library()
    except KernelUnavailableError as error:
        return str(error)
    return None


@cache
def load_library() -> ctypes.CDLL:
    """Compile the C source, unless this machine has done so before, and load it.

    Raises:
        KernelUnavailableError: no compiler that can, or no OpenMP runtime in torch.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise KernelUnavailableError("there is no C compiler (cc, gcc or clang)")
    # Its threads must be torch's own: a second OpenMP runtime would fight with them over the cores.
    runtime = _openmp_runtime()
    if runtime is None:
        raise KernelUnavailableError("torch uses no OpenMP runtime that other code can share")
    ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    try:
        library = ctypes.CDLL(str(_compiled(compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        raise KernelUnavailableError(f"{Path(compiler).name} failed: {output.strip().splitlines()[-1]}") from error
    library.paged_attention.argtypes = [ctypes.c_void_p] * 10
    library.paged_attention.restype = ctypes.c_int
    library.store.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 8 + [ctypes.c_void_p] * 2
    library.store.restype = None
    return library


def _openmp_runtime() -> Path | None:
    """The OpenMP library that torch has loaded into this process."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    found = re.search(r"(/\S*/lib(?:gomp|iomp5|omp)\S*\.so\S*)$", maps, re.MULTILINE)
    return Path(found.group(1)) if found else None


def _compiled(compiler: str) -> Path:
    """The shared library, from the user's cache where the same source was compiled for the same machine."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    key = "\0".join([_SOURCE.read_text(), *_COMPILE, *_LINK, version, _processor()])
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inferdoc"
    target = folder / f"paged_cpu_{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        objects, library = f"{scratch}/paged.o", f"{scratch}/paged.so"
        for arguments in ([*_COMPILE, str(_SOURCE), "-o", objects], [objects, *_LINK, "-o", library]):
            subprocess.run([compiler, *arguments], capture_output=True, text=True, check=True, timeout=120)
        os.replace(library, target)  # at once, so that processes side by side never see half of it
    return target


def _processor() -> str:
    """What -march=native depends on: machine code for one processor may not run on another."""
    try:
        flags = re.search(r"^(?:flags|Features)\s*:.*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        flags = None
    return f"{platform.machine()} {flags.group(0) if flags else platform.processor()}"
