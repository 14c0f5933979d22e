"""`attentune predict`: files of several parts at constant memory, standard input, texts that are cut."""

import csv
import gzip
import io
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import attentune as library
import attentune.data.tables as parts_module
from attentune.baselines.registry import make_baseline
from attentune.config import DataConfig, ModelConfig
from attentune.config.schema import TokenGateConfig
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.files import guess_format
from attentune.data.tables import ChunkLimit
from attentune.data.unlabelled import find_sources
from attentune.errors import DataError
from attentune.inference import streaming
from attentune.inference.predictor import Predictor
from attentune.models.saving import save_model
from helpers.interrupted import Disk
from helpers.tiers import leading
from helpers.tiny_models import build
from helpers.tiny_runs import saved_ensemble, saved_model


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    """A saved run with a token gate over a random encoder; it takes large batches."""
    folder = tmp_path_factory.mktemp("stream") / "run"
    folder.mkdir()
    save_model(*build(tiny("bert", layers=1, hidden=16), token_gate=TokenGateConfig(kind="ssa")), folder)
    (folder / "config.yaml").write_text(
        "training: {per_device_eval_batch_size: 1024, precision: fp32, use_cpu: true}\n"
    )
    return folder


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of three rows."""
    monkeypatch.setattr(parts_module, "CHUNK", ChunkLimit(3, 1 << 20))


def texts_file(folder: Path, *rows: str, name: str = "rows.csv") -> Path:
    """A CSV file with ids."""
    path = folder / name
    path.write_text("id,text,label\n" + "".join(f"{row},bad\n" for row in rows))
    return path


def numbered(count: int) -> list[str]:
    return [f"id-{row},{'so very fine ' * (row % 5)}film {row}" for row in range(count)]


def table_of(text: str) -> list[list[str]]:
    return list(csv.reader(text.splitlines()))


@pytest.mark.parametrize("flags", [(), ("--explain",)], ids=["plain", "explained"])
def test_parts_are_written_as_all_rows_at_once(run, tmp_path, attentune, monkeypatch, flags):
    path, out = texts_file(tmp_path, *numbered(10)), tmp_path / "out.csv"
    status, whole, err = attentune("predict", run, "--input_file", path, *flags)
    assert (status, err) == (0, "This model sorts a text into bad or good.\n")
    monkeypatch.setattr(parts_module, "CHUNK", ChunkLimit(3, 1 << 20))
    printed, err = attentune.done("predict", run, "--input_file", path, *flags)
    assert "predicted: 10 of 10 rows" in err
    assert attentune("predict", run, "--input_file", path, *flags, "--output_file", out)[:2] == (0, "")
    assert out.read_text() == printed
    expected, found = table_of(whole), table_of(printed)
    assert len(expected) == 11
    for one, other in zip(expected, found, strict=True):
        assert [*one[:3], len(one)] == [*other[:3], len(other)]
    for one, other in zip(expected[1:], found[1:], strict=True):
        assert [float(share) for share in one[3:5]] == pytest.approx([float(share) for share in other[3:5]], abs=2e-6)
        for before, after in zip(one[5:], other[5:], strict=True):
            words = [json.loads(text)["tokens"] for text in (before, after)]
            assert [word["text"] for word in words[0]] == [word["text"] for word in words[1]]


def test_json_has_the_cells_of_csv(run, tmp_path, attentune, small_parts):
    path, out = texts_file(tmp_path, *numbered(7)), tmp_path / "out.jsonl"
    words = ("predict", run, "--input_file", path, "--keep_columns", "text", "--explain")
    printed, _ = attentune.done(*words)
    assert attentune(*words, "--output_file", out)[0] == 0
    cells, objects = list(csv.DictReader(printed.splitlines())), list(map(json.loads, out.read_text().splitlines()))
    assert [list(one) for one in objects] == [list(one) for one in cells]
    assert [one["p_bad"] for one in objects] == [float(one["p_bad"]) for one in cells]
    for name in ("id", "label", "prediction", "text"):
        assert [one[name] for one in objects] == [one[name] for one in cells]
    (one,) = map(json.loads, attentune("predict", run, "--text", "so fine", "--format", "json")[1].splitlines())
    assert one.keys() == {"id", "prediction", "p_bad", "p_good"}


def test_a_carriage_return_in_an_id_is_quoted(run, tmp_path, attentune, small_parts):
    out, _ = attentune.done("predict", run, "--input_file", texts_file(tmp_path, *numbered(6), '"i\rd",so'))
    assert list(csv.reader(io.StringIO(out, newline="")))[-1][0] == "i\rd"


@pytest.mark.parametrize(
    ("last", "line", "what"),
    [
        ("id-9", 11, "2 fields, expected 3"),
        ('id-9,"so', 11, "never closed"),
        ("id-9,so,bad\n\n1,so", 12, "a blank line between rows"),
    ],
)
def test_what_is_wrong_with_the_last_row_costs_nothing(run, tmp_path, attentune, small_parts, last, line, what):
    path, out = texts_file(tmp_path, *numbered(9), last), tmp_path / "out.csv"
    out.write_text("old")
    for flags in ((), ("--output_file", out)):
        err = attentune.refused("predict", run, "--input_file", path, *flags)
        (said,) = err.splitlines()
        assert said.startswith(f"attentune: {path}:{line}: ")
        assert what in said
    assert out.read_text() == "old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.csv", "rows.csv"]


def test_a_disk_that_fills_with_a_later_part_leaves_the_old_file(run, tmp_path, attentune, monkeypatch):
    monkeypatch.setattr(parts_module, "CHUNK", ChunkLimit(300, 1 << 20))
    path, disk = texts_file(tmp_path, *numbered(900)), Disk(tmp_path / "disk", 24)  # the whole has about 33 KiB
    try:
        (disk.folder / "out.csv").write_text("old")
        err = attentune.refused("predict", run, "--input_file", path, "--output_file", disk.folder / "out.csv")
        (line,) = [line for line in err.splitlines() if not line.startswith(("predicted: ", "This model "))]
        assert line.endswith("out.csv: could not be written: the disk is full; free some space.")
        assert {entry.name: entry.read_text() for entry in disk.folder.iterdir()} == {"out.csv": "old"}
    finally:
        disk.remove()


def test_ctrl_c_between_parts_leaves_the_old_file(run, tmp_path, attentune, monkeypatch, small_parts):
    path, out = texts_file(tmp_path, *numbered(9)), tmp_path / "out.csv"
    out.write_text("old")
    calls: list[int] = []

    def interrupted(saved: Any, rows: Any, **options: Any) -> Any:
        calls.append(len(rows))
        assert [entry.name for entry in tmp_path.iterdir() if entry.suffix == ".tmp"]
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return real(saved, rows, **options)

    real = streaming.predicted
    monkeypatch.setattr(streaming, "predicted", interrupted)
    status, printed, err = attentune("predict", run, "--input_file", path, "--output_file", out)
    assert (status, printed, calls) == (130, "", [3, 3])
    assert err.splitlines()[-1] == "attentune: stopped."
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.csv", "rows.csv"]
    assert out.read_text() == "old"


_SMALL = """
import sys
import attentune.data.tables as parts
from attentune.cli.main import run
parts.CHUNK = parts.ChunkLimit(300, 1 << 20)
sys.argv[0] = "attentune"
run()
"""


@pytest.mark.slow
def test_a_reader_that_has_had_enough_and_a_full_disk_on_standard_output(run, tmp_path):
    path = texts_file(tmp_path, *numbered(9000))
    words = [sys.executable, "-c", _SMALL, "predict", str(run), "--input_file", str(path)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline().startswith("id,label,prediction")
    child.stdout.close()
    _, err = child.communicate(timeout=120)
    assert child.returncode == 0
    assert [line for line in err.splitlines() if not line.startswith(("predicted: ", "This model "))] == []
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith(("predicted: ", "This model "))]
    assert line == "attentune: standard output: could not be written: the disk is full; free some space."


_PREDICT = """
import sys
from attentune.cli.main import main
from attentune.nn.compiled.memory import peak_memory_bytes
import torch
status = main(["predict", *sys.argv[1:]])
print(peak_memory_bytes(torch.device("cpu")))
sys.exit(status)
"""


def peak_mib(run: Path, folder: Path, rows: int) -> float:
    """The most memory that a process held that predicted so many short texts, with ids."""
    path, out = folder / f"{rows}.csv", folder / f"{rows}-out.csv"
    with path.open("w") as file:
        file.write("id,text\n")
        file.writelines(f"text-{row},so fine {row % 10}\n" for row in range(rows))
    words = (sys.executable, "-c", _PREDICT, run, "--input_file", path, "--output_file", out)
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True)
    with out.open() as file:
        predicted = list(csv.reader(file))
    assert [row[0] for row in predicted] == ["id", *(f"text-{row}" for row in range(rows))]
    return int(done.stdout) / 2**20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own mark is read under Linux only")
def test_memory_does_not_grow_with_the_rows(run, tmp_path):
    few, many = 150_000, 450_000  # three parts and seven
    growth = (peak_mib(run, tmp_path, many) - peak_mib(run, tmp_path, few)) / (many - few) * 100_000
    # Of an id 8 bytes are kept, and the same once more for a moment: 1.6 MB. The rest is the allocators' chance.
    assert growth < 6, f"{growth:.1f} MiB for 100,000 rows"


# `--input_file -`: rows from standard input are predicted as those of a file, or the answer says what to do


TABLE = "id,text,label\n" + "".join(f"r{n},so fine a film {n},bad\n" for n in range(7))
LINES = "".join(f"so fine a film {n}\n" for n in range(7))
OBJECTS = "".join(json.dumps({"text": f"so fine a film {n}"}) + "\n" for n in range(7))


@pytest.fixture
def piped(monkeypatch, attentune):
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
def test_formats_are_found_and_told(piped, run, monkeypatch, content, told, rows):
    monkeypatch.setattr(parts_module, "CHUNK", ChunkLimit(rows, 1 << 20))
    status, out, err = piped(content, "predict", run, "--input_file", "-")
    assert status == 0, err
    assert told in err
    assert "standard input: read as" in err
    lines = out.splitlines()
    assert len(lines) == 8
    _, alone, _ = piped("", "predict", run, "--text", "so fine a film 3")
    assert lines[4].split(",")[-2:] == alone.splitlines()[1].split(",")[-2:]


def test_it_is_as_a_file(piped, attentune, run, tmp_path):
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
def test_what_cannot_be_read(piped, run, content, expected):
    status, out, err = piped(content, "predict", run, "--input_file", "-")
    assert (status, out) == (2, ""), err
    assert expected in err


def test_the_format_can_be_given(piped, run):
    content = "so nice, really\nbad, too\n"
    status, out, _ = piped(content, "predict", run, "--input_file", "-", "--file_format", "txt")
    assert (status, len(out.splitlines())) == (0, 3)
    words = ("--no_header", "--text_column", "column_1")
    status, out, _ = piped(content, "predict", run, "--input_file", "-", *words)
    assert (status, len(out.splitlines())) == (0, 3)
    status, _, err = piped("a", "predict", run, "--input_file", "-", "--file_format", "parquet")
    assert status == 2
    assert "standard input: not a whole Parquet file" in err


def test_a_bomb_is_refused(piped, run):
    status, _, err = piped(
        gzip.compress(b"text\n") + gzip.compress(b"a" * 2**20) * 128, "predict", run, "--input_file", "-"
    )
    assert status == 2
    assert "standard input: unpacks to more than 200 times its size" in err


@pytest.mark.parametrize("flags", [(), ("--file_format", "parquet")])
def test_parquet_is_read_unless_it_is_packed(piped, run, flags):
    rows = list(csv.DictReader(io.StringIO(TABLE)))
    written = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), written)
    words = ("predict", run, "--input_file", "-")
    status, out, err = piped(written.getvalue(), *words, *flags)
    assert (status, out) == piped(TABLE, *words)[:2], err
    assert piped(written.getvalue()[:-9], *words, *flags)[0] == 2
    status, _, err = piped(gzip.compress(written.getvalue()), *words, *flags)
    assert (status, "standard input: gzipped Parquet is not read" in err) == (2, True)


@pytest.mark.parametrize("line", ["a,b", "It was so-so, I think.", "[unclear] well", "{sigh} well", 'he said "so'])
def test_one_line_is_a_text(line):
    assert guess_format(line.encode(), "standard input", DataConfig())[0] == ".txt"


def test_a_header_with_a_given_name_is_one():
    content = b"nr,words\n1,so fine\n2,dull\n"
    options = DataConfig(text_column="words")
    assert guess_format(content, "standard input", options)[0] == ".csv"
    with pytest.raises(DataError, match="cannot tell"):
        guess_format(content, "standard input", DataConfig())


def test_a_terminal_is_no_input(attentune, run, monkeypatch):
    _, slave = pty.openpty()
    with os.fdopen(slave) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        status, out, err = attentune("predict", run, "--input_file", "-")
    assert (status, out) == (2, "")
    assert "standard input: is a terminal, expected rows from a file or another program. For example: " in err


def test_files_of_other_names(attentune, run, tmp_path):
    (tmp_path / "rows.txt").write_text(LINES)
    words = ("predict", run, "--input_file", tmp_path / "rows.txt")
    assert "give --file_format" in attentune.refused(*words)
    assert len(attentune.done(*words, "--file_format", "txt")[0].splitlines()) == 8
    (tmp_path / "rows.txt").write_text(TABLE.replace(",", "\t"))
    (source,) = find_sources(str(tmp_path / "rows.txt"), DataConfig(file_format="tsv"))
    assert (source.scanned().rows, source.scanned().names) == (7, ("id", "text", "label"))


@pytest.mark.integration
def test_through_a_pipe(run, tmp_path):
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


# Texts that are longer than a run reads: it is told once, with their share, and a word is never shown in part


SPACE = LabelSpace("classification", ("bad", "good"))
LONG = " ".join(f"w{number}" for number in range(200))
NOTE = "1 of 2 texts (50.0%) have more than 64 tokens; the rest was not read."


@pytest.fixture(scope="module")
def home(tiny, tmp_path_factory):
    home = tmp_path_factory.mktemp("cut")
    saved_model(home / "run", tiny("bert"), SPACE)
    saved_ensemble(home / "ensemble", tiny, space=SPACE)
    (home / "new.csv").write_text(f"text,label\n{LONG},good\nshort,bad\n")
    return home


@pytest.fixture(scope="module")
def frozen(home, tiny):
    """A run of a linear model on a frozen encoder that reads 64 tokens."""
    folder = home / "frozen"
    encoder = ModelConfig(name_or_path=str(tiny("bert")))
    baseline = make_baseline("frozen-linear", encoder=encoder, max_length=64, seed=0)
    texts = tuple(f"w{place} w{place % 2}" for place in range(20))
    rows = TextRows(tuple(map(str, range(20))), texts, None, np.arange(20) % 2, "rows")
    folder.mkdir()
    baseline.fit(rows, SPACE).save(folder)
    return folder


@leading("kind", ["run", "frozen", "ensemble"], fast=2)
def test_parts_explanations_and_python_tell_it_for_every_kind_of_run(home, frozen, attentune, tmp_path, kind):
    (tmp_path / "a.csv").write_text(f"text\n{LONG}\nshort\n")
    (tmp_path / "b.csv").write_text("text\n" + "short\n" * 2)
    words = ("predict", home / kind, "--input_file", f"{tmp_path}/*.csv", "--output_dir", tmp_path / "out")
    assert "1 of 2 texts (50.0%) have more than 64 tokens" in attentune(*words, "--shard", "1/2")[2]
    assert "was not read" not in attentune(*words, "--shard", "2/2")[2]
    words = ("explain", home / kind, "--input_file", tmp_path / "a.csv", "--method", "leave-one-out")
    assert NOTE in attentune(*words)[2]
    saved = Predictor.load(home / kind)
    for _ in range(2):
        answers = library.predict(saved, [LONG, "short"])
        assert [one.get("truncated") for one in answers] == [True, None]


@pytest.mark.parametrize("kind", ["run", "ensemble", "frozen"])
def test_predict_and_evaluate_tell_the_share_once(home, frozen, attentune, kind):
    for words in (("predict", "--input_file"), ("evaluate", "--validation_file")):
        status, _, err = attentune(words[0], home / kind, words[1], home / "new.csv")
        assert (status, err.count("was not read")) == (0, 1), err
        assert NOTE in err
        assert "--long_texts windows" in err


def test_explain_counts_the_words_that_were_not_read(home, attentune):
    words = ("explain", home / "run", "--input_file", home / "new.csv", "--method", "gradient")
    status, out, err = attentune(*words, "--format", "json")
    first, second = map(json.loads, out.splitlines())
    assert status == 0
    assert NOTE in err
    assert [token["text"] for token in first["tokens"]] == LONG.split()[: len(first["tokens"])]
    assert first["unread_words"] == 200 - len(first["tokens"])
    assert "unread_words" not in second
    assert f"{first['unread_words']} more words were not read." in attentune(*words)[1]
