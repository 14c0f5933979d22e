"""Output folders by path and by URL: a file appears whole or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import fsspec
import pytest

from attentune.errors import ConfigError, DataError, StorageError
from attentune.io.urls import OutputFolder, find_files


@pytest.fixture(params=["path", "file", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> OutputFolder:
    path = {"path": f"{tmp_path}/out/", "file": f"file://{tmp_path}/out", "memory": f"memory://{tmp_path.name}/out"}
    return OutputFolder(path[request.param])


def test_a_file_appears_when_the_block_ends(folder: OutputFolder) -> None:
    assert folder.names() == set()
    folder.create()
    with folder.write("rows.json") as stream:
        stream.write(b'{"rows"')
        assert "rows.json" not in folder.names()
        stream.write(b": 1}")
    assert folder.names() == {"rows.json"}
    assert folder.read_json("rows.json") == {"rows": 1}
    with pytest.raises(KeyError), folder.write("rows.json") as stream:
        stream.write(b"half")
        raise KeyError
    assert folder.names() == {"rows.json"}
    assert folder.read_json("rows.json") == {"rows": 1}
    (file,) = find_files(folder.place("rows.json"), [])
    with file.open() as stream:
        assert stream.read() == b'{"rows": 1}'
    assert file.bytes == 11


def test_what_killed_processes_left_of_a_file_is_removed(tmp_path: Path) -> None:
    for name in (".part-1.csv.77.tmp", ".part-2.csv.77.tmp"):
        (tmp_path / name).write_text("half")
    with OutputFolder(str(tmp_path)).write("part-1.csv") as stream:
        stream.write(b"whole")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".part-2.csv.77.tmp", "part-1.csv"]


def test_a_file_is_changed_if_it_was_written_again(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("one")
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/changed/rows.csv", b"one")
    for pattern in (str(tmp_path / "rows.csv"), "memory://changed/rows.csv"):
        before = find_files(pattern, [])
        assert find_files(pattern, []) == before
        (tmp_path / "rows.csv").write_text("two")
        memory.pipe_file("/changed/rows.csv", b"two")
        assert find_files(pattern, []) != before


def test_errors_say_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file/out: could not be written: a part of the path is a file"):
        OutputFolder(str(tmp_path / "file" / "out")).create()
    with pytest.raises(StorageError, match=f"file://{tmp_path}/file/out: could not be written"):
        OutputFolder(f"file://{tmp_path}/file/out").create()
    with pytest.raises(DataError, match="none.json: cannot be read: No such file"):
        OutputFolder(str(tmp_path)).read_json("none.json")
    with pytest.raises(ConfigError, match="s3://bucket: needs a package that is not installed: Install s3fs"):
        OutputFolder("s3://bucket")
