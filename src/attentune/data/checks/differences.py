"""Where a split differs from train by more than chance: labels, lengths, vocabulary and time."""

from __future__ import annotations

import re

import numpy as np

from attentune.data.checks.report import Finding, percent
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.dates import dates_in_common

# Chance alone fires once in a thousand comparisons, and less with a least difference: in points of a share, as a ratio
# of median lengths, in points of unseen words above what a tenth of train has, and in points of the rows up to a date.
_P, _LEAST_SHARE, _LEAST_RATIO, _LEAST_UNSEEN, _LEAST_EARLIER = 0.001, 0.05, 1.25, 0.05, 0.1
_FEWEST_ROWS, _MOST_ROWS = 20, 5000
_WORD = re.compile(r"\w+")


def difference_findings(name: str, rows: TextRows, train: TextRows, space: LabelSpace) -> list[Finding]:
    """Compare a split with train; at most one finding each on labels, lengths, vocabulary and time."""
    time = _time(name, rows, train)
    if min(len(rows), len(train)) < _FEWEST_ROWS:
        return time
    found = [] if rows.labels is None or train.labels is None else _labels(name, rows.labels, train.labels, space)
    here, there = _words(rows), _words(train)
    return [*found, *_lengths(name, here, there), *_vocabulary(name, here, there), *time]


_CURE = (
    "A score there says little about rows like those of train, and the other way round: draw both from the same source,"
    " or train on rows like those that the model will see."
)


def _finding(kind: str, name: str, message: str, cure: str = _CURE) -> Finding:
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


def _time(name: str, rows: TextRows, train: TextRows) -> list[Finding]:
    from scipy.stats import ks_2samp

    found = dates_in_common(rows.dates, train.dates)
    if found is None:
        return []
    column, here, there = found
    # Numbers; a few rows suffice where no dates are shared.
    test = ks_2samp(here.astype(np.int64), there.astype(np.int64))
    if test.pvalue >= _P or test.statistic < _LEAST_EARLIER:
        return []
    ends = [np.sort(dates)[[0, len(dates) // 2, -1]] for dates in (here, there)]
    is_years = all((dates == dates.astype("datetime64[Y]")).all() for dates in (here, there))
    # The first unit in which they differ.
    shown = [[np.datetime_as_string(dates, unit).tolist() for dates in ends] for unit in ("Y", "M", "D", "s")]
    first, second = next(pair for pair in shown[not is_years :] if pair[0][1] != pair[1][1] or pair is shown[-1])
    message = f"the texts are from {first[0]} to {first[2]}, those of train from {second[0]} to {second[2]}"
    if ends[0][0] <= ends[1][2] and ends[1][0] <= ends[0][2]:
        message += f", half of them up to {first[1]} and {second[1]}"
    cure = (
        "Subjects and words change with time: a score there holds for texts of that time. If the model will see later"
        " texts, test on the latest and train on all others; if not, draw both from the same time."
    )
    return [_finding("time-shift", name, f"{message} (column {column!r})", cure)]
