"""OTLP/JSON: typed values, nanoseconds and 64-bit numbers as strings."""

from __future__ import annotations

import json

from inferdoc.traces import read_trace
from inferdoc.traces.formats.otlp import attributes_of
from inferdoc.traces.formats.spans import ENCLOSING, WRAPPERS

START = 1_760_000_000_123_456_789


def value(thing):
    if isinstance(thing, bool):
        return {"boolValue": thing}
    if isinstance(thing, int):
        return {"intValue": str(thing)}
    if isinstance(thing, float):
        return {"doubleValue": thing}
    return {"stringValue": thing}


def span(id, start, end, parent="", **attributes):
    return {
        "traceId": "5b8efff798038103d269b633813fc60c", "spanId": id, "parentSpanId": parent, "name": "chat m",
        "startTimeUnixNano": str(start), "endTimeUnixNano": str(end), "status": {},
        "attributes": [{"key": key.replace("__", "."), "value": value(thing)} for key, thing in attributes.items()],
    }  # fmt: skip


def export(*spans):
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "s"}}]},
                "scopeSpans": [{"scope": {"name": "x"}, "spans": list(spans)}],
            }
        ]
    }


def chat(id, start, end, parent="", **attributes):
    return span(id, start, end, parent, gen_ai__operation__name="chat", gen_ai__usage__input_tokens=120,
                gen_ai__usage__output_tokens=8, **attributes)  # fmt: skip


def test_times_are_exact_and_spans_of_all_lines_belong_together(jsonl):
    """Children are exported before their parents, often in another line."""
    second = chat("b", START + 1_500_000_001, START + 2_500_000_001, "agent", gen_ai__response__model="m")
    first = chat("a", START, START + 250_000_000, "agent", gen_ai__usage__cache_read__input_tokens=100)
    agent = span("agent", START - 10, START + 3 * 10**9, gen_ai__operation__name="invoke_agent")
    trace = read_trace(jsonl([export(second), export(first, agent)]))
    assert (trace.format, trace.time_unit) == ("otlp", "ns")
    rows = trace.rows.to_dicts()
    assert [row["arrival_s"] for row in rows] == [0.0, 1.500000001]
    assert [row["e2e_s"] for row in rows] == [0.25, 1.0]
    assert [row["cached_tokens"] for row in rows] == [100, None]
    assert rows[1]["model"] == "m"
    assert {entry.reason: entry.rows for entry in trace.left_out} == {WRAPPERS: 1}
    assert not any("parent span that is not here" in note for note in trace.notes)


def test_the_engines_span_below_the_clients_is_the_same_call(jsonl):
    messages = json.dumps([{"role": "user", "content": "hello there, how are you today?" * 20}])
    client = chat("client", START, START + 2 * 10**9, gen_ai__input__messages=messages, session__id="s")
    engine = span("engine", START + 10**8, START + 19 * 10**8, "client", gen_ai__usage__prompt_tokens=130,
                  gen_ai__usage__completion_tokens=9, gen_ai__latency__time_to_first_token=0.4)  # fmt: skip
    trace = read_trace(jsonl([export(client, engine)]))
    row = trace.rows.to_dicts()[0]
    assert len(trace) == 1
    assert (row["input_tokens"], row["output_tokens"], row["ttft_s"], row["session"]) == (130, 9, 0.4, "s")
    assert row["prompt_text"].startswith("user:\nhello")
    assert {entry.reason: entry.rows for entry in trace.left_out} == {ENCLOSING: 1}


def test_failures_and_missing_parents(jsonl):
    good = chat("a", START, START + 10**9, "dropped")
    bad = chat("b", START, START + 10**9) | {"status": {"code": 2, "message": "secret"}}
    named = chat("c", START, START + 10**9) | {"status": {"code": "STATUS_CODE_ERROR"}}
    trace = read_trace(jsonl([export(good, bad, named)]))
    assert len(trace) == 1
    assert any("1 calls name a parent span that is not here" in note for note in trace.notes)
    assert "secret" not in str(trace.notes) + str(trace.left_out)


def test_values_of_every_type():
    pairs = [
        {"key": "i", "value": {"intValue": "9007199254740993"}},
        {"key": "d", "value": {"doubleValue": 0.5}},
        {"key": "b", "value": {"boolValue": False}},
        {"key": "l", "value": {"arrayValue": {"values": [{"stringValue": "x"}, {"intValue": "2"}]}}},
        {"key": "m", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"stringValue": "v"}}]}}},
        {"key": "e", "value": {}},
        "no pair",
    ]
    assert attributes_of(pairs) == {
        "i": "9007199254740993", "d": 0.5, "b": False, "l": ["x", "2"], "m.k": "v", "e": None,
    }  # fmt: skip
