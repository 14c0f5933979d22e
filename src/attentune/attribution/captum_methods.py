"""The standard methods that need many passes, through Captum: integrated gradients, LIME and SHAP.

The latter two look at which tokens are there: a token is 1 as it is and 0 as the mask token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attentune.attribution.base import Scored, Scorer, Settings, target_value
from attentune.attribution.hooks import EmbeddingLeaf
from attentune.inference.scoring import BATCH_TOKENS
from attentune.seeding import derive_key, numpy_generator, seed_global


def leave_one_out(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> Scored:
    """f(text) - f(text with token i masked), f being `target_value`."""
    places = [scorer.features.non_special_positions(int(row)) for row in rows]
    copies = np.concatenate([rows, np.repeat(rows, [len(own) for own in places])])
    masked = [*(None for _ in rows), *(np.array([place]) for own in places for place in own)]
    logits_NC = scorer.scores(copies, masked).logits_NC
    own_BC, masked_MC = logits_NC[: len(rows)], logits_NC[len(rows) :]
    target_B = torch.from_numpy(scorer.targets(own_BC, wanted_B))
    owner_M = np.repeat(np.arange(len(rows)), [len(own) for own in places])
    before_B = target_value(torch.from_numpy(own_BC), target_B, scorer.label_space).numpy()
    target_M = target_B[torch.from_numpy(owner_M)]
    after_M = target_value(torch.from_numpy(masked_MC), target_M, scorer.label_space).numpy()
    scores = [np.zeros(length, dtype=np.float32) for length in scorer.features.lengths[rows]]
    for owner, place, after in zip(owner_M, np.concatenate(places).astype(int), after_M, strict=True):
        scores[owner][place] = before_B[owner] - after
    return Scored(own_BC, scores)


# LIME's own program for texts weighs a copy by exp(-distance^2 / (2 width^2)).
_LIME_WIDTH = 0.25

Answer = Callable[[Tensor], Tensor]


def integrated_gradients(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> Scored:
    """The gradient of f along the straight path from the mask token's word embeddings to the tokens' own.

    The scores add up to f(text) - f(text with all tokens masked), f being `target_value`, up to the error of the steps.

    Source: Sundararajan et al. 2017, through `captum.attr.IntegratedGradients`.
    """
    logits_BC = scorer.scores(rows).logits_NC
    target_B = scorer.targets(logits_BC, wanted_B)
    scores = [
        _along_the_path(scorer, int(row), int(target), settings.steps)
        for row, target in zip(rows, target_B, strict=True)
    ]
    return Scored(logits_BC, scorer.ordinary_only(scores, rows))


def _along_the_path(scorer: Scorer, row: int, target: int, steps: int) -> np.ndarray:
    from captum.attr import IntegratedGradients

    inputs = scorer.inputs([row])
    length, ordinary = inputs["input_ids"].shape[1], scorer.features.non_special_positions(row)
    if len(ordinary) == 0:
        return np.zeros(length, dtype=np.float32)
    masked_1T = inputs["input_ids"].clone()
    masked_1T[0, torch.from_numpy(ordinary)] = scorer.mask_token_id
    with torch.no_grad():
        embed = scorer.model.get_input_embeddings()
        text_1TE, masked_1TE = embed(inputs["input_ids"]), embed(masked_1T)
    with EmbeddingLeaf(scorer.model) as leaf:

        def value(embedded_STE: Tensor) -> Tensor:
            leaf.given_BTE = embedded_STE
            spread = {name: tensor.expand(len(embedded_STE), *tensor.shape[1:]) for name, tensor in inputs.items()}
            logits_SC = scorer.ask(spread).logits
            target_S = torch.full((len(logits_SC),), target, device=logits_SC.device)
            return target_value(logits_SC, target_S, scorer.label_space)

        attributed_1TE = IntegratedGradients(value).attribute(
            text_1TE, baselines=masked_1TE, n_steps=steps, internal_batch_size=max(1, BATCH_TOKENS // length)
        )
    return attributed_1TE.sum(dim=-1)[0].detach().float().cpu().numpy()


def lime(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> Scored:
    """The weights of a linear model of f, fitted to masked copies of the text, near ones above all.

    Source: Ribeiro et al. 2016; `captum.attr.LimeBase` with the copies, weights and regression of its program for
    texts, but without its choice of ten words.
    """
    return _from_presence(scorer, rows, wanted_B, settings, "lime", _lime_weights, samples=settings.samples or 5000)


def _lime_weights(answer: Answer, count: int, samples: int, key: int) -> Tensor:
    from captum._utils.models.linear_model import SkLearnRidge
    from captum.attr import LimeBase

    draw = numpy_generator("lime-copies", key)

    def copies(text: Tensor, **options: Any) -> Iterator[Tensor]:
        yield text
        while True:
            present = np.ones((1, count), dtype=np.float32)
            present[0, draw.choice(count, size=draw.integers(1, count + 1), replace=False)] = 0.0
            yield torch.from_numpy(present)

    method = LimeBase(
        answer,
        interpretable_model=SkLearnRidge(alpha=1.0),
        similarity_func=_closeness,
        perturb_func=copies,
        perturb_interpretable_space=False,
        from_interp_rep_transform=None,
        to_interp_rep_transform=lambda copy, text, **options: copy,
    )
    return method.attribute(torch.ones(1, count), n_samples=samples, perturbations_per_eval=samples)


def _closeness(text: Tensor, copy: Tensor, present: Tensor, **options: Any) -> Tensor:
    """How much a copy counts: by the cosine of its tokens' presence and the text's."""
    distance = 1.0 - present.mean().sqrt()
    return torch.exp(-(distance**2) / (2.0 * _LIME_WIDTH**2))


def shap(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> Scored:
    """Shapley values of the tokens, estimated by regression on masked copies; they add up as integrated gradients do.

    Source: Lundberg and Lee 2017 (Kernel SHAP), through `captum.attr.KernelShap`.
    """
    return _from_presence(scorer, rows, wanted_B, settings, "shap", _shap_values, samples=settings.samples or 500)


def _shap_values(answer: Answer, count: int, samples: int, key: int) -> Tensor:
    from captum.attr import KernelShap

    return KernelShap(answer).attribute(
        torch.ones(1, count), baselines=torch.zeros(1, count), n_samples=samples, perturbations_per_eval=samples
    )


def _from_presence(
    scorer: Scorer,
    rows: np.ndarray,
    wanted_B: np.ndarray,
    settings: Settings,
    name: str,
    weights: Callable[[Answer, int, int, int], Tensor],
    *,
    samples: int,
) -> Scored:
    """Scores from a method that sees of each row only which tokens are there, and what the model says of that."""
    logits_BC = scorer.scores(rows).logits_NC
    target_B = scorer.targets(logits_BC, wanted_B)
    scores = []
    for row, target in zip(rows, target_B, strict=True):
        ids = scorer.features.ids[scorer.features.row(int(row))]
        ordinary = scorer.features.non_special_positions(int(row))
        own = np.zeros(len(ids), dtype=np.float32)
        if len(ordinary) == 1:
            # A regression on one token's presence has no copies to tell apart; what it adds is known.
            own = leave_one_out(scorer, np.array([row]), np.array([target]), settings).scores[0]
        elif len(ordinary):
            key = derive_key(name, settings.seed, ids.tobytes().hex())
            answer = _answer(scorer, int(row), int(target), ordinary)
            # Captum draws from PyTorch's own generators.
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                seed_global(key)
                own[ordinary] = weights(answer, len(ordinary), samples, key).flatten().float().cpu().numpy()
        scores.append(own)
    return Scored(logits_BC, scores)


def _answer(scorer: Scorer, row: int, target: int, ordinary: np.ndarray) -> Answer:
    """`target_value` of copies of a row in which these tokens are there (1) or masked (0)."""

    def answer(present_SM: Tensor) -> Tensor:
        masked = [ordinary[is_gone] for is_gone in (present_SM == 0).cpu().numpy()]
        logits_SC = torch.from_numpy(scorer.scores(np.full(len(masked), row), masked).logits_NC)
        return target_value(logits_SC, torch.full((len(masked),), target), scorer.label_space)

    return answer
