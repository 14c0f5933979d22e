"""AX, GLUE's diagnostic set, by linguistic phenomenon.

Each row names the phenomena that it tests in four categories, several of them with ";" between. The score is Matthews
correlation of three classes.

Source: Wang et al., "GLUE", ICLR 2019, section 5 and appendix E.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attentune.data.dataset import TextRows
from attentune.data.files import read_delimited
from attentune.data.text_files import Dialect
from attentune.errors import DataError
from attentune.metrics.confusion import CONFUSION_SCORES, bootstrap_confusion_interval, confusion_counts
from attentune.seeding import numpy_generator

CATEGORIES = ("Lexical Semantics", "Predicate-Argument Structure", "Logic", "Knowledge")
_METRIC = "matthews_correlation"


@dataclass(frozen=True)
class PhenomenonScore:
    """The score on the rows of a category or of one phenomenon."""

    category: str | None  # one of `CATEGORIES`; None for all rows
    phenomenon: str | None  # such as "Negation"; None for all rows of the category
    rows: int  # the number of rows; a row may have several phenomena
    score: float  # Matthews correlation; 0 where it is undefined
    # low, high: the 95 % interval over rows, by bootstrap.
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_phenomena(file: str | Path, lines: Sequence[int] | None = None) -> dict[str, tuple[frozenset[str], ...]]:
    """Read the phenomena of rows of `diagnostic-full.tsv`, by category."""
    table = read_delimited(file, Dialect("\t", "none"), keep=CATEGORIES)
    missing = [name for name in CATEGORIES if name not in table.columns]
    if missing:
        raise DataError(
            f"{file}: has no column {missing[0]!r}, expected those of diagnostic-full.tsv:"
            f" {', '.join(CATEGORIES)}. It is at https://gluebenchmark.com/diagnostics."
        )
    place_of = dict(zip(table.lines or (), range(len(table)), strict=True))
    places = range(len(table)) if lines is None else [place_of[line] for line in lines]
    texts = {name: table.texts(name) for name in CATEGORIES}
    return {name: tuple(_parts(cells[place]) for place in places) for name, cells in texts.items()}


def _parts(cell: str) -> frozenset[str]:
    return frozenset(part.strip() for part in cell.split(";") if part.strip())


def score_rows(rows: TextRows, predictions: np.ndarray) -> tuple[PhenomenonScore, ...]:
    """Score the predictions of rows of the task `ax` by the phenomena in their file; see `score_phenomena`."""
    return score_phenomena(np.asarray(rows.labels), predictions, read_phenomena(rows.source, rows.lines))


def score_phenomena(
    labels: np.ndarray, predictions: np.ndarray, phenomena: dict[str, tuple[frozenset[str], ...]], *, seed: int = 0
) -> tuple[PhenomenonScore, ...]:
    """Score predictions on all rows, by category, and by phenomenon."""
    classes = int(max(labels.max(), predictions.max())) + 1

    def score(category: str | None, phenomenon: str | None, chosen: Sequence[bool] | np.ndarray) -> PhenomenonScore:
        inside = np.asarray(chosen, dtype=bool)
        counts = confusion_counts(labels[inside], predictions[inside], classes)
        generator = numpy_generator("diagnostic", seed)
        low, high = bootstrap_confusion_interval(_METRIC, counts, generator)
        return PhenomenonScore(
            category, phenomenon, int(inside.sum()), float(CONFUSION_SCORES[_METRIC](counts)), low, high
        )

    found = [score(None, None, np.ones(len(labels)))]
    for category, rows in phenomena.items():
        found.append(score(category, None, [bool(names) for names in rows]))
        found += [score(category, name, [name in names for names in rows]) for name in sorted(frozenset().union(*rows))]
    return tuple(one for one in found if one.rows)
