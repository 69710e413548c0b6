"""Public traces: read here by our readers and, independently, by plain loops."""

from __future__ import annotations

import csv
import json
import time
from datetime import datetime
from fractions import Fraction

import pytest

from inferdoc.traces import ideal_hits, read_trace, tokenize, with_token_ids


def mooncake_rows(path):
    with path.open() as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("name", ["conversation_trace", "synthetic_trace", "mooncake_trace.slice56"])
def test_mooncake_against_a_plain_loop(shared, name):
    path = shared / "traces/mooncake" / f"{name}.jsonl"
    rows = mooncake_rows(path)
    trace = read_trace(path)
    first = rows[0]["timestamp"]
    assert trace.rows["arrival_s"].to_list() == [(row["timestamp"] - first) / 1000 for row in rows]
    assert trace.rows["input_tokens"].to_list() == [row["input_length"] for row in rows]
    assert trace.rows["output_tokens"].to_list() == [row["output_length"] for row in rows]
    assert trace.rows["prefix_blocks"].to_list() == [row["hash_ids"] for row in rows]
    assert trace.duration_s == (rows[-1]["timestamp"] - first) / 1000


def naive_hits(rows):
    """Whole prefixes in a set, whole blocks of 512 only, at least one token computed."""
    seen, hit = set(), 0
    for row in rows:
        ids, length = row["hash_ids"], row["input_length"]
        count = 0
        while count < (length - 1) // 512 and hash(tuple(ids[: count + 1])) in seen:
            count += 1
        hit += 512 * count
        seen.update(hash(tuple(ids[: n + 1])) for n in range(length // 512))
    return hit


def test_ideal_reuse_of_the_conversations_against_a_plain_loop(shared):
    path = shared / "traces/mooncake/conversation_trace.jsonl"
    rows = mooncake_rows(path)
    hits = ideal_hits(read_trace(path), 512)
    assert hits.hit_tokens == naive_hits(rows)
    assert hits.prompt_tokens == sum(row["input_length"] for row in rows)
    assert hits.hit_rate == hits.hit_tokens / hits.prompt_tokens
    # Every request begins with the same block; the first one brings it.
    assert hits.shared_request_share == pytest.approx(12030 / 12031)


def test_scaled_conversations_keep_what_is_shared(shared):
    trace = read_trace(shared / "traces/mooncake/conversation_trace.jsonl")
    scaled = trace.scaled(Fraction(1, 32))
    assert scaled.block_size == 16
    full, short = ideal_hits(trace, 512), ideal_hits(scaled, 16)
    # A prompt of k * 512 + r tokens with r < 512 but ceil(r / 32) = 16 gains a whole block: at most one a request.
    assert full.hit_tokens / 32 <= short.hit_tokens <= full.hit_tokens / 32 + 16 * len(trace)
    window = with_token_ids(scaled.window(0, 200), vocab_size=32_000, seed=0)
    ids = window.rows["prompt_ids"].to_list()
    assert len({tuple(prompt[:16]) for prompt in ids}) == 1
    assert [len(prompt) for prompt in ids] == window.rows["input_tokens"].to_list()


def test_azure_against_a_plain_loop(shared):
    path = shared / "traces/azure/AzureLLMInferenceTrace_conv.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    trace = read_trace(path)
    assert trace.rows["input_tokens"].to_list() == [int(row["ContextTokens"]) for row in rows]
    assert trace.rows["output_tokens"].to_list() == [int(row["GeneratedTokens"]) for row in rows]

    def ticks(stamp):
        """Units of 100 ns after midnight of the first day."""
        day, fraction = stamp.split(".")
        return int((datetime.fromisoformat(day) - datetime(2023, 11, 16)).total_seconds()) * 10**7 + int(fraction)

    first = ticks(rows[0]["TIMESTAMP"])
    assert trace.rows["arrival_s"].to_list() == [(ticks(row["TIMESTAMP"]) - first) / 10**7 for row in rows]


@pytest.mark.parametrize("name", ["code", "conv"])
def test_two_layouts_of_the_same_trace_agree(shared, name):
    azure = read_trace(shared / "traces/azure" / f"AzureLLMInferenceTrace_{name}.csv")
    vidur = read_trace(shared / "traces/vidur" / f"splitwise_{name}.csv")
    for column in ("input_tokens", "output_tokens"):
        assert azure.rows[column].to_list() == vidur.rows[column].to_list()
    assert azure.duration_s == pytest.approx(vidur.duration_s, abs=1e-6)
    assert azure.rows["arrival_s"].to_numpy() == pytest.approx(vidur.rows["arrival_s"].to_numpy(), abs=1e-6)
    theirs = vidur.workload().quantities
    for id, quantity in azure.workload().quantities.items():
        assert quantity.value == theirs[id].value, id


def test_the_conversations_step_by_three_seconds(shared):
    workload = read_trace(shared / "traces/mooncake/conversation_trace.jsonl").workload()
    assert any("step by about 3 s (1,180 distinct in 12,031 requests)" in note for note in workload.notes)
    assert workload.content == "block hashes"
    assert workload.block_size == 512


def test_sharegpt_against_a_plain_loop(shared):
    path = shared / "traces/fastchat/sharegpt_dummy_conversation.json"
    answers = [turn["value"] for talk in json.loads(path.read_text()) for turn in talk["conversations"][1::2]]
    trace = read_trace(path)
    assert trace.rows["output_text"].to_list() == answers
    assert trace.rows["session"].n_unique() == 500
    assert trace.notes[0].startswith("500 conversations with 1,000 answers")
    counted = tokenize(trace, lambda texts: [list(text.encode()) for text in texts])
    assert counted.rows["output_tokens"].to_list() == [len(answer.encode()) for answer in answers]


def test_recorded_token_ids_and_nanoseconds(shared):
    path = shared / "traces/llmservingsim/example_trace.jsonl"
    rows = mooncake_rows(path)
    trace = read_trace(path)
    assert (trace.content, trace.time_unit) == ("token ids", "ns")
    assert trace.rows["prompt_ids"].to_list() == [row["input_tok_ids"] for row in rows]
    first = min(row["arrival_time_ns"] for row in rows)
    assert trace.duration_s == (max(row["arrival_time_ns"] for row in rows) - first) / 10**9


def test_blocks_of_sixteen_from_a_plain_table(shared):
    path = shared / "traces/llmservingsim/sharegpt-qwen3-32b-300-sps10.blocks16.jsonl"
    trace = read_trace(path, trace_format="jsonl")
    assert (len(trace), trace.block_size) == (300, 16)
    rows = mooncake_rows(path)
    assert trace.rows["prefix_blocks"].to_list() == [row["hash_ids"] for row in rows]
    assert trace.rows["input_tokens"].to_list() == [row["input_toks"] for row in rows]


@pytest.mark.parametrize(
    ("name", "seconds"), [("azure/AzureLLMInferenceTrace_conv.csv", 1.0), ("mooncake/conversation_trace.jsonl", 2.0)]
)
def test_reading_is_fast(shared, name, seconds):
    def elapsed():
        start = time.process_time()
        read_trace(shared / "traces" / name)
        return time.process_time() - start

    # Processor time, the better of two: the machine may be busy.
    assert min(elapsed(), elapsed()) < seconds
