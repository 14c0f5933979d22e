"""A lock has one holder, and is free when its process is killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from attentune.errors import StorageError
from attentune.io.files import FileLock


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "in" / "a.lock"), FileLock(tmp_path / "in" / "a.lock")
    assert not second.is_held()
    assert first.take(wait=False)
    assert not second.take(wait=False)
    assert first.is_held()
    assert second.is_held()
    first.free()
    assert not second.is_held()
    with second:
        assert not first.take(wait=False)
    assert first.take()
    first.free()


def test_a_lock_is_free_when_its_process_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from attentune.io.files import FileLock\n"
        "lock = FileLock(Path(sys.argv[1])); print(lock.take(wait=False), flush=True); sys.stdin.read()"
    )
    path = tmp_path / "a.lock"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        lock = FileLock(path)
        assert lock.is_held()
        assert not lock.take(wait=False)
        holder.kill()
    assert lock.take()  # waits until the system has freed it
    lock.free()


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious")
    (tmp_path / "a.lock").symlink_to(tmp_path / "other")
    with pytest.raises(StorageError, match="this is a link"):
        FileLock(tmp_path / "a.lock").take()
    assert (tmp_path / "other").read_text() == "precious"
