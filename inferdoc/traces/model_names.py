"""Names of models: those that anybody may read, and what of the others can be told.

Gateways and servers record as a model what they were given: ARNs with account ids, folders with user names, addresses.
"""

from __future__ import annotations

import re

import polars as pl

_SHOWN = 5
_LONGEST = 96
_PART = r"[A-Za-z0-9][A-Za-z0-9._+-]*"
_PUBLIC = re.compile(rf"(?:{_PART}/)?{_PART}(?::[A-Za-z0-9._+-]*)?")
_TELLING = re.compile(
    r"^(?:arn|ft):"  # accounts and organisations
    r"|^(?:home|users|root|mnt|tmp|srv|var|data|workspace)/"
    r"|^[A-Za-z]:/"  # drives
    r"|\d{9}|\d{4}[-.]\d{4}[-.]\d{4}|\d{3}[-.]\d{3}[-.]\d{4}"  # account and telephone numbers; dates are shorter
    r"|\d+\.\d+\.\d+\.\d+"  # addresses
    r"|:\d{2,}$"  # ports
    r"|[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}",  # ids
    re.IGNORECASE,
)
_MAIL = re.compile(r"[^\s@/:]+@[^\s/:]+")
_ARN_FIELDS = 5
HIDDEN = "a name that is not shown"


def is_public(name: str) -> bool:
    """Whether `name` reads as one of a hub or a vendor (``org/name``): no path, address, e-mail, account or id."""
    return len(name) <= _LONGEST and bool(_PUBLIC.fullmatch(name)) and not _TELLING.search(name)


def short(name: str) -> str:
    """`name` as it may be shown: the last part of a path, an ARN or an address, e-mail addresses masked."""
    if is_public(name):
        return name
    plain = name.split("?", 1)[0].split("#", 1)[0] if "://" in name else name
    if name.lower().startswith("arn:"):
        plain = name.split(":", _ARN_FIELDS)[-1]
    masked = _MAIL.sub("e-mail", plain).replace("\\", "/").rstrip("/")
    if "://" in masked and masked.count("/") == 2:
        return HIDDEN
    last = masked.rsplit("/", 1)[-1]
    return last if is_public(last) else HIDDEN


def model_notes(rows: pl.DataFrame) -> list[str]:
    """The models of a trace of several, most requests first."""
    if "model" not in rows.columns:
        return []
    counts = rows["model"].drop_nulls().value_counts(sort=True)
    if counts.height < 2:
        return []
    shown = ", ".join(f"{short(name)} ({count:,})" for name, count in counts.head(_SHOWN).iter_rows())
    return [f"requests to {counts.height} models: {shown}{', ...' if counts.height > _SHOWN else ''}"]
