"""Who may write to a run folder, what a failed run leaves in it, and inputs that changed before it is resumed."""

import contextlib
import dataclasses
import fcntl
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import attentune
from attentune.config import Config, load_config
from attentune.errors import CheckpointError, StorageError
from attentune.runs.progress import ComparisonProgress
from attentune.training.run_folder import check_folder, config_for_run, opened_folder, resumed_config
from helpers.interrupted import assert_same, die_after_step, outcome, train_in
from helpers.samples import settings, write_reviews

LOCK = ".lock"


def config(run: Path | str | None, **changes: object) -> Config:
    overrides = {"data.task": "cola", "training.output_dir": None if run is None else str(run)}
    return load_config(overrides=overrides | {name.replace("__", "."): value for name, value in changes.items()})


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def begun(tmp_path) -> Path:
    """A run that was begun with the settings of `config`."""
    with opened_folder(config(tmp_path / "run")) as run:
        (run / "checkpoint-1").mkdir()
    return run


def test_a_bare_resume_takes_all_from_the_folder(begun, tmp_path):
    def resumed(folder: Path) -> Config:
        given = {"training.output_dir": str(folder), "training.resume": True}
        return resumed_config(load_config(overrides=given), given)

    found = resumed(begun)
    assert found.data.task == "cola"
    assert found.training.resume
    assert found.training.output_dir == str(begun)
    # The folder may have been moved: its name on the command line counts.
    moved = begun.rename(tmp_path / "moved")
    assert resumed(moved).training.output_dir == str(moved)
    with pytest.raises(CheckpointError, match=r"has no config\.yaml, so there is no run to resume"):
        resumed(tmp_path)
    full = config(tmp_path / "new", training__resume=True, training__seed=5)
    assert resumed_config(full, {}) == config_for_run(full) == full


@pytest.mark.parametrize(
    ("words", "change"),
    [
        (("--seed", 42), "training.seed: was 7, now 42"),
        (("--task", "cola", "--loss", "auto"), "objective.loss: was 'cross-entropy', now 'auto'"),
    ],
)
def test_a_given_setting_that_is_the_default_is_compared_and_others_are_those_of_the_run(
    attentune, tmp_path, words, change
):
    begun = config(tmp_path / "run", training__seed=7, objective__loss="cross-entropy")
    with opened_folder(begun) as run:
        (run / "checkpoint-1").mkdir()
    err = attentune.refused("train", "--resume", "--output_dir", run, *words)
    assert f"other settings, so resuming would mix two runs: {change}. Resume with its own" in err
    given = {"training.output_dir": str(run), "training.resume": True, "data.task": "cola"}
    found = resumed_config(load_config(overrides=given), given)
    assert found == dataclasses.replace(begun, training=dataclasses.replace(begun.training, resume=True))
    check_folder(found)


def test_what_the_folder_may_hold(tmp_path, begun):
    check_folder(config(tmp_path / "new"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / LOCK).touch()
    check_folder(config(tmp_path / "empty"))
    with pytest.raises(
        CheckpointError, match=r"is not empty\. Go on with --resume, train again from the start with --overwrite"
    ):
        check_folder(config(begun))
    check_folder(config(begun, training__overwrite_output_dir=True))
    check_folder(config(begun, training__resume=True))
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="is a file, not a folder"):
        check_folder(config(tmp_path / "file"))
    for how in ({"training__resume": True}, {"training__overwrite_output_dir": True}):
        with pytest.raises(CheckpointError, match=r"no config\.yaml"):
            check_folder(config(tmp_path, **how))


def test_a_resumed_run_has_the_settings_that_it_was_begun_with(begun):
    for free in ({"save_total_limit": 5}, {"logging_steps": 3}, {"report_to": "tensorboard"}):
        check_folder(config(begun, training__resume=True, **{f"training__{name}": v for name, v in free.items()}))
    with pytest.raises(CheckpointError) as caught:
        check_folder(config(begun, training__resume=True, training__seed=7, model__head__kind="mean"))
    message = str(caught.value)
    assert "training.seed: was 42, now 7" in message
    assert "model.head.kind: was 'cls', now 'mean'" in message
    assert f"attentune train --resume --output_dir {begun}" in message
    computes = {"learning_rate": 1e-3, "max_steps": 5, "precision": "fp32", "warmup_ratio": 0.2, "save_steps": 9}
    for name, value in computes.items():
        with pytest.raises(CheckpointError, match=f"training.{name}: was"):
            check_folder(config(begun, training__resume=True, **{f"training__{name}": value}))


def test_the_written_configuration_runs_again(tmp_path):
    asked = config(tmp_path / "a" / "b" / "run", training__overwrite_output_dir=True, training__seed=3)
    with opened_folder(asked) as run:
        pass
    written = load_config(run / "config.yaml")
    assert not written.training.overwrite_output_dir
    assert written == dataclasses.replace(
        asked, training=dataclasses.replace(asked.training, overwrite_output_dir=False)
    )


@pytest.mark.parametrize("before", [[], ["run"]], ids=["new", "made before"])
def test_a_run_that_fails_early_leaves_what_it_found(tmp_path, before):
    run = tmp_path / "run"
    for name in before:
        (tmp_path / name).mkdir()
    with contextlib.suppress(ValueError), opened_folder(config(run)):
        (run / "log.jsonl").touch()
        (run / "part").mkdir()
        (run / "part" / "x").touch()
        raise ValueError("early")
    assert names(tmp_path) == before
    for _ in range(2):  # one that fails late leaves its checkpoints
        with contextlib.suppress(ValueError), opened_folder(config(run, training__resume=(run / LOCK).exists())):
            (run / "checkpoint-3").mkdir(exist_ok=True)
            raise ValueError("late")
        assert names(run) == [LOCK, "checkpoint-3", "config.yaml"]


def test_a_resumed_run_that_fails_before_its_first_checkpoint_leaves_the_folder(tmp_path):
    """What was there before is never removed."""
    with opened_folder(config(tmp_path / "run")) as run:
        (run / "log.jsonl").write_text("old")
    with contextlib.suppress(ValueError), opened_folder(config(run, training__resume=True)):
        raise ValueError("early")
    assert names(run) == [LOCK, "config.yaml", "log.jsonl"]


def test_leftovers_of_a_killed_run_are_removed_and_nothing_else(begun):
    (begun / ".writing-5-123").mkdir()
    (begun / ".writing-5-123" / "model.safetensors").touch()
    (begun / ".metrics.json.123.tmp").touch()
    others = [".notes", "notes.tmp", "writing-5"]
    for name in others:
        (begun / name).touch()
    with opened_folder(config(begun, training__resume=True)):
        assert names(begun) == sorted([LOCK, "checkpoint-1", "config.yaml", *others])


def test_overwriting_empties_the_folder_but_follows_no_link(begun, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    (begun / "link").symlink_to(tmp_path / "mine")
    (begun / "linked-file").symlink_to(tmp_path / "mine" / "letter")
    with opened_folder(config(begun, training__overwrite_output_dir=True)) as run:
        assert names(run) == [LOCK, "config.yaml"]
    assert (tmp_path / "mine" / "letter").read_text() == "dear"


def test_one_process_at_a_time(begun):
    resumed = config(begun, training__resume=True)
    before = names(begun)
    with (begun / LOCK).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for wanted in (resumed, config(begun, training__overwrite_output_dir=True)):
            with pytest.raises(CheckpointError, match="another process is training in this folder"):
                opened_folder(wanted).__enter__()
            assert names(begun) == before
    for _ in range(2):  # the lock is free again, also after a failure, and held in between
        with contextlib.suppress(ValueError), opened_folder(resumed), (begun / LOCK).open() as lock:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise ValueError("x")


def test_the_folder_is_looked_at_again_once_it_is_locked(begun):
    """Another run may have filled it while this one read its data."""
    before = (begun / "config.yaml").read_bytes()
    with pytest.raises(CheckpointError, match="is not empty"):
        opened_folder(config(begun, training__seed=9)).__enter__()
    assert (begun / "config.yaml").read_bytes() == before
    assert "checkpoint-1" in names(begun)


def test_processes_beside_the_main_one_touch_nothing(tmp_path):
    with opened_folder(config(tmp_path / "run"), is_main=False) as run:
        assert run == tmp_path / "run"
        assert not run.exists()


# What changed between two commands (rows, tokenizer, encoder, order of labels) is refused or makes no difference


@pytest.fixture
def encoder(tiny: Callable[..., Path], tmp_path: Path) -> Path:
    """An encoder of one's own, to be changed."""
    return Path(shutil.copytree(tiny("bert", layers=2, hidden=16), tmp_path / "encoder"))


def swap_words(encoder: Path, first: str, second: str) -> None:
    """Give two words each other's numbers in a tokenizer."""
    file = encoder / "tokenizer.json"
    content = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    file.write_text(json.dumps(content))


@pytest.mark.integration
def test_another_tokenizer_or_architecture_is_refused_and_other_weights_make_no_difference(encoder, tmp_path) -> None:
    """A tokenizer of as many words, settings that all weights fit, or what is left of them: nothing else would tell.

    A resumed run has all weights from its checkpoint, but for rows of the word table that it does not train; another
    table is refused, see tests/cli/test_mistakes.py.
    """
    train_in(tmp_path / "whole", encoder)
    die_after_step(5, lambda: train_in(tmp_path, encoder))
    swap_words(encoder, "film", "movie")
    message = r"run: cannot be resumed: the tokens that the tokenizer makes of them \(train, validation\) changed since"
    with pytest.raises(CheckpointError, match=message):
        train_in(tmp_path, encoder, resume=True)
    swap_words(encoder, "film", "movie")
    file = encoder / "config.json"
    before = json.loads(file.read_text())
    for name, value, told in (
        ("hidden_act", "relu", "was 'gelu', now 'relu'"),
        ("num_attention_heads", 2, "was 4, now 2"),
        ("hidden_dropout_prob", 0.4, "was 0.1, now 0.4"),
        ("num_hidden_layers", 1, "was 2, now 1"),
    ):
        file.write_text(json.dumps(before | {name: value}))
        with pytest.raises(CheckpointError, match=rf"the encoder \(.*{name}: {re.escape(told)}"):
            train_in(tmp_path, encoder, resume=True)
    file.write_text(json.dumps(before))
    weights = load_file(encoder / "model.safetensors")
    changed = {name: weight + 1 if "layer.1" in name else weight for name, weight in weights.items()}
    save_file(changed, encoder / "model.safetensors", metadata={"format": "pt"})
    train_in(tmp_path, encoder, resume=True)
    assert_same(outcome(tmp_path / "run"), outcome(tmp_path / "whole" / "run"))


# Comparisons and searches


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["comparison", "search"])
def test_rows_and_encoders_that_changed_under_comparisons_and_searches_are_refused(encoder, tmp_path, kind):
    folder, options = tmp_path / kind, {"jobs": 1, "display": ComparisonProgress(quiet=True)}
    given = settings(tmp_path, encoder, training__num_train_epochs=1, training__max_steps=1)
    del given["training.output_dir"], given["training.learning_rate"]
    options["overrides"] = given

    def begin(more: int = 0) -> Any:
        """The records of a comparison of so many more seeds, or the scores of a search."""
        if kind == "comparison":
            return attentune.compare(folder, presets=["bert"], seeds=tuple(range(1, 2 + more)), **options)
        space = {"training.learning_rate": [1e-3, 2e-3]}
        found = attentune.search(folder, space=space, trials=1, sampler="random", train_best=False, **options)
        return [trial.scores for trial in found.trials]

    def refused(told: dict[str, str]) -> None:
        with pytest.raises(CheckpointError, match=told[kind]):
            begin(1)

    before, train_file, tokenizer = begin(), tmp_path / "train.csv", encoder / "tokenizer.json"
    rows, words = train_file.read_text(), tokenizer.read_bytes()
    write_reviews(train_file, seed=9)
    rows_of_search = r"was begun as another search.*: train rows of train.csv: was '"
    refused({"comparison": "comparison: the train rows changed since it was begun", "search": rows_of_search})
    if kind == "comparison":
        assert begin() == before, "what is recorded is shown"
    train_file.write_text(rows)
    swap_words(encoder, "film", "movie")
    of_search = r"was begun as another search.*: encoder .*: was '"
    refused({"comparison": f"comparison: the encoder {encoder} changed since it was begun", "search": of_search})
    tokenizer.write_bytes(words)
    assert begin(1)[:1] == before[:1]
