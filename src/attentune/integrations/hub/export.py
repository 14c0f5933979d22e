"""Export a run as a folder that transformers loads without Attentune.

Where a class of transformers has the model's logits exactly, the folder holds weights for that class (`stock`). Else it
holds the code of the model, which transformers runs with `trust_remote_code` (`remote_code`).
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from attentune import __version__
from attentune.config.parse import did_you_mean
from attentune.data.batching import pad_batch
from attentune.data.tokenization import encode_rows
from attentune.errors import ConfigError, ExportError
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.integrations.hub.publish import REMOTE_USE, STOCK_USE, copy_card
from attentune.integrations.hub.stock import differing_predictions, stock_model, unavailable_reason
from attentune.integrations.onnx.checking import made_up_rows
from attentune.io.files import check_new_folder, new_folder, storage_errors, write_text
from attentune.models.configuration import AttentuneConfig
from attentune.models.saving import quiet, save_model, save_tokenizer
from attentune.plugins import is_plugin

_ROOTS = {
    "attentune.models.configuration": "configuration_attentune",
    "attentune.models.modeling": "modeling_attentune",
    "attentune.models.pipeline_registry": "pipeline_attentune",
}
AUTO_MAP = {
    "AutoConfig": "configuration_attentune.AttentuneConfig",
    "AutoModelForSequenceClassification": "modeling_attentune.AttentuneForSequenceClassification",
}
# For runs that do not predict the most probable class: transformers then uses this pipeline for the task.
PIPELINES = {
    "text-classification": {
        "impl": "pipeline_attentune.AttentunePipeline",
        "pt": ["AutoModelForSequenceClassification"],
        "type": "text",
    }
}
_IMPORT = re.compile(r"^(\s*)from (attentune(?:\.\w+)+) import ", re.MULTILINE)
# Without Attentune, `auto_map` takes the place of the registration.
_REGISTERING = re.compile(r"^Auto\w+\.register\(.*\)\n", re.MULTILINE)
_HEADER = f"# From Attentune {__version__}, Apache License 2.0. Written by `attentune export --format transformers`.\n"


def code_files() -> dict[str, str]:
    """Return the contents of the files by name, starting with those that `AUTO_MAP` and `PIPELINES` name."""
    texts: dict[str, str] = {}
    waiting = list(_ROOTS)
    while waiting:
        module = waiting.pop(0)
        name = f"{_flat(module)}.py"
        if name not in texts:
            text = _source(module)
            texts[name] = _HEADER + _REGISTERING.sub("", _IMPORT.sub(_relative_import, text))
            waiting += _imported(text)
    return texts


def _flat(module: str) -> str:
    return _ROOTS.get(module, module.replace(".", "_"))


def _relative_import(match: re.Match[str]) -> str:
    return f"{match[1]}from .{_flat(match[2])} import "


def _source(module: str) -> str:
    path = PurePosixPath(*module.split(".")[1:]).with_suffix(".py")
    return (resources.files("attentune") / str(path)).read_text(encoding="utf-8")


def _imported(text: str) -> list[str]:
    """Return the modules of Attentune that a module imports."""
    nodes = ast.walk(ast.parse(text))
    names = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module is not None]
    return sorted({name for name in names if name.split(".")[0] == "attentune"})


TOLERANCE = 1e-5
# Which class loads the folder: one of transformers, ours with its code in the folder, or the first where it is exact.
CODE = ("auto", "stock", "remote")
Say = Callable[[str], None]
# Run in a process that cannot import Attentune, as on the machines that will load the folder.
WITHOUT_ATTENTUNE = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "attentune":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
"""
_LOADING = """
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder, inputs, outputs, trust = sys.argv[1:]
options = {"trust_remote_code": True} if trust == "remote" else {}
AutoTokenizer.from_pretrained(folder, **options)
model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, **options).eval()
with torch.no_grad():
    save_file({"logits": model(**load_file(inputs)).logits.contiguous()}, outputs)
"""


@dataclass(frozen=True)
class TransformersExport:
    """Result of an export for transformers and of its check."""

    folder: Path  # the folder that was written
    class_name: str | None  # the class of transformers that loads it
    reason: str | None  # why the class is not one of transformers, or what such a class leaves out
    files: tuple[str, ...]  # the names of the code files; none for a class of transformers
    rows: int  # the number of compared rows
    max_difference: float  # the largest absolute difference between the logits of the run and those of the export
    own_pipeline: bool = False  # whether the folder has a pipeline of its own


def export_for_transformers(
    run: str | Path | Predictor, output_dir: str | Path, *, code: str = "auto", say: Say | None = None
) -> TransformersExport:
    """Write a saved run for transformers, and check it in a process that cannot import Attentune."""
    target = Path(output_dir)
    if code not in CODE:
        raise ConfigError(f"--code: got {code!r}, expected {', '.join(CODE)}.{did_you_mean(code, CODE)}")
    check_new_folder(target)
    saved = (run if isinstance(run, Predictor) else Predictor.load(run)).single_model("export")
    saved.model.to("cpu").float().eval()
    is_stock, reason = _form(saved, code)
    with new_folder(target) as temporary:
        class_name, files = (_fill_stock if is_stock else _fill_with_code)(saved, temporary)
        (say or (lambda text: None))("loading it where Attentune cannot be imported")
        inputs = _inputs(saved)
        difference = _difference(saved, temporary, inputs, is_stock=is_stock)
    own_pipeline = not is_stock and has_own_answers(saved.model.config)
    return TransformersExport(
        target, class_name, reason, files, len(inputs["input_ids"]), difference, own_pipeline=own_pipeline
    )


def _form(saved: ModelPredictor, code: str) -> tuple[bool, str | None]:
    """Return whether to write a class of transformers, and why not, or what it will leave out."""
    cannot, leaves_out = unavailable_reason(saved.model), differing_predictions(saved.model)
    if code == "stock" and cannot is not None:
        raise ConfigError(
            f"--code: got stock, but no class of transformers has the logits of {saved.folder}: {cannot}. Leave --code"
            " out to write the code of the model (loaded with trust_remote_code)."
        )
    if code == "stock" or (code == "auto" and cannot is None and leaves_out is None):
        return True, leaves_out
    _check_own_parts(saved.model.config)
    return False, None if code == "remote" else cannot or leaves_out


def _check_own_parts(config: AttentuneConfig) -> None:
    """Check that the model has no part whose code is not ours to copy."""
    kinds = [config.head["kind"], config.layer_mix["kind"], config.token_gate["kind"], config.blur.get("kind")]
    others = [kind for kind in kinds if is_plugin(kind)]
    if others:
        raise ConfigError(
            f"export: the model has {', '.join(others)} of another package, whose code is not copied. Export it as ONNX"
            " (attentune export RUN), or install Attentune and that package where it is used."
        )


def _fill_stock(saved: ModelPredictor, folder: Path) -> tuple[str, tuple[str, ...]]:
    """Write weights and configuration of a class of transformers, tokenizer and card; return the class's name."""
    model = stock_model(saved.model)
    with storage_errors(folder), quiet():
        model.save_pretrained(folder)
        save_tokenizer(saved.tokenizer, folder, longest=saved.model.config.max_seq_length)
        (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
    copy_card(saved.folder, folder, STOCK_USE, pair=saved.is_pair)
    return type(model).__name__, ()


def _fill_with_code(saved: ModelPredictor, folder: Path) -> tuple[None, tuple[str, ...]]:
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
    copy_card(saved.folder, folder, REMOTE_USE, pair=saved.is_pair)
    return None, tuple(files)


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


def run_elsewhere(code: str, *words: str, **environment: str) -> str | None:
    """Run a program in a process that cannot import Attentune; return the last line of its error, None if it ran."""
    around = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    command = [sys.executable, "-c", WITHOUT_ATTENTUNE + code, *words]
    done = subprocess.run(command, env=around, capture_output=True, text=True, check=False)
    return (done.stderr.strip().splitlines() or ["no error output"])[-1] if done.returncode != 0 else None


def _difference(saved: ModelPredictor, folder: Path, inputs: dict[str, Any], *, is_stock: bool) -> float:
    with tempfile.TemporaryDirectory() as place:
        there, back = Path(place) / "inputs.safetensors", Path(place) / "logits.safetensors"
        save_file(inputs, there)
        trust = "stock" if is_stock else "remote"
        # The cached copies of the code are deleted with the temporary folder; the hub is not contacted.
        error = run_elsewhere(_LOADING, str(folder), str(there), str(back), trust, HF_MODULES_CACHE=place)
        if error is not None:
            raise ExportError(
                f"{saved.folder}: what was written could not be loaded without Attentune ({error}); nothing is left"
                " of it. An encoder that brings code of its own cannot be exported so."
            )
        logits = load_file(back)["logits"]
    with torch.no_grad():
        difference = float((saved.model(**inputs).logits - logits).abs().max())
    config = saved.model.config
    allowed = TOLERANCE * config.score_std + 1e-6 * abs(config.score_mean)  # transformers has scores in float32
    if not difference <= allowed:
        raise ExportError(
            f"{saved.folder}: loaded without Attentune its logits differ by {difference:.2g}, expected at most"
            f" {allowed:.0e}; nothing was written. Please report it."
        )
    return difference
