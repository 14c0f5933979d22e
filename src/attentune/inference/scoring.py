"""Run a model over rows: logits, token importances and layer weights; and set up Accelerate."""

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch import Tensor, nn

from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.tokenization import Features, budget_order, pad_batch, sorted_order
from attentune.errors import ConfigError, NonFiniteLossError
from attentune.metrics.metrics import score_predictions
from attentune.metrics.rejection import Rejection
from attentune.models.cpu_layers import frozen_weights
from attentune.models.precision import MIXED_PRECISION, resolve_precision
from attentune.nn.attribution_head import AttributionHead
from attentune.nn.compiled.memory import kept_memory
from attentune.plugins import require_extra

_SHOWN_ROWS = 8


@dataclass(kw_only=True)
class Evaluator(ABC):
    """Predicts and scores splits; the latest logits are kept, so that they can be written without a second pass."""

    splits: Mapping[str, TextRows]  # the rows of each split
    label_space: LabelSpace
    metrics: Sequence[str]  # the names of the metrics, in order
    logits: dict[str, np.ndarray] = field(default_factory=dict)  # the latest logits (N, C) of each split
    # With them, the (N, F) inputs of a model's classifier, or the (N, M) energies of an ensemble's members.
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    rejection: Rejection | None = None  # which texts are rejected, as of no class

    @abstractmethod
    def compute_logits(self, split: str, progress: Callable[[int], None] | None = None) -> np.ndarray:
        """Compute the (N, C) logits of a split; `predict` also checks and keeps them."""

    def cut_lengths(self, split: str) -> np.ndarray:
        """Return (N,) the tokens that are read of a row that is longer; 0 for a row that is read whole.

        Of an ensemble: as known after `predict`.
        """
        return np.zeros(len(self.splits[split]), dtype=np.int64)

    def predict(self, split: str, progress: Callable[[int], None] | None = None) -> np.ndarray:
        self.logits[split] = self.compute_logits(split, progress)
        self._check_finite(split)
        return self.logits[split]

    def logits_of(self, split: str, *, reuse: bool, progress: Callable[[int], None] | None = None) -> np.ndarray:
        """Return the (N, C) logits of a split; with `reuse` those of the last call, if they exist."""
        return self.logits[split] if reuse and split in self.logits else self.predict(split, progress)

    def rejection_columns(self, split: str) -> dict[str, list[Any]]:
        """Return, of the rows that were predicted last, which are rejected, and the score; nothing if none can be."""
        if self.rejection is None:
            return {}
        scores_N = self.rejection.scores(self.logits[split], self.vectors.get(split), self.label_space)
        rows = self.splits[split]
        texts = zip(rows.texts, rows.pairs or rows.texts, strict=True)
        return self.rejection.columns(scores_N, np.array([not "".join(row).strip() for row in texts], dtype=bool))

    def _check_finite(self, split: str) -> None:
        bad = np.flatnonzero(~np.isfinite(self.logits[split]).all(axis=1))
        if len(bad):
            names = ", ".join(self.splits[split].ids[row] for row in bad[:_SHOWN_ROWS])
            raise NonFiniteLossError(
                f"{split}: the model's outputs are infinite or NaN for {len(bad):,} of {len(self.splits[split]):,} rows"
                f" ({names}{', ...' if len(bad) > _SHOWN_ROWS else ''}), so they cannot be scored: its weights are too"
                " large or damaged. Train with a lower --learning_rate or --precision fp32, or use another checkpoint."
            )

    def score(
        self, splits: Sequence[str], *, reuse: bool = False, progress: Callable[[int], None] | None = None
    ) -> dict[str, dict[str, float]]:
        """Predict splits and score those with labels; returns scores by split and metric."""
        scores = {}
        for split in splits:
            logits_NC = self.logits_of(split, reuse=reuse, progress=progress)
            labels = self.splits[split].labels
            if labels is not None and len(labels):
                scores[split] = score_predictions(self.metrics, labels, logits_NC, self.label_space)
        return scores


@dataclass(kw_only=True)
class ModelEvaluator(Evaluator):
    model: nn.Module  # the model, on the device of the accelerator
    accelerator: Accelerator
    features: Mapping[str, Features]  # the tokens of each split
    pad_token_id: int
    batch_size: int | None  # rows per batch; None for batches by number of tokens
    encoded: Mapping[str, dict[int, Tensor]] = field(default_factory=dict)  # of a frozen encoder
    in_float32: bool = False  # whatever the precision of the accelerator
    keep_vectors: bool = False  # also where no class means need them

    def cut_lengths(self, split: str) -> np.ndarray:
        """Return (N,) the maximum length of the model for longer rows, else 0."""
        config: Any = self.model.config
        return self.features[split].cut_lengths(config.max_seq_length)

    def compute_logits(self, split: str, progress: Callable[[int], None] | None = None) -> np.ndarray:
        needs_vectors = self.rejection is not None and self.rejection.means is not None
        encoded = self.encoded.get(split)
        scored = self._run(split, encoded=encoded, with_vectors=self.keep_vectors or needs_vectors, progress=progress)
        if scored.vectors_NF is not None:
            self.vectors[split] = scored.vectors_NF
        return scored.logits_NC

    def vectors_of(self, split: str, rows: np.ndarray) -> np.ndarray:
        """Compute the (N, F) inputs of the classifier for some rows of a split."""
        vectors_NF = self._run(split, rows=rows, with_vectors=True).vectors_NF
        assert vectors_NF is not None  # there are rows
        return vectors_NF

    def _run(self, split: str, **options: Any) -> "RowScores":
        with kept_memory():
            return score_rows(
                self.model,
                self.features[split],
                pad_token_id=self.pad_token_id,
                batch_size=self.batch_size,
                accelerator=self.accelerator,
                in_float32=self.in_float32,
                **options,
            )


# Large enough for efficient matrix products, small enough for activations to stay in a CPU's cache.
BATCH_TOKENS = 2048
BATCH_TOKENS_GPU = 16384


def make_accelerator(
    *, precision: str, use_cpu: bool = False, tracker: str = "none", folder: str | None = None
) -> tuple[Accelerator, str]:
    """Make an accelerator, and resolve the precision."""
    if tracker != "none":
        require_extra("trackers", tracker, what="training.report_to")
    # On machines without an accelerator, Accelerate detects processes started by torchrun only with cpu=True.
    use_cpu = use_cpu or ("LOCAL_RANK" in os.environ and not torch.accelerator.is_available())
    _reset_device(use_cpu=use_cpu)
    device = PartialState(cpu=use_cpu).device
    resolved = resolve_precision(precision, device)
    # Accelerate keeps the settings of the first accelerator in a process unless its state is reset.
    AcceleratorState._reset_state()
    accelerator = Accelerator(
        cpu=use_cpu,
        mixed_precision=MIXED_PRECISION[resolved],
        log_with=None if tracker == "none" else tracker,
        project_dir=folder,
    )
    check_whole_models(accelerator)
    return accelerator, resolved


def _reset_device(*, use_cpu: bool) -> None:
    """Let Accelerate choose the device anew where the last accelerator of this process had another one.

    Otherwise it keeps the first: a prediction on the CPU (int8, `use_cpu`) after one on the GPU would run on the GPU.
    Processes of one run keep theirs.
    """
    device = PartialState._shared_state.get("device")
    is_alone = PartialState._shared_state.get("distributed_type") is DistributedType.NO
    on_cpu = use_cpu or not torch.accelerator.is_available()
    if device is not None and is_alone and (device.type == "cpu") != on_cpu:
        AcceleratorState._reset_state(reset_partial_state=True)


def check_whole_models(accelerator: Accelerator) -> None:
    """Refuse FSDP, DeepSpeed and Megatron: checkpoints and token labels need the whole model in each process."""
    kind = accelerator.distributed_type
    if kind in (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        raise ConfigError(
            f"accelerate was started with {kind.value}, which shards a model over processes; expected one that gives"
            " each process the whole model (DDP). Leave the option out: accelerate launch --multi_gpu -m"
            " attentune.cli.main train ..."
        )


def default_batch_tokens(device: torch.device) -> int:
    """Return the tokens of a batch, with padding, that a device predicts fast."""
    return BATCH_TOKENS if device.type == "cpu" else BATCH_TOKENS_GPU


@dataclass
class RowScores:
    """The outputs of a model for rows, in their order; None for what it does not have, or was not asked for."""

    logits_NC: np.ndarray  # (N, C) float32; scores of a regression in float64
    token_scores: list[np.ndarray] | None = None  # the importance of the tokens of each row
    layer_weights_NL: np.ndarray | None = None  # (N, L) float32 excitation of the layers
    attributions: list[np.ndarray] | None = None  # what the attribution head estimates for the tokens of each row
    vectors_NF: np.ndarray | None = None  # (N, F) float32 inputs of the classifier


def _filled(rows_NF: np.ndarray | None, places: np.ndarray, values: Tensor, count: int) -> np.ndarray:
    """Put the values of a batch at the places of its rows."""
    values_BF = numpy_of(values)
    rows_NF = np.zeros((count, values_BF.shape[1]), np.float32) if rows_NF is None else rows_NF
    rows_NF[places] = values_BF[: len(places)]
    return rows_NF


def _filled_tokens(
    rows: list[np.ndarray] | None, places: np.ndarray, padded: Tensor, lengths: np.ndarray
) -> list[np.ndarray]:
    """Put the values of a batch's tokens at the places of its rows, cut to their lengths."""
    rows = rows or [np.empty(0)] * len(lengths)
    for place, values in zip(places.tolist(), numpy_of(padded), strict=True):
        rows[place] = values[: lengths[place]]
    return rows


def numpy_of(tensor: Tensor) -> np.ndarray:
    """Return a tensor as an array: float64 as it is, other types as float32."""
    return (tensor if tensor.dtype == torch.float64 else tensor.float()).detach().cpu().numpy()


@torch.inference_mode()
def score_rows(
    model: nn.Module,
    features: Features,
    *,
    pad_token_id: int,
    accelerator: Accelerator,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    rows: np.ndarray | None = None,
    masked: Sequence[np.ndarray | None] | None = None,
    mask_token_id: int | None = None,
    attention_excluded: Sequence[np.ndarray | None] | None = None,
    with_details: bool = False,
    attribution_head: AttributionHead | None = None,
    encoded: dict[int, torch.Tensor] | None = None,
    in_float32: bool = False,
    with_vectors: bool = False,
    progress: Callable[[int], None] | None = None,
) -> RowScores:
    """Run the model over rows in evaluation mode; several processes share the batches, and all get all logits."""
    rows = np.arange(len(features)) if rows is None else rows
    lengths, padded_lengths = features.lengths[rows], features.padded_lengths[rows]
    if batch_size is None:
        batches = budget_order(padded_lengths, batch_tokens or default_batch_tokens(accelerator.device))
    else:
        batches = sorted_order(padded_lengths, batch_size)
    inner: Any = accelerator.unwrap_model(model) if accelerator.num_processes > 1 else model
    dtype = np.float64 if inner.config.task_type == "regression" else np.float32
    found = RowScores(np.zeros((len(rows), inner.config.num_labels), dtype))
    # One autocast around all batches casts the weights only once.
    precision = _own_forward(model) if in_float32 else accelerator.autocast()
    # For vectors, a process without a batch also runs the first one, which has their width.
    numbers = range(accelerator.process_index, len(batches), accelerator.num_processes)
    idle = with_vectors and not numbers and len(batches) > 0
    seen_by: contextlib.AbstractContextManager[list[Tensor]] = contextlib.nullcontext([])
    seen_by = _classifier_inputs(inner) if with_vectors else seen_by
    with evaluating(model), frozen_weights(model), precision, seen_by as seen:
        for number in [0] if idle else numbers:
            places = batches[number]
            batch = pad_batch(
                features,
                rows[places],
                pad_token_id=pad_token_id,
                mask_token_id=mask_token_id,
                masked=None if masked is None else [masked[place] for place in places],
                attention_excluded=None
                if attention_excluded is None
                else [attention_excluded[place] for place in places],
            )
            inputs = {name: tensor.to(accelerator.device) for name, tensor in batch.inputs.items()}
            if encoded is not None:
                if number not in encoded:
                    encoded[number] = inner.encode(**inputs).last_hidden_state.cpu()
                inputs["encoded_BTD"] = encoded[number].to(accelerator.device)
            output = model(**inputs, **({} if attribution_head is None else {"output_hidden_states": True}))
            if idle:
                places = places[:0]
            else:
                found.logits_NC[places] = numpy_of(output.logits)
                if attribution_head is not None:
                    estimates_BTO = attribution_head([output.hidden_states[layer] for layer in attribution_head.layers])
                    found.attributions = _filled_tokens(found.attributions, places, estimates_BTO, lengths)
                if with_details and output.token_scores is not None:
                    found.token_scores = _filled_tokens(found.token_scores, places, output.token_scores, lengths)
                if with_details and output.layer_weights is not None:
                    weights_BL = output.layer_weights
                    found.layer_weights_NL = _filled(found.layer_weights_NL, places, weights_BL, len(rows))
            if seen:
                found.vectors_NF = _filled(found.vectors_NF, places, seen.pop(), len(rows))
            if progress is not None:
                progress(len(places))
    found.logits_NC = summed_over_processes(found.logits_NC, accelerator)
    if found.vectors_NF is not None:
        found.vectors_NF = summed_over_processes(found.vectors_NF, accelerator)
    return found


@contextlib.contextmanager
def _classifier_inputs(model: Any) -> Iterator[list[Tensor]]:
    """Collect the inputs of the classifier's last layer in each pass while the block runs."""
    read = getattr(model.classifier, "features", lambda vectors: vectors)
    seen: list[Tensor] = []
    handle = model.classifier.register_forward_pre_hook(lambda module, inputs: seen.append(read(inputs[0])))
    try:
        yield seen
    finally:
        handle.remove()


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode while the block runs, and restore its mode after."""
    if not any(module.training for module in model.modules()):  # setting the modes of all modules takes longer
        yield
        return
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextlib.contextmanager
def _own_forward(model: nn.Module) -> Iterator[None]:
    """Use a model's own `forward` while the block runs: Accelerate's `prepare` wraps it in autocast for good."""
    wrapped = model.__dict__.pop("forward", None)
    try:
        yield
    finally:
        if wrapped is not None:
            model.__dict__["forward"] = wrapped


def summed_over_processes(values: np.ndarray, accelerator: Accelerator) -> np.ndarray:
    """Sum an array over all processes; each gets the sum."""
    if accelerator.num_processes == 1:
        return values
    total = accelerator.reduce(torch.from_numpy(values).to(accelerator.device), reduction="sum")
    return total.cpu().numpy()
