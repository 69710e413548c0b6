"""The whole analysis: two copies of one trace agree, it is JSON, and its shape at scale."""

from __future__ import annotations

import json
import time

import numpy as np
import polars as pl
import pytest

from inferdoc.traces import SCHEMA, Trace, read_trace
from inferdoc.traces.load import LoadAnalysis, analyse_load
from inferdoc.traces.service import ServiceModel

SERVICE = ServiceModel(prefill_tokens_per_s=10_000, tpot_s=0.02)


def flat(value, path=""):
    """Every leaf of JSON with its path."""
    if isinstance(value, dict):
        return {leaf: v for key, item in value.items() for leaf, v in flat(item, f"{path}.{key}").items()}
    if isinstance(value, list):
        return {leaf: v for at, item in enumerate(value) for leaf, v in flat(item, f"{path}[{at}]").items()}
    return {path: value}


@pytest.mark.parametrize("kind", ["code", "conv"])
def test_azure_and_vidur_copies_have_identical_statistics(shared, kind):
    azure, vidur = (
        analyse_load(read_trace(shared / "traces" / path), service=SERVICE, max_model_len=16_384)
        for path in (f"azure/AzureLLMInferenceTrace_{kind}.csv", f"vidur/splitwise_{kind}.csv")
    )
    assert azure.lengths == vidur.lengths
    assert azure.batch_waste == vidur.batch_waste
    # Vidur's copy keeps times to another digit.
    ours, theirs = flat(azure.model_dump()), flat(vidur.model_dump())
    assert ours.keys() == theirs.keys()
    for path, value in ours.items():
        if isinstance(value, float):
            assert theirs[path] == pytest.approx(value, rel=1e-5), path
        elif not path.endswith(".row"):
            assert theirs[path] == value, path


def test_it_survives_json(shared):
    found = analyse_load(read_trace(shared / "traces" / "mooncake" / "conversation_trace.jsonl"), service=SERVICE)
    text = found.model_dump_json()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert LoadAnalysis.model_validate(json.loads(text)) == found


def test_a_million_requests_together():
    n, random = 1_000_000, np.random.default_rng(0)
    arrival = np.cumsum(random.exponential(0.02, n))
    columns = {
        "row": np.arange(n),
        "arrival_s": arrival - arrival[0],
        "input_tokens": random.lognormal(6.5, 1.2, n).astype(np.int64).clip(1, 128_000),
        "output_tokens": random.lognormal(5, 1, n).astype(np.int64).clip(1, 8000),
    }
    frame = pl.DataFrame(
        [
            pl.Series(name, columns[name]) if name in columns else pl.Series(name, [None], kind).new_from_index(0, n)
            for name, kind in SCHEMA.items()
        ]
    )
    began = time.process_time()
    found = analyse_load(Trace(frame, "made.csv", "azure"), service=SERVICE, max_model_len=131_072)
    assert time.process_time() - began < 10
    assert found.demand.whole.requests == n
    assert found.lengths.total.n == n
    assert found.arrivals.whole.character == "close to Poisson"


@pytest.mark.parametrize(
    "columns",
    [
        {"prompt_text": ["a"]},
        {"input_tokens": [5]},
        {"arrival_s": [0.0], "input_tokens": [5], "output_tokens": [2]},
        {"arrival_s": [0.0, 0.0], "input_tokens": [5, 5], "output_tokens": [0, 0], "e2e_s": [1.0, 1.0]},
        {"arrival_s": [0.0, 1.0], "prompt_text": ["a", "b"], "output_tokens": [None, 3]},
    ],
)
def test_every_part_says_what_it_lacks(trace_of, columns):
    found = analyse_load(trace_of(**columns))
    for value in (found.lengths.input, found.arrivals, found.batch_waste, found.demand, found.windows):
        json.dumps(value.model_dump())
    if "arrival_s" not in columns:
        assert found.arrivals.reason == found.windows.reason == found.demand.reason == "the trace has no arrival times"
