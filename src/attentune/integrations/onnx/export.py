"""Writing a run as a folder that serves without PyTorch: the whole way.

model.onnx          the graph with its weights
model.int8.onnx     the same with eight-bit weights, where asked for
tokenizer.json      for the library `tokenizers`; cuts and pads as the run does
export.json         labels, length, inputs and outputs, and what the check found
config.json and the tokenizer's other files
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attentune.config.parse import did_you_mean
from attentune.data.batching import pad_batch
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.tokenization import Features, encode_rows
from attentune.errors import ConfigError, ExportError
from attentune.inference.predictor import Predictor
from attentune.integrations.onnx.checking import (
    MADE_UP_NAME,
    Answers,
    answers,
    check_tokens,
    in_onnxruntime,
    in_pytorch,
    made_up_rows,
    plain_tokenizer,
    validation_rows,
)
from attentune.integrations.onnx.graph import OPSETS, output_names, quantize_int8, write_graph
from attentune.io.files import storage_errors, write_text
from attentune.metrics.metrics import predictions_of, score_predictions
from attentune.models.loading import quiet
from attentune.results import to_json

# "transformers" is written by `export_for_transformers`.
FORMATS, QUANTIZATIONS = ("onnx", "transformers"), ("int8",)
GRAPH_FILE, INT8_FILE, ABOUT_FILE = "model.onnx", "model.int8.onnx", "export.json"
# Outputs may differ by so much from PyTorch's.
TOLERANCE = 1e-4
Say = Callable[[str], None]


@dataclass(frozen=True)
class Export:
    """What was written, and what its check found.

    Attributes:
        folder: where it lies.
        task_type: "classification", "regression", "ordinal" or "multi_label".
        opset: the version of ONNX's operators.
        inputs, outputs: names, in the graph's order.
        checked_on: "validation" for the run's own rows, else "made-up texts".
        rows: how many were checked.
        max_difference: the largest absolute difference of any output from PyTorch's.
        int8_agreement: the share of rows that the int8 graph predicts as the float32 one does (of a regression: the
            largest difference of a prediction); None where there is none.
        scores: by file and metric, over the rows checked, where they have labels.
        note: what whoever serves the graph has to do beyond taking the likeliest class; None where nothing.
    """

    folder: Path
    task_type: str
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    checked_on: str
    rows: int
    max_difference: float
    int8_agreement: float | None = None
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    note: str | None = None

    @property
    def int8_meaning(self) -> str:
        """What `int8_agreement` counts."""
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
    """Write a saved run so that it serves without PyTorch, and check it in onnxruntime.

    Args:
        run: a run folder or checkpoint.
        output_dir: a folder that is new or empty.
        output_format: "onnx".
        opset: the version of ONNX's operators; the one that PyTorch recommends if not given.
        quantize: "int8" for a second graph with eight-bit weights.
        check_rows: how many of the run's own validation rows are compared; where they are not at hand, made-up texts.
        say: is told what is being done.

    Raises:
        ExportError: onnx is not installed, the model cannot be written, or what was written says something else than
            the run by more than 1e-4. Nothing is left behind.
        ConfigError: a setting that cannot be used, or a folder that is not empty.
        CheckpointError: there is no saved run.
    """
    target = Path(output_dir)
    _check_settings(target, output_format, opset, quantize, check_rows)
    saved = run if isinstance(run, Predictor) else Predictor.load(run)
    if saved.model.config.window is not None:
        raise ExportError(
            f"{saved.folder}: reads long texts in windows (data.long_texts), which the graph cannot; expected a run"
            " that cuts them. Train one with --long_texts cut, or serve this one with attentune.predict."
        )
    saved.model.to("cpu").float().eval()
    temporary = target.absolute().with_name(f".{target.absolute().name}.{os.getpid()}.tmp")
    with storage_errors(target):
        temporary.mkdir(parents=True)
    try:
        made = _Making(saved, temporary, say or (lambda text: None))
        export = made.export(target, opset, quantize, check_rows)
        write_text(temporary / ABOUT_FILE, to_json(_about(saved, export)))
        with storage_errors(target):
            temporary.replace(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return export


def _check_settings(target: Path, output_format: str, opset: int | None, quantize: str | None, rows: int) -> None:
    problems = []
    for name, got, known in (("format", output_format, FORMATS), ("quantize", quantize, (None, *QUANTIZATIONS))):
        if got not in known:
            words = [word for word in known if word is not None]
            problems.append(f"--{name}: got {got!r}, expected {' or '.join(words)}.{did_you_mean(str(got), words)}")
    if output_format == "transformers":
        problems.append("--format: transformers is written by attentune.integrations.hub.export, not as a graph.")
    if opset is not None and opset not in OPSETS:
        problems.append(f"--opset: got {opset}, expected a number from {OPSETS[0]} to {OPSETS[-1]}.")
    if rows < 1:
        problems.append(f"--check_rows: got {rows}, expected a whole number above 0.")
    with storage_errors(target):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            problems.append(f"--output_dir: {target} is there and not an empty folder; name another or remove it.")
    if problems:
        raise ConfigError(problems)
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(f"{', '.join(missing)}: not installed; run: pip install 'attentune[export]'")


class _Making:
    """Fills a folder.

    Args:
        saved: the run, its model on the CPU.
        folder: is there and empty.
        say: is told what is being done.
    """

    def __init__(self, saved: Predictor, folder: Path, say: Say) -> None:
        self.saved, self.folder, self.say = saved, folder, say

    def export(self, target: Path, opset: int | None, quantize: str | None, check_rows: int) -> Export:
        self._write_settings()
        self.say("writing the graph")
        example = self._inputs_of(made_up_rows(pairs=self.saved.is_pair).take(range(3)))
        written = write_graph(self.saved.model, example, self.folder / GRAPH_FILE, opset=opset)
        found = validation_rows(self.saved, check_rows)
        rows, data = (made_up_rows(pairs=self.saved.is_pair), None) if found is None else found
        # What no data set has - empty texts, overlong ones - is compared too, but not scored.
        odd = None if found is None else made_up_rows(pairs=self.saved.is_pair)
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
            checked_on=MADE_UP_NAME if found is None else "validation",
            rows=len(rows),
            max_difference=difference,
            int8_agreement=alike,
            scores={} if data is None else _scores(programs, rows, data),
            note=_note(self.saved.label_space),
        )

    def _write_settings(self) -> None:
        with storage_errors(self.folder), quiet():
            self.saved.tokenizer.save_pretrained(self.folder)
            self.saved.model.config.save_pretrained(self.folder)
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
        """What the graph says of these rows, and how far that is from PyTorch.

        Raises:
            ExportError: too far.
        """
        features = self._features(rows)
        check_tokens(self.plain, rows, features)
        got = self._answers(in_onnxruntime(self.folder / GRAPH_FILE), features)
        difference = got.difference(self._answers(in_pytorch(self.saved.model), features))
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
        what = f"by probability, {shown} on (thresholds in {ABOUT_FILE})"
    elif space.ordinal_prediction == "expected-value":
        what = f"as the class nearest to the mean of class numbers (ordinal_prediction in {ABOUT_FILE})"
    else:
        return None
    return f"the run predicts {what}; the graph gives logits, so do that where you serve it (docs: Exporting)"


def agreement(one: Answers, other: Answers, label_space: LabelSpace) -> float:
    """The share of rows with the same prediction; of a regression the largest difference of two predictions."""
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


def _about(saved: Predictor, export: Export) -> dict[str, Any]:
    """What `export.json` holds: all that whoever serves the folder has to know."""
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
