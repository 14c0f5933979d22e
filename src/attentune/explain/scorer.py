"""The scorer: a model, the rows to explain, and the function of its logits that attribution methods explain."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attentune.config.parse import did_you_mean
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.tokenization import Features, pad_batch
from attentune.errors import ConfigError
from attentune.inference.scoring import RowScores, numpy_of, score_rows
from attentune.metrics.metrics import predictions_of
from attentune.nn.attribution_head import AttributionHead

# The words of a row: "text" or "pair", and the start and end there.
WordSpans = Sequence[tuple[str, int, int]]


# Class id that stands for the class that the model predicts.
PREDICTED = -1


def target_value(logits_BC: Tensor, target_B: Tensor, label_space: LabelSpace) -> Tensor:
    """Compute the function that signed methods explain: the log odds of the target class, or the predicted score.

    log p / (1 - p) does not saturate where a model is certain, as the probability does, and it falls when another class
    gains, which the class's logit alone does not.
    """
    if logits_BC.shape[1] == 1:
        return logits_BC[:, 0]
    logits_BC = logits_BC.float()
    target_B1 = target_B[:, None]
    if label_space.is_multilabel:
        return logits_BC.gather(1, target_B1)[:, 0]
    others_BC = logits_BC.scatter(1, target_B1, float("-inf"))
    return logits_BC.gather(1, target_B1)[:, 0] - others_BC.logsumexp(dim=1)


def _check_class(argument: str, name: str, label_space: LabelSpace) -> None:
    if name not in label_space.label2id:
        raise ConfigError(
            f"{argument}: got {name!r}, expected one of the run's classes: {', '.join(label_space.names)}."
            f"{did_you_mean(str(name), label_space.names)}"
        )


def contrast_id(contrast: str | None, target: str | Sequence[str] | None, label_space: LabelSpace) -> int | None:
    if contrast is None:
        return None
    if label_space.task_type == "regression":
        raise ConfigError(
            f"contrast: got {contrast!r}, but this run predicts a score and has no other class; leave it out."
        )
    _check_class("contrast", contrast, label_space)
    if contrast in ([target] if isinstance(target, str) else target or ()):
        raise ConfigError(
            f"contrast: got {contrast!r}, which is the class to explain (target); expected another one of"
            f" {', '.join(label_space.names)}."
        )
    return label_space.label2id[contrast]


def class_ids(target: str | Sequence[str] | None, label_space: LabelSpace, rows: int) -> np.ndarray:
    if target is None:
        return np.full(rows, PREDICTED, dtype=np.int64)
    if label_space.task_type == "regression":
        raise ConfigError(
            f"target: got {target!r}, but this run predicts a score, which is what is explained; leave it out."
        )
    names = [target] * rows if isinstance(target, str) else list(target)
    if len(names) != rows:
        raise ConfigError(f"target: got {len(names)} classes for {rows} texts; expected one for all, or one for each.")
    for name in names:
        _check_class("target", name, label_space)
    return np.array([label_space.label2id[name] for name in names], dtype=np.int64)


@dataclass(frozen=True)
class PredictionScorer(ABC):
    """Predicts rows, and copies of them with masked tokens: all that perturbation-based methods need."""

    features: Features  # the rows' tokens
    label_space: LabelSpace  # what is predicted
    # The id of the class that the class to explain is compared with; None for all other classes.
    contrast: int | None = field(default=None, kw_only=True)

    @abstractmethod
    def scores(self, rows: np.ndarray, masked: Sequence[np.ndarray | None] | None = None) -> RowScores:
        """Predict rows."""

    def targets(self, logits_BC: np.ndarray, wanted_B: np.ndarray) -> np.ndarray:
        """Resolve the classes to explain."""
        if self.label_space.task_type == "regression":
            return np.zeros(len(wanted_B), dtype=np.int64)
        if self.label_space.is_multilabel:
            predicted_B = logits_BC.argmax(axis=1)
        else:
            predicted_B = predictions_of(logits_BC, self.label_space)
        if self.contrast is not None:
            others_BC = logits_BC.copy()
            others_BC[:, self.contrast] = -np.inf
            predicted_B = np.where(predicted_B == self.contrast, others_BC.argmax(axis=1), predicted_B)
        return np.where(wanted_B == PREDICTED, predicted_B, wanted_B).astype(np.int64)

    def value(self, logits_BC: Tensor, target_B: Tensor) -> Tensor:
        """Compute the function to explain, (B,) float32: `target_value`, or with a contrast a difference of logits.

        Source: Jacovi et al., "Contrastive explanations for model interpretability", EMNLP 2021.
        """
        if self.contrast is None:
            return target_value(logits_BC, target_B, self.label_space)
        logits_BC = logits_BC.float()
        return logits_BC.gather(1, target_B[:, None])[:, 0] - logits_BC[:, self.contrast]

    def ordinary_only(self, scores: Sequence[np.ndarray] | np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
        """Cut each row's scores to its length and set those of special tokens to 0."""
        special = [self.features.special[self.features.row(int(row))] for row in rows]
        return [
            np.where(is_special, np.float32(0.0), row_scores[: len(is_special)])
            for is_special, row_scores in zip(special, scores, strict=True)
        ]


@dataclass(frozen=True)
class Scorer(PredictionScorer):
    """A model in evaluation mode and the rows to explain."""

    model: Any  # an `AttentuneForSequenceClassification` on the accelerator's device
    accelerator: Any  # sets device and precision
    pad_token_id: int  # pads shorter rows
    mask_token_id: int  # replaces a masked token
    attribution_head: AttributionHead | None = None  # the head that was fitted to the model for fast-shap, if any

    def inputs(self, rows: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
        batch = pad_batch(self.features, rows, pad_token_id=self.pad_token_id)
        return {name: tensor.to(self.accelerator.device) for name, tensor in batch.inputs.items()}

    def forward(self, inputs: dict[str, Tensor], **options: Any) -> Any:
        """Run the model on a batch, with gradients if they are enabled."""
        with self.accelerator.autocast():
            return self.model(**inputs, **options)

    def scores(
        self,
        rows: np.ndarray,
        masked: Sequence[np.ndarray | None] | None = None,
        *,
        attribution_head: AttributionHead | None = None,
    ) -> RowScores:
        """Predict rows without gradients, in batches of bounded size, with the estimates of an attribution head."""
        return score_rows(
            self.model,
            self.features,
            pad_token_id=self.pad_token_id,
            accelerator=self.accelerator,
            rows=rows,
            masked=masked,
            mask_token_id=self.mask_token_id,
            with_details=masked is None,
            attribution_head=attribution_head,
        )

    def values(self, logits_BC: Tensor, wanted_B: np.ndarray) -> Tensor:
        """Compute `value` of the classes to explain, (B,), with gradients."""
        target_B = self.targets(numpy_of(logits_BC), wanted_B)
        return self.value(logits_BC, torch.from_numpy(target_B).to(logits_BC.device))

    def per_row(self, values_BT: Tensor, rows: np.ndarray) -> list[np.ndarray]:
        """Split padded values into one float32 array per row, 0 at special tokens."""
        return self.ordinary_only(numpy_of(values_BT), rows)


@dataclass(frozen=True)
class Settings:
    """Options of the methods."""

    seed: int = 0  # of the random methods (LIME, SHAP, random)
    steps: int = 50  # points on the path of integrated gradients
    samples: int | None = None  # masked copies per text for LIME and SHAP; None for each method's default, 5000 and 500
    contrast: str | None = None  # the class that the class to explain is compared with; None for all other classes


@dataclass(frozen=True)
class MethodScores:
    """A method's scores for a batch of rows."""

    logits_BC: np.ndarray  # (B, C) of the unmasked rows, float32, or float64 for scores
    scores: list[np.ndarray]  # for each row (length,) float32, one number per token, 0 at special tokens
    without: list[np.ndarray] | None = None  # of leave-one-out: for each row (length, C) the logits without each token


@dataclass(frozen=True)
class WordScorer(PredictionScorer):
    """Predicts rows and copies of them without some of their words, by any function of texts.

    The features are words: an id is a checksum of a word's characters, and none is special.
    """

    predict: Callable[[TextRows], np.ndarray]  # from rows to (N, C) logits; equal rows of one call are predicted once
    rows: TextRows  # the rows to explain
    spans: Sequence[WordSpans]  # the words of each row

    def scores(self, rows: np.ndarray, masked: Sequence[np.ndarray | None] | None = None) -> RowScores:
        """Predict rows, with the words at masked positions deleted; columns beside the text stay as they are."""
        masked = [None] * len(rows) if masked is None else masked
        owner_N = rows if self.rows.extra else np.zeros(len(rows), dtype=np.int64)  # equal texts may differ in columns
        copies = [
            (int(owner), *self._without(int(row), words))
            for owner, row, words in zip(owner_N, rows, masked, strict=True)
        ]
        places = {copy: place for place, copy in enumerate(dict.fromkeys(copies))}
        owners, texts, pairs = zip(*places, strict=True) if places else ((), (), ())
        extra = self.rows.take(owners).extra if self.rows.extra else {}
        ids = tuple(str(number) for number in range(len(places)))
        distinct = TextRows(ids, texts, pairs if self.rows.pairs else None, None, self.rows.source, extra=extra)
        logits_NC = np.asarray(self.predict(distinct))
        return RowScores(logits_NC[[places[copy] for copy in copies]])

    def _without(self, row: int, words: np.ndarray | None) -> tuple[str, str]:
        """The texts of a row without some of its words; what surrounds them stays."""
        texts = {"text": self.rows.texts[row], "pair": self.rows.pairs[row] if self.rows.pairs else ""}
        for word in sorted(() if words is None else words.tolist(), reverse=True):
            within, start, end = self.spans[row][word]
            texts[within] = texts[within][:start] + texts[within][end:]
        return texts["text"], texts["pair"]


def word_features(rows: TextRows, spans: Sequence[WordSpans]) -> Features:
    """Return the words of rows in the form of tokens."""
    ids = []
    for row, row_spans in enumerate(spans):
        texts = {"text": rows.texts[row], "pair": rows.pairs[row] if rows.pairs else ""}
        ids += [
            zlib.crc32(texts[within][start:end].encode("utf-8", "surrogatepass")) & 0x7FFFFFFF
            for within, start, end in row_spans
        ]
    lengths = np.array([len(row_spans) for row_spans in spans], dtype=np.int64)
    return Features(
        ids=np.array(ids, dtype=np.int32),
        type_ids=None,
        special=np.zeros(len(ids), dtype=bool),
        starts=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
        full_lengths=lengths,
    )
