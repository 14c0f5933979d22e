"""Compare the outputs of a graph in onnxruntime with those of the model in PyTorch, on batches of many shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer as PlainTokenizer
from torch import Tensor

from attentune.data.batching import pad_batch
from attentune.data.dataset import TaskData, TextRows
from attentune.data.tokenization import Features
from attentune.errors import AttentuneError, ExportError
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.integrations.onnx.graph import PlainOutputs
from attentune.models.modeling import AttentuneForSequenceClassification

_MADE_UP = (
    "The film was not dull at all.",
    "",
    "a",
    "Nobody plays the guitar in 1990, and that is that; it is cold, and the train leaves at 7:45!",
    "[SEP] is not what it looks like here </s>",
    "Prices rose by 12 percent. " * 40,
    "Where did you find such good coffee?",
)
MADE_UP_NAME = "made-up texts"


def made_up_rows(*, pairs: bool) -> TextRows:
    """Return synthetic texts with edge cases: short, empty, overlong, and with text that looks like special tokens."""
    ids = tuple(map(str, range(len(_MADE_UP))))
    return TextRows(ids, _MADE_UP, (*_MADE_UP[3:], *_MADE_UP[:3]) if pairs else None, None, MADE_UP_NAME)


def validation_rows(saved: Predictor, most: int) -> tuple[TextRows, TaskData] | None:
    """Return the first validation rows of the run and their task data."""
    try:
        data = saved.data(None, ("validation",))
    except AttentuneError:
        return None
    rows = next(iter(data.splits.values()))
    return (rows.take(range(min(most, len(rows)))), data) if len(rows) else None


def plain_tokenizer(saved: ModelPredictor) -> PlainTokenizer:
    """Return a tokenizer of the library `tokenizers` that truncates and pads as the run does.

    Its file stores truncation and padding, but not `encode_special_tokens`, which must be set after loading.
    """
    plain = PlainTokenizer.from_str(saved.tokenizer.backend_tokenizer.to_str())
    plain.enable_truncation(saved.model.config.max_seq_length, strategy="longest_first", direction="right")
    plain.enable_padding(
        direction="right", pad_id=saved.tokenizer.pad_token_id, pad_type_id=0, pad_token=saved.tokenizer.pad_token
    )
    plain.encode_special_tokens = True
    return plain


def check_tokens(plain: PlainTokenizer, rows: TextRows, features: Features) -> None:
    """Compare the tokens of the exported tokenizer with those of the run."""
    bi_encoder = features.second_starts is not None
    for number, text in enumerate(rows.texts):
        pair = None if rows.pairs is None else rows.pairs[number]
        encodings = [plain.encode(one) for one in (text, pair)] if bi_encoder else [plain.encode(text, pair)]
        ids = [token for encoding in encodings for token in encoding.ids]
        if not np.array_equal(ids, features.ids[features.row(number)]):
            raise ExportError(
                f"{rows.source}: row {number} has other tokens in the library tokenizers alone than in this run, so an"
                f" export would read it wrongly: got {ids[:8]} ..., expected"
                f" {features.ids[features.row(number)][:8].tolist()} ... This family of encoders cannot be exported."
            )


Run = Callable[[dict[str, Tensor]], list[np.ndarray]]
# Used in turn, so that consecutive batches rarely have the same shape.
_BATCH_ROWS = (1, 5, 2, 16, 3)


@dataclass(frozen=True)
class Answers:
    """Outputs of a model for some rows."""

    logits_NC: np.ndarray  # (N, C) logits
    outputs: list[list[np.ndarray]]  # all outputs of each batch, logits first

    def difference(self, other: Answers, unit: float = 1.0) -> float:
        """Return the largest absolute difference of any output; infinity for NaN, infinite values or unequal shapes.

        That of the logits is in units of `unit`.
        """
        largest = 0.0
        for outputs, others in zip(self.outputs, other.outputs, strict=True):
            for number, (one, another) in enumerate(zip(outputs, others, strict=True)):
                if one.shape != another.shape:
                    return float("inf")
                gap = float(np.abs(one - another).max(initial=0.0)) / (1.0 if number else unit)
                largest = max(largest, gap if np.isfinite(gap) else float("inf"))
        return largest


def batches(features: Features, pad_token_id: int) -> Iterator[dict[str, Tensor]]:
    """Yield all rows in order, in batches of several sizes."""
    begin = 0
    for size in cycle(_BATCH_ROWS):
        if begin >= len(features):
            return
        rows = range(begin, min(begin + size, len(features)))
        yield pad_batch(features, rows, pad_token_id=pad_token_id).inputs
        begin += size


def answers(run: Run, features: Features, pad_token_id: int) -> Answers:
    """Run a model on all rows, in batches of several sizes."""
    outputs = [run(inputs) for inputs in batches(features, pad_token_id)]
    return Answers(np.concatenate([output[0] for output in outputs]), outputs)


def in_pytorch(model: AttentuneForSequenceClassification) -> Run:
    """Return a function that runs the model in PyTorch; the model must be on the CPU and in evaluation mode."""

    @torch.inference_mode()
    def run(inputs: dict[str, Tensor]) -> list[np.ndarray]:
        return [tensor.numpy() for tensor in PlainOutputs(model, tuple(inputs))(*inputs.values())]

    return run


def in_onnxruntime(file: Path) -> Run:
    """Return a function that runs a graph in onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def run(inputs: dict[str, Tensor]) -> list[np.ndarray]:
        return session.run(None, {name: inputs[name].numpy() for name in names})

    return run
