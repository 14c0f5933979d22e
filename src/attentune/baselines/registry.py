"""The baselines by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer

from attentune.baselines.base import Baseline, read_baseline_file
from attentune.baselines.frozen import Cosine, FrozenEncoder, FrozenLinear, OnFrozenEncoder, TokenAlignment
from attentune.baselines.linear import LinearModel, fit_linear
from attentune.config import ModelConfig
from attentune.config.parse import did_you_mean
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.splits import row_groups, stratified_sample
from attentune.errors import CheckpointError, ConfigError

# Words and pairs of words, and sequences of characters within words. Words of one letter count.
_ANALYZERS: dict[str, dict[str, Any]] = {
    "words": {"analyzer": "word", "ngram_range": (1, 2), "token_pattern": r"(?u)\b\w+\b"},
    "characters": {"analyzer": "char_wb", "ngram_range": (3, 5)},
}
_MOST_TERMS = 30_000
# Fitting on more rows takes minutes.
_MOST_ROWS = 50_000
_STRENGTHS = (0.1, 1.0, 10.0, 100.0)
# In rows of this number of texts a term must occur in at least two.
_LARGE = 1000
_OVERLAPS = 5


class TfidfLinear(Baseline):
    """Logistic or ridge regression on TF-IDF features of the text.

    For pairs with the features u and v of the two texts: u, v, |u - v|, u * v, and five measures of their overlap.
    """

    name = "tfidf-linear"

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__()
        self._seed = seed
        self._vectorizers: dict[str, TfidfVectorizer] = {}
        self._model: LinearModel | None = None

    def _fit(self, rows: TextRows, labels: np.ndarray, label_space: LabelSpace) -> None:
        notes: tuple[str, ...] = ()
        if len(rows) > _MOST_ROWS:
            rows = rows.take(stratified_sample(labels, _MOST_ROWS, "tfidf rows", self._seed))
            assert rows.labels is not None
            notes, labels = (f"Fitted on a stratified sample of {_MOST_ROWS:,} training rows.",), rows.labels
        texts = [*rows.texts, *(rows.pairs or ())]
        self._vectorizers = {name: _fitted(name, texts) for name in _ANALYZERS}
        self._model, note = fit_linear(
            self.features(rows),
            labels,
            label_space,
            weights=rows.weights,
            strengths=_STRENGTHS,
            seed=self._seed,
            standardise=False,
            groups=row_groups(rows, near=False),
        )
        self.notes = (*notes, note)

    def features(self, rows: TextRows) -> sparse.csr_matrix:
        """Return the (N, D) features of rows."""
        first_ND = self._vectors(rows.texts)
        if rows.pairs is None:
            return first_ND
        second_ND = self._vectors(rows.pairs)
        product_ND = first_ND.multiply(second_ND)
        overlap_NO = _overlaps(rows.texts, rows.pairs, np.asarray(product_ND.sum(axis=1)).ravel())
        parts = [first_ND, second_ND, abs(first_ND - second_ND), product_ND, sparse.csr_matrix(overlap_NO)]
        return sparse.hstack(parts, format="csr")

    def _vectors(self, texts: Sequence[str]) -> sparse.csr_matrix:
        parts = [self._vectorizers[name].transform(texts) for name in _ANALYZERS]
        # Each part has length 1, so that both together have length 1 too.
        return sparse.hstack(parts, format="csr") * np.sqrt(1 / len(parts))

    def _logits(self, rows: TextRows) -> np.ndarray:
        assert self._model is not None
        assert self.label_space is not None
        return self._model.logits(self.features(rows), self.label_space)

    def _state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        assert self._model is not None
        arrays = self._model.arrays() | {f"idf.{name}": made.idf_ for name, made in self._vectorizers.items()}
        terms = {name: made.get_feature_names_out().tolist() for name, made in self._vectorizers.items()}
        return arrays, {"seed": self._seed, "terms": terms}

    @classmethod
    def _restore(cls, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> Self:
        made = cls(seed=int(settings["seed"]))
        for name in _ANALYZERS:
            vectorizer = _vectorizer(name, vocabulary=list(map(str, settings["terms"][name])))
            vectorizer.idf_ = arrays[f"idf.{name}"]
            made._vectorizers[name] = vectorizer
        made._model = LinearModel.from_arrays(arrays)
        return made

    def _check(self) -> None:
        assert self._model is not None
        assert self.label_space is not None
        terms = sum(len(made.idf_) for made in self._vectorizers.values())
        self._model.check(self.label_space, 4 * terms + _OVERLAPS if self.is_pair else terms)


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


class Majority(Baseline):
    """Predicts the class frequencies of the training rows, smoothed so that none is 0; for scores their mean."""

    name = "majority"

    def __init__(self) -> None:
        super().__init__()
        self._logits_C = np.zeros(0)

    def _fit(self, rows: TextRows, labels: np.ndarray, label_space: LabelSpace) -> None:
        weights = np.ones(len(labels)) if rows.weights is None else rows.weights
        total = weights.sum()
        if label_space.task_type == "regression":
            self._logits_C = np.array([weights @ labels / total])
        elif label_space.is_multilabel:
            counts_C = weights @ labels
            self._logits_C = np.log((counts_C + 0.5) / (total - counts_C + 0.5))
        else:
            # Laplace's rule of succession: every class counts once more.
            counts_C = np.bincount(labels, weights, minlength=label_space.num_labels) + 1.0
            self._logits_C = np.log(counts_C / counts_C.sum())

    def _logits(self, rows: TextRows) -> np.ndarray:
        return np.tile(self._logits_C, (len(rows), 1))

    def _state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"logits": self._logits_C}, {}

    @classmethod
    def _restore(cls, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> Self:
        made = cls()
        made._logits_C = arrays["logits"]
        return made

    def _check(self) -> None:
        assert self.label_space is not None
        if self._logits_C.shape != (self.label_space.num_labels,):
            raise ValueError(f"{self._logits_C.shape} logits do not fit {self.label_space.num_labels} labels")


BASELINES: dict[str, type[Baseline]] = {
    kind.name: kind for kind in (Majority, TfidfLinear, FrozenLinear, Cosine, TokenAlignment)
}
# These compare the two texts of a pair.
OF_PAIRS = (Cosine.name, TokenAlignment.name)


def baselines_for(data: TaskData) -> tuple[str, ...]:
    """Return the names of the baselines that fit the rows of a task: some need pairs."""
    return tuple(name for name in BASELINES if name not in OF_PAIRS or data.is_pair)


def make_baseline(
    name: str, *, encoder: ModelConfig, max_length: int, seed: int, frozen: FrozenEncoder | None = None
) -> Baseline:
    """Make a baseline that is not fitted yet."""
    if name not in BASELINES:
        raise ConfigError(
            f"baseline: got {name!r}, expected one of {', '.join(BASELINES)}.{did_you_mean(name, tuple(BASELINES))}"
        )
    kind = BASELINES[name]
    if issubclass(kind, OnFrozenEncoder):
        return kind(frozen or FrozenEncoder(encoder, max_length), seed=seed)
    return TfidfLinear(seed=seed) if kind is TfidfLinear else kind()


def load_baseline(folder: str | Path) -> Baseline:
    """Load a saved baseline of any kind."""
    name = read_baseline_file(folder)["name"]
    if name not in BASELINES:
        raise CheckpointError(
            f"{folder}: holds the baseline {name!r}, expected one of {', '.join(BASELINES)}. It was written by another"
            " version; update attentune, or train it again."
        )
    return BASELINES[name].load(folder)
