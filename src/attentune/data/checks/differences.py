"""Where a split differs from train by more than chance: labels, lengths and vocabulary."""

from __future__ import annotations

import re

import numpy as np

from attentune.data.checks.report import Finding, percent
from attentune.data.dataset import LabelSpace, TextRows

# Chance alone fires once in a thousand comparisons, and less with a least difference: in points of a share, as a ratio
# of median lengths, and in points of unseen words above what a tenth of train has.
_P, _LEAST_SHARE, _LEAST_RATIO, _LEAST_UNSEEN = 0.001, 0.05, 1.25, 0.05
_FEWEST_ROWS, _MOST_ROWS = 20, 5000
_WORD = re.compile(r"\w+")


def difference_findings(name: str, rows: TextRows, train: TextRows, space: LabelSpace) -> list[Finding]:
    """Compare a split with train; at most one finding each on labels, lengths and vocabulary."""
    if min(len(rows), len(train)) < _FEWEST_ROWS:
        return []
    found = [] if rows.labels is None or train.labels is None else _labels(name, rows.labels, train.labels, space)
    here, there = _words(rows), _words(train)
    return [*found, *_lengths(name, here, there), *_vocabulary(name, here, there)]


def _finding(kind: str, name: str, message: str) -> Finding:
    cure = (
        "A score there says little about rows like those of train, and the other way round: draw both from the same"
        " source, or train on rows like those that the model will see."
    )
    return Finding("warning", kind, name, f"{name}: {message}.", cure)


def _labels(name: str, here: np.ndarray, there: np.ndarray, space: LabelSpace) -> list[Finding]:
    from scipy.stats import chi2_contingency, ks_2samp

    if space.task_type == "regression":
        test = ks_2samp(here, there)
        if test.pvalue >= _P or abs(np.median(here) - np.median(there)) < 0.2 * np.std(there):
            return []
        medians = f"the median is {np.median(here):g}, in train {np.median(there):g}"
        return [_finding("label-shift", name, f"the scores differ from those of train: {medians}")]
    ones_here, ones_there = (
        (labels if labels.ndim == 2 else np.eye(space.num_labels)[labels]) for labels in (here, there)
    )
    shares_C, train_C = ones_here.mean(axis=0), ones_there.mean(axis=0)
    most = int(np.argmax(np.abs(shares_C - train_C)))
    counts = [[ones.sum(axis=0)[most], len(ones) - ones.sum(axis=0)[most]] for ones in (ones_here, ones_there)]
    if abs(shares_C[most] - train_C[most]) < _LEAST_SHARE or chi2_contingency(counts).pvalue >= _P / space.num_labels:
        return []
    shares = f"{space.names[most]!r} has {percent(shares_C[most])} of the rows, in train {percent(train_C[most])}"
    return [_finding("label-shift", name, f"the labels differ from those of train: {shares}")]


def _words(rows: TextRows) -> list[list[str]]:
    """Return the words of up to 5,000 rows, evenly spread."""
    places = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(int)).tolist()
    pairs = rows.pairs or ("",) * len(rows)
    return [_WORD.findall(f"{rows.texts[place]} {pairs[place]}".casefold()) for place in places]


def _lengths(name: str, here: list[list[str]], there: list[list[str]]) -> list[Finding]:
    from scipy.stats import mannwhitneyu

    first, second = [*map(len, here)], [*map(len, there)]
    medians = float(np.median(first)), float(np.median(second))
    ratio = (max(medians) + 1) / (min(medians) + 1)
    if ratio < _LEAST_RATIO or mannwhitneyu(first, second).pvalue >= _P:
        return []
    kind = "longer" if medians[0] > medians[1] else "shorter"
    message = f"the texts are {kind} than those of train: the median is {medians[0]:g} words, in train {medians[1]:g}"
    return [_finding("length-shift", name, message)]


def _vocabulary(name: str, here: list[list[str]], there: list[list[str]]) -> list[Finding]:
    from scipy.stats import mannwhitneyu

    known = {word for place, words in enumerate(there) if place % 10 for word in words}

    def unseen(texts: list[list[str]]) -> np.ndarray:
        return np.array([np.mean([word not in known for word in words]) for words in texts if words])

    # Both are compared with the same nine tenths of train.
    first, second = unseen(here), unseen(there[::10])
    if min(len(first), len(second)) < _FEWEST_ROWS or first.mean() - second.mean() < _LEAST_UNSEEN:
        return []
    if mannwhitneyu(first, second).pvalue >= _P:
        return []
    message = (
        f"{percent(float(first.mean()))} of the words of a text do not occur in train; of a tenth of train,"
        f" {percent(float(second.mean()))} do not occur in the rest"
    )
    return [_finding("vocabulary-shift", name, message)]
