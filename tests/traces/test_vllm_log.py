"""vLLM's server log: times without a year, prompts that look like log lines, and lengths that it seldom has."""

from __future__ import annotations

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace
from inferdoc.traces.formats.vllm_log import NO_CONTENT, OTHER_LINES

PARAMETERS = "params: SamplingParams(n=1, max_tokens=100), "
END = "lora_request: None."
API = "(APIServer pid=90458) "


def head(time="11:33:33", day="02-13", file="logger.py:49"):
    return f"INFO {day} {time} [{file}] "


def received(id, time="11:33:33", day="02-13", prompt=None, ids=None):
    content = f"prompt: {prompt!r}, " if prompt is not None else ""
    ids = f"prompt_token_ids: {ids}, " if prompt is not None else ""
    return f"{head(time, day)}Received request {id}: {content}{PARAMETERS}{ids}{END}"


def added(id, time="11:33:33", day="02-13"):
    return f"{head(time, day, 'async_llm.py:382')}Added request {id}."


def generated(id, ids, time="11:33:40", output="fine", reason="stop", how=" (streaming complete)"):
    said = f"output: {output!r}, output_token_ids: {ids}, finish_reason: {reason}"
    return f"{head(time)}Generated response {id}{how}: {said}"


def engine(time, running, hits):
    return (f"{head(time, file='loggers.py:257')}Engine 000: Avg prompt throughput: 0.8 tokens/s, Avg generation"
            f" throughput: 4.6 tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 12.5%,"
            f" Prefix cache hit rate: {hits}%, External prefix cache hit rate: 99.0%")  # fmt: skip


ACCESS = 'INFO:     10.80.23.18:51408 - "POST /v1/chat/completions HTTP/1.1" 200 OK'


def left_out(trace):
    return {entry.reason: entry.rows for entry in trace.left_out}


def test_arrivals_alone_are_refused_with_what_there_is(write):
    lines = []
    for n in range(3):
        lines += [
            API + received(f"chatcmpl-{n}", f"11:33:{10 + 5 * n}"),
            API + added(f"chatcmpl-{n}-a8a65d16", f"11:33:{10 + 5 * n}"),
            ACCESS,
        ]
    lines += [API + engine("11:33:39", 4, 0.0), API + engine("11:33:49", 2, 31.5)]
    with pytest.raises(TraceError, match=r"it holds 3 arrivals over 10 s \(0\.2 requests/s\)") as raised:
        read_trace(write("vllm.log", "\n".join(lines)))
    for part in (
        "2 lines of engine gauges", "running 2 to 4", "KV cache usage (%) 12.5 to 12.5",
        "prefix cache hit rate (%) 0 to 31.5", "--otlp-traces-endpoint",
    ):  # fmt: skip
        assert part in str(raised.value)


def test_a_log_of_gauges_alone(write):
    with pytest.raises(TraceError, match=r"0 arrivals.*--enable-log-requests"):
        read_trace(write("vllm.log", engine("11:33:39", 4, 0.0)))


def test_token_ids_are_lengths(write):
    lines = [
        received("a", "11:33:33", prompt="one", ids=[1, 2, 3]), added("a-0a1b2c3d"),
        generated("a", [9, 8], how=" (streaming delta)"),
        generated("a", [9, 8, 7]), received("b", "11:33:35", prompt="two", ids=[1, 2, 3, 4]),
        generated("b", [5], how=""),
        received("c", "11:33:36", prompt="three", ids=[1]), generated("c", [1], reason="abort"), added("d-0a1b2c3d"),
    ]  # fmt: skip
    trace = read_trace(write("vllm.log", "\n".join(lines)))
    assert (trace.format, len(trace)) == ("vllm-log", 2)
    rows = trace.rows.to_dicts()
    assert [(row["prompt_ids"], row["output_ids"]) for row in rows] == [([1, 2, 3], [9, 8, 7]), ([1, 2, 3, 4], [5])]
    assert [(row["input_tokens"], row["output_tokens"], row["arrival_s"]) for row in rows] == [(3, 3, 0.0), (4, 1, 2.0)]
    assert left_out(trace)[NO_CONTENT] == 1
    assert any("resolution of one second" in note for note in trace.notes)


def test_texts_are_python_literals(write):
    prompt = "it's a \"quoted\" text\nINFO 02-13 11:00:00 [logger.py:49] Received request fake: prompt: 'x', params"
    lines = [received("a", prompt=prompt), generated("a", None, output="it's\nfine")]
    trace = read_trace(write("vllm.log", "\n".join(lines)))
    assert len(trace) == 1
    row = trace.rows.to_dicts()[0]
    assert (row["prompt_text"], row["output_text"], row["input_tokens"]) == (prompt, "it's\nfine", None)


def test_a_prompt_with_line_breaks_is_one_message(write):
    """Wrapped or unescaped prompts: what looks like a log line inside is text."""
    lines = [
        f"{head()}Received request a: prompt: 'first", received("fake", prompt="no", ids=[1]).removesuffix(END),
        f"last', {PARAMETERS}prompt_token_ids: [1, 2, 3], {END}", received("b", prompt="next", ids=[4, 5]),
        generated("a", [1]), generated("b", [1]),
    ]  # fmt: skip
    trace = read_trace(write("vllm.log", "\n".join(lines)))
    assert trace.rows["prompt_ids"].to_list() == [[1, 2, 3], [4, 5]]


def test_a_message_that_never_ends_swallows_nothing(write):
    details = (
        f"{head(file='serving.py:1')}Request a details: prompt: 'x', prompt_token_ids: [7, 8], prompt_embeds: None."
    )
    lines = [f"{head()}Received request cut: prompt: 'first", added("a-0a1b2c3d"), generated("a", [1, 2]), details]
    trace = read_trace(write("vllm.log", "\n".join(lines)))
    assert trace.rows["prompt_ids"].to_list() == [[7, 8]]
    assert trace.rows["output_ids"].to_list() == [[1, 2]]


def test_the_year_turns(write):
    lines = [received("a", "23:59:59", "12-31", "x", [1]), received("b", "00:00:02", "01-01", "y", [2])]
    trace = read_trace(write("vllm.log", "\n".join(lines)))
    assert trace.rows["arrival_s"].to_list() == [0.0, 3.0]


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        API,
        "(EngineCore pid=7) ",
        "(ServeReplica:app:llm pid=8, ip=10.0.0.1) ",
        "\x1b[36m(APIServer pid=1)\x1b[0;0m ",
    ],
)
def test_prefixes(write, prefix):
    trace = read_trace(
        write("vllm.log", "\n".join(f"{prefix}{received(str(n), prompt='x', ids=[1, 2])}" for n in range(2)))
    )
    assert len(trace) == 2


def test_the_containers_stamps_are_finer(write):
    lines = [
        "2026-02-13T11:33:33.250000001Z stdout F " + received("a", prompt="x", ids=[1, 2]),
        "2026-02-13T12:33:34.750+01:00 " + received("b", "11:33:34", prompt="y", ids=[3]),
        "2026-02-13T11:33:36.250Z " + generated("b", [4, 4]), "2026-02-13T11:33:36.300Z " + ACCESS,
    ]  # fmt: skip
    trace = read_trace(write("vllm.log", "\n".join(lines)))
    assert trace.rows["arrival_s"].to_list() == pytest.approx([0.0, 1.5], abs=1e-6)
    assert trace.rows["e2e_s"].to_list() == [None, 1.5]
    assert left_out(trace) == {OTHER_LINES: 1}


def test_ids_that_were_cut_are_said(write):
    lines = [received(str(n), prompt="x", ids=list(range(10 if n else 4))) for n in range(5)]
    notes = read_trace(write("vllm.log", "\n".join(lines))).notes
    assert any("4 of 5 prompts have exactly 10 logged ids: --max-log-len" in note for note in notes)
