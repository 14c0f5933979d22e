"""Do suggested texts help more than random ones? A simulation with known labels.

    python -m benchmarks.quality.suggest [--tasks sst2,sst5]

From a pool of 2,000 training rows, 50 random ones are labelled; then five times 50 more, chosen by each method from the
rest. The learner is a linear model on the frozen embedded encoder (frozen-linear), which is cheap: it is not
fine-tuning. "disagreement" compares five such models, each fitted without one fold of the labelled rows. Scored by
accuracy on the dev set; five seeds. The record goes to results/suggest.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from attentune.annotation.label_check import fit_folds
from attentune.annotation.suggest import badge, disagreement, margins
from attentune.baselines.frozen import FrozenEncoder, FrozenLinear
from attentune.config import load_config
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.load import load_data
from attentune.data.splits import stratified_sample
from attentune.metrics.metrics import probabilities_of
from attentune.seeding import numpy_generator
from attentune.stats.bootstrap import bootstrap_interval
from benchmarks.common import RESULTS, data_dir, measure_tasks, table

TASKS, METHODS = ("sst2", "sst5"), ("random", "margin", "badge", "disagreement")
POOL, STEP, ROUNDS, SEEDS = 2000, 50, 5, 5
FILE = RESULTS / "suggest.json"


def choose(
    method: str, learner: FrozenLinear, labelled: TextRows, rest: TextRows, space: LabelSpace, seed: int, step: int
) -> np.ndarray:
    """Choose rows to label from the rest."""
    generator = numpy_generator("suggest", method, seed, step)
    if method == "random":
        return generator.choice(len(rest), STEP, replace=False)
    if method == "disagreement":
        folds = fit_folds(labelled, space, frozen=learner.frozen, seed=seed)
        by_model = np.stack([probabilities_of(model.logits(rest), space) for model in folds.models])
        return np.argsort(-disagreement(by_model, [1.0] * len(by_model)), kind="stable")[:STEP]
    shares_NC = probabilities_of(learner.logits(rest), space)
    if method == "badge":
        return badge(shares_NC, learner.frozen.features(rest), STEP, generator)
    return np.argsort(margins(shares_NC), kind="stable")[:STEP]


def simulate(
    method: str, pool: TextRows, scored: TextRows, space: LabelSpace, frozen: FrozenEncoder, seed: int
) -> list[float]:
    """Return the accuracy on the scored rows with 50, 100, ... labelled rows."""
    start = stratified_sample(pool.labels, STEP, "suggest start", seed)
    is_labelled = np.zeros(len(pool), dtype=bool)
    is_labelled[start] = True
    accuracies = []
    for step in range(ROUNDS + 1):
        labelled = pool.take(np.flatnonzero(is_labelled))
        learner = FrozenLinear(frozen, seed=seed).fit(labelled, space)
        accuracies.append(round(float((learner.logits(scored).argmax(axis=1) == scored.labels).mean()), 4))
        if step < ROUNDS:
            places = np.flatnonzero(~is_labelled)
            is_labelled[places[choose(method, learner, labelled, pool.take(places), space, seed, step)]] = True
    return accuracies


def run_task(task: str) -> list[dict[str, Any]]:
    """Simulate all methods and seeds on a task."""
    config = load_config(overrides={"data.task": task, "data.data_dir": str(data_dir())})
    data = load_data(config.data, seed=42, splits=("train", "validation"))
    train = data.splits["train"]
    pool = train.take(stratified_sample(train.labels, POOL, "suggest pool"))
    frozen = FrozenEncoder(config.model, config.data.max_length, use_cpu=True)
    results = []
    for seed in range(SEEDS):
        for method in METHODS:
            scores = simulate(method, pool, data.splits["validation"], data.label_space, frozen, seed)
            results.append({"task": task, "seed": seed, "method": method, "accuracies": scores})
            print(json.dumps(results[-1]), flush=True)
    return results


def tables(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table of the docs: mean accuracy by number of labels, and the gain over random choice over rounds."""
    lines = []
    for task in dict.fromkeys(result["task"] for result in results):
        curves = {
            method: np.array([one["accuracies"] for one in results if (one["task"], one["method"]) == (task, method)])
            for method in METHODS
        }
        for method, curve_ST in curves.items():
            # Mean over the rounds after the start, which is the same for all methods; paired by seed.
            gains_S = (curve_ST - curves["random"])[:, 1:].mean(axis=1)
            low, high = bootstrap_interval(
                lambda seeds, gains_S=gains_S: float(gains_S[seeds].mean()),
                len(gains_S),
                generator=numpy_generator("suggest gains"),
            )
            means = [f"{curve_ST[:, number].mean():.3f}" for number in (0, 1, 3, 5)]
            gain = "" if method == "random" else f"{gains_S.mean():+.3f} ({low:+.3f} to {high:+.3f})"
            lines.append((task, method, *means, gain))
    header = ("task", "method", *(f"{STEP * (number + 1)} labels" for number in (0, 1, 3, 5)), "gain over random")
    return table(header, lines)


if __name__ == "__main__":
    measure_tasks("benchmarks.quality.suggest", __doc__, FILE, tasks=TASKS, measure=run_task, tables=tables)
