"""The fenced blocks of README and documentation, in their order, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
COMMANDS = ("console", "bash", "sh", "shell")
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its kind (console, python, yaml, json, text) and what stands in it."""

    kind: str
    text: str

    def commands(self) -> Iterator[str]:
        """The lines of a block of commands, continuations joined, comments and prompts left out."""
        for line in self.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words:
                yield shlex.join(words)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [Block(kind, text) for kind, text in _FENCE.findall(path.read_text(encoding="utf-8"))]


def prose(path: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def all_commands(path: Path) -> list[str]:
    """Every command of a page."""
    return [line for block in blocks(path) if block.kind in COMMANDS for line in block.commands()]
