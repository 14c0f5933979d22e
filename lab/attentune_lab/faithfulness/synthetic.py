"""Evaluates methods on synthetic ground truth: the shortcut experiment's reviews, whose decisive words are known.

A review's label depends on one word ("single"), on a word and its negation ("context"), or on two words and their order
("pair"). Only correctly predicted reviews are used: for the others it is unknown which words the model relied on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attentune.data.dataset import TextRows
from attentune.errors import ConfigError
from attentune.explain.methods import METHODS
from attentune.inference.predictor import Predictor
from attentune_lab.faithfulness.measure import FaithfulnessResult, mean_interval
from attentune_lab.interval import Interval
from attentune_lab.synthetic import KINDS, LABEL_NAMES, SPLITS, DemoRow, generate

SHORTCUT_STRENGTH = 0.8
_Spans = Sequence[tuple[str, int, int] | None]


@dataclass(frozen=True)
class SyntheticScore:
    """How well a method ranks the decisive tokens, in the reviews of one kind."""

    method: str  # a key of `METHODS`
    signed: bool  # whether its scores can be negative
    kind: str  # "single", "context" or "pair"
    rows: int  # number of correctly predicted reviews
    first: Interval  # share of reviews whose top-ranked token is decisive
    precision: Interval  # precision at k, k being the number of decisive tokens
    mean_rank: Interval  # mean rank of the decisive tokens, from 1
    best_rank: float  # the best possible mean rank
    shortcut_first: float  # share of reviews whose top-ranked token is the shortcut


def synthetic_rows(saved: Predictor, count: int, split: str) -> tuple[TextRows, list[DemoRow]]:
    """Generate the first reviews of a split of the demo with the run's seed, and their ground truth.

    Splits never share a review, whatever the seeds.
    """
    problems = []
    if set(saved.label_space.names) != set(LABEL_NAMES) or saved.is_pair:
        classes = "pairs of texts" if saved.is_pair else ", ".join(saved.label_space.names) or "scores"
        problems.append(
            f"demo: {saved.folder} predicts {classes}; expected a run of single texts, {' or '.join(LABEL_NAMES)}, such"
            " as `attentune shortcut` trains."
        )
    if split not in SPLITS[1:]:
        problems.append(f"split: got {split!r}, expected one of the demo's: {', '.join(SPLITS[1:])}.")
    if problems:
        raise ConfigError(problems)
    seed = saved.config.training.seed
    made = generate(split, count, seed=seed, shortcut_strength=SHORTCUT_STRENGTH)
    labels = np.array([saved.label_space.label2id[LABEL_NAMES[row.label]] for row in made], dtype=np.int64)
    ids = tuple(f"{split}-{number}" for number in range(count))
    return TextRows(ids, tuple(row.text for row in made), None, labels, f"demo ({split})"), made


def decisive_tokens(spans: _Spans, truth: DemoRow) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of a review's decisive tokens, and of the shortcut's."""
    cinema = () if truth.shortcut is None else (truth.shortcut,)
    return _overlapping(spans, truth.decisive), _overlapping(spans, cinema)


def _overlapping(spans: _Spans, words: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the positions of the tokens that overlap with these character spans."""
    places = [
        place
        for place, span in enumerate(spans)
        if span is not None and any(start < span[2] and span[1] < end for start, end in words)
    ]
    return np.array(places, dtype=np.int64)


def evidence_of(result: FaithfulnessResult, truths: Sequence[DemoRow]) -> dict[int, list[tuple[int, int]]]:
    """Return for each row the spans of its decisive words as indices into its non-special tokens."""
    evidence = {}
    for row, truth in enumerate(truths):
        ordinary = result.explainer.scorer.features.non_special_positions(row)
        words = [
            np.searchsorted(ordinary, _overlapping(result.explainer.spans[row], [word])) for word in truth.decisive
        ]
        evidence[row] = [(int(positions[0]), int(positions[-1]) + 1) for positions in words if len(positions)]
    return evidence


def score_synthetic(result: FaithfulnessResult, truths: Sequence[DemoRow], seed: int = 0) -> list[SyntheticScore]:
    tokens = [decisive_tokens(result.explainer.spans[row], truth) for row, truth in enumerate(truths)]
    target_N = [attribution.target for attribution in next(iter(result.ranked.values())).attributions]
    labels = result.rows.labels
    assert labels is not None
    lines = []
    for kind in KINDS:
        chosen = [
            row
            for row, truth in enumerate(truths)
            if truth.kind == kind and target_N[row] == labels[row] and len(tokens[row][0])
        ]
        if chosen:
            lines += [_score(name, kind, chosen, tokens, result, seed) for name in result.ranked]
    return lines


def _score(
    name: str,
    kind: str,
    chosen: list[int],
    tokens: list[tuple[np.ndarray, np.ndarray]],
    result: FaithfulnessResult,
    seed: int,
) -> SyntheticScore:
    draws = [
        np.array([places_of(orders[row], *tokens[row]) for row in chosen]) for orders in result.ranked[name].orders
    ]
    first_N, precision_N, rank_N, shortcut_N = np.mean(draws, axis=0).T
    return SyntheticScore(
        method=name,
        signed=METHODS[name].signed,
        kind=kind,
        rows=len(chosen),
        first=mean_interval(first_N, seed),
        precision=mean_interval(precision_N, seed),
        mean_rank=mean_interval(rank_N, seed),
        best_rank=float(np.mean([(len(tokens[row][0]) + 1) / 2 for row in chosen])),
        shortcut_first=float(shortcut_N.mean()),
    )


def places_of(order: np.ndarray, decisive: np.ndarray, shortcut: np.ndarray) -> tuple[float, float, float, float]:
    """Evaluate one order: is the first token decisive, precision at k, mean rank, is the first token the shortcut."""
    is_decisive = np.isin(order, decisive)
    return (
        float(is_decisive[0]),
        float(is_decisive[: len(decisive)].mean()),
        float(np.flatnonzero(is_decisive).mean() + 1.0),
        float(order[0] in shortcut),
    )
