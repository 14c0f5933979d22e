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
    """The excitation of the layers that reach the output, over the texts of a split."""

    split: str  # the split's name
    layers: tuple[int, ...]  # the numbers of these layers, from 1
    weights_NL: np.ndarray  # (N, layers) float32 from 0 to 1, one row per text

    def summary(self) -> list[dict[str, Any]]:
        """Summarise each layer: mean, standard deviation and quartiles over the texts."""
        rows = []
        for layer, weights_N in zip(self.layers, self.weights_NL.T, strict=True):
            low, middle, high = np.quantile(weights_N, (0.25, 0.5, 0.75))
            rows.append(
                {
                    "layer": layer,
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

    Source: figure 4 of SESAME (Su and Cheng 2019).
    """
    saved = (run if isinstance(run, Predictor) else Predictor.load(run)).single_model("layers")
    if not saved.model.config.layer_mix["squeeze"]:
        raise ConfigError(
            f"{saved.folder}: was trained without squeeze-and-excitation, so its layers have no weights; train with a"
            " preset such as sesame-weighted, or with --set model.layer_mix.squeeze=true."
        )
    mix: Any = saved.model.layer_mix
    layers = mix.reached_layers()
    if len(layers) < 2:
        raise ConfigError(
            f"{saved.folder}: was trained with model.layer_mix.kind {saved.model.config.layer_mix['kind']}, which uses"
            f" layer {layers[0] if layers else 'none'} alone: the weights of all other layers have had no gradient and"
            " are those of the start. Train with a preset such as sesame-weighted, or with --set"
            " model.layer_mix.kind=weighted (or sum-all, mean-all, sum-last-4)."
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
            shown_NL = scores.layer_weights_NL[:, [layer - 1 for layer in layers]]
            by_split.append(LayerWeights(split, layers, shown_NL))
    return by_split
