"""SGLang's server log: Python literals cut in the middle, JSON events, and what a log without requests tells."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace
from inferdoc.traces.formats.calls import EMBEDDINGS, REPEATED
from inferdoc.traces.formats.sglang_log import OTHER_LINES, UNCOUNTED, UNFINISHED
from inferdoc.traces.formats.sglang_metrics import HEALTH


def receive(second, rid):
    obj = f"GenerateReqInput(rid='{rid}', text='secret', sampling_params={{'n': 1}})"
    return f"[2025-06-05 03:20:{second:02d} TP0] Receive: obj={obj}"


def finish(second, rid, prompt=320, output=220, latency=8.5, text="'fine'", more=""):
    meta = (f"{{'id': '{rid}', 'finish_reason': {{'type': 'stop', 'matched': 2}}, 'prompt_tokens': {prompt},"
            f" 'completion_tokens': {output}, 'cached_tokens': 80, 'e2e_latency': {latency}{more}}}")  # fmt: skip
    return (f"[2025-06-05 03:20:{second:02d}] Finish: obj=GenerateReqInput(rid='{rid}', text='secret'),"
            f" out={{'text': {text}, 'output_ids': [1, 2], 'meta_info': {meta}}}")  # fmt: skip


PREFILL = ("[2025-06-05 03:20:01 TP0] Prefill batch. #new-seq: 1, #new-token: 300, #cached-token: 100,"
           " token usage: 0.01, #running-req: 2, #queue-req: 5")  # fmt: skip
DECODE = ("[2025-06-05 03:20:02 TP0] Decode batch. #running-req: 7, #token: 900, token usage: 0.25,"
          " gen throughput (token/s): 123.4, #queue-req: 0")  # fmt: skip


def left_out(trace):
    return {entry.reason: entry.rows for entry in trace.left_out}


def test_text_lines(write):
    quoting = "\"he wrote 'meta_info': {'prompt_tokens': 9, 'completion_tokens': 9}\" ... 'and so on'"
    lines = [
        "INFO:     127.0.0.1:1 - \"GET /health HTTP/1.1\" 200 OK", receive(0, "a"), receive(2, "b"), PREFILL, DECODE,
        finish(9, "b", latency=6.25, text=quoting), finish(10, "a"), receive(11, "c"),
        "[2025-06-05 03:20:12] Finish: obj=GenerateReqInput(rid='d'), out={'text': 'cut of",
        finish(13, "HEALTH_CHECK_1"), finish(14, "a"),
    ]  # fmt: skip
    trace = read_trace(write("server.log", "\r\n".join(lines)))
    assert trace.format == "sglang-log"
    first, second = trace.rows.to_dicts()
    assert (first["input_tokens"], first["output_tokens"], first["cached_tokens"], first["e2e_s"]) == (
        320,
        220,
        80,
        8.5,
    )
    assert (first["arrival_s"], second["arrival_s"], second["e2e_s"]) == (0.0, 2.0, 6.25)
    found = left_out(trace)
    assert found == {OTHER_LINES: 5, UNFINISHED: 1, UNCOUNTED: 1, HEALTH: 1, REPEATED: 1}
    assert any("25.0% of 400 prompt tokens from its cache" in note for note in trace.notes)
    assert any("running 2 to 7; queued 0 to 5; token usage 0.01 to 0.25" in note for note in trace.notes)
    assert "secret" not in str(trace.notes)


def test_finish_lines_alone_arrive_before_by_their_latency(write):
    trace = read_trace(write("server.log", "\n".join([finish(20, "a", latency=8.5), finish(21, "b", latency=1.25)])))
    assert trace.rows["arrival_s"].to_list() == [0.0, 8.25]


def test_numbers_in_every_form(write):
    """Latencies may be written with an exponent; a count that is none is told with its place."""
    trace = read_trace(write("server.log", finish(20, "a", latency="5e-05", more=", 'queue_time': 0.25")))
    assert (trace.rows["e2e_s"][0], trace.rows["queue_s"][0]) == (pytest.approx(5e-5), 0.25)
    with pytest.raises(TraceError, match=r"server\.log:2: prompt_tokens is '-3'"):
        read_trace(write("server.log", "\n".join([PREFILL, finish(20, "a", prompt=-3)])))


def test_the_engines_clock_comes_first(write):
    lines = [finish(20, "a", more=", 'response_sent_to_client_ts': 1781481184.75"),
             finish(21, "b", more=", 'response_sent_to_client_ts': 1781481186.5")]  # fmt: skip
    trace = read_trace(write("server.log", "\n".join(lines)))
    assert trace.rows["arrival_s"].to_list() == [0.0, 1.75]
    assert not any("without zone" in note for note in trace.notes)


def test_container_stamps_and_colours(write):
    lines = [
        f"2026-05-20T08:02:4{n}.56{n}Z stdout F \x1b[32m{finish(0, str(n), latency=2).split('] ', 1)[1]}\x1b[0m"
        for n in range(2)
    ]
    trace = read_trace(write("server.log", "\n".join(lines)))
    assert trace.rows["arrival_s"].to_list() == pytest.approx([0.0, 1.001])


def json_event(second, name, rid, **other):
    return {"timestamp": f"2026-01-01T00:00:{second:02d}.250000", "event": f"request.{name}", "rid": rid} | other


def finished(second, rid, **meta):
    out = {"text": "x", "meta_info": {"id": rid, "prompt_tokens": 4, "completion_tokens": 2, "e2e_latency": 3.0} | meta}
    return json_event(second, "finished", rid, obj={"input_ids": [5, 6, 7, 8], "text": None}, out=out)


def test_json_events_with_and_without_the_date(jsonl, write):
    rows = [json_event(0, "received", "a", obj={}), json_event(0, "received.openai", "a", obj={}),
            json_event(1, "received", "b", obj={}), finished(5, "b"), finished(6, "a")]  # fmt: skip
    embedding = finished(7, "e")
    del embedding["out"]["meta_info"]["completion_tokens"]
    dated = write("server.log", "".join(f"[2026-01-01 00:00:00] {json.dumps(row)}\n" for row in [*rows, embedding]))
    for path, name in ((jsonl([*rows, embedding]), "sglang-requests"), (dated, "sglang-log")):
        trace = read_trace(path)
        assert trace.format == name
        assert trace.rows["arrival_s"].to_list() == [0.0, 1.0]
        assert trace.rows["prompt_ids"].to_list() == [[5, 6, 7, 8]] * 2
        assert left_out(trace) == {OTHER_LINES: 3, EMBEDDINGS: 1}


def test_a_log_without_requests_says_what_it_holds(write):
    with pytest.raises(TraceError, match="it holds 1 received requests") as raised:
        read_trace(write("server.log", "\n".join([PREFILL, DECODE, receive(3, "a")])))
    for part in ("25.0% of 400 prompt tokens", "123.4", "--export-metrics-to-file"):
        assert part in str(raised.value)
    assert "secret" not in str(raised.value)
