"""HANS: whether a model of entailment falls for heuristics, by heuristic, gold label and subcase.

Source: McCoy, Pavlick and Linzen 2019; figure 3 of SESAME (Su and Cheng 2019).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attentune.data.builtin import find_builtin_file, load_spec, require_column
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.labels import LabelReader
from attentune.data.readers.csv import Dialect
from attentune.data.readers.read import read_delimited
from attentune.data.readers.table import Table
from attentune.data.splits import stratified_sample
from attentune.errors import ConfigError, LabelError
from attentune.inference.predictor import Predictor, predict_rows
from attentune.metrics.metrics import predictions_of

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


GOLD_LABELS = ("entailment", "non-entailment")
# Names of the class of entailment, without case and punctuation.
_ENTAILMENT = frozenset({"entailment", "entails", "entailed", "entail"})
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class HansRun:
    """One scored run.

    Attributes:
        run: its folder.
        name: the end of the folder's path that no other run shares.
        method: what it is called in tables; runs of the same method are averaged.
        entailment: the model's class of entailment.
        non_entailment: its other classes, all of which count as non-entailment.
    """

    run: str
    name: str
    method: str
    entailment: str
    non_entailment: tuple[str, ...]


@dataclass(frozen=True)
class HansLine:
    """The accuracy on some of the rows.

    Attributes:
        heuristic, gold_label, subcase: which rows; None where all are meant. A subcase has one of each.
        rows: how many.
        accuracies: of each run; NaN without rows.
        means: of each method, over its runs.
        deviations: each method's standard deviation over its runs (n - 1 below the line); None of a single run.
    """

    heuristic: str | None
    gold_label: str | None
    subcase: str | None
    rows: int
    accuracies: tuple[float, ...]
    means: tuple[float, ...]
    deviations: tuple[float | None, ...]


@dataclass(frozen=True)
class HansReport:
    """What `score_hans` found.

    Attributes:
        data: the file.
        rows, rows_in_file: how many were scored, of how many.
        seed: that drew them; None where all were scored.
        runs: in the order given.
        methods: their names in the order of their first runs.
        lines: all rows, then heuristics by gold label, then subcases.
        ids: of the scored rows, in the file's order.
        entails_RN: (R, N) whether each run predicts entailment.
    """

    data: str
    rows: int
    rows_in_file: int
    seed: int | None
    runs: tuple[HansRun, ...]
    methods: tuple[str, ...]
    lines: tuple[HansLine, ...]
    ids: tuple[str, ...]
    entails_RN: np.ndarray

    @property
    def overall(self) -> HansLine:
        """The line of all rows."""
        return self.lines[0]

    @property
    def cells(self) -> tuple[HansLine, ...]:
        """The lines of a heuristic and a gold label."""
        return tuple(line for line in self.lines if line.heuristic is not None and line.subcase is None)

    @property
    def subcases(self) -> tuple[HansLine, ...]:
        """The lines of a subcase."""
        return tuple(line for line in self.lines if line.subcase is not None)

    def to_dict(self) -> dict[str, Any]:
        """All numbers, ready for JSON; the predictions are left out."""
        return {
            "data": self.data,
            "rows": self.rows,
            "rows_in_file": self.rows_in_file,
            "seed": self.seed,
            "runs": [asdict(run) for run in self.runs],
            "methods": list(self.methods),
            "lines": [asdict(line) for line in self.lines],
        }

    def predictions_text(self, run: int) -> str:
        """What the set's own scorer reads, of the run with this number: the header pairID,gold_label and a row each."""
        lines = (
            f"{key},{GOLD_LABELS[not entails]}\n" for key, entails in zip(self.ids, self.entails_RN[run], strict=True)
        )
        return "pairID,gold_label\n" + "".join(lines)


def score_hans(
    runs: Sequence[str | Path | Predictor],
    file: str | Path | None = None,
    *,
    data_dir: str | None = None,
    methods: Sequence[str] | None = None,
    max_samples: int | None = None,
    seed: int = 42,
    precision: str | None = None,
    progress: Progress | None = None,
) -> HansReport:
    """Score runs on HANS. A prediction is the model's likeliest class, or any other class than entailment's.

    Args:
        runs: folders of runs that tell entailment of pairs, with two classes or more.
        file: `heuristics_evaluation_set.txt`; looked for like the known task `hans` if not given.
        data_dir: where it is looked for; the folder that ATTENTUNE_DATA names if not given.
        methods: what each run is called, one a run; runs with the same name are averaged. Their folders if not given.
        max_samples: score only so many rows, with their share of each subcase.
        seed: draws them.
        precision: another one than the runs'.
        progress: called with a run's name, the number of rows done in each batch, and of all rows.

    Raises:
        ConfigError: methods that do not go with the runs, or a run given twice.
        DataError: the file is missing or broken, with the line.
        LabelError: a model without exactly one class of entailment, or of single texts.
    """
    runs = [runs] if isinstance(runs, (str, Path, Predictor)) else runs
    names = short_names([str(run.folder if isinstance(run, Predictor) else run) for run in runs])
    methods = names if methods is None else methods
    if len(methods) != len(runs) or not all(methods):
        raise ConfigError(
            f"labels: got {len(methods)} ({', '.join(methods)}), expected {len(runs)}: a name for each run."
        )
    whole = read_hans(file if file is not None else find_builtin_file("hans", "validation", data_dir))
    rows = whole if max_samples is None else _part(whole, max_samples, seed)
    described = [_describe(run, name, method) for run, name, method in zip(runs, names, methods, strict=True)]
    entails_RN = np.stack(
        [_entails(run, told, rows, precision, progress) for run, told in zip(runs, described, strict=True)]
    )
    return HansReport(
        rows.rows.source,
        len(rows),
        len(whole),
        None if len(rows) == len(whole) else seed,
        tuple(described),
        tuple(dict.fromkeys(methods)),
        _lines(rows, entails_RN == rows.entails, methods),
        rows.rows.ids,
        entails_RN,
    )


def short_names(folders: Sequence[str]) -> list[str]:
    """The ends of these paths, as short as they all differ.

    Raises:
        ConfigError: a folder is given twice.
    """
    parts = [Path(folder).resolve().parts for folder in folders]
    for place, own in enumerate(parts):
        if own in parts[:place]:
            raise ConfigError(f"{folders[place]}: is given twice, expected each run once.")
    length = 1
    while len({own[-length:] for own in parts}) < len(parts):
        length += 1
    return ["/".join(own[-length:]) for own in parts]


def entailment_class(names: Sequence[str], run: str = "the model") -> int:
    """The number of the class that stands for entailment, found by its name: entailment, entails, ENTAILMENT, ...

    Raises:
        LabelError: no class has such a name, or several have.
    """
    found = [place for place, name in enumerate(names) if re.sub(r"[\W_]", "", name.casefold()) in _ENTAILMENT]
    if len(found) != 1:
        got = "none of them" if not found else " and ".join(repr(names[place]) for place in found)
        raise LabelError(
            f"{run}: has the labels {', '.join(map(repr, names)) or 'none (it predicts scores)'}; expected exactly one"
            f" that is called entailment (or entails, entailed), got {got}. HANS needs a model of entailment, trained"
            " on MNLI, RTE or the like."
        )
    return found[0]


def _load(run: str | Path | Predictor) -> Predictor:
    return run if isinstance(run, Predictor) else Predictor.load(run)


def _describe(run: str | Path | Predictor, name: str, method: str) -> HansRun:
    """Who this run is; checked for all runs before the first predicts, and not kept: many models may not fit."""
    saved = _load(run)
    names = saved.label_space.names
    place = entailment_class(names, str(saved.folder))
    if not saved.is_pair:
        raise LabelError(
            f"{saved.folder}: was trained on single texts, expected a model of pairs (premise, hypothesis)."
        )
    return HansRun(
        str(saved.folder), name, method, names[place], tuple(other for other in names if other != names[place])
    )


def _entails(
    run: str | Path | Predictor, told: HansRun, rows: HansRows, precision: str | None, progress: Progress | None
) -> np.ndarray:
    """(N,) whether the run predicts entailment."""
    saved = _load(run)
    report = None if progress is None else lambda count: progress(told.name, count, len(rows))
    logits_NC = predict_rows(saved, rows.rows, precision=precision, progress=report)
    return predictions_of(logits_NC, saved.label_space) == saved.label_space.label2id[told.entailment]


def _part(rows: HansRows, size: int, seed: int) -> HansRows:
    if size < 1:
        raise ConfigError(f"max_samples: got {size}, expected a whole number above 0.")
    strata = np.unique([f"{a} {b}" for a, b in zip(rows.entails, rows.subcases, strict=True)], return_inverse=True)[1]
    return rows.take(stratified_sample(strata, size, seed, "hans"))


def _lines(rows: HansRows, right_RN: np.ndarray, methods: Sequence[str]) -> tuple[HansLine, ...]:
    gold = np.where(rows.entails, *GOLD_LABELS)
    heuristics, subcases = np.array(rows.heuristics), np.array(rows.subcases)

    def line(heuristic: str | None, gold_label: str | None, subcase: str | None) -> HansLine:
        wanted = [(heuristics, heuristic), (gold, gold_label), (subcases, subcase)]
        chosen = np.ones(len(rows), dtype=bool)
        for values, value in wanted:
            chosen &= True if value is None else values == value
        count = int(chosen.sum())
        accuracies = [float(own[chosen].mean()) if count else float("nan") for own in right_RN]
        return HansLine(heuristic, gold_label, subcase, count, tuple(accuracies), *_by_method(accuracies, methods))

    cells = [(heuristic, label) for heuristic in HEURISTICS for label in GOLD_LABELS]
    found = dict.fromkeys(zip(rows.heuristics, gold.tolist(), rows.subcases, strict=True))
    ordered = sorted(found, key=lambda key: (cells.index(key[:2]), key[2]))
    return (line(None, None, None), *(line(*cell, None) for cell in cells), *(line(*key) for key in ordered))


def _by_method(values: Sequence[float], methods: Sequence[str]) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
    """Each method's mean and standard deviation, in the order of their first runs."""
    groups: dict[str, list[float]] = {}
    for value, method in zip(values, methods, strict=True):
        groups.setdefault(method, []).append(value)
    means = tuple(float(np.mean(group)) for group in groups.values())
    return means, tuple(float(np.std(group, ddof=1)) if len(group) > 1 else None for group in groups.values())
