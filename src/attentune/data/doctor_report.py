"""The report of `attentune doctor`: data classes, and their text format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from attentune.data.dataset import SHOWN_CLASSES, RowSource, shown_label, some_names
from attentune.stats.power import DEFAULT_CORRELATION, DEFAULT_DISAGREEMENT

SUMMARY_WARNINGS = 2
# What the finding on encodings quotes from a text.
_QUOTATION = re.compile(r"(?<=wrong encoding), such as .*$", re.DOTALL)
# Up to this many classes are listed with their rows.
_LISTED_CLASSES = 20
# The most serious first.
FINDING_KINDS = (
    "leak",
    "task-type",
    "label-lists",
    "no-label",
    "line-break",
    "constant",
    "empty",
    "encoding",
    "language",
    "missing-class",
    "alike-classes",
    "conflicts",
    "cut",
    "label-shift",
    "length-shift",
    "vocabulary-shift",
    "time-shift",
    "imbalance",
    "small",
    "duplicates",
)


@dataclass(frozen=True)
class Finding:
    """A finding about the data."""

    level: str  # "warning" (likely to invalidate a result) or "note"
    kind: str  # one of `FINDING_KINDS`
    split: str  # the name of the split
    message: str  # one sentence on what was found
    cure: str  # one sentence on how to fix it
    examples: tuple[str, ...] = ()  # up to three rows, by id and, if known, file and line


@dataclass(frozen=True)
class TokenLengths:
    """Lengths in tokens before truncation, with special tokens."""

    # median, p95, longest: of the split's rows.
    median: float
    p95: float
    longest: int
    cut_share: float  # the share of rows longer than the maximum length


@dataclass(frozen=True)
class ScoreSpread:
    """The scores of a regression split; `std` is the root mean squared error of predicting their mean."""

    mean: float
    std: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class SplitReport:
    """The statistics of one split."""

    rows: int  # all rows
    empty: int  # rows with a text that is empty or white space; the next three counts exclude them
    duplicates: int  # rows with exactly the text (or pair) of an earlier row of the split
    conflicts: int | None = None  # distinct texts with more than one label in the split
    found_in_train: int | None = None  # rows whose text is also in train, ignoring white space and case
    parts: tuple[RowSource, ...] | None = None  # the number of rows by source and weight
    tokens: TokenLengths | None = None  # the lengths in tokens; None if none were given
    class_counts: dict[str, int] | None = None  # rows per class, in the order of the labels
    unlabelled: int | None = None  # multi-label: rows without any label; otherwise None
    guess: str | None = None  # the constant prediction of `guess_scores`: the most frequent class in train
    guess_scores: dict[str, float | None] | None = None  # the scores of that prediction
    scores: ScoreSpread | None = None  # the spread of the scores; only for regression
    detectable_metric: str | None = None  # "accuracy" or "correlation"; None for train and without labels
    detectable_gap: float | None = None  # the minimum detectable difference at 80 % power


@dataclass(frozen=True)
class DoctorReport:
    """The statistics of all splits, and the findings, warnings first."""

    name: str
    task_type: str
    label_names: tuple[str, ...]
    metrics: tuple[str, ...]
    max_length: int
    splits: dict[str, SplitReport]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are likely to invalidate a result."""
        return tuple(finding for finding in self.findings if finding.level == "warning")

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON, with None for undefined numbers."""
        return asdict(self)


def percent(share: float) -> str:
    """Format a share as "12.3 %", or "< 0.1 %" and "> 99.9 %" instead of rounding to 0 or 100."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{100 * share:.1f} %"


def summary_lines(report: DoctorReport) -> list[str]:
    """Format one to six lines for the log of `train`: sizes, lengths, classes, detectable difference, warnings."""
    lines = [_headline(report)]
    scored = next((name for name, split in report.splits.items() if split.detectable_metric), None)
    first = "train" if "train" in report.splits else scored
    if first is not None:
        split, guessed = report.splits[first], scored or first
        lines += [] if split.tokens is None else [f"{first} texts: {_token_text(split.tokens)}"]
        balance = f"{first}: {_balance(split)}; " if split.class_counts else ""
        lines += [balance + line for line in _label_lines(guessed, report.splits[guessed])]
    if scored is not None:
        lines.append(_power_line(scored, report.splits[scored]))
    # The power line above already says that a split is small.
    warnings = [finding for finding in report.warnings if finding.kind != "small"]
    lines += [f"warning: {finding.message}" for finding in warnings[:SUMMARY_WARNINGS]]
    if len(warnings) > SUMMARY_WARNINGS:
        lines[-1] += f" ({len(warnings) - SUMMARY_WARNINGS} more: see `attentune doctor`)"
    return lines


def full_lines(report: DoctorReport) -> list[str]:
    """Format the full report: statistics by split, findings with cures and examples, and assumptions.

    The notes of the task are not included; the caller prints them first.
    """
    lines = [_headline(report)]
    for name, split in report.splits.items():
        lines += ["", f"{name}: {split.rows:,} rows", *(f"  {line}" for line in _split_lines(name, split))]
    lines += ["", "Findings" if report.findings else "Findings: none"]
    for finding in report.findings:
        lines += [f"  {finding.level}: {finding.message}", f"    {finding.cure}"]
        lines += [f"      {example}" for example in finding.examples]
    if any(split.detectable_metric for split in report.splits.values()):
        lines += ["", _assumption(report.task_type)]
    return lines


def sentences_without_texts(findings: Iterable[Finding]) -> list[str]:
    """Return the findings as "warning: ..." or "note: ...", without words of the texts, to be published."""
    return [f"{finding.level}: {_QUOTATION.sub('.', finding.message)}" for finding in findings]


def _headline(report: DoctorReport) -> str:
    kind = report.task_type
    if report.label_names:
        what = "labels, any number per row" if kind == "multi_label" else "classes"
        kind += f" into {len(report.label_names)} {what} ({some_names(report.label_names, _rarest(report.splits))})"
    sizes = ", ".join(f"{name} {split.rows:,}" for name, split in report.splits.items())
    return f"{report.name}: {kind}; rows: {sizes or 'none'}"


def _rarest(splits: Mapping[str, SplitReport]) -> tuple[str, int] | None:
    """Return the label with the fewest rows in train, or else in the first split with labels, and their number."""
    counts = next((split.class_counts for split in splits.values() if split.class_counts), None)
    return None if counts is None else min(counts.items(), key=lambda item: item[1])


def _split_lines(name: str, split: SplitReport) -> list[str]:
    counts = [f"empty texts {split.empty:,}", f"duplicates {split.duplicates:,}"]
    if split.conflicts is not None:
        counts.append(f"texts with different labels {split.conflicts:,}")
    if split.found_in_train is not None:
        counts.append(f"also in train {split.found_in_train:,}")
    lines = [", ".join(counts)]
    if split.parts is not None:
        lines.append("from " + ", ".join(f"{p.source} {p.rows:,} (weight {p.weight:g})" for p in split.parts))
    if split.tokens:
        lines.append(_token_text(split.tokens))
    if split.class_counts:
        ordered = sorted(split.class_counts.items(), key=lambda item: -item[1])
        listed = list(split.class_counts.items()) if len(ordered) <= _LISTED_CLASSES else [*ordered[:3], *ordered[-3:]]
        shares = [f"{shown_label(name)} {count:,} ({percent(count / split.rows)})" for name, count in listed]
        if len(ordered) > _LISTED_CLASSES:
            shares.insert(3, "...")
            shares[0] = f"{len(ordered)}, from the most to the least frequent: {shares[0]}"
        if split.unlabelled is not None:
            shares.append(f"no label {split.unlabelled:,} ({percent(split.unlabelled / split.rows)})")
        lines.append(f"{'classes' if split.unlabelled is None else 'labels'}: " + ", ".join(shares))
    lines += _label_lines("", split)
    if split.detectable_metric:
        lines.append(_power_line("", split))
    return lines


def _balance(split: SplitReport) -> str:
    counts = list((split.class_counts or {}).items())
    if len(counts) > SHOWN_CLASSES:
        most, least = max(counts, key=lambda item: item[1]), min(counts, key=lambda item: item[1])
        ends = [f"{shown_label(name)} {percent(count / split.rows)}" for name, count in (most, least)]
        return f"{len(counts)} labels, from {ends[0]} to {ends[1]}"
    return ", ".join(f"{shown_label(name)} {percent(count / split.rows)}" for name, count in counts)


def _token_text(tokens: TokenLengths) -> str:
    return (
        f"median {tokens.median:.0f} tokens, 95 % have at most {tokens.p95:.0f}, the longest has {tokens.longest:,}; "
        f"{percent(tokens.cut_share)} of the rows will be truncated"
    )


def _label_lines(name: str, split: SplitReport) -> list[str]:
    place = f" on {name}" if name else ""
    if split.scores is not None:
        scores = split.scores
        return [
            f"scores{place} from {scores.lowest:g} to {scores.highest:g}, mean {scores.mean:.3f}, standard deviation "
            f"{scores.std:.3f}; always predicting the mean has an undefined correlation"
        ]
    if split.guess_scores is None:
        return []
    figures = ", ".join(
        f"{metric} {'undefined' if score is None else f'{score:.3f}'}" for metric, score in split.guess_scores.items()
    )
    return [f"always predicting {split.guess!r}{place}: {figures}"]


def _power_line(name: str, split: SplitReport) -> str:
    place = f"{name} has {split.rows:,} row{'' if split.rows == 1 else 's'}: " if name else ""
    if split.detectable_gap is None:
        return f"{place}too few to distinguish two models"
    if split.detectable_metric == "accuracy":
        gap = f"{100 * split.detectable_gap:.1f} points of accuracy"
    else:
        gap = f"{split.detectable_gap:.3f} of correlation"
    return f"{place}two models must differ by about {gap} for a significant difference (80 % power)"


def _assumption(task_type: str) -> str:
    if task_type == "regression":
        return (
            f"Detectable differences: Fisher's z at the 5 % level, above a correlation of "
            f"{DEFAULT_CORRELATION:g}, as if the two models were independent (an upper bound)."
        )
    return (
        f"Detectable differences: McNemar's test at the 5 % level, for two models of which exactly one is "
        f"right on {100 * DEFAULT_DISAGREEMENT:.0f} % of the rows."
    )
