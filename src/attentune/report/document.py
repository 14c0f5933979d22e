"""A report before it is written as a page, Markdown, CSV or LaTeX: sections of tables and figures, all plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: letters, digits and hyphens: what a file or an anchor of it is called.
        title: what stands above it.
        header: the columns' names.
        rows: entries as they are shown.
        left: how many columns at the left hold words; the others hold numbers and are flush right.
        notes: sentences below it.
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        name: letters, digits and hyphens, different for each.
        title: what it shows.
        caption: what a reader must know to read it.
        draw: makes the Matplotlib figure.
        alt: the same in words, for those who cannot see it.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[], Any]
    alt: str = ""


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it."""

    title: str
    parts: tuple[Table | Figure, ...]
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """A whole report.

    Attributes:
        title: its first line.
        sentences: below the title.
        sections: in order.
        lines: the results as a flat table for programs, column names first.
    """

    title: str
    sentences: tuple[str, ...]
    sections: tuple[Section, ...]
    lines: tuple[tuple[str, ...], ...] = field(default=())

    def figures(self) -> Iterator[Figure]:
        """All figures in order."""
        for section in self.sections:
            for part in section.parts:
                if isinstance(part, Figure):
                    yield part
