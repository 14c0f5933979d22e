"""`attentune train --adapt`: an encoder learns to detect changed words, without labels."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from attentune.config import Config, load_config
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.training.adaptation import RUN_FOLDER, adapt, is_adapted
from attentune.training.callbacks import ProgressDisplay, TrainingCallback
from attentune.training.run_folder import Interrupted, StopRequest
from helpers.samples import write_reviews
from helpers.tiny_models import rows_of

QUIET = ProgressDisplay(quiet=True)


def config_of(folder: Path, encoder: Path, **changes: object) -> Config:
    """Return settings of 12 steps over texts in folder/texts.csv; '__' in names means '.'."""
    file = folder / "texts.csv"
    if not file.exists():
        write_reviews(file, 40, seed=1)
    values = {
        "data.train_file": str(file),
        "data.max_length": 32,
        "model.name_or_path": str(encoder),
        "training.output_dir": str(folder / "adapted"),
        "training.per_device_train_batch_size": 8,
        "training.learning_rate": 2e-3,
        "training.max_steps": 12,
        "training.save_steps": 4,
        "training.logging_steps": 1,
        "training.use_cpu": True,
    }
    return load_config(overrides=values | {name.replace("__", "."): value for name, value in changes.items()})


class StopAt(TrainingCallback):
    """Asks for a stop after a step."""

    def __init__(self, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step, self.request = step, StopRequest()
        monkeypatch.setattr("attentune.training.run.stop_on_signal", lambda: contextlib.nullcontext(self.request))

    def on_step_end(self, state, logs) -> None:
        self.request.requested = state.step == self.step


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory) -> Path:
    """The folder of an adaptation that nobody disturbed."""
    return adapt(config_of(tmp_path_factory.mktemp("whole"), tiny("bert")), display=QUIET)


def same(first: Path, second: Path) -> bool:
    """Whether two folders have the same weights."""
    return all(torch.equal(value, weights(second)[name]) for name, value in weights(first).items())


@pytest.mark.parametrize(
    "family",
    ["bert", *(pytest.param(one, marks=pytest.mark.integration) for one in ("roberta", "deberta-v2", "modernbert"))],
)
def test_the_encoder_has_changed_and_loads_without_attentune(tiny, tmp_path, whole, family):
    folder = whole if family == "bert" else adapt(config_of(tmp_path, tiny(family)), display=QUIET)
    assert is_adapted(folder)
    model, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert model.config.model_type == AutoModel.from_pretrained(tiny(family)).config.model_type
    assert not [name for name in info["missing_keys"] if "pooler" not in name]
    assert not info["unexpected_keys"]
    before = AutoModel.from_pretrained(tiny(family)).state_dict()
    after = model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before if "layer" in name)
    tokens = AutoTokenizer.from_pretrained(folder)("the film was good")["input_ids"]
    assert tokens == AutoTokenizer.from_pretrained(tiny(family))("the film was good")["input_ids"]
    # The run is kept as a record, without its weights.
    assert json.loads((folder / RUN_FOLDER / "run.json").read_text())["train"]["steps"] == 12
    assert not list((folder / RUN_FOLDER).rglob("*.safetensors"))
    assert "attentune train --adapt" in (folder / "README.md").read_text()


@pytest.mark.integration
def test_detection_is_learned(tiny, tmp_path):
    folder = adapt(config_of(tmp_path, tiny("bert"), training__max_steps=150), display=QUIET)
    losses = [line["loss"] for line in map(json.loads, (folder / RUN_FOLDER / "log.jsonl").open()) if "loss" in line]
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])


@pytest.mark.parametrize("what", ["swapped", "unlabelled", pytest.param("settings", marks=pytest.mark.integration)])
def test_labels_are_not_read_and_settings_of_labelled_training_have_no_effect(tiny, tmp_path, whole, what):
    changes = {"objective__loss": "focal", "training__lora_rank": 2, "training__early_stopping_patience": 1}
    config = config_of(tmp_path, tiny("bert"), **changes if what == "settings" else {})
    lines = [line.split(",") for line in (tmp_path / "texts.csv").read_text().splitlines()]
    others = {"bad": "good", "good": "bad", "label": "label"}
    if what != "settings":
        cells = [[*line[:2], others[line[2]]] if what == "swapped" else line[:2] for line in lines]
        (tmp_path / "texts.csv").write_text("\n".join(map(",".join, cells)) + "\n")
    assert same(adapt(config, display=QUIET), whole)


@pytest.mark.integration
def test_a_stopped_adaptation_goes_on_to_the_same_weights(tiny, tmp_path, monkeypatch, whole):
    config = config_of(tmp_path, tiny("bert"))
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        adapt(config, display=QUIET, callbacks=[StopAt(6, patch)])
    folder = tmp_path / "adapted"
    assert not is_adapted(folder)
    resumed = config_of(tmp_path, tiny("bert"), training__resume=True)
    assert adapt(resumed, display=QUIET) == folder
    assert same(whole, folder)
    # Once it is whole, there is nothing to resume, and it is kept unless it is to be overwritten.
    written = (folder / "model.safetensors").stat().st_mtime_ns
    adapt(resumed, display=QUIET)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    with pytest.raises(CheckpointError, match="Go on with --resume, start again with --overwrite_output_dir"):
        adapt(config, display=QUIET)
    again = config_of(tmp_path, tiny("bert"), training__overwrite_output_dir=True, training__seed=7)
    assert not same(whole, adapt(again, display=QUIET))


def test_what_is_refused(tiny, tmp_path):
    with pytest.raises(ConfigError, match="output_dir: is missing"):
        adapt(config_of(tmp_path, tiny("bert"), training__output_dir=None), display=QUIET)
    with pytest.raises(DataError, match="got 3 texts, expected at least 8"):
        adapt(config_of(tmp_path, tiny("bert")), rows=rows_of(["a", "b", "c"]), display=QUIET)
    assert not (tmp_path / "adapted").exists()
    other = tmp_path / "adapted"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    for changes in ({}, {"training__overwrite_output_dir": True}, {"training__resume": True}):
        with pytest.raises(CheckpointError, match=r"is not empty\. It is not a folder of attentune train --adapt"):
            adapt(config_of(tmp_path, tiny("bert"), **changes), display=QUIET)
    assert (other / "notes.txt").read_text() == "mine"


def test_texts_and_pairs_can_be_given_in_memory(tiny, tmp_path):
    texts = [f"the film number {number} was a good story" for number in range(12)]
    for name, rows in (("texts", rows_of(texts)), ("pairs", rows_of(texts, texts[::-1]))):
        output = {"data__train_file": None, "training__output_dir": str(tmp_path / name), "training__max_steps": 2}
        assert is_adapted(adapt(config_of(tmp_path, tiny("bert"), **output), rows=rows, display=QUIET))


@pytest.mark.integration
def test_the_command_and_a_run_that_starts_from_it(attentune, tiny, tmp_path):
    file = write_reviews(tmp_path / "texts.csv", 60, seed=1)
    common = ("--model_name_or_path", tiny("bert"), "--use_cpu", "--max_length", "32")
    words = ("train", "--adapt", file, *common, "--max_steps", "6", "--output_dir", tmp_path / "adapted")
    out, _ = attentune.done(*words, "--quiet")
    assert "Fine-tune it: attentune train" in out
    err = attentune.refused(*words)
    assert "is not empty" in err
    run = ("train", file, "--model_name_or_path", tmp_path / "adapted", "--use_cpu", "--max_steps", "4", "--quiet")
    attentune.done(*run, "--output_dir", tmp_path / "run")
    attentune.done("predict", tmp_path / "run", "--text", "a good film")


def test_flags_without_an_effect_are_not_offered(attentune):
    err = attentune.refused("train", "--adapt", "x.csv", "--output_dir", "y", "--freeze_encoder")
    assert "--freeze_encoder: unknown flag" in err
