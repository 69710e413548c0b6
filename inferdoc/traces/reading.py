"""From files to a trace: open, detect, read, assemble."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import cast

from inferdoc.errors import TraceError
from inferdoc.traces import csvtable, frames
from inferdoc.traces.assembly import assemble
from inferdoc.traces.detection import Content, NotRequestsError, chosen, detect
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.format import Format, LineReader, RecordReader, TableReader
from inferdoc.traces.inputs import Given, Inputs, find_inputs
from inferdoc.traces.ledger import SKIP_HINT, Ledger
from inferdoc.traces.lines import Lines
from inferdoc.traces.records import Records, read_records
from inferdoc.traces.source import Source
from inferdoc.traces.trace import Trace

_RECORDS_LOOKED_AT = 20
_LINES_LOOKED_AT = 200
_ROWS_SHOWN = 3


def read_trace(given: Given, *, trace_format: str | None = None, skip_bad_rows: bool = False) -> Trace:
    """Read a trace or request log, detecting its format from its content unless `trace_format` names one.

    `given` is a file, several, a folder, a pattern, or ``-`` for standard input; several files are one trace, in order
    of their names. gz, bz2 and zst are unpacked; UTF-8 with or without byte order mark, UTF-16 with one, Parquet and
    Arrow are read. Every row read is either a request of the trace or counted in `left_out` with a reason and its
    first places.

    Raises:
        TraceError: a file cannot be read, its format is unknown or not that of the others, no row can be used, or a
            row is wrong (with file, line, field and value). With `skip_bad_rows`, wrong rows are counted instead.
    """
    inputs = find_inputs(given)
    ledger = Ledger(inputs.where, skip_bad_rows=skip_bad_rows)
    notes = list(inputs.notes)
    files, found = _common_format(inputs, trace_format, notes)
    inputs = replace(inputs, files=files)
    try:
        draft = _read(found, files, ledger)
        draft.notes[:0] = notes
        return assemble(draft, inputs, ledger)
    except TraceError as error:
        if SKIP_HINT in str(error):
            raise _of_first_rows(error, found, inputs) from None
        raise


def _of_first_rows(error: TraceError, found: Format, inputs: Inputs) -> TraceError:
    """The error of a row; where the first rows are all wrong it shows them, as the format may be at fault."""
    aside = Ledger(inputs.where, skip_bad_rows=True)
    try:
        draft = _read(found, inputs.files[:1], aside, rows=_ROWS_SHOWN)
        assemble(draft, inputs, aside)
    except TraceError:
        pass
    first = f"{error.where}: "
    places = {fault.split(": ")[0] for fault in aside.faults}  # one record may hold several requests
    if len(places) < _ROWS_SHOWN or not aside.faults[0].startswith(first):
        return error
    return TraceError(
        f"{'; '.join(aside.faults).removeprefix(first)}: the first {_ROWS_SHOWN} rows are all wrong, so that the file"
        f" may be in another form than {found.title}; {SKIP_HINT}",
        where=error.where,
    )


def _read(found: Format, files: tuple[Source, ...], ledger: Ledger, rows: int | None = None) -> Draft:
    """All rows, or the first `rows`."""
    if found.kind == "records":
        records = Records(files, ledger)
        return cast(RecordReader, found.read)(records if rows is None else list(islice(records, rows)), ledger)
    if found.kind == "table":
        table = csvtable.read_tables(files, ledger)
        table = table if rows is None else csvtable.Table.of(table.scan.head(rows), list(table.columns))
        return cast(TableReader, found.read)(table, ledger)
    lines = Lines(files, ledger)
    return cast(LineReader, found.read)(lines if rows is None else list(islice(lines, rows)), ledger)


def _common_format(inputs: Inputs, name: str | None, notes: list[str]) -> tuple[tuple[Source, ...], Format]:
    """The files that hold requests, and their format.

    Of a folder or a pattern, files that are known to hold none (the summaries beside a benchmark's requests) are set
    aside, unless there are no others.

    Raises:
        TraceError: two files have different formats; both are named.
    """
    first: tuple[Source, Format] | None = None
    files: list[Source] = []
    refused: list[NotRequestsError] = []
    aside: list[str] = []
    for source in inputs.files:
        remarks: list[str] = []
        content = _content(source)
        try:
            found = detect(content) if name is None else chosen(name, content, remarks)
        except NotRequestsError as error:
            if source.path not in inputs.found:
                raise
            refused.append(error)
            aside.append(source.name)
            continue
        files.append(source)
        if first is None:
            first = source, found
            notes.extend(remarks)
        elif found.read is not first[1].read:  # one reader joins files of two kinds: requests and their answers
            raise TraceError(
                f"is {found.title}, but {first[0].where} is {first[1].title}: one trace has one format;"
                " give the files of one format, for example with a pattern",
                where=source.where,
            )
    if first is None:
        raise refused[0]
    if aside:
        notes.append(f"set aside, since they hold no single requests: {', '.join(aside)}")
    return tuple(files), first[1]


def _content(source: Source) -> Content:
    """The beginning of a file, as detection takes it.

    Raises:
        TraceError: JSON without a single object; shows the first faults.
    """
    if source.columnar:
        records = [record for _, record in islice(frames.records(source), _RECORDS_LOOKED_AT)]
        header = [name for name in frames.as_text(source).collect_schema() if name] if frames.is_flat(source) else []
        return Content("columnar", source.where, records=records, header=header)
    aside = Ledger(source.where, skip_bad_rows=True)
    if source.is_json:
        records = [record for _, record in islice(read_records(source, aside), _RECORDS_LOOKED_AT)]
        if not records:
            faults = "; ".join(aside.faults)
            raise TraceError(f"holds no JSON object{f' ({faults})' if faults else ''}", where=source.where)
        return Content("JSON", source.where, records=records)
    header = csvtable.read_header(source)
    lines = [line for _, line in islice(source.lines(), _LINES_LOOKED_AT)]
    return Content("CSV", source.where, records=_first_rows(lines, header), header=header, lines=lines)


def _first_rows(lines: list[str], header: list[str]) -> list[dict[str, str | None]]:
    """The first rows of a table as records of text, for formats of records that are exported as tables too."""
    given = [line for line in lines if line.strip()]
    rows = csvtable.split(given[: _RECORDS_LOOKED_AT + 1])
    return [dict(zip(header, [cell or None for cell in row], strict=False)) for row in rows[1:]]
