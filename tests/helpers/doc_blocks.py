"""Extracts the fenced blocks of README and documentation, in order, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
LAB_PAGES = sorted((ROOT / "lab" / "docs").glob("*.md"))
COMMANDS = ("bash",)
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its kind (bash, python, yaml, json, text) and its content."""

    kind: str
    text: str

    def commands(self) -> Iterator[str]:
        """Yield the commands of a bash block: continuation lines are joined, comments removed."""
        for line in self.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield shlex.join(words)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [Block(kind, text) for kind, text in _FENCE.findall(path.read_text(encoding="utf-8"))]


def prose(path: Path) -> str:
    """Return the text of a page without its fenced blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def all_commands(path: Path) -> list[str]:
    """Return all commands of a page."""
    return [line for block in blocks(path) if block.kind in COMMANDS for line in block.commands()]
