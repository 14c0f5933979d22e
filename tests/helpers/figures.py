"""Collects the figures that Matplotlib saves, and tells files of figures by their first bytes."""

from __future__ import annotations

from typing import Any

import pytest

SIGNATURES = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".pdf": b"%PDF"}


def record_figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which each figure is appended when it is saved."""
    from matplotlib.figure import Figure

    figures: list[Any] = []
    save = Figure.savefig

    def record(self: Any, *words: Any, **options: Any) -> None:
        figures.append(self)
        save(self, *words, **options)

    monkeypatch.setattr(Figure, "savefig", record)
    return figures
