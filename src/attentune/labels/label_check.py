"""`check_labels`: rows whose labels are probably wrong, with the words that speak for another label."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attentune.automl.folds import Disagreement, disagreement, make_folds, read_out_of_fold
from attentune.baselines.frozen import FrozenEncoder, FrozenLinear
from attentune.baselines.registry import BaselinePredictor
from attentune.config import Config
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.ignored_words import without_words
from attentune.errors import ConfigError, DataError
from attentune.explain.explainer import WordExplainer
from attentune.io.files import csv_text, write_text
from attentune.metrics.metrics import probabilities_of
from attentune.plugins import require_extra

ENDINGS = (".csv", ".tsv", ".jsonl")


def check_ending(path: str) -> None:
    if Path(path).suffix.lower() not in ENDINGS:
        raise ConfigError(f"--output_file: got {path}, expected a name that ends in {', '.join(ENDINGS)}.")


def write_rows(path: str, names: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> None:
    write_text(path, rows_text(names, lines, Path(path).suffix.lower()))


def rows_text(names: Sequence[str], lines: Sequence[Mapping[str, Any]], ending: str) -> str:
    if ending == ".jsonl":
        return "".join(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines)
    cells = [[str(line[name]) for name in names] for line in lines]
    return csv_text([names, *cells], "\t" if ending == ".tsv" else ",")


_HEADER = ("row", "id", "where", "label", "suggested", "p_label", "p_suggested", "words", "text", "text_pair")


def write_errors(path: str, check: LabelCheck) -> None:
    """Write the likely label errors to a file, with the file and line of each row."""
    has_pairs = any(suspect.pair is not None for suspect in check.suspects)
    names = _HEADER if has_pairs else _HEADER[:-1]
    lines = [
        {
            **vars(suspect),
            "row": str(suspect.row),
            "p_label": f"{suspect.label_probability:.4f}",
            "p_suggested": f"{suspect.suggested_probability:.4f}",
            "words": ", ".join(suspect.words or ()),
            "text_pair": suspect.pair or "",
        }
        for suspect in check.suspects
    ]
    write_rows(path, names, [{name: line[name] for name in names} for line in lines])


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
    """Fit a linear model on the encoder for each fold; return models, fold of each row, held-out probabilities."""
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
class LabelCheck:
    """What was found about the labels of some rows."""

    rows: int  # the number of rows that were judged
    source: str  # what made the probabilities
    share: Disagreement  # the disagreement where the model is most certain
    accuracy: float  # how often the most probable label is the given one, of all rows
    majority: float  # the share of the most frequent label
    suspects: tuple[SuspectLabel, ...]  # rows whose labels are probably wrong, the least probable label first


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
