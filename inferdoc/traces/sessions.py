"""Sessions: the order of their turns, and whether a turn repeats what was said before."""

from __future__ import annotations

import polars as pl

from inferdoc.traces.checks import has
from inferdoc.traces.messages import ANSWER_CUE


def with_turns(rows: pl.DataFrame) -> pl.DataFrame:
    """`turn` from 1 within each session, in order of arrival, where the source does not give it."""
    if has(rows, "turn") or not has(rows, "session"):
        return rows
    number = pl.int_range(1, pl.len() + 1).over("session")
    return rows.with_columns(pl.when(pl.col("session").is_not_null()).then(number).cast(pl.Int64).alias("turn"))


def session_notes(rows: pl.DataFrame) -> list[str]:
    """Whether the turns of a session repeat its history; each row is read as the whole prompt in either case."""
    follow = rows.filter(pl.col("session").is_not_null() & (pl.col("session").is_duplicated()))
    for column in ("prompt_text", "prompt_ids", "prefix_blocks"):
        known = follow.filter(pl.col(column).is_not_null())
        if known.is_empty():
            continue
        pairs = repeats = 0
        previous: dict[str, list[int] | str] = {}
        for session, prompt in known.select("session", column).iter_rows():
            if session in previous:
                pairs += 1
                repeats += _begins_with(prompt, previous[session], column)
            previous[session] = prompt
        if not pairs:
            return []
        return [
            f"{repeats:,} of {pairs:,} later turns begin with the prompt of the turn before:"
            " each row is read as the whole prompt, not as what is new in it"
        ]
    return []


def _begins_with(prompt: list[int] | str, earlier: list[int] | str, column: str) -> bool:
    if isinstance(earlier, str):
        earlier = earlier.removesuffix(ANSWER_CUE)
        return prompt[: len(earlier)] == earlier
    # The last recorded block may be partly filled and then has another id once more tokens follow.
    whole = earlier[:-1] if column == "prefix_blocks" else earlier
    return len(whole) > 0 and prompt[: len(whole)] == whole
