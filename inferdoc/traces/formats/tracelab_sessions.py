"""TraceLab session workload (CSV): the rounds of sessions in a closed loop.

``prefix_len`` tokens of a round's prompt were in the session before, ``input_len`` are new: the whole prompt is both.
``arrival_time`` (ms) is that of the session; a round starts ``tool_wait_after_ms`` after the one before has ended.
Format: https://github.com/uw-syfi/TraceLab (replay/examples).
"""

from __future__ import annotations

import polars as pl

from inferdoc.traces.columns import Parsed, parse_counts
from inferdoc.traces.csvtable import Table
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.closed_loop import from_one, without_arrivals
from inferdoc.traces.formats.format import Format
from inferdoc.traces.formats.headers import header_has, pick
from inferdoc.traces.ledger import Ledger

_FIELDS = {
    "prefix": "prefix_len",
    "new": "input_len",
    "output_tokens": "output_len",
    "session": "session_id",
    "arrival": "arrival_time",
    "turn": "round_idx",
}


def read(table: Table, ledger: Ledger) -> Draft:
    names = pick(table, _FIELDS | {"id": "id"}, ("prefix", "new", "output_tokens"), ledger.where)
    if "session" not in names and "id" in names:
        names["session"] = names["id"]
    prefix, new = (parse_counts(table.columns[names[role]]) for role in ("prefix", "new"))
    roles = ("output_tokens", "session", "arrival", "turn")
    draft = Draft(
        format="tracelab-sessions",
        lines=table.lines,
        cells={role: table.columns[names[role]] for role in roles if role in names},
        names={role: names[role] for role in roles if role in names},
        units={"arrival": "ms"},
    )
    draft.cells["input_tokens"] = _whole(table, names, prefix, new)
    draft.names["input_tokens"] = f"{names['prefix']} + {names['new']}"
    if "turn" in draft.cells:
        draft.cells["turn"] = from_one(draft.cells["turn"])
    known = int(prefix.values.sum())
    total = known + int(new.values.sum())
    if total:
        draft.notes.append(
            f"{names['prefix']} and {names['new']} are added to the whole prompt; {known / total:.1%} of the prompt"
            " tokens were in their session before, as the workload states it: not a measured hit rate"
        )
    _keep_session_starts(draft)
    return draft


def _whole(table: Table, names: dict[str, str], prefix: Parsed, new: Parsed) -> pl.Series:
    """The sum as text; where one part cannot be read, that part, for the message about it."""
    frame = pl.DataFrame(
        {
            "sum": (prefix.values + new.values).cast(pl.String),
            "prefix": table.columns[names["prefix"]],
            "new": table.columns[names["new"]],
            "bad_prefix": prefix.bad,
            "bad_new": new.bad,
        }
    )
    return frame.select(pl.when("bad_prefix").then("prefix").when("bad_new").then("new").otherwise("sum").alias("x"))[
        "x"
    ]


def _keep_session_starts(draft: Draft) -> None:
    """The session's time stands on every row of it: only its first round arrives then."""
    if "arrival" not in draft.cells:
        draft.notes.append("no arrival times: rounds follow each other in a closed loop, so there is no rate")
        return
    if "session" in draft.cells:
        rows = pl.DataFrame({"time": draft.cells["arrival"], "session": draft.cells["session"]})
        draft.cells["arrival"] = rows.select(pl.when(pl.col("session").is_first_distinct()).then("time").alias("x"))[
            "x"
        ]
    without_arrivals(draft, "rounds start when the one before has ended")


FORMAT = Format(
    "tracelab-sessions",
    "TraceLab session workload",
    header_has("prefix_len", "input_len", "output_len"),
    read,
    kind="table",
)
