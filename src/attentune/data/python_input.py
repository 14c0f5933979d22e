"""Texts and labels that are passed in Python: lists, arrays, and columns of data frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attentune.errors import InputError


def checked_texts(texts: Sequence[Any], what: str) -> tuple[str, ...]:
    """Return the texts."""
    rows = tuple(texts)
    check_each(rows, what, lambda value: isinstance(value, str), "a text; fill gaps with '' or take these rows out")
    return rows


def check_each(values: Sequence[Any], what: str, is_valid: Callable[[Any], bool], expected: str) -> None:
    """Check all values."""
    wrong = [row for row, value in enumerate(values) if not is_valid(value)]
    if wrong:
        value = values[wrong[0]]
        more = f" and {len(wrong) - 1:,} more row{'s' * (len(wrong) > 2)} likewise" if len(wrong) > 1 else ""
        raise InputError(
            f"{what}: row {wrong[0]} holds {repr(value)[:60]} ({type(value).__name__}){more}, expected {expected}."
        )


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or pandas' NA or NaT."""
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )
