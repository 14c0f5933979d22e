"""`attentune predict` on files of several parts: as at once, whole or not at all, and at constant memory."""

import csv
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attentune.data.tables as parts_module
from attentune.config.schema import TokenGateConfig
from attentune.data.tables import ChunkLimit
from attentune.inference import streaming
from attentune.inference.predictor import predict_rows
from attentune.models.saving import save_model
from helpers.interrupted import Disk
from helpers.tiny_models import build

Tiny = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved run with a token gate over a random encoder; it takes large batches."""
    folder = tmp_path_factory.mktemp("stream") / "run"
    folder.mkdir()
    save_model(*build(tiny("bert", layers=1, hidden=16), token_gate=TokenGateConfig(kind="ssa")), folder)
    (folder / "config.yaml").write_text(
        "training: {per_device_eval_batch_size: 1024, precision: fp32, use_cpu: true}\n"
    )
    return folder


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_parts_are_written_as_all_rows_at_once(
    run: Path, tmp_path: Path, attentune: Command, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    path, out = texts_file(tmp_path, *numbered(10)), tmp_path / "out.csv"
    status, whole, err = attentune("predict", run, "--input_file", path, *flags)
    assert (status, err) == (0, "This model sorts a text into bad or good.\n")
    monkeypatch.setattr(parts_module, "CHUNK", ChunkLimit(3, 1 << 20))
    status, printed, err = attentune("predict", run, "--input_file", path, *flags)
    assert status == 0
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


def test_json_has_the_cells_of_csv(run: Path, tmp_path: Path, attentune: Command, small_parts: None) -> None:
    path, out = texts_file(tmp_path, *numbered(7)), tmp_path / "out.jsonl"
    words = ("predict", run, "--input_file", path, "--keep_columns", "text", "--explain")
    status, printed, _ = attentune(*words)
    assert status == 0
    assert attentune(*words, "--output_file", out)[0] == 0
    cells, objects = list(csv.DictReader(printed.splitlines())), list(map(json.loads, out.read_text().splitlines()))
    assert [list(one) for one in objects] == [list(one) for one in cells]
    assert [one["p_bad"] for one in objects] == [float(one["p_bad"]) for one in cells]
    for name in ("id", "label", "prediction", "text"):
        assert [one[name] for one in objects] == [one[name] for one in cells]
    (one,) = map(json.loads, attentune("predict", run, "--text", "so fine", "--format", "json")[1].splitlines())
    assert one.keys() == {"id", "prediction", "p_bad", "p_good"}


def test_a_carriage_return_in_an_id_is_quoted(run: Path, tmp_path: Path, attentune: Command, small_parts: None) -> None:
    status, out, _ = attentune("predict", run, "--input_file", texts_file(tmp_path, *numbered(6), '"i\rd",so'))
    assert status == 0
    assert list(csv.reader(io.StringIO(out, newline="")))[-1][0] == "i\rd"


@pytest.mark.parametrize(
    ("last", "line", "what"),
    [
        ("id-9", 11, "2 fields, expected 3"),
        ('id-9,"so', 11, "never closed"),
        ("id-9,so,bad\n\n1,so", 12, "a blank line between rows"),
    ],
)
def test_what_is_wrong_with_the_last_row_costs_nothing(
    run: Path, tmp_path: Path, attentune: Command, small_parts: None, last: str, line: int, what: str
) -> None:
    path, out = texts_file(tmp_path, *numbered(9), last), tmp_path / "out.csv"
    out.write_text("old")
    for flags in ((), ("--output_file", out)):
        status, printed, err = attentune("predict", run, "--input_file", path, *flags)
        assert (status, printed) == (2, "")
        (said,) = err.splitlines()
        assert said.startswith(f"attentune: {path}:{line}: ")
        assert what in said
    assert out.read_text() == "old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.csv", "rows.csv"]


def test_a_disk_that_fills_with_a_later_part_leaves_the_old_file(
    run: Path, tmp_path: Path, attentune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts_module, "CHUNK", ChunkLimit(300, 1 << 20))
    path, disk = texts_file(tmp_path, *numbered(900)), Disk(tmp_path / "disk", 24)  # the whole has about 33 KiB
    try:
        (disk.folder / "out.csv").write_text("old")
        status, out, err = attentune("predict", run, "--input_file", path, "--output_file", disk.folder / "out.csv")
        assert (status, out) == (2, "")
        (line,) = [line for line in err.splitlines() if not line.startswith(("predicted: ", "This model "))]
        assert line.endswith("out.csv: could not be written: the disk is full; free some space.")
        assert {entry.name: entry.read_text() for entry in disk.folder.iterdir()} == {"out.csv": "old"}
    finally:
        disk.remove()


def test_ctrl_c_between_parts_leaves_the_old_file(
    run: Path, tmp_path: Path, attentune: Command, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    path, out = texts_file(tmp_path, *numbered(9)), tmp_path / "out.csv"
    out.write_text("old")
    calls: list[int] = []

    def interrupted(saved: Any, rows: Any, **options: Any) -> Any:
        calls.append(len(rows))
        assert [entry.name for entry in tmp_path.iterdir() if entry.suffix == ".tmp"]
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return predict_rows(saved, rows, **options)

    monkeypatch.setattr(streaming, "predict_rows", interrupted)
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
def test_a_reader_that_has_had_enough_and_a_full_disk_on_standard_output(run: Path, tmp_path: Path) -> None:
    path = texts_file(tmp_path, *numbered(9000))
    words = [sys.executable, "-c", _SMALL, "predict", str(run), "--input_file", str(path)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
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
def test_memory_does_not_grow_with_the_rows(run: Path, tmp_path: Path) -> None:
    few, many = 150_000, 450_000  # three parts and seven
    growth = (peak_mib(run, tmp_path, many) - peak_mib(run, tmp_path, few)) / (many - few) * 100_000
    # Of an id 8 bytes are kept, and the same once more for a moment: 1.6 MB. The rest is the allocators' chance.
    assert growth < 6, f"{growth:.1f} MiB for 100,000 rows"
