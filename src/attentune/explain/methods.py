"""The attribution methods by name, all with one signature."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError, UnsupportedEncoderError
from attentune.explain.explanation import check_method_names
from attentune.explain.fast_shap import fast_shap
from attentune.explain.gradient import gradient, integrated_gradients
from attentune.explain.scorer import MethodScores, PredictionScorer, Scorer, Settings
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.inference.scoring import numpy_of
from attentune.models.cpu_layers import attention_by
from attentune.models.layouts import find_texts
from attentune.plugins import require_extra
from attentune.seeding import derive_key, numpy_generator, seed_global

# From (S, M) presence of M tokens in S copies of a text, 1 or 0, to the (S,) values of the function to explain.
ValueOfCopies = Callable[[Tensor], Tensor]


def leave_one_out(scorer: PredictionScorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Compute f(text) - f(text with token i masked) of one row, f being `target_value`."""
    places = scorer.features.non_special_positions(int(rows[0]))
    masked = [None, *(np.array([place]) for place in places)]
    logits_NC = scorer.scores(np.repeat(rows, len(masked)), masked).logits_NC
    plain_1C, masked_MC = logits_NC[:1], logits_NC[1:]
    target_1 = torch.from_numpy(scorer.targets(plain_1C, wanted_B))
    before_1 = scorer.value(torch.from_numpy(plain_1C), target_1).numpy()
    after_M = scorer.value(torch.from_numpy(masked_MC), target_1.repeat(len(places))).numpy()
    length = scorer.features.lengths[rows[0]]
    scores_T, without_TC = np.zeros(length, dtype=np.float32), np.repeat(plain_1C, length, axis=0)
    scores_T[places], without_TC[places] = before_1 - after_M, masked_MC
    return MethodScores(plain_1C, [scores_T], [without_TC])


def lime(scorer: PredictionScorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Fit a linear model of f to masked copies of the text; its weights are the scores.

    Copies, weights and regression are those of the authors' program for texts, without its selection of ten words.

    Source: Ribeiro et al. 2016.
    """
    return _score_from_copies(scorer, rows, wanted_B, settings, "lime", _lime_weights, samples=settings.samples or 5000)


def _lime_weights(value: ValueOfCopies, count: int, samples: int, key: int) -> Tensor:
    """Fit LIME's linear model of a function, by ridge regression through `captum.attr.LimeBase`."""
    from captum._utils.models.linear_model import SkLearnRidge
    from captum.attr import LimeBase

    def copies(text: Tensor, **options: Any) -> Iterator[Tensor]:
        """The text itself, then copies that lack a uniformly drawn number of tokens."""
        generator = numpy_generator("lime-copies", key)
        yield torch.ones(1, count)
        while True:
            present = np.ones((1, count), dtype=np.float32)
            present[0, generator.choice(count, size=generator.integers(1, count + 1), replace=False)] = 0.0
            yield torch.from_numpy(present)

    def weight(text: Tensor, copy: Tensor, present: Tensor, **options: Any) -> Tensor:
        """Weigh a copy by its cosine distance d from the text: exp(-d^2 / (2 width^2)), the width being 0.25."""
        distance = 1.0 - present.mean().sqrt()
        return torch.exp(-(distance**2) / (2.0 * 0.25**2))

    method = LimeBase(
        value,
        interpretable_model=SkLearnRidge(alpha=1.0),
        similarity_func=weight,
        perturb_func=copies,
        perturb_interpretable_space=False,
        from_interp_rep_transform=None,
        to_interp_rep_transform=lambda copy, text, **options: copy,
    )
    return method.attribute(torch.ones(1, count), n_samples=samples, perturbations_per_eval=samples)


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
    """Score one row by a method that needs only the values of masked copies; `weights` is the method."""
    row, logits_1C = int(rows[0]), scorer.scores(rows).logits_NC
    target_1 = scorer.targets(logits_1C, wanted_B)
    ids, places = scorer.features.ids[scorer.features.row(row)], scorer.features.non_special_positions(row)
    # Scores are explained as differences, so that years or prices lose no digits in float32.
    origin = float(logits_1C[0, 0]) if scorer.label_space.task_type == "regression" else 0.0

    def value(present_SM: Tensor) -> Tensor:
        masked = [places[is_masked] for is_masked in (present_SM == 0).cpu().numpy()]
        logits_SC = torch.from_numpy(scorer.scores(np.full(len(masked), row), masked).logits_NC)
        return (scorer.value(logits_SC, torch.from_numpy(target_1).repeat(len(masked))) - origin).float()

    scores_T = np.zeros(len(ids), dtype=np.float32)
    if len(places) == 1:
        # A regression on the presence of one token is degenerate; its score is known exactly.
        scores_T = leave_one_out(scorer, rows, target_1, settings).scores[0]
    elif len(places):
        key = derive_key(name, settings.seed, ids.tobytes().hex())
        # Captum draws from PyTorch's global generators.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            seed_global(key)
            scores_T[places] = weights(value, len(places), samples, key).flatten().float().cpu().numpy()
    return MethodScores(logits_1C, [scores_T])


def ssa(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Return the token gate's importance scores, computed in the same pass as the prediction.

    Source: SSA (Kou et al. 2020, sections 3.2 and 4.7).
    """
    output = scorer.scores(rows)
    assert output.token_scores is not None
    return MethodScores(output.logits_NC, scorer.ordinary_only(output.token_scores, rows))


def attention(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Return the last layer's attention weights from the first token ([CLS]), averaged over heads."""
    logits_BC, weights_BTH = first_token_attention(scorer, rows)
    return MethodScores(numpy_of(logits_BC), scorer.per_row(weights_BTH.mean(dim=-1), rows))


def attention_gradient(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Multiply the last layer's attention by the gradient of f, clip it at 0 in each head, and average over heads.

    Source: Chefer et al. 2021 (Generic attention-model explainability, equation 5), applied to the last layer only.
    """
    with torch.enable_grad():
        logits_BC, weights_NHUU, inputs = _last_attention(scorer, rows)
        (gradient,) = torch.autograd.grad(scorer.values(logits_BC, wanted_B).sum(), weights_NHUU)
    scores_BTH = _first_token_rows((weights_NHUU * gradient).clamp(min=0.0).detach(), inputs)
    return MethodScores(numpy_of(logits_BC), scorer.per_row(scores_BTH.mean(dim=-1), rows))


@torch.no_grad()
def first_token_attention(scorer: Scorer, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return the logits and the last layer's attention weights (B, T, H) from the first token of the text.

    A bi-encoder encodes the two texts of a pair separately; each text's tokens then get the weights from its own first
    token.
    """
    logits_BC, weights_NHUU, inputs = _last_attention(scorer, rows)
    return logits_BC, _first_token_rows(weights_NHUU, inputs)


def _last_attention(scorer: Scorer, rows: np.ndarray) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Predict rows; return the logits, the last layer's attention weights of all N encoded texts, and the inputs."""
    inputs = scorer.inputs(rows)
    with attention_by(scorer.model, "eager"):
        output = scorer.forward(inputs, output_attentions=True)
    weights_NHUU = output.attentions[-1] if output.attentions else None
    if weights_NHUU is None:
        raise UnsupportedEncoderError(
            f"this {scorer.model.encoder.config.model_type} encoder does not return its attention weights, expected"
            " them for this method; use a method that does not read them, such as gradient."
        )
    return output.logits, weights_NHUU, inputs


def _first_token_rows(weights_NHUU: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Take the first query token's weights of each of N encoded texts, and map them to the rows: (B, T, H)."""
    first_NUH = weights_NHUU[:, :, 0].transpose(1, 2)
    if "second_start" not in inputs:
        return first_NUH
    return find_texts(inputs["attention_mask"].bool(), inputs["second_start"]).rows(first_NUH)


@dataclass(frozen=True)
class Method:
    """An attribution method."""

    unit: str  # what a score is, for `score_unit`
    score: Callable[[Any, np.ndarray, np.ndarray, Settings], MethodScores]  # from a scorer, rows
    signed: bool  # whether negative scores speak against the class; otherwise 0 is the least importance
    batched: bool = True  # whether it takes several rows; otherwise one, which is scored with its own masked copies
    # "predictions" of any run; one "model", one with a token "gate", or one with a fitted attribution "head".
    needs: str = "model"
    removes: bool = False  # whether the scores tell what leaving words out does, which is then measured
    needs_captum: bool = False  # only if Captum is installed
    explains_class: bool = True  # whether the scores depend on the class to explain


def random(scorer: PredictionScorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Draw uniform random scores, a function of the row's tokens and the seed: the baseline of comparisons."""
    scores = []
    for row in rows:
        ids = scorer.features.ids[scorer.features.row(int(row))]
        scores.append(numpy_generator("random-scores", settings.seed, ids.tobytes().hex()).random(len(ids), np.float32))
    return MethodScores(scorer.scores(rows).logits_NC, scorer.ordinary_only(scores, rows))


_CHANGE = "change of {of} when the {word} is left out ({how}{by}); +: {falls}"
_PART = "the {word}'s part, {by}, of the change of {of} when all {word}s are left out ({how}); +: {falls}"
_SHAPLEY = _PART.replace("{by}", "by an estimated Shapley value")

METHODS: dict[str, Method] = {
    "fast-shap": Method(_SHAPLEY, fast_shap, signed=True, needs="head", removes=True),
    "ssa": Method(
        "importance that the token head predicts, from 0 to 1{highest}",
        ssa,
        signed=False,
        needs="gate",
        explains_class=False,
    ),
    "gradient": Method(_CHANGE.replace("{by}", ", estimated by the gradient"), gradient, signed=True),
    "integrated-gradients": Method(
        _PART.replace("{by}", "by integrated gradients"),
        integrated_gradients,
        signed=True,
        batched=False,
        needs_captum=True,
    ),
    "leave-one-out": Method(
        _CHANGE.replace("{by}", ""), leave_one_out, signed=True, batched=False, needs="predictions", removes=True
    ),
    "lime": Method(
        _CHANGE.replace("{by}", ", by a linear model of copies without some {word}s"),
        lime,
        signed=True,
        batched=False,
        needs="predictions",
        removes=True,
        needs_captum=True,
    ),
    "shap": Method(_SHAPLEY, shap, signed=True, batched=False, needs="predictions", removes=True, needs_captum=True),
    "attention": Method(
        "share of the first token's attention in the last layer, mean of the heads; with special tokens the shares of"
        " all tokens add up to 1{highest}",
        attention,
        signed=False,
        explains_class=False,
    ),
    "attention-gradient": Method(
        "attention times the gradient of {of}, negative products as 0, mean of the heads{highest}",
        attention_gradient,
        signed=False,
    ),
    "random": Method(
        "random number from 0 to 1{highest}", random, signed=False, needs="predictions", explains_class=False
    ),
}


def score_unit(
    name: str, space: LabelSpace, label: str, *, contrast: str | None = None, level: str = "word", how: str = "masked"
) -> str:
    """Return the unit of a method's scores in words, wherever they are shown."""
    of, falls = f"the log-odds of {label}", "they fall"
    if space.task_type == "regression":
        of, falls = "the score (in the units of the labels)", "it falls"
    elif contrast is not None and space.is_multilabel:
        of, falls = f"the log-odds of {label} minus those of {contrast}", "the difference falls"
    elif contrast is not None:
        of += f" against {contrast}"
    highest = "; of a word the highest of its tokens" if level == "word" else ""
    return METHODS[name].unit.format(of=of, falls=falls, word=level, how=how, highest=highest)


def works_on(method: Method, saved: Predictor) -> bool:
    """Whether a run has what a method reads."""
    if not isinstance(saved, ModelPredictor):
        return method.needs == "predictions"
    has = {"gate": saved.model.token_gate is not None, "head": saved.attribution_head is not None}
    return has.get(method.needs, True)


def method_of(name: str, saved: Predictor) -> Method:
    """Return the method of this name, if it works on a run."""
    check_method_names([name])
    method = METHODS[name]
    if not works_on(method, saved):
        lacks = f"looks into one model, which this run is not ({saved.kind})"
        if isinstance(saved, ModelPredictor):
            lacks = {
                "gate": "needs a model that scores tokens, trained with a preset such as ssa-hybrid; this one does not",
                "head": "needs a head that is fitted to the run first: attentune explain RUN --fit; this run has none",
            }[method.needs]
        others = ", ".join(other for other, entry in METHODS.items() if works_on(entry, saved))
        raise ConfigError(f"method: {name} {lacks}. Methods that work on it: {others}.")
    if method.needs_captum:
        require_extra("explain", "captum", what=f"method: {name}")
    return method


def check_contrast(name: str) -> None:
    """Check that a method can explain one class against another."""
    if not METHODS[name].explains_class:
        others = ", ".join(other for other, entry in METHODS.items() if entry.explains_class)
        raise ConfigError(f"contrast: the scores of {name} do not depend on the class. Methods that do: {others}.")
