"""RAGPulse JSONL: prompts as sequences of named components, whose lengths are in five tables beside the trace.

``timestamp`` is a text of whole seconds; a file holds two weeks on one clock that starts again. The order of the
components in a prompt is that of the keys of ``hash_ids``. Format: https://github.com/flashserve/RAGPulse (data).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from inferdoc.traces import shown
from inferdoc.traces.columns import parse_counts
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.component_blocks import BLOCK_SIZE, Sized, prompt_blocks
from inferdoc.traces.formats.component_tables import Tables, is_table_row
from inferdoc.traces.formats.fields import gather, whole_numbers
from inferdoc.traces.formats.format import Format, Refusal
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.records import Record
from inferdoc.traces.trace import SCHEMA

_FIELDS = {
    "arrival": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "session": "session_id",
}
KINDS = {"passages_ids": "passages"}
"""Names of components where the trace calls them otherwise than the tables do."""
Component = tuple[str, int]


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    prompts: list[list[Component]] = []
    tables = Tables()
    fields = gather(_requests(records, ledger, tables, prompts), list(_FIELDS.values()), {}, ledger)
    draft = Draft(
        format="ragpulse",
        lines=fields.lines,
        cells={role: fields.cells[name] for role, name in _FIELDS.items()},
        names=_FIELDS | {"prefix_blocks": "the component lengths"},
        units={"arrival": "s"},
        partial_last=False,
    )
    tables.read_beside(ledger)
    sized = [[(kind, id, tables.tokens(kind, id)) for kind, id in prompt] for prompt in prompts]
    draft.ready["components"] = _column(sized)
    if tables.unread:
        draft.notes.append(f"{tables.unread:,} rows of the tables of component lengths cannot be read and are not used")
    if not len(tables):
        draft.notes.append(
            "the tables of component lengths (1_sys_prompt.jsonl ... 5_web_search.jsonl) are not beside the trace:"
            " which components repeat is known, how many tokens they have is not, so there are no prefix blocks"
        )
        return draft
    lengths = parse_counts(draft.cells["input_tokens"])
    totals = [None if bad else total for total, bad in zip(lengths.values, lengths.bad, strict=True)]
    draft.ready["prefix_blocks"] = prompt_blocks(sized, totals)
    draft.block_size = BLOCK_SIZE
    _describe(draft, sized, totals)
    return draft


def _requests(
    records: Iterable[Record], ledger: Ledger, tables: Tables, prompts: list[list[Component]]
) -> Iterable[Record]:
    """The trace's rows; their components go to `prompts`, rows of the tables to `tables`."""
    of_tables: list[int] = []
    for line, record in records:
        if is_table_row(record):
            of_tables.append(line)
            tables.add(line, record, ledger)
            continue
        try:
            found = _components(record.get("hash_ids"))
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        prompts.append(found)
        yield line, record
    ledger.leave_out(of_tables, "rows of the tables of component lengths")


def _components(value: Any) -> list[Component]:
    if not isinstance(value, Mapping):
        raise RowError("hash_ids is no object of components", "hash_ids is not an object of components")
    return [
        (KINDS.get(str(key), str(key)), id)
        for key, ids in value.items()
        for id in whole_numbers(ids, f"hash_ids.{key}" if shown.is_name(key) else "hash_ids of one kind", "Q") or []
    ]


def _column(prompts: list[list[Sized]]) -> pl.Series:
    """The components of each prompt as a column; null where it has none."""
    flat = [(row, *component) for row, prompt in enumerate(prompts) for component in prompt]
    schema = {"row": pl.UInt32, "kind": pl.String, "id": pl.UInt64, "tokens": pl.Int64}
    parts = pl.DataFrame(flat, schema=schema, orient="row")
    grouped = parts.group_by("row", maintain_order=True).agg(pl.struct("kind", "id", "tokens").alias("components"))
    rows = pl.DataFrame({"row": pl.Series(range(len(prompts)), dtype=pl.UInt32)})
    return rows.join(grouped, on="row", how="left", maintain_order="left")["components"].cast(SCHEMA["components"])


def _describe(draft: Draft, prompts: list[list[Sized]], totals: list[int | None]) -> None:
    unknown = sum(tokens is None for prompt in prompts for _, _, tokens in prompt)
    rest = [
        total - sum(tokens or 0 for _, _, tokens in prompt)
        for prompt, total in zip(prompts, totals, strict=True)
        if total is not None and all(tokens is not None for _, _, tokens in prompt)
    ]
    if rest:
        draft.notes.append(
            f"prompts have {min(rest)} to {max(rest)} tokens more than their components (the chat template): where they"
            " stand is not recorded, they are taken as the end of the prompt"
        )
    draft.notes.append(
        f"prefix blocks of {BLOCK_SIZE} tokens are derived from the order and lengths of the components: prompts share"
        " the blocks that lie wholly in their common leading components"
    )
    if unknown:
        draft.notes.append(
            f"{unknown:,} components are in no table: from the first such one on, a prompt shares blocks only with"
            " prompts of the same components"
        )


FORMAT = Format("ragpulse", "RAGPulse", lambda record: isinstance(record.get("hash_ids"), Mapping), read)
REFUSALS = (
    Refusal(
        "a table of component lengths of RAGPulse",
        is_table_row,
        "it holds no requests; give 0_trace.jsonl, and leave the five tables beside it",
    ),
)
