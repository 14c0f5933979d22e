"""How methods ask the model that they explain."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attentune.config.parse import did_you_mean
from attentune.data.batching import pad_batch
from attentune.data.dataset import LabelSpace
from attentune.data.tokenization import Features
from attentune.errors import ConfigError
from attentune.inference.scoring import RowScores, score_rows
from attentune.metrics.metrics import predictions_of

# Stands for the class that the model predicts.
PREDICTED = -1


def target_value(logits_BC: Tensor, target_B: Tensor, label_space: LabelSpace) -> Tensor:
    """(B,) float32, what signed methods explain: log p / (1 - p) of the target class, or the predicted score.

    The log odds are the class's logit against those of all others. Unlike the probability they do not level off where
    a model is sure, and unlike the logit alone they fall when another class gains.

    Args:
        logits_BC: with one column for scores.
        target_B: class ids; for scores they are not looked at.
        label_space: what the model predicts. Of several labels a row each has log odds of its own: its logit.
    """
    logits_BC = logits_BC.float()
    if logits_BC.shape[1] == 1:
        return logits_BC[:, 0]
    target_B1 = target_B[:, None]
    if label_space.is_multilabel:
        return logits_BC.gather(1, target_B1)[:, 0]
    others_BC = logits_BC.scatter(1, target_B1, float("-inf"))
    return logits_BC.gather(1, target_B1)[:, 0] - others_BC.logsumexp(dim=1)


def class_ids(target: str | Sequence[str] | None, label_space: LabelSpace, rows: int) -> np.ndarray:
    """(N,) int64 ids of the classes to explain, `PREDICTED` where the model's own choice is to be.

    Args:
        target: a class's name, for all texts; or one for each text; None for the predicted ones.
        label_space: what the model predicts.
        rows: how many texts there are.

    Raises:
        ConfigError: there is no such class; or not one name a text; or there are no classes.
    """
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
        if name not in label_space.label2id:
            raise ConfigError(
                f"target: got {name!r}, expected one of the run's classes: {', '.join(label_space.names)}."
                f"{did_you_mean(str(name), label_space.names)}"
            )
    return np.array([label_space.label2id[name] for name in names], dtype=np.int64)


@dataclass(frozen=True)
class Scorer:
    """A model in evaluation mode and the rows to ask it about.

    Attributes:
        model: an `AttentuneForSequenceClassification` on the accelerator's device.
        accelerator: Accelerate's, where and in which precision.
        features: the rows' tokens.
        label_space: what the model predicts.
        pad_token_id: fills up shorter rows.
        mask_token_id: stands for a token that is gone.
    """

    model: Any
    accelerator: Any
    features: Features
    label_space: LabelSpace
    pad_token_id: int
    mask_token_id: int

    def inputs(self, rows: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
        """These rows as a batch on the model's device."""
        batch = pad_batch(self.features, rows, pad_token_id=self.pad_token_id)
        return {name: tensor.to(self.accelerator.device) for name, tensor in batch.inputs.items()}

    def ask(self, inputs: dict[str, Tensor], **options: Any) -> Any:
        """The model's output for a batch, with gradients where they are on."""
        with self.accelerator.autocast():
            return self.model(**inputs, **options)

    def scores(self, rows: np.ndarray, masked: Sequence[np.ndarray | None] | None = None) -> RowScores:
        """What the model says of rows, of each with these places masked; without gradients, in batches that fit."""
        return score_rows(
            self.model,
            self.features,
            pad_token_id=self.pad_token_id,
            accelerator=self.accelerator,
            rows=rows,
            masked=masked,
            mask_token_id=self.mask_token_id,
            with_details=masked is None,
        )

    def targets(self, logits_BC: np.ndarray, wanted_B: np.ndarray) -> np.ndarray:
        """(B,) int64, the classes to explain: those wanted, or the predicted ones; 0 for scores.

        Of several labels a row it is the likeliest one, whether it is predicted or not.
        """
        if self.label_space.task_type == "regression":
            return np.zeros(len(wanted_B), dtype=np.int64)
        if self.label_space.is_multilabel:
            return np.where(wanted_B == PREDICTED, logits_BC.argmax(axis=1), wanted_B).astype(np.int64)
        return np.where(wanted_B == PREDICTED, predictions_of(logits_BC, self.label_space), wanted_B).astype(np.int64)

    def values(self, logits_BC: Tensor, wanted_B: np.ndarray) -> Tensor:
        """(B,) `target_value` of the classes to explain, with gradients."""
        target_B = self.targets(numpy_of(logits_BC), wanted_B)
        return target_value(logits_BC, torch.from_numpy(target_B).to(logits_BC.device), self.label_space)

    def in_rows(self, values_BT: Tensor, rows: np.ndarray) -> list[np.ndarray]:
        """Of each row its tokens' values as float32, 0 at special ones."""
        return self.ordinary_only(numpy_of(values_BT), rows)

    def ordinary_only(self, scores: Sequence[np.ndarray] | np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
        """Of each row its tokens' scores, cut at its length, 0 at special tokens."""
        special = [self.features.special[self.features.row(int(row))] for row in rows]
        return [
            np.where(is_special, np.float32(0.0), own[: len(is_special)])
            for is_special, own in zip(special, scores, strict=True)
        ]

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """While the block runs the model is in evaluation mode; then in the mode that it was in."""
        was_training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(was_training)


@dataclass(frozen=True)
class Settings:
    """What methods can be told.

    Attributes:
        seed: of the random ones.
        steps: of integrated gradients.
        samples: masked copies of a text, of LIME and SHAP; None for each one's own default.
    """

    seed: int = 0
    steps: int = 50
    samples: int | None = None


@dataclass(frozen=True)
class Scored:
    """What a method found for a batch of rows.

    Attributes:
        logits_BC: (B, C) float32 of the rows as they are.
        scores: of each row (length,) float32, one number a token, 0 at special ones.
    """

    logits_BC: np.ndarray
    scores: list[np.ndarray]


def numpy_of(tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor as float32."""
    return tensor.detach().float().cpu().numpy()
