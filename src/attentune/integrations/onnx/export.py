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

import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attentune.config.parse import did_you_mean
from attentune.data.batching import pad_batch
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.tokenization import Features, encode_rows
from attentune.errors import ConfigError, ExportError
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.integrations.hub.publish import ONNX_PAIR_USE, ONNX_USE, copy_card
from attentune.integrations.hub.stock import classification_config
from attentune.integrations.onnx.checking import (
    MADE_UP_NAME,
    OPSETS,
    Answers,
    answers,
    check_tokens,
    in_onnxruntime,
    in_pytorch,
    made_up_rows,
    output_names,
    plain_tokenizer,
    quantize_int8,
    validation_rows,
    write_graph,
)
from attentune.io.files import check_new_folder, new_folder, storage_errors, write_text
from attentune.metrics.metrics import predictions_of, score_predictions
from attentune.models.saving import quiet, save_tokenizer
from attentune.results import to_json

# All but the first are written by `integrations.hub`.
FORMATS, QUANTIZATIONS = ("onnx", "transformers", "sentence-transformers", "setfit"), ("int8",)
# The names that transformers.js looks for; it takes the quantised file in browsers.
GRAPH_FILE, INT8_FILE, ABOUT_FILE = "onnx/model.onnx", "onnx/model_quantized.onnx", "export.json"
# The largest accepted absolute difference from the outputs of PyTorch; of scores in standard deviations.
TOLERANCE = 1e-4
Say = Callable[[str], None]


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
    output_format: str = "onnx",
    opset: int | None = None,
    quantize: str | None = None,
    check_rows: int = 200,
    say: Say | None = None,
) -> Export:
    """Export a saved run to ONNX, and check it in onnxruntime.

    Args:
        run: a run folder, a checkpoint or a loaded `Predictor`.
        output_dir: a new or empty folder.
        output_format: "onnx", the only format that this function writes.
        opset: the version of the ONNX operator set; None for the one that PyTorch recommends.
        quantize: "int8" for a second graph with int8 weights.
        check_rows: the maximum number of validation rows to compare; synthetic texts if the rows are not available.
        say: called with a message about each step.

    Returns:
        What was written, with the results of the check.

    Raises:
        ExportError: a required package is not installed, the model cannot be exported, or the outputs differ from
            those of the run by more than 1e-4. Nothing is left behind.
        ConfigError: a setting is invalid, or the folder is not empty.
        CheckpointError: `run` holds no saved run.
    """
    target = Path(output_dir)
    _check_settings(target, output_format, opset, quantize, check_rows)
    saved = (run if isinstance(run, Predictor) else Predictor.load(run)).single_model("export")
    if saved.model.config.window is not None:
        raise ExportError(
            f"{saved.folder}: reads long texts in windows (data.long_texts), which the graph cannot; expected a run"
            " that cuts them. Train one with --long_texts cut, or serve this one with attentune.predict."
        )
    saved.model.to("cpu").float().eval()
    with new_folder(target) as temporary:
        export = _Making(saved, temporary, say or (lambda text: None)).export(target, opset, quantize, check_rows)
        write_text(temporary / ABOUT_FILE, to_json(_about(saved, export)))
    return export


def _check_settings(target: Path, output_format: str, opset: int | None, quantize: str | None, rows: int) -> None:
    problems = []
    for name, got, known in (("format", output_format, FORMATS), ("quantize", quantize, (None, *QUANTIZATIONS))):
        if got not in known:
            words = [word for word in known if word is not None]
            listed = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
            problems.append(f"--{name}: got {got!r}, expected {listed}.{did_you_mean(str(got), words)}")
    if output_format in FORMATS[1:]:
        problems.append(f"--format: {output_format} is written by attentune.integrations.hub, not as a graph.")
    if opset is not None and opset not in OPSETS:
        problems.append(f"--opset: got {opset}, expected a number from {OPSETS[0]} to {OPSETS[-1]}.")
    if rows < 1:
        problems.append(f"--check_rows: got {rows}, expected a whole number above 0.")
    try:
        check_new_folder(target)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(f"{', '.join(missing)}: not installed; run: pip install 'attentune[export]'")


class _Making:
    """Writes the files of an export and checks them."""

    def __init__(self, saved: ModelPredictor, folder: Path, say: Say) -> None:
        self.saved, self.folder, self.say = saved, folder, say

    def export(self, target: Path, opset: int | None, quantize: str | None, check_rows: int) -> Export:
        self._write_settings()
        self.say("writing the graph")
        example = self._inputs_of(made_up_rows(pairs=self.saved.is_pair).take(range(3)))
        written = write_graph(self.saved.model, example, self.folder / GRAPH_FILE, opset=opset)
        validation = validation_rows(self.saved, check_rows)
        rows, data = (made_up_rows(pairs=self.saved.is_pair), None) if validation is None else validation
        # Edge cases that data sets lack, such as empty or overlong texts, are compared too, but not scored.
        odd = None if validation is None else made_up_rows(pairs=self.saved.is_pair)
        self.say(f"checking it on {len(rows)} rows")
        plain, difference = self._checked(rows)
        if odd is not None:
            difference = max(difference, self._checked(odd)[1])
        programs, alike = {GRAPH_FILE: plain}, None
        if quantize == "int8":
            self.say("quantising")
            quantize_int8(self.folder / GRAPH_FILE, self.folder / INT8_FILE)
            programs[INT8_FILE] = self._answers(in_onnxruntime(self.folder / INT8_FILE), self._features(rows))
            alike = agreement(plain, programs[INT8_FILE], self.saved.label_space)
        return Export(
            folder=target,
            task_type=self.saved.label_space.task_type,
            opset=written,
            inputs=tuple(example),
            outputs=tuple(output_names(self.saved.model)),
            checked_on=MADE_UP_NAME if validation is None else "validation",
            rows=len(rows),
            max_difference=difference,
            int8_agreement=alike,
            scores={} if data is None else _scores(programs, rows, data),
            note=_note(self.saved.label_space),
        )

    def _write_settings(self) -> None:
        with storage_errors(self.folder), quiet():
            (self.folder / "onnx").mkdir()
            save_tokenizer(self.saved.tokenizer, self.folder, longest=self.saved.model.config.max_seq_length)
            classification_config(self.saved.model).save_pretrained(self.folder)
        use, library = (ONNX_PAIR_USE, "onnx") if self.saved.is_pair else (ONNX_USE, "transformers.js")
        copy_card(self.saved.folder, self.folder, use, pair=self.saved.is_pair, library=library)
        with storage_errors(self.folder):
            self.plain = plain_tokenizer(self.saved)
            self.plain.save(str(self.folder / "tokenizer.json"))

    def _features(self, rows: TextRows) -> Features:
        config = self.saved.model.config
        return encode_rows(
            rows, self.saved.tokenizer, max_length=config.max_seq_length, bi_encoder=config.is_bi_encoder
        )

    def _inputs_of(self, rows: TextRows) -> dict[str, Any]:
        return pad_batch(self._features(rows), range(len(rows)), pad_token_id=self.saved.tokenizer.pad_token_id).inputs

    def _answers(self, program: Any, features: Features) -> Answers:
        return answers(program, features, self.saved.tokenizer.pad_token_id)

    def _checked(self, rows: TextRows) -> tuple[Answers, float]:
        """Run the graph and the model on these rows and compare their outputs."""
        features = self._features(rows)
        check_tokens(self.plain, rows, features)
        got = self._answers(in_onnxruntime(self.folder / GRAPH_FILE), features)
        expected = self._answers(in_pytorch(self.saved.model), features)
        difference = got.difference(expected, self.saved.model.config.score_std)
        if difference > TOLERANCE:
            raise ExportError(
                f"{self.saved.folder}: in onnxruntime its outputs differ by {difference:.2g} from PyTorch's on"
                f" {len(rows)} rows ({rows.source}), expected at most {TOLERANCE:.0e}; nothing was written. Try another"
                " --opset, or serve it with attentune.predict."
            )
        return got, difference


def _note(space: LabelSpace) -> str | None:
    if space.thresholds is not None:
        names = space.names if space.is_multilabel else space.names[1:]
        pairs = list(zip(names, space.thresholds, strict=True))
        shown = ", ".join(f"{name!r} from {value:.3f}" for name, value in pairs[:5]) + (
            ", ..." if len(pairs) > 5 else ""
        )
        is_ordered = space.task_type == "ordinal" and space.num_labels > 2
        by = "the mean of class numbers" if is_ordered else "probability"
        what = f"by {by}, {shown} on (thresholds in {ABOUT_FILE})"
    elif space.ordinal_prediction == "expected-value":
        what = f"as the class nearest to the mean of class numbers (ordinal_prediction in {ABOUT_FILE})"
    else:
        return None
    return f"the run predicts {what}; the graph gives logits, so do that where you serve it (docs: Exporting)"


def agreement(one: Answers, other: Answers, label_space: LabelSpace) -> float:
    """Return the fraction of rows with equal predictions; for regression, the largest difference of predictions."""
    first, second = (predictions_of(answered.logits_NC, label_space) for answered in (one, other))
    if label_space.task_type == "regression":
        return float(abs(first - second).max())
    alike = first == second
    return float((alike.all(axis=1) if label_space.is_multilabel else alike).mean())


def _scores(programs: dict[str, Answers], rows: TextRows, data: TaskData) -> dict[str, dict[str, float]]:
    if rows.labels is None:
        return {}
    return {
        name: score_predictions(data.metrics, rows.labels, answered.logits_NC, data.label_space)
        for name, answered in programs.items()
    }


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
