"""Perturbation-based methods, which mask tokens and look at the change: leave-one-out, LIME and SHAP.

LIME and SHAP see of a text only which tokens are present: a feature is 1 for a token as it is, 0 for a masked one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attentune.data.tokenization import Features
from attentune.explain.scorer import MethodScores, PredictionScorer, Settings
from attentune.seeding import derive_key, numpy_generator, seed_global

# From (S, M) presence of M tokens in S copies of a text, 1 or 0, to the (S,) values of the function to explain.
ValueOfCopies = Callable[[Tensor], Tensor]


def leave_one_out(scorer: PredictionScorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Compute f(text) - f(text with token i masked), f being `target_value`."""
    owner_M, place_M = single_token_masks(scorer.features, rows)
    masked = [*(None for _ in rows), *(np.array([place]) for place in place_M)]
    logits_NC = scorer.scores(np.concatenate([rows, rows[owner_M]]), masked).logits_NC
    plain_BC, masked_MC = logits_NC[: len(rows)], logits_NC[len(rows) :]
    target_B = torch.from_numpy(scorer.targets(plain_BC, wanted_B))
    before_B = scorer.value(torch.from_numpy(plain_BC), target_B).numpy()
    target_M = target_B[torch.from_numpy(owner_M)]
    after_M = scorer.value(torch.from_numpy(masked_MC), target_M).numpy()
    scores = [np.zeros(length, dtype=np.float32) for length in scorer.features.lengths[rows]]
    for owner, place, after in zip(owner_M, place_M, after_M, strict=True):
        scores[owner][place] = before_B[owner] - after
    return MethodScores(plain_BC, scores)


def single_token_masks(features: Features, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """List the copies of rows in which one non-special token is masked."""
    places = [features.non_special_positions(int(row)) for row in rows]
    owner_M = np.repeat(np.arange(len(rows)), [len(row_places) for row_places in places])
    return owner_M, np.concatenate([np.zeros(0, np.int64), *places]).astype(np.int64)


@dataclass(frozen=True)
class LimeVariant:
    """The points in which programs of LIME differ."""

    # From a number of features and a random key to the presence of each feature in one copy after another, (1,
    # features) float32.
    draw: Callable[[int, int], Iterator[Tensor]]
    kernel_denominator: float  # a copy whose cosine distance from the text is d weighs exp(-d^2 / kernel_denominator)
    copies_per_pass: int | None = None  # copies in one call of the model; None for all


def _draw_like_lime_text(features: int, key: int) -> Iterator[Tensor]:
    """The text itself, then copies that lack a uniformly drawn number of tokens."""
    generator = numpy_generator("lime-copies", key)
    yield torch.ones(1, features)
    while True:
        present = np.ones((1, features), dtype=np.float32)
        present[0, generator.choice(features, size=generator.integers(1, features + 1), replace=False)] = 0.0
        yield torch.from_numpy(present)


def _draw_halves(features: int, key: int) -> Iterator[Tensor]:
    """Copies that lack each token with probability 1/2, from PyTorch's global generator, seeded by the caller."""
    while True:
        yield torch.bernoulli(torch.full((1, features), 0.5))


# The width of the kernel is 0.25 in both; the one has the form exp(-d^2 / (2 width^2)), the other exp(-d^2 / width^2).
LIME_TEXT = LimeVariant(_draw_like_lime_text, kernel_denominator=2.0 * 0.25**2)
LIME_CAPTUM = LimeVariant(_draw_halves, kernel_denominator=0.25**2, copies_per_pass=32)


def lime(scorer: PredictionScorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Fit a linear model of f to masked copies of the text; its weights are the scores.

    Copies, weights and regression are those of the authors' program for texts, without its selection of ten words.

    Source: Ribeiro et al. 2016.
    """

    def weights(value: ValueOfCopies, count: int, samples: int, key: int) -> Tensor:
        return fit_lime(value, count, LIME_TEXT, samples=samples, key=key)

    return _score_from_copies(scorer, rows, wanted_B, settings, "lime", weights, samples=settings.samples or 5000)


def fit_lime(
    value: ValueOfCopies, tokens: int, variant: LimeVariant, *, samples: int, key: int, constant_features: int = 0
) -> Tensor:
    """Fit LIME's linear model of a function, by ridge regression through `captum.attr.LimeBase`."""
    from captum._utils.models.linear_model import SkLearnRidge
    from captum.attr import LimeBase

    features = tokens + constant_features

    def copies(text: Tensor, **options: Any) -> Iterator[Tensor]:
        yield from variant.draw(features, key)

    def closeness(text: Tensor, copy: Tensor, present: Tensor, **options: Any) -> Tensor:
        distance = 1.0 - present[..., :tokens].mean().sqrt()
        return torch.exp(-(distance**2) / variant.kernel_denominator)

    method = LimeBase(
        lambda present_SM: value(present_SM[:, :tokens]),
        interpretable_model=SkLearnRidge(alpha=1.0),
        similarity_func=closeness,
        perturb_func=copies,
        perturb_interpretable_space=False,
        from_interp_rep_transform=None,
        to_interp_rep_transform=lambda copy, text, **options: copy,
    )
    per_pass = variant.copies_per_pass or samples
    weights = method.attribute(torch.ones(1, features), n_samples=samples, perturbations_per_eval=per_pass)
    return weights.flatten()[:tokens].float().cpu()


def shap(scorer: PredictionScorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Estimate the tokens' Shapley values by regression on masked copies.

    The scores add up to f(text) - f(text with all tokens masked), f being `target_value`.

    Source: Lundberg and Lee 2017 (Kernel SHAP), through `captum.attr.KernelShap`.
    """
    return _score_from_copies(scorer, rows, wanted_B, settings, "shap", _shap_values, samples=settings.samples or 500)


def _shap_values(value: ValueOfCopies, count: int, samples: int, key: int) -> Tensor:
    from captum.attr import KernelShap

    return KernelShap(value).attribute(
        torch.ones(1, count), baselines=torch.zeros(1, count), n_samples=samples, perturbations_per_eval=samples
    )


def _score_from_copies(
    scorer: PredictionScorer,
    rows: np.ndarray,
    wanted_B: np.ndarray,
    settings: Settings,
    name: str,
    weights: Callable[[ValueOfCopies, int, int, int], Tensor],
    *,
    samples: int,
) -> MethodScores:
    """Score each row by a method that needs only the values of masked copies; `weights` is the method."""
    logits_BC = scorer.scores(rows).logits_NC
    target_B = scorer.targets(logits_BC, wanted_B)
    scores = []
    origins_B = logits_BC[:, 0] if scorer.label_space.task_type == "regression" else np.zeros(len(rows))
    for row, target, origin in zip(rows, target_B, origins_B, strict=True):
        ids = scorer.features.ids[scorer.features.row(int(row))]
        places = scorer.features.non_special_positions(int(row))
        row_scores = np.zeros(len(ids), dtype=np.float32)
        if len(places) == 1:
            # A regression on the presence of one token is degenerate; its score is known exactly.
            row_scores = leave_one_out(scorer, np.array([row]), np.array([target]), settings).scores[0]
        elif len(places):
            key = derive_key(name, settings.seed, ids.tobytes().hex())
            value = _value_of_copies(scorer, int(row), int(target), places, float(origin))
            # Captum draws from PyTorch's global generators.
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                seed_global(key)
                row_scores[places] = weights(value, len(places), samples, key).flatten().float().cpu().numpy()
        scores.append(row_scores)
    return MethodScores(logits_BC, scores)


def _value_of_copies(
    scorer: PredictionScorer, row: int, target: int, places: np.ndarray, origin: float
) -> ValueOfCopies:
    """`target_value` minus `origin` of copies of a row, whose tokens at these places are present (1) or masked (0).

    For scores the origin is the whole text's, so that years or prices lose no digits in float32.
    """

    def value(present_SM: Tensor) -> Tensor:
        masked = [places[is_masked] for is_masked in (present_SM == 0).cpu().numpy()]
        logits_SC = torch.from_numpy(scorer.scores(np.full(len(masked), row), masked).logits_NC)
        return (scorer.value(logits_SC, torch.full((len(masked),), target)) - origin).float()

    return value
