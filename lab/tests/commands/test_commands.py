"""`attentune label`, `layers` and `faithfulness`: tables, JSON lines, figures and files."""

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
from attentune.nn.layer_mix import LAYER_MIXES, LayerMix
from attentune.token_labels.plan import LABELS_FILE, load_labels, save_labels
from attentune_lab.commands.label import list_tokens
from attentune_lab.commands.layers import reached_layers
from attentune_lab.synthetic import write_files
from helpers.interrupted import run as trained
from helpers.tiny_models import FIRST, rows_of

Tiny = Callable[..., Path]


def listed(run: Path, *rows: Any, **options: Any) -> list[dict[str, Any]]:
    return list(list_tokens(Predictor.load(run), *rows, **options))


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of ssa-hybrid with labels of `flip`, which every epoch but the first has."""
    folder = tmp_path_factory.mktemp("ssa")
    trained(folder, tiny("bert"), preset="ssa-hybrid")
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


def test_long_rows_are_listed_as_read_and_a_checkpoint_has_the_labels_in_force_there(run: Path) -> None:
    lines = listed(run, rows_of([" ".join(["film"] * 99), "a film"] * 2))
    assert [len(line["tokens"]) for line in lines] == [30, 2] * 2  # 32 with [CLS] and [SEP]
    # A checkpoint shows the labels in force there.
    checkpoints = sorted(run.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    first, last = (listed(path) for path in (checkpoints[0], checkpoints[-1]))
    assert all(token["label"] is None for line in first for token in line["tokens"])
    assert any(token["label"] is not None for line in last for token in line["tokens"])


def test_pairs_and_scores_are_listed_as_they_are(tiny: Tiny, tmp_path: Path) -> None:
    pairs = [("a dull film", "we saw a film", 1 / 3), ("the music", "the music was fine", 5.0), ("so", "and so", 2.5)]
    lines = ["sentence1,sentence2,label", *(f"{first},{second},{score}" for first, second, score in pairs)]
    (tmp_path / "scores.csv").write_text("\n".join(lines) + "\n")
    data = {f"data__{split}_file": str(tmp_path / "scores.csv") for split in ("train", "validation")}
    method = {"preset": "ssa-hybrid", "data__task_type": "regression"}
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


def test_rows_without_labels_of_an_epoch_show_none(run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(run, tmp_path / "run")
    with_labels = listed(copied, max_samples=2)
    (copied / LABELS_FILE).unlink()
    for line, before in zip(listed(copied, max_samples=2), with_labels, strict=True):
        assert [token["label"] for token in line["tokens"]] == [None] * len(line["tokens"])
        assert line == before | {"tokens": [token | {"label": None} for token in before["tokens"]]}
    # Labels that are not of an epoch show none.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-2"
    tmp_path.mkdir()
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


def test_the_command_writes_json_lines_of_rows_or_other_texts(run: Path, tmp_path: Path, attentune) -> None:
    out, _ = attentune.done("label", run, "--max_samples", 3)
    assert parsed(out) == listed(run, max_samples=3)
    target = tmp_path / "labels.jsonl"
    status, out, err = attentune("label", run, "--split", "validation", "--output_file", target)
    assert (status, out) == (0, "")
    assert "20 rows written" in err
    assert len(parsed(target.read_text())) == 20
    # The command reads other texts.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-2"
    tmp_path.mkdir()
    file = tmp_path / "new.csv"
    file.write_text("text\na dull film\n")
    out, _ = attentune.done("label", run, "--input_file", file)
    assert next(token["text"] for token in parsed(out)[0]["tokens"]) == "a"


# `attentune layers`: the layers' weights as a table, JSON and a figure.


@pytest.fixture(scope="module")
def weighted_run(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    trained(folder, tiny("bert"), preset="sesame-weighted")
    return folder / "run"


def test_the_weights_are_those_of_the_model_text_by_text(weighted_run: Path, attentune) -> None:
    out, _ = attentune.done("layers", weighted_run, "--format", "json", "--precision", "fp32")
    lines = json.loads(out)["validation"]
    saved = Predictor.load(weighted_run)
    texts = saved.data(None, ("validation",)).splits["validation"].texts
    with torch.no_grad():
        rows = [saved.model(**saved.tokenizer([text], return_tensors="pt")).layer_weights[0] for text in texts]
    weights_NL = torch.stack(rows)
    assert [line["layer"] for line in lines] == [1, 2, 3]
    assert [line["mean"] for line in lines] == pytest.approx(weights_NL.mean(dim=0).tolist(), abs=1e-5)
    assert [line["std"] for line in lines] == pytest.approx(weights_NL.std(dim=0, correction=0).tolist(), abs=1e-5)
    medians = weights_NL.quantile(0.5, dim=0).tolist()
    assert [line["quartiles"][1] for line in lines] == pytest.approx(medians, abs=1e-5)


def test_a_table_and_a_figure(weighted_run: Path, tmp_path: Path, attentune) -> None:
    out, err = attentune.done("layers", weighted_run, "--figure_file", tmp_path / "layers.png", "--split", "train")
    assert out.count("train") == 3
    assert "drawn into" in err
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("neutral", [True, False])
def test_layers_that_reach_the_output_are_known(neutral: bool) -> None:
    options = {"num_layers": 6, "hidden_size": 8, "squeeze": True, "neutral": neutral}
    reached = {kind: reached_layers(LayerMix(kind=kind, **options)) for kind in LAYER_MIXES}
    every = (1, 2, 3, 4, 5, 6)
    assert reached == {
        "last": (6,),
        "first": (1,),
        "second": (2,),
        "second-to-last": (5,),
        "sum-all": every,
        "mean-all": every,
        "sum-last-4": (3, 4, 5, 6),
        "weighted": every,
        "concat-last-4": (3, 4, 5, 6),
    }


@pytest.mark.parametrize(("kind", "shown"), [("last", None), ("second", None), ("sum-last-4", [2, 3, 4, 5])])
def test_only_layers_that_reach_the_output_are_shown(tiny, tmp_path, attentune, kind, shown):
    """The others' weights have had no gradient: with `last`, as in the preset `sesame`, all but one."""
    given = {"preset": "sesame", "model__layer_mix__kind": kind, "training__max_steps": 1}
    trained(tmp_path, tiny("bert", layers=5), **given)
    status, out, err = attentune("layers", tmp_path / "run", "--format", "json")
    if shown is None:
        assert (status, out) == (2, "")
        assert f"model.layer_mix.kind {kind}, which uses layer {5 if kind == 'last' else 2} alone" in err
        assert "sesame-weighted" in err
    else:
        assert [line["layer"] for line in json.loads(out)["validation"]] == shown


# `attentune faithfulness`: tables, JSON, files, the demo's reviews, and mistakes in one line each.


QUICK = ("--method", "ssa,gradient", "--erasures", "mask,delete", "--draws", 2, "--beam", 1, "--beam-tokens", 12)


@pytest.fixture(scope="module")
def ssa_run(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faithfulness")
    trained(folder, tiny("bert"), preset="ssa-hybrid", training__num_train_epochs=1)
    return folder / "run"


@pytest.fixture(scope="module")
def demo_run(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faithfulness-demo")
    write_files(folder, train_size=24, eval_size=8)
    changes = {"data__text_column": "text", "data__label_column": "label", "data__max_length": 150}
    trained(folder, tiny("bert"), preset="ssa-hybrid", training__max_steps=2, **changes)
    return folder / "run"


@pytest.mark.integration
def test_tables_rank_methods_with_a_sign_and_without_apart(ssa_run: Path, attentune) -> None:
    out, err = attentune.done("faithfulness", ssa_run, *QUICK)
    assert out.startswith("20 texts, accuracy ")
    for part in ("erased by mask", "erased by delete"):
        table = out.split(part)[1].split("erased by")[0]
        assert table.index("(signed)") < table.index("gradient") < table.index("(unsigned)")
        assert table.index("(unsigned)") < table.index("ssa") < table.index("(baseline)") < table.index("random")
    assert "NAOPC compr. (" in out
    assert "passes per text" in out
    assert "erasing by delete ..." in err


def test_json_and_the_folder_hold_the_same_report(ssa_run: Path, attentune, tmp_path: Path) -> None:
    words = ("--max-samples", 6, "--seed", 3, "--format", "json", "--output-dir", tmp_path / "out")
    out, err = attentune.done("faithfulness", ssa_run, *QUICK, *words)
    report = json.loads(out)
    assert report["rows"] == 6
    assert report["seed"] == 3
    saved = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {name: saved[name] for name in report} == report
    assert "versions" in saved
    assert f"report and records written to {tmp_path / 'out'}" in err
    files = sorted(path.name for path in (tmp_path / "out" / "eraser").iterdir())
    methods = [f"{name}.{erasure}.jsonl" for name in ("gradient", "random", "ssa") for erasure in ("delete", "mask")]
    assert files == sorted(["docs.jsonl", "test.jsonl", *methods])


def test_sanity_checks_come_beside(ssa_run: Path, attentune) -> None:
    words = ("--method", "ssa", "--erasures", "mask", "--beam", 0, "--max-samples", 3, "--sanity")
    out, _ = attentune.done("faithfulness", ssa_run, *words)
    assert "repeatability (Kendall's tau), 3 texts" in out
    assert "shuffled to" in out
    assert "NAOPC compr." not in out


@pytest.mark.integration
def test_the_demo_s_reviews_and_the_words_that_decide(demo_run: Path, attentune, tmp_path: Path) -> None:
    words = ("--demo", "--max-samples", 16, "--method", "gradient", "--erasures", "mask", "--beam", 0)
    out, _ = attentune.done("faithfulness", demo_run, *words, "--output-dir", tmp_path / "out")
    assert "ground-truth words, in correctly predicted texts" in out
    assert "top-1 hit" in out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {own["method"] for own in report["planted"]} == {"gradient", "random"}
    annotations = (tmp_path / "out" / "eraser" / "test.jsonl").read_text().splitlines()
    assert all(json.loads(line)["evidences"] for line in annotations)
