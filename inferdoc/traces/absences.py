"""What a trace does not hold, what cannot be said without it, and how to get it."""

from __future__ import annotations

from inferdoc.evidence import Contract, Question
from inferdoc.traces.trace import Trace


class Absence(Contract):
    absent: str
    switches_off: list[Question]
    """Questions that have no answer from this trace."""
    effect: str
    """What else is not known."""
    how_to_get_it: str


_LENGTHS_NEEDED = [
    Question.HARDWARE_FIT,
    Question.OUTPUT_VARIANCE,
    Question.KV_FRAGMENTATION,
    Question.TOKEN_LATENCY,
    Question.DISAGGREGATION,
]


def absences(trace: Trace) -> list[Absence]:
    """By the columns, those that switch off questions first."""
    found = [
        *_lengths(trace),
        *_prefixes(trace),
        *_times(trace),
        *_labels(trace),
    ]
    return sorted(found, key=lambda entry: not entry.switches_off)


def _lengths(trace: Trace) -> list[Absence]:
    found = []
    if not trace.has("input_tokens"):
        found.append(
            Absence(
                absent="prompt lengths in tokens",
                switches_off=[Question.HARDWARE_FIT, Question.KV_FRAGMENTATION, Question.DISAGGREGATION],
                effect="texts have no lengths before a tokenizer has counted them",
                how_to_get_it="name the model whose tokenizer counts them: --model",
            )
        )
    if not trace.has("output_tokens"):
        counted = trace.has("output_text")
        found.append(
            Absence(
                absent="output lengths in tokens" if counted else "output lengths",
                switches_off=_LENGTHS_NEEDED,
                effect="requests cannot be run, nor their memory and steps be worked out",
                how_to_get_it="name the model whose tokenizer counts them: --model"
                if counted
                else "log usage.completion_tokens of each answer, or the answers",
            )
        )
    return found


def _prefixes(trace: Trace) -> list[Absence]:
    if trace.content == "lengths only":
        return [
            Absence(
                absent="what prompts begin with (texts, token ids or block hashes)",
                switches_off=[Question.PREFIX_REDUNDANCY],
                effect="whether prompts repeat is unknown, which is not the same as no reuse",
                how_to_get_it="log the prompts where they may stay, and take their hashes along: inferdoc trace "
                "anonymize; or record the engine's block hashes (KV cache events)",
            )
        ]
    if trace.content == "block hashes":
        return [
            Absence(
                absent="texts and token ids",
                switches_off=[],
                effect="what breaks prefixes cannot be named, and a draft model's acceptance cannot be measured",
                how_to_get_it="inspect the log with the prompts, where it may stay",
            )
        ]
    return []


def _times(trace: Trace) -> list[Absence]:
    found = []
    if not trace.has("arrival_s"):
        found.append(
            Absence(
                absent="arrival times",
                switches_off=[Question.DISAGGREGATION],
                effect="no rate, bursts, windows or memory over time; a diagnosis draws arrivals at random",
                how_to_get_it="log when each request came in, with fractions of a second",
            )
        )
    elif trace.independent_clocks:
        found.append(
            Absence(
                absent="one clock for all parts",
                switches_off=[Question.DISAGGREGATION],
                effect="no rate or memory over time of the whole; each part has its own",
                how_to_get_it="record wall-clock times, or inspect the parts one by one",
            )
        )
    if not trace.has("e2e_s"):
        found.append(
            Absence(
                absent="how long requests took",
                switches_off=[],
                effect="memory over time is known only with a model of the service times",
                how_to_get_it="log when each answer ended (end-to-end latency)",
            )
        )
    return found


def _labels(trace: Trace) -> list[Absence]:
    found = []
    if not trace.has("session"):
        found.append(
            Absence(
                absent="sessions",
                switches_off=[],
                effect="how much of the reuse is within a session, and session-sticky routing",
                how_to_get_it="log a conversation or user id, which may be a hash",
            )
        )
    if not trace.has("cached_tokens") and trace.content != "lengths only":
        found.append(
            Absence(
                absent="cached tokens as measured",
                switches_off=[],
                effect="the hit rate that the server really had, beside the ideal one",
                how_to_get_it="log usage.prompt_tokens_details.cached_tokens (vLLM: --enable-prompt-tokens-details)",
            )
        )
    return found
