"""`check_labels`: rows whose labels are probably wrong, with the words that speak for another label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attentune.automl.out_of_fold import make_folds, read_out_of_fold
from attentune.baselines.frozen import FrozenEncoder, FrozenLinear
from attentune.baselines.registry import BaselinePredictor
from attentune.config import Config
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.label_errors import Disagreement, LabelErrors, find_label_errors
from attentune.data.splits import differing_words, near_duplicates
from attentune.errors import ConfigError, DataError
from attentune.explain.explainer import WordExplainer
from attentune.metrics.metrics import probabilities_of

FOLDS = 5
# Rows that are encoded between two calls of `progress`.
_CHUNK = 256


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
        found.append(AlikeTexts(both, (first, second), texts, differing_words(rows, pair), round(pair.similarity, 4)))
    return tuple(sorted(found, key=lambda one: (-one.similarity, one.rows)))
