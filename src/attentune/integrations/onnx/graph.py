"""From a model to a graph in ONNX, with a dynamic number of rows and of tokens."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from attentune.errors import ExportError
from attentune.io.files import storage_errors
from attentune.models.attention import attention_by
from attentune.models.modeling import AttentuneForSequenceClassification

# The operator sets that PyTorch's exporter writes.
OPSETS = range(18, 24)
# A graph with its weights is one file, and what it is written with ends here.
_LARGEST_BYTES = 2_000_000_000


class PlainOutputs(nn.Module):
    """A model with tensors in, by place, and a tuple of tensors out: logits and, of a token gate, the tokens' scores.

    Args:
        model: the model.
        names: what the tensors are, in their order.
    """

    def __init__(self, model: AttentuneForSequenceClassification, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        output = self.model(**dict(zip(self.names, tensors, strict=True)))
        return (output.logits,) if output.token_scores is None else (output.logits, output.token_scores)


def output_names(model: AttentuneForSequenceClassification) -> list[str]:
    """What the graph of a model gives."""
    return ["logits"] if model.token_gate is None else ["logits", "token_scores"]


def write_graph(
    model: AttentuneForSequenceClassification, example: dict[str, Tensor], file: Path, *, opset: int | None = None
) -> int:
    """Write the graph and its weights into one file.

    Args:
        model: on the CPU, in evaluation mode and float32.
        example: a batch of at least two rows; others may have another number of rows or tokens.
        file: where to.
        opset: the version of ONNX's operators; the one that PyTorch recommends if not given.

    Returns:
        The version of the operators.

    Raises:
        ExportError: the model cannot be written as a graph.
        StorageError: the file could not be written.
    """
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    if size > _LARGEST_BYTES:
        raise ExportError(
            f"the weights take {size / 1e9:.1f} GB, expected at most {_LARGEST_BYTES / 1e9:.0f} GB, the most that one"
            " file in ONNX holds. Train a smaller encoder."
        )
    # Not all programs of attention have counterparts in ONNX; the plain one is matrix products and a softmax.
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
        except Exception as error:  # the exporter, its optimiser and its library of graphs have kinds of their own
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
    """The first line of what went wrong at the bottom."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{lines[0].rstrip('.:')}."


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """No remarks of the exporter, such as that torchvision is missing; whether the graph is right is checked by us."""
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
    """Write a graph whose constant matrices are int8; onnxruntime scales activations as it goes (dynamic).

    Args:
        source: a graph in float32.
        target: where to.

    Raises:
        StorageError: the file could not be written.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(source)
    # The exporter notes the shapes of weights too; the quantiser turns some round and trips over the old note. Those
    # that it needs it infers.
    del graph.graph.value_info[:]
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it advises to optimise first, which PyTorch's exporter has done
    try:
        with storage_errors(target):
            # One scale a column: a single large weight then does not coarsen the whole matrix.
            quantize_dynamic(graph, target, weight_type=QuantType.QInt8, per_channel=True)
    finally:
        root.setLevel(level)
