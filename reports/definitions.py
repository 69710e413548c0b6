"""What the words of a report mean: printed in its appendix, and the only place where they are defined for readers."""

from __future__ import annotations

from inferdoc.evidence import Workload


def definitions(workload: Workload) -> tuple[tuple[str, str], ...]:
    """Each term with its meaning, and with the size of the slice of `workload` that the intervals speak of."""
    requests = "" if workload.slice_requests is None else f" of {workload.slice_requests:,} requests"
    return tuple((term, meaning.replace(_SLICE, f"the measured slice{requests}")) for term, meaning in _DEFINITIONS)


_SLICE = "<slice>"
_DEFINITIONS: tuple[tuple[str, str], ...] = (
    ("TTFT", "Time to first token: from arrival to the first output token, queueing included."),
    ("TPOT", "Time per output token: (end-to-end time - TTFT) / (output tokens - 1). Undefined for one output token."),
    ("ITL", "Inter-token latency: the gaps between the output tokens of one request, as they were produced."),
    ("E2E", "End-to-end time: from arrival to the last output token."),
    ("Goodput", "Requests per second that meet every service-level objective given."),
    (
        "MBU",
        "Model bandwidth utilization: bytes that a step must read / (its time x the bandwidth measured on this "
        "device). The roofline fraction is the same share for the slower of memory and compute.",
    ),
    ("Hit rate", "Prompt tokens served from the prefix cache / prompt tokens."),
    (
        "Gain",
        "How many times better a metric is with the technique on than off. Above 1.00x is better, whatever the metric: "
        "for a time, 1.50x means that it is 1.5 times shorter.",
    ),
    (
        "Pair, run, n",
        "A pair is one run with the technique off and one with it on, over the same requests, in ABBA order after "
        "one discarded warm-up run of each arm. The unit of replication is the run, never the request; n is the "
        "number of pairs.",
    ),
    (
        "Interval",
        "95% confidence interval. For a gain: the Hodges-Lehmann estimate over the pairs on the log scale, with the "
        "interval that inverts the exact Wilcoxon signed-rank test; it needs at least 6 pairs. It covers the noise "
        f"from run to run on {_SLICE}, not how other requests or other traffic would fare.",
    ),
    (
        "Percentiles",
        "A 95% interval needs 6 requests for p50, 36 for p90, 72 for p95 and 368 for p99. With fewer the percentile is "
        "not printed.",
    ),
    (
        "Saturated",
        "All requests are there at the start. Throughput and capacity are taken only under this load. A saturated TTFT "
        "includes queueing behind the whole slice, so it is printed as context and nothing is concluded from it.",
    ),
    (
        "Open loop",
        "Requests arrive on one schedule that both arms share. Claims on latency (TTFT, TPOT, end-to-end) and goodput "
        "are made only from this load; those on chunked prefill come from runs of their own, in which long prompts "
        "arrive beside running decodes.",
    ),
    (
        "Overloaded",
        "The queue was still growing when the run ended: its latencies depend on its length and are not percentiles.",
    ),
    (
        "Engine-limited",
        "The engine ran below half of its roofline, so the gain of a production engine may differ from this one.",
    ),
    (
        "Basis",
        "Measured here; computed from the trace; from the configuration; modelled (from numbers measured here); from "
        "the spec sheet.",
    ),
)

GATE_DEFINITIONS: tuple[tuple[str, str], ...] = (
    (
        "Change",
        "Candidate over baseline, less 1: the Hodges-Lehmann estimate over the pairs on the log scale, with the 95% "
        "interval that inverts the exact test. Whether up or down is worse belongs to the metric.",
    ),
    (
        "Limit",
        "The largest allowed change for the worse, in times worse: with a limit of 5% a latency may become 1.05 times "
        "as long, and a throughput 1.05 times as small (-4.8%).",
    ),
    (
        "Regressed",
        "Worse by at least the limit and by at least the floor, with an adjusted p within the family's alpha, and "
        "again on fresh pairs.",
    ),
    (
        "Passed",
        "A change for the worse as large as the limit is ruled out: its one-sided 95% bound is below the limit.",
    ),
    ("Improved", "Passed, and the whole interval is better than no change. It decides nothing."),
    ("Inconclusive", "Neither shown nor ruled out with these pairs. It is not a pass."),
    ("Over budget", "An absolute limit is not kept. A budget needs no baseline."),
    ("Advisory", "A difference of stored results that were not measured in pairs. It never fails the gate."),
    (
        "Changed answer",
        "A conclusion of the diagnosis that the two sides do not share. The policy's on_diagnosis_change says what it "
        "does: with fail it fails the gate where intervals that lie apart show it, and is inconclusive where they do "
        "not; with warn it never fails.",
    ),
    ("Floor", "The absolute change that a regression must also reach, so that small numbers do not fail for little."),
    ("p, adjusted", "One-sided, from the exact test; adjusted over all metrics that may fail (Holm)."),
    ("n", "Pairs of runs, or sessions of a history: never requests, which share one server."),
)
"""The words of a gate's result."""
