"""Whether a graph in onnxruntime says what the model says in PyTorch, on batches of many shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attentune.data.batching import pad_batch
from attentune.data.tokenization import Features
from attentune.integrations.onnx.graph import PlainOutputs
from attentune.models.modeling import AttentuneForSequenceClassification

Run = Callable[[dict[str, Tensor]], list[np.ndarray]]
# One after the other, so that few batches have the shape of the one before.
_BATCH_ROWS = (1, 5, 2, 16, 3)


@dataclass(frozen=True)
class Answers:
    """What a program says of some rows.

    Attributes:
        logits_NC: (N, C).
        outputs: of each batch all outputs, logits first.
    """

    logits_NC: np.ndarray
    outputs: list[list[np.ndarray]]

    def difference(self, other: Answers) -> float:
        """The largest absolute difference in any output; infinite where one of them is no number or other in shape."""
        largest = 0.0
        for own, others in zip(self.outputs, other.outputs, strict=True):
            for one, another in zip(own, others, strict=True):
                if one.shape != another.shape:
                    return float("inf")
                gap = float(np.abs(one - another).max(initial=0.0))
                largest = max(largest, gap if np.isfinite(gap) else float("inf"))
        return largest


def batches(features: Features, pad_token_id: int) -> Iterator[dict[str, Tensor]]:
    """All rows in their order, in batches of several sizes."""
    begin = 0
    for size in cycle(_BATCH_ROWS):
        if begin >= len(features):
            return
        rows = range(begin, min(begin + size, len(features)))
        yield pad_batch(features, rows, pad_token_id=pad_token_id).inputs
        begin += size


def answers(run: Run, features: Features, pad_token_id: int) -> Answers:
    """What this program says of these rows."""
    outputs = [run(inputs) for inputs in batches(features, pad_token_id)]
    return Answers(np.concatenate([output[0] for output in outputs]), outputs)


def in_pytorch(model: AttentuneForSequenceClassification) -> Run:
    """The model itself; it is on the CPU and in evaluation mode."""

    @torch.inference_mode()
    def run(inputs: dict[str, Tensor]) -> list[np.ndarray]:
        return [tensor.float().numpy() for tensor in PlainOutputs(model, tuple(inputs))(*inputs.values())]

    return run


def in_onnxruntime(file: Path) -> Run:
    """A graph, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def run(inputs: dict[str, Tensor]) -> list[np.ndarray]:
        return session.run(None, {name: inputs[name].numpy() for name in names})

    return run
