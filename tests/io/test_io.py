"""Locks, files by path and URL, and ways round what one operating system lacks."""

import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
import torch

from attentune.data.files import read_table
from attentune.errors import ConfigError, DataError, StorageError
from attentune.io import files
from attentune.io.files import FileLock
from attentune.io.urls import find_files, read_if_there, written_whole
from attentune.nn.compiled import memory as heap
from attentune.nn.compiled import native
from attentune.results import to_json


def test_a_lock_has_one_holder(tmp_path):
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


def test_a_lock_is_free_when_its_process_is_killed(tmp_path):
    code = (
        "import sys; from pathlib import Path; from attentune.io.files import FileLock\n"
        "lock = FileLock(Path(sys.argv[1])); print(lock.take(wait=False), flush=True); sys.stdin.read()"
    )
    path = tmp_path / "a.lock"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "True\n"
        lock = FileLock(path)
        assert lock.is_held()
        assert not lock.take(wait=False)
        holder.kill()
    assert lock.take()  # waits until the system has freed it
    lock.free()


def test_a_lock_file_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "other").write_text("precious")
    (tmp_path / "a.lock").symlink_to(tmp_path / "other")
    with pytest.raises(StorageError, match="this is a link"):
        FileLock(tmp_path / "a.lock").take()
    assert (tmp_path / "other").read_text() == "precious"


# Files by path and by URL: found, read, and written whole or not at all


def test_a_pipe_is_written_into_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with files.atomic_write(pipe) as add:
        add(b"a,b\n")
        add(b"1,2\n")
    assert pipe.is_fifo()
    assert os.read(reader, 100) == b"a,b\n1,2\n"
    os.close(reader)


@pytest.mark.parametrize("form", ["{0}/out", "file://{0}/out", "memory://{1}/out"])
def test_a_file_appears_when_the_block_ends(form, tmp_path):
    path = f"{form.format(tmp_path, tmp_path.name)}/rows.json"
    with written_whole(path) as stream:
        stream.write(b'{"rows"')
        assert read_if_there(path) is None
        stream.write(b": 1}")
    with pytest.raises(KeyError), written_whole(path) as stream:
        stream.write(b"half")
        raise KeyError
    assert read_if_there(path) == b'{"rows": 1}'
    (file,) = find_files(path, [])
    with file.open() as opened:
        assert opened.read() == b'{"rows": 1}'
    assert file.bytes == 11
    assert read_if_there(f"{path}l") is None


def test_what_killed_processes_left_of_a_file_is_removed(tmp_path):
    for name in (".part-1.csv.77.tmp", ".part-2.csv.77.tmp"):
        (tmp_path / name).write_text("half")
    with written_whole(f"{tmp_path}/part-1.csv") as stream:
        stream.write(b"whole")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".part-2.csv.77.tmp", "part-1.csv"]


@pytest.mark.parametrize("form", ["{0}", "memory://{1}"])
def test_files_of_a_folder_a_pattern_and_a_name(form, tmp_path):
    root = form.format(tmp_path, tmp_path.name)
    for name in ("b.csv", "a.csv", "_c.csv", ".d.csv", "e[1].csv", "notes.md", "in/f.csv"):
        with written_whole(f"{root}/{name}") as stream:
            stream.write(b"text\n")

    def names(pattern: str) -> list[str]:
        return [file.path.rsplit("/", 1)[-1] for file in find_files(pattern, (".csv",))]

    assert names(root) == ["a.csv", "b.csv", "e[1].csv"]
    assert names(f"{root}/*.csv") == ["_c.csv", "a.csv", "b.csv", "e[1].csv"]
    assert names(f"{root}/**/f.csv") == ["f.csv"]
    assert names(f"{root}/e[1].csv") == ["e[1].csv"]
    assert names(f"{root}/notes.md") == ["notes.md"]
    for pattern, message in ((f"{root}/*.tsv", "names no file"), (f"{root}/g.csv", "names no file")):
        with pytest.raises(DataError, match=message):
            find_files(pattern, (".csv",))
    with pytest.raises(DataError, match="is a folder without files that end in .tsv"):
        find_files(root, (".tsv",))


def test_a_file_is_changed_if_it_was_written_again(tmp_path):
    (tmp_path / "rows.csv").write_text("one")
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/changed/rows.csv", b"one")
    for pattern in (str(tmp_path / "rows.csv"), "memory://changed/rows.csv"):
        before = find_files(pattern, [])
        assert find_files(pattern, []) == before
        (tmp_path / "rows.csv").write_text("two")
        memory.pipe_file("/changed/rows.csv", b"two")
        assert find_files(pattern, []) != before


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_csv_is_read_as_it_was_written(tmp_path, delimiter):
    lines = [("id", "text"), ("1", "a\rb"), ("2", 'so, "fine"\tor\nnot'), ("", ""), (" 3", "\u2028")]
    path = tmp_path / ("rows.csv" if delimiter == "," else "rows.tsv")
    files.write_text(path, files.csv_text(lines, delimiter))
    table = read_table(path)
    assert [table.names, *zip(*table.columns.values(), strict=True)] == lines
    assert files.csv_text([["a"], [""]]) == 'a\n""\n'


def test_errors_say_where(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    (tmp_path / "file").write_text("")
    for place in (str(tmp_path), f"file://{tmp_path}"):
        with pytest.raises(StorageError, match="file/out.*could not be written"), written_whole(f"{place}/file/out"):
            pass
    with pytest.raises(ConfigError, match="s3://bucket: needs a package that is not installed: Install s3fs"):
        find_files("s3://bucket", [])


# What exists on one operating system alone has a way round, which is taken here by hiding it


def test_files_are_written_where_folders_cannot_be_opened(tmp_path, monkeypatch):
    opened: list[object] = []
    monkeypatch.setattr(files.os, "open", lambda path, *rest: opened.append(path))
    monkeypatch.delattr(os, "O_DIRECTORY")
    monkeypatch.delattr(os, "posix_fadvise")
    files.write_text(tmp_path / "a.json", to_json({"a": 1}))
    files.sync_file(tmp_path / "a.json")
    assert files.read_json(tmp_path / "a.json") == {"a": 1}
    assert opened == []


def test_peak_memory_without_proc_and_without_resource(monkeypatch, tmp_path):
    cpu = torch.device("cpu")
    usual = heap.peak_memory_bytes(cpu)
    monkeypatch.setattr(heap, "_STATUS", tmp_path / "none")
    assert heap.peak_memory_bytes(cpu) >= usual // 2
    monkeypatch.setattr(heap, "resource", None)
    assert 1 << 26 < heap.peak_memory_bytes(cpu) <= 2 * usual


def test_another_c_library_keeps_its_own_memory(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(sys, "platform", "win32")
        assert heap.load_glibc() is None
    monkeypatch.setattr(heap, "_library", None)
    with heap.kept_memory():
        heap.return_freed_memory()
        assert heap._within == 0


def test_the_processor_is_named_without_proc(monkeypatch):
    def missing(path: Path, **rest: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert native.processor_name() == native.platform.machine()
