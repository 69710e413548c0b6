"""Reading and analysing long traces: seconds and peak memory, each case in a process of its own.

    python benchmarks/traces.py                          # 10 thousand, 100 thousand and 1 million requests
    python benchmarks/traces.py --week --json out.json   # and a week of Azure's size, 27 million

The files are made here, in a temporary folder: rows as Mooncake's with about 24 block ids each, and rows as those of
Azure's traces of 2024. The bars hold for two processor cores that do nothing else.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

MILLION = 1_000_000
WEEK = 27 * MILLION
SIZES = (10_000, 100_000, MILLION)
_ROWS_AT_ONCE = MILLION
_WEEK_US = 7 * 86_400 * 10**6

# Runs in the measured process: prints requests, seconds of reading, of analysing, and the peak of memory in MiB.
MEASURED = """
import json, resource, sys, time
from inferdoc.traces import read_trace
from inferdoc.traces.analysis import analyse
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
start = time.perf_counter()
trace = read_trace(sys.argv[1])
found = {"requests": len(trace), "read_s": time.perf_counter() - start, "read_cpu_s": time.process_time()}
found["read_peak_mib"] = peak()
start = time.perf_counter()
trace.fingerprint()
found["fingerprint_s"] = time.perf_counter() - start
start = time.perf_counter()
analyse(trace)
print(json.dumps(found | {"analyse_s": time.perf_counter() - start, "peak_mib": peak()}))
"""


@dataclass(frozen=True)
class Case:
    name: str
    rows: int
    write: Callable[[Path, int], None]
    total_s: float | None = None
    """Most seconds that reading and analysing may take together, where there is a bar."""
    peak_mib: float | None = None


def write_mooncake(path: Path, rows: int) -> None:
    """Prompts of 4 to 44 blocks of 512 tokens, on a clock of 3 s steps.

    A prompt begins with any number of blocks of one of some thousand documents (one for 20 requests), and goes on with
    blocks of its own, so that equal ids mean equal prefixes, as in Mooncake's files; half of the blocks are new.
    """
    random = np.random.default_rng(0)
    blocks = random.integers(4, 45, rows)
    shared = random.integers(0, blocks + 1)
    first = random.integers(0, max(1, rows // 20), rows) * 45
    own = 45 * max(1, rows // 20) + np.cumsum(blocks - shared)
    times = np.cumsum(random.integers(0, 15, rows) == 0) * 3000
    outputs = random.integers(1, 700, rows)
    tails = random.integers(0, 512, rows)
    with path.open("w") as file:
        for row in range(rows):
            new = blocks[row] - shared[row]
            ids = ", ".join(map(str, (*range(first[row], first[row] + shared[row]), *range(own[row] - new, own[row]))))
            file.write(
                f'{{"timestamp": {times[row]}, "input_length": {blocks[row] * 512 - tails[row]},'
                f' "output_length": {outputs[row]}, "hash_ids": [{ids}]}}\n'
            )


def write_azure(path: Path, rows: int) -> None:
    """Poisson arrivals over a week, with microseconds and a zone."""
    random = np.random.default_rng(1)
    now = np.datetime64("2024-05-10T00:00:00", "us").astype("int64")
    with path.open("wb") as file:
        file.write(b"TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for start in range(0, rows, _ROWS_AT_ONCE):
            count = min(_ROWS_AT_ONCE, rows - start)
            times = now + np.cumsum(random.exponential(_WEEK_US / rows, count).astype("int64"))
            now = times[-1]
            frame = pl.DataFrame(
                {
                    "TIMESTAMP": pl.Series(times).cast(pl.Datetime("us", "UTC")),
                    "ContextTokens": random.integers(1, 8000, count),
                    "GeneratedTokens": random.integers(1, 1000, count),
                }
            )
            frame.write_csv(file, include_header=False, datetime_format="%Y-%m-%d %H:%M:%S%.6f%:z")


def cases(week: bool) -> list[Case]:
    bars = {
        ("mooncake", MILLION): (20.0, 2048.0),
        ("azure", MILLION): (20.0, 2048.0),
        ("azure", WEEK): (60.0, 2048.0),
    }
    writers = {"mooncake": write_mooncake, "azure": write_azure}
    asked = [(name, rows) for name in writers for rows in SIZES] + ([("azure", WEEK)] if week else [])
    return [Case(name, rows, writers[name], *bars.get((name, rows), ())) for name, rows in asked]


def measure(case: Case, folder: Path) -> dict[str, Any]:
    path = folder / f"{case.name}.{'jsonl' if case.name == 'mooncake' else 'csv'}"
    case.write(path, case.rows)
    size = path.stat().st_size
    done = subprocess.run([sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=False)
    path.unlink()
    if done.returncode:
        raise SystemExit(f"{case.name}, {case.rows:,} rows: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["requests"] == case.rows, found
    found["total_s"] = found["read_s"] + found["analyse_s"]
    limits = {name: value for name, value in asdict(case).items() if name in ("total_s", "peak_mib") and value}
    return {
        "case": case.name,
        "bytes": size,
        **found,
        "bars": limits,
        "within_bars": all(found[name] <= value for name, value in limits.items()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--week", action="store_true", help="read 27 million requests too (1.1 GB, some minutes)")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument(
        "--folder", type=Path, help="where the traces are made (default: the system's temporary folder)"
    )
    options = parser.parse_args()
    results = []
    columns = f"{'case':10}{'requests':>12}{'MB':>8}{'read s':>9}{'cpu s':>8}{'peak MiB':>10}"
    print(f"{columns}{'analyse s':>11}{'peak MiB':>10}  bars")
    for case in cases(options.week):
        with tempfile.TemporaryDirectory(prefix="inferdoc-traces-", dir=options.folder) as folder:
            found = measure(case, Path(folder))
        results.append(found)
        bars = ", ".join(f"{name} <= {value:g}" for name, value in found["bars"].items())
        verdict = f"{bars}: {'met' if found['within_bars'] else 'MISSED'}" if bars else ""
        print(
            f"{case.name:10}{case.rows:12,}{found['bytes'] / 1e6:8.0f}{found['read_s']:9.2f}{found['read_cpu_s']:8.2f}"
            f"{found['read_peak_mib']:10.0f}{found['analyse_s']:11.2f}{found['peak_mib']:10.0f}  {verdict}",
            flush=True,
        )
    if options.json:
        from peers.machine import machine  # needs torch, which a trace does not

        from inferdoc.devices import find_device

        result = {
            "benchmark": "traces",
            "date": datetime.date.today().isoformat(),
            "machine": machine(find_device("cpu")),
            "cases": results,
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(0 if all(found["within_bars"] for found in results) else 1)


if __name__ == "__main__":
    main()
