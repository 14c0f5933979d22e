"""Export a model as an ONNX graph with a dynamic batch size and length."""

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
