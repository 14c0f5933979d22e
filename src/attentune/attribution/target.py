"""What is explained: one number a text, and the classes by their names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from attentune.config.parse import did_you_mean
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError

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
    if label_space.has_several:
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
