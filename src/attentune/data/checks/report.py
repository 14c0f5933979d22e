"""What the doctor found, as data, and the plain lines that say it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from attentune.data.dataset import RowSource
from attentune.stats.power import DEFAULT_CORRELATION, DEFAULT_DISAGREEMENT

SUMMARY_WARNINGS = 2
SHOWN_CLASSES = 6
# What spoils a result most comes first.
FINDING_KINDS = (
    "leak",
    "constant",
    "empty",
    "missing-class",
    "conflicts",
    "cut",
    "imbalance",
    "small",
    "duplicates",
)


@dataclass(frozen=True)
class Finding:
    """Something about the data that a user should know.

    Attributes:
        level: "warning" (likely to spoil a result) or "note".
        kind: a short name for programs, one of `FINDING_KINDS`.
        split: the split it is about.
        message: one sentence, what was found.
        cure: one sentence, how to mend it.
        examples: up to three rows, each by its id and, where known, its file and line.
    """

    level: str
    kind: str
    split: str
    message: str
    cure: str
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class TokenLengths:
    """Lengths in tokens before anything is cut, special tokens counted.

    Attributes:
        median, p95, longest: of the split's rows.
        cut_share: the share of rows longer than the maximum length.
    """

    median: float
    p95: float
    longest: int
    cut_share: float


@dataclass(frozen=True)
class ScoreSpread:
    """The scores of a regression split: `std` is the root mean squared error of always guessing their mean."""

    mean: float
    std: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class SplitReport:
    """The figures of one split.

    Attributes:
        rows: all rows.
        empty: rows in which a text holds nothing but white space; the next three counts leave them out.
        duplicates: rows whose text (or pair) stands in an earlier row of the split, letter for letter.
        conflicts: different texts that stand in the split with more than one label (regression: with scores more than
            one standard deviation apart); None without labels.
        found_in_train: rows whose text also stands in train, white space and case ignored; None for train itself.
        parts: how many rows of which weight come from where; None where all are of one source.
        tokens: None where no token lengths were given.
        class_counts: rows a class, in the order of the labels; None without labels and for regression.
        unlabelled: rows without any label, where a row may have several; else None.
        guess: the class that is always guessed for `guess_scores`: the most frequent one in train.
        guess_scores: what that guess scores. None stands for a score that is undefined (any correlation of a constant).
            "f1_all_positive" is the F1 of always guessing the second of two classes, where F1 is among the metrics.
        scores: the spread of the scores; None but for regression.
        detectable_metric: "accuracy" or "correlation"; None for train and without labels.
        detectable_gap: the smallest difference in it that these rows show at 80 % power (see `stats.power` for what is
            assumed); None where they can show none.
    """

    rows: int
    empty: int
    duplicates: int
    conflicts: int | None = None
    found_in_train: int | None = None
    parts: tuple[RowSource, ...] | None = None
    tokens: TokenLengths | None = None
    class_counts: dict[str, int] | None = None
    unlabelled: int | None = None
    guess: str | None = None
    guess_scores: dict[str, float | None] | None = None
    scores: ScoreSpread | None = None
    detectable_metric: str | None = None
    detectable_gap: float | None = None


@dataclass(frozen=True)
class DoctorReport:
    """The figures of each split, and what a user should know, the warnings first."""

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
        """The findings that are likely to spoil a result."""
        return tuple(finding for finding in self.findings if finding.level == "warning")

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dicts, strings and numbers, with None for what is undefined: ready for JSON."""
        return asdict(self)


def percent(share: float) -> str:
    """A share as "12.3 %"; what would round to 0 or 100 without being it is shown as "< 0.1 %" or "> 99.9 %"."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{100 * share:.1f} %"


def summary_lines(report: DoctorReport) -> list[str]:
    """One to six lines for the start of `train`: sizes, lengths, classes, what can be told apart, worst warnings."""
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
    # What is too small to tell models apart has just been said.
    warnings = [finding for finding in report.warnings if finding.kind != "small"]
    lines += [f"warning: {finding.message}" for finding in warnings[:SUMMARY_WARNINGS]]
    if len(warnings) > SUMMARY_WARNINGS:
        lines[-1] += f" ({len(warnings) - SUMMARY_WARNINGS} more: see `attentune doctor`)"
    return lines


def full_lines(report: DoctorReport) -> list[str]:
    """All figures, split by split, then each finding with its cure and its rows, then what the figures assume.

    The task's own notes are left out: whoever read the data has them, and says them first.
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


def _headline(report: DoctorReport) -> str:
    kind = report.task_type
    if report.label_names:
        shown = ", ".join(report.label_names[:SHOWN_CLASSES])
        shown += ", ..." if len(report.label_names) > SHOWN_CLASSES else ""
        what = "labels, any number of them a row" if kind == "multi_label" else "classes"
        kind += f" into {len(report.label_names)} {what} ({shown})"
    sizes = ", ".join(f"{name} {split.rows:,}" for name, split in report.splits.items())
    return f"{report.name}: {kind}; rows: {sizes or 'none'}"


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
        shares = [f"{label} {count:,} ({percent(count / split.rows)})" for label, count in split.class_counts.items()]
        if split.unlabelled is not None:
            shares.append(f"no label {split.unlabelled:,} ({percent(split.unlabelled / split.rows)})")
        lines.append(f"{'classes' if split.unlabelled is None else 'labels'}: " + ", ".join(shares))
    lines += _label_lines("", split)
    if split.detectable_metric:
        lines.append(_power_line("", split))
    return lines


def _balance(split: SplitReport) -> str:
    counts = list((split.class_counts or {}).items())
    shown = [f"{label} {percent(count / split.rows)}" for label, count in counts[:SHOWN_CLASSES]]
    return ", ".join(shown) + (", ..." if len(counts) > SHOWN_CLASSES else "")


def _token_text(tokens: TokenLengths) -> str:
    return (
        f"median {tokens.median:.0f} tokens, 95 % have at most {tokens.p95:.0f}, the longest has {tokens.longest:,}; "
        f"{percent(tokens.cut_share)} of the rows will be cut"
    )


def _label_lines(name: str, split: SplitReport) -> list[str]:
    place = f" on {name}" if name else ""
    if split.scores is not None:
        scores = split.scores
        return [
            f"scores{place} from {scores.lowest:g} to {scores.highest:g}, mean {scores.mean:.3f}, standard deviation "
            f"{scores.std:.3f}; always guessing the mean has no correlation (undefined)"
        ]
    if split.guess_scores is None:
        return []
    figures = ", ".join(
        f"{metric} {'undefined' if score is None else f'{score:.3f}'}" for metric, score in split.guess_scores.items()
    )
    return [f"always guessing {split.guess!r}{place}: {figures}"]


def _power_line(name: str, split: SplitReport) -> str:
    place = f"{name} has {split.rows:,} row{'' if split.rows == 1 else 's'}: " if name else ""
    if split.detectable_gap is None:
        return f"{place}too few to tell two models apart"
    if split.detectable_metric == "accuracy":
        gap = f"{100 * split.detectable_gap:.1f} points of accuracy"
    else:
        gap = f"{split.detectable_gap:.3f} of correlation"
    return f"{place}two models must differ by about {gap} to be told apart (80 % power)"


def _assumption(task_type: str) -> str:
    if task_type == "regression":
        return (
            f"Differences that can be told apart: Fisher's z at the 5 % level, above a correlation of "
            f"{DEFAULT_CORRELATION:g}, as if the two models were independent (an upper bound)."
        )
    return (
        f"Differences that can be told apart: McNemar's test at the 5 % level, for two models of which exactly one is "
        f"right on {100 * DEFAULT_DISAGREEMENT:.0f} % of the rows."
    )
