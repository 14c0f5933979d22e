"""`check_labels`: rows whose labels are probably wrong, with the words that speak for another label."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attentune.automl.folds import Disagreement, disagreement, make_folds, read_out_of_fold
from attentune.baselines.frozen import FrozenEncoder, FrozenLinear
from attentune.baselines.registry import BaselinePredictor
from attentune.config import Config
from attentune.config.parse import did_you_mean
from attentune.config.schema import DataConfig
from attentune.data.columns import choose_columns
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.files import read_table
from attentune.data.splits import near_duplicates
from attentune.data.tables import Table
from attentune.data.text_formats import FileOptions, open_bytes
from attentune.errors import ConfigError, DataError
from attentune.explain.explainer import WordExplainer
from attentune.io.files import write_text
from attentune.metrics.metrics import probabilities_of
from attentune.plugins import install_command

ENDINGS = (".csv", ".tsv", ".jsonl")


def check_ending(path: str, flag: str = "--output_file") -> None:
    """Check that a file's name ends in .csv, .tsv or .jsonl."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise ConfigError(f"{flag}: got {path}, expected a name that ends in {', '.join(ENDINGS)}.")


def write_rows(path: str, names: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> None:
    """Write rows; see `rows_text`."""
    check_ending(path)
    write_text(path, rows_text(names, lines, Path(path).suffix.lower()))


def rows_text(names: Sequence[str], lines: Sequence[Mapping[str, Any]], ending: str) -> str:
    """Format rows."""
    if ending == ".jsonl":
        return "".join(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines)
    buffer = io.StringIO()
    # Older versions of Python do not quote a carriage return by themselves, so that all texts are quoted.
    separator = "\t" if ending == ".tsv" else ","
    writer = csv.writer(buffer, delimiter=separator, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(names)
    writer.writerows([_field(line.get(name)) for name in names] for line in lines)
    return buffer.getvalue()


def _field(cell: Any) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    return json.dumps(cell, ensure_ascii=False, default=str)


KEEP, FIX, REMOVE = "keep", "fix", "remove"
MARKS = (KEEP, FIX, REMOVE)
_HEADER = ("mark", "row", "id", "where", "label", "suggested", "p_label", "p_suggested", "words", "text", "text_pair")
_READ = ("mark", "row", "label", "suggested", "text")


@dataclass(frozen=True)
class Mark:
    """What a person wants done with a row."""

    row: int  # its number, from 0
    action: str  # `FIX` (give it the label `label`) or `REMOVE`
    label: str = ""  # the new label; empty with `REMOVE`


def write_errors(path: str, check: LabelCheck) -> None:
    """Write the likely label errors as a file with an empty column `mark` for a person to fill."""
    has_pairs = any(suspect.pair is not None for suspect in check.suspects)
    names = _HEADER if has_pairs else _HEADER[:-1]
    lines: list[dict[str, Any]] = []
    for suspect in check.suspects:
        values = {
            "mark": "",
            "row": str(suspect.row),
            "id": suspect.id,
            "where": suspect.where,
            "label": suspect.label,
            "suggested": suspect.suggested,
            "p_label": f"{suspect.label_probability:.4f}",
            "p_suggested": f"{suspect.suggested_probability:.4f}",
            "words": ", ".join(suspect.words or ()),
            "text": suspect.text,
            "text_pair": suspect.pair or "",
        }
        lines.append({name: values[name] for name in names})
    write_rows(path, names, lines)


def read_marks(path: str, rows: TextRows, label_space: LabelSpace) -> list[Mark]:
    """Read the marks of a file that `write_errors` wrote.

    A mark is empty or "keep" (nothing is changed), "fix" (the row gets the label in the column `suggested`, in which a
    person may have written another one) or "remove". Rows of the file may be missing, or be in another order.
    """
    table = read_table(path)
    for name in _READ:
        if name not in table.names:
            raise DataError(
                f"there is no column {name!r}.{did_you_mean(name, table.names)} Expected a file that attentune doctor"
                " --labels --output_file wrote, with marks in its column 'mark'.",
                path=path,
            )
    columns = {name: [cell or "" for cell in table.values(name)] for name in _READ}
    marks: list[Mark] = []
    seen: set[int] = set()
    for number in range(len(table)):
        cells = {name: columns[name][number] for name in _READ}
        row = _row(table, number, cells, rows, label_space)
        if row in seen:
            raise table.error(number, f"row {row} is there twice; expected each row once. Remove one of the two.")
        seen.add(row)
        action, label = cells["mark"].strip().casefold(), cells["suggested"].strip()
        if action not in ("", *MARKS):
            raise table.error(
                number,
                f"mark: got {cells['mark']!r}, expected {', '.join(MARKS)} or nothing.{did_you_mean(action, MARKS)}"
                " For another label than the suggested one, write it in the column 'suggested' and mark the row fix.",
            )
        if action == FIX and label not in label_space.label2id:
            raise table.error(
                number,
                f"suggested: got {label!r}, expected one of the labels: {', '.join(label_space.names)}."
                f"{did_you_mean(label, label_space.names)}",
            )
        if action == FIX:
            marks.append(Mark(row, FIX, label))
        elif action == REMOVE:
            marks.append(Mark(row, REMOVE))
    if not marks:
        raise DataError(
            f"no row is marked. Write {FIX} in the column 'mark' of rows that get the suggested label, {REMOVE} of rows"
            " to leave out.",
            path=path,
        )
    return marks


def _row(table: Table, number: int, cells: dict[str, str], rows: TextRows, space: LabelSpace) -> int:
    """Return the number of a row, if it is the row that the file was made from."""
    text = cells["row"].strip().removesuffix(".0")
    row = int(text) if text.isdecimal() else -1
    if not 0 <= row < len(rows):
        raise table.error(number, f"row: got {cells['row']!r}, expected a number from 0 to {len(rows) - 1}.")
    assert rows.labels is not None
    label = space.names[int(rows.labels[row])]
    # Spreadsheets change spaces and line ends.
    if rows.texts[row].split() != cells["text"].split() or label != cells["label"].strip():
        raise table.error(
            number,
            f"row {row} has the text {cells['text'][:60]!r} and the label {cells['label']!r} here, but"
            f" {rows.texts[row][:60]!r} and {label!r} in {rows.source}. Give the file that this list was made from,"
            " with the same flags.",
        )
    return row


def count_marks(marks: Sequence[Mark]) -> str:
    """Say how many labels are changed and rows removed."""
    counts = Counter(mark.action for mark in marks)
    fixed, removed = counts[FIX], counts[REMOVE]
    return f"{fixed} label{'s' * (fixed != 1)} changed, {removed} row{'s' * (removed != 1)} removed"


def write_corrected(path: str, marks: Sequence[Mark], rows: TextRows, label_space: LabelSpace, data: DataConfig) -> int:
    """Write a corrected copy of the rows.

    A copy of an own file has all of its columns, as they are, in their order; only marked labels differ. Rows of known
    tasks and data sets are written with the columns id, text, text_pair (of pairs) and label.
    """
    check_ending(path)
    if data.train_file is not None and Path(path).absolute() == Path(data.train_file).expanduser().absolute():
        raise ConfigError(
            f"--output_file: got {path}, the file of the rows itself, which is never changed. Name another."
        )
    names, lines, label_column, places = _content(rows, label_space, data)
    for mark in marks:
        place = places[mark.row]
        if mark.action == FIX:
            lines[place] = {**lines[place], label_column: _like(lines[place][label_column], mark.label)}
    removed = {places[mark.row] for mark in marks if mark.action == REMOVE}
    kept = [line for row, line in enumerate(lines) if row not in removed]
    write_rows(path, names, kept)
    return len(kept)


def _content(
    rows: TextRows, space: LabelSpace, data: DataConfig
) -> tuple[tuple[str, ...], list[dict[str, Any]], str, Sequence[int]]:
    """Return the columns, the cells of each line, the column of the labels, and the place of each row in the lines."""
    if data.train_file is not None and rows.sources is None:
        table = read_table(data.train_file, options=FileOptions.of(data))
        columns, _ = choose_columns(table.names, data, table.source, table=table)
        places = _places(rows, table)
        if places is not None and columns.label is not None:
            if _is_json_lines(data.train_file) and table.lines is not None:
                return table.names, _objects(data.train_file, table.lines), columns.label, places
            cells = [table.columns[name] for name in table.names]
            lines = [dict(zip(table.names, values, strict=True)) for values in zip(*cells, strict=True)]
            return table.names, lines, columns.label, places
    assert rows.labels is not None
    names = ("id", "text", *(() if rows.pairs is None else ("text_pair",)), "label")
    content = []
    for row in range(len(rows)):
        pair = {} if rows.pairs is None else {"text_pair": rows.pairs[row]}
        label = space.names[int(rows.labels[row])]
        content.append({"id": rows.ids[row], "text": rows.texts[row], **pair, "label": label})
    return names, content, "label", range(len(rows))


def _places(rows: TextRows, table: Table) -> Sequence[int] | None:
    """Return where each row stands in its file, some lines of which may be no rows; None if that is not known."""
    if len(table) == len(rows):
        return range(len(rows))
    if rows.lines is None or table.lines is None:
        return None
    by_line = {line: place for place, line in enumerate(table.lines)}
    return [by_line[line] for line in rows.lines]


def _is_json_lines(path: str) -> bool:
    return Path(path.removesuffix(".gz")).suffix.lower() in (".jsonl", ".ndjson")


def _objects(path: str, lines: Sequence[int]) -> list[dict[str, Any]]:
    """Return the objects at these lines as they are written, with numbers, where a table has texts."""
    with open_bytes(Path(path).expanduser(), is_packed=path.lower().endswith(".gz")) as stream:
        written = stream.read().decode("utf-8-sig").split("\n")
    return [json.loads(written[line - 1]) for line in lines]


def _like(before: Any, label: str) -> Any:
    """Return a label as the type of the one that it replaces: 1, not "1", in a JSON file with numbers."""
    if isinstance(before, bool) or not isinstance(before, (int, float)):
        return label
    return json.loads(label)


FOLDS = 5
# Rows that are encoded between two calls of `progress`.
_CHUNK = 256


@dataclass(frozen=True)
class LabelErrors:
    """The rows whose labels are probably wrong."""

    places: np.ndarray  # (K,) int64 indices of the rows, the least probable label first
    suggested: np.ndarray  # (K,) int64 the most probable other class
    given_probabilities: np.ndarray  # (K,) float64 the probability of the given class
    suggested_probabilities: np.ndarray  # (K,) float64 that of the suggested class
    share: Disagreement  # the disagreement among the most confident predictions
    accuracy: float  # how often the most probable class is the given one, of all rows
    majority: float  # the share of the most frequent class


def find_label_errors(labels: np.ndarray, probabilities_NC: np.ndarray) -> LabelErrors:
    """Find rows whose given label is probably wrong.

    How many rows are flagged is the number of off-diagonal entries of confident learning's joint distribution of given
    and true classes; which, are those with the lowest probability of the given class.

    Source:
        Northcutt, Jiang and Chuang, "Confident learning", JAIR 70, 2021; `cleanlab.filter.find_label_issues`.
    """
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        raise ConfigError(
            f"--labels: needs cleanlab, which is not installed; run: {install_command('labels')}"
        ) from None
    present, own_N = np.unique(labels, return_inverse=True)
    if len(present) < 2:
        raise DataError(
            f"label errors: got {len(labels)} rows of {len(present)} class, expected rows of at least two classes to"
            " compare. Give rows of other classes too."
        )
    # cleanlab counts classes from 0 without gaps; a class without rows cannot be the given one.
    shown_NP = np.maximum(probabilities_NC[:, present], 1e-12)
    shown_NP = shown_NP / shown_NP.sum(axis=1, keepdims=True)
    is_flagged = find_label_issues(own_N, shown_NP, filter_by="low_self_confidence", n_jobs=1)
    places = np.flatnonzero(is_flagged)
    given_K = probabilities_NC[places, labels[places]]
    places = places[np.argsort(given_K, kind="stable")]
    others_KC = probabilities_NC[places].copy()
    others_KC[np.arange(len(places)), labels[places]] = -1.0
    suggested = others_KC.argmax(axis=1)
    return LabelErrors(
        places=places.astype(np.int64),
        suggested=suggested.astype(np.int64),
        given_probabilities=probabilities_NC[places, labels[places]],
        suggested_probabilities=probabilities_NC[places, suggested],
        share=disagreement(labels, probabilities_NC),
        accuracy=float((probabilities_NC.argmax(axis=1) == labels).mean()),
        majority=float(np.bincount(labels).max() / len(labels)),
    )


@dataclass(frozen=True)
class LinearFolds:
    """A linear model on a frozen encoder for each fold, fitted on the rows of the other folds."""

    models: tuple[FrozenLinear, ...]  # one per fold
    fold_N: np.ndarray  # (N,) the fold of each row, an index of `models`

    def probabilities(self, rows: TextRows, label_space: LabelSpace) -> np.ndarray:
        """Predict the rows that the models were made for, each with the model that has not seen it: (N, C)."""
        found_NC = np.zeros((len(rows), label_space.num_labels))
        for number, model in enumerate(self.models):
            places = np.flatnonzero(self.fold_N == number)
            found_NC[places] = probabilities_of(model.logits(rows.take(places)), label_space)
        return found_NC


def fit_folds(
    rows: TextRows,
    label_space: LabelSpace,
    *,
    frozen: FrozenEncoder,
    seed: int,
    folds: int = FOLDS,
    progress: Callable[[int], None] | None = None,
) -> LinearFolds:
    """Fit frozen-linear on folds of labelled rows; rows with equal texts share a fold."""
    if rows.labels is None or len(rows) < 2:
        count = 0 if rows.labels is None else len(rows)
        raise DataError(f"{rows.source}: got {count} labelled rows, expected at least two.")
    for start in range(0, len(rows), _CHUNK):
        part = rows.take(range(start, min(start + _CHUNK, len(rows))))
        frozen.vectors((*part.texts, *(part.pairs or ())))
        if progress is not None:
            progress(len(part))
    numbers = np.unique(make_folds(rows, label_space, folds=folds, seed=seed), return_inverse=True)[1]
    models = tuple(
        FrozenLinear(frozen, seed=seed).fit(rows.take(np.flatnonzero(numbers != number)), label_space)
        for number in range(int(numbers.max()) + 1)
    )
    return LinearFolds(models, numbers)


def probabilities_of_run(folder: str | Path, rows: TextRows, label_space: LabelSpace) -> np.ndarray:
    """Return the out-of-fold probabilities of a run of `attentune auto`, (N, C); NaN in rows that no model predicts."""
    logits_NC = read_out_of_fold(folder, rows, label_space)
    probabilities_NC = np.full(logits_NC.shape, np.nan)
    known = ~np.isnan(logits_NC).any(axis=1)
    probabilities_NC[known] = probabilities_of(logits_NC[known], label_space)
    return probabilities_NC


# Words that are shown for a row.
MOST_WORDS = 3


@dataclass(frozen=True)
class SuspectLabel:
    """A row whose label is probably wrong."""

    row: int  # its number among the rows, from 0
    id: str
    where: str  # its file and line, where known
    # text, pair: its texts; `pair` is None for single texts.
    text: str
    pair: str | None
    label: str  # the given label
    suggested: str  # the most probable other label
    label_probability: float  # out-of-fold probability of the given label
    suggested_probability: float  # that of the suggested one
    words: tuple[str, ...] | None  # the words that speak most for the suggested label, the strongest first


@dataclass(frozen=True)
class AlikeTexts:
    """Two rows with nearly equal texts and other labels."""

    rows: tuple[int, int]  # their numbers, from 0
    labels: tuple[str, str]  # their labels
    texts: tuple[str, str]  # their (first) texts
    differences: tuple[list[str], list[str]]  # the words that only the first, and only the second has
    similarity: float  # the share of common words


@dataclass(frozen=True)
class LabelCheck:
    """What was found about the labels of some rows."""

    rows: int  # the number of rows that were judged
    source: str  # what made the probabilities
    share: Disagreement  # the disagreement where the model is most certain
    accuracy: float  # how often the most probable label is the given one, of all rows
    majority: float  # the share of the most frequent label
    suspects: tuple[SuspectLabel, ...]  # rows whose labels are probably wrong, the least probable label first
    alike: tuple[AlikeTexts, ...]  # nearly equal texts with other labels

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def check_labels(
    rows: TextRows,
    label_space: LabelSpace,
    *,
    config: Config,
    run: str | Path | None = None,
    explained: int = 50,
    progress: Callable[[str, int, int], None] | None = None,
) -> LabelCheck:
    """Find labels that are probably wrong.

    The probabilities come from a linear model on the frozen encoder, in five folds, or from a run of `attentune auto`.
    The words come from leave-one-out on that linear model, which has not seen the row.
    """
    if label_space.task_type not in ("classification", "ordinal"):
        raise ConfigError(
            f"--labels: got labels of the type {label_space.task_type}, expected one class a row (classification or"
            " ordinal). Wrong scores and label sets are not looked for."
        )
    report = progress or (lambda name, done, total: None)
    frozen = FrozenEncoder(config.model, config.data.max_length, use_cpu=config.training.use_cpu)
    made: LinearFolds | None = None

    def folds() -> LinearFolds:
        nonlocal made
        if made is None:
            made = fit_folds(
                rows,
                label_space,
                frozen=frozen,
                seed=config.training.seed,
                progress=lambda done: report("encoded", done, len(rows)),
            )
        return made

    if run is None:
        source = f"a linear model on the frozen encoder, in {len(folds().models)} folds"
        probabilities_NC = folds().probabilities(rows, label_space)
    else:
        source = f"the out-of-fold predictions of {run}"
        probabilities_NC = probabilities_of_run(run, rows, label_space)
    judged = np.flatnonzero(~np.isnan(probabilities_NC).any(axis=1))
    assert rows.labels is not None
    errors = find_label_errors(rows.labels[judged], probabilities_NC[judged])
    places = judged[errors.places]
    words = (
        _words_for(rows, places[:explained], errors.suggested, label_space, folds(), config, report)
        if explained and len(places)
        else []
    )
    return LabelCheck(
        rows=len(judged),
        source=source,
        share=errors.share,
        accuracy=errors.accuracy,
        majority=errors.majority,
        suspects=_suspects(rows, places, errors, label_space, words),
        alike=_alike(rows, label_space),
    )


def _suspects(
    rows: TextRows, places: np.ndarray, errors: LabelErrors, space: LabelSpace, words: list[tuple[str, ...]]
) -> tuple[SuspectLabel, ...]:
    assert rows.labels is not None
    return tuple(
        SuspectLabel(
            row=place,
            id=rows.ids[place],
            where=rows.where(place),
            text=rows.texts[place],
            pair=None if rows.pairs is None else rows.pairs[place],
            label=space.names[int(rows.labels[place])],
            suggested=space.names[int(errors.suggested[number])],
            label_probability=round(float(errors.given_probabilities[number]), 6),
            suggested_probability=round(float(errors.suggested_probabilities[number]), 6),
            words=words[number] if number < len(words) else None,
        )
        for number, place in enumerate(places.tolist())
    )


def _words_for(
    rows: TextRows,
    places: np.ndarray,
    suggested: np.ndarray,
    space: LabelSpace,
    folds: LinearFolds,
    config: Config,
    report: Callable[[str, int, int], None],
) -> list[tuple[str, ...]]:
    """The words that speak for the suggested label of each of these rows, by the model that has not seen the row."""
    found = []
    for number, place in enumerate(places.tolist()):
        model = folds.models[int(folds.fold_N[place])]
        explainer = WordExplainer(BaselinePredictor(Path(), config, space, model), rows.take([place]))
        target = space.names[int(suggested[number])]
        (explanation,) = explainer.explanations(
            "leave-one-out", "word", explainer.attributions("leave-one-out", target=target)
        )
        scored = sorted((word for word in explanation.words if word.score > 0), key=lambda word: -word.score)
        # Punctuation decides now and then, but tells a reader nothing.
        readable = [word.text for word in scored if any(sign.isalnum() for sign in word.text)]
        found.append(tuple(dict.fromkeys(readable))[:MOST_WORDS])
        report("explained", 1, len(places))
    return found


def _alike(rows: TextRows, space: LabelSpace) -> tuple[AlikeTexts, ...]:
    assert rows.labels is not None
    found = []
    for pair in near_duplicates(rows):
        both = (pair.first, pair.second)
        first, second = (space.names[int(rows.labels[row])] for row in both)
        texts = (rows.texts[pair.first], rows.texts[pair.second])
        found.append(AlikeTexts(both, (first, second), texts, pair.words, round(pair.similarity, 4)))
    return tuple(sorted(found, key=lambda one: (-one.similarity, one.rows)))
