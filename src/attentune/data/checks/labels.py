"""Label statistics of a split: class balance, baseline scores and the minimum detectable difference."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attentune.data.checks.report import Finding, ScoreSpread, SplitReport, percent
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.stats.power import minimum_detectable_accuracy_difference, minimum_detectable_correlation_difference

IMBALANCE_SHARE = 0.8
SMALL_GAP = 0.05
# Class names of which one may be a misspelling of the other: how alike and how long they are, how rare the one is, and
# how many names are compared.
_ALIKE, _FEWEST_LETTERS, _RARE_SHARE, _MOST_NAMES = 0.85, 5, 0.1, 300


def label_facts(name: str, labels: np.ndarray, train: TextRows | None, data: TaskData) -> dict[str, Any]:
    """Compute the fields of a `SplitReport` that depend on the labels (at least one)."""
    facts: dict[str, Any] = {}
    if data.label_space.is_multilabel:
        counts_C = labels.sum(axis=0)
        facts["class_counts"] = {label: int(n) for label, n in zip(data.label_space.names, counts_C, strict=True)}
        facts["unlabelled"] = int((labels.sum(axis=1) == 0).sum())
        return facts
    regression = data.label_space.task_type == "regression"
    if regression:
        facts["scores"] = ScoreSpread(
            mean=float(labels.mean()), std=float(labels.std()), lowest=float(labels.min()), highest=float(labels.max())
        )
    else:
        names = data.label_space.names
        counts = np.bincount(labels, minlength=len(names))
        learnt_from = labels if train is None or train.labels is None or not len(train) else train.labels
        guess = int(np.bincount(learnt_from, minlength=len(names)).argmax())
        facts["class_counts"] = {label: int(count) for label, count in zip(names, counts, strict=True)}
        facts["guess"] = names[guess]
        facts["guess_scores"] = _guess_scores(labels, guess, data.label_space, data.metrics)
    if name != "train":
        rows = len(labels)
        detectable = minimum_detectable_correlation_difference if regression else minimum_detectable_accuracy_difference
        gap = detectable(rows)
        facts["detectable_metric"] = "correlation" if regression else "accuracy"
        facts["detectable_gap"] = None if math.isnan(gap) else gap
    return facts


def _guess_scores(labels: np.ndarray, guess: int, space: LabelSpace, metrics: Sequence[str]) -> dict[str, float | None]:
    """Score the constant prediction of one class: accuracy and the supported metrics of the task."""
    right = float(np.mean(labels == guess))
    scores: dict[str, float | None] = {
        "accuracy": right,
        "matthews_correlation": 0.0,
        "quadratic_weighted_kappa": float(right == 1),
        "f1_macro": _constant_f1(right) / len(np.union1d(labels, [guess])),
        "mean_absolute_error": float(np.mean(np.abs(labels - guess))),
        "mean_squared_error": float(np.mean((labels - guess) ** 2)),
        "pearson": None,
        "spearmanr": None,
    }
    wanted = [*metrics, "accuracy"]
    if space.num_labels == 2:
        all_positive = _constant_f1(float(np.mean(labels == 1)))
        scores["f1"] = all_positive if guess == 1 else 0.0
        scores["f1_all_positive"] = all_positive
        if "f1" in metrics and guess != 1:
            wanted.append("f1_all_positive")
    return {metric: scores[metric] for metric in dict.fromkeys(wanted) if metric in scores}


def _constant_f1(share: float) -> float:
    """The F1 of predicting a class for all rows: recall is 1, precision is the share of the class."""
    return 2 * share / (1 + share)


def label_findings(name: str, split: SplitReport, data: TaskData) -> list[Finding]:
    """Make the findings about the labels of a split from its report."""
    findings = []
    if split.scores is not None and split.scores.lowest == split.scores.highest:
        findings.append(_constant(name, f"score {split.scores.lowest:g}"))
    if split.class_counts is not None and data.label_space.is_multilabel:
        findings += _set_findings(name, split)
    elif split.class_counts is not None:
        findings += _class_findings(name, split.class_counts, split.rows, data)
    if split.detectable_metric is not None and (split.detectable_gap is None or split.detectable_gap > SMALL_GAP):
        findings.append(_small(name, split))
    return findings


def _name_findings(name: str, counts: dict[str, int]) -> list[Finding]:
    """Find class names that are probably one class: equal but for case and spaces, or a rare misspelling."""
    names = [label for label, count in counts.items() if count][:_MOST_NAMES]
    alike: dict[str, list[str]] = {}  # by the most frequent name of a class, the others
    for rare in sorted(names, key=lambda label: -counts[label]):
        common = next((other for other in alike if _are_one_class(other, rare, counts)), None)
        if common is None:
            alike[rare] = []
        else:
            alike[common].append(rare)
    findings = []
    for common, others in alike.items():
        if others:
            shown = [f"{common!r} ({counts[common]:,} rows)", *(f"{label!r} ({counts[label]:,})" for label in others)]
            message = f"{name}: the labels {', '.join(shown[:-1])} and {shown[-1]} look like one class."
            cure = f"If they are one, write {common!r} in all of these rows."
            findings.append(Finding("warning", "alike-classes", name, message, cure))
    return findings


def _are_one_class(common: str, rare: str, counts: dict[str, int]) -> bool:
    plain = [" ".join(label.casefold().split()) for label in (common, rare)]
    is_rare = counts[rare] <= max(1, _RARE_SHARE * counts[common])
    return plain[0] == plain[1] or (is_rare and _are_spelt_alike(*plain))


def _are_spelt_alike(first: str, second: str) -> bool:
    """Return whether two words differ by a letter or two; numbers, short names and opposites are different classes."""
    if first.endswith(second) or second.endswith(first):  # acceptable and unacceptable
        return False
    if min(len(first), len(second)) < _FEWEST_LETTERS or any(sign.isdigit() for sign in first + second):
        return False
    return difflib.SequenceMatcher(None, first, second).ratio() >= _ALIKE


def _constant(name: str, what: str) -> Finding:
    cure = "Check the label column; equal labels can neither be learnt from nor measured on."
    return Finding("warning", "constant", name, f"{name}: all rows have the {what}.", cure)


def _set_findings(name: str, split: SplitReport) -> list[Finding]:
    """Findings for multi-label rows: labels that all rows or no rows have."""
    counts, findings = split.class_counts or {}, []
    for label, count in counts.items():
        if count in (0, split.rows):
            level, cure = "note", "Add such rows if the label matters: here its predictions cannot be evaluated."
            if name == "train":
                level, cure = (
                    "warning",
                    "Add such rows, or remove it from the label names: it cannot be learnt.",
                )
            message = f"{name}: {'no row has' if count == 0 else 'all rows have'} the label {label!r}."
            findings.append(Finding(level, "missing-class", name, message, cure))
    return findings


def _class_findings(name: str, counts: dict[str, int], rows: int, data: TaskData) -> list[Finding]:
    present = [label for label, count in counts.items() if count]
    if len(present) == 1:
        return [_constant(name, f"label {present[0]!r}")]
    findings = _name_findings(name, counts) if name == "train" else []
    missing = ", ".join(repr(label) for label in counts if label not in present)
    if missing and name == "train":
        cure = "Add rows of it, or remove it from the label names: it cannot be learnt."
        findings.append(Finding("warning", "missing-class", name, f"{name}: no row has the label {missing}.", cure))
    elif missing:
        cure = "Add rows of it if the label matters: here its predictions cannot be evaluated."
        findings.append(Finding("note", "missing-class", name, f"{name}: no row has the label {missing}.", cure))
    largest = max(counts, key=lambda label: counts[label])
    share = counts[largest] / rows
    if share >= IMBALANCE_SHARE and name != "train":
        by_accuracy = data.metrics[:1] == ("accuracy",)
        message = f"{name}: {percent(share)} of the rows are {largest!r}; always predicting it has that accuracy."
        cure = "Compare by matthews_correlation or F1, and try --class_weights balanced."
        findings.append(Finding("warning" if by_accuracy else "note", "imbalance", name, message, cure))
    return findings


def _small(name: str, split: SplitReport) -> Finding:
    if split.detectable_gap is None:
        message = f"{name}: {split.rows:,} rows are too few to distinguish any two models."
    elif split.detectable_metric == "accuracy":
        message = (
            f"{name}: {split.rows:,} rows will often miss differences below {100 * split.detectable_gap:.1f} points "
            "of accuracy."
        )
    else:
        message = (
            f"{name}: {split.rows:,} rows will often miss differences below {split.detectable_gap:.3f} of correlation."
        )
    cure = "Score on more rows, or compare several seeds before believing a smaller difference."
    return Finding("warning", "small", name, message, cure)
