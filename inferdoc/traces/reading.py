"""From a file to a trace: open, detect, read, assemble."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

from inferdoc.errors import TraceError
from inferdoc.traces import csvtable, detection
from inferdoc.traces.assembly import Draft, assemble
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.readers import azure, chat, mooncake, sharegpt, table
from inferdoc.traces.records import read_records
from inferdoc.traces.source import Source
from inferdoc.traces.trace import Trace

_RECORDS_LOOKED_AT = 20
_RECORD_READERS = {"mooncake": mooncake.read, "chat": chat.read, "sharegpt": sharegpt.read, "jsonl": table.read_jsonl}
_TABLE_READERS = {"azure": azure.read, "csv": table.read_csv}


def read_trace(path: Path, *, trace_format: str | None = None, skip_bad_rows: bool = False) -> Trace:
    """Read a trace or request log, detecting its format from its content unless `trace_format` names one.

    gz, bz2 and zst are unpacked, UTF-8 with or without byte order mark and UTF-16 with one are read. Every row read
    is either a request of the trace or counted in `left_out` with a reason and the first line of its kind.

    Raises:
        TraceError: the file cannot be read, its format is unknown, no row can be used, or a row is wrong (with file,
            line, field and value). With `skip_bad_rows`, wrong rows are counted instead.
    """
    source = Source.find(path)
    ledger = Ledger(source.where, skip_bad_rows=skip_bad_rows)
    if trace_format is not None:
        detection.check_format(trace_format, is_json=source.is_json, where=source.where)
    draft = _draft_of_records if source.is_json else _draft_of_table
    return assemble(draft(source, ledger, trace_format), source, ledger)


def _draft_of_records(source: Source, ledger: Ledger, trace_format: str | None) -> Draft:
    records = read_records(source, ledger)
    first = list(islice(records, _RECORDS_LOOKED_AT))
    if not first:
        raise TraceError("holds no JSON object", where=source.where)
    found = trace_format or detection.detect_records([record for _, record in first], source.where)
    return _RECORD_READERS[found](chain(first, records), ledger)


def _draft_of_table(source: Source, ledger: Ledger, trace_format: str | None) -> Draft:
    header = csvtable.read_header(source)
    found = trace_format or detection.detect_table(header, source.head, source.where)
    if found == "azure" and not {name.lower() for name in header} >= azure.HEADER:
        raise TraceError(f"trace format 'azure' needs columns {', '.join(sorted(azure.HEADER))}", where=source.where)
    return _TABLE_READERS[found](csvtable.read_table(source, ledger), ledger)
