"""The baselines by name, and saved ones as runs, which `Predictor.load` returns."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors.numpy import load_file
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer

from attentune.baselines.frozen import (
    Cosine,
    FrozenEncoder,
    FrozenLinear,
    FrozenMiddle,
    OnFrozenEncoder,
    TokenAlignment,
)
from attentune.baselines.linear import BASELINE_FILE, WEIGHTS_FILE, Baseline, LinearModel
from attentune.config import ModelConfig
from attentune.config.schema import BASELINE_NAMES
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.errors import CheckpointError
from attentune.inference.ensemble import read_label_space
from attentune.inference.predictor import Predictor, TextsRead, saved_config
from attentune.inference.scoring import Evaluator
from attentune.io.files import read_json

# Words and pairs of words, and sequences of characters within words. Words of one letter count.
_ANALYZERS: dict[str, dict[str, Any]] = {
    "words": {"analyzer": "word", "ngram_range": (1, 2), "token_pattern": r"(?u)\b\w+\b"},
    "characters": {"analyzer": "char_wb", "ngram_range": (3, 5)},
}
_MOST_TERMS = 30_000
# Fitting on more rows takes minutes.
_MOST_ROWS = 50_000
# In rows of this number of texts a term must occur in at least two.
_LARGE = 1000
_OVERLAPS = 5


class TfidfLinear(Baseline):
    """Logistic or ridge regression on TF-IDF features of the text.

    For pairs with the features u and v of the two texts: u, v, |u - v|, u * v, and five measures of their overlap.
    """

    name = "tfidf-linear"
    strengths = (0.1, 1.0, 10.0, 100.0)
    _sampling_key = "tfidf rows"

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._vectorizers: dict[str, TfidfVectorizer] = {}

    def _affordable_rows(self, rows: TextRows) -> int:
        return _MOST_ROWS

    def _features_to_fit(self, rows: TextRows) -> sparse.csr_matrix:
        texts = [*rows.texts, *(rows.pairs or ())]
        self._vectorizers = {name: _fitted(name, texts) for name in _ANALYZERS}
        return self._features(rows)

    def _features(self, rows: TextRows) -> sparse.csr_matrix:
        first_ND = self._vectors(rows.texts)
        if rows.pairs is None:
            return first_ND
        second_ND = self._vectors(rows.pairs)
        product_ND = first_ND.multiply(second_ND)
        overlap_NO = _overlaps(rows.texts, rows.pairs, np.asarray(product_ND.sum(axis=1)).ravel())
        parts = [first_ND, second_ND, abs(first_ND - second_ND), product_ND, sparse.csr_matrix(overlap_NO)]
        return sparse.hstack(parts, format="csr")

    def _num_features(self) -> int:
        terms = sum(len(fitted.idf_) for fitted in self._vectorizers.values())
        return 4 * terms + _OVERLAPS if self.is_pair else terms

    def _vectors(self, texts: Sequence[str]) -> sparse.csr_matrix:
        parts = [self._vectorizers[name].transform(texts) for name in _ANALYZERS]
        # Each part has length 1, so that both together have length 1 too.
        return sparse.hstack(parts, format="csr") * np.sqrt(1 / len(parts))

    def _state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        idf = {f"idf.{name}": fitted.idf_ for name, fitted in self._vectorizers.items()}
        terms = {name: fitted.get_feature_names_out().tolist() for name, fitted in self._vectorizers.items()}
        return idf, {"terms": terms}

    @classmethod
    def _restored(cls, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> Self:
        baseline = cls(seed=int(settings["seed"]))
        for name in _ANALYZERS:
            vectorizer = _vectorizer(name, vocabulary=list(map(str, settings["terms"][name])))
            vectorizer.idf_ = arrays[f"idf.{name}"]
            baseline._vectorizers[name] = vectorizer
        return baseline


def _vectorizer(name: str, **options: Any) -> TfidfVectorizer:
    return TfidfVectorizer(sublinear_tf=True, dtype=np.float64, **_ANALYZERS[name], **options)


def _fitted(name: str, texts: Sequence[str]) -> TfidfVectorizer:
    rare = 2 if len(texts) >= _LARGE else 1
    for least in sorted({rare, 1}, reverse=True):
        try:
            return _vectorizer(name, min_df=least, max_features=_MOST_TERMS).fit(texts)
        except ValueError:  # no term occurs often enough
            continue
    # No text has a word. A term that cannot occur keeps the arrays valid.
    return _vectorizer(name, vocabulary=[" "]).fit(texts)


def _overlaps(firsts: Sequence[str], seconds: Sequence[str], cosine_N: np.ndarray) -> np.ndarray:
    """(N, 5): cosine, Jaccard index of the words, share of each text's words in the other, relative length."""
    analyze = _vectorizer("words").build_tokenizer()
    rows = []
    for first, second, cosine in zip(firsts, seconds, cosine_N, strict=True):
        u, v = set(analyze(first.lower())), set(analyze(second.lower()))
        both, either = len(u & v), len(u | v)
        sizes = (either, len(u), len(v))
        shares = [both / size if size else 0.0 for size in sizes]
        length = (len(u) - len(v)) / max(len(u), len(v), 1)
        rows.append([cosine, *shares, length])
    return np.array(rows)


class ColumnsLinear(TfidfLinear):
    """Logistic or ridge regression on the columns beside the text (`TextRows.extra`), and on TF-IDF features of it.

    A number is standardised as it is and as sign(x) log(1 + |x|), with an indicator of missing ones. A category has an
    indicator for each value of several training rows, and one for all others.
    """

    name = "columns-linear"
    reads_columns = True
    _sampling_key = "columns rows"

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._scales: dict[str, list[list[float]]] = {}  # mean and deviation of both forms of a column of numbers
        self._categories: dict[str, list[str]] = {}  # the values with an indicator of their own

    def _features_to_fit(self, rows: TextRows) -> sparse.csr_matrix:
        for name, cells in rows.extra.items():
            if isinstance(cells, np.ndarray):
                self._scales[name] = [_mean_and_deviation(values) for values in _forms(cells)]
            else:
                self._categories[name] = sorted(value for value, count in Counter(cells).items() if count > 1)
        return super()._features_to_fit(rows)

    def _features(self, rows: TextRows) -> sparse.csr_matrix:
        parts = [super()._features(rows)]
        for name, scales in self._scales.items():
            cells = rows.extra.get(name, np.full(len(rows), np.nan))
            forms = [(form - mean) / deviation for form, (mean, deviation) in zip(_forms(cells), scales, strict=True)]
            known = np.nan_to_num(forms).clip(-_MOST_DEVIATIONS, _MOST_DEVIATIONS)
            parts.append(_COLUMN_SCALE * sparse.csr_matrix(np.stack([*known, np.isnan(cells)], axis=1)))
        for name, values in self._categories.items():
            places = {value: place for place, value in enumerate(values)}
            cells = rows.extra.get(name, ("",) * len(rows))
            chosen = (np.arange(len(rows)), [places.get(cell, len(values)) for cell in cells])
            shape = (len(rows), len(values) + 1)
            parts.append(_COLUMN_SCALE * sparse.csr_matrix((np.ones(len(rows)), chosen), shape=shape))
        return sparse.hstack(parts, format="csr")

    def _num_features(self) -> int:
        categories = sum(len(values) + 1 for values in self._categories.values())
        return super()._num_features() + 3 * len(self._scales) + categories

    def infrequent(self, rows: TextRows) -> dict[str, str]:
        cells = {name: (set(values), rows.extra.get(name, ())) for name, values in self._categories.items()}
        found = {name: next((c for c in cells if c and c not in known), None) for name, (known, cells) in cells.items()}
        return {name: value for name, value in found.items() if value is not None}

    def _state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        idf, settings = super()._state()
        return idf, {**settings, "numbers": self._scales, "categories": self._categories}

    @classmethod
    def _restored(cls, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> Self:
        baseline = super()._restored(arrays, settings)
        baseline._scales = {name: [[*map(float, one)] for one in both] for name, both in settings["numbers"].items()}
        baseline._categories = {name: [*map(str, values)] for name, values in settings["categories"].items()}
        return baseline


# Columns beside TF-IDF features, whose vectors have length 1 (results/columns).
_COLUMN_SCALE = 0.5
# Numbers further from the mean count as so many standard deviations.
_MOST_DEVIATIONS = 5.0


def _forms(numbers_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers as they are, and on a logarithmic scale, on which prices and sizes are spread evenly."""
    return numbers_N, np.sign(numbers_N) * np.log1p(np.abs(numbers_N))


def _mean_and_deviation(numbers_N: np.ndarray) -> list[float]:
    known = numbers_N[~np.isnan(numbers_N)]
    return [float(known.mean()), float(known.std()) or 1.0] if len(known) else [0.0, 1.0]


class Majority(Baseline):
    """Predicts the class frequencies of the training rows, smoothed so that none is 0; for scores their mean."""

    name = "majority"

    def _fit(self, rows: TextRows, labels: np.ndarray, space: LabelSpace) -> tuple[LinearModel, tuple[str, ...]]:
        weights = np.ones(len(labels)) if rows.weights is None else rows.weights
        total = weights.sum()
        if space.task_type == "regression":
            bias_C = np.array([weights @ labels / total])
        elif space.is_multilabel:
            counts_C = weights @ labels
            bias_C = np.log((counts_C + 0.5) / (total - counts_C + 0.5))
        else:
            # Laplace's rule of succession: every class counts once more.
            counts_C = np.bincount(labels, weights, minlength=space.num_labels) + 1.0
            bias_C = np.log(counts_C / counts_C.sum())
        return LinearModel(np.zeros((len(bias_C), 0)), bias_C, np.arange(len(bias_C))), ()

    def _features(self, rows: TextRows) -> np.ndarray:
        return np.zeros((len(rows), 0))

    def _predict(self, rows: TextRows, space: LabelSpace) -> np.ndarray:
        return np.tile(self.linear.bias_P, (len(rows), 1))

    def _num_features(self) -> int:
        return 0


BASELINES: dict[str, type[Baseline]] = {
    kind.name: kind
    for kind in (Majority, TfidfLinear, ColumnsLinear, FrozenLinear, FrozenMiddle, Cosine, TokenAlignment)
}


def baselines_for(data: TaskData) -> tuple[str, ...]:
    return tuple(name for name in BASELINE_NAMES if misfit(name, data) is None)


def misfit(name: str, data: TaskData) -> str | None:
    return BASELINES[name].misfit(is_pair=data.is_pair, has_columns=data.has_columns)


def make_baseline(
    name: str, *, encoder: ModelConfig, max_length: int, seed: int, frozen: FrozenEncoder | None = None
) -> Baseline:
    kind = BASELINES[name]
    if issubclass(kind, OnFrozenEncoder):
        return kind(frozen or FrozenEncoder(encoder, max_length), seed=seed)
    return kind(seed=seed)


def load_run(folder: Path) -> "BaselinePredictor":
    """Load the run folder of a baseline of any kind."""
    try:
        content = read_json(folder / BASELINE_FILE)
        if content["name"] not in BASELINES:
            raise ValueError(f"holds the baseline {content['name']!r}, expected one of {', '.join(BASELINES)}")
        arrays, space = load_file(folder / WEIGHTS_FILE), read_label_space(content["label_space"])
        baseline = BASELINES[content["name"]]._restored(arrays, content["settings"])
        baseline.label_space, baseline.is_pair = space, bool(content["is_pair"])
        baseline.notes, baseline.linear = tuple(map(str, content["notes"])), LinearModel.from_arrays(arrays)
        baseline.linear.check(space, baseline._num_features())
    except CheckpointError:
        raise
    except Exception as error:  # safetensors, JSON and NumPy each have their own
        raise CheckpointError(
            f"{folder}: no baseline could be loaded: {type(error).__name__}: {str(error)[:300]}. Expected"
            f" {BASELINE_FILE} and {WEIGHTS_FILE} of a trained baseline; train it again, or use another copy."
        ) from error
    return BaselinePredictor(folder, saved_config(folder), space, baseline)


@dataclass(frozen=True)
class BaselinePredictor(Predictor):
    """A saved baseline. It has one precision, so that settings of precision and batches are ignored."""

    baseline: Baseline

    @property
    def kind(self) -> str:
        return f"{self.baseline.name} baseline"

    @property
    def is_pair(self) -> bool:
        return self.baseline.is_pair

    def evaluator(self, data: TaskData, *, precision: str | None = None) -> Evaluator:
        data = self.as_read(data)
        return BaselineEvaluator(
            splits=data.splits,
            label_space=self.label_space,
            metrics=data.metrics,
            rejection=self.rejection,
            baseline=self.baseline,
            read=self.read,
        )


@dataclass(kw_only=True)
class BaselineEvaluator(Evaluator):
    baseline: Baseline
    read: TextsRead  # counts the rows

    def cut_lengths(self, split: str) -> np.ndarray:
        return self.baseline.cut_lengths(self.splits[split])

    def compute_logits(self, split: str, progress: Callable[[int], None] | None = None) -> np.ndarray:
        logits_NC = self.baseline.logits(self.splits[split])
        self.read.add(self.cut_lengths(split))
        self.read.infrequent |= self.baseline.infrequent(self.splits[split])
        if progress is not None:
            progress(len(logits_NC))
        return logits_NC
