"""`examine`: the statistics of each split of a task, and what `CHECKS` find wrong with its rows."""

import contextlib
import difflib
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from attentune.data.cues import Cue, find_cues, ignore_flag
from attentune.data.dataset import Finding, TaskData, TextRows, shown_label, some_names
from attentune.data.labels import NO_LABEL, found_separator, label_key, parse_number
from attentune.data.splits import normalised
from attentune.data.tables import listed, quote
from attentune.stats.power import (
    DEFAULT_CORRELATION,
    DEFAULT_DISAGREEMENT,
    minimum_detectable_accuracy_difference,
    minimum_detectable_correlation_difference,
)

MAX_EXAMPLES, SUMMARY_WARNINGS = 3, 2
# Up to this many classes are listed with their rows.
_LISTED_CLASSES = 20
# A finding is a warning, not a note, from these shares of the rows on; a split is small above this gap.
_CUT_SHARE, _CONFLICT_SHARE, _IMBALANCE_SHARE, _SMALL_GAP = 0.05, 0.001, 0.8, 0.05
# A class name may be a misspelling of another: how alike and long they are, how rare it is, how many are compared.
_ALIKE, _FEWEST_LETTERS, _RARE_SHARE, _MOST_NAMES = 0.85, 5, 0.1, 2000
# A difference from train is shown if chance makes it once in a thousand comparisons and it is at least this large: in
# points of a label's share, in standard deviations of the scores, as a ratio of median lengths, in points of unseen
# words above those of a tenth of train.
_P, _LEAST_SHARE, _LEAST_SCORE, _LEAST_RATIO, _LEAST_UNSEEN = 0.001, 0.05, 0.2, 1.25, 0.05
_FEWEST_ROWS, _MOST_ROWS = 20, 5000
_WORD = re.compile(r"\w+")
_JOINT = re.compile(r"(?<=[^\W\d_])[\s_./-]+(?=[^\W\d_])")
# Texts that are looked at for their language, with so many letters. Of English data sets 0.83 and more are recognised.
_TEXTS, _FEWEST, _LETTERS, _ENGLISH_SHARE = 200, 10, 12, 0.5


@dataclass(frozen=True)
class SplitReport:
    rows: int  # all rows
    empty: int  # rows with a text that is empty or white space; the next three counts exclude them
    duplicates: int  # rows with exactly the text (or pair) of an earlier row of the split
    conflicts: int | None = None  # distinct texts with more than one label in the split
    found_in_train: int | None = None  # rows whose text is also in train, ignoring white space and case
    # The lengths in tokens before truncation: median, p95, longest; and cut_share, of rows above the maximum length.
    tokens: Mapping[str, float] | None = None
    class_counts: Mapping[str, int] | None = None  # rows per class, in the order of the labels
    unlabelled: int | None = None  # multi-label: rows without any label; otherwise None
    guess: str | None = None  # the most frequent class in train
    guess_accuracy: float | None = None  # the accuracy of always predicting it
    scores: Mapping[str, float] | None = None  # regression: mean, std, lowest and highest score
    detectable_metric: str | None = None  # "accuracy" or "correlation"; None for train and without labels
    detectable_gap: float | None = None  # the minimum detectable difference at 80 % power


@dataclass(frozen=True)
class DoctorReport:
    """The statistics of all splits, and the findings, warnings first."""

    name: str
    task_type: str
    label_names: tuple[str, ...]
    splits: dict[str, SplitReport]
    findings: tuple[Finding, ...]
    cues: tuple[Cue, ...] = ()  # of the training rows

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are likely to invalidate a result."""
        return tuple(finding for finding in self.findings if finding.level == "warning")


def examine(
    data: TaskData,
    *,
    token_lengths: Mapping[str, np.ndarray] | None = None,
    max_length: int = 128,
    english_only: bool = False,
) -> DoctorReport:
    keys = _keys(data.splits["train"], normalised) if "train" in data.splits else []
    first = {key: row for key, row in zip(reversed(keys), reversed(range(len(keys))), strict=True) if key is not None}
    lengths = token_lengths or {}
    splits = [_Split(name, data, first, lengths.get(name), max_length, english_only) for name in data.splits]
    findings = [
        Finding(level, kind, split.name, f"{split.name}: {message}", cure, tuple(examples[:MAX_EXAMPLES]))
        for kind, check in CHECKS.items()
        for split in splits
        for level, message, cure, examples in check(split)
    ]
    return DoctorReport(
        name=data.name,
        task_type=data.label_space.task_type,
        label_names=data.label_space.names,
        splits={split.name: split.report() for split in splits},
        findings=tuple(sorted(findings, key=lambda finding: finding.level != "warning")),
        cues=tuple(cue for split in splits for cue in split.cues[0]),
    )


class _Split:
    def __init__(
        self,
        name: str,
        data: TaskData,
        in_train: Mapping[tuple[str, ...], int],
        lengths: np.ndarray | None,
        max_length: int,
        english_only: bool,
    ) -> None:
        self.name, self.data, self.rows, self.space = name, data, data.splits[name], data.label_space
        self.max_length, self.english_only = max_length, english_only
        self.train = data.splits.get("train") if name != "train" else None
        self.lengths = lengths if lengths is not None and len(lengths) else None
        self.labels = self.rows.labels if len(self.rows) else None
        keys = _keys(self.rows, str)
        self.empty = [row for row, key in enumerate(keys) if key is None]
        self.repeated = _repeated(keys)
        self.conflicting: list[list[int]] = []
        if self.labels is not None:  # scores differ by more than one standard deviation
            allowed = float(np.std(self.labels)) if self.space.task_type == "regression" else 0.0
            labels = self.labels
            self.conflicting = [rows for rows in self.repeated if np.ptp(labels[rows], axis=0).max() > allowed]
        self.leaked: list[tuple[int, int]] = []  # row here, row in train
        if self.train is not None:
            there = enumerate(_keys(self.rows, normalised))
            self.leaked = [(row, in_train[key]) for row, key in there if key is not None and key in in_train]
        self.counts: dict[str, int] | None = None
        if self.labels is not None and self.space.task_type != "regression":
            self.counts = dict(zip(self.space.names, self.ones(self.labels).sum(axis=0).tolist(), strict=True))

    def ones(self, labels: np.ndarray) -> np.ndarray:
        """Return (N, C): whether each row has each label."""
        return labels == 1 if labels.ndim == 2 else labels[:, None] == np.arange(self.space.num_labels)

    def where(self, row: int) -> str:
        return _place(self.rows, row)

    def share(self, count: int) -> str:
        return percent(count / len(self.rows))

    @property
    def train_counts(self) -> dict[str, int]:
        """The rows of each class that train has; empty for other splits."""
        counts = self.counts if self.name == "train" and self.counts is not None else {}
        return {label: count for label, count in counts.items() if count}

    @functools.cached_property
    def words(self) -> tuple[list[list[str]], list[list[str]]]:
        """Return the words of up to 5,000 rows of this split and of train, evenly spread; none for train itself."""
        return ([], []) if self.train is None else (_words(self.rows), _words(self.train))

    @functools.cached_property
    def cues(self) -> tuple[tuple[Cue, ...], int]:
        """The cues of train, and the number of rows that were looked at; none of other splits."""
        if self.name != "train" or self.labels is None or self.space.task_type == "regression":
            return (), 0
        return find_cues(self.rows, self.ones(self.labels))

    def detectable_gap(self) -> float | None:
        """Return the minimum detectable difference of these rows; None if they show none."""
        is_score = self.space.task_type == "regression"
        detectable = minimum_detectable_correlation_difference if is_score else minimum_detectable_accuracy_difference
        gap = detectable(len(self.rows))
        return None if math.isnan(gap) else gap

    def report(self) -> SplitReport:
        labels, lengths, is_score = self.labels, self.lengths, self.space.task_type == "regression"
        guess = scores = tokens = None
        if labels is not None and is_score:
            scores = {"mean": labels.mean(), "std": labels.std(), "lowest": labels.min(), "highest": labels.max()}
        elif labels is not None and labels.ndim == 1:
            train = None if self.train is None else self.train.labels
            guess = int(np.bincount(train if train is not None and len(train) else labels).argmax())
        if lengths is not None:
            tokens = {"median": np.median(lengths), "p95": np.percentile(lengths, 95)}
            tokens |= {"longest": float(lengths.max()), "cut_share": np.mean(lengths > self.max_length)}
        is_scored = labels is not None and labels.ndim == 1 and self.name != "train"
        return SplitReport(
            rows=len(self.rows),
            empty=len(self.empty),
            duplicates=sum(len(rows) - 1 for rows in self.repeated),
            conflicts=None if self.rows.labels is None else len(self.conflicting),
            found_in_train=None if self.train is None else len(self.leaked),
            tokens=tokens,
            class_counts=self.counts,
            unlabelled=int((labels.sum(axis=1) == 0).sum()) if labels is not None and labels.ndim == 2 else None,
            guess=None if guess is None else self.space.names[guess],
            guess_accuracy=None if guess is None else float(np.mean(labels == guess)),
            scores=scores,
            detectable_metric=("correlation" if is_score else "accuracy") if is_scored else None,
            detectable_gap=self.detectable_gap() if is_scored else None,
        )


def _words(rows: TextRows) -> list[list[str]]:
    places = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(int)).tolist()
    pairs = rows.pairs or ("",) * len(rows)
    return [_WORD.findall(f"{rows.texts[place]} {pairs[place]}".casefold()) for place in places]


# The texts of each row; None for a row with an empty text, which is not reported as a duplicate too.
_Keys = list[tuple[str, ...] | None]


def _keys(rows: TextRows, change: Callable[[str], str]) -> _Keys:
    columns = [rows.texts] if rows.pairs is None else [rows.texts, rows.pairs]
    # str.isspace is False for an empty text.
    return [
        None if any(not text or text.isspace() for text in texts) else tuple(map(change, texts))
        for texts in zip(*columns, strict=True)
    ]


def _repeated(keys: _Keys) -> list[list[int]]:
    """Group the rows with equal texts, in the order of their first rows."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for row, key in enumerate(keys):
        if key is not None:
            groups.setdefault(key, []).append(row)
    return [rows for rows in groups.values() if len(rows) > 1]


def percent(share: float) -> str:
    """Format a share as "12.3 %", or "< 0.1 %" and "> 99.9 %" instead of rounding to 0 or 100."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{100 * share:.1f} %"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


# The checks. Each yields what it finds in a split: level, sentence without the split's name, cure, examples.
_Found = Iterator[tuple[str, str, str, Sequence[str]]]


def _leak(split: _Split) -> _Found:
    if split.train is None or not split.leaked:
        return
    count = f"{_count(len(split.leaked), 'row')} also in train ({split.share(len(split.leaked))})"
    cure = "Remove these rows from train."
    if split.rows.source == split.train.source:
        cure = "Both are cut from one file with too few different texts: add rows, or give a --validation_file."
    examples = [f"{split.where(row)} and train {_place(split.train, other)}" for row, other in split.leaked[:3]]
    yield "warning", f"{count}, white space and case ignored: memorised rows inflate the score.", cure, examples


def _place(rows: TextRows, row: int) -> str:
    has_place = rows.lines is not None or rows.sources is not None
    return f"row {rows.ids[row]}" + (f" ({rows.where(row)})" if has_place else "")


def _task_type(split: _Split) -> _Found:
    if split.data.doubt is not None and split.name == next(iter(split.data.splits)):
        yield "warning", *split.data.doubt, ()


def _no_label(split: _Split) -> _Found:
    counts = split.train_counts
    # -1 is a number of its own beside 1, or 0 and 1.
    is_ordered = {label_key(label) for label in counts} <= {"-1", "0", "1"}
    for label, count in counts.items():
        may_be_none = label.lower() in NO_LABEL and not (is_ordered and label in ("-1", "-1.0"))
        is_rare = count <= min(_RARE_SHARE * sum(counts.values()), median(counts.values()) / 2)
        if may_be_none and is_rare:
            message = f"the rare class {label!r} ({count:,} rows) may mean that there is no label."
            yield "warning", message, f"If it means that, leave its rows out: --ignore_labels={label}.", ()


def _alike_classes(split: _Split) -> _Found:
    """Class names that are probably one class: equal except for case and what joins words, or a rare misspelling."""
    counts = split.train_counts
    if split.space.is_multilabel or found_separator(counts) is not None:
        return
    plain = {label: " ".join(_JOINT.sub(" ", label.casefold()).split()) for label in counts}
    alike: dict[str, list[str]] = {}  # by the most frequent name of a class, the others
    for label in sorted([*counts][:_MOST_NAMES], key=lambda label: -counts[label]):
        count = counts[label]
        same = (other for other in alike if _are_one_class(plain[other], plain[label], counts[other], count))
        common = next(same, None)
        alike.setdefault(common or label, []).extend([label] if common else [])
    for common, others in [(common, others) for common, others in alike.items() if others][:MAX_EXAMPLES]:
        shown = [f"{common!r} ({counts[common]:,} rows)", *(f"{label!r} ({counts[label]:,})" for label in others)]
        message = f"the labels {', '.join(shown[:-1])} and {shown[-1]} look like one class."
        yield "warning", message, f"If they are one, write {common!r} in all of these rows.", ()


def _are_one_class(first: str, second: str, many: int, few: int) -> bool:
    """Whether names are equal, or a letter or two differ; numbers, short names and opposites are different classes."""
    number = parse_number(first)
    if first == second or (number is not None and number == parse_number(second)):
        return True
    if few > max(1, _RARE_SHARE * many) or min(len(first), len(second)) < _FEWEST_LETTERS:
        return False
    if any(map(str.isdigit, first + second)) or first.endswith(second) or second.endswith(first):
        return False  # acceptable and unacceptable
    matcher = difflib.SequenceMatcher(None, first, second)
    return matcher.quick_ratio() >= _ALIKE and matcher.ratio() >= _ALIKE


def _constant(split: _Split) -> _Found:
    cure = "Check the label column; equal labels can neither be learnt from nor measured on."
    labels = split.labels
    if labels is not None and labels.ndim == 1 and labels.min() == labels.max():
        what = f"score {labels[0]:g}" if split.counts is None else f"label {split.space.names[labels[0]]!r}"
        yield "warning", f"all rows have the {what}.", cure, ()


def _missing_class(split: _Split) -> _Found:
    counts = split.counts or {}
    if not split.space.is_multilabel and sum(map(bool, counts.values())) < 2:
        return
    for which, rows in (("no row has", 0), ("all rows have", len(split.rows))):
        labels = [label for label, count in counts.items() if count == rows]
        if labels:
            it, what = "it", f"the label {labels[0]!r}"
            if len(labels) > 1:
                it, what = "them", f"{len(labels)} of the {len(counts)} labels ({listed(map(quote, labels), 3)})"
            level, cure = "note", f"Add rows of {it} if that matters: here such predictions cannot be evaluated."
            if split.name == "train":
                level = "warning"
                cure = f"Add rows, or remove {it} from the label names: there is nothing to learn {it} from."
            yield level, f"{which} {what}.", cure, ()


def _imbalance(split: _Split) -> _Found:
    counts = split.counts or {}
    if split.name == "train" or split.space.is_multilabel or sum(map(bool, counts.values())) < 2:
        return
    largest = max(counts, key=lambda label: counts[label])
    if counts[largest] >= _IMBALANCE_SHARE * len(split.rows):
        level = "warning" if split.data.metrics[:1] == ("accuracy",) else "note"
        message = f"{split.share(counts[largest])} of the rows are {largest!r}; always predicting it has that accuracy."
        yield level, message, "Compare by matthews_correlation or F1, and try --class_weights balanced.", ()


def _empty(split: _Split) -> _Found:
    if split.empty:
        message = f"{_count(len(split.empty), 'row')} without any text."
        yield "warning", message, "Fill in the texts, or remove these rows.", [*map(split.where, split.empty[:3])]


def _encoding(split: _Split) -> _Found:
    """Texts whose UTF-8 was read as Windows-1252 ("schÃ¶n" for "schön") or whose characters were replaced."""
    texts = zip(split.rows.texts, split.rows.pairs or ("",) * len(split.rows), strict=True)
    words = {row: word for row, both in enumerate(texts) if (word := _damaged_word(both)) is not None}
    if words:
        word = next(iter(words.values()))
        message = f"{_count(len(words), 'row')} with characters of a wrong encoding, such as {quote(word)}."
        cure = "Export the texts again as UTF-8, or repair them (the package ftfy does)."
        yield "warning", message, cure, [*map(split.where, [*words][:3])]


# What findings quote from texts.
_QUOTATION = re.compile(r"(?<=wrong encoding), such as .*$|(?<=\(--ignore_words\)): .*$", re.DOTALL)


def _damaged_word(texts: Iterable[str]) -> str | None:
    """Return the first word with a replacement character, or of UTF-8 that was read as Windows-1252 or Latin-1."""
    for word in (word for text in texts if not text.isascii() for word in text.split()):
        if "\ufffd" in word:
            return word
        for encoding in ("cp1252", "latin-1"):
            with contextlib.suppress(UnicodeError):
                if word.encode(encoding).decode("utf-8") != word:
                    return word
    return None


def _cues(split: _Split) -> _Found:
    """Names, numbers, marks and the like that go with one label, and should perhaps not decide."""
    cues, looked_at = split.cues
    if not cues:
        return
    kinds, names = {cue.kind for cue in cues}, split.space.names
    what = _count(len(cues), kinds.pop() if len(kinds) == 1 else "phrase")
    what, them = (f"{what} that goes", "it") if len(cues) == 1 else (f"{what} that go", "them")
    shown = ", ".join(
        f"{quote(cue.text)} ({cue.label_rows:,} of {cue.rows:,} rows are {names[cue.label]!r})" for cue in cues
    )
    sampled = "" if looked_at == len(split.rows) else f", of {looked_at:,} rows that were looked at"
    # The figures are means over three planted cues of ten seeds, results/shortcuts.
    robust = "; or --preset robust, with which planted cues cost 14 points of accuracy instead of 49"
    robust = "" if split.space.is_multilabel else robust
    flag = ignore_flag([cue.text for cue in cues])
    cure = f"Leave {them} out of all texts, if a model should not decide by {them}: {flag}{robust}."
    message = f"{what} with one label may be a shortcut (--ignore_words): {shown}{sampled}."
    yield "warning", message, cure, ()


def _language(split: _Split) -> _Found:
    if split.name != "train" or not split.english_only:
        return
    texts = [text for text in split.rows.texts if sum(map(str.isalpha, text)) >= _LETTERS]
    sample = texts[:: max(1, len(texts) // _TEXTS)][:_TEXTS]
    if len(sample) < _FEWEST or _is_english("\n".join(sample)):
        return
    share = sum(map(_is_english, sample)) / len(sample)
    if share < _ENGLISH_SHARE:
        message = f"the texts do not look English (of {len(sample)}, {share:.0%} do), but the embedded encoder is."
        cure = (
            "Take an encoder for their language, or a multilingual one, such as --model_name_or_path"
            " FacebookAI/xlm-roberta-base or intfloat/multilingual-e5-small. `attentune list encoders` has some, and"
            " how to get them without a network."
        )
        yield "warning", message, cure, ()


def _is_english(text: str) -> bool:
    from chardet import detect

    return bool(detect(text.encode("utf-8"))["language"] == "en")


def _conflicts(split: _Split) -> _Found:
    if not split.conflicting or split.labels is None:
        return
    examples = []
    for rows in split.conflicting[:MAX_EXAMPLES]:  # the first row, and the one whose label differs most
        far = np.abs(split.labels[rows] - split.labels[rows[0]]).reshape(len(rows), -1).sum(axis=1)
        examples.append(f"{split.where(rows[0])} and {split.where(rows[int(np.argmax(far))])}")
    level = "warning" if sum(map(len, split.conflicting)) >= _CONFLICT_SHARE * len(split.rows) else "note"
    message = f"{_count(len(split.conflicting), 'text')} in more than one row, with labels that contradict each other."
    cure = "Correct the labels, or remove these rows: no model can predict all of them correctly."
    yield level, message, cure, examples


def _duplicates(split: _Split) -> _Found:
    extra = sum(len(rows) - 1 for rows in split.repeated)
    if extra:
        message = f"{_count(extra, 'row')} with the text of an earlier row ({split.share(extra)})."
        pairs = [f"{split.where(rows[0])} and {split.where(rows[1])}" for rows in split.repeated[:MAX_EXAMPLES]]
        yield "note", message, "Remove the repetitions, unless they are meant as weights.", pairs


def _cut(split: _Split) -> _Found:
    lengths, limit = split.lengths, split.max_length
    share = 0.0 if lengths is None else float(np.mean(lengths > limit))
    if lengths is None or not share:
        return
    longest = [int(row) for row in np.argsort(-lengths, kind="stable")[:MAX_EXAMPLES] if lengths[row] > limit]
    cure = f"Raise --max_length if their ends matter (the longest row has {int(lengths.max()):,} tokens); it takes"
    message = f"{percent(share)} of the rows have more than {limit} tokens and will be truncated."
    examples = [f"{split.where(row)}: {int(lengths[row]):,} tokens" for row in longest]
    yield "warning" if share >= _CUT_SHARE else "note", message, f"{cure} more time.", examples


_SHIFT_CURE = (
    "A score there says little about rows like those of train, and the other way round: draw both from the same source,"
    " or train on rows like those that the model will see."
)


def _label_shift(split: _Split) -> _Found:
    from scipy.stats import chi2_contingency, ks_2samp

    here, there = split.labels, None if split.train is None else split.train.labels
    if here is None or there is None or min(len(here), len(there)) < _FEWEST_ROWS:
        return
    if split.space.task_type == "regression":
        first, second = np.median(here), np.median(there)
        if ks_2samp(here, there).pvalue < _P and abs(first - second) >= _LEAST_SCORE * np.std(there):
            message = f"the scores differ from those of train: the median is {first:g}, in train {second:g}."
            yield "warning", message, _SHIFT_CURE, ()
        return
    parts = [split.ones(labels) for labels in (here, there)]
    shares_C, train_C = (part.mean(axis=0) for part in parts)
    most = int(np.argmax(np.abs(shares_C - train_C)))
    counts = [np.bincount(part[:, most], minlength=2) for part in parts]
    if abs(shares_C[most] - train_C[most]) < _LEAST_SHARE:
        return
    if chi2_contingency(counts).pvalue < _P / split.space.num_labels:
        shares = f"{percent(shares_C[most])} of the rows, in train {percent(train_C[most])}"
        message = f"the labels differ from those of train: {split.space.names[most]!r} has {shares}."
        yield "warning", message, _SHIFT_CURE, ()


def _length_shift(split: _Split) -> _Found:
    from scipy.stats import mannwhitneyu

    here, there = split.words
    medians = [float(np.median([len(words) for words in texts])) if texts else 0.0 for texts in (here, there)]
    ratio = (max(medians) + 1) / (min(medians) + 1)
    if min(len(here), len(there)) < _FEWEST_ROWS or ratio < _LEAST_RATIO:
        return
    if mannwhitneyu([*map(len, here)], [*map(len, there)]).pvalue < _P:
        kind = "longer" if medians[0] > medians[1] else "shorter"
        message = (
            f"the texts are {kind} than those of train: the median is {medians[0]:g} words, in train {medians[1]:g}."
        )
        yield "warning", message, _SHIFT_CURE, ()


def _vocabulary_shift(split: _Split) -> _Found:
    from scipy.stats import mannwhitneyu

    here, there = split.words
    known = {word for place, words in enumerate(there) if place % 10 for word in words}
    # Both are compared with the same nine tenths of train.
    first, second = (
        np.array([np.mean([word not in known for word in words]) for words in texts if words])
        for texts in (here, there[::10])
    )
    if min(len(first), len(second)) < _FEWEST_ROWS or first.mean() - second.mean() < _LEAST_UNSEEN:
        return
    if mannwhitneyu(first, second).pvalue < _P:
        message = (
            f"{percent(float(first.mean()))} of the words of a text do not occur in train; of a tenth of train,"
            f" {percent(float(second.mean()))} do not occur in the rest."
        )
        yield "warning", message, _SHIFT_CURE, ()


def _small(split: _Split) -> _Found:
    if split.name == "train" or split.labels is None or split.space.is_multilabel:
        return
    gap, size = split.detectable_gap(), f"{len(split.rows):,} rows"
    if gap is not None and gap <= _SMALL_GAP:
        return
    message = f"{size} will often miss differences below {_gap_text(gap, split.space.task_type)}."
    if gap is None:
        message = f"{size} are too few to distinguish any two models."
    yield "warning", message, "Score on more rows, or compare several seeds before believing a smaller difference.", ()


def _gap_text(gap: float | None, task_type: str) -> str:
    if task_type == "regression":
        return f"{gap or 0.0:.3f} of correlation"
    return f"{100 * (gap or 0.0):.1f} points of accuracy"


# The most serious first.
CHECKS: dict[str, Callable[[_Split], _Found]] = {
    "leak": _leak,
    "task-type": _task_type,
    "no-label": _no_label,
    "constant": _constant,
    "cues": _cues,
    "empty": _empty,
    "encoding": _encoding,
    "language": _language,
    "missing-class": _missing_class,
    "alike-classes": _alike_classes,
    "conflicts": _conflicts,
    "cut": _cut,
    "label-shift": _label_shift,
    "length-shift": _length_shift,
    "vocabulary-shift": _vocabulary_shift,
    "imbalance": _imbalance,
    "small": _small,
    "duplicates": _duplicates,
}


def summary_lines(report: DoctorReport) -> list[str]:
    """Format one to six lines for the log of `train`: sizes, lengths, classes, detectable difference, warnings."""
    lines = [_headline(report)]
    scored = next((name for name, split in report.splits.items() if split.detectable_metric), None)
    for name, shown in ((next(iter(report.splits), None), ("tokens", "classes")), (scored, ("guess", "gap"))):
        facts = {} if name is None else _facts(report.splits[name], report.task_type)
        lines += [f"{name}: {facts[fact]}" for fact in shown if fact in facts]
    # The line of the detectable difference already says that a split is small.
    serious = [finding for finding in report.warnings if finding.kind != "small"]
    lines += [f"warning: {finding.message}" for finding in serious[:SUMMARY_WARNINGS]]
    if len(serious) > SUMMARY_WARNINGS:
        lines[-1] += f" ({len(serious) - SUMMARY_WARNINGS} more: see `attentune doctor`)"
    return lines


def full_lines(report: DoctorReport) -> list[str]:
    """Format the full report without the notes of the task: statistics by split, findings, and assumptions."""
    lines = [_headline(report)]
    for name, split in report.splits.items():
        counts = [f"empty texts {split.empty:,}", f"duplicates {split.duplicates:,}"]
        counts += [] if split.conflicts is None else [f"texts with different labels {split.conflicts:,}"]
        counts += [] if split.found_in_train is None else [f"also in train {split.found_in_train:,}"]
        lines += ["", f"{name}: {split.rows:,} rows", f"  {', '.join(counts)}"]
        lines += [f"  {fact}" for fact in _facts(split, report.task_type).values()]
    lines += ["", "Findings" if report.findings else "Findings: none"]
    for finding in report.findings:
        lines += [f"  {finding.level}: {finding.message}", f"    {finding.cure}"]
        lines += [f"      {example}" for example in finding.examples]
    if any(split.detectable_metric for split in report.splits.values()):
        how = f"McNemar's test, if exactly one of two models is right on {100 * DEFAULT_DISAGREEMENT:.0f} % of the rows"
        if report.task_type == "regression":
            how = f"Fisher's z for independent models, above a correlation of {DEFAULT_CORRELATION:g} (an upper bound)"
        lines += ["", f"Detectable differences: {how}; at the 5 % level."]
    return lines


def sentences_without_texts(findings: Iterable[Finding]) -> list[str]:
    """Return the findings as "warning: ..." or "note: ...", without words of the texts, to be published."""
    return [f"{finding.level}: {_QUOTATION.sub('.', finding.message)}" for finding in findings]


def _headline(report: DoctorReport) -> str:
    kind = report.task_type
    if report.label_names:
        what = "labels, any number per row" if kind == "multi_label" else "classes"
        kind += f" into {len(report.label_names)} {what} ({some_names(report.label_names)})"
    sizes = ", ".join(f"{name} {split.rows:,}" for name, split in report.splits.items())
    return f"{report.name}: {kind}; rows: {sizes or 'none'}"


def _facts(split: SplitReport, task_type: str) -> dict[str, str]:
    facts: dict[str, str] = {}
    if (tokens := split.tokens) is not None:
        facts["tokens"] = (
            f"median {tokens['median']:.0f} tokens, 95 % have at most {tokens['p95']:.0f}, the longest has"
            f" {tokens['longest']:,.0f}; {percent(tokens['cut_share'])} of the rows will be truncated"
        )
    if split.class_counts:
        counts, what = dict(split.class_counts), "classes"
        if split.unlabelled is not None:
            counts["no label"], what = split.unlabelled, "labels"
        shares = [f"{shown_label(name)} {count:,} ({percent(count / split.rows)})" for name, count in counts.items()]
        if len(shares) > _LISTED_CLASSES:
            order = sorted(range(len(shares)), key=lambda place: -list(counts.values())[place])
            ends = [shares[place] for place in (*order[:3], *order[-3:])]
            shares = [f"{len(shares)}, from the most to the least frequent: {ends[0]}", *ends[1:3], "...", *ends[3:]]
        facts["classes"] = f"{what}: {', '.join(shares)}"
    if split.guess is not None:
        facts["guess"] = f"always predicting {split.guess!r}: accuracy {split.guess_accuracy:.3f}"
    if split.scores is not None:
        mean, std, lowest, highest = (split.scores[name] for name in ("mean", "std", "lowest", "highest"))
        facts["guess"] = (
            f"scores from {lowest:g} to {highest:g}, mean {mean:.3f}, standard deviation {std:.3f}; always predicting"
            " the mean has an undefined correlation"
        )
    if split.detectable_metric is not None:
        facts["gap"] = "too few to distinguish two models"
        if split.detectable_gap is not None:
            gap = _gap_text(split.detectable_gap, task_type)
            facts["gap"] = f"two models must differ by about {gap} for a significant difference (80 % power)"
    return facts
