"""The layer weights of a run with squeeze-and-excitation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attentune.data.dataset import TaskData
from attentune.errors import ConfigError
from attentune.inference.predictor import Predictor
from attentune.inference.scoring import score_rows


@dataclass(frozen=True)
class LayerWeights:
    """The excitation of each layer over the texts of a split.

    Attributes:
        split: the split's name.
        weights_NL: (N, L) float32 from 0 to 1, one row per text.
    """

    split: str
    weights_NL: np.ndarray

    def summary(self) -> list[dict[str, Any]]:
        """Summarise each layer, numbered from 1: mean, standard deviation and quartiles over the texts."""
        rows = []
        for place, weights_N in enumerate(self.weights_NL.T):
            low, middle, high = np.quantile(weights_N, (0.25, 0.5, 0.75))
            rows.append(
                {
                    "layer": place + 1,
                    "mean": float(weights_N.mean()),
                    "std": float(weights_N.std()),
                    "quartiles": [float(low), float(middle), float(high)],
                }
            )
        return rows


def layer_weights(
    run: str | Path | Predictor,
    data: TaskData,
    *,
    precision: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[LayerWeights]:
    """Compute the layer weights of a run on these splits.

    Args:
        run: a run folder or checkpoint.
        data: the rows, as from `Predictor.data`.
        precision: overrides the run's precision.
        progress: called with the number of rows after each batch.

    Raises:
        ConfigError: the run has no squeeze-and-excitation.

    Source: figure 4 of SESAME (Su and Cheng 2019).
    """
    saved = (run if isinstance(run, Predictor) else Predictor.load(run)).single_model("layers")
    if not saved.model.config.layer_mix["squeeze"]:
        raise ConfigError(
            f"{saved.folder}: was trained without squeeze-and-excitation, so its layers have no weights; train with a"
            " preset such as sesame, or with --set model.layer_mix.squeeze=true."
        )
    evaluator = saved.evaluator(data, precision=precision)
    by_split = []
    for split, features in evaluator.features.items():
        scores = score_rows(
            evaluator.model,
            features,
            pad_token_id=evaluator.pad_token_id,
            batch_size=evaluator.batch_size,
            accelerator=evaluator.accelerator,
            with_details=True,
            progress=progress,
        )
        if scores.layer_weights_NL is not None:
            by_split.append(LayerWeights(split, scores.layer_weights_NL))
    return by_split
