"""`attentune label`: rows with their tokens, training labels and learnt importance, as JSON lines."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attentune.errors import CheckpointError, ConfigError
from attentune.inference.predictor import Predictor
from attentune.token_labels.plan import LABELS_FILE, load_labels, save_labels
from attentune_lab.commands.label import list_tokens
from helpers.interrupted import run as trained
from helpers.tiny_models import FIRST, rows_of

Tiny = Callable[..., Path]


def listed(run: Path, *rows: Any, **options: Any) -> list[dict[str, Any]]:
    return list(list_tokens(Predictor.load(run), *rows, **options))


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of ssa-hybrid with gradient labels, which every second epoch has."""
    folder = tmp_path_factory.mktemp("ssa")
    trained(folder, tiny("bert"), preset="ssa-hybrid", labels__generator="gradient")
    return folder / "run"


def test_training_rows_come_with_the_labels_that_the_last_epoch_had(run: Path) -> None:
    lines = listed(run)
    tensors, _ = load_labels(run / LABELS_FILE)
    labels = [label for line in lines for label in (token["label"] for token in line["tokens"])]
    for value in (0, 1):
        assert sum(label == value for label in labels) == int((tensors["values"] == value).sum()) > 0
    assert len(lines) == 48
    first = lines[0]
    own = tensors["values"][tensors["starts"][0] : tensors["starts"][1]][1:-1]  # without [CLS] and [SEP]
    assert [token["label"] for token in first["tokens"]] == [None if value < 0 else value for value in own]
    assert first["gold"] in ("bad", "good")
    assert first["predicted"] in ("bad", "good")


def test_scores_are_those_of_the_model(run: Path) -> None:
    saved, rows = Predictor.load(run), rows_of([FIRST])
    (line,) = list_tokens(saved, rows, precision="fp32")
    assert line["id"] == rows.ids[0]
    inputs = saved.tokenizer([FIRST], return_tensors="pt")
    with torch.no_grad():
        scores = saved.model(**inputs).token_scores[0, 1:-1]
    np.testing.assert_allclose([token["score"] for token in line["tokens"]], scores, atol=2e-6)
    assert {token["label"] for token in line["tokens"]} == {None}
    assert "gold" not in line
    assert all(FIRST[token["start"] : token["end"]] == token["text"] for token in line["tokens"])


def test_long_rows_are_listed_as_far_as_the_model_reads(run: Path) -> None:
    lines = listed(run, rows_of([" ".join(["film"] * 99), "a film"] * 2))
    assert [len(line["tokens"]) for line in lines] == [30, 2] * 2  # 32 with [CLS] and [SEP]


def test_a_checkpoint_shows_the_labels_in_force_there(run: Path) -> None:
    checkpoints = sorted(run.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    first, last = (listed(path) for path in (checkpoints[0], checkpoints[-1]))
    assert all(token["label"] is None for line in first for token in line["tokens"])
    assert any(token["label"] is not None for line in last for token in line["tokens"])


def test_pairs_and_scores_are_listed_as_they_are(tiny: Tiny, tmp_path: Path) -> None:
    pairs = [("a dull film", "we saw a film", 1 / 3), ("the music", "the music was fine", 5.0), ("so", "and so", 2.5)]
    lines = ["sentence1,sentence2,label", *(f"{first},{second},{score}" for first, second, score in pairs)]
    (tmp_path / "scores.csv").write_text("\n".join(lines) + "\n")
    data = {f"data__{split}_file": str(tmp_path / "scores.csv") for split in ("train", "validation")}
    method = {"preset": "ssa-hybrid", "labels__generator": "gradient", "data__task_type": "regression"}
    trained(tmp_path, tiny("bert"), **method, **data)
    lines = listed(tmp_path / "run")
    shown = [(first, second, round(score, 6)) for first, second, score in pairs]
    assert [(line["text"], line["pair"], line["gold"]) for line in lines] == shown
    for line in lines:
        assert line["predicted"] == round(line["predicted"], 6)
        assert {token["in"] for token in line["tokens"]} == {"text", "pair"}
        for token in line["tokens"]:
            assert token["text"] == line[token["in"]][token["start"] : token["end"]]
            assert token["score"] == round(token["score"], 6)


def test_training_rows_of_a_run_without_labels_have_their_scores(run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(run, tmp_path / "run")
    with_labels = listed(copied, max_samples=2)
    (copied / LABELS_FILE).unlink()
    for line, before in zip(listed(copied, max_samples=2), with_labels, strict=True):
        assert [token["label"] for token in line["tokens"]] == [None] * len(line["tokens"])
        assert line == before | {"tokens": [token | {"label": None} for token in before["tokens"]]}


def test_labels_that_are_not_of_an_epoch_show_none(run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(run, tmp_path / "run")
    tensors, fingerprint = load_labels(copied / LABELS_FILE)
    kept = {name: values for name, values in tensors.items() if name not in ("rows", "values", "starts")}
    save_labels(copied / LABELS_FILE, kept or {"other": np.zeros(1)}, train_fingerprint=fingerprint)
    assert {token["label"] for line in listed(copied, max_samples=5) for token in line["tokens"]} == {None}


def test_labels_of_other_rows_and_damaged_ones_are_refused(run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(run, tmp_path / "run")
    tensors, _ = load_labels(copied / LABELS_FILE)
    save_labels(copied / LABELS_FILE, tensors, train_fingerprint="of other rows")
    with pytest.raises(CheckpointError, match=r"are not those that it was trained on.* Put them back"):
        listed(copied)
    (copied / LABELS_FILE).write_bytes(b"{")
    with pytest.raises(CheckpointError, match=r"labels\.safetensors: cannot be read"):
        listed(copied)


def test_a_run_without_token_head_has_nothing_to_show(tiny: Tiny, tmp_path: Path) -> None:
    trained(tmp_path, tiny("bert"), training__max_steps=1)
    with pytest.raises(ConfigError, match="run: has neither token labels nor a token head.* a preset such as ssa-co"):
        listed(tmp_path / "run")


def parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_command_writes_json_lines(run: Path, tmp_path: Path, attentune) -> None:
    status, out, _ = attentune("label", run, "--max_samples", 3)
    assert status == 0
    assert parsed(out) == listed(run, max_samples=3)
    target = tmp_path / "labels.jsonl"
    status, out, err = attentune("label", run, "--split", "validation", "--output_file", target)
    assert (status, out) == (0, "")
    assert "20 rows written" in err
    assert len(parsed(target.read_text())) == 20


def test_the_command_reads_other_texts(run: Path, tmp_path: Path, attentune) -> None:
    file = tmp_path / "new.csv"
    file.write_text("text\na dull film\n")
    status, out, _ = attentune("label", run, "--input_file", file)
    assert status == 0
    assert next(token["text"] for token in parsed(out)[0]["tokens"]) == "a"
