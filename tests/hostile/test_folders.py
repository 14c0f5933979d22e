"""Folders and settings from elsewhere are data: nothing in them is run, and one message says what is wrong.

Encoders, runs, checkpoints, comparisons, searches, records and settings files; nothing is written outside.
"""

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from attentune.cli.main import main
from attentune.runs.records import Run
from attentune.training.checkpoint import checkpoint_folders
from helpers.hostile_folders import CHECKPOINTS, COMPARISONS, FILES, MODEL, RECORDS, RUN, SEARCHES, watched
from helpers.made_records import predictions, write_record
from helpers.samples import ground

pytestmark = pytest.mark.integration

SEARCH = ("--search", "training.learning_rate=1e-3,2e-3", "--jobs", "1", "--max_steps", "1")
COMPARE = ("--presets", "bert", "--seeds", "1", "--jobs", "1", "--max_steps", "1")
CASES = {
    f"{kind}: {name}": (kind, *case)
    for kind, cases in {
        "encoder": MODEL,
        "run": MODEL | RUN,
        "stopped": CHECKPOINTS,
        "records": RECORDS,
        "comparison": COMPARISONS,
        "search": SEARCHES,
    }.items()
    for name, case in cases.items()
}


def trained(verb: str, good: Path, *more: object) -> list[str]:
    data = ["--train_file", f"{good}/train.csv", "--validation_file", f"{good}/dev.csv", "--max_length", "32"]
    model = ["--model_name_or_path", f"{good}/encoder", "--use_cpu", "--num_train_epochs", "2"]
    return [verb, *data, *model, "--per_device_train_batch_size", "8", *map(str, more)]


@pytest.fixture(scope="module")
def good(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a stopped run, a comparison, a search, records, an encoder and data."""
    folder = ground(tmp_path_factory.mktemp("good"), tiny("bert"))
    assert main(trained("train", folder, "--preset", "ssa-hybrid", "--output_dir", folder / "run", "--quiet")) == 0
    shutil.copytree(folder / "run", folder / "stopped")
    for path in (folder / "stopped").iterdir():
        if path.is_file() and path.name not in ("config.yaml", "log.jsonl"):
            path.unlink()
    oldest, newest = checkpoint_folders(folder / "stopped")
    shutil.rmtree(oldest)
    assert "starts" in load_file(newest / "labels.safetensors")
    config = folder / "stopped" / "config.yaml"
    config.write_text(config.read_text().replace(str(folder / "run"), str(folder / "stopped")))
    assert main(trained("compare", folder, *COMPARE, "--output_dir", folder / "comparison")) == 0
    for seed in (1, 2):
        rows = predictions(["bad", "good"] * 5, ["bad", "good"] * 4 + ["good", "bad"], ("bad", "good"))
        write_record(folder / "records", Run("own", None, "bert", seed), rows, score=0.8)
    assert main(trained("search", folder, *SEARCH, "--output_dir", folder / "search")) == 0
    for name in ("search/records", "search/trials.json", "search/config.yaml"):
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    shutil.rmtree(folder / "comparison" / "records")
    return folder


def words_for(kind: str, folder: Path, good: Path) -> list[str]:
    """The command line that reads such a folder."""
    return {
        "encoder": trained("train", good, "--model_name_or_path", folder, "--output_dir", folder.parent / "out"),
        "run": ["predict", str(folder), "--text", "so fine"],
        "stopped": ["train", "--resume", "--output_dir", str(folder), "--quiet"],
        "records": ["report", str(folder), "--output_file", str(folder.parent / "report.html")],
        "comparison": trained("compare", good, *COMPARE, "--output_dir", folder),
        "search": trained("search", good, *SEARCH, "--output_dir", folder),
    }[kind]


def asked(command, words: list[str], secret: Path, says: tuple[str, ...], folder: Path | None = None) -> None:
    """Run a command line; nothing but its message may come of it."""
    with watched(secret) as seen:
        status, out, err = command(*words)
    assert seen == []
    assert (secret / "precious").read_text() == "precious\n"
    assert not (secret.parent / "canary").exists()
    assert "Traceback" not in err, err
    assert "internal error" not in err
    if says == ("works",):
        assert status == 0, err
        return
    assert (status, out) == (2, ""), err
    messages = [line for line in err.splitlines() if line.startswith("attentune: ")]
    assert messages
    for part in says:
        assert any(one in message for message in messages for one in part.split("|")), err
    assert all(len(message) < 1500 and message.isprintable() for message in messages)
    if folder is not None:
        assert (len(messages), str(folder) in messages[0]) == (1, True), err


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_folder(attentune, good: Path, tmp_path: Path, name: str) -> None:
    kind, poison, says = CASES[name]
    folder, secret = tmp_path / "given" / kind, tmp_path / "given" / "secret"
    shutil.copytree(good / kind, folder)
    shutil.copytree(good / ("run" if kind == "run" else "encoder"), secret)
    (secret / "precious").write_text("precious\n")
    (secret / "adapter_model.bin").write_bytes(b"\x80\x04.")
    (secret / "p.csv").write_text("id,label,prediction\na,good,good\n")
    shutil.copy(good / "stopped" / "config.yaml", secret)
    poison(folder, secret)
    asked(attentune, words_for(kind, folder, good), secret, says, folder if kind in ("encoder", "run") else None)


@pytest.mark.parametrize("name", FILES)
def test_hostile_settings(attentune, good: Path, tmp_path: Path, name: str) -> None:
    content, says = FILES[name]
    file, secret = tmp_path / "settings.yaml", tmp_path / "secret"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    secret.mkdir()
    (secret / "precious").write_text("precious\n")
    asked(attentune, trained("train", good, "--config", file, "--output_dir", tmp_path / "out"), secret, says)
    assert not (tmp_path / "out").exists()
