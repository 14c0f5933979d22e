"""HANS: an entailment model's reliance on syntactic heuristics, by heuristic, gold label and subcase.

Source: McCoy, Pavlick and Linzen 2019; figure 3 of SESAME (Su and Cheng 2019).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.data.builtin import find_builtin_file, label_reader, load_spec, require_column
from attentune.data.columns import Columns, read_rows
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.files import read_delimited
from attentune.data.splits import stratified_sample
from attentune.data.text_files import Dialect
from attentune.errors import ConfigError, LabelError
from attentune.inference.predictor import Predictor, predict_rows
from attentune.metrics.metrics import predictions_of
from attentune.stats.estimate import wilson_interval

HEURISTICS = ("lexical_overlap", "subsequence", "constituent")
_KEPT = ("heuristic", "subcase")


def read_hans(path: str | Path) -> TextRows:
    """Read `heuristics_evaluation_set.txt`; the rows keep the heuristic and the subcase of each."""
    spec = load_spec("hans")
    split = spec.splits["validation"]
    columns = Columns(split.text, split.pair, split.label, split.id)
    table = read_delimited(path, Dialect("\t", spec.quoting), keep=(*columns.names, *_KEPT))
    for column in (*columns.names, *_KEPT):
        require_column(table, column, spec)
    rows, _ = read_rows(table, columns, label_reader(spec, LabelSpace(spec.task_type, spec.label_names)))
    rows = replace(rows, kept=tuple(map(table.texts, _KEPT)))
    for row, (key, heuristic, subcase) in enumerate(zip(rows.ids, *rows.kept, strict=True)):
        if heuristic not in HEURISTICS or not subcase.strip() or "," in key:
            raise table.error(
                row,
                f"heuristic {heuristic!r}, subcase {subcase!r}, id {key!r}, expected a heuristic of"
                f" {', '.join(HEURISTICS)}, a subcase, and an id without a comma (the official scorer separates fields"
                " by it). Correct the row.",
            )
    return rows


GOLD_LABELS = ("entailment", "non-entailment")
# Accepted names of the entailment class, lower-cased and without punctuation.
_ENTAILMENT = frozenset({"entailment", "entails", "entailed", "entail"})
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class HansRun:
    run: str  # the run folder
    name: str  # a short unique name: the last parts of the folder's path (see `short_names`)
    method: str  # the name in tables; runs of the same method are averaged
    entailment: str  # the name of the model's entailment class
    non_entailment: tuple[str, ...]  # the names of its other classes, which all count as non-entailment


@dataclass(frozen=True)
class HansLine:
    """The accuracy on a subset of the rows."""

    # heuristic, gold_label, subcase: the subset; None selects all values. A line with a subcase has all three.
    heuristic: str | None
    gold_label: str | None
    subcase: str | None
    rows: int  # the number of rows in the subset
    accuracies: tuple[float, ...]  # the accuracy of each run; NaN for an empty subset
    means: tuple[float, ...]  # the mean accuracy of each method over its runs
    deviations: tuple[float | None, ...]  # each method's sample standard deviation (ddof=1) over its runs
    intervals: tuple[tuple[float, float], ...] = ()  # the 95 % Wilson interval of each run's accuracy over the rows


@dataclass(frozen=True)
class HansReport:
    data: str  # the data file
    # rows, rows_in_file: the number of scored rows and of rows in the file.
    rows: int
    rows_in_file: int
    seed: int | None  # the seed of the sample; None if all rows were scored
    runs: tuple[HansRun, ...]  # the scored runs, in the order given
    methods: tuple[str, ...]  # the names of the methods, in the order of their first runs
    lines: tuple[HansLine, ...]  # the accuracies: on all rows, then by heuristic and gold label, then by subcase
    ids: tuple[str, ...]  # the ids of the scored rows, in the file's order
    entails_RN: np.ndarray  # whether each of the R runs predicts entailment for each of the N rows

    @property
    def overall(self) -> HansLine:
        return self.lines[0]

    @property
    def cells(self) -> tuple[HansLine, ...]:
        return tuple(line for line in self.lines if line.heuristic is not None and line.subcase is None)

    @property
    def subcases(self) -> tuple[HansLine, ...]:
        return tuple(line for line in self.lines if line.subcase is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return the report without its predictions as a dict that can be written as JSON."""
        return {name: value for name, value in asdict(self).items() if name not in ("ids", "entails_RN")}

    def predictions_text(self, run: int) -> str:
        """Return a run's predictions as CSV text for the official HANS scorer."""
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
    """Score runs on HANS.

    A run predicts entailment if entailment is its most probable class; all other classes count as non-entailment.

    Args:
        runs: folders of runs, or loaded runs, that classify text pairs and have an entailment class.
        file: `heuristics_evaluation_set.txt`; by default the file of the built-in task `hans`.
        data_dir: the folder in which to look for that file; by default the folder in ATTENTUNE_DATA.
        methods: the name of each run in tables; runs with the same name are averaged. By default the short names of the
            run folders.
        max_samples: score a sample of this many rows, stratified by gold label and subcase.
        seed: the seed of the sample.
        precision: fp32 (default), auto, bf16 or fp16.
        progress: called after each batch with the run's name, the number of rows in the batch and the total number of
            rows.

    Returns:
        The accuracies and predictions of all runs.

    Raises:
        ConfigError: `methods` does not have one name per run, a run is repeated, or `max_samples` is below 1.
        DataError: the file is missing or malformed; the message names the line.
        LabelError: a model does not have exactly one entailment class, or was trained on single texts.
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
        [
            _entails(run, description, rows, precision, progress)
            for run, description in zip(runs, described, strict=True)
        ]
    )
    return HansReport(
        rows.source,
        len(rows),
        len(whole),
        None if len(rows) == len(whole) else seed,
        tuple(described),
        tuple(dict.fromkeys(methods)),
        _lines(rows, entails_RN, methods),
        rows.ids,
        entails_RN,
    )


def short_names(folders: Sequence[str]) -> list[str]:
    """Return the shortest path suffixes, of equal length, that distinguish these folders."""
    parts = [Path(folder).resolve().parts for folder in folders]
    for place, path_parts in enumerate(parts):
        if path_parts in parts[:place]:
            raise ConfigError(f"{folders[place]}: is given twice, expected each run once.")
    length = 1
    while len({path_parts[-length:] for path_parts in parts}) < len(parts):
        length += 1
    return ["/".join(path_parts[-length:]) for path_parts in parts]


def entailment_class(names: Sequence[str], run: str = "the model") -> int:
    """Return the id of the entailment class, found by its name: entailment, entails, ENTAILMENT, ..."""
    matches = [place for place, name in enumerate(names) if re.sub(r"[\W_]", "", name.casefold()) in _ENTAILMENT]
    if len(matches) != 1:
        got = "none of them" if not matches else " and ".join(repr(names[place]) for place in matches)
        raise LabelError(
            f"{run}: has the labels {', '.join(map(repr, names)) or 'none (it predicts scores)'}; expected exactly one"
            f" that is called entailment (or entails, entailed), got {got}. HANS needs a model of entailment, trained"
            " on MNLI, RTE or the like."
        )
    return matches[0]


def _describe(run: str | Path | Predictor, name: str, method: str) -> HansRun:
    """Check that a run can be scored, and return its description.

    All runs are checked before the first one predicts. The model is not kept, since many models may not fit in memory.
    """
    saved = run if isinstance(run, Predictor) else Predictor.load(run)
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
    run: str | Path | Predictor, described: HansRun, rows: TextRows, precision: str | None, progress: Progress | None
) -> np.ndarray:
    saved = run if isinstance(run, Predictor) else Predictor.load(run)
    report = None if progress is None else lambda count: progress(described.name, count, len(rows))
    logits_NC = predict_rows(saved, rows, precision=precision, progress=report)
    return predictions_of(logits_NC, saved.label_space) == saved.label_space.label2id[described.entailment]


def _part(rows: TextRows, size: int, seed: int) -> TextRows:
    if size < 1:
        raise ConfigError(f"max_samples: got {size}, expected a whole number above 0.")
    keys = [f"{entails} {subcase}" for entails, subcase in zip(entailed(rows), rows.kept[1], strict=True)]
    strata = np.unique(keys, return_inverse=True)[1]
    return rows.take(stratified_sample(strata, size, seed, "hans"))


def entailed(rows: TextRows) -> np.ndarray:
    """Whether each row's gold label is entailment, (N,)."""
    return np.asarray(rows.labels) == 0


def _lines(rows: TextRows, entails_RN: np.ndarray, methods: Sequence[str]) -> tuple[HansLine, ...]:
    right_RN = entails_RN == entailed(rows)
    gold = np.where(entailed(rows), *GOLD_LABELS)
    heuristics, subcases = map(np.array, rows.kept)
    by_method = {name: [place for place, method in enumerate(methods) if method == name] for name in methods}

    def line(heuristic: str | None, gold_label: str | None, subcase: str | None) -> HansLine:
        chosen = np.ones(len(rows), dtype=bool)
        for values, value in ((heuristics, heuristic), (gold, gold_label), (subcases, subcase)):
            chosen &= True if value is None else values == value
        count, right = int(chosen.sum()), [int(right_N[chosen].sum()) for right_N in right_RN]
        accuracies = tuple(hits / count if count else float("nan") for hits in right)
        groups = [[accuracies[place] for place in places] for places in by_method.values()]
        means = tuple(float(np.mean(group)) for group in groups)
        deviations = tuple(float(np.std(group, ddof=1)) if len(group) > 1 else None for group in groups)
        intervals = tuple(wilson_interval(hits, count) for hits in right)
        return HansLine(heuristic, gold_label, subcase, count, accuracies, means, deviations, intervals)

    cells = [(heuristic, label) for heuristic in HEURISTICS for label in GOLD_LABELS]
    keys = set(zip(rows.kept[0], gold.tolist(), rows.kept[1], strict=True))
    ordered = sorted(keys, key=lambda key: (cells.index(key[:2]), key[2]))
    return (line(None, None, None), *(line(*cell, None) for cell in cells), *(line(*key) for key in ordered))
