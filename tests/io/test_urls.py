"""Files by path and by URL: found, read, and written whole or not at all."""

import sys
from pathlib import Path

import fsspec
import pytest

from attentune.errors import ConfigError, DataError, StorageError
from attentune.io.urls import find_files, read_if_there, written_whole


@pytest.mark.parametrize("form", ["{0}/out", "file://{0}/out", "memory://{1}/out"])
def test_a_file_appears_when_the_block_ends(form: str, tmp_path: Path) -> None:
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


def test_what_killed_processes_left_of_a_file_is_removed(tmp_path: Path) -> None:
    for name in (".part-1.csv.77.tmp", ".part-2.csv.77.tmp"):
        (tmp_path / name).write_text("half")
    with written_whole(f"{tmp_path}/part-1.csv") as stream:
        stream.write(b"whole")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".part-2.csv.77.tmp", "part-1.csv"]


@pytest.mark.parametrize("form", ["{0}", "memory://{1}"])
def test_files_of_a_folder_a_pattern_and_a_name(form: str, tmp_path: Path) -> None:
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
    for place in (str(tmp_path), f"file://{tmp_path}"):
        with pytest.raises(StorageError, match="file/out.*could not be written"), written_whole(f"{place}/file/out"):
            pass
    with pytest.raises(ConfigError, match="s3://bucket: needs a package that is not installed: Install s3fs"):
        find_files("s3://bucket", [])
