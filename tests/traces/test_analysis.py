"""The whole analysis: what is absent, one trace in two formats, and JSON that every reader takes."""

from __future__ import annotations

import json
import math

import pytest

from inferdoc.evidence import Question
from inferdoc.reports.writing import to_json
from inferdoc.traces import FORMATS, read_trace
from inferdoc.traces.absences import absences
from inferdoc.traces.analysis import TraceAnalysis, analyse
from inferdoc.traces.course import PARTS, course
from inferdoc.traces.formats import BY_NAME
from inferdoc.traces.service import ServiceModel
from inferdoc.traces.signatures import SIGNATURES


def test_every_format_says_by_what_it_is_recognised():
    assert set(SIGNATURES) == set(FORMATS)


def test_the_table_of_formats_in_the_documentation(repository):
    text = (repository / "docs/traces.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{name}` | {BY_NAME[name].title} | {SIGNATURES[name]} |" for name in FORMATS]


@pytest.mark.parametrize("kind", ["code", "conv"])
def test_the_azure_and_the_vidur_copy_of_a_trace_have_the_same_statistics(shared, kind):
    folder = shared / "traces"
    azure, vidur = (
        analyse(read_trace(folder / path), service=ServiceModel(prefill_tokens_per_s=8000, tpot_s=0.03))
        for path in (f"azure/AzureLLMInferenceTrace_{kind}.csv", f"vidur/splitwise_{kind}.csv")
    )
    assert azure.workload.requests == vidur.workload.requests == {"code": 8819, "conv": 19366}[kind]
    assert azure.load.lengths == vidur.load.lengths
    assert azure.load.batch_waste == vidur.load.batch_waste
    assert azure.prefixes == vidur.prefixes
    assert azure.workload.quantities == vidur.workload.quantities
    assert_close(azure.load.arrivals.model_dump(), vidur.load.arrivals.model_dump())
    assert_close(azure.load.windows.model_dump(), vidur.load.windows.model_dump())
    ours, theirs = azure.load.demand.whole, vidur.load.demand.whole
    assert_close(ours.live_tokens.model_dump(), theirs.live_tokens.model_dump())


def assert_close(left, right):
    """Equal but for the last digits of times, which one copy has rounded."""
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            if key != "clock":
                assert_close(left[key], right[key])
    elif isinstance(left, list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_close(one, other)
    elif isinstance(left, float):
        assert left == pytest.approx(right, rel=1e-6)
    else:
        assert left == right


def test_the_analysis_of_the_mooncake_trace_in_numbers(shared):
    """Against plain loops over the file."""
    path = shared / "traces/mooncake/conversation_trace.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    found = json.loads(to_json(analyse(read_trace(path), capacities_tokens=(1_000_000,))))
    seen: set[int] = set()
    hits = 0
    for row in rows:
        for place, block in enumerate(row["hash_ids"][: (row["input_length"] - 1) // 512]):
            if block not in seen:
                break
            hits += 512 * (place < row["input_length"] // 512)
        seen.update(row["hash_ids"][: row["input_length"] // 512])
    total = sum(row["input_length"] for row in rows)
    ideal = {entry["block_size"]: entry["hit_rate"] for entry in found["prefixes"]["block_sizes"]}
    assert ideal[512] == pytest.approx(hits / total, rel=1e-12)
    outputs = [row["output_length"] for row in rows]
    waste = {entry["batch_size"]: entry["arrival_order_share"] for entry in found["load"]["batch_waste"]["sizes"]}
    for size in (8, 32):
        batches = [outputs[start : start + size] for start in range(0, len(outputs), size)]
        slots = sum(len(batch) * max(batch) for batch in batches)
        assert waste[size] == pytest.approx(1 - sum(outputs) / slots, rel=1e-12)
    mean = sum(outputs) / len(outputs)
    sd = math.sqrt(sum((value - mean) ** 2 for value in outputs) / len(outputs))
    assert found["load"]["lengths"]["output"]["cv"] == pytest.approx(sd / mean, rel=1e-9)
    span = (rows[-1]["timestamp"] - rows[0]["timestamp"]) / 1000
    assert found["workload"]["rate_per_s"] == pytest.approx((len(rows) - 1) / span)
    assert found["schema"] == {"name": "inferdoc.trace", "version": "1.0"}
    assert found["prefixes"]["block_sizes"][0]["cache"]["at"][0]["capacity_tokens"] == 1_000_000


def test_json_comes_back_as_the_same_result(shared):
    for name in ("otel", "weka", "tracelab/claude_code_session.jsonl", "burstgpt/BurstGPT_1.first_rows.csv"):
        analysis = analyse(read_trace(shared / "traces" / name))
        text = to_json(analysis, sort_keys=True)
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert TraceAnalysis.model_validate_json(text) == analysis


def test_what_is_absent_switches_off_what_needs_it(trace_of):
    bare = {entry.absent: entry.switches_off for entry in absences(trace_of(input_tokens=[1], output_tokens=[1]))}
    assert bare["arrival times"] == [Question.DISAGGREGATION]
    assert bare["what prompts begin with (texts, token ids or block hashes)"] == [Question.PREFIX_REDUNDANCY]
    assert bare["sessions"] == []
    text = {entry.absent: entry for entry in absences(trace_of(prompt_text=["a"], output_text=["b"]))}
    assert "--model" in text["output lengths in tokens"].how_to_get_it
    assert Question.OUTPUT_VARIANCE in text["output lengths in tokens"].switches_off
    full = trace_of(
        arrival_s=[0.0],
        input_tokens=[1],
        output_tokens=[1],
        prompt_text=["a"],
        session=["s"],
        e2e_s=[1.0],
        cached_tokens=[0],
    )
    assert absences(full) == []


def test_the_course_adds_up_to_the_trace(trace_of):
    trace = trace_of(arrival_s=[0.0, 30.0, 59.999, 120.0], input_tokens=[1, 2, 3, 4], output_tokens=[10, 20, None, 40])
    found = course(trace)
    assert found.part_s == 2.0
    assert len(found.requests_per_s) == PARTS
    assert [i for i, rate in enumerate(found.requests_per_s) if rate] == [0, 15, 29, 59]
    assert [found.tokens_per_s[i] * 2 for i in (0, 15, 29, 59)] == [11, 22, 3, 44]
    assert course(trace_of(input_tokens=[1])).reason == "the trace has no arrival times"
