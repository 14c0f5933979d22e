"""A run's or encoder's folder is data: whatever is in it, nothing is run, and one message says what is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.hostile_folders import MODEL, RUN, watched
from helpers.samples import ground

pytestmark = pytest.mark.integration

Run = Callable[..., tuple[int, str, str]]
CASES = {
    **{f"encoder: {name}": ("encoder", *case) for name, case in MODEL.items()},
    **{f"run: {name}": ("run", *case) for name, case in {**MODEL, **RUN}.items()},
}


@pytest.fixture(scope="module")
def good(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a good run, a good encoder and data."""
    from attentune.cli.main import main

    folder = ground(tmp_path_factory.mktemp("good"), tiny("bert"))
    words = (
        f"train --train_file {folder}/train.csv --validation_file {folder}/dev.csv --use_cpu --quiet --max_length 32"
    )
    words += (
        f" --model_name_or_path {folder}/encoder --output_dir {folder}/run --num_train_epochs 1 --preset ssa-hybrid"
    )
    assert main(words.split()) == 0
    return folder


def commands(kind: str, folder: Path, good: Path) -> list[str]:
    if kind == "run":
        return ["predict", str(folder), "--text", "so fine"]
    data = ["--train_file", str(good / "train.csv"), "--validation_file", str(good / "dev.csv"), "--max_length", "32"]
    output = ["--output_dir", str(folder.parent / "out"), "--max_steps", "1", "--use_cpu"]
    return ["train", *data, *output, "--model_name_or_path", str(folder)]


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_run_and_one_message_says_why(attentune: Run, good: Path, tmp_path: Path, name: str) -> None:
    kind, poison, says = CASES[name]
    folder, secret = tmp_path / kind, tmp_path / "secret"
    shutil.copytree(good / kind, folder)
    shutil.copytree(good / kind, secret)
    (secret / "adapter_model.bin").write_bytes(b"\x80\x04.")
    poison(folder, secret)
    with watched(secret) as seen:
        status, out, err = attentune(*commands(kind, folder, good))
    assert seen == []
    assert not (tmp_path / "canary").exists()
    check_answer(status, out, err, folder, says)


def check_answer(status: int, out: str, err: str, folder: Path, says: tuple[str, ...]) -> None:
    assert "Traceback" not in err
    assert "internal error" not in err
    if says == ("works",):
        assert status == 0, err
        return
    assert (status, out) == (2, ""), err
    messages = [line for line in err.splitlines() if line.startswith("attentune: ")]
    assert len(messages) == 1, err
    assert str(folder) in messages[0]
    for part in says:
        assert any(one in messages[0] for one in part.split("|")), messages[0]
    assert len(messages[0]) < 1500
    assert messages[0].isprintable()
