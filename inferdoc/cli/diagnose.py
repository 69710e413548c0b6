"""``inferdoc diagnose``: parse, call, write, exit code."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from inferdoc.errors import EXIT_INTERNAL, EXIT_INTERRUPTED
from inferdoc.evidence import Objective
from inferdoc.parsing import parse_bytes, parse_duration, parse_scale, parse_share, parse_slo


class AttentionBackend(StrEnum):
    AUTO = "auto"
    TORCH = "torch"
    CPU = "cpu"
    TRITON = "triton"


class LoadFormat(StrEnum):
    AUTO = "auto"
    DUMMY = "dummy"


def diagnose(
    model: Annotated[
        str,
        typer.Option(help="Model: a directory, a .gguf file, a config.json (with --load-format dummy), or a hub id."),
    ] = "embedded",
    trace: Annotated[
        Path | None, typer.Option(help="Traffic: a trace file (.jsonl, .json, .csv, also .gz, .zst). Default: bundled.")
    ] = None,
    trace_format: Annotated[
        str | None, typer.Option(help="Read the trace as this format, whatever it looks like.")
    ] = None,
    skip_bad_rows: Annotated[bool, typer.Option(help="Leave out rows that cannot be read, and count them.")] = False,
    objective: Annotated[Objective, typer.Option(help="What the ranking is for.")] = Objective.THROUGHPUT,
    slo: Annotated[str, typer.Option(help="Limits, for example ttft_p95=500ms,tpot_p95=50ms.")] = "",
    budget: Annotated[str, typer.Option(help="Time for the whole diagnosis, for example 10m.")] = "6m",
    load: Annotated[
        float, typer.Option(min=0.05, max=0.95, help="Open-loop rate as a share of the off arm's measured saturation.")
    ] = 0.7,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Instead of --load: recorded arrivals, one of so many replicas' share.")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=2, help="Requests of a run, so that reports compare. Default: by the budget."),
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Memory budget, for example 16GiB. Default: what is free.")] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=64, help="Longest sequence. Default: the model's context.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(min=2, help="Largest batch. Default: 8 on a CPU, 64 on CUDA.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Token budget of a step, at least a block. Default: 256 on a CPU, 2048 on CUDA."),
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens in a KV block; a power of two.")] = 16,
    kv_blocks: Annotated[
        int | None,
        typer.Option(min=1, help="Fix the KV pool to so many blocks, so that runs compare at equal KV memory."),
    ] = None,
    attention_backend: Annotated[
        AttentionBackend,
        typer.Option(help="Attention kernels. auto: triton on CUDA, cpu (needs a C compiler) on a CPU, else torch."),
    ] = AttentionBackend.AUTO,
    enforce_eager: Annotated[
        bool | None,
        typer.Option(
            "--enforce-eager/--no-enforce-eager", help="Without CUDA graphs. Default: with them where there is a card."
        ),
    ] = None,
    enable_fusion: Annotated[
        bool | None,
        typer.Option(
            "--enable-fusion/--no-enable-fusion",
            help="Merged projections and fused norms, each verified at load. Default: where there is a card.",
        ),
    ] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Run the model through torch.compile.")] = False,
    length_scale: Annotated[
        str, typer.Option(help="Shrink prompts, outputs and recorded blocks alike, for example 1/32.")
    ] = "1",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="Weights' dtype. auto: the configuration's on CUDA, float32 on a CPU.")
    ] = "auto",
    load_format: Annotated[
        LoadFormat, typer.Option(help="dummy: seeded random weights from a configuration.")
    ] = LoadFormat.AUTO,
    gguf_file: Annotated[str | None, typer.Option(help="Name of the GGUF file inside --model.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Let the model's repository run its own code.")] = False,
    draft_model: Annotated[
        str | None,
        typer.Option(
            help="Draft model for speculation: a directory or a hub id; none for none. Default: the embedded draft for "
            "the embedded model."
        ),
    ] = None,
    num_speculative_tokens: Annotated[int, typer.Option(min=1, max=64, help="Tokens drafted at each step.")] = 4,
    max_quality_loss: Annotated[
        str | None,
        typer.Option(
            help="How far a technique may raise the perplexity, for example 1%. Default: 1%, as the rules say."
        ),
    ] = None,
    student: Annotated[
        str | None, typer.Option(help="A smaller model to measure beside this one: a directory or a hub id.")
    ] = None,
    rules: Annotated[Path | None, typer.Option(help="A folder of your own rules, read after ours.")] = None,
    templates: Annotated[Path | None, typer.Option(help="A folder of your own report templates.")] = None,
    question: Annotated[
        list[int] | None, typer.Option(min=1, max=6, help="Run only this question's comparisons; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of made-up token ids and arrival times.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the reports.")] = Path("inferdoc-report"),
) -> None:
    """Measure which optimizations pay for a model and its traffic; without arguments, on the embedded default."""
    from inferdoc.diagnosis import INTERRUPTED, Options, collect_evidence
    from inferdoc.models import EMBEDDED
    from inferdoc.progress import Progress
    from inferdoc.reports import prepare_output, print_diagnosis, write_all
    from inferdoc.rules import diagnose as conclude
    from inferdoc.rules import load_pack

    options = Options(
        model=model,
        trace=trace,
        trace_format=trace_format,
        skip_bad_rows=skip_bad_rows,
        objective=objective,
        slo=parse_slo(slo),
        budget_s=parse_duration(budget, option="--budget"),
        load=load,
        replicas=replicas,
        requests=requests,
        memory_bytes=parse_bytes(memory, option="--memory") if memory else None,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
        kv_blocks=kv_blocks,
        attention_backend=attention_backend.value,
        enforce_eager=enforce_eager,
        enable_fusion=enable_fusion,
        compile=compile,
        length_scale=parse_scale(length_scale, option="--length-scale"),
        device=device,
        dtype=dtype,
        load_format=load_format.value,
        gguf_file=gguf_file,
        trust_remote_code=trust_remote_code,
        seed=seed,
        draft_model=None if draft_model == "none" else draft_model or (EMBEDDED if model == EMBEDDED else None),
        num_speculative_tokens=num_speculative_tokens,
        max_quality_loss=parse_share(max_quality_loss, option="--max-quality-loss") if max_quality_loss else None,
        student=student,
        questions=tuple(question or ()),
        command=shlex.join(["inferdoc", *sys.argv[1:]]),
    )
    pack = load_pack(rules)
    prepare_output(output)
    evidence = collect_evidence(
        options, Progress(), lambda partial: [r.technique for r in conclude(partial, pack).recommendations]
    )
    diagnosis = conclude(evidence, pack)
    write_all(evidence, diagnosis, output, templates)
    print_diagnosis(evidence, diagnosis, output)
    if evidence.run.errors:
        raise typer.Exit(EXIT_INTERRUPTED if INTERRUPTED in evidence.run.errors else EXIT_INTERNAL)
