"""Adapts an encoder to texts without labels, before it is fine-tuned: it learns to detect changed words.

    texts -> a word of every second text is changed (`token_labels.corruption`) -> a token head detects its tokens
    -> the encoder alone, as a folder of transformers

The run is an ordinary one, in the folder `training` of the encoder's: it has a log, checkpoints, and can be resumed.

Source: adaptation to the texts of a task before fine-tuning (Gururangan et al. 2020, "Don't Stop Pretraining", section
4), here with detection instead of masked-language modelling, which needs a head that few checkpoints carry.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from attentune.config import Config, load_config, to_flat
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.load import load_data
from attentune.data.unlabelled import read_unlabelled
from attentune.errors import ConfigError, DataError
from attentune.io.files import storage_errors, write_text, written_together
from attentune.models.saving import load_model, quiet
from attentune.results import RunResult
from attentune.training.callbacks import ProgressDisplay, TrainingCallback
from attentune.training.checkpoint import TEMPORARY, checkpoint_folders
from attentune.training.prepare import ADAPTATION_SETTINGS, ADAPTATION_UPDATES
from attentune.training.run import train
from attentune.training.run_folder import CONFIG_FILE, check_own_folder, check_writable, empty_folder, locked_folder

# The folder of the run, inside that of the encoder.
RUN_FOLDER = "training"
# Written last: an adapted encoder is whole if it is there.
_MARKER = "config.json"
# The share of texts with a changed word.
_CHANGED_SHARE = 0.5
_LEAST_TEXTS = 8


def adapt(
    config: Config,
    *,
    rows: TextRows | None = None,
    display: ProgressDisplay | None = None,
    callbacks: Sequence[TrainingCallback] = (),
) -> Path:
    """Adapt an encoder to texts or pairs; labels are not read."""
    if config.training.output_dir is None:
        raise ConfigError("training.output_dir: is missing; name the folder of the encoder: --output_dir adapted")
    folder, is_resumed = Path(config.training.output_dir), config.training.resume
    if is_resumed and is_adapted(folder):
        return folder
    check_writable(config)
    check_own_folder(
        folder,
        "train --adapt",
        is_own=(folder / RUN_FOLDER / CONFIG_FILE).is_file(),
        resume=is_resumed,
        overwrite=config.training.overwrite_output_dir,
    )
    rows = _texts(config) if rows is None else rows
    if len(rows) < _LEAST_TEXTS:
        raise DataError(f"{rows.source}: got {len(rows)} texts, expected at least {_LEAST_TEXTS} to adapt to.")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder):
        if config.training.overwrite_output_dir:
            empty_folder(folder, first=_MARKER)
        run = folder / RUN_FOLDER
        settings = _run_config(config, run, resume=is_resumed and (run / CONFIG_FILE).is_file())
        display = display or ProgressDisplay(only_steps=True)
        result = train(settings, data=_as_task(rows), display=display, callbacks=callbacks, with_baselines=False)
        _save_encoder(run, folder, result)
    return folder


def is_adapted(folder: Path) -> bool:
    return (folder / _MARKER).is_file() and (folder / RUN_FOLDER / CONFIG_FILE).is_file()


def _texts(config: Config) -> TextRows:
    if config.data.train_file is not None:
        is_pair = config.data.text_pair_column is not None
        space = LabelSpace("classification", ("text",))
        return read_unlabelled(config.data.train_file, label_space=space, is_pair=is_pair, config=config.data)
    return load_data(config.data, seed=config.training.seed, splits=("train",)).splits["train"]


def _as_task(rows: TextRows) -> TaskData:
    """Return the texts as a task of one class, whose loss has no weight."""
    one_class = replace(rows, labels=np.zeros(len(rows), dtype=np.int64), weights=None, targets=None)
    return TaskData("texts", LabelSpace("classification", ("text",)), ("accuracy",), {"train": one_class})


def _run_config(config: Config, run: Path, *, resume: bool) -> Config:
    """Return the settings of the run in a folder: detection is its only objective."""
    given, training = to_flat(config), config.training
    is_open = training.max_steps < 0 and training.num_train_epochs is None
    return load_config(
        overrides={
            **{name: given[name] for name in ADAPTATION_SETTINGS if given[name] is not None},
            "model.head.kind": "mean",
            "model.token_gate.kind": "ssa",
            "model.token_gate.beta": 1.0,
            "objective.alpha": 0.0,
            "labels.generator": "corruption",
            "labels.ratio": _CHANGED_SHARE,
            "training.output_dir": str(run),
            "training.overwrite_output_dir": False,
            "training.resume": resume,
            "training.max_steps": ADAPTATION_UPDATES if is_open else training.max_steps,
            "training.eval_strategy": "no",
            "training.baselines": "none",
        }
    )


def _save_encoder(run: Path, folder: Path, result: RunResult) -> None:
    """Write the encoder of a finished run, without its slots, and remove the run's weights."""
    model, tokenizer = load_model(run)
    with written_together(folder, f"{TEMPORARY}encoder-{os.getpid()}", last=_MARKER) as temporary:
        with quiet():
            model.encoder.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
        # safetensors creates files that only their owner can read; use the permissions of the other files.
        (temporary / "model.safetensors").chmod((temporary / _MARKER).stat().st_mode)
        write_text(temporary / "README.md", _card(result))
    with storage_errors(folder):
        for checkpoint in checkpoint_folders(run):
            shutil.rmtree(checkpoint, ignore_errors=True)
        (run / "model.safetensors").unlink(missing_ok=True)


def _card(result: RunResult) -> str:
    model = result.config["model"]["name_or_path"]
    return (
        "---\nlibrary_name: transformers\ntags:\n- attentune\n---\n\n"
        f"# {Path(model).name}, adapted\n\n"
        f"The encoder `{Path(model).name}`, trained by `attentune train --adapt` for {result.train['steps']:,} updates"
        f" on {result.train['rows']:,} texts to detect words that were changed. No labels were used. Fine-tune it:\n\n"
        "```bash\nattentune train reviews.csv --model_name_or_path FOLDER --output_dir runs/reviews\n```\n"
    )
