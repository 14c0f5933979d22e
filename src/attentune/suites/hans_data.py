"""HANS with what its scores are told by: the heuristic that misleads, and the subcase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attentune.data.builtin import require_column
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.labels import LabelReader
from attentune.data.readers.csv import Dialect
from attentune.data.readers.read import read_delimited
from attentune.data.readers.table import Table
from attentune.data.specs import load_spec

HEURISTICS = ("lexical_overlap", "subsequence", "constituent")
_HEURISTIC, _SUBCASE = "heuristic", "subcase"


@dataclass(frozen=True)
class HansRows:
    """Rows of HANS, in the file's order.

    Attributes:
        rows: texts, ids and gold labels (0 entailment, 1 non-entailment).
        heuristics: one of `HEURISTICS` a row.
        subcases: the name of each row's subcase, such as "ln_passive".
    """

    rows: TextRows
    heuristics: tuple[str, ...]
    subcases: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def entails(self) -> np.ndarray:
        """(N,) whether each row's gold label is entailment."""
        return np.asarray(self.rows.labels) == 0

    def take(self, indices: Sequence[int] | np.ndarray) -> HansRows:
        """The rows at these places, in this order."""
        places = [int(index) for index in indices]
        return HansRows(
            self.rows.take(places),
            tuple(self.heuristics[place] for place in places),
            tuple(self.subcases[place] for place in places),
        )


def read_hans(path: str | Path) -> HansRows:
    """Read `heuristics_evaluation_set.txt`: fields between tabs, columns found by their names, no quoting.

    Raises:
        DataError: the file is missing or broken, lacks a column, or holds a heuristic that HANS does not know, an id
            twice or with a comma (the set's scorer could not read it), or a row without a subcase; with the line.
        LabelError: a gold label is neither entailment nor non-entailment.
    """
    spec = load_spec("hans")
    split = spec.splits["validation"]
    columns = [split.label, split.text, str(split.pair), str(split.id), _HEURISTIC, _SUBCASE]
    table = read_delimited(path, Dialect("\t", spec.quoting), keep=columns)
    for column in columns:
        require_column(table, column, spec)
    labels = LabelReader(LabelSpace(spec.task_type, spec.label_names), spec.label_values).read(table, split.label)
    ids = table.texts(str(split.id))
    heuristics, subcases = table.texts(_HEURISTIC), table.texts(_SUBCASE)
    _check(table, ids, heuristics, subcases)
    rows = TextRows(ids, table.texts(split.text), table.texts(str(split.pair)), labels, table.source, table.lines)
    return HansRows(rows, heuristics, subcases)


def _check(table: Table, ids: Sequence[str], heuristics: Sequence[str], subcases: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for row, (key, heuristic, subcase) in enumerate(zip(ids, heuristics, subcases, strict=True)):
        if heuristic not in HEURISTICS:
            raise table.error(row, f"heuristic {heuristic!r}, expected one of {', '.join(HEURISTICS)}. Mend the row.")
        if not subcase.strip():
            raise table.error(row, f"column {_SUBCASE!r} is empty here, expected a name. Mend the row.")
        if not key or "," in key:
            raise table.error(row, f"id {key!r}, expected one without a comma, which separates fields for the scorer.")
        if first.setdefault(key, row) != row:
            raise table.error(row, f"id {key!r} was used before ({table.place(first[key])}), expected each once.")
