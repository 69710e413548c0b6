"""Policy files: what a good one means, and that a wrong one is refused at its line with what would mend it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import get_args

import pytest

from inferdoc.engine.config import AttentionBackend, EngineConfig
from inferdoc.errors import PolicyError
from inferdoc.evidence import Slo
from inferdoc.gate import policy as models
from inferdoc.gate.loading import example_policy, load_policy
from inferdoc.gate.policy import Policy
from inferdoc.gate.sections import ARM, FIELDS, METRIC, SECTIONS
from inferdoc.models.loading import _DTYPES, LoadFormat
from inferdoc.options import Options

SPECIFIED = """\
schema = 1
[baseline]
mode = "paired"          # paired | history | stored (stored never fails by itself: advisory)
path = ".inferdoc/baselines/{workload}/{env}.json"
missing = "error"        # error (exit 4) | record
history_max = 30         # sessions, main branch only; PR and failed runs never enter
[design]
pairs = 8                # one pair = baseline + candidate in one window, order ABBA from the seed
max_pairs = 12           # one extension if inconclusive; alpha is split .025/.025, so >6 fail metrics need more pairs
warmup = "until_steady"  # excluded and reported; restart = "each_arm" | "none"
confirm = 5              # fresh pairs for flagged metrics before failing; both must fail
[comparable]
must_match = ["gpu.model", "gpu.form_factor", "gpu.count", "gpu.mig", "model.revision", "model.dtype", "workload.fingerprint", "probe.version"]
may_vary   = ["engine.version", "engine.flags", "source.commit"]   # declared; "did not vary" is reported
warn       = ["driver", "cuda", "power_limit", "host.cpu", "clocks.locked"]
unknown    = "refuse"    # refuse | warn
[statistics]
alpha = 0.05             # family-wise over role="fail"
correction = "holm"      # warn metrics: BH, q = 0.10, never fail
interval = 0.95
[[metric]]
id = "output_tok_s"      # direction comes from the metric registry, not the user
role = "fail"            # fail | warn | info
max_regression = "5%"
floor = "20 tok/s"       # absolute change that must also be exceeded
[[metric]]
id = "ttft_p95"
role = "fail"
max_regression = "8%"
floor = "10 ms"
min_requests = 200       # per repeat: >=10 beyond the quantile (p95 200, p99 1000)
[[metric]]
id = "error_rate"
role = "fail"
max_value = "0.1%"       # absolute budget; works with no baseline
[[metric]]
id = "output_tokens_total"   # work equivalence: fewer tokens is not "faster"
kind = "exact"
[exit]
inconclusive = 3         # 0 allowed only when written here; printed as WARN
"""  # noqa: E501

GOOD = """\
schema = 1
[[metric]]
id = "output_tok_s"
max_regression = "5%"
"""


def load(tmp_path: Path, text: str, name: str = "gate.toml") -> Policy:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load_policy(path)


def errors_of(tmp_path: Path, text: str, name: str = "gate.toml") -> list[str]:
    """The problems of a policy, by ``line: message``."""
    with pytest.raises(PolicyError) as raised:
        load(tmp_path, text, name)
    place = f"{tmp_path / name}:"
    rows = str(raised.value).split("\n")
    assert all(row.startswith(place) for row in rows)
    assert raised.value.where == ":".join(rows[0].split(":")[:2])
    return [row.removeprefix(place) for row in rows]


def test_the_specified_policy(tmp_path: Path) -> None:
    policy = load(tmp_path, SPECIFIED)
    defaults = Policy()
    for section in ("baseline", "design", "comparable", "statistics", "diagnosis", "workload", "exit", "cost", "arms"):
        assert getattr(policy, section) == getattr(defaults, section)
    assert policy.path == str(tmp_path / "gate.toml")
    assert policy.sha256 == hashlib.sha256(SPECIFIED.encode()).hexdigest()
    speed, ttft, errors, tokens = policy.metrics
    assert (speed.id, speed.role, speed.kind, speed.max_regression, speed.floor, speed.line) == (
        "output_tok_s",
        "fail",
        "timing",
        0.05,
        20.0,
        22,
    )
    assert (ttft.id, ttft.max_regression, ttft.floor, ttft.min_requests, ttft.line) == ("ttft_p95", 0.08, 0.01, 200, 27)
    assert (errors.max_value, errors.max_regression, errors.line) == (0.001, None, 33)
    assert (tokens.id, tokens.kind, tokens.role, tokens.line) == ("output_tokens_total", "exact", "fail", 37)


def test_every_section_is_read(tmp_path: Path) -> None:
    policy = load(
        tmp_path,
        """\
schema = 1
metric = [{ id = "cost_per_million_tokens", role = "warn", max_value = 0.5 }]
[baseline]
mode = "history"
path = "{env}.json"
missing = "record"
history_max = 5
[design]
pairs = 20
warmup = 3
restart = "each_arm"
confirm = 0
seed = 7
[comparable]
must_match = ["gpu.model"]
warn = []
unknown = "warn"
[statistics]
alpha = 0.01
interval = 0.9
[diagnosis]
on_diagnosis_change = "fail"
budget = "3m"
questions = [2, 3]
[workload]
trace = "t.jsonl"
trace_format = "jsonl"
skip_bad_rows = true
requests = 20
budget = 90
load = 0.5
length_scale = "1/32"
slo = "ttft_p95=500ms,tpot_p95=50ms"
device = "cuda:1"
memory = "16GiB"
[exit]
inconclusive = 0
[cost]
per_hour = 2
""",
    )
    assert policy.baseline.model_dump() == {
        "mode": "history",
        "path": "{env}.json",
        "missing": "record",
        "history_max": 5,
    }
    assert policy.design.model_dump() == {
        "pairs": 20,
        "max_pairs": 20,  # the default, 12, raised to the pairs
        "warmup": 3,
        "restart": "each_arm",
        "confirm": 0,
        "seed": 7,
    }
    assert policy.comparable.must_match == ("gpu.model",)
    assert policy.comparable.may_vary == ("engine.version", "engine.flags", "source.commit")
    assert (policy.comparable.warn, policy.comparable.unknown) == ((), "warn")
    assert (policy.statistics.alpha, policy.statistics.interval) == (0.01, 0.9)
    assert policy.diagnosis.model_dump(exclude={"line"}) == {
        "on_diagnosis_change": "fail",
        "budget_s": 180.0,
        "questions": (2, 3),
    }
    workload = policy.workload
    assert (workload.trace, workload.trace_format, workload.skip_bad_rows) == ("t.jsonl", "jsonl", True)
    assert (workload.requests, workload.budget_s, workload.load, workload.rate) == (20, 90.0, 0.5, None)
    assert (workload.length_scale, workload.device, workload.memory_bytes) == ("1/32", "cuda:1", 16 * 2**30)
    assert workload.slo == (
        Slo(metric="ttft_p95", limit=0.5, unit="s"),
        Slo(metric="tpot_p95", limit=0.05, unit="s"),
    )
    assert policy.exit.inconclusive == 0
    assert policy.cost is not None
    assert policy.cost.per_hour == 2.0
    assert (policy.metrics[0].role, policy.metrics[0].max_value, policy.metrics[0].line) == ("warn", 0.5, 2)


def test_yaml_has_the_same_keys(tmp_path: Path) -> None:
    text = """\
schema: 1
design: {pairs: 9}
arm:
  baseline: {model: m, enable_prefix_caching: true}
  candidate:
    block_size: 32
workload: {rate: 2 requests/s}
metric:
  - id: output_tok_s
    max_regression: 5%
  - id: ttft_p95
    role: warn
    max_value: 500 ms
"""
    policy = load(tmp_path, text, "gate.yaml")
    assert (policy.design.pairs, policy.workload.rate) == (9, 2.0)
    assert [(metric.id, metric.max_regression, metric.max_value, metric.line) for metric in policy.metrics] == [
        ("output_tok_s", 0.05, None, 9),
        ("ttft_p95", None, 0.5, 11),
    ]
    assert policy.arms["candidate"].settings == {"enable_prefix_caching": True, "block_size": 32}
    assert policy.arms["candidate"].lines == {"block_size": 6}
    assert errors_of(tmp_path, text.replace("pairs: 9", "pears: 9"), "gate.yml") == [
        "2: [design] has no key 'pears'; did you mean 'pairs'?"
    ]


def test_the_candidate_takes_from_the_baseline_what_it_leaves_out_but_for_the_command(tmp_path: Path) -> None:
    arms = """\
[arm.baseline]
model = "here/model"
command = "make base"
enable_prefix_caching = true
max_num_seqs = 4
[arm.candidate]
max_num_seqs = 8
batching = "static"
"""
    policy = load(tmp_path, GOOD + arms)
    baseline, candidate = policy.arms["baseline"], policy.arms["candidate"]
    assert baseline.model == candidate.model == "here/model"
    assert (baseline.command, candidate.command) == ("make base", None)
    assert baseline.settings == {"enable_prefix_caching": True, "max_num_seqs": 4}
    assert candidate.settings == {"enable_prefix_caching": True, "max_num_seqs": 8, "batching": "static"}
    assert baseline.lines == {"model": 6, "command": 7, "enable_prefix_caching": 8, "max_num_seqs": 9}
    assert candidate.lines == {"max_num_seqs": 11, "batching": 12}


def test_one_arm_alone_brings_the_other(tmp_path: Path) -> None:
    policy = load(tmp_path, GOOD + "[arm.candidate]\nmodel = 'new'\ndtype = 'bfloat16'\n")
    assert (policy.arms["baseline"].model, policy.arms["baseline"].settings) == ("embedded", {})
    assert (policy.arms["candidate"].model, policy.arms["candidate"].settings) == ("new", {"dtype": "bfloat16"})
    policy = load(tmp_path, GOOD + "[arm.baseline]\nmodel = 'old'\ndtype = 'bfloat16'\n")
    assert (policy.arms["candidate"].model, policy.arms["candidate"].settings) == ("old", {"dtype": "bfloat16"})
    assert load(tmp_path, GOOD).arms == {}


def test_the_registry_says_which_metric_is_exact(tmp_path: Path) -> None:
    policy = load(tmp_path, 'schema = 1\n[[metric]]\nid = "output_tokens_total"\n')
    assert policy.metrics[0].kind == "exact"
    policy = load(tmp_path, 'schema = 1\n[[metric]]\nid = "preemptions"\nkind = "exact"\nmax_value = 0\n')
    assert (policy.metrics[0].kind, policy.metrics[0].max_value) == ("exact", 0.0)


def test_an_id_with_a_dot_is_of_the_evidence_and_keeps_the_units_it_was_written_in(tmp_path: Path) -> None:
    policy = load(
        tmp_path,
        """\
schema = 1
[[metric]]
id = "prefix_caching.saturated.throughput.on"
max_regression = "5%"
floor = "20 tok/s"
[[metric]]
id = "prefix.measured_hit_rate"
min_value = 0.4
[[metric]]
id = "fit.weights_bytes"
max_value = "16GiB"
""",
    )
    throughput, hits, weights = policy.metrics
    assert (throughput.max_regression, throughput.floor, throughput.units) == (0.05, 20.0, {"floor": "tok/s"})
    assert (hits.min_value, hits.units) == (0.4, {})
    assert (weights.max_value, weights.units) == (16 * 2.0**30, {"max_value": "B"})


def test_one_metric_may_have_a_limit_of_each_kind(tmp_path: Path) -> None:
    text = GOOD + '[[metric]]\nid = "output_tok_s"\nmin_value = 100\n[[metric]]\nid = "output_tok_s"\nrole = "info"\n'
    assert [metric.role for metric in load(tmp_path, text).metrics] == ["fail", "fail", "info"]


def test_a_field_named_in_one_list_leaves_the_defaults_of_the_others(tmp_path: Path) -> None:
    policy = load(tmp_path, GOOD + '[comparable]\nmay_vary = ["gpu.model", "driver"]\n')
    assert policy.comparable.may_vary == ("gpu.model", "driver")
    assert policy.comparable.must_match == tuple(
        name for name in models.ComparablePolicy().must_match if name != "gpu.model"
    )
    assert policy.comparable.warn == ("cuda", "power_limit", "host.cpu", "clocks.locked")


def metric(body: str, id: str = "output_tok_s") -> str:
    """A policy whose one metric starts on line 2; its body on line 4."""
    return f'schema = 1\n[[metric]]\nid = "{id}"\n{body}\n'


def section(body: str) -> str:
    """A policy with a section on line 5, its keys from line 6 on."""
    return GOOD + body + "\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # keys and sections
        (section("[desing]"), "5: a policy has no section or key 'desing'; did you mean 'design'?"),
        ("pairs = 8\n" + GOOD, "1: a policy has no section or key 'pairs'; it belongs to [design]"),
        (section("[design]\npair = 8"), "6: [design] has no key 'pair'; did you mean 'pairs'?"),
        (section("[statistics]\npairs = 8"), "6: [statistics] has no key 'pairs'; it belongs to [design]"),
        (section("[exit]\nzzz = 8"), "6: [exit] has no key 'zzz'; known: inconclusive"),
        (
            metric('max_regresion = "5%"\nrole="info"'),
            "4: [[metric]] has no key 'max_regresion'; did you mean 'max_reg",
        ),
        (section("[arm.baseline]\nmax_num_seq = 8"), "6: [arm.baseline] has no key 'max_num_seq'; did you mean 'max_n"),
        (section("[arm.candidat]\nmodel = 'x'"), "5: there is no arm 'candidat'; did you mean 'candidate'?"),
        ("design = 8\n" + GOOD, "1: [design] must be a table of keys: pairs, max_pairs"),
        ("arm = []\n" + GOOD, "1: write the arms as [arm.baseline] and [arm.candidate]"),
        # the schema
        (GOOD.replace("schema = 1\n", ""), "1: schema is missing; write schema = 1"),
        (GOOD.replace("1", "2", 1), "1: schema 2 is not known to this version, which reads schema 1"),
        (GOOD.replace("1", "true", 1), "1: schema True is not known"),
        (GOOD.replace("1", "'1'", 1), "1: schema '1' is not known"),
        # metrics
        ("schema = 1\n", "1: the file has no [[metric]]: nothing would be compared"),
        ("schema = 1\nmetric = []\n", "2: the file has no [[metric]]: nothing would be compared"),
        ("schema = 1\n[metric]\nid = 'ttft_p95'\n", "2: each metric is a table of its own: write [[metric]]"),
        ("schema = 1\nmetric = [1]\n", "2: [[metric]] must be a table of keys: id"),
        ("schema = 1\n[[metric]]\nmax_value = 1\n", "2: [[metric]] has no id; give one"),
        (metric('max_value="1s"', "ttft_p59"), "3: there is no metric 'ttft_p59'; did you mean 'ttft_p95'?"),
        (metric('max_value="1s"', "TTFT_P95"), "3: there is no metric 'TTFT_P95'; did you mean 'ttft_p95'?"),
        (metric('role = "fial"\nmax_regression = "5%"'), "4: role: there is no 'fial'; did you mean 'fail'?"),
        (metric('kind = "approx"'), "4: kind: there is no 'approx'; known: timing, exact"),
        (metric('role = "fail"'), "2: 'output_tok_s' has role 'fail' and no limit; give max_regression"),
        (metric('floor = "1 tok/s"\nmax_value = 5'), "4: floor of 'output_tok_s' goes with max_regression"),
        (metric("max_value = 5\nmin_value = 6"), "4: max_value of 'output_tok_s' is below its min_value"),
        (metric('max_regression = "5%"', "output_tokens_total"), "4: 'output_tokens_total' is exact: any difference"),
        (metric('kind = "timing"\nmax_value = 5', "output_tokens_total"), "4: 'output_tokens_total' is a count"),
        (metric('kind = "exact"'), "4: 'output_tok_s' is timed, so no two runs agree exactly"),
        (metric('kind = "exact"', "live_requests"), "4: 'live_requests' is timed, so no two runs agree exactly"),
        (metric('kind = "exact"\nmax_regression = 0.1', "x.y"), "5: 'x.y' is exact: any difference fails"),
        (metric('max_regression = "-5%"'), "4: max_regression of 'output_tok_s': '-5%' is negative"),
        (metric("max_regression = 5"), "4: max_regression of 'output_tok_s' is 500%; it must be below 100% (5% is"),
        (metric('max_regression = "100%"'), "4: max_regression of 'output_tok_s' is 100%; it must be below 100%"),
        (metric("max_regression = true"), "4: max_regression: must be an amount such as '5%' or '10 ms', not true"),
        (metric("max_regression = nan"), "4: max_regression of 'output_tok_s': 'nan' is not a finite number"),
        (
            metric('max_regression = "5%"\nfloor = "10 ms"'),
            "5: floor of 'output_tok_s': '10 ms' is not in tok/s; write",
        ),
        (metric("max_value = inf"), "4: max_value of 'output_tok_s': 'inf' is not a finite number"),
        (
            metric('max_value = "5 parsecs"', "fit.x"),
            "4: max_value of 'fit.x': 'parsecs' in '5 parsecs' is not a known",
        ),
        (metric("max_value = 5\nmin_requests = 0"), "5: min_requests: is 0; it must be at least 1"),
        (metric("max_value = 5\nmin_requests = 1.5"), "5: min_requests: must be a whole number, not 1.5"),
        (GOOD + GOOD.partition("\n")[2], "6: 'output_tok_s' with max_regression is already at "),
        (
            metric("", "output_tokens_total") + '[[metric]]\nid = "output_tokens_total"\nkind = "exact"\n',
            "6: 'output_tokens_total' with kind exact is already at ",
        ),
        (metric("max_value = 1", "cost_per_million_tokens"), "3: a cost needs the device's price; add [cost]"),
        (section("[cost]"), "5: [cost] has no per_hour; give the price"),
        (section("[cost]\nper_hour = 0"), "6: per_hour: is 0; it must be more than 0"),
        # the design
        (section("[design]\npairs = 4"), "6: pairs: is 4; it must be 5 to 50"),
        (section("[design]\npairs = 51"), "6: pairs: is 51; it must be 5 to 50"),
        (section("[design]\npairs = '8'"), "6: pairs: must be a whole number, not '8'"),
        (section("[design]\npairs = true"), "6: pairs: must be a whole number, not true"),
        (section("[design]\npairs = 10\nmax_pairs = 9"), "7: max_pairs: is 9, below pairs (10)"),
        (section("[design]\nmax_pairs = 7"), "6: max_pairs: is 7, below pairs (8)"),
        (section("[design]\nconfirm = 1"), "6: confirm: is 1; so few pairs can't reach p = 0.05: give 5 or more, or 0"),
        (section("[design]\nconfirm = 4"), "6: confirm: is 4; so few pairs"),
        (section("[design]\nconfirm = -1"), "6: confirm: is -1; it must be 0 to 50"),
        (
            section("[design]\nwarmup = 'until_stedy'"),
            "6: warmup: there is no 'until_stedy'; did you mean 'until_steady",
        ),
        (section("[design]\nwarmup = -1"), "6: warmup: is -1; it must be at least 0"),
        (section("[design]\nrestart = 'each'"), "6: restart: there is no 'each'; did you mean 'each_arm'?"),
        # statistics
        (section("[statistics]\nalpha = 0"), "6: alpha: is 0; it must lie between 0 and 0.5, both excluded"),
        (section("[statistics]\nalpha = 0.5"), "6: alpha: is 0.5; it must lie between 0 and 0.5"),
        (section("[statistics]\nalpha = nan"), "6: alpha: must be a finite number"),
        (section("[statistics]\nalpha = '5%'"), "6: alpha: must be a number, not '5%'"),
        (section("[statistics]\ninterval = 0.5"), "6: interval: is 0.5; it must lie between 0.5 and 1"),
        (section("[statistics]\ninterval = 1"), "6: interval: is 1; it must lie between 0.5 and 1"),
        (section("[statistics]\ncorrection = 'none'"), "6: correction: there is no 'none'; known: holm"),
        # the baseline
        (section("[baseline]\nmode = 'pared'"), "6: mode: there is no 'pared'; did you mean 'paired'?"),
        (section("[baseline]\nhistory_max = 0"), "6: history_max: is 0; it must be at least 1"),
        (
            section("[baseline]\npath = '{worklod}/{env}.json'"),
            "6: path: there is no placeholder {worklod}; did you mean 'workload'?",
        ),
        (section("[baseline]\npath = '{}.json'"), "6: path: there is no placeholder {}; known: workload, env"),
        (
            section("[baseline]\npath = '{workload/a.json'"),
            "6: path: '{workload/a.json' has a brace that is not closed",
        ),
        (section("[baseline]\npath = ''"), "6: path: must be text, not ''"),
        # what is comparable
        (
            section("[comparable]\nmust_match = [\n'gpu.model',\n'gpu.modle']"),
            "8: must_match: there is no field 'gpu.modle'; did you mean 'gpu.model'?",
        ),
        (
            section("[comparable]\nmust_match = ['gpu.model']\nmay_vary = [\n'gpu.model']"),
            "8: may_vary: 'gpu.model' stands in must_match and in may_vary; keep one",
        ),
        (section("[comparable]\nwarn = ['cuda', 'cuda']"), "6: warn: 'cuda' stands twice in warn; keep one"),
        (section("[comparable]\nwarn = 'cuda'"), "6: warn: must be a list, such as"),
        (section("[comparable]\nwarn = [['cuda']]"), "6: warn: there is no field ['cuda']"),
        (section("[comparable]\nunknown = 'ignore'"), "6: unknown: there is no 'ignore'; known: refuse, warn"),
        # the rest
        (section("[exit]\ninconclusive = 1"), "6: inconclusive: there is no 1; known: 0, 3"),
        (section("[exit]\ninconclusive = false"), "6: inconclusive: there is no false; known: 0, 3"),
        (section("[diagnosis]\non_diagnosis_change = 'warning'"), "6: on_diagnosis_change: there is no 'warning'; did"),
        (section("[diagnosis]\nbudget = '3 minutes'"), "6: budget: '3 minutes' is not a duration; write it like 90s"),
        (section("[diagnosis]\nbudget = 0"), "6: budget: is 0; it must be more than 0 seconds"),
        (section("[diagnosis]\nquestions = [7]"), "6: questions: is 7; it must be 1 to 6"),
        (section("[diagnosis]\nquestions = [1, 1]"), "6: questions: names a question twice"),
        (section("[diagnosis]\nquestions = 1"), "6: questions: must be a list of numbers"),
        (section("[workload]\nload = 1.0"), "6: load: is 1.0; it must be 0.05 to 0.95"),
        (section("[workload]\nload = '70%'"), "6: load: must be a number, not '70%'"),
        (section("[workload]\nload = 0.7\nrate = 2"), "7: rate: stands in place of load; leave one out"),
        (
            section("[workload]\nrate = '2 tok/s'"),
            "6: rate: '2 tok/s' is not in requests/s; write it like 2 requests/s",
        ),
        (section("[workload]\nrate = 0"), "6: rate: is 0; it must be more than 0"),
        (section("[workload]\nmemory = '16 gigs'"), "6: memory: '16 gigs' is not a size; write it like 16GiB"),
        (section("[workload]\nmemory = 1.5"), "6: memory: must be a size such as '16GiB', not 1.5"),
        (section("[workload]\nslo = 'ttft=1s'"), "6: slo: 'ttft=1s' is not an objective; write metric_percentile"),
        (section("[workload]\nslo = 'ttft_p95=1'"), "6: slo: ttft_p95= '1' is not a duration"),
        (section("[workload]\nlength_scale = '2'"), "6: length_scale: '2' is not a scale between 0 and 1"),
        (section("[workload]\nlength_scale = 0.0"), "6: length_scale: '0.0' is not a scale between 0 and 1"),
        (section("[workload]\nrequests = 0"), "6: requests: is 0; it must be at least 1"),
        (section("[workload]\nskip_bad_rows = 1"), "6: skip_bad_rows: must be true or false, not 1"),
        (section("[workload]\ndevice = 'gpu'"), "6: device: there is no device 'gpu'; write auto, cpu, cuda or cuda:0"),
        (section("[workload]\ntrace = 1979-05-27"), "6: trace: must be text, not 1979-05-27"),
        (
            section("[arm.candidate]\nbatching = 'continous'"),
            "6: batching: there is no 'continous'; did you mean 'cont",
        ),
        (section("[arm.candidate]\nreservation = 'page'"), "6: reservation: there is no 'page'; did you mean 'paged'?"),
        (section("[arm.candidate]\nenforce_eager = 'yes'"), "6: enforce_eager: must be true or false, not 'yes'"),
        (section("[arm.candidate]\nblock_size = 24"), "6: block_size: is 24; it must be a power of two"),
        (section("[arm.candidate]\nmax_num_seqs = 1"), "6: max_num_seqs: is 1; it must be at least 2"),
        (section("[arm.candidate]\ndtype = 'bf16'"), "6: dtype: there is no 'bf16'; did you mean 'bfloat16'?"),
        (section("[arm.candidate]\nmodel = ['a']"), "6: model: must be text, not a list"),
        (section("[arm]\ncandidate = 'x'"), "6: [arm.candidate] must be a table of keys: model, command"),
    ],
)
def test_a_wrong_policy_is_refused_at_its_line(tmp_path: Path, text: str, expected: str) -> None:
    errors = errors_of(tmp_path, text)
    assert len(errors) == 1, errors
    assert errors[0].startswith(expected)


def test_everything_that_is_wrong_is_told_in_order(tmp_path: Path) -> None:
    text = (
        "schema = 1\n[workload]\nload = 2\n[design]\npairs = 1\nmax_pair = 3\n[[metric]]\nid = 'ttft_p95'\nrole = 'f'\n"
    )
    lines = [error.partition(":")[0] for error in errors_of(tmp_path, text)]
    assert lines == ["3", "5", "6", "9"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a list", "1: a gate's policy is a mapping with keys such as 'schema' and 'metric'"),
        ("", "1: a gate's policy is a mapping"),
        ("schema: 1\nmetric: [", "2: not valid YAML"),
        ("schema: 1\nschema: 1\n", "2: key 'schema' stands twice"),
        ("schema: 1\nmetric: [{id: ttft_p95, max_value: 1}]\ndesign:\n", "3: [design] must be a table of keys"),
        ("schema: 1\nmetric: [{id: ttft_p95, max_value: 1, on: 2}]\n", "2: [[metric]] has no key 'True'"),
        ("schema: 1\nmetric:\n  - id: 5\n    max_value: 1", "3: id: must be text, not 5; put it in quotes"),
        ("a: &a [*a]\n", "1: an alias holds itself"),
    ],
)
def test_yaml_errors_speak_of_policies(tmp_path: Path, text: str, expected: str) -> None:
    (error,) = errors_of(tmp_path, text, "gate.yaml")
    assert error.startswith(expected)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    absent = tmp_path / "gate.toml"
    with pytest.raises(PolicyError, match=rf"^{re.escape(str(absent))}: cannot be read \(No such file"):
        load_policy(absent)
    absent.mkdir()
    with pytest.raises(PolicyError, match="cannot be read"):
        load_policy(absent)
    with pytest.raises(PolicyError, match=r"gate\.json: not a policy: its name must end in \.toml, \.yaml or \.yml"):
        load(tmp_path, "{}", "gate.json")
    for name in ("bytes.toml", "bytes.yaml"):
        (tmp_path / name).write_bytes(b"# policy\n# \xff\n")
        with pytest.raises(PolicyError, match=rf"{name}:2: not UTF-8"):
            load_policy(tmp_path / name)
    assert errors_of(tmp_path, "schema = 1\npairs = = 8\n", "syntax.toml")[0].startswith("2: not valid TOML: ")


def test_windows_files_load_and_keep_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "gate.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SPECIFIED.replace("\n", "\r\n").encode())
    assert [metric.line for metric in load_policy(path).metrics] == [22, 27, 33, 37]


def test_the_tables_of_keys_are_the_models(tmp_path: Path) -> None:
    sections = {
        "baseline": models.BaselinePolicy,
        "design": models.DesignPolicy,
        "comparable": models.ComparablePolicy,
        "statistics": models.StatisticsPolicy,
        "diagnosis": models.DiagnosisPolicy,
        "workload": models.WorkloadPolicy,
        "exit": models.ExitPolicy,
        "cost": models.CostPolicy,
    }
    assert {name: {FIELDS.get(key, key) for key in keys} for name, keys in SECTIONS.items()} == {
        name: set(model.model_fields) - {"line"} for name, model in sections.items()
    }
    assert set(METRIC) == set(models.MetricPolicy.model_fields) - {"line", "units"}
    settings = set(ARM) - {"model", "command"}
    switches = {"batching", "enable_chunked_prefill", "enable_prefix_caching", "reservation"}
    assert switches <= set(EngineConfig.__dataclass_fields__)
    assert settings - switches <= set(Options.__dataclass_fields__)


@pytest.mark.parametrize(
    ("key", "choices"),
    [
        ("dtype", ("auto", *_DTYPES)),
        ("load_format", get_args(LoadFormat)),
        ("attention_backend", ("auto", *get_args(AttentionBackend))),
    ],
)
def test_arms_may_choose_what_the_engine_knows(tmp_path: Path, key: str, choices: tuple[str, ...]) -> None:
    for choice in choices:
        policy = load(tmp_path, section(f"[arm.candidate]\n{key} = '{choice}'"))
        assert policy.arms["candidate"].settings == {key: choice}
    (error,) = errors_of(tmp_path, section(f"[arm.candidate]\n{key} = '-'"))
    assert error.endswith(f"known: {', '.join(choices)}")


@pytest.mark.parametrize(
    ("written", "line"),
    [("", None), ("[diagnosis]\nquestions = [2]", 0), ("[diagnosis]\non_diagnosis_change = 'fail'", 1)],
)
def test_the_diagnosis_knows_the_line_that_makes_it_count(tmp_path: Path, written: str, line: int | None) -> None:
    text = section(written)
    first = text.splitlines().index("[diagnosis]") + 1 if written else 0
    assert load(tmp_path, text).diagnosis.line == (None if line is None else first + line)


def test_the_example_loads(tmp_path: Path) -> None:
    policy = load(tmp_path, example_policy())
    limits = {metric.id: metric.max_regression for metric in policy.metrics}
    assert limits == {"output_tok_s": 0.1, "ttft_p50": 0.3, "tpot_p50": 0.1, "output_tokens_total": None}
    assert policy.arms["baseline"].model == policy.arms["candidate"].model == "embedded"
    assert policy.arms["baseline"].settings == policy.arms["candidate"].settings


def test_the_example_shows_every_key(tmp_path: Path) -> None:
    text = example_policy()
    for name, keys in SECTIONS.items():
        body = text.partition(f"[{name}]\n")[2].partition("\n[")[0]
        assert {key for key in keys if not re.search(rf"^(# )?{key} = ", body, flags=re.MULTILINE)} == set()
    assert {key for key in (*ARM, *METRIC) if not re.search(rf"\b{key}\b", text)} == set()


def test_what_the_example_shows_as_a_comment_can_be_put_to_use_and_is_the_default(tmp_path: Path) -> None:
    text = re.sub(r"^# (?=\w+ = |\[)", "", example_policy(), flags=re.MULTILINE)
    policy = load(tmp_path, re.sub(r"^load = .*\n", "", text, flags=re.MULTILINE))  # rate stands in its place
    assert [metric.id for metric in policy.metrics][-2:] == ["error_rate", "ttft_p95"]
    defaults = Policy()
    for name in ("baseline", "comparable", "statistics", "design", "exit"):
        assert getattr(policy, name) == getattr(defaults, name)
    assert re.findall(r"^load = ([\d.]+)", text, flags=re.MULTILINE) == [str(defaults.workload.load)]
    assert policy.workload.model_dump(include={"skip_bad_rows", "length_scale", "device", "budget_s"}) == (
        defaults.workload.model_dump(include={"skip_bad_rows", "length_scale", "device", "budget_s"})
    )
