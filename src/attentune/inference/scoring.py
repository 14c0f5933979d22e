"""What a model says of the rows of a split: logits, and the importance of tokens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, is_mlflow_available, is_tensorboard_available, is_wandb_available
from torch import nn

from attentune.data.batching import budget_order, pad_batch, sorted_order
from attentune.data.tokenization import Features
from attentune.errors import ConfigError
from attentune.models.fused import frozen_weights
from attentune.models.precision import MIXED_PRECISION, resolve_precision
from attentune.nn.cpu.memory import kept_memory

# Enough to keep matrix products busy, and little enough that what lies between them stays near the cores.
BATCH_TOKENS = 2048
_TRACKERS = {"tensorboard": is_tensorboard_available, "mlflow": is_mlflow_available, "wandb": is_wandb_available}


def make_accelerator(
    *, precision: str, use_cpu: bool = False, tracker: str = "none", folder: str | None = None
) -> tuple[Accelerator, str]:
    """Accelerate's view of the hardware, and the precision that was settled on.

    Args:
        precision: "auto", "fp32", "bf16" or "fp16".
        use_cpu: leave accelerators alone.
        tracker: "none" or a tracker that Accelerate knows.
        folder: where the tracker writes.

    Raises:
        ConfigError: the device cannot do what is wanted, or the tracker is not installed.
    """
    if tracker != "none" and not _TRACKERS[tracker]():
        raise ConfigError(
            f"training.report_to: {tracker} is not installed; run: pip install {tracker} (all trackers: pip install"
            " 'attentune[trackers]')"
        )
    # Without an accelerator Accelerate does not see that torchrun has started several processes, unless told to.
    use_cpu = use_cpu or ("LOCAL_RANK" in os.environ and not torch.accelerator.is_available())
    device = PartialState(cpu=use_cpu).device
    settled = resolve_precision(precision, device)
    # One process may make several of these with other settings; Accelerate keeps the first unless told to forget it.
    AcceleratorState._reset_state()
    accelerator = Accelerator(
        cpu=use_cpu,
        mixed_precision=MIXED_PRECISION[settled],
        log_with=None if tracker == "none" else tracker,
        project_dir=folder,
    )
    check_whole_models(accelerator)
    return accelerator, settled


def check_whole_models(accelerator: Accelerator) -> None:
    """Refuse ways of spreading one model over processes: weights, checkpoints and labels here are of whole models."""
    kind = accelerator.distributed_type
    if kind in (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        raise ConfigError(
            f"accelerate was started with {kind.value}, which spreads a model over processes; expected one that gives"
            " each process the whole model (DDP). Leave the option out: accelerate launch --multi_gpu -m"
            " attentune.cli.main train ..."
        )


@dataclass(frozen=True)
class RowScores:
    """What a model says of some rows.

    Attributes:
        logits_NC: (N, C) float32.
        token_scores: the importance of each row's tokens, (length,) float32 each; None where the model gives none.
        layer_weights_NL: (N, L) float32 excitation of the layers; None where the model gives none.
    """

    logits_NC: np.ndarray
    token_scores: tuple[np.ndarray, ...] | None = None
    layer_weights_NL: np.ndarray | None = None


class _Collected:
    """Gathers what a model says batch by batch, at the rows' places."""

    def __init__(self, lengths: np.ndarray, outputs: int, *, with_details: bool) -> None:
        self._lengths, self._with_details = lengths, with_details
        self.logits_NC = np.zeros((len(lengths), outputs), dtype=np.float32)
        self._tokens: dict[int, np.ndarray] = {}
        self._layers: dict[int, np.ndarray] = {}

    def add(self, places: np.ndarray, output: Any) -> None:
        self.logits_NC[places] = _numpy(output.logits)
        if self._with_details and output.token_scores is not None:
            scores_BT = _numpy(output.token_scores)
            self._tokens |= {int(place): scores_BT[n, : self._lengths[place]] for n, place in enumerate(places)}
        if self._with_details and output.layer_weights is not None:
            self._layers |= dict(zip(places.tolist(), _numpy(output.layer_weights), strict=True))

    def scores(self, logits_NC: np.ndarray) -> RowScores:
        count = len(self._lengths)
        return RowScores(
            logits_NC,
            tuple(self._tokens[place] for place in range(count)) if self._tokens else None,
            np.stack([self._layers[place] for place in range(count)]) if self._layers else None,
        )


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.float().cpu().numpy()


@torch.inference_mode()
def score_rows(
    model: nn.Module,
    features: Features,
    *,
    pad_token_id: int,
    accelerator: Accelerator,
    batch_size: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    rows: np.ndarray | None = None,
    masked: Sequence[np.ndarray | None] | None = None,
    mask_token_id: int | None = None,
    attention_excluded: Sequence[np.ndarray | None] | None = None,
    with_details: bool = False,
    progress: Callable[[int], None] | None = None,
) -> RowScores:
    """Score rows in evaluation mode; under several processes each scores its share and all get all logits.

    Args:
        model: on the accelerator's device; its mode is put back afterwards.
        features: the split's tokens.
        pad_token_id: fills up shorter rows.
        accelerator: where and in which precision.
        batch_size: rows in a batch; if not given, as many as `batch_tokens` allows.
        batch_tokens: tokens in a batch, padding included.
        rows: which rows, in this order, one as often as you like; all if not given.
        masked: for each of them the places to mask, or None for none; nothing is masked if not given.
        mask_token_id: stands at masked places.
        attention_excluded: for each of them the places that attention leaves out, or None for none.
        with_details: keep the tokens' scores and the layers' weights (of one process only).
        progress: called with the number of rows done in each batch; what it raises ends the scoring.
    """
    rows = np.arange(len(features)) if rows is None else rows
    lengths, padded_lengths = features.lengths[rows], features.padded_lengths[rows]
    batches = (
        budget_order(padded_lengths, batch_tokens) if batch_size is None else sorted_order(padded_lengths, batch_size)
    )
    outputs = _inner(model, accelerator).config.num_labels
    found = _Collected(lengths, outputs, with_details=with_details)
    # One autocast around all batches: it then halves the weights' precision once and not in each batch.
    is_half = next(model.parameters()).dtype == torch.bfloat16
    precision = contextlib.nullcontext() if is_half else accelerator.autocast()
    with _evaluating(model), frozen_weights(model), precision:
        for places in batches[accelerator.process_index :: accelerator.num_processes]:
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
            found.add(places, model(**inputs))
            if progress is not None:
                progress(len(places))
    return found.scores(summed_over_processes(found.logits_NC, accelerator))


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def predict_logits(
    model: nn.Module,
    features: Features,
    *,
    pad_token_id: int,
    batch_size: int | None,
    accelerator: Accelerator,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """(N, C) float32 logits of every row, in the order of the rows; see `score_rows`."""
    with kept_memory():
        return score_rows(
            model,
            features,
            pad_token_id=pad_token_id,
            batch_size=batch_size,
            accelerator=accelerator,
            progress=progress,
        ).logits_NC


def summed_over_processes(values: np.ndarray, accelerator: Accelerator) -> np.ndarray:
    """The sum over all processes, on each of them."""
    if accelerator.num_processes == 1:
        return values
    total = accelerator.reduce(torch.from_numpy(values).to(accelerator.device), reduction="sum")
    return total.cpu().numpy()


def _inner(model: Any, accelerator: Accelerator) -> Any:
    """The model inside what Accelerate has wrapped around it for several processes."""
    return accelerator.unwrap_model(model) if accelerator.num_processes > 1 else model
