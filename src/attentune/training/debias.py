"""Training against shortcuts (`objective.debias`): what a weak model knows of a row's label, the model learns less of.

The weak model sees what shortcuts are made of: which frequent words, marks and pairs of neighbours a text has, and of a
pair which of its words are in both texts. Rare words, which carry most of the honest meaning, it does not see. Each row
is predicted by one that was fitted to other rows, so that it cannot know a row by heart.

    product    loss_i = CE(softmax(logits_i + s t/T log p_i), y_i) at step t of T; predictions are of logits_i alone

s is `STRENGTH`; docs/training.md says why its share rises with the steps.

Sources: products of experts as in Hinton 2002, for shortcuts Clark, Yatskar and Zettlemoyer 2019 ("bias product") and
He, Zha and Wang 2019. A weak model of the words of one text and of those in common: as the biased models of Clark et
al. and He et al.; that it sees frequent ones only, and a strength that rises, are ours (results/shortcuts has the
figures).
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression

from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.splits import fold_rows
from attentune.training.callbacks import ProgressDisplay
from attentune.training.prepare import WEAK_FOLDS, RunInputs

# The share of the rows, and the number of them, from which on the weak model sees a word, mark or pair of neighbours.
FREQUENT, LEAST_ROWS = 0.02, 2
# The factor s of the weak model's log-probabilities in the last step; it rises from 0.
STRENGTH = 4.0
_TOKEN = re.compile(r"\w+|[^\w\s]+")


@dataclass(frozen=True)
class Debias:
    """What training takes from the weak model; a resumed run computes the same again."""

    log_p_NC: np.ndarray  # (N, C) float32 log-probabilities of the classes of each training row, times s
    facts: dict[str, Any]  # for `run.json`


def debiased(inputs: RunInputs, display: ProgressDisplay) -> RunInputs:
    """Return the inputs of a run with what `objective.debias` needs, computed here once; unchanged if it is none."""
    config, rows = inputs.config, inputs.read_data.splits["train"]
    if config.objective.debias == "none":
        return inputs
    began = time.perf_counter()
    display.info(f"debias: predicting {len(rows):,} training rows from frequent words, in {WEAK_FOLDS} folds")
    log_p_NC = out_of_fold(rows, inputs.data.label_space, config.training.seed)
    accuracy, seconds = float((log_p_NC.argmax(axis=1) == rows.labels).mean()), time.perf_counter() - began
    display.info(f"debias: these predict {100 * accuracy:.1f} % of the rows right ({seconds:.1f} s)")
    facts = {"weak_accuracy": accuracy, "seconds": round(seconds, 3)}
    return replace(inputs, debias=Debias((STRENGTH * log_p_NC).astype(np.float32), facts))


def out_of_fold(rows: TextRows, space: LabelSpace, seed: int) -> np.ndarray:
    """Return (N, C) float64 log-probabilities of rows, each by a logistic regression fitted to the other folds.

    Nearly equal texts and pairs with one premise stay in a fold, as in cross-validation. No probability is below 1 / N.
    """
    labels, features_NF = np.asarray(rows.labels), weak_features(rows)
    p_NC = np.full((len(rows), space.num_labels), 1 / len(rows))
    for fold in fold_rows(rows, WEAK_FOLDS, "debias", seed)[0]:
        rest = np.setdiff1d(np.arange(len(rows)), fold)
        if len(classes := np.unique(labels[rest])) == 1:
            p_NC[fold, classes] = 1.0
            continue
        weights = None if rows.weights is None else rows.weights[rest]
        model = LogisticRegression(max_iter=1000).fit(features_NF[rest], labels[rest], sample_weight=weights)
        p_NC[np.ix_(fold, classes)] = model.predict_proba(features_NF[fold])
    return np.log(np.maximum(p_NC, 1 / len(rows)))


def weak_features(rows: TextRows) -> sparse.csr_matrix:
    """Return (N, F): 1 for each frequent word, mark or pair of neighbours in a text, and the overlap of a pair.

    Overlap: the share of each text's tokens that are in the other, and whether all of the second's are in the first.
    """
    seen = [dict(_seen(text, pair)) for text, pair in zip(rows.texts, rows.pairs or [None] * len(rows), strict=True)]
    vectorizer = DictVectorizer()
    features_NF = vectorizer.fit_transform(seen)
    least = max(LEAST_ROWS, FREQUENT * len(rows))
    return features_NF[:, np.flatnonzero(features_NF.getnnz(axis=0) >= least)]


def _seen(text: str, pair: str | None) -> Iterator[tuple[str, float]]:
    sides = [_TOKEN.findall(side.casefold()) for side in (text, pair) if side is not None]
    for number, tokens in enumerate(sides):
        for phrase in {*tokens, *map(" ".join, pairwise(tokens))}:
            yield f"{number} {phrase}", 1.0
    yield "any", 1.0  # so that there is a feature even where no word is frequent
    if pair is not None:
        first, second = map(set, sides)
        shares = [len(first & second) / max(1, len(side)) for side in (first, second)]
        named = {"share of first": shares[0], "share of second": shares[1], "all": float(shares[1] == 1)}
        yield from ((name, value) for name, value in named.items() if value)
