"""Checkpoints that a disk has spoilt are found, whatever has happened to them, and a good one is used."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL

import pytest

import attentune.training.checkpoint as checkpoint_module
import attentune.training.run as run_module
from attentune.config import load_config
from attentune.errors import CheckpointError, StorageError
from attentune.inference.predictor import Predictor
from attentune.training.checkpoint import (
    checkpoint_folders,
    keep_newest,
    newest_good,
    verify_checkpoint,
    write_checkpoint,
)
from attentune.training.run import train
from helpers.interrupted import METHOD, assert_same, at_steps, ending, forked, outcome, train_in
from helpers.samples import settings

FILES = (
    "config.json",
    "labels.safetensors",
    "manifest.json",
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
Reference = tuple[Path, dict[str, object]]


@pytest.fixture(scope="module")
def encoder(tiny: Callable[..., Path]) -> Path:
    return tiny("bert", layers=2, hidden=16)


@pytest.fixture(scope="module")
def reference(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("reference")
    train_in(folder, encoder, training__save_total_limit=9)
    return folder, outcome(folder / "run")


@pytest.fixture
def broken_off(encoder: Path, reference: Reference, tmp_path: Path) -> Path:
    """The folder of a run that was killed after step 11; it has checkpoints 2, 3, 4, 6, 8 and 10, and 6 is the best."""
    broken = forked(lambda: train_in(tmp_path, encoder, training__save_total_limit=9), at_steps({11: [SIGKILL]}))
    assert ending(broken) == -SIGKILL
    return tmp_path


def resumed(folder: Path, encoder: Path, capfd: pytest.CaptureFixture[str]) -> tuple[dict[str, object], str]:
    """What the run comes to, and what was said."""
    capfd.readouterr()
    changes = {**METHOD, "training__resume": True, "training__save_total_limit": 9}
    train(load_config(overrides=settings(folder, encoder, **changes)))
    return outcome(folder / "run"), capfd.readouterr().err


def flip_a_bit(path: Path, bit: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    place = len(content) * 4 if bit is None else bit
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)


def count_found(folder: Path, name: str, count: int) -> int:
    """Turn over single bits of a file of a checkpoint, cut and remove it; each must be found. How many there were."""
    path, draw = folder / name, random.Random(name)
    content = path.read_bytes()
    bits, size = len(content) * 8, len(content)
    turned = range(bits) if count >= bits else draw.sample(range(bits), count)
    cuts = {0, 1, size // 2, size - 1, *(draw.randrange(size) for _ in range(count // 8))}
    spoil: list[Callable[[], object]] = [lambda bit=bit: flip_a_bit(path, bit) for bit in turned]
    spoil += [lambda length=length: path.write_bytes(content[:length]) for length in cuts]
    for damage in (*spoil, path.unlink):
        damage()
        assert verify_checkpoint(folder) is not None, name
        path.write_bytes(content)
    assert verify_checkpoint(folder) is None
    return len(spoil) + 1


def copied(reference: Reference, folder: Path) -> Path:
    return Path(shutil.copytree(reference[0] / "run" / "checkpoint-8", folder / "checkpoint-8"))


def test_a_checkpoint_has_these_files(reference: Reference) -> None:
    for folder in checkpoint_folders(reference[0] / "run"):
        assert sorted(path.name for path in folder.iterdir()) == list(FILES)


@pytest.mark.parametrize("is_all", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("name", FILES)
def test_damage_is_found_wherever_it_is(reference, tmp_path, name, is_all, record_property):
    """Among all is every single bit of the manifest, which has no hash of its own."""
    count = 40 if not is_all else 100_000 if name == "manifest.json" else 1000
    found = count_found(copied(reference, tmp_path), name, count)
    assert found > 45
    record_property("damages", found)


HOW: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "flipped": flip_a_bit,
    "removed": Path.unlink,
}
CASES = [
    pytest.param(name, how, marks=pytest.mark.integration if (place + turn) % 3 == 0 else pytest.mark.slow)
    for place, name in enumerate(FILES)
    for turn, how in enumerate(HOW)
]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_a_run_goes_on_from_the_newest_good_one(encoder, reference, broken_off, capfd, name, how):
    HOW[how](broken_off / "run" / "checkpoint-10" / name)
    got, said = resumed(broken_off, encoder, capfd)
    assert_same(got, reference[1])
    assert f"{broken_off}/run/checkpoint-10: skipped: " in said
    assert f"resuming from {broken_off}/run/checkpoint-8" in said


@pytest.mark.integration
@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_best_weights_that_cannot_be_used_are_made_again(encoder, reference, broken_off, capfd, how):
    """Checkpoints 8 and 10 are good, but the run ends with the weights of 6."""
    run = broken_off / "run"
    if how == "damaged":
        flip_a_bit(run / "checkpoint-6" / "model.safetensors")
        reason, then = "the content of model.safetensors has changed", f"resuming from {run}/checkpoint-4"
    else:
        for step in (2, 3, 4, 6):
            shutil.rmtree(run / f"checkpoint-{step}")
        reason, then = "it is missing", "no checkpoint to resume from; starting at the beginning"
    got, said = resumed(broken_off, encoder, capfd)
    assert_same(got, reference[1])
    why = f"the best weights until then, of checkpoint-6, cannot be used: {reason}"
    assert all(f"checkpoint-{step}: skipped: {why}" in said for step in (10, 8))
    assert then in said


@pytest.mark.integration
def test_best_weights_that_are_damaged_while_it_trains_are_never_the_result(
    encoder, reference, tmp_path, monkeypatch, capfd
):
    finish = run_module.finish

    def spoil_then_finish(run: Path, *others: object) -> object:
        flip_a_bit(run / "checkpoint-6" / "model.safetensors")
        return finish(run, *others)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(run_module, "finish", spoil_then_finish)
        with pytest.raises(CheckpointError) as caught:
            train_in(tmp_path, encoder, training__save_total_limit=9)
    assert f"{tmp_path}/run/checkpoint-6: has the best weights, but the content of model.safetensors" in str(
        caught.value
    )
    assert f"attentune train --resume --output_dir {tmp_path}/run" in str(caught.value)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    got, _ = resumed(tmp_path, encoder, capfd)
    assert_same(got, reference[1])


def test_a_checkpoint_that_reads_back_as_something_else_is_not_used_and_old_ones_stand(
    encoder, reference, tmp_path, monkeypatch, capfd
):
    sync_folder, calls = checkpoint_module.sync_folder, []

    def spoil_the_third(folder: Path) -> None:
        sync_folder(folder)
        calls.append(folder)
        if len(calls) == 5:  # of each checkpoint its own folder and that of the run
            flip_a_bit(folder / "optimizer.safetensors")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_module, "sync_folder", spoil_the_third)
        with pytest.raises(StorageError) as caught:
            train_in(tmp_path, encoder, training__save_total_limit=1)
    assert "checkpoint-4: read-back check failed: the files differ from what was written (the content of opt" in str(
        caught.value
    )
    run = tmp_path / "run"
    assert [folder.name for folder in checkpoint_folders(run)] == ["checkpoint-3"]
    assert verify_checkpoint(run / "checkpoint-3") is None
    assert not [path.name for path in run.iterdir() if path.name.startswith(".writing")]
    got, _ = resumed(tmp_path, encoder, capfd)
    assert_same({**got, "checkpoints": None}, {**reference[1], "checkpoints": None})


@pytest.mark.parametrize("limit", [1, 2])
def test_a_damaged_newer_checkpoint_does_not_push_out_a_good_one(tmp_path: Path, limit: int) -> None:
    def write(step: int, best: int | None = None) -> None:
        content = {"training": {"best": None if best is None else {"step": best}}}
        write_checkpoint(tmp_path, step, content, lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99))

    for step in (1, 2, 4):
        write(step)
    flip_a_bit(tmp_path / "checkpoint-4" / "model.safetensors")
    warnings: list[str] = []
    assert newest_good(tmp_path, warnings.append) == tmp_path / "checkpoint-2"
    assert len(warnings) == 1
    write(3)
    keep_newest(tmp_path, 3, limit, None)
    expected = ["checkpoint-3"] if limit == 1 else ["checkpoint-2", "checkpoint-3"]
    assert [folder.name for folder in checkpoint_folders(tmp_path)] == expected
    keep_newest(tmp_path, 3, 1, 2)
    assert newest_good(tmp_path, warnings.append) == tmp_path / "checkpoint-3"


def test_a_damaged_checkpoint_is_neither_scored_nor_started_from(reference: Reference, tmp_path: Path) -> None:
    folder = copied(reference, tmp_path)
    Predictor.load(folder)
    flip_a_bit(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"checkpoint-8: this checkpoint is damaged: the content of model\.safet"):
        Predictor.load(folder)


def test_a_state_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({})[:-1])
    with pytest.raises(CheckpointError, match=r"state\.json: cannot be read"):
        checkpoint_module.read_state(tmp_path)
