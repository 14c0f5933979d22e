"""Full, read-only and otherwise unwilling disks: one message with path and cure, and nothing torn or half-written."""

import json
import math
from pathlib import Path

import pytest

from attentune.cli.main import main
from attentune.errors import StorageError
from attentune.inference.predictor import Predictor
from attentune.io.files import storage_errors
from attentune.training.checkpoint import checkpoint_folders, verify_checkpoint
from helpers.interrupted import Disk
from helpers.samples import write_reviews

FULL, READ_ONLY = "the disk is full; free some space", "read-only"


@pytest.fixture
def disk(tmp_path):
    """`disk(size)` mounts one; it goes when the test ends."""
    made: list[Disk] = []

    def make(size: int) -> Disk:
        made.append(Disk(tmp_path / f"disk{len(made)}", size))
        return made[-1]

    yield make
    for one in made:
        one.remove()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def command(tiny, home):
    """A run of three steps with a checkpoint (about 490 KiB) after each; all three are kept."""
    train, dev = write_reviews(home / "train.csv", 24, seed=1), write_reviews(home / "dev.csv", 10, seed=2)
    files = ("--train_file", train, "--validation_file", dev, "--model_name_or_path", tiny("bert"))
    numbers = ("--num_train_epochs", 3, "--per_device_train_batch_size", 32, "--max_length", 32)
    numbers += ("--save_total_limit", 9, "--logging_steps", 1)
    return ("train", *files, *numbers, "--use_cpu", "--quiet", "--output_dir")


def check_refused(outcome: tuple[int, str, str], cure: str, *named: object) -> None:
    """Status 2, nothing on standard output, one line on standard error with the path and the cure."""
    status, out, err = outcome
    assert status == 2, err
    assert out == ""
    (line,) = (line for line in err.splitlines() if line.startswith("attentune: "))
    assert line.startswith("attentune: ")
    assert cure in line
    assert all(str(name) in line for name in named), line


def check_whole(run: Path) -> None:
    """What stands in a run folder can be used, and no part of anything lies about."""
    for folder in checkpoint_folders(run):
        assert verify_checkpoint(folder) is None
    assert not [path.name for path in run.rglob("*") if path.name.startswith(".writing-") or path.suffix == ".tmp"]
    for path in run.glob("*.json"):
        json.loads(path.read_text())
    if (run / "model.safetensors").exists():
        Predictor.load(run)
    for line in (run / "log.jsonl").read_text().splitlines()[:-1]:
        json.loads(line)


# Files in the order in which they are written; the disk fills in the middle of one.
IN_CHECKPOINT = (
    "config.json",
    "model.safetensors",
    "tokenizer_config.json",
    "tokenizer.json",
    "optimizer.safetensors",
    "state.json",
    "manifest.json",
)
AT_THE_END = (*IN_CHECKPOINT[:4], "predictions_validation.csv", "metrics.json", "run.json")
PAGE_KIB = 4


def kib(path: Path) -> int:
    """What a file, or all files of a folder, take on such a disk."""
    files = [path] if path.is_file() else [part for part in path.rglob("*") if part.is_file()]
    return sum(math.ceil(file.stat().st_size / 1024 / PAGE_KIB) * PAGE_KIB for file in files)


def room_until(reference: Path, done: int, folder: Path, names: tuple[str, ...], name: str) -> int:
    """The size of a disk that holds `done` checkpoints and fills within this file of the next things written."""
    before = kib(reference / "config.yaml") + kib(reference / "log.jsonl") + done * kib(reference / "checkpoint-1")
    written = [kib(folder / earlier) for earlier in names[: names.index(name)]]
    return before + sum(written) + kib(folder / name) // 2 // PAGE_KIB * PAGE_KIB


@pytest.fixture(scope="module")
def reference(command, home):
    """The run as it ends where there is room."""
    assert main([str(word) for word in (*command, home / "whole")]) == 0
    return home / "whole"


@pytest.mark.parametrize("free", [0, 4, 8])
def test_a_disk_that_is_full_from_the_start_is_left_as_it_was(attentune, command, disk, free):
    full = disk(free + 64)
    (full.folder / "other").write_bytes(bytes(64 * 1024))
    check_refused(attentune(*command, full.folder / "run"), FULL, full.folder / "run")
    assert [path.name for path in full.folder.iterdir()] == ["other"]


@pytest.mark.integration
@pytest.mark.parametrize("name", IN_CHECKPOINT)
def test_a_disk_that_fills_during_the_first_checkpoint_is_left_as_it_was(attentune, command, reference, disk, name):
    small = disk(room_until(reference, 0, reference / "checkpoint-1", IN_CHECKPOINT, name))
    check_refused(attentune(*command, small.folder / "run"), FULL, small.folder / "run" / "checkpoint-1")
    assert list(small.folder.iterdir()) == []


def check_resumes(attentune, small: Disk, run: Path, reference: Path) -> None:
    """With more room the run goes on to what it would have been."""
    small.resize(4096)
    attentune.done("train", "--resume", "--quiet", "--output_dir", run)
    check_whole(run)
    for name in ("model.safetensors", "predictions_validation.csv"):
        assert (run / name).read_bytes() == (reference / name).read_bytes()
    steps = [line["step"] for line in map(json.loads, (run / "log.jsonl").read_text().splitlines()) if "loss" in line]
    assert steps == [1, 2, 3]


@pytest.mark.integration
@pytest.mark.parametrize("good", [1, 2])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "manifest.json"])
def test_earlier_checkpoints_stand_and_the_run_goes_on(attentune, command, reference, disk, name, good):
    small = disk(room_until(reference, good, reference / "checkpoint-1", IN_CHECKPOINT, name))
    run = small.folder / "run"
    check_refused(attentune(*command, run), FULL, run / f"checkpoint-{good + 1}")
    assert [folder.name for folder in checkpoint_folders(run)] == [f"checkpoint-{step + 1}" for step in range(good)]
    check_whole(run)
    check_resumes(attentune, small, run, reference)


@pytest.mark.integration
@pytest.mark.parametrize("name", AT_THE_END)
def test_a_disk_that_fills_while_the_end_is_saved(attentune, command, reference, disk, name):
    small = disk(room_until(reference, 3, reference, AT_THE_END, name))
    run = small.folder / "run"
    check_refused(attentune(*command, run), FULL, run)
    assert len(checkpoint_folders(run)) == 3
    assert not (run / "run.json").exists()
    check_whole(run)
    check_resumes(attentune, small, run, reference)


def test_predictions_on_a_full_disk_leave_the_old_file(attentune, reference, home, disk):
    full = disk(64)
    target = full.folder / "out.csv"
    target.write_text("old")
    full.fill()
    predict = ("predict", reference, "--input_file", home / "dev.csv", "--output_file")
    check_refused(attentune(*predict, target), FULL, target)
    assert target.read_text() == "old"
    assert sorted(path.name for path in full.folder.iterdir()) == ["filler", "out.csv"]
    check_refused(attentune(*predict, full.folder / "new.csv"), FULL, "new.csv")
    assert not (full.folder / "new.csv").exists()


def test_a_read_only_disk(attentune, command, disk):
    locked = disk(4096)
    (locked.folder / "out.csv").write_text("old")
    run = locked.folder / "run"
    assert attentune(*command, run)[0] == 0
    (run / "run.json").unlink()  # as if it was stopped before its end
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    locked.lock()
    check_refused(attentune(*command, locked.folder / "new"), "cannot be written to; name another", locked.folder)
    check_refused(attentune("train", "--resume", "--quiet", "--output_dir", run), "cannot be written to", run)
    check_refused(attentune(*command, run, "--overwrite_output_dir"), "cannot be written to", run)
    predict = ("predict", run, "--text", "the film was fine", "--output_file", locked.folder / "out.csv")
    check_refused(attentune(*predict), READ_ONLY, locked.folder / "out.csv")
    assert (locked.folder / "out.csv").read_text() == "old"
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    # To read is enough to score and to predict.
    assert attentune("evaluate", run)[0] == 0
    assert attentune(*predict[:-2])[0] == 0


def test_a_run_that_fails_does_not_remove_what_another_made_meanwhile(attentune, command, tmp_path, monkeypatch):
    """The folder appears, locked, between the first look and the writing."""
    import attentune.training.run as run_module

    run, original = tmp_path / "run", run_module.opened_folder

    def opened_late(*words, **options):
        run.mkdir()
        (run / "config.yaml").write_text("another's")
        return original(*words, **options)

    monkeypatch.setattr(run_module, "opened_folder", opened_late)
    check_refused(attentune(*command, run), "is not empty", run)
    assert (run / "config.yaml").read_text() == "another's"


def test_the_wrapped_errors_of_other_libraries(tmp_path):
    for wrapped in (Exception("No space left on device (os error 28)"), ValueError("I/O error: ... (os error 122)")):
        with pytest.raises(StorageError, match="free some space"), storage_errors(tmp_path):
            raise wrapped
    with pytest.raises(StorageError, match=r"odd thing \(os error 9999\)"), storage_errors(tmp_path):
        raise Exception("odd thing (os error 9999)")
    with pytest.raises(ValueError, match="ours"), storage_errors(tmp_path):
        raise ValueError("ours")
