"""Label statistics of a split: class balance, baseline scores and the minimum detectable difference."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attentune.data.checks.report import Finding, ScoreSpread, SplitReport, percent
from attentune.data.dataset import LabelSpace, TaskData, TextRows, shown_label
from attentune.data.label_cells import found_separator
from attentune.data.labels import NO_LABEL, label_key, parse_number
from attentune.data.readers.table import quote
from attentune.stats.power import minimum_detectable_accuracy_difference, minimum_detectable_correlation_difference

IMBALANCE_SHARE = 0.8
SMALL_GAP = 0.05
# Class names of which one may be a misspelling of the other: how alike and how long they are, how rare the one is, and
# how many names are compared.
_ALIKE, _FEWEST_LETTERS, _RARE_SHARE, _MOST_NAMES = 0.85, 5, 0.1, 300
# More groups of alike names than this are one finding.
_MOST_FINDINGS = 3


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
    """Find class names that are lists of others, hold a line break, may mean no label, or are probably one class."""
    present = [label for label, count in counts.items() if count]
    separator = found_separator(present)
    lists = [] if separator is None else [label for label in present if separator in label]
    findings = _no_label_findings(name, counts)
    if lists:
        message = f"{name}: {len(lists)} of the {len(present)} classes are lists of labels, such as {quote(lists[0])}."
        cure = f"Use --task_type multi_label --label_separator '{shown_label(str(separator))}', if rows have several."
        findings.append(Finding("warning", "label-lists", name, message, cure))
    else:
        findings += _line_break_findings(name, present)
    return findings + _alike_findings(name, {label: counts[label] for label in present if label not in lists})


def _no_label_findings(name: str, counts: dict[str, int]) -> list[Finding]:
    """Find rare classes whose name often means that there is no label."""
    most = _RARE_SHARE * sum(counts.values())
    rare = [label for label, count in counts.items() if label.lower() in NO_LABEL and 0 < count <= most]
    return [
        Finding(
            "warning",
            "no-label",
            name,
            f"{name}: the rare class {label!r} ({counts[label]:,} rows) may mean that there is no label.",
            f"If it means that, leave its rows out: --ignore_labels={label}.",
        )
        for label in rare
        if not _is_ordered(counts, label)
    ]


def _is_ordered(counts: dict[str, int], label: str) -> bool:
    """Whether -1 is a number of its own: -1, 1 or -1, 0, 1."""
    return label in ("-1", "-1.0") and {label_key(other) for other in counts} <= {"-1", "0", "1"}


def _line_break_findings(name: str, labels: Sequence[str]) -> list[Finding]:
    broken = [label for label in labels if "\n" in label or "\r" in label]
    if not broken:
        return []
    message = f"{name}: {len(broken):,} label{'s' * (len(broken) > 1)} with a line break: {_examples(broken)}."
    cure = "If it separates labels, use --task_type multi_label --label_separator '\\n'; otherwise rename them."
    return [Finding("warning", "line-break", name, message, cure)]


def _examples(labels: Sequence[str]) -> str:
    return ", ".join(map(quote, labels[:3])) + (", ..." if len(labels) > 3 else "")


def _alike_findings(name: str, counts: dict[str, int]) -> list[Finding]:
    """Find class names that are probably one class: equal but for case and spaces, or a rare misspelling."""
    names = list(counts)[:_MOST_NAMES]
    alike: dict[str, list[str]] = {}  # by the most frequent name of a class, the others
    for rare in sorted(names, key=lambda label: -counts[label]):
        common = next((other for other in alike if _are_one_class(other, rare, counts)), None)
        if common is None:
            alike[rare] = []
        else:
            alike[common].append(rare)
    groups = {common: others for common, others in alike.items() if others}
    if len(groups) > _MOST_FINDINGS:
        listed = ", ".join(f"{quote(common)} and {quote(others[0])}" for common, others in list(groups.items())[:3])
        message = f"{name}: {len(groups)} groups of labels look like one class each, such as {listed}."
        cure = "If they are, write one name in all rows of a class."
        return [Finding("warning", "alike-classes", name, message, cure)]
    findings = []
    for common, others in groups.items():
        if others:
            shown = [f"{common!r} ({counts[common]:,} rows)", *(f"{label!r} ({counts[label]:,})" for label in others)]
            message = f"{name}: the labels {', '.join(shown[:-1])} and {shown[-1]} look like one class."
            cure = f"If they are one, write {common!r} in all of these rows."
            findings.append(Finding("warning", "alike-classes", name, message, cure))
    return findings


def _are_one_class(common: str, rare: str, counts: dict[str, int]) -> bool:
    plain = [" ".join(label.casefold().split()) for label in (common, rare)]
    is_rare = counts[rare] <= max(1, _RARE_SHARE * counts[common])
    numbers = [parse_number(label) for label in plain]
    are_equal = plain[0] == plain[1] or (None not in numbers and numbers[0] == numbers[1])
    return are_equal or (is_rare and _are_spelt_alike(*plain))


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
    counts = split.class_counts or {}
    findings = _no_label_findings(name, counts) + _line_break_findings(name, list(counts)) if name == "train" else []
    for which, rows in (("no row has", 0), ("all rows have", split.rows)):
        labels = [label for label, count in counts.items() if count == rows]
        if labels:
            findings.append(_missing(name, which, labels, len(counts)))
    return findings


def _missing(name: str, which: str, labels: Sequence[str], every: int) -> Finding:
    """Return the finding on labels that no row or all rows of a split have."""
    it = "it" if len(labels) == 1 else "them"
    what = (
        f"the label {labels[0]!r}" if len(labels) == 1 else f"{len(labels)} of the {every} labels ({_examples(labels)})"
    )
    level, cure = "note", f"Add rows of {it} if that matters: here such predictions cannot be evaluated."
    if name == "train":
        level, cure = "warning", f"Add rows, or remove {it} from the label names: there is nothing to learn {it} from."
    return Finding(level, "missing-class", name, f"{name}: {which} {what}.", cure)


def _class_findings(name: str, counts: dict[str, int], rows: int, data: TaskData) -> list[Finding]:
    present = [label for label, count in counts.items() if count]
    if len(present) == 1:
        return [_constant(name, f"label {present[0]!r}")]
    findings = _name_findings(name, counts) if name == "train" else []
    missing = [label for label in counts if label not in present]
    if missing:
        findings.append(_missing(name, "no row has", missing, len(counts)))
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
