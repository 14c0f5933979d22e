"""Export a run as a folder that transformers loads without Attentune, with the model code next to the weights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from attentune.data.batching import pad_batch
from attentune.data.tokenization import encode_rows
from attentune.errors import ConfigError, ExportError
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.integrations.hub.remote_code import AUTO_MAP, PIPELINES, code_files
from attentune.integrations.onnx.checking import made_up_rows
from attentune.io.files import storage_errors, write_text
from attentune.models.configuration import AttentuneConfig
from attentune.models.saving import save_model
from attentune.plugins import is_plugin

TOLERANCE = 1e-5
Say = Callable[[str], None]
# Run in a process that cannot import Attentune, as on the machines that will load the folder.
_LOADING = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "attentune":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder, inputs, outputs = sys.argv[1:]
AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()
with torch.no_grad():
    save_file({"logits": model(**load_file(inputs)).logits.contiguous()}, outputs)
"""


@dataclass(frozen=True)
class TransformersExport:
    """Result of an export for transformers and of its check.

    Attributes:
        folder: the folder that was written.
        files: the names of the code files.
        rows: the number of compared rows.
        max_difference: the largest absolute difference between the logits of the run and those of the export.
        own_pipeline: whether the folder has a pipeline of its own, because that of transformers would predict
            differently.
    """

    folder: Path
    files: tuple[str, ...]
    rows: int
    max_difference: float
    own_pipeline: bool = False


def export_for_transformers(
    run: str | Path | Predictor, output_dir: str | Path, *, say: Say | None = None
) -> TransformersExport:
    """Write a saved run with the code of its model, and check it in a process that cannot import Attentune.

    Args:
        run: a run folder, a checkpoint or a loaded `Predictor`.
        output_dir: a new or empty folder.
        say: called with a message about each step.

    Returns:
        What was written, with the result of the check.

    Raises:
        ExportError: the export does not load without Attentune, or its logits differ by more than 1e-5. Nothing is
            left behind.
        ConfigError: the folder is not empty, or the model has a part of another package.
        CheckpointError: `run` holds no saved run.
    """
    target = Path(output_dir)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"--output_dir: {target} is there and not an empty folder; name another or remove it.")
    saved = (run if isinstance(run, Predictor) else Predictor.load(run)).single_model("export")
    _check_own_parts(saved.model.config)
    saved.model.to("cpu").float().eval()
    temporary = target.absolute().with_name(f".{target.absolute().name}.{os.getpid()}.tmp")
    with storage_errors(target):
        temporary.mkdir(parents=True)
    try:
        files = _fill(saved, temporary)
        (say or (lambda text: None))("loading it where Attentune cannot be imported")
        inputs = _inputs(saved)
        difference = _difference(saved, temporary, inputs)
        with storage_errors(target):
            temporary.replace(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    own_pipeline = has_own_answers(saved.model.config)
    return TransformersExport(target, files, len(inputs["input_ids"]), difference, own_pipeline)


def _check_own_parts(config: AttentuneConfig) -> None:
    """Check that the model has no part whose code is not ours to copy.

    Raises:
        ConfigError: it has one.
    """
    kinds = [config.head["kind"], config.layer_mix["kind"], config.token_gate["kind"], config.blur.get("kind")]
    others = [kind for kind in kinds if is_plugin(kind)]
    if others:
        raise ConfigError(
            f"export: the model has {', '.join(others)} of another package, whose code is not copied. Export it as ONNX"
            " (attentune export RUN), or install Attentune and that package where it is used."
        )


def _fill(saved: ModelPredictor, folder: Path) -> tuple[str, ...]:
    """Write weights, configuration, tokenizer, code and the model card; return the names of the code files."""
    config = saved.model.config
    extra = {"auto_map": dict(AUTO_MAP)} | ({"custom_pipelines": PIPELINES} if has_own_answers(config) else {})
    before = dict(vars(config))
    try:
        config.update(extra)
        with storage_errors(folder):
            save_model(saved.model, saved.tokenizer, folder)
    finally:
        for name in extra:
            delattr(config, name)
        config.update({name: before[name] for name in extra if name in before})
    files = code_files()
    for name, text in files.items():
        write_text(folder / name, text)
    card = saved.folder / "README.md"
    if card.is_file():
        write_text(folder / "README.md", card.read_text(encoding="utf-8"))
    return tuple(files)


def has_own_answers(config: AttentuneConfig) -> bool:
    """Return whether the pipeline of transformers would predict differently from the run.

    It does for decision thresholds, expected-value ordinal predictions and multi-label tasks, since it takes the most
    probable class.
    """
    return (
        config.thresholds is not None
        or config.ordinal_prediction == "expected-value"
        or config.task_type == "multi_label"
    )


def _inputs(saved: ModelPredictor) -> dict[str, Any]:
    """Return a batch of synthetic texts, with edge cases among them."""
    config = saved.model.config
    rows = made_up_rows(pairs=saved.is_pair)
    features = encode_rows(rows, saved.tokenizer, max_length=config.max_seq_length, bi_encoder=config.is_bi_encoder)
    return pad_batch(features, range(len(rows)), pad_token_id=saved.tokenizer.pad_token_id).inputs


def _difference(saved: ModelPredictor, folder: Path, inputs: dict[str, Any]) -> float:
    with tempfile.TemporaryDirectory() as place:
        there, back = Path(place) / "inputs.safetensors", Path(place) / "logits.safetensors"
        save_file(inputs, there)
        # The cached copies of the code are deleted with the temporary folder; the hub is not contacted.
        around = {**os.environ, "HF_MODULES_CACHE": place, "HF_HUB_OFFLINE": "1"}
        words = [sys.executable, "-c", _LOADING, str(folder), str(there), str(back)]
        done = subprocess.run(words, env=around, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not back.is_file():
            lines = done.stderr.strip().splitlines() or ["no error output"]
            raise ExportError(
                f"{saved.folder}: what was written could not be loaded without Attentune ({lines[-1]}); nothing is left"
                " of it. An encoder that brings code of its own cannot be exported so."
            )
        logits = load_file(back)["logits"]
    with torch.no_grad():
        difference = float((saved.model(**inputs).logits - logits).abs().max())
    if difference > TOLERANCE:
        raise ExportError(
            f"{saved.folder}: loaded without Attentune its logits differ by {difference:.2g}, expected at most"
            f" {TOLERANCE:.0e}; nothing was written. Please report it."
        )
    return difference
