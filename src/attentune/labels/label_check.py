"""`check_labels`: rows whose labels are probably wrong, with the words that speak for another label."""

from __future__ import annotations

import csv
import functools
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
from attentune.data.ignored_words import without_words
from attentune.data.splits import near_duplicates
from attentune.data.tables import Table
from attentune.data.text_formats import FileOptions, open_bytes
from attentune.errors import ConfigError, DataError
from attentune.explain.explainer import WordExplainer
from attentune.io.files import write_text
from attentune.metrics.metrics import probabilities_of
from attentune.plugins import require_extra

ENDINGS = (".csv", ".tsv", ".jsonl")


def check_ending(path: str, flag: str = "--output_file") -> None:
    """Check that a file's name ends in .csv, .tsv or .jsonl."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise ConfigError(f"{flag}: got {path}, expected a name that ends in {', '.join(ENDINGS)}.")


def write_rows(path: str, names: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> None:
    check_ending(path)
    write_text(path, rows_text(names, lines, Path(path).suffix.lower()))


def rows_text(names: Sequence[str], lines: Sequence[Mapping[str, Any]], ending: str) -> str:
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
    lines = [
        {
            **vars(suspect),
            "mark": "",
            "row": str(suspect.row),
            "p_label": f"{suspect.label_probability:.4f}",
            "p_suggested": f"{suspect.suggested_probability:.4f}",
            "words": ", ".join(suspect.words or ()),
            "text_pair": suspect.pair or "",
        }
        for suspect in check.suspects
    ]
    write_rows(path, names, [{name: line[name] for name in names} for line in lines])


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
        if action in (FIX, REMOVE):
            marks.append(Mark(row, action, label if action == FIX else ""))
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
        if places is not None and columns.label in table.names:
            is_json = data.train_file.removesuffix(".gz").lower().endswith((".jsonl", ".ndjson"))
            if is_json and table.lines is not None:
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
# Rows that are encoded between two calls of `progress`; words that are shown for a row.
_CHUNK, MOST_WORDS = 256, 3

Report = Callable[[str, int, int], None]


def find_label_errors(labels: np.ndarray, probabilities_NC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find rows whose given label is probably wrong: their places, the least probable label first, and the most
    probable other class of each.

    How many rows are flagged is the number of off-diagonal entries of confident learning's joint distribution of given
    and true classes; which, are those with the lowest probability of the given class.

    Source: Northcutt, Jiang and Chuang, "Confident learning", JAIR 70, 2021; `cleanlab.filter.find_label_issues`.
    """
    from cleanlab.filter import find_label_issues

    present, own_N = np.unique(labels, return_inverse=True)
    if len(present) < 2:
        raise DataError(
            f"label errors: got {len(labels)} rows of {len(present)} class, expected rows of at least two classes to"
            " compare. Give rows of other classes too."
        )
    # cleanlab counts classes from 0 without gaps; a class without rows cannot be the given one.
    shown_NP = np.maximum(probabilities_NC[:, present], 1e-12)
    shown_NP = shown_NP / shown_NP.sum(axis=1, keepdims=True)
    places = np.flatnonzero(find_label_issues(own_N, shown_NP, filter_by="low_self_confidence", n_jobs=1))
    places = places[np.argsort(probabilities_NC[places, labels[places]], kind="stable")]
    others_KC = probabilities_NC[places].copy()
    others_KC[np.arange(len(places)), labels[places]] = -1.0
    return places, others_KC.argmax(axis=1)


def fit_folds(
    rows: TextRows, label_space: LabelSpace, frozen: FrozenEncoder, seed: int, report: Report
) -> tuple[list[FrozenLinear], np.ndarray, np.ndarray]:
    """Fit a linear model on the frozen encoder for each fold, on the rows of the others; equal texts share a fold.

    Returns the models, the fold of each row, and the probabilities (N, C) by the model that has not seen the row.
    """
    if rows.labels is None or len(rows) < 2:
        count = 0 if rows.labels is None else len(rows)
        raise DataError(f"{rows.source}: got {count} labelled rows, expected at least two.")
    for start in range(0, len(rows), _CHUNK):
        part = rows.take(range(start, min(start + _CHUNK, len(rows))))
        frozen.vectors((*part.texts, *(part.pairs or ())))
        report("encoded", len(part), len(rows))
    fold_N = np.unique(make_folds(rows, label_space, folds=FOLDS, seed=seed), return_inverse=True)[1]
    models, found_NC = [], np.zeros((len(rows), label_space.num_labels))
    for number in range(int(fold_N.max()) + 1):
        own = fold_N == number
        models.append(FrozenLinear(frozen, seed=seed).fit(rows.take(np.flatnonzero(~own)), label_space))
        found_NC[own] = probabilities_of(models[-1].logits(rows.take(np.flatnonzero(own))), label_space)
    return models, fold_N, found_NC


@dataclass(frozen=True)
class SuspectLabel:
    """A row whose label is probably wrong."""

    row: int  # its number among the rows, from 0
    id: str
    where: str  # its file and line, where known
    text: str
    pair: str | None  # the second text; None for single texts
    label: str  # the given label
    suggested: str  # the most probable other label
    label_probability: float  # out-of-fold probability of the given label
    suggested_probability: float  # that of the suggested one
    words: tuple[str, ...] | None  # the words that speak most for the suggested label, the strongest first


@dataclass(frozen=True)
class AlikeTexts:
    """Two rows with nearly equal texts and other labels."""

    rows: tuple[int, int]  # their numbers, from 0
    labels: tuple[str, str]
    texts: tuple[str, str]  # the first ones of pairs
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
    progress: Report | None = None,
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
    require_extra("labels", "cleanlab", what="--labels")
    report = progress or (lambda name, done, total: None)
    read = without_words(rows, config.data.ignore_words)
    frozen = FrozenEncoder(config.model, config.data.max_length, use_cpu=config.training.use_cpu, in_bf16=True)
    fit = functools.cache(lambda: fit_folds(read, label_space, frozen, config.training.seed, report))
    if run is None:
        models, _, probabilities_NC = fit()
        source = f"a linear model on the frozen encoder, in {len(models)} folds"
    else:
        source = f"the out-of-fold predictions of {run}"
        probabilities_NC = probabilities_of(read_out_of_fold(run, read, label_space), label_space)
    # A run has no predictions (NaN) for rows that no model was tested on.
    judged = np.flatnonzero(~np.isnan(probabilities_NC).any(axis=1))
    assert rows.labels is not None
    labels, shares_NC = rows.labels[judged], probabilities_NC[judged]
    places, suggested = find_label_errors(labels, shares_NC)
    suspects = []
    for number, (place, other) in enumerate(zip(places.tolist(), suggested.tolist(), strict=True)):
        row, words = int(judged[place]), None
        if number < explained:
            models, fold_N, _ = fit()
            saved = BaselinePredictor(Path(), config, label_space, models[int(fold_N[row])])
            words = _words_for(saved, rows.take([row]), label_space.names[other])
            report("explained", 1, min(explained, len(places)))
        suspects.append(
            SuspectLabel(
                row=row,
                id=rows.ids[row],
                where=rows.where(row),
                text=rows.texts[row],
                pair=None if rows.pairs is None else rows.pairs[row],
                label=label_space.names[int(labels[place])],
                suggested=label_space.names[other],
                label_probability=round(float(shares_NC[place, labels[place]]), 6),
                suggested_probability=round(float(shares_NC[place, other]), 6),
                words=words,
            )
        )
    return LabelCheck(
        rows=len(judged),
        source=source,
        share=disagreement(labels, shares_NC),
        accuracy=float((shares_NC.argmax(axis=1) == labels).mean()),
        majority=float(np.bincount(labels).max() / len(labels)),
        suspects=tuple(suspects),
        alike=_alike(rows, label_space),
    )


def _words_for(saved: BaselinePredictor, row: TextRows, label: str) -> tuple[str, ...]:
    """The words of a row that speak most for a label."""
    explainer = WordExplainer(saved, row)
    attributions = explainer.attributions("leave-one-out", target=label)
    (explanation,) = explainer.explanations("leave-one-out", "word", attributions)
    scored = sorted((word for word in explanation.words if word.score > 0), key=lambda word: -word.score)
    # Punctuation decides now and then, but tells a reader nothing.
    readable = [word.text for word in scored if any(sign.isalnum() for sign in word.text)]
    return tuple(dict.fromkeys(readable))[:MOST_WORDS]


def _alike(rows: TextRows, space: LabelSpace) -> tuple[AlikeTexts, ...]:
    assert rows.labels is not None
    found = []
    for pair in near_duplicates(rows):
        both = (pair.first, pair.second)
        first, second = (space.names[int(rows.labels[row])] for row in both)
        texts = (rows.texts[pair.first], rows.texts[pair.second])
        found.append(AlikeTexts(both, (first, second), texts, pair.words, round(pair.similarity, 4)))
    return tuple(sorted(found, key=lambda one: (-one.similarity, one.rows)))
