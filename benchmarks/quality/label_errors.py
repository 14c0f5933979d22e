"""How well are flipped labels found: confident learning (cleanlab) against confidence alone and nearest neighbours?

    python -m benchmarks.quality.label_errors [--tasks sst2,cola,rte,sst5]

For each of three draws, 1,000 training rows are drawn from each task, and 5, 10 or 20 % of their labels replaced by
another class. The out-of-fold probabilities are those of `attentune doctor --labels`: a linear model on the frozen
embedded encoder, in five folds. Labels of the published data count as right, although some are wrong too. The record
goes to results/label-errors.json.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attentune.annotation.label_check import fit_folds
from attentune.baselines.frozen import FrozenEncoder
from attentune.config import Config, load_config
from attentune.data.checks.label_errors import disagreement, find_label_errors
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.load import load_data
from attentune.data.splits import stratified_sample
from attentune.seeding import numpy_generator
from benchmarks.common import RESULTS, data_dir, measure_tasks, table

TASKS = ("sst2", "cola", "rte", "sst5")
ROWS, DRAWS, SHARES, NEIGHBOURS = 1000, 3, (0.05, 0.1, 0.2), 10
METHODS = ("cleanlab", "confidence", "k-NN")
FILE = RESULTS / "label-errors.json"


def flipped(labels: np.ndarray, classes: int, share: float, *key: int | str) -> tuple[np.ndarray, np.ndarray]:
    """Replace a share of the labels by another class, each equally likely; return the labels and which are wrong."""
    generator = numpy_generator("flipped labels", *key)
    rows = generator.choice(len(labels), round(share * len(labels)), replace=False)
    changed, is_wrong = labels.copy(), np.zeros(len(labels), dtype=bool)
    changed[rows] = (labels[rows] + generator.integers(1, classes, size=len(rows))) % classes
    is_wrong[rows] = True
    return changed, is_wrong


def neighbour_agreement(features_ND: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the share of each row's nearest neighbours (by cosine) that have its label; ties by their similarity."""
    scaled_ND = (features_ND - features_ND.mean(axis=0)) / np.maximum(features_ND.std(axis=0), 1e-9)
    unit_ND = scaled_ND / np.linalg.norm(scaled_ND, axis=1, keepdims=True)
    cosine_NN = unit_ND @ unit_ND.T
    np.fill_diagonal(cosine_NN, -np.inf)
    near_NK = np.argsort(-cosine_NN, axis=1)[:, :NEIGHBOURS]
    same_NK = labels[near_NK] == labels[:, None]
    signs = np.where(same_NK, 1.0, -1.0) * np.take_along_axis(cosine_NN, near_NK, axis=1)
    return same_NK.mean(axis=1) + 1e-3 * signs.mean(axis=1)


def found(order: np.ndarray, count: int, is_wrong: np.ndarray) -> dict[str, float]:
    """Return precision and recall of the first rows of an order."""
    hits = int(is_wrong[order[:count]].sum())
    return {"precision": round(hits / max(count, 1), 4), "recall": round(hits / max(int(is_wrong.sum()), 1), 4)}


def measure(
    rows: TextRows, space: LabelSpace, frozen: FrozenEncoder, share: float, key: tuple[str, int]
) -> dict[str, Any]:
    """Flip labels of these rows, and look for them."""
    assert rows.labels is not None
    labels, is_wrong = flipped(rows.labels, space.num_labels, share, *key, str(share))
    noisy = replace(rows, labels=labels)
    probabilities_NC = fit_folds(noisy, space, frozen=frozen, seed=key[1]).probabilities(noisy, space)
    errors = find_label_errors(labels, probabilities_NC)
    given_N = probabilities_NC[np.arange(len(rows)), labels]
    # Confident learning's flagged rows first, then the others, each by the probability of the given label.
    is_flagged = np.isin(np.arange(len(rows)), errors.places)
    orders = {
        "cleanlab": np.lexsort((given_N, ~is_flagged)),
        "confidence": np.argsort(given_N, kind="stable"),
        "k-NN": np.argsort(neighbour_agreement(frozen.features(rows), labels), kind="stable"),
    }
    flagged, wrong = len(errors.places), int(is_wrong.sum())
    estimate = disagreement(labels, probabilities_NC)
    return {
        "share": share,
        "flagged": flagged,
        "disagreeing": found(
            np.flatnonzero(probabilities_NC.argmax(axis=1) != labels),
            int((probabilities_NC.argmax(axis=1) != labels).sum()),
            is_wrong,
        ),
        "at_flagged": {name: found(order, flagged, is_wrong) for name, order in orders.items()},
        "at_flipped": {name: found(order, wrong, is_wrong) for name, order in orders.items()} if wrong else {},
        "accuracy_of_true_labels": round(float((probabilities_NC.argmax(axis=1) == rows.labels).mean()), 4),
        "estimate": {name: round(getattr(estimate, name), 4) for name in ("value", "low", "high")},
        "joint_estimate": round(joint_estimate(labels, probabilities_NC), 4),
    }


def joint_estimate(labels: np.ndarray, probabilities_NC: np.ndarray) -> float:
    """Return the share of wrong labels in cleanlab's joint distribution of given and true classes."""
    from cleanlab.count import estimate_joint

    return float(1.0 - np.trace(estimate_joint(labels, probabilities_NC)))


def run_task(task: str) -> list[dict[str, Any]]:
    """Measure one task: all draws and shares, and also unchanged labels, for the estimate."""
    config: Config = load_config(overrides={"data.task": task, "data.data_dir": str(data_dir())})
    data = load_data(config.data, seed=config.training.seed, splits=("train",))
    frozen = FrozenEncoder(config.model, config.data.max_length, use_cpu=True)
    results = []
    for draw in range(DRAWS):
        train = data.splits["train"]
        rows = train.take(stratified_sample(train.labels, ROWS, "label errors", draw))
        for share in (0.0, *SHARES):
            results.append({"task": task, "draw": draw, **measure(rows, data.label_space, frozen, share, (task, draw))})
            print(json.dumps(results[-1]), flush=True)
    return results


def tables(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the tables of docs/data.md: means over the draws."""

    def mean(own: Sequence[dict[str, Any]], *path: str) -> float:
        values = []
        for result in own:
            value: Any = result
            for name in path:
                value = value[name]
            values.append(float(value))
        return statistics.mean(values)

    by_cell: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for result in results:
        by_cell.setdefault((result["task"], result["share"]), []).append(result)
    lines, estimates = [], []
    for (task, share), own in by_cell.items():
        estimates.append(
            (
                task,
                f"{100 * share:.0f} %",
                f"{mean(own, 'accuracy_of_true_labels'):.2f}",
                f"{100 * mean(own, 'estimate', 'value'):.1f} %",
                f"{100 * mean(own, 'estimate', 'low'):.1f} to {100 * mean(own, 'estimate', 'high'):.1f} %",
                f"{100 * mean(own, 'joint_estimate'):.1f} %",
            )
        )
        if not share:
            continue
        pairs = [
            f"{mean(own, 'at_flagged', name, 'precision'):.2f} / {mean(own, 'at_flagged', name, 'recall'):.2f}"
            for name in METHODS
        ]
        at_flipped = [f"{mean(own, 'at_flipped', name, 'precision'):.2f}" for name in METHODS]
        lines.append((task, f"{100 * share:.0f} %", f"{mean(own, 'flagged'):.0f}", *pairs, *at_flipped))
    header = ("task", "flipped", "flagged", *METHODS, *(f"{name}, first k" for name in METHODS))
    second = ("task", "flipped", "accuracy", "estimate", "interval", "cleanlab's joint")
    return [*table(header, lines), "", *table(second, estimates)]


if __name__ == "__main__":
    measure_tasks(
        "benchmarks.quality.label_errors",
        __doc__,
        FILE,
        tasks=TASKS,
        measure=run_task,
        tables=tables,
        facts={"rows": ROWS},
    )
