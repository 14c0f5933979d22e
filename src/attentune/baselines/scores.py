"""Fit the baselines of a task on its training rows, and score its other splits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attentune.baselines.frozen import FrozenEncoder
from attentune.baselines.registry import baselines_for, make_baseline
from attentune.config import ModelConfig
from attentune.data.dataset import CALIBRATION, TaskData
from attentune.errors import ConfigError
from attentune.metrics.metrics import score_predictions


@dataclass(frozen=True)
class BaselineResult:
    """A fitted baseline's scores."""

    name: str  # its name in the registry
    scores: dict[str, dict[str, float]]  # metric values by split and metric; splits without labels have none
    logits: dict[str, np.ndarray]  # (N, C) by split; see `Baseline.logits`
    seconds: float  # the time for fitting and scoring, with encoding the texts
    notes: tuple[str, ...] = ()  # sentences on how it was fitted


def score_baselines(
    data: TaskData,
    *,
    encoder: ModelConfig,
    max_length: int,
    seed: int,
    names: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    use_cpu: bool = False,
    on_error: Callable[[str, Exception], None] | None = None,
) -> list[BaselineResult]:
    """Fit baselines on the split `train` and score all other splits but that for calibration."""
    fitting = baselines_for(data)
    for name in names or ():
        if name not in fitting:
            raise ConfigError(f"baselines: got {name!r}, expected some of {', '.join(fitting)} for these rows.")
    frozen = FrozenEncoder(encoder, max_length, use_cpu=use_cpu)
    results = []
    for name in fitting if names is None else names:
        try:
            results.append(_fitted(name, data, frozen, encoder, max_length, seed, metrics or data.metrics))
        except Exception as error:
            if on_error is None:
                raise
            on_error(name, error)
    return results


def _fitted(
    name: str,
    data: TaskData,
    frozen: FrozenEncoder,
    encoder: ModelConfig,
    max_length: int,
    seed: int,
    metrics: Sequence[str],
) -> BaselineResult:
    shared = frozen.seconds
    started = time.perf_counter()
    baseline = make_baseline(name, encoder=encoder, max_length=max_length, seed=seed, frozen=frozen)
    baseline.fit(data.splits["train"], data.label_space)
    logits = {
        split: baseline.logits(rows) for split, rows in data.splits.items() if split not in ("train", CALIBRATION)
    }
    seconds = time.perf_counter() - started
    if hasattr(baseline, "frozen"):  # texts that an earlier baseline has encoded count here too
        seconds += shared
    scores = {}
    for split, logits_NC in logits.items():
        labels = data.splits[split].labels
        if labels is not None and len(labels):
            scores[split] = score_predictions(metrics, labels, logits_NC, data.label_space)
    return BaselineResult(name, scores, logits, seconds, baseline.notes)
