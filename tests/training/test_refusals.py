"""Disks that take a part of what is written, folders that may not be written to, a folder that another run is in."""

import gc
import json
import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attentune.errors import CheckpointError, StorageError
from attentune.training.callbacks import JsonLog
from attentune.training.checkpoint import Checkpointer, checkpoint_folders
from helpers.comparisons import start, wait_for
from helpers.interrupted import (
    FINISHED,
    METHOD,
    Disk,
    assert_same,
    check_resumes,
    check_whole,
    ending,
    forked,
    make_rows,
    outcome,
    train_in,
)
from helpers.samples import settings

Reference = tuple[Path, dict[str, object]]
REFUSED = 7
PARTS, PAGE_KIB = 8, 4


@pytest.fixture(scope="module")
def encoder(tiny: Callable[..., Path]) -> Path:
    return tiny("bert", layers=1, hidden=16)


@pytest.fixture(scope="module")
def reference(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("reference")
    train_in(folder, encoder)
    return folder, outcome(folder / "run")


def refused(folder: Path, encoder: Path, prepare: Callable[[], object] | None = None) -> tuple[int, str]:
    """The status of a run in a process of its own, and the message if it is `REFUSED`: the disk refuses."""
    read, write = os.pipe()

    def action() -> None:
        try:
            train_in(folder, encoder)
        except StorageError as error:
            os.write(write, str(error).encode())
            os._exit(REFUSED)

    status = ending(forked(action, prepare))
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as said:
        return status, said.read()


# A disk that is full at every page that a run writes


def fill_up(disk: Disk, size: int, encoder: Path, expected: dict[str, object]) -> bool:
    """Run on a disk of this size; whether it was refused. With more room the run then goes on."""
    gc.collect()  # weights that were read and not yet let go of keep the room of their file
    for path in disk.folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    make_rows(disk.folder)
    disk.resize(size)
    status, said = refused(disk.folder, encoder)
    assert status in (FINISHED, REFUSED)
    check_whole(disk.folder / "run")
    if status == REFUSED:
        assert "the disk is full; free some space" in said
        assert not list((disk.folder / "run").rglob(".writing-*"))
    disk.resize(4096)
    if status == REFUSED:
        check_resumes(disk.folder, encoder, expected, polite=False)
    return status == REFUSED


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_disk_that_fills_at_any_page(encoder, reference, tmp_path, part, record_property):
    most = sum(path.stat().st_size for path in reference[0].rglob("*")) // 1024 * 3
    disk, found = Disk(tmp_path / "disk", 4096), []
    try:
        for size in range(PAGE_KIB * (3 + part), most, PAGE_KIB * PARTS):
            found.append(fill_up(disk, size, encoder, reference[1]))
            if not found[-1]:
                break
    finally:
        disk.remove()
    assert not found[-1], "the run never had room enough"
    assert len(found) > 5
    record_property("full", len(found) - 1)


@pytest.mark.integration
@pytest.mark.parametrize("size", [0, 100, 1000, 5000, 30_000])
def test_a_limit_on_the_size_of_files(encoder: Path, reference: Reference, tmp_path: Path, size: int) -> None:
    """As a full disk, where none can be made: a write takes a part, and the next is refused."""
    make_rows(tmp_path)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # noqa: E731
    status, said = refused(tmp_path, encoder, limit)
    assert status == REFUSED
    assert "the file would be larger than is allowed here" in said
    check_whole(tmp_path / "run")
    check_resumes(tmp_path, encoder, reference[1], polite=False)


def test_a_log_line_is_written_whole_or_the_disk_s_refusal_is_told(tmp_path: Path) -> None:
    """The system takes what there is room for and says so; only the next write is refused."""

    def action() -> None:
        log = JsonLog(tmp_path / "log.jsonl")
        log.write({"step": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
        try:
            log.write({"step": 2})
        except StorageError:
            os._exit(REFUSED)

    assert ending(forked(action)) == REFUSED
    assert (tmp_path / "log.jsonl").read_text() == '{"step": 1}\n{"step":'
    kept = JsonLog(tmp_path / "log.jsonl", keep_bytes=12)
    kept.write({"step": 2})
    assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [1, 2]


# Folders that may not be written to


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that any user can reach; pytest's own are for one user only."""
    folder = Path(tempfile.mkdtemp(prefix="attentune-"))
    folder.chmod(0o755)
    yield folder
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


def not_root() -> None:
    """Go on as somebody whom permissions stop."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)


@pytest.mark.parametrize("locked", ["parent", "run", "checkpoints"])
@pytest.mark.usefixtures("reference")  # a run here imports all modules: the child may not read where Python is
def test_a_folder_that_may_not_be_written_to(encoder: Path, open_place: Path, locked: str) -> None:
    """The folder of checkpoints may be made, and then, while it trains, not be written to."""
    mine, run, save = Path(shutil.copytree(encoder, open_place / "encoder")), open_place / "run", Checkpointer.save
    make_rows(open_place)
    for path in open_place.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    if locked != "parent":
        run.mkdir(mode=0o555)
    if locked == "checkpoints":
        run.chmod(0o777)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(run, nobody.pw_uid, nobody.pw_gid)
    before = sorted(path.name for path in open_place.rglob("*"))

    def save_nothing(self: Checkpointer) -> None:
        run.chmod(0o555)
        save(self)

    def lock() -> None:
        not_root()
        if locked == "checkpoints":
            Checkpointer.save = save_nothing  # type: ignore[method-assign]

    status, said = refused(open_place, mine, lock)
    assert status == REFUSED
    assert "cannot be written to; name another --output_dir" in said or "permission denied; choose another" in said
    if locked != "checkpoints":
        assert sorted(path.name for path in open_place.rglob("*")) == before
    assert checkpoint_folders(run) == [] if run.exists() else True


# Two at once


def test_the_second_process_in_a_folder_is_refused_and_the_first_goes_on(encoder, reference, tmp_path):
    make_rows(tmp_path)
    ready, go_on, run, save = tmp_path / "ready", tmp_path / "go-on", tmp_path / "run", Checkpointer.save

    def save_then_wait(self: Checkpointer) -> None:
        save(self)
        ready.touch()
        wait_for(go_on.exists, "leave to go on")

    def wait_inside() -> None:
        Checkpointer.save = save_then_wait  # type: ignore[method-assign]

    first = forked(lambda: train_in(tmp_path, encoder), wait_inside)
    try:
        wait_for(ready.exists, "checkpoint")
        content = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        for how in ({"resume": True}, {"training__overwrite_output_dir": True}):
            with pytest.raises(CheckpointError, match="run: another process is training in this folder"):
                train_in(tmp_path, encoder, **how)
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == content
    finally:
        go_on.touch()
    assert ending(first) == FINISHED
    assert_same(outcome(run), reference[1])


# What a stop says


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_that_a_stopped_run_names_goes_on(encoder, reference, tmp_path, number):
    """In a folder whose name has a space in it."""
    make_rows(tmp_path)
    run = tmp_path / "my run"
    values = settings(tmp_path, encoder, **METHOD) | {"training.output_dir": str(run)}
    flags = ["--preset", values.pop("preset")]
    flags += [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    for _ in range(5):  # the signal may come too late, when the run is done
        process = start(["train", "--quiet", *flags])
        wait_for(lambda: list(run.glob("checkpoint-*")), "checkpoint", process)
        process.send_signal(number)
        out, err = process.communicate(timeout=240)
        if process.returncode != 0:
            break
        shutil.rmtree(run)
    assert (process.returncode, out) == (130, "")
    (line,) = [line for line in err.splitlines() if line.startswith("attentune: ")]
    command = line.split("resume with: ")[1].replace("attentune ", f"{sys.executable} -m attentune.cli.main ", 1)
    subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    got = outcome(run)
    assert_same({**got, "checkpoints": None}, {**reference[1], "checkpoints": None})
