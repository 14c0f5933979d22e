"""False alarms of tests over the folds of cross-validation, by simulation.

    python -m attentune_lab.campaign.fold_rates [PLAYS]

Two learners that are equally good by construction - nearest class mean on one half of the features, or on the other -
are cross-validated on made-up rows, again and again. One JSON object on standard output.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from attentune.data.splits import stratified_folds
from attentune.stats.estimate import mean_over_seeds

LEVEL = 0.05
FEATURES, SHIFT = 8, 0.35


def difference(x_NF: np.ndarray, labels_N: np.ndarray, scored: np.ndarray) -> float:
    """How much more accurate the first learner is on the rows scored, trained on the others."""
    kept = np.setdiff1d(np.arange(len(labels_N)), scored)
    right = []
    for half in (slice(0, FEATURES), slice(FEATURES, 2 * FEATURES)):
        means = [x_NF[kept][labels_N[kept] == label, half].mean(axis=0) for label in (0, 1)]
        gaps = [((x_NF[scored][:, half] - mean) ** 2).sum(axis=1) for mean in means]
        right.append(np.mean((gaps[1] < gaps[0]) == labels_N[scored]))
    return float(right[0] - right[1])


def play(folds: int, repeats: int, rows: int, plays: int, seed: int = 1) -> dict[str, float]:
    """The shares of plays in which the plain and the corrected test reject at 5 %."""
    differences = []
    for number in range(plays):
        draw = np.random.default_rng([seed, folds, repeats, rows, number])
        labels_N = np.arange(rows) % 2
        x_NF = draw.standard_normal((rows, 2 * FEATURES)) + SHIFT * labels_N[:, None]
        parts = [part for again in range(repeats) for part in stratified_folds(labels_N, folds, number, again)]
        differences.append([difference(x_NF, labels_N, part) for part in parts])
    values_PS = np.array(differences)
    rates = {}
    for name, overlap in (("plain", 0.0), ("corrected", 1 / (folds - 1))):
        p_P = np.asarray(mean_over_seeds(values_PS, overlap=overlap).p)
        rates[name] = float(np.mean(p_P <= LEVEL))
    return rates


def main() -> int:
    """All settings of docs/statistics.md."""
    plays = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    found = {
        f"{rows} rows, {folds} folds, cut {repeats} x": play(folds, repeats, rows, plays)
        for rows in (100, 500)
        for folds, repeats in ((5, 1), (10, 1), (5, 2), (10, 5))
    }
    print(json.dumps({"plays": plays, "rates": found}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
