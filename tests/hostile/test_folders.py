"""Checkpoints, comparisons, searches, records and settings from elsewhere: one message, nothing run, nothing written
outside."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from attentune.runs.records import Run
from attentune.training.checkpoint import checkpoint_folders
from helpers.hostile_folders import CHECKPOINTS, COMPARISONS, FILES, RECORDS, SEARCHES, Poison, both, watched
from helpers.made_records import predictions, write_record
from helpers.samples import ground

pytestmark = pytest.mark.integration

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def good(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stopped run, a comparison, a search, records, an encoder and data."""
    from attentune.cli.main import main

    folder = ground(tmp_path_factory.mktemp("good"), tiny("bert"))
    assert main(trained("train", folder, "--preset", "ssa-hybrid", "--output_dir", f"{folder}/stopped", "--quiet")) == 0
    for path in (folder / "stopped").iterdir():
        if path.is_file() and path.name not in ("config.yaml", "log.jsonl"):
            path.unlink()
    oldest, newest = checkpoint_folders(folder / "stopped")
    shutil.rmtree(oldest)
    assert "starts" in load_file(newest / "labels.safetensors")
    assert main(trained("compare", folder, *COMPARE, "--output_dir", f"{folder}/comparison")) == 0
    for seed in (1, 2):
        rows = predictions(["bad", "good"] * 5, ["bad", "good"] * 4 + ["good", "bad"], ("bad", "good"))
        write_record(folder / "records", Run("own", None, "bert", seed), rows, score=0.8)
    assert main(trained("search", folder, *SEARCH, "--output_dir", f"{folder}/search")) == 0
    for name in ("records", "trials.journal", "trials.json", "config.yaml"):
        path = folder / "search" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder


SEARCH = ("--search", "training.learning_rate=1e-3,2e-3", "--jobs", "1", "--max_steps", "1")
COMPARE = ("--presets", "bert", "--seeds", "1", "--jobs", "1", "--max_steps", "1")


def trained(verb: str, good: Path, *more: str) -> list[str]:
    data = ["--train_file", f"{good}/train.csv", "--validation_file", f"{good}/dev.csv", "--max_length", "32"]
    model = ["--model_name_or_path", f"{good}/encoder", "--use_cpu", "--num_train_epochs", "2"]
    return [verb, *data, *model, "--per_device_train_batch_size", "8", *more]


def check(answer: tuple[int, str, str], says: tuple[str, ...]) -> None:
    status, out, err = answer
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
    assert all(len(message) < 1500 for message in messages)
    assert all(message.isprintable() for message in messages)


def poisoned(good: Path, place: Path, kind: str, poison: Poison) -> tuple[Path, Path]:
    folder, secret = place / "given" / kind, place / "given" / "secret"
    shutil.copytree(good / kind, folder)
    shutil.copytree(good / "encoder", secret)
    (secret / "precious").write_text("precious\n")
    (secret / "p.csv").write_text("id,label,prediction\na,good,good\n")
    shutil.copy(good / "stopped/config.yaml", secret)
    poison(folder, secret)
    return folder, secret


def asked(command: Command, words: list[str], secret: Path, says: tuple[str, ...]) -> None:
    with watched(secret) as seen:
        answer = command(*words)
    assert seen == []
    check(answer, says)
    assert (secret / "precious").read_text() == "precious\n"
    assert not (secret.parent / "canary").exists()


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_hostile_checkpoint(attentune: Command, good: Path, tmp_path: Path, name: str) -> None:
    poison, says = CHECKPOINTS[name]
    folder, secret = poisoned(good, tmp_path, "stopped", poison)
    asked(attentune, ["train", "--resume", "--output_dir", str(folder), "--quiet"], secret, says)


@pytest.mark.parametrize("name", RECORDS)
def test_hostile_records(attentune: Command, good: Path, tmp_path: Path, name: str) -> None:
    poison, says = RECORDS[name]
    folder, secret = poisoned(good, tmp_path, "records", poison)
    asked(attentune, ["report", str(folder), "--output_file", str(tmp_path / "report.html")], secret, says)


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_hostile_comparison(attentune: Command, good: Path, tmp_path: Path, name: str) -> None:
    poison, says = COMPARISONS[name]
    folder, secret = poisoned(good, tmp_path, "comparison", both(without_records, poison))
    asked(attentune, trained("compare", good, *COMPARE, "--output_dir", str(folder)), secret, says)


def without_records(folder: Path, secret: Path) -> None:
    shutil.rmtree(folder / "records")


@pytest.mark.parametrize("name", SEARCHES)
def test_a_hostile_search(attentune: Command, good: Path, tmp_path: Path, name: str) -> None:
    poison, says = SEARCHES[name]
    folder, secret = poisoned(good, tmp_path, "search", poison)
    asked(attentune, trained("search", good, *SEARCH, "--output_dir", str(folder)), secret, says)


@pytest.mark.parametrize("name", FILES)
def test_hostile_settings(attentune: Command, good: Path, tmp_path: Path, name: str) -> None:
    flag, content, says = FILES[name]
    file = tmp_path / "settings.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/precious").write_text("precious\n")
    words = trained("train", good, flag, str(file), "--output_dir", str(tmp_path / "out"))
    asked(attentune, words, tmp_path / "secret", says)
    assert not (tmp_path / "out").exists()
