"""Logits of a model for the rows of a split."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import is_tensorboard_available
from torch import nn

from attentune.data.batches import pad_batch, sorted_order
from attentune.data.features import Features
from attentune.errors import ConfigError
from attentune.models.precision import MIXED_PRECISION, resolve_precision


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
    if tracker == "tensorboard" and not is_tensorboard_available():
        raise ConfigError("training.report_to: tensorboard is not installed; run: pip install tensorboard")
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
    return accelerator, settled


@torch.inference_mode()
def predict_logits(
    model: nn.Module,
    features: Features,
    *,
    pad_token_id: int,
    batch_size: int,
    accelerator: Accelerator,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Score every row; under several processes each scores its share and all get everything.

    Args:
        model: a model that `accelerator` has prepared; its mode is put back afterwards.
        features: the rows' tokens.
        pad_token_id: fills up shorter rows.
        batch_size: rows in a batch.
        accelerator: where and in which precision.
        progress: called with the number of rows done in each batch.

    Returns:
        (N, C) float32 logits in the order of the rows.
    """
    was_training = model.training
    model.eval()
    logits_NC: np.ndarray | None = None
    batches = sorted_order(features.lengths, batch_size)
    for rows in batches[accelerator.process_index :: accelerator.num_processes]:
        batch = pad_batch(features, rows, pad_token_id=pad_token_id)
        inputs = {name: tensor.to(accelerator.device) for name, tensor in batch.inputs.items()}
        scored = model(**inputs).logits.float().cpu().numpy()
        if logits_NC is None:
            logits_NC = np.zeros((len(features), scored.shape[1]), dtype=np.float32)
        logits_NC[rows] = scored
        if progress is not None:
            progress(len(rows))
    model.train(was_training)
    return _gathered(logits_NC, len(features), model, accelerator)


def _gathered(logits_NC: np.ndarray | None, rows: int, model: nn.Module, accelerator: Accelerator) -> np.ndarray:
    """The sum over processes: each row is filled in by exactly one."""
    if logits_NC is None:
        outputs = accelerator.unwrap_model(model).config.num_labels
        logits_NC = np.zeros((rows, outputs), dtype=np.float32)
    if accelerator.num_processes == 1:
        return logits_NC
    total = accelerator.reduce(torch.from_numpy(logits_NC).to(accelerator.device), reduction="sum")
    return total.cpu().numpy()
