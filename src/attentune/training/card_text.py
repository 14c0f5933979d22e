"""Pieces of a model card: text that nothing in a name can break out of, tables, and the YAML on top."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

_LONGEST = 200
# What Markdown, HTML in it, mathematics, links and mentions begin with. A reference such as &#42; is never markup.
_MARKUP = re.compile(r"[\\`*{}\[\]<>|~$&#@]|(?<![^\W_])_|_(?![^\W_])|:(?=\S)|(?<=www)\.", re.IGNORECASE)
_AT_BEGIN = re.compile(r"^([-+=]+|\d+(?=[.)](\s|$)))")
# Those that turn the direction of what follows could make a name look like another one.
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def one_line(text: object) -> str:
    """The text without line breaks and signs that cannot be seen, and not too long."""
    shown = _UNSEEN.sub(" ", str(text)).strip()
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."


def plain(text: object) -> str:
    """The text as it is, in a paragraph or a cell of a Markdown table."""
    escaped = _MARKUP.sub(lambda found: f"&#{ord(found[0])};", one_line(text))
    return _AT_BEGIN.sub(lambda found: "".join(f"&#{ord(sign)};" for sign in found[0]), escaped)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of cells that are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def front_matter(values: dict[str, Any]) -> str:
    """The YAML block on top of a card, its texts on one line each."""
    text = yaml.safe_dump(_one_lined(values), sort_keys=False, allow_unicode=True, width=1 << 16)
    return f"---\n{text}---\n"


def _one_lined(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _one_lined(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_one_lined(part) for part in value]
    return one_line(value) if isinstance(value, str) else value
