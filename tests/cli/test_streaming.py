"""`attentune predict` on files of several parts: as at once, whole or not at all, and at constant memory."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attentune.config.schema import TokenGateConfig
from attentune.models.saving import save_model
from tiny_models import build

Tiny = Callable[..., Path]


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


_PREDICT = """
import sys
from attentune.cli.main import main
from attentune.training.usage import peak_memory_bytes
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
