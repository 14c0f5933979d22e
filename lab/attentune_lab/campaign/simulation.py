"""Simulated experiments with a known true difference: right and wrong answers of methods to the same examples, by seed.

An answer is right where the sum of normal parts is above a threshold: how easy the example is, how the method takes to
that example, the seed's luck that both methods share, the method's own luck with the seed, and luck in that one
answer. So the expected accuracy is known exactly. A run may also collapse to the majority guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from attentune.seeding import numpy_generator

# Answers drawn at a time.
_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Scenario:
    """The model that experiments are drawn from; standard deviations are in units of the noise of one answer."""

    examples: int  # the number of examples
    accuracy: float  # the baseline's expected accuracy over seeds and examples
    example_sd: float = 3.0  # standard deviation of the examples' difficulty
    interaction_sd: float = 0.7  # standard deviation of the interaction of method and example, the same for all seeds
    shared_seed_sd: float = 0.12  # standard deviation of the seed effect that both methods share
    own_seed_sd: float = 0.12  # standard deviation of each method's own seed effect
    collapse: float = 0.0  # the share of runs that predict the majority class only
    guess: float = 0.5  # the accuracy of such a run

    def threshold(self, accuracy: float) -> float:
        spreads = (self.example_sd, self.interaction_sd, self.shared_seed_sd, self.own_seed_sd, 1.0)
        return float(ndtri(accuracy)) * math.sqrt(sum(spread**2 for spread in spreads))


SCENARIOS = {
    "277 examples": Scenario(examples=277, accuracy=0.62),
    "872 examples": Scenario(examples=872, accuracy=0.82, shared_seed_sd=0.13, own_seed_sd=0.13),
    "872 examples, same tastes": Scenario(
        examples=872, accuracy=0.82, interaction_sd=0.0, shared_seed_sd=0.13, own_seed_sd=0.13
    ),
    "277 examples, 1 run in 10 collapses": Scenario(examples=277, accuracy=0.62, collapse=0.1),
}


def answers(
    scenario: Scenario, gaps: tuple[float, ...], seeds: int, plays: int, generator: np.random.Generator
) -> np.ndarray:
    """(methods, plays, S, N) right or wrong; each method's expected accuracy is the scenario's plus its gap.

    With collapses the true gap is (1 - collapse) of that.
    """

    def normal(sd: float, *shape: int) -> np.ndarray:
        return np.float32(sd) * generator.standard_normal(shape, dtype=np.float32)

    methods, examples = len(gaps), scenario.examples
    bars = np.array([scenario.threshold(scenario.accuracy + gap) for gap in gaps], dtype=np.float32)
    found = normal(1.0, methods, plays, seeds, examples)
    found += normal(scenario.example_sd, 1, plays, 1, examples) + normal(
        scenario.interaction_sd, methods, plays, 1, examples
    )
    found += normal(scenario.shared_seed_sd, 1, plays, seeds, 1) + normal(
        scenario.own_seed_sd, methods, plays, seeds, 1
    )
    right = found + bars[:, None, None, None] > 0
    if scenario.collapse:
        collapsed = generator.random((methods, plays, seeds, 1)) < scenario.collapse
        guessed = generator.random((1, plays, 1, examples)) < scenario.guess
        right = np.where(collapsed, guessed, right)
    return right


def batches(scenario: Scenario, gaps: tuple[float, ...], seeds: int, plays: int, key: str) -> Iterator[np.ndarray]:
    """The answers of that many plays, a few million at a time."""
    size = max(1, _AT_ONCE // (len(gaps) * seeds * scenario.examples))
    for start in range(0, plays, size):
        generator = numpy_generator("stat-rates", key, seeds, repr(gaps), start)
        yield answers(scenario, gaps, seeds, min(size, plays - start), generator)


def differences(scenario: Scenario, gap: float, seeds: int, plays: int, key: str) -> Iterator[np.ndarray]:
    """(plays, S, N) +1, 0 or -1: the second method's answers less the first's."""
    for right in batches(scenario, (0.0, gap), seeds, plays, key):
        yield right[1].astype(np.float64) - right[0]


def matthews_values(labels_PN: np.ndarray, right_PSN: np.ndarray) -> np.ndarray:
    """(plays, S, N) jackknife values of Matthews' correlation: only four different ones a run, one a table cell."""
    guesses_PSN = labels_PN[:, None] == right_PSN
    cells_PSN = 2 * labels_PN[:, None].astype(np.int64) + guesses_PSN
    counts_PSC = np.stack([(cells_PSN == cell).sum(axis=-1) for cell in range(4)], axis=-1).astype(np.float64)
    whole_PS = _matthews(counts_PSC)
    without_PSC = np.stack([_matthews(counts_PSC - np.eye(4)[cell]) for cell in range(4)], axis=-1)
    examples = right_PSN.shape[-1]
    mean_PS1 = (without_PSC * counts_PSC).sum(axis=-1, keepdims=True) / examples
    values_PSC = whole_PS[..., None] + (examples - 1) * (mean_PS1 - without_PSC)
    return np.take_along_axis(values_PSC, cells_PSN, axis=-1)


def _matthews(counts: np.ndarray) -> np.ndarray:
    """From (..., 4) counts: label 0 guessed 0, guessed 1, label 1 guessed 0, guessed 1; 0 where it is undefined."""
    tn, fp, fn, tp = np.moveaxis(counts, -1, 0)
    size = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return np.where(size > 0, (tp * tn - fp * fn) / np.sqrt(np.maximum(size, 1.0)), 0.0)
