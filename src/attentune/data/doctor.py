"""`examine`: check the rows of a task for leaks, conflicting labels, truncated texts and too few rows."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attentune.data.dataset import LabelSpace, TaskData, TextRows, shown_label
from attentune.data.dates import dates_in_common
from attentune.data.doctor_report import (
    FINDING_KINDS,
    DoctorReport,
    Finding,
    ScoreSpread,
    SplitReport,
    TokenLengths,
    percent,
)
from attentune.data.labels import NO_LABEL, found_separator, label_key, parse_number
from attentune.data.splits import normalised
from attentune.data.tables import quote
from attentune.stats.power import minimum_detectable_accuracy_difference, minimum_detectable_correlation_difference

MAX_EXAMPLES = 3
CUT_WARNING_SHARE = 0.05
CONFLICT_WARNING_SHARE = 0.001

# One entry per row; None for a row with an empty text, which is not reported as a duplicate too.
Keys = list[tuple[str, ...] | None]


def examine(
    data: TaskData,
    *,
    token_lengths: Mapping[str, np.ndarray] | None = None,
    max_length: int = 128,
    english_only: bool = False,
) -> DoctorReport:
    """Examine all splits of a task."""
    train = data.splits.get("train")
    train_places = None if train is None else _first_places(_keys(train, normalised))
    splits: dict[str, SplitReport] = {}
    findings: list[Finding] = []
    for name, rows in data.splits.items():
        lengths = _checked_lengths(name, rows, token_lengths or {})
        splits[name], split_findings = _examine_texts(name, rows, data.label_space, lengths, max_length)
        if name != "train" and train is not None and train_places is not None:
            leaked = _leaked(rows, train_places)
            splits[name] = replace(splits[name], found_in_train=len(leaked))
            split_findings += _leak_findings(name, rows, train, leaked)
            split_findings += difference_findings(name, rows, train, data.label_space)
        if rows.labels is not None and len(rows):
            splits[name] = replace(splits[name], **label_facts(name, rows.labels, train, data))
            split_findings += label_findings(name, splits[name], data)
        findings += split_findings
    if data.doubt is not None:
        findings.append(Finding("warning", "task-type", "train", data.doubt[0], data.doubt[1]))
    if english_only and train is not None:
        findings += language_findings("train", train)
    return DoctorReport(
        name=data.name,
        task_type=data.label_space.task_type,
        label_names=data.label_space.names,
        metrics=data.metrics,
        max_length=max_length,
        splits=splits,
        findings=tuple(sorted(findings, key=_gravity)),
        notes=data.notes,
    )


def _gravity(finding: Finding) -> tuple[bool, int]:
    return finding.level != "warning", FINDING_KINDS.index(finding.kind)


def _examine_texts(
    name: str, rows: TextRows, space: LabelSpace, lengths: np.ndarray | None, max_length: int
) -> tuple[SplitReport, list[Finding]]:
    """Examine the texts of one split."""
    keys = _keys(rows, str)
    empty = [place for place, key in enumerate(keys) if key is None]
    repeated = _repeated(keys)
    conflicting = None if rows.labels is None else _conflicting(rows.labels, repeated, space)
    report = SplitReport(
        rows=len(rows),
        empty=len(empty),
        duplicates=sum(len(places) - 1 for places in repeated),
        conflicts=None if conflicting is None else len(conflicting),
        parts=None if rows.sources is None else tuple(rows.row_sources()),
        tokens=None if lengths is None else _token_lengths(lengths, max_length),
    )
    findings = _empty_findings(name, rows, empty) + _encoding_findings(name, rows)
    findings += _repeat_findings(name, rows, repeated, conflicting or [])
    if lengths is not None and report.tokens is not None and report.tokens.cut_share > 0:
        findings.append(_cut_finding(name, rows, lengths, report.tokens, max_length))
    return report, findings


def _keys(rows: TextRows, change: Callable[[str], str]) -> Keys:
    columns = [rows.texts] if rows.pairs is None else [rows.texts, rows.pairs]
    # str.isspace is False for an empty text.
    return [
        None if any(not text or text.isspace() for text in texts) else tuple(map(change, texts))
        for texts in zip(*columns, strict=True)
    ]


def _first_places(keys: Keys) -> dict[tuple[str, ...], int]:
    places: dict[tuple[str, ...], int] = {}
    for place, key in enumerate(keys):
        if key is not None:
            places.setdefault(key, place)
    return places


def _repeated(keys: Keys) -> list[list[int]]:
    """Group the rows with equal texts, in the order of their first rows."""
    first = _first_places(keys)
    groups: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        if key is not None and first[key] != place:
            groups.setdefault(first[key], [first[key]]).append(place)
    return [groups[place] for place in sorted(groups)]


def _conflicting(labels: np.ndarray, repeated: list[list[int]], space: LabelSpace) -> list[list[int]]:
    """The groups of repeated texts with different labels; scores differ by more than one standard deviation."""
    allowed = float(np.std(labels)) if space.task_type == "regression" and len(labels) else 0.0
    return [places for places in repeated if np.ptp(labels[places], axis=0).max() > allowed]


def _leaked(rows: TextRows, train_places: Mapping[tuple[str, ...], int]) -> list[tuple[int, int]]:
    """(row here, row in train) for each row whose text is in train."""
    keys = enumerate(_keys(rows, normalised))
    return [(place, train_places[key]) for place, key in keys if key is not None and key in train_places]


def _checked_lengths(name: str, rows: TextRows, token_lengths: Mapping[str, np.ndarray]) -> np.ndarray | None:
    if name not in token_lengths:
        return None
    lengths = np.asarray(token_lengths[name])
    if lengths.shape != (len(rows),):
        raise ValueError(
            f"token_lengths[{name!r}] has the shape {lengths.shape}; expected one length a row: {len(rows)}"
        )
    return lengths if len(lengths) else None


def _token_lengths(lengths: np.ndarray, max_length: int) -> TokenLengths:
    return TokenLengths(
        median=float(np.median(lengths)),
        p95=float(np.percentile(lengths, 95)),
        longest=int(lengths.max()),
        cut_share=float(np.mean(lengths > max_length)),
    )


def _place(rows: TextRows, place: int) -> str:
    has_place = rows.lines is not None or rows.sources is not None
    return f"row {rows.ids[place]}" + (f" ({rows.where(place)})" if has_place else "")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _empty_findings(name: str, rows: TextRows, empty: list[int]) -> list[Finding]:
    if not empty:
        return []
    return [
        Finding(
            "warning",
            "empty",
            name,
            f"{name}: {_count(len(empty), 'row')} without any text.",
            "Fill in the texts, or remove these rows.",
            tuple(_place(rows, place) for place in empty[:MAX_EXAMPLES]),
        )
    ]


def _encoding_findings(name: str, rows: TextRows) -> list[Finding]:
    """Find texts whose UTF-8 was read as Windows-1252 ("schÃ¶n" for "schön") or whose characters were replaced."""
    columns = [rows.texts] if rows.pairs is None else [rows.texts, rows.pairs]
    words = [next(_damaged_words(texts), None) for texts in zip(*columns, strict=True)]
    damaged = [place for place, word in enumerate(words) if word is not None]
    if not damaged:
        return []
    return [
        Finding(
            "warning",
            "encoding",
            name,
            f"{name}: {_count(len(damaged), 'row')} with characters of a wrong encoding, such as"
            f" {quote(words[damaged[0]] or '')}.",
            "Export the texts again as UTF-8, or repair them (the package ftfy does).",
            tuple(_place(rows, place) for place in damaged[:MAX_EXAMPLES]),
        )
    ]


def _damaged_words(texts: Iterable[str]) -> Iterator[str]:
    """Yield the words that hold replacement characters, or are UTF-8 that was read as Windows-1252 or Latin-1."""
    for word in (word for text in texts if not text.isascii() for word in text.split()):
        if "\ufffd" in word or any(_decodes_as_utf8(word, encoding) for encoding in ("cp1252", "latin-1")):
            yield word


def _decodes_as_utf8(word: str, encoding: str) -> bool:
    try:
        return word.encode(encoding).decode("utf-8") != word
    except UnicodeError:
        return False


def _repeat_findings(
    name: str, rows: TextRows, repeated: list[list[int]], conflicting: list[list[int]]
) -> list[Finding]:
    def examples(groups: list[list[int]]) -> tuple[str, ...]:
        return tuple(" and ".join(_place(rows, place) for place in places[:2]) for places in groups[:MAX_EXAMPLES])

    findings = []
    if conflicting:
        message = (
            f"{name}: {_count(len(conflicting), 'text')} in more than one row, with labels that contradict each other."
        )
        cure = "Correct the labels, or remove these rows: no model can predict all of them correctly."
        conflicts = [[places[0], _first_other(rows, places)] for places in conflicting]
        share = sum(map(len, conflicting)) / len(rows)
        level = "warning" if share >= CONFLICT_WARNING_SHARE else "note"
        findings.append(Finding(level, "conflicts", name, message, cure, examples(conflicts)))
    if repeated:
        extra = sum(len(places) - 1 for places in repeated)
        message = f"{name}: {_count(extra, 'row')} with the text of an earlier row ({percent(extra / len(rows))})."
        cure = "Remove the repetitions, unless they are meant as weights."
        findings.append(Finding("note", "duplicates", name, message, cure, examples(repeated)))
    return findings


def _first_other(rows: TextRows, places: list[int]) -> int:
    """The row whose label differs most from that of the first row."""
    labels = np.asarray(rows.labels)[places]
    return places[int(np.argmax(np.abs(labels - labels[0]).reshape(len(places), -1).sum(axis=1)))]


def _leak_findings(name: str, rows: TextRows, train: TextRows, leaked: list[tuple[int, int]]) -> list[Finding]:
    if not leaked:
        return []
    return [
        Finding(
            "warning",
            "leak",
            name,
            f"{name}: {_count(len(leaked), 'row')} also in train ({percent(len(leaked) / len(rows))}), "
            "white space and case ignored: memorised rows inflate the score.",
            "Remove these rows from train."
            if rows.source != train.source
            else "Both are cut from one file with too few different texts to separate: add rows, or give a"
            " --validation_file.",
            tuple(f"{_place(rows, here)} and train {_place(train, there)}" for here, there in leaked[:MAX_EXAMPLES]),
        )
    ]


def _cut_finding(name: str, rows: TextRows, lengths: np.ndarray, tokens: TokenLengths, max_length: int) -> Finding:
    longest_first = np.argsort(-lengths, kind="stable")[:MAX_EXAMPLES]
    return Finding(
        "warning" if tokens.cut_share >= CUT_WARNING_SHARE else "note",
        "cut",
        name,
        f"{name}: {percent(tokens.cut_share)} of the rows have more than {max_length} tokens and will be truncated.",
        f"Raise --max_length if their ends matter (the longest row has {tokens.longest:,} tokens); it takes more time.",
        tuple(f"{_place(rows, int(p))}: {int(lengths[p]):,} tokens" for p in longest_first if lengths[p] > max_length),
    )


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


# Texts that are looked at, with so many letters. Of English data sets, 0.83 and more of the texts are recognised.
_TEXTS, _FEWEST, _LETTERS, _ENGLISH_SHARE = 200, 10, 12, 0.5


def language_findings(name: str, rows: TextRows) -> list[Finding]:
    """Warn if a split is not in English."""
    texts = [text for text in rows.texts if sum(map(str.isalpha, text)) >= _LETTERS]
    sample = texts[:: max(1, len(texts) // _TEXTS)][:_TEXTS]
    if len(sample) < _FEWEST or _is_english("\n".join(sample)):
        return []
    share = sum(map(_is_english, sample)) / len(sample)
    if share >= _ENGLISH_SHARE:
        return []
    return [
        Finding(
            "warning",
            "language",
            name,
            f"{name}: the texts do not look English (of {len(sample)}, {share:.0%} do), but the embedded encoder is.",
            "Take an encoder for their language, or a multilingual one, such as --model_name_or_path"
            " FacebookAI/xlm-roberta-base or intfloat/multilingual-e5-small. `attentune list encoders` has some, and"
            " how to get them without a network.",
        )
    ]


def _is_english(text: str) -> bool:
    from chardet import detect

    return bool(detect(text.encode("utf-8"))["language"] == "en")
