"""`--input_file -`: rows from standard input are predicted as those of a file, or the answer says what to do."""

import csv
import gzip
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

import attentune.data.tables as parts_module
from attentune.data.files import guess_format
from attentune.data.tables import ChunkLimit
from attentune.data.text_formats import FileOptions
from attentune.data.unlabelled import find_sources
from attentune.errors import DataError
from attentune.models.saving import save_model
from helpers.tiny_models import build

Command = Callable[..., tuple[int, str, str]]
TABLE = "id,text,label\n" + "".join(f"r{n},so fine a film {n},bad\n" for n in range(7))
LINES = "".join(f"so fine a film {n}\n" for n in range(7))
OBJECTS = "".join(json.dumps({"text": f"so fine a film {n}"}) + "\n" for n in range(7))


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved run over a random encoder."""
    folder = tmp_path_factory.mktemp("stdin") / "run"
    folder.mkdir()
    save_model(*build(tiny("bert", layers=1, hidden=16)), folder)
    (folder / "config.yaml").write_text("training: {precision: fp32, use_cpu: true}\n")
    return folder


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch, attentune: Command) -> Command:
    """Return a function that runs a command line with these bytes as standard input."""

    def run_with(content: str | bytes, *words: object) -> tuple[int, str, str]:
        data = content.encode() if isinstance(content, str) else content
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return attentune(*words)

    return run_with


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (TABLE, "read as CSV"),
        (TABLE.replace(",", ";").encode("utf-16"), "semicolon-separated, UTF-16"),
        (TABLE.replace(",", "\t"), "tab-separated"),
        (OBJECTS, "read as JSON lines"),
        (json.dumps([json.loads(line) for line in OBJECTS.splitlines()], indent=1), "read as JSON"),
        (LINES, "read as plain text, one text a line"),
        ("\ufeff" + LINES.replace("\n", "\r\n"), "read as plain text"),
    ],
)
@pytest.mark.parametrize("rows", [3, 100])
def test_formats_are_found_and_told(
    piped: Command, run: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes, told: str, rows: int
) -> None:
    monkeypatch.setattr(parts_module, "CHUNK", ChunkLimit(rows, 1 << 20))
    status, out, err = piped(content, "predict", run, "--input_file", "-")
    assert status == 0, err
    assert told in err
    assert "standard input: read as" in err
    lines = out.splitlines()
    assert len(lines) == 8
    _, alone, _ = piped("", "predict", run, "--text", "so fine a film 3")
    assert lines[4].split(",")[-2:] == alone.splitlines()[1].split(",")[-2:]


def test_it_is_as_a_file(piped: Command, attentune: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(TABLE)
    expected = attentune("predict", run, "--input_file", tmp_path / "rows.csv", "--keep_columns", "text")
    got = piped(TABLE, "predict", run, "--input_file", "-", "--keep_columns", "text")
    assert expected[:2] == got[:2]
    for words in (("explain",), ("suggest", "--count", "2")):
        status, out, err = piped(TABLE, words[0], run, "--input_file", "-", *words[1:])
        assert status == 0, err
        assert "film" in out
        assert "standard input: read as CSV" in err
    status, out, err = piped(TABLE, "evaluate", run, "--validation_file", "-", "--format", "json")
    assert status == 0, err
    assert "accuracy" in out


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "standard input: is empty, expected rows. Does the program before the pipe write any?"),
        ("\n \n", "standard input: holds only empty lines"),
        ("so nice, really\nbad, too\nand, so on\n", "standard input: cannot tell whether this is a table"),
        ("so nice, really\nbad, too\nand, so on\n", "--file_format txt"),
        (b"PK\x03\x04", "standard input: holds no text"),
        (b"SQLite format 3\0", "Save it to a file"),
        ("<html><body>Sign in</body></html>", "standard input:1: this is an HTML page"),
        ('text,label\n"so fine', "standard input:2: "),
        ('{"text": "so"}\n{"text": 1', "standard input:2: not valid JSON"),
        ("text\na, b, c\n", "standard input:2: 3 fields, expected 1"),
        (b"text\nso \xff\xfe\xc3\xa9\xc3\xa9\n", "standard input:2: byte 4"),
    ],
)
def test_what_cannot_be_read(piped: Command, run: Path, content: str | bytes, expected: str) -> None:
    status, out, err = piped(content, "predict", run, "--input_file", "-")
    assert (status, out) == (2, ""), err
    assert expected in err


def test_the_format_can_be_given(piped: Command, run: Path) -> None:
    content = "so nice, really\nbad, too\n"
    status, out, _ = piped(content, "predict", run, "--input_file", "-", "--file_format", "txt")
    assert (status, len(out.splitlines())) == (0, 3)
    words = ("--no_header", "--text_column", "column_1")
    status, out, _ = piped(content, "predict", run, "--input_file", "-", *words)
    assert (status, len(out.splitlines())) == (0, 3)
    status, _, err = piped("a", "predict", run, "--input_file", "-", "--file_format", "parquet")
    assert status == 2
    assert "standard input: not a whole Parquet file" in err


def test_a_bomb_is_refused(piped: Command, run: Path) -> None:
    status, _, err = piped(gzip.compress(b"text\n" + b"a" * 2**27), "predict", run, "--input_file", "-")
    assert status == 2
    assert "standard input: unpacks to more than 200 times its size" in err


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("flags", [(), ("--file_format", "parquet")])
def test_parquet_is_read(piped: Command, run: Path, flags: tuple[str, ...], pack: Callable[[bytes], bytes]) -> None:
    rows = list(csv.DictReader(io.StringIO(TABLE)))
    written = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), written)
    words = ("predict", run, "--input_file", "-")
    status, out, err = piped(pack(written.getvalue()), *words, *flags)
    assert (status, out) == piped(TABLE, *words)[:2], err
    assert piped(pack(written.getvalue()[:-9]), *words, *flags)[0] == 2


@pytest.mark.parametrize("line", ["a,b", "It was so-so, I think.", "[unclear] well", "{sigh} well", 'he said "so'])
def test_one_line_is_a_text(line: str) -> None:
    assert guess_format(line.encode(), "standard input", FileOptions())[0] == ".txt"


def test_a_header_with_a_given_name_is_one() -> None:
    content = b"nr,words\n1,so fine\n2,dull\n"
    options = FileOptions(columns=frozenset({"words"}))
    assert guess_format(content, "standard input", options)[0] == ".csv"
    with pytest.raises(DataError, match="cannot tell"):
        guess_format(content, "standard input", FileOptions())


def test_commands_that_read_again_refuse_it(piped: Command, run: Path, tmp_path: Path) -> None:
    lines = ("train", "auto", "train --adapt", "compare --presets bert,ssa-hybrid", "search --search training.seed=1,2")
    for command, *more in map(str.split, lines):
        status, out, err = piped(TABLE, command, "--train_file", "-", "--output_dir", tmp_path / "out", *more)
        assert (status, out) == (2, ""), command
        assert f"--train_file: got -, which is standard input, but {command} reads its rows again" in err
    status, _, err = piped(TABLE, "predict", run, "--input_file", "-", "--output_dir", tmp_path / "out")
    assert status == 2
    assert "--input_file: got standard input, which each part would read again" in err
    assert not (tmp_path / "out").exists()


def test_a_terminal_is_no_input(attentune: Command, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, slave = pty.openpty()
    with os.fdopen(slave) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        status, out, err = attentune("predict", run, "--input_file", "-")
    assert (status, out) == (2, "")
    assert "standard input: is a terminal, expected rows from a file or another program. For example: " in err


def test_files_of_other_names(attentune: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text(LINES)
    status, _, err = attentune("predict", run, "--input_file", tmp_path / "rows.txt")
    assert status == 2
    assert "give --file_format" in err
    words = ("--input_file", tmp_path / "rows.txt", "--file_format")
    status, out, _ = attentune("predict", run, *words, "txt")
    assert (status, len(out.splitlines())) == (0, 8)
    (tmp_path / "rows.txt").write_text(TABLE.replace(",", "\t"))
    (source,) = find_sources(str(tmp_path / "rows.txt"), FileOptions(file_format="tsv"))
    assert (source.scanned().rows, source.scanned().names) == (7, ("id", "text", "label"))


@pytest.mark.integration
def test_through_a_pipe(run: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "attentune", "predict", str(run), "--input_file", "-"]
    folder = tmp_path / "tmp"
    folder.mkdir()
    done = subprocess.run(
        ["sh", "-c", 'printf "so fine\\nso dull\\n" | "$@"', "sh", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    assert "read as plain text" in done.stderr
    assert not [path for path in folder.iterdir() if path.is_file()]
    closed = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *words], capture_output=True, text=True, timeout=120)
    assert closed.returncode == 2
    assert "standard input: is closed" in closed.stderr
