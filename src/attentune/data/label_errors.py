"""Likely label errors, from out-of-fold probabilities of the classes.

The probabilities of a row must come from a model that has not seen the row. What makes them is above this room
(`labels`); here is only what they say about the given labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attentune.errors import ConfigError, DataError
from attentune.stats.estimate import wilson_interval

# The share of rows of which a model is most certain, on which wrong labels are counted.
CERTAIN_SHARE = 0.2
# A share of disagreement is worth a line if the lower bound of its interval is at least this.
HIGH_SHARE = 0.05


@dataclass(frozen=True)
class Disagreement:
    """How often the given label is not the predicted one, in the rows of which a model is most certain."""

    value: float  # the share of these rows
    low: float  # the lower bound of its 95 % Wilson interval over rows
    high: float  # the upper bound
    rows: int  # the number of these rows


@dataclass(frozen=True)
class LabelErrors:
    """The rows whose labels are probably wrong."""

    places: np.ndarray  # (K,) int64 indices of the rows, the least probable label first
    suggested: np.ndarray  # (K,) int64 the most probable other class
    given_probabilities: np.ndarray  # (K,) float64 the probability of the given class
    suggested_probabilities: np.ndarray  # (K,) float64 that of the suggested class
    share: Disagreement  # the disagreement in the rows of which the model is most certain
    accuracy: float  # how often the most probable class is the given one, of all rows
    majority: float  # the share of the most frequent class


def disagreement(labels: np.ndarray, probabilities_NC: np.ndarray) -> Disagreement:
    """Estimate the share of wrong labels by the rows of which a model is most certain.

    Of the rows of each predicted class, the fifth with the highest probability is taken. Were the model right in all of
    these and errors equally frequent in all rows, the share of other labels there would be the share of wrong labels.
    A model that is wrong there too makes it too high. docs/data.md has how far it was off.
    """
    predicted, certainty = probabilities_NC.argmax(axis=1), probabilities_NC.max(axis=1)
    certain = []
    for name in np.unique(predicted):
        own = np.flatnonzero(predicted == name)
        count = max(1, round(CERTAIN_SHARE * len(own)))
        certain.append(own[np.argsort(-certainty[own], kind="stable")[:count]])
    rows = np.concatenate(certain)
    others = int((predicted[rows] != labels[rows]).sum())
    return Disagreement(others / len(rows), *wilson_interval(others, len(rows)), len(rows))


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
            "--labels: needs cleanlab, which is not installed; run: pip install 'attentune[labels]'"
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
