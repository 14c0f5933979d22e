"""Export a run as a folder that can be served without PyTorch.

The folder holds:

onnx/model.onnx             the graph with its weights
onnx/model_quantized.onnx   the same with int8 weights, if requested
tokenizer.json              for the library `tokenizers`; truncates and pads as the run does
export.json                 labels, maximum length, inputs and outputs, and the results of the check
config.json                 the encoder's settings with the labels
README.md                   the run's model card
tokenizer_config.json and the other files of the tokenizer

transformers.js loads this folder too.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer as PlainTokenizer
from torch import Tensor, nn

from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.tokenization import Features, encode_rows, pad_batch
from attentune.errors import AttentuneError, ConfigError, ExportError
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.integrations.exports import (
    MADE_UP_NAME,
    ONNX_PAIR_USE,
    ONNX_USE,
    Say,
    check_difference,
    copy_card,
    made_up_rows,
)
from attentune.integrations.transformers import classification_config
from attentune.io.files import check_new_folder, new_folder, storage_errors, write_text
from attentune.metrics.metrics import predictions_of, score_predictions
from attentune.models.cpu_layers import attention_by
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.saving import first_line, quiet, save_tokenizer
from attentune.plugins import require_extra
from attentune.results import to_json

# The most validation rows that the outputs are compared on.
_CHECKED_ROWS = 200
# Graph and weights are one protobuf file, whose size is limited.
_LARGEST_BYTES = 2_000_000_000
# The names that transformers.js looks for; it takes the quantised file in browsers.
GRAPH_FILE, INT8_FILE, ABOUT_FILE = "onnx/model.onnx", "onnx/model_quantized.onnx", "export.json"
# The largest accepted absolute difference from the outputs of PyTorch; of scores in standard deviations.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Export:
    """Result of an ONNX export and of its check."""

    folder: Path  # the folder that was written
    task_type: str  # "classification", "regression", "ordinal" or "multi_label"
    opset: int  # the version of the ONNX operator set
    # inputs, outputs: the names, in the order of the graph.
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    checked_on: str  # "validation" for validation rows of the run, otherwise "made-up texts"
    rows: int  # the number of checked rows
    max_difference: float  # the largest absolute difference of any output from that of PyTorch
    int8_agreement: float | None = None  # the fraction of rows for which the int8 and float32 graphs predict the same
    scores: dict[str, dict[str, float]] = field(default_factory=dict)  # the metrics by file and metric name
    note: str | None = None  # how to turn logits into predictions, if it is not by taking the most probable class

    @property
    def int8_meaning(self) -> str:
        """What `int8_agreement` measures, in words."""
        scores = self.task_type == "regression"
        return "largest difference of a prediction from float32's" if scores else "share of rows predicted alike"


def export_run(
    run: str | Path | Predictor,
    output_dir: str | Path,
    *,
    quantize: str | None = None,
    say: Say | None = None,
) -> Export:
    """Export a saved run to ONNX, and check it in onnxruntime.

    Args:
        run: a run folder, a checkpoint or a loaded `Predictor`.
        output_dir: a new or empty folder.
        quantize: "int8" for a second graph with int8 weights.
        say: called with a message about each step.

    Returns:
        What was written, with the results of the check.

    Raises:
        ExportError: a required package is not installed, the model cannot be exported, or the outputs differ from
            those of the run by more than 1e-4. Nothing is left behind.
        ConfigError: a setting is invalid, or the folder is not empty.
        CheckpointError: `run` holds no saved run.
    """
    target, say = Path(output_dir), say or (lambda text: None)
    if quantize not in (None, "int8"):
        raise ConfigError(f"--quantize: got {quantize!r}, expected int8.")
    check_new_folder(target)
    require_extra("export", "onnx", "onnxscript", "onnxruntime", what="export --format onnx")
    saved = (run if isinstance(run, Predictor) else Predictor.load(run)).single_model("export")
    saved.check_reads_all("export")
    if saved.model.config.window is not None:
        raise ExportError(
            f"{saved.folder}: reads long texts in windows (data.long_texts), which the graph cannot; expected a run"
            " that cuts them. Train one with --long_texts cut, or serve this one with attentune.predict."
        )
    saved.model.to("cpu").float().eval()
    with new_folder(target) as temporary:
        plain = _write_settings(saved, temporary)
        say("writing the graph")
        odd, pad_token_id = made_up_rows(pairs=saved.is_pair), saved.tokenizer.pad_token_id
        example = pad_batch(_features(saved, odd), range(3), pad_token_id=pad_token_id).inputs
        opset = write_graph(saved.model, example, temporary / GRAPH_FILE)
        validation = validation_rows(saved)
        rows, data = (odd, None) if validation is None else validation
        say(f"checking it on {len(rows)} rows")
        outputs, difference = _checked(saved, temporary, plain, rows)
        if data is not None:
            # Edge cases that data sets lack, such as empty or overlong texts, are compared too, but not scored.
            difference = max(difference, _checked(saved, temporary, plain, odd)[1])
        programs, alike = {GRAPH_FILE: outputs}, None
        if quantize == "int8":
            say("quantising")
            quantize_int8(temporary / GRAPH_FILE, temporary / INT8_FILE)
            quantized = in_onnxruntime(temporary / INT8_FILE)
            programs[INT8_FILE] = outputs_of(quantized, _features(saved, rows), pad_token_id)
            alike = agreement(outputs, programs[INT8_FILE], saved.label_space)
        scores: dict[str, dict[str, float]] = {}
        if data is not None and rows.labels is not None:
            for name, own in programs.items():
                scores[name] = score_predictions(data.metrics, rows.labels, logits_of(own), data.label_space)
        export = Export(
            folder=target,
            task_type=saved.label_space.task_type,
            opset=opset,
            inputs=tuple(example),
            outputs=tuple(output_names(saved.model)),
            checked_on=MADE_UP_NAME if data is None else "validation",
            rows=len(rows),
            max_difference=difference,
            int8_agreement=alike,
            scores=scores,
            note=_note(saved.label_space),
        )
        write_text(temporary / ABOUT_FILE, to_json(_about(saved, export)))
    return export


def _write_settings(saved: ModelPredictor, folder: Path) -> PlainTokenizer:
    """Write configuration, model card and tokenizer; return the tokenizer as it was written."""
    with storage_errors(folder), quiet():
        (folder / "onnx").mkdir()
        save_tokenizer(saved.tokenizer, folder, longest=saved.model.config.max_seq_length)
        classification_config(saved.model).save_pretrained(folder)
    use, library = (ONNX_PAIR_USE, "onnx") if saved.is_pair else (ONNX_USE, "transformers.js")
    copy_card(saved.folder, folder, use, pair=saved.is_pair, library=library)
    with storage_errors(folder):
        plain = plain_tokenizer(saved)
        plain.save(str(folder / "tokenizer.json"))
    return plain


def _features(saved: ModelPredictor, rows: TextRows) -> Features:
    config = saved.model.config
    return encode_rows(rows, saved.tokenizer, max_length=config.max_seq_length, bi_encoder=config.is_bi_encoder)


def _checked(saved: ModelPredictor, folder: Path, plain: PlainTokenizer, rows: TextRows) -> tuple[Outputs, float]:
    """Run the graph and the model on these rows and compare their outputs."""
    features, pad_token_id = _features(saved, rows), saved.tokenizer.pad_token_id
    check_tokens(plain, rows, features)
    got = outputs_of(in_onnxruntime(folder / GRAPH_FILE), features, pad_token_id)
    expected = outputs_of(in_pytorch(saved.model), features, pad_token_id)
    difference = largest_difference(got, expected, saved.model.config.score_std)
    check_difference(saved.folder, "onnxruntime", difference, TOLERANCE)
    return got, difference


def _note(space: LabelSpace) -> str | None:
    if space.thresholds is None and space.ordinal_prediction != "expected-value":
        return None
    rule = "mean class numbers" if space.thresholds is None else "thresholds"
    return (
        f"the run predicts by {rule}, which are in {ABOUT_FILE}; the graph gives logits, so do that where you serve it"
        " (docs: Exporting)"
    )


def agreement(one: Outputs, other: Outputs, label_space: LabelSpace) -> float:
    """Return the fraction of rows with equal predictions; for regression, the largest difference of predictions."""
    first, second = (predictions_of(logits_of(outputs), label_space) for outputs in (one, other))
    if label_space.task_type == "regression":
        return float(abs(first - second).max())
    alike = first == second
    return float((alike.all(axis=1) if label_space.is_multilabel else alike).mean())


def _about(saved: ModelPredictor, export: Export) -> dict[str, Any]:
    """Return the content of `export.json`: the information needed to serve the folder."""
    space, config = saved.label_space, saved.model.config
    return {
        "labels": list(space.names),
        "ordinal_prediction": space.ordinal_prediction,
        "thresholds": None if space.thresholds is None else list(space.thresholds),
        "max_length": config.max_seq_length,
        "pair": saved.is_pair,
        "texts_apart": config.is_bi_encoder,
        "pad_token_id": saved.tokenizer.pad_token_id,
        **{name: value for name, value in asdict(export).items() if name != "folder"},
    }


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


def write_graph(model: AttentuneForSequenceClassification, example: dict[str, Tensor], file: Path) -> int:
    """Write the graph and its weights into one file; return the version of the ONNX operator set."""
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    if size > _LARGEST_BYTES:
        raise ExportError(
            f"the weights take {size / 1e9:.1f} GB, expected at most {_LARGEST_BYTES / 1e9:.0f} GB, the most that one"
            " file in ONNX holds. Train a smaller encoder."
        )
    axes = ("batch", "length")
    # Not all attention implementations can be exported to ONNX; "eager" consists of matrix products and a softmax.
    with attention_by(model, "eager"), _silent("torch", "torch.__trace", "onnxscript", "onnx_ir"), torch.no_grad():
        try:
            program = torch.onnx.export(
                PlainOutputs(model, tuple(example)).eval(),
                tuple(example.values()),
                dynamo=True,
                input_names=list(example),
                output_names=output_names(model),
                dynamic_shapes=(tuple(dict(enumerate(axes[: tensor.ndim])) for tensor in example.values()),),
                verbose=False,
            )
        except Exception as error:  # the exporter and its libraries raise exception types of their own
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            raise ExportError(
                f"this model cannot be written as ONNX: {first_line(cause)} Serve it with attentune.predict, or"
                " train with other slots (model in its config.yaml)."
            ) from error
    assert program is not None
    with storage_errors(file):
        program.save(str(file), external_data=False)
    return {entry.domain: entry.version for entry in program.model_proto.opset_import}[""]


@contextlib.contextmanager
def _silent(*names: str) -> Iterator[None]:
    """Suppress warnings, and those of loggers, such as a missing torchvision; the graph is checked separately."""
    loggers = [logging.getLogger(name) for name in names]
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
    # It warns to optimise the graph first, which PyTorch's exporter has done.
    with _silent(""), storage_errors(target):
        # One scale for each column, so that one large weight does not reduce the precision of the whole matrix.
        quantize_dynamic(graph, target, weight_type=QuantType.QInt8, per_channel=True)


def validation_rows(saved: Predictor) -> tuple[TextRows, TaskData] | None:
    """Return the first validation rows of the run and their task data."""
    try:
        data = saved.data(None, ("validation",))
    except AttentuneError:
        return None
    rows = next(iter(data.splits.values()))
    return (rows.take(range(min(_CHECKED_ROWS, len(rows)))), data) if len(rows) else None


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


# Runs a model on a batch; returns the logits and the other outputs.
Run = Callable[[dict[str, Tensor]], list[np.ndarray]]
Outputs = list[list[np.ndarray]]
# Used in turn, so that consecutive batches rarely have the same shape.
_BATCH_ROWS = (1, 5, 2, 16, 3)


def outputs_of(run: Run, features: Features, pad_token_id: int) -> Outputs:
    """Run a model on all rows in order, in batches of several sizes; return the outputs of each batch."""
    outputs, begin, sizes = [], 0, cycle(_BATCH_ROWS)
    while begin < len(features):
        rows = range(begin, min(begin + next(sizes), len(features)))
        outputs.append(run(pad_batch(features, rows, pad_token_id=pad_token_id).inputs))
        begin = rows.stop
    return outputs


def logits_of(outputs: Outputs) -> np.ndarray:
    """Return the (N, C) logits of all batches."""
    return np.concatenate([batch[0] for batch in outputs])


def largest_difference(outputs: Outputs, others: Outputs, unit: float) -> float:
    """Return the largest absolute difference of any output, of logits in units of `unit`; infinity for NaN."""
    largest = 0.0
    for batch, other_batch in zip(outputs, others, strict=True):
        for number, (one, other) in enumerate(zip(batch, other_batch, strict=True)):
            if one.shape != other.shape:
                return float("inf")
            gap = float(np.abs(one - other).max(initial=0.0)) / (1.0 if number else unit)
            largest = max(largest, gap if np.isfinite(gap) else float("inf"))
    return largest


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
