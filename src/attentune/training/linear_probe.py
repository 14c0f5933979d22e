"""Starts the classifier at the linear model that fits the untrained encoder best, before the first step.

The training rows are encoded once, a regularised linear model is fitted to what the classifier reads, and its solution
becomes the classifier's weights. Fine-tuning then begins at the frozen solution instead of at random predictions, whose
first gradients distort the encoder.

Source: LP-FT (Kumar et al. 2022, "Fine-tuning can distort pretrained features and underperform out-of-distribution",
section 3).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from attentune.baselines.linear import LinearModel, fit_linear
from attentune.data.dataset import LabelSpace
from attentune.data.splits import row_groups, stratified_sample
from attentune.data.tokenization import Features, budget_order, pad_batch
from attentune.errors import ConfigError
from attentune.inference.scoring import ModelEvaluator, default_batch_tokens, score_rows, summed_over_processes
from attentune.models.cpu_layers import frozen_weights
from attentune.nn.classifiers import DotProduct, ScaledOutput, ScaledSimilarity
from attentune.nn.compiled.memory import kept_memory
from attentune.training.objective import Objective
from attentune.training.prepare import PROBED_ROWS, RunInputs

# Larger hidden states are not cached; the encoder then runs in each step.
LIMIT_BYTES = 2 << 30
# An upper bound, as the precision is not known yet; bf16 takes half.
_BYTES_A_NUMBER = 4


class FrozenStates:
    """The last hidden states of all training rows, in the run's precision, computed at the first `batch` in each
    process.
    """

    def __init__(self, *, model: Any, features: Features, pad_token_id: int, accelerator: Accelerator) -> None:
        self._model, self._features = model, features
        self._pad_token_id, self._accelerator = pad_token_id, accelerator
        self.hidden_SD: Tensor | None = None

    def batch(self, rows: np.ndarray, length: int) -> Tensor:
        """Return the (B, T, D) hidden states of these rows on the accelerator's device, 0 at padding."""
        if self.hidden_SD is None:
            self.hidden_SD = self._compute()
        hidden_BTD = self.hidden_SD.new_zeros(len(rows), length, self.hidden_SD.shape[1])
        for number, row in enumerate(rows):
            row_TD = self.hidden_SD[self._features.row(int(row))]
            hidden_BTD[number, : len(row_TD)] = row_TD
        return hidden_BTD.to(self._accelerator.device, non_blocking=True)

    @torch.no_grad()  # not inference_mode, whose tensors no backward pass may use
    def _compute(self) -> Tensor:
        features, hidden_SD = self._features, None
        with frozen_weights(self._model), self._accelerator.autocast():
            for rows in budget_order(features.padded_lengths, default_batch_tokens(self._accelerator.device)):
                batch = pad_batch(features, rows, pad_token_id=self._pad_token_id)
                inputs = {name: tensor.to(self._accelerator.device) for name, tensor in batch.inputs.items()}
                hidden_BTD = self._model.encode(**inputs).last_hidden_state.cpu()
                if hidden_SD is None:
                    hidden_SD = hidden_BTD.new_empty(len(features.ids), hidden_BTD.shape[-1])
                for number, row in enumerate(rows):
                    span = features.row(int(row))
                    hidden_SD[span] = hidden_BTD[number, : span.stop - span.start]
        assert hidden_SD is not None  # there are rows to train on
        return hidden_SD


def _not_constant_reason(model: Any) -> str | None:
    """Return why the last hidden states of a frozen encoder are not all that is needed of it; None if they are."""
    if model.blur is not None and any(True for _ in model.blur.parameters()):
        return "the blur inside the encoder is learnt (model.blur.learnable)"
    if model.layer_mix is not None:
        return "the layer mix needs all layers (model.layer_mix)"
    return None


def evaluation_caches(
    model: Any, features: Mapping[str, Features], splits: Sequence[str], *, frozen: FrozenStates | None
) -> dict[str, dict[int, Tensor]]:
    """Return an empty cache of hidden states for each split to evaluate, for `ModelEvaluator`."""
    if not model.encoder_is_frozen or _not_constant_reason(model) is not None:
        return {}
    free_bytes = LIMIT_BYTES - (0 if frozen is None else states_bytes(model, features["train"]))
    caches: dict[str, dict[int, Tensor]] = {}
    for split in splits:
        size_bytes = states_bytes(model, features[split])
        if size_bytes <= free_bytes:
            caches[split] = {}
            free_bytes -= size_bytes
    return caches


def states_bytes(model: Any, features: Features) -> int:
    """Return an upper bound of the bytes that the hidden states of these rows take."""
    return len(features.ids) * int(model.config.encoder_config.hidden_size) * _BYTES_A_NUMBER


def freeze_encoder(inputs: RunInputs, model: Any) -> tuple[FrozenStates | None, str | None]:
    """Freeze the encoder if the settings say so; return its cached hidden states, if any, and a note for the user."""
    training, features, generator = inputs.config.training, inputs.features["train"], inputs.config.labels.generator
    if not training.freeze_encoder:
        return None, None
    model.freeze_encoder()
    reason, size_bytes = _not_constant_reason(model), states_bytes(model, features)
    if generator != "none":
        reason = f"labels.generator {generator} asks the model for masked rows or trains on them"
    elif reason is None and size_bytes > LIMIT_BYTES:
        limit_gib = LIMIT_BYTES / (1 << 30)
        reason = f"they would take {size_bytes / (1 << 30):.1f} GiB, and at most {limit_gib:.0f} are kept"
    if reason is not None:
        return None, f"frozen encoder: it runs in each step, since {reason}"
    pad_token_id, accelerator = inputs.tokenizer.pad_token_id, inputs.accelerator
    frozen = FrozenStates(model=model, features=features, pad_token_id=pad_token_id, accelerator=accelerator)
    note = f"the hidden states of {len(features):,} rows are computed once (at most {size_bytes / (1 << 20):,.1f} MiB)"
    return frozen, f"frozen encoder: {note}"


# Inverse strengths of the penalty to choose from, of features with a root mean square of 1.
_STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_COSINE_STRENGTHS = (0.1, 1.0, 10.0, 100.0)
_ONE_LABEL = LabelSpace("multi_label", ("present",))


def is_probed(model: Any, *, linear_probe: bool) -> bool:
    """Return whether the classifier starts from a fit: by `linear_probe`, and always for a scaled similarity."""
    if linear_probe and isinstance(model.classifier, DotProduct):
        raise ConfigError(
            "training.linear_probe: got true with model.head.combine dot, which has no weights to fit. Set"
            " model.head.combine to concat-cosine, concat, cosine or scaled-dot, or leave linear_probe out."
        )
    return linear_probe or isinstance(model.classifier, ScaledSimilarity)


def start_classifier(inputs: RunInputs, model: Any, objective: Objective) -> str:
    """Fit the classifier to training rows with the encoder as it is, in all processes together; return a note."""
    began = time.perf_counter()
    labels, seed = inputs.targets if inputs.is_regression else inputs.labels, inputs.config.training.seed
    rows = np.arange(len(labels))
    if len(rows) > PROBED_ROWS:
        rows = stratified_sample(labels, PROBED_ROWS, "linear probe", seed)
    with kept_memory():
        x_NF = score_rows(
            model,
            inputs.features["train"],
            pad_token_id=inputs.tokenizer.pad_token_id,
            accelerator=inputs.accelerator,
            rows=rows,
            with_vectors=True,
        ).vectors_NF
    assert x_NF is not None  # there are rows
    weights_N = None if inputs.weights is None else inputs.weights[rows]
    groups = row_groups(inputs.data.splits["train"].take(rows), near=False)
    space = inputs.data.label_space
    fitted = fit_classifier(x_NF, labels[rows], space, objective, weights_N, seed=seed, groups=groups)
    write_solution(model, fitted, inputs.accelerator)
    is_similarity = isinstance(model.classifier, ScaledSimilarity)
    kind = "similarity of the texts: scale and offset are" if is_similarity else "linear probe:"
    return (
        f"{kind} fitted to {len(rows):,} training rows in {time.perf_counter() - began:.1f} s; training starts there."
        f" {fitted.note}"
    )


@dataclass(frozen=True)
class Solution:
    """A linear model on the inputs of the classifier: its raw outputs are x W^T + b."""

    weight_KF: np.ndarray  # (K, F) float64
    bias_K: np.ndarray  # (K,) float64
    note: str  # how the strength of the penalty was chosen


def fit_classifier(
    x_NF: np.ndarray,
    labels: np.ndarray,
    label_space: LabelSpace,
    objective: Objective,
    weights_N: np.ndarray | None,
    *,
    seed: int,
    groups: np.ndarray | None = None,
) -> Solution:
    """Fit a linear model with one raw output per output of the classifier.

    Features are centred and divided by one common number, and both are folded into the weights. Scaling each feature by
    its own deviation instead would give the cosine of two texts no more weight than any of a thousand other features.
    """
    x_NF = x_NF.astype(np.float64)
    mean_F = x_NF.mean(axis=0)
    scale = float(np.sqrt(np.mean((x_NF - mean_F) ** 2)))
    scale = scale if scale > 1e-9 else 1.0
    scaled_NF = (x_NF - mean_F) / scale
    strengths = _STRENGTHS if x_NF.shape[1] > 1 else _COSINE_STRENGTHS
    base_N = np.ones(len(labels)) if weights_N is None else np.asarray(weights_N, dtype=np.float64)

    def fit(targets: np.ndarray, space: LabelSpace, weights: np.ndarray, rows: Any = slice(None)) -> Solution:
        options: dict[str, Any] = {"strengths": strengths, "seed": seed, "standardise": False}
        inside = None if groups is None else np.unique(groups[rows], return_inverse=True)[1]
        options |= {"weights": weights[rows], "groups": inside}
        made, penalty = fit_linear(scaled_NF[rows], targets[rows], space, **options)
        return _over_all_outputs(made, space, penalty.note)

    class_weights = None if objective.class_weights is None else objective.class_weights.double().numpy()
    if label_space.task_type == "regression":
        solution = fit(labels, label_space, base_N)
    elif objective.loss == "corn":
        # Output k: is the class above k, among rows whose class is at least k?
        levels = range(label_space.num_labels - 1)
        solution = _stacked([fit((labels > k)[:, None] * 1, _ONE_LABEL, base_N, labels >= k) for k in levels])
    elif label_space.is_multilabel:
        # A label's class weight is that of its presence.
        factors = np.ones(labels.shape[1]) if class_weights is None else class_weights
        solution = _stacked(
            [
                fit(labels[:, [c]], _ONE_LABEL, base_N * np.where(labels[:, c] > 0, factors[c], 1.0))
                for c in range(labels.shape[1])
            ]
        )
    else:
        solution = fit(labels, label_space, base_N if class_weights is None else base_N * class_weights[labels])
    weight_KF = solution.weight_KF / scale
    return Solution(weight_KF, solution.bias_K - weight_KF @ mean_F, solution.note)


def _over_all_outputs(made: LinearModel, space: LabelSpace, note: str) -> Solution:
    """Return a model with an output for each class; a class without rows has the bias of its small probability."""
    weight_KF = np.zeros((space.num_labels, made.weights_PD.shape[1]))
    bias_K = np.full(space.num_labels, np.log(made.absent) if made.absent > 0 else 0.0)
    weight_KF[made.classes_P], bias_K[made.classes_P] = made.weights_PD, made.bias_P
    if space.task_type != "regression" and space.num_labels > 1:
        # The same probabilities with the smallest weights, which the penalty of the fit finds except for two classes.
        weight_KF[made.classes_P] -= weight_KF[made.classes_P].mean(axis=0)
        bias_K[made.classes_P] -= bias_K[made.classes_P].mean()
    return Solution(weight_KF, bias_K, note)


def _stacked(solutions: list[Solution]) -> Solution:
    notes = list(dict.fromkeys(one.note for one in solutions))
    return Solution(
        np.concatenate([one.weight_KF for one in solutions]),
        np.concatenate([one.bias_K for one in solutions]),
        notes[0] if len(notes) == 1 else "C was chosen for each output by cross-validation on the training rows.",
    )


@torch.no_grad()
def write_solution(model: Any, fitted: Solution, accelerator: Accelerator) -> None:
    """Write a fitted model's weights into the classifier; all processes get those of the main one."""
    weight_KF, bias_K = fitted.weight_KF, fitted.bias_K
    classifier = model.classifier
    if isinstance(classifier, ScaledSimilarity) and len(bias_K) == 2:  # its logits are (0, z)
        weight_KF, bias_K = weight_KF[1:] - weight_KF[:1], bias_K[1:] - bias_K[:1]
    values = np.column_stack([weight_KF, bias_K]).astype(np.float32) * float(accelerator.is_main_process)
    solution = torch.from_numpy(summed_over_processes(values, accelerator))
    if isinstance(classifier, ScaledSimilarity):
        classifier.scale.copy_(solution[0, :1])
        classifier.offset.copy_(solution[0, 1:])
    else:
        linear: nn.Linear = getattr(classifier, "linear", classifier)
        linear.weight.copy_(solution[:, :-1])
        linear.bias.copy_(solution[:, -1])
    if isinstance(model.outputs, ScaledOutput):
        model.outputs.reset_parameters()


def fit_output_scale(inputs: RunInputs, evaluator: ModelEvaluator) -> str | None:
    """Fit the scale of predictions on the training rows if the loss does not determine it; return a note, or None."""
    model: Any = evaluator.model
    if not isinstance(model.outputs, ScaledOutput):
        return None
    logits_N = score_rows(
        model,
        inputs.features["train"],
        pad_token_id=evaluator.pad_token_id,
        accelerator=inputs.accelerator,
        batch_size=evaluator.batch_size,
    ).logits_NC[:, 0]
    mean, std = model.config.score_mean, model.config.score_std
    predicted_N, scores_N = (torch.from_numpy((values - mean) / std) for values in (logits_N, inputs.labels))
    if not model.outputs.fit(predicted_N, scores_N):
        return "Predictions do not rise with the labels of train, so they were not put on the labels' scale."
    scale, offset = std * float(model.outputs.scale), std * float(model.outputs.offset) + mean
    return f"Predictions are {scale:.6g} x output + {offset:.6g}, fitted on train."
