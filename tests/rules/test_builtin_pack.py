"""The built-in pack: complete, sourced, and about quantities that the probes write."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from inferdoc.evidence import Conclusion, Objective, Question
from inferdoc.rules import Pack, wording

TECHNIQUES = {
    "quantization", "kv_quantization", "sparsity", "distillation", "tensor_parallelism", "pipeline_parallelism",
    "prefix_caching", "prompt_reordering", "continuous_batching", "chunked_prefill", "max_num_seqs",
    "max_num_batched_tokens", "paged_attention", "block_size", "max_model_len", "speculative_ngram",
    "speculative_draft", "cuda_graphs", "fused_attention", "gqa_models", "disaggregation",
}  # fmt: skip

# What the probes write. A rule that asks for anything else could never be answered.
QUANTITIES = {
    "fit": "budget_bytes weights_bytes activation_peak_bytes outside_framework_bytes kv_bytes_per_token "
    "kv_capacity_tokens weights_fraction fits longest_request_tokens kv_demand_p50_tokens kv_demand_p99_tokens "
    "kv_headroom devices_needed weights_int8_bytes weights_int4_bytes kv_fp8_bytes_per_token student_parameters "
    "int8_weight_saving kv_fp8_saving logits_bytes graphs_bytes kv_pool_bytes memory_left_bytes quantization_scheme "
    "frees_quantization_bytes buys_quantization_requests frees_kv_quantization_bytes buys_kv_quantization_requests "
    "frees_sparsity_bytes buys_sparsity_requests student_layers student_hidden_size student_cost step_share "
    "draft_takes_tokens "
    "plan_weights_bytes plan_activation_bytes plan_outside_bytes plan_kv_tokens kv_headroom_p50 more_kv_quantization",
    "quality": " ".join(
        f"{technique}.{figure}"
        for technique in ("quantization", "kv_quantization", "sparsity")
        for figure in ("perplexity_ratio", "kl", "top1")
    )
    + " calibration_excess",
    "student": "parameters tpot_full_batch weights_bytes cost perplexity_ratio",
    "prefix": "ideal_hit_rate ideal_hit_rate_slice measured_hit_rate shared_request_share median_shared_tokens "
    "compulsory_share hit_rate_at_capacity capacity_for_90 mended_hit_rate mended_share",
    "variance": "output_cv output_p50_tokens output_p99_tokens static_waste queue_behind_long_share",
    "fragmentation": "internal_waste_full internal_waste_request tail_waste external_waste_full live_full live_paged "
    "budget_binds pays_below_tokens best_block_size tail_waste_b16 tail_waste_b32 tail_waste_b64 tail_waste_b128",
    "latency": "tpot_b1 tpot_at_load tpot_full_batch slo_share batch_in_slo bandwidth roofline_b1 roofline_max_batch "
    "launch_share ngram_acceptance ngram_tokens_per_step ngram_breakeven attention_share repeated_4grams "
    "kv_share_of_step_bytes matrix_rate compute_b1 compute_max_batch kv_head_sharing mha_kv_bytes_per_token "
    "draft_acceptance draft_tokens_per_step draft_step_ratio "
    + " ".join(
        f"{method}_{figure}"
        for method in ("ngram", "draft")
        for figure in ("alpha", "predicted_b1", "predicted_full", "best_k", "pays_up_to")
    ),
    "disagg": "itl_stall_unchunked itl_stall_chunked itl_steady stall_ratio_chunked prefill_s_per_s decode_s_per_s "
    "replicas_needed itl_slo_margin input_output_ratio",
}
COMPARISONS = {
    "prefix_caching.saturated", "prefix_caching.open", "continuous_batching.saturated", "continuous_batching.open",
    "paged_attention.real", "paged_attention.p25", "paged_attention.p50", "paged_attention.p100",
    "chunked_prefill.interference", "quantization.saturated", "quantization.alone", "kv_quantization.saturated",
    "sparsity.saturated", "sparsity.alone", "speculative_ngram.saturated", "speculative_ngram.alone",
    "speculative_draft.saturated", "speculative_draft.alone", "cuda_graphs.saturated", "fused_attention.saturated",
}  # fmt: skip
METRICS = [
    "throughput",
    "ttft_p50",
    "ttft_p95",
    "tpot_p50",
    "tpot_p95",
    "tpot_mean",
    "itl_max",
    "e2e_p50",
    "goodput",
    "live_requests",
]


def known_ids() -> set[str]:
    plain = {f"{space}.{name}" for space, names in QUANTITIES.items() for name in names.split()}
    return plain | {f"{comparison}.{metric}.gain" for comparison in COMPARISONS for metric in METRICS}


def test_every_measure_is_one_that_a_probe_writes(pack: Pack) -> None:
    asked: set[str] = set()
    for loaded in pack.rules:
        rule = loaded.rule
        nodes = [node for _, node in rule.conditions()]
        nodes += [node for requirement in loaded.requires for _, node in requirement.when.walk()]
        asked |= {id for node in nodes for id in (node.measure, node.known) if id is not None}
        asked |= {effect.gain for effect in rule.effects} | set(rule.shows)
        names = (name.partition("|")[0] for _, text in rule.templates() for name in wording.placeholders(text))
        asked |= {name for name in names if "." in name}
    asked |= {claim.measure for claim in pack.claims if claim.measure is not None}
    assert asked - known_ids() == set()
    assert len(asked) > 50


def test_every_technique_has_an_entry_and_a_rule(pack: Pack) -> None:
    assert set(pack.techniques) == TECHNIQUES
    assert {loaded.rule.technique for loaded in pack.rules} == TECHNIQUES


def test_every_question_has_rules_and_a_leading_one(pack: Pack) -> None:
    by_id = {loaded.rule.id: loaded for loaded in pack.rules}
    assert set(pack.leads) == set(Question)
    assert all(by_id[lead].question is question for question, lead in pack.leads.items())


def test_every_threshold_has_a_source(pack: Pack) -> None:
    allowed = ("https://", "inferdoc: judgement, because ", "definition: ", "Amdahl's law, https://", "the decision ")
    thresholds = 0
    for loaded in pack.rules:
        for _, node in loaded.rule.conditions():
            if node.measure is not None:
                _, source = pack.threshold(node)
                assert source.startswith(allowed), (loaded.source, source)
                thresholds += 1
    assert thresholds > 40
    assert all(constant.source.startswith(allowed) for constant in pack.constants.values())
    assert all(weighting.source.startswith(allowed) for weighting in pack.objectives.values())


def test_every_constant_is_used(pack: Pack) -> None:
    used = {"least_worthwhile_gain", "least_worthwhile_loss", "high_severity_gain", "medium_severity_gain"}
    used.add("small_slice_share")
    for loaded in pack.rules:
        requires = [node for requirement in loaded.requires for _, node in requirement.when.walk()]
        for node in [*requires, *(node for _, node in loaded.rule.conditions())]:
            if node.measure is not None and isinstance(node.threshold, str):
                used.add(node.threshold)
    assert used == set(pack.constants)


def test_the_least_gain_is_five_percent_and_the_numbers_derived_from_it_agree(pack: Pack) -> None:
    least = pack.constants["least_worthwhile_gain"].value
    assert least == 1.05
    assert pack.constants["least_worthwhile_loss"].value == pytest.approx(1 / least, abs=5e-4)
    assert pack.constants["least_worthwhile_share"].value == pytest.approx(1 - 1 / least, abs=5e-5)


def test_the_framework_line_is_ninety_percent(pack: Pack) -> None:
    assert pack.constants["weights_fraction_line"].value == 0.9


def test_only_techniques_that_this_version_measures_can_be_recommended_or_refuted_by_a_gain(pack: Pack) -> None:
    recommending = {
        loaded.rule.technique
        for loaded in pack.rules
        if any(case.conclude is Conclusion.RECOMMENDED for case in loaded.rule.cases)
    }
    assert recommending == {
        "tensor_parallelism", "prefix_caching", "continuous_batching", "paged_attention", "chunked_prefill",
        "quantization", "kv_quantization", "sparsity", "speculative_ngram", "speculative_draft", "cuda_graphs",
        "fused_attention",
    }  # fmt: skip


def test_a_condition_about_a_gain_asks_only_for_one_that_its_probe_makes(pack: Pack) -> None:
    """Each load measures its own metrics; a condition on another could never be decided."""
    made = {
        "saturated": {"throughput", "ttft_p50", "ttft_p95"},
        "open": {"ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95", "e2e_p50"},
        "interference": {"itl_max", "ttft_p50"},
        "alone": {"tpot_p50", "tpot_mean"},
        **{load: {"throughput", "live_requests", "ttft_p50"} for load in ("real", "p25", "p50", "p100")},
    }
    asked = {node.measure for loaded in pack.rules for _, node in loaded.rule.conditions() if node.measure is not None}
    gains = [id.split(".") for id in asked if id.endswith(".gain")]
    assert len(gains) >= 7
    assert [id for id in gains if id[2] not in made[id[1]]] == []


def test_texts_advise_only_objectives_that_the_command_line_accepts(pack: Pack) -> None:
    accepted = {"ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95", "e2e_p50", "e2e_p95", "itl_max"}
    texts = [text for loaded in pack.rules for _, text in loaded.rule.templates()]
    advised = {metric for text in texts for metric in re.findall(r"\b([a-z0-9]+_[a-z0-9]+)=", text)}
    assert advised
    assert advised <= accepted
    told = {node.slo for loaded in pack.rules for _, node in loaded.rule.conditions() if node.slo is not None}
    assert all(any(metric.startswith(prefix) for metric in accepted) for prefix in told)


def test_time_per_token_is_at_this_load_only_where_it_was_measured_under_it(pack: Pack) -> None:
    texts = [text for loaded in pack.rules for _, text in loaded.rule.templates()]
    about_time = [text for text in texts if "at this load" in text and "latency." in text]
    assert about_time
    for text in about_time:
        assert "{latency.tpot_at_load" in text or "{latency.slo_share" in text, text
    for text in (text for text in texts if "{latency.tpot_full_batch" in text):
        assert "in a full batch, decode only" in text


def test_opposite_conclusions_of_a_rule_are_refuted_by_different_things(pack: Pack) -> None:
    opposed = 0
    for loaded in pack.rules:
        refuted: dict[bool, set[str | None]] = {True: set(), False: set()}
        for case in loaded.rule.cases:
            if case.conclude in (Conclusion.RECOMMENDED, Conclusion.DOES_NOT_PAY, Conclusion.NOT_NEEDED):
                yes = case.conclude is Conclusion.RECOMMENDED
                refuted[yes].add(case.refuted_by or loaded.rule.refuted_by)
        assert not refuted[True] & refuted[False], loaded.rule.id
        opposed += bool(refuted[True] and refuted[False])
    assert opposed >= 5


def test_the_catalogue_names_flags_for_both_engines_and_says_what_a_memory_fraction_is_of(pack: Pack) -> None:
    for technique in pack.techniques.values():
        assert set(technique.engines) == {"vllm", "sglang"}
        for engine in technique.engines.values():
            assert not engine.flags or engine.flags.startswith("--")
    paged = pack.techniques["paged_attention"].engines
    assert "--gpu-memory-utilization (a fraction of the device's TOTAL memory)" in paged["vllm"].meaning
    assert "--mem-fraction-static (weights and KV pool together)" in paged["sglang"].meaning


def test_quality_risking_techniques_wait_for_real_outputs_and_for_an_engine_near_the_limit(pack: Pack) -> None:
    limited = {technique.id for technique in pack.techniques.values() if technique.engine_limited == "inconclusive"}
    assert limited == {
        "quantization", "kv_quantization", "sparsity", "speculative_ngram", "speculative_draft", "cuda_graphs",
    }  # fmt: skip
    real = {technique.id for technique in pack.techniques.values() if technique.needs_real_outputs}
    assert real == limited - {"cuda_graphs"}


def test_the_objectives_weigh_metrics_that_exist(pack: Pack) -> None:
    assert set(pack.objectives) == set(Objective)
    for weighting in pack.objectives.values():
        assert set(weighting.weights) <= set(METRICS)


def test_sources_are_lines_of_the_shipped_files(pack: Pack, repository: Path) -> None:
    for loaded in pack.rules:
        name, line = loaded.source.removeprefix("inferdoc/").split(":")
        text = (repository / name).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert re.fullmatch(rf"  - id: {loaded.rule.id}", text)


def test_rules_import_nothing_heavy() -> None:
    code = (
        "import sys, inferdoc.rules, inferdoc.rules.explanation, inferdoc.cli.rules; inferdoc.rules.load_pack();"
        "print([name for name in ('torch', 'transformers', 'polars', 'scipy', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
