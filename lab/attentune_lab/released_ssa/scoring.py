"""Dev scores as the released program computes them: means over three parts of the shuffled rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.tokenization import Features
from attentune.errors import DataError
from attentune.inference.scoring import RowScores
from attentune.metrics.metrics import score_predictions
from attentune.nn.losses import resolve_loss, row_losses
from attentune.seeding import numpy_generator

_NAMES = {
    "accuracy": "acc",
    "f1": "f1",
    "matthews_correlation": "mcc",
    "pearson": "pearson",
    "spearmanr": "spearmanr",
}
_MEANS: dict[tuple[str, ...], str] = {("f1", "accuracy"): "acc_and_f1", ("pearson", "spearmanr"): "corr"}


@dataclass(frozen=True)
class DevScores:
    """Scores of the dev rows."""

    parts: tuple[dict[str, float], ...]  # the metrics of each of the three parts
    whole: dict[str, float]  # the metrics on all rows, by the same names

    @property
    def means(self) -> dict[str, float]:
        """The dev scores of the released program: means over the parts."""
        return {name: sum(part[name] for part in self.parts) / len(self.parts) for name in self.whole}

    @property
    def chosen(self) -> float:
        """The score by which the released program selects the best epoch and names its files."""
        means = self.means
        return next(means[name] for name in ("acc", "mcc", "corr") if name in means)


def dev_scores(
    metrics: Sequence[str], rows: TextRows, logits_NC: np.ndarray, label_space: LabelSpace, *, seed: int
) -> DevScores:
    """Shuffle the rows, split them into three equal parts (up to two rows are left out), and score each part."""
    labels, third = rows.labels, len(rows) // 3
    if labels is None or third == 0:
        raise DataError(
            f"{rows.source}: has {len(rows)} rows, expected at least three labelled ones to cut into parts."
        )
    order = numpy_generator("dev parts", seed).permutation(len(rows))
    places = [order[part * third : (part + 1) * third] for part in range(3)]
    parts = tuple(_named(score_predictions(metrics, labels[part], logits_NC[part], label_space)) for part in places)
    return DevScores(parts, _named(score_predictions(metrics, labels, logits_NC, label_space)))


def _named(scores: Mapping[str, float]) -> dict[str, float]:
    """Rename metrics as in the released program, and add its means of two metrics."""
    renamed = {_NAMES[name]: value for name, value in scores.items()}
    mean = _MEANS.get(tuple(scores))
    return renamed if mean is None else {**renamed, mean: sum(renamed.values()) / 2}


def dev_losses(
    rows: TextRows, scored: RowScores, features: Features, label_space: LabelSpace, *, token_share: float
) -> dict[str, float]:
    """Compute the dev losses of the released program.

    The loss of the token head is computed as if every non-special token were labelled 1.
    """
    dtype = torch.float32 if label_space.task_type == "regression" else torch.long
    losses = row_losses(
        resolve_loss("auto", label_space.task_type),
        torch.from_numpy(scored.logits_NC),
        torch.as_tensor(rows.labels, dtype=dtype),
    )
    task = float(losses.mean())
    if scored.token_scores is None:
        return {"eval_total_loss": task, "eval_seq_loss": task, "eval_aug_loss": 0.0, "eval_aug_accuracy": 0.0}
    importance = np.concatenate(scored.token_scores)[~features.special]
    tokens = float(-np.log(np.clip(importance, 1e-12, 1.0)).mean())
    return {
        "eval_total_loss": (1.0 - token_share) * task + token_share * tokens,
        "eval_seq_loss": task,
        "eval_aug_loss": tokens,
        "eval_aug_accuracy": float((importance > 0.5).mean()),
    }
