"""Export a model as a graph, and compare its outputs in onnxruntime with those of PyTorch on batches of many shapes."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer as PlainTokenizer
from torch import Tensor, nn

from attentune.data.batching import pad_batch
from attentune.data.dataset import TaskData, TextRows
from attentune.data.tokenization import Features
from attentune.errors import AttentuneError, ExportError
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.io.files import storage_errors
from attentune.models.cpu_layers import attention_by
from attentune.models.modeling import AttentuneForSequenceClassification

# The operator sets that PyTorch's exporter supports.
OPSETS = range(18, 24)
# Graph and weights are one protobuf file, whose size is limited.
_LARGEST_BYTES = 2_000_000_000


class PlainOutputs(nn.Module):
    """Wraps a model to take positional tensors and return a tuple, as the ONNX exporter requires.

    The outputs are the logits and, with a token gate, the token scores.
    """

    def __init__(self, model: AttentuneForSequenceClassification, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        output = self.model(**dict(zip(self.names, tensors, strict=True)))
        return (output.logits,) if output.token_scores is None else (output.logits, output.token_scores)


def output_names(model: AttentuneForSequenceClassification) -> list[str]:
    """Return the output names of the graph of a model."""
    return ["logits"] if model.token_gate is None else ["logits", "token_scores"]


def write_graph(
    model: AttentuneForSequenceClassification, example: dict[str, Tensor], file: Path, *, opset: int | None = None
) -> int:
    """Write the graph and its weights into one file."""
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    if size > _LARGEST_BYTES:
        raise ExportError(
            f"the weights take {size / 1e9:.1f} GB, expected at most {_LARGEST_BYTES / 1e9:.0f} GB, the most that one"
            " file in ONNX holds. Train a smaller encoder."
        )
    # Not all attention implementations can be exported to ONNX; "eager" consists of matrix products and a softmax.
    with attention_by(model, "eager"), _silent(), torch.no_grad():
        try:
            program = torch.onnx.export(
                PlainOutputs(model, tuple(example)).eval(),
                tuple(example.values()),
                dynamo=True,
                input_names=list(example),
                output_names=output_names(model),
                dynamic_shapes=(tuple(_dynamic(tensor) for tensor in example.values()),),
                opset_version=opset,
                verbose=False,
            )
        except Exception as error:  # the exporter and its libraries raise exception types of their own
            raise ExportError(
                f"this model cannot be written as ONNX: {_cause(error)} Its settings stand in its config.json; serve it"
                " with attentune.predict, or train with other slots."
            ) from error
    assert program is not None
    with storage_errors(file):
        program.save(str(file), external_data=False)
    written = {entry.domain: entry.version for entry in program.model_proto.opset_import}[""]
    if opset not in (None, written):
        raise ExportError(f"opset {opset} was asked for, but PyTorch's exporter gave {written}; leave --opset out.")
    return written


def _dynamic(tensor: Tensor) -> dict[int, str]:
    return dict(enumerate(("batch", "length")[: tensor.ndim]))


def _cause(error: BaseException) -> str:
    """Return the first line of the message of the root cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{lines[0].rstrip('.:')}."


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Suppress logs and warnings of the exporter, such as a missing torchvision; the graph is checked separately."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.__trace", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def quantize_int8(source: Path, target: Path) -> None:
    """Write a dynamically quantised graph: weights are int8, and onnxruntime scales activations at run time."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(source)
    # The exporter records the shapes of weights; the quantiser transposes some and fails on the outdated shapes. It
    # infers those that it needs.
    del graph.graph.value_info[:]
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it warns to optimise the graph first, which PyTorch's exporter has done
    try:
        with storage_errors(target):
            # One scale for each column, so that one large weight does not reduce the precision of the whole matrix.
            quantize_dynamic(graph, target, weight_type=QuantType.QInt8, per_channel=True)
    finally:
        root.setLevel(level)


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
