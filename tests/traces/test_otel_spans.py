"""OpenTelemetry spans with flat attributes: which of them are calls, and what their attributes mean."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace, render
from inferdoc.traces.formats.calls import EMBEDDINGS
from inferdoc.traces.formats.spans import ENCLOSING, EXPORTED_TWICE, WRAPPERS


def span(id, start, end, parent=None, trace="t", status=None, **attributes):
    return {
        "trace_id": trace, "span_id": id, "parent_span_id": parent, "name": "x", "start_time": start, "end_time": end,
        "attributes": {name.replace("__", "."): value for name, value in attributes.items()},
        "status": {"code": status or 0},
    }  # fmt: skip


def chat(id, start, end, parent=None, tokens=(10, 5), **attributes):
    counts = {"gen_ai__usage__input_tokens": tokens[0], "gen_ai__usage__output_tokens": tokens[1]} if tokens else {}
    return span(id, start, end, parent, gen_ai__operation__name="chat", **counts, **attributes)


def left_out(trace):
    return {entry.reason: entry.rows for entry in trace.left_out}


def test_every_file_against_a_plain_loop(shared):
    total = 0
    for path in sorted((shared / "traces" / "otel").glob("*.json")):
        spans = sorted(json.loads(path.read_text())["spans"], key=lambda one: datetime.fromisoformat(one["start_time"]))
        trace = read_trace(path)
        assert trace.format == "otel-spans"
        assert len(trace) == len(spans)
        first = datetime.fromisoformat(spans[0]["start_time"])
        for row, one in zip(trace.rows.iter_rows(named=True), spans, strict=True):
            attributes = one["attributes"]
            start, end = (datetime.fromisoformat(one[name]) for name in ("start_time", "end_time"))
            assert row["arrival_s"] == pytest.approx((start - first).total_seconds(), abs=1e-6)
            assert row["e2e_s"] == pytest.approx((end - start).total_seconds(), abs=1e-6)
            assert row["prompt_text"] == render(json.loads(attributes["gen_ai.input.messages"]))
            assert row["input_tokens"] == attributes.get("gen_ai.usage.prompt_tokens")
            assert row["output_tokens"] == attributes.get("gen_ai.usage.completion_tokens")
            answer = attributes.get("gen_ai.output.text")
            assert (
                row["output_text"] == answer
                or row["output_text"] == (json.loads(attributes["gen_ai.output.messages"])[0]["content"])
            )
            assert row["session"] == attributes.get("exgentic.session.id") or "exgentic.session.id" not in attributes
        total += len(trace)
    assert total == 73


def test_the_folder_holds_one_file_twice(shared):
    """``simple_chain_alt.json`` has the spans of ``simple_chain.json``, under the same ids."""
    trace = read_trace(shared / "traces" / "otel")
    assert len(trace) == 73 - 3
    assert left_out(trace) == {EXPORTED_TWICE: 3}


def test_a_trace_id_is_a_session_only_where_it_has_several_calls(shared):
    trace = read_trace(shared / "traces" / "otel" / "prefix_sharing_example.json")
    assert trace.rows["session"].to_list().count("conversation_trace") == 4
    assert trace.rows["session"].null_count() == 3


def test_agents_and_tools_wrap_calls_and_embeddings_are_none(jsonl):
    spans = [
        span("agent", "2026-01-01T00:00:00", "2026-01-01T00:01:00", gen_ai__operation__name="invoke_agent",
             gen_ai__usage__input_tokens=99),
        chat("call", "2026-01-01T00:00:01", "2026-01-01T00:00:02", "agent"),
        span("tool", "2026-01-01T00:00:02", "2026-01-01T00:00:03", "agent", gen_ai__operation__name="execute_tool"),
        span("emb", "2026-01-01T00:00:04", "2026-01-01T00:00:05", gen_ai__operation__name="embeddings"),
        span("http", "2026-01-01T00:00:04", "2026-01-01T00:00:05", "agent", http__method="POST"),
    ]  # fmt: skip
    trace = read_trace(jsonl([{"trace_id": "t", "spans": spans}]))
    assert len(trace) == 1
    assert trace.rows["input_tokens"][0] == 10
    assert left_out(trace) == {WRAPPERS: 3, EMBEDDINGS: 1}


def test_a_call_traced_by_framework_and_client_is_one(jsonl):
    """The outer span knows the session, the inner one the counts; a parent that has ended is the call before."""
    spans = [
        chat("outer", "2026-01-01T00:00:00", "2026-01-01T00:00:09", tokens=None, gen_ai__conversation__id="c",
             gen_ai__request__model="m"),
        span("http", "2026-01-01T00:00:01", "2026-01-01T00:00:08", "outer", http__method="POST"),
        chat("inner", "2026-01-01T00:00:02", "2026-01-01T00:00:07", "http", tokens=(100, 7)),
        chat("next", "2026-01-01T00:00:09", "2026-01-01T00:00:12", "outer", tokens=(200, 8)),
    ]  # fmt: skip
    trace = read_trace(jsonl([{"trace_id": "t", "spans": list(reversed(spans))}]))
    assert left_out(trace) == {WRAPPERS: 1, ENCLOSING: 1}
    rows = trace.rows.to_dicts()
    assert [(row["input_tokens"], row["e2e_s"]) for row in rows] == [(100, 5.0), (200, 3.0)]
    assert (rows[0]["session"], rows[0]["model"]) == ("c", "m")
    assert rows[1]["session"] is None


def test_a_span_around_several_calls_gives_them_nothing(jsonl):
    spans = [
        chat("loop", "2026-01-01T00:00:00", "2026-01-01T00:00:09", tokens=(500, 50), gen_ai__request__model="m"),
        chat("a", "2026-01-01T00:00:01", "2026-01-01T00:00:02", "loop", tokens=(100, 7)),
        chat("b", "2026-01-01T00:00:03", "2026-01-01T00:00:04", "loop", tokens=(200, 8)),
    ]
    trace = read_trace(jsonl([{"spans": spans}]))
    assert trace.rows["input_tokens"].to_list() == [100, 200]
    assert trace.rows["model"].null_count() == 2


def test_a_cycle_of_parents_ends(jsonl):
    spans = [
        chat("a", "2026-01-01T00:00:00", "2026-01-01T00:00:01", "b"),
        span("b", "2026-01-01T00:00:00", "2026-01-01T00:00:01", "a"),
    ]
    assert len(read_trace(jsonl([{"spans": spans}]))) == 1


def test_copies_of_a_file_count_once(jsonl):
    record = {"trace_id": "t", "spans": [chat("a", "2026-01-01T00:00:00", "2026-01-01T00:00:01")]}
    trace = read_trace(jsonl([record, record]))
    assert len(trace) == 1
    assert left_out(trace) == {EXPORTED_TWICE: 1}


def test_names_newest_first_and_the_engines_own_latencies(jsonl):
    engine = {
        "gen_ai__usage__prompt_tokens": 30, "gen_ai__usage__completion_tokens": 4, "gen_ai__latency__e2e": 0.9,
        "gen_ai__latency__time_in_queue": 0.1, "gen_ai__latency__time_to_first_token": 0.25,
    }  # fmt: skip
    spans = [
        span("vllm", "2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z", **engine),
        span("both", "2026-01-01T01:00:01+01:00", "2026-01-01T01:00:02+01:00", gen_ai__operation__name="chat",
             gen_ai__usage__input_tokens=7, gen_ai__usage__prompt_tokens=99, gen_ai__usage__output_tokens=2,
             gen_ai__usage__cache_read__input_tokens=3),
    ]  # fmt: skip
    first, second = read_trace(jsonl([{"spans": spans}])).rows.to_dicts()
    assert (first["input_tokens"], first["output_tokens"]) == (30, 4)
    assert (first["e2e_s"], first["queue_s"], first["ttft_s"]) == (0.9, 0.1, 0.25)
    assert (second["input_tokens"], second["cached_tokens"], second["arrival_s"]) == (7, 3, 1.0)


def test_failed_spans_are_left_out(jsonl):
    spans = [
        chat("good", "2026-01-01T00:00:00", "2026-01-01T00:00:01"),
        chat("bad", "2026-01-01T00:00:01", "2026-01-01T00:00:02") | {"status": {"code": 2}},
        chat("word", "2026-01-01T00:00:01", "2026-01-01T00:00:02") | {"status": "ERROR"},
    ]
    trace = read_trace(jsonl([{"spans": spans}]))
    assert len(trace) == 1
    assert sum(left_out(trace).values()) == 2


def test_cached_tokens_above_the_input_are_on_top_for_anthropic_only(jsonl):
    def cached(id, provider, counts):
        return chat(id, "2026-01-01T00:00:00", "2026-01-01T00:00:01", tokens=(counts[0], 5),
                    gen_ai__provider__name=provider, gen_ai__usage__cache_read_input_tokens=counts[1],
                    gen_ai__usage__cache_creation_input_tokens=40)  # fmt: skip

    spans = [cached("a", "anthropic", (10, 900)), cached("b", "anthropic", (100, 20)), cached("c", "openai", (50, 20))]
    rows = read_trace(jsonl([{"spans": spans}])).rows.to_dicts()
    assert [(row["input_tokens"], row["cached_tokens"]) for row in rows] == [(950, 900), (160, 20), (50, 20)]
    with pytest.raises(TraceError, match="cached tokens are read as a part of the prompt"):
        read_trace(jsonl([{"spans": [cached("a", "openai", (100, 900))]}]))


def test_messages_in_parts_with_instructions_and_tools(jsonl):
    messages = [
        {"role": "user", "parts": [{"type": "text", "content": "weather?"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "1", "name": "w", "arguments": {"c": "Rome"}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "rainy"}]},
    ]
    one = chat(
        "a", "2026-01-01T00:00:00", "2026-01-01T00:00:01",
        gen_ai__input__messages=json.dumps(messages),
        gen_ai__system_instructions=json.dumps([{"type": "text", "content": "Be kind."}]),
        gen_ai__tool__definitions=json.dumps([{"name": "w"}]),
        gen_ai__output__messages=json.dumps(
            [{"role": "assistant", "parts": [{"type": "text", "content": "It rains."}], "finish_reason": "stop"}]
        ),
    )  # fmt: skip
    row = read_trace(jsonl([{"spans": [one]}])).rows.to_dicts()[0]
    assert row["output_text"] == "It rains."
    assert row["prompt_text"] == (
        'tools:\n[{"name": "w"}]\n\nsystem:\nBe kind.\n\nuser:\nweather?\n\nassistant:\n<tool_call>{"name": "w",'
        ' "arguments": {"c": "Rome"}}</tool_call>\n\ntool:\nrainy\n\nassistant:\n'
    )


def test_older_attributes_and_events_hold_the_messages_too(jsonl):
    spread = chat(
        "a", "2026-01-01T00:00:00", "2026-01-01T00:00:01", gen_ai__prompt__0__role="system",
        gen_ai__prompt__0__content="S", gen_ai__prompt__1__role="user", gen_ai__prompt__1__content="U",
        gen_ai__completion__0__role="assistant", gen_ai__completion__0__content="A",
    )  # fmt: skip
    events = chat("b", "2026-01-01T00:00:02", "2026-01-01T00:00:03") | {
        "events": [
            {"name": "gen_ai.system.message", "attributes": {"content": "S"}},
            {"name": "gen_ai.user.message", "attributes": {"content": "U"}},
            {"name": "gen_ai.choice", "attributes": {"message": json.dumps({"role": "assistant", "content": "A"})}},
        ]
    }
    rows = read_trace(jsonl([{"spans": [spread, events]}])).rows
    assert rows["prompt_text"].to_list() == ["system:\nS\n\nuser:\nU\n\nassistant:\n"] * 2
    assert rows["output_text"].to_list() == ["A", "A"]


def test_a_message_list_that_was_cut_off_is_no_text(jsonl):
    whole = [chat(str(n), "2026-01-01T00:00:00", "2026-01-01T00:00:01",
                  gen_ai__input__messages='[{"role": "user", "content": "secret words"}]')
             for n in range(9)]  # fmt: skip
    cut = chat("9", "2026-01-01T00:00:00", "2026-01-01T00:00:01", gen_ai__input__messages='[{"role": "user", "cont')
    trace = read_trace(jsonl([{"spans": [*whole, cut]}]))
    assert trace.rows["prompt_text"].null_count() == 1
    assert any("1 of 10 calls have no readable text: they seem to share no prefix" in note for note in trace.notes)
    trace = read_trace(jsonl([{"spans": [whole[0], cut]}]))
    assert trace.content == "lengths only"
    assert not any("secret" in note for note in trace.notes)


def test_one_span_a_line(jsonl):
    trace = read_trace(jsonl([chat(str(n), f"2026-01-01T00:00:0{n}", f"2026-01-01T00:00:0{n}") for n in range(3)]))
    assert trace.format == "otel-spans"
    assert trace.rows["arrival_s"].to_list() == [0.0, 1.0, 2.0]
    assert trace.rows["e2e_s"].null_count() == 3
    assert any("where it samples" in note for note in trace.notes)
