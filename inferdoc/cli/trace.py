"""``inferdoc trace``: what a trace tells, and other traces made from it. Parse, call, write, exit code."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from inferdoc.cli import trace_support as support
from inferdoc.errors import InputError
from inferdoc.parsing import parse_duration

app = typer.Typer(
    help="What a trace of requests tells: lengths, load, prefixes and what breaks them; and other traces made from it.",
    no_args_is_help=True,
)

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH...", help="Files, folders or patterns of one trace; - for standard input."),
]
Format = Annotated[
    str | None, typer.Option("--trace-format", help="Read the trace as this format, whatever it looks like.")
]
Skip = Annotated[bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read, and count them.")]
Model = Annotated[
    str | None,
    typer.Option("--model", help="Count texts with the tokenizer of this model: a folder, a hub id, or embedded."),
]
Out = Annotated[Path, typer.Option("--output", "-o", help="File to write; .parquet or .jsonl, also .jsonl.gz.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


class Target(StrEnum):
    MOONCAKE = "mooncake"
    JSONL = "jsonl"
    PARQUET = "parquet"


_ENDINGS = {Target.MOONCAKE: ".jsonl", Target.JSONL: ".jsonl", Target.PARQUET: ".parquet"}


@app.command()
def inspect(
    paths: Paths,
    trace_format: Format = None,
    skip_bad_rows: Skip = False,
    model: Model = None,
    block_size: Annotated[
        str | None, typer.Option(help="Blocks of the prefix analysis in tokens, for example 16,64. Default: 16 to 512.")
    ] = None,
    kv_budget: Annotated[
        list[str] | None,
        typer.Option(help="KV cache sizes in tokens to give hit rates for, for example 100k,1M; may be repeated."),
    ] = None,
    prefill_rate: Annotated[
        float | None, typer.Option(min=1.0, help="Prompt tokens/s, to model service times that are not recorded.")
    ] = None,
    tpot: Annotated[str | None, typer.Option(help="Time per output token for the same, for example 25ms.")] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="What reserving so many tokens for every request would waste.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (schema inferdoc.trace) instead of text.")
    ] = False,
    show_text: Annotated[bool, typer.Option("--show-text", help="Show the text around what breaks prefixes.")] = False,
) -> None:
    """Say how a trace was understood, and what it tells of load, lengths, prefixes and memory."""
    sizes = support.numbers([block_size] if block_size else [], "--block-size")
    budgets = support.numbers(kv_budget or [], "--kv-budget")
    service = support.service(prefill_rate, tpot)
    progress, trace, encode = support.read(paths, trace_format, skip_bad_rows, model)
    from inferdoc.traces.analysis import analyse

    analysis = analyse(
        trace,
        block_sizes=sizes or None,
        capacities_tokens=budgets or None,
        service=service,
        max_model_len=max_model_len,
        encode=encode,
        show_text=show_text,
        format_named=trace_format is not None,
        stage=progress,
    )
    progress.close()
    if as_json:
        from inferdoc.reports.writing import to_json

        typer.echo(to_json(analysis, sort_keys=True), nl=False)
        return
    from inferdoc.reports.trace_view import print_trace

    print_trace(analysis, show_text=show_text)


@app.command()
def convert(
    paths: Paths,
    to: Annotated[Target, typer.Option("--to", help="mooncake keeps lengths, times and blocks; the others all.")],
    output: Out,
    trace_format: Format = None,
    skip_bad_rows: Skip = False,
    model: Model = None,
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Blocks of a Mooncake file. Default: as recorded, else 512 tokens.")
    ] = None,
    force: Force = False,
) -> None:
    """Write a trace in another format, and say what that format cannot keep."""
    from inferdoc.traces import canonical
    from inferdoc.traces.convert import write_mooncake
    from inferdoc.traces.files import check_target, write_trace

    if block_size is not None and to is not Target.MOONCAKE:
        raise InputError(f"--block-size goes with --to mooncake: {to.value} keeps prompts as they are")
    if (output.suffix.lower() == ".parquet") != (to is Target.PARQUET):
        raise InputError(f"-o {output} does not go with --to {to.value}: name a file that ends in {_ENDINGS[to]}")
    check_target(output, paths, force=force)
    progress, trace, _ = support.read(paths, trace_format, skip_bad_rows, model)
    progress("writing")
    if to is Target.MOONCAKE:
        made = write_mooncake(trace, output, block_size)
        lost, notes = made.lost, made.notes
    else:
        notes = []
        lost = write_trace(trace, output, [*canonical.lasting_notes(trace), f"converted from {trace.format}"])
    progress.close()
    typer.echo(f"{output}: {len(trace):,} requests, {to.value}; lost: {'; '.join(lost) or 'nothing'}")
    for note in notes:
        typer.echo(f"  {note}")


@app.command()
def sample(
    paths: Paths,
    output: Out,
    window: Annotated[str | None, typer.Option(help="Length of the part, for example 10m.")] = None,
    around: Annotated[
        str, typer.Option(help="peak, off-peak, busiest, or a time from the first arrival on, for example 90s or 2h.")
    ] = "peak",
    start: Annotated[int | None, typer.Option(min=0, help="Instead: position of the first request, from 0.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="With --start: how many requests.")] = None,
    trace_format: Format = None,
    skip_bad_rows: Skip = False,
    as_json: AsJson = False,
    force: Force = False,
) -> None:
    """Take requests that follow each other, and say what of the whole they stand for."""
    from inferdoc.traces import canonical
    from inferdoc.traces.sampling import sample_count, sample_window

    if (window is None) == (start is None):
        raise InputError("give --window with --around, or --start with --count")
    if (start is None) != (count is None):
        raise InputError("--start and --count go together")
    seconds = None if window is None else parse_duration(window, option="--window")
    place = support.place(around)
    support.check(output, paths, force=force)
    progress, trace, _ = support.read(paths, trace_format, skip_bad_rows, None)
    progress("sampling")
    made = sample_count(trace, start or 0, count or 1) if seconds is None else sample_window(trace, seconds, place)
    notes = [*canonical.lasting_notes(trace), *made.notes]
    support.write(progress, made.trace, output, notes, made.notes, made.comparison, as_json=as_json)


@app.command()
def synthesize(
    like: Annotated[list[str], typer.Option("--like", help="The trace to draw from; may be repeated for its files.")],
    requests: Annotated[int, typer.Option("--requests", min=1, help="How many requests to make.")],
    output: Out,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal traces.")] = 0,
    block_size: Annotated[
        int, typer.Option(min=1, help="Tokens a block, where the trace has texts or token ids.")
    ] = 16,
    trace_format: Format = None,
    skip_bad_rows: Skip = False,
    model: Model = None,
    as_json: AsJson = False,
    force: Force = False,
) -> None:
    """Make a trace of any length with the lengths, arrivals and prefix reuse of a given one."""
    from inferdoc.traces.synthesis import synthesize as make

    support.check(output, like, force=force)
    progress, trace, _ = support.read(like, trace_format, skip_bad_rows, model)
    progress("drawing requests")
    made = make(trace, requests, seed=seed, block_size=block_size)
    support.write(progress, made.trace, output, made.notes, made.notes, made.comparison, as_json=as_json)


@app.command()
def anonymize(
    paths: Paths,
    output: Out,
    key_file: Annotated[
        Path, typer.Option(help="File of the secret key; one that is not there is made, for its owner alone.")
    ] = Path("inferdoc-trace.key"),
    block_size: Annotated[
        int, typer.Option(min=1, help="Tokens a block, where the trace has texts or token ids.")
    ] = 16,
    hide_models: Annotated[
        bool, typer.Option("--hide-models", help="Rename all models, not only those that name accounts or paths.")
    ] = False,
    trace_format: Format = None,
    skip_bad_rows: Skip = False,
    model: Model = None,
    as_json: AsJson = False,
    force: Force = False,
) -> None:
    """Put keyed hashes in the place of prompts and names: the same analysis, and nothing to read."""
    from inferdoc.traces.anonymize import anonymize as make
    from inferdoc.traces.anonymize import read_key
    from inferdoc.traces.comparison import compare

    support.check(output, paths, force=force)
    if output.resolve() == key_file.resolve():
        raise InputError(f"-o {output} is the key's file; name another one")
    progress, trace, _ = support.read(paths, trace_format, skip_bad_rows, model)
    key, new = read_key(key_file)
    progress("hashing")
    made = make(trace, key, block_size=block_size, hide_models=hide_models)
    kept = f"a new key is in {key_file}: keep it secret, and with the texts" if new else f"with the key of {key_file}"
    comparison = compare(trace, made.trace)
    notes = [*made.notes, kept]
    support.write(progress, made.trace, output, made.notes, notes, comparison, as_json=as_json)
