"""`attentune explain` and `attentune predict --explain`: every kind of output, and mistakes in one line each."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attentune.config import load_config
from attentune.explain.explanation import overlap
from attentune.explain.texts import explain_texts, predict_explained
from attentune.inference.predictor import TASKS_FILE, Predictor
from attentune.report.explanations import effect_text
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.samples import settings
from helpers.tiny_models import rows_of

Tiny = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]
TEXT = "the film was <b>great</b>, so unwatchable"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explain")


@pytest.fixture(scope="module")
def run(tiny: Tiny, folder: Path) -> Path:
    overrides = settings(folder, tiny("bert"), preset="ssa-hybrid", training__num_train_epochs=1)
    train(load_config(overrides=overrides), display=ProgressDisplay(quiet=True))
    return folder / "run"


@pytest.fixture(scope="module")
def plain_run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without token gate, on pairs."""
    own = tmp_path_factory.mktemp("plain")
    for name in ("train", "validation"):
        lines = [
            f"{n},a cat sat,{'an animal sat' if n % 2 else 'it rained'},{'yes' if n % 2 else 'no'}" for n in range(8)
        ]
        (own / f"{name}.csv").write_text("id,text,second,label\n" + "\n".join(lines) + "\n")
    changes = {"data__text_pair_column": "second", "data__text_column": "text", "data__label_column": "label"}
    train(
        load_config(overrides=settings(own, tiny("bert"), training__max_steps=1, **changes)),
        display=ProgressDisplay(quiet=True),
    )
    return own / "run"


def parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def same(line: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two lines are equal but for the time that they took."""
    return {**line, "seconds": 0} == {**other, "seconds": 0}


def test_json_lines_are_those_of_python(run: Path, attentune: Command) -> None:
    methods = ("ssa", "leave-one-out", "shap")
    flags = ("--method", ",".join(methods), "--format", "json", "--samples", 16, "--seed", 5, "--level", "token")
    status, out, _ = attentune("explain", run, "--text", TEXT, *flags, "--target", "good")
    assert status == 0
    lines = parsed(out)
    assert [line["method"] for line in lines] == list(methods)
    for line in lines:
        (expected,) = explain_texts(
            run, [TEXT], method=line["method"], samples=16, seed=5, level="token", target="good"
        )
        assert same(line, expected.to_dict())
        assert line["label"] == "good"
    whole = sum(sum(overlap(piece, word) for piece in expected.pieces) > 1 for word in expected.words)
    assert [line["passes"] for line in lines] == [1, 1 + len(expected.pieces) + whole, 17]


def test_methods_stand_side_by_side_in_a_table(run: Path, attentune: Command) -> None:
    status, out, _ = attentune(
        "explain", run, "--text", TEXT, "--method", "ssa, gradient,leave-one-out", "--precision", "fp32"
    )
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == f"text: {TEXT}"
    assert lines[1].startswith("prediction: ")
    (expected,) = explain_texts(run, [TEXT], method="leave-one-out", precision="fp32")
    without = f"p({expected.label}) without it".split()
    assert lines[3].split() == ["word", "ssa", "gradient", "leave-one-out", *without]
    rows = [line.split() for line in lines[5:-5] if line.strip()]
    assert lines[-5].startswith("ssa: importance that the token head predicts")
    assert lines[-3] == f"leave-one-out: {expected.unit}"
    assert lines[-2] == f"leave-one-out: {effect_text(expected)}"
    *words, passes, seconds = rows
    for token, after, (word, _, _, score, share) in zip(expected.words, expected.without, words, strict=True):
        assert (word, float(score)) == (token.text, pytest.approx(token.score, rel=1e-2, abs=1e-4))
        assert float(share) == pytest.approx(after, abs=1e-3)
    assert passes == ["passes", "1", "2", str(expected.passes)]
    assert seconds[0] == "seconds"


def test_a_file_of_texts_becomes_a_page(run: Path, tmp_path: Path, attentune: Command) -> None:
    file = tmp_path / "new.csv"
    file.write_text('story,other\n"a dull, awful film",x\n"<script>alert(1)</script>",y\n')
    page = tmp_path / "why.html"
    flags = ("--input_file", file, "--text_column", "story", "--method", "ssa,gradient", "--output_file", page)
    status, out, err = attentune("explain", run, *flags)
    assert (status, out) == (0, "")
    assert f"2 texts written to {page}" in err
    text = page.read_text()
    assert text.count("<article>") == 4
    assert "<script" not in text
    assert "&lt;" in text


@pytest.mark.parametrize("name", ["why.jsonl", "why.txt"])
def test_other_files_are_written_by_their_endings(run: Path, tmp_path: Path, attentune: Command, name: str) -> None:
    status, out, err = attentune("explain", run, "--text", TEXT, "--output_file", tmp_path / name)
    assert (status, out) == (0, "")
    assert f"1 text written to {tmp_path / name}" in err
    content = (tmp_path / name).read_bytes()
    if name == "why.jsonl":
        assert parsed(content.decode())[0]["text"] == TEXT
    else:
        assert content.decode().startswith(f"text: {TEXT}\n")


def test_words_by_class_are_tables_or_lines(run: Path, folder: Path, attentune: Command) -> None:
    words = ("explain", run, "--input_file", folder / "validation.csv", "--by_class")
    status, out, _ = attentune(*words)
    assert status == 0
    assert out.startswith("words for bad")
    assert "leave-one-out, 20 rows; bootstrap intervals over rows; ranked by lower bound times rows.\n" in out
    status, out, _ = attentune(*words, "--format", "json")
    for line in parsed(out):
        assert line["rows"] >= 3
        assert 0 < line["low"] <= line["score"] <= line["high"]


def test_heads_are_shown_as_table_lines_and_figure(run: Path, tmp_path: Path, attentune: Command) -> None:
    status, out, _ = attentune("explain", run, "--text", "a dull film", "--layer", 2, "--heads", "4,1")
    assert status == 0
    assert "layer 2" in out
    assert out.splitlines()[3].split() == ["word", "head", "4", "head", "1", "ssa"]
    status, out, _ = attentune(
        "explain", run, "--text", "a dull film", "--layer", "last", "--heads", "all", "--format", "json"
    )
    (line,) = parsed(out)
    assert (line["layer"], line["heads"], len(line["tokens"])) == (3, [1, 2, 3, 4], 3)
    assert [len(token["attention"]) for token in line["tokens"]] == [4, 4, 4]
    status, out, _ = attentune(
        "explain", run, "--text", "a dull film", "--layer", 1, "--output_file", tmp_path / "heads.png"
    )
    assert (status, out) == (0, "")
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


def test_pairs_are_explained_without_a_token_gate(plain_run: Path, attentune: Command) -> None:
    flags = ("--text", "A cat sat.", "--text-pair", "It rained.", "--method", "gradient", "--format", "json")
    status, out, _ = attentune("explain", plain_run, *flags)
    assert status == 0
    (line,) = parsed(out)
    assert [(token["text"], token["in"]) for token in line["tokens"]] == [
        *((word, "text") for word in ("A", "cat", "sat", ".")),
        *((word, "pair") for word in ("It", "rained", ".")),
    ]
    status, out, _ = attentune("explain", plain_run, *flags[:-2])
    assert out.startswith("text: A cat sat.\npair: It rained.\nprediction: ")


def test_a_run_without_token_gate_is_told_what_works(plain_run: Path, attentune: Command) -> None:
    expected = {
        ("explain", "--method", "ssa"): "Methods that work on it: gradient, integrated-gradients, leave-one-out",
        (
            "predict",
            "--explain",
        ): f"Fit a head to it once: attentune explain {plain_run} --fit; or use attentune explain",
    }
    for words, message in expected.items():
        status, out, err = attentune(words[0], plain_run, "--text", "a", "--text_pair", "b", *words[1:])
        assert (status, out) == (2, "")
        assert message in err


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_in_the_folder_of_several_tasks_the_task_names_the_run(
    run: Path, tmp_path: Path, attentune: Command, command: str
) -> None:
    shutil.copytree(run, tmp_path / "many" / "cola")
    config = tmp_path / "many" / "cola" / "config.json"
    config.write_text(config.read_text().replace('"bad"', '"unacceptable"').replace('"good"', '"acceptable"'))
    (tmp_path / "many" / TASKS_FILE).write_text("{}")
    rows = tmp_path / "CoLA"
    rows.mkdir()
    (rows / "test.tsv").write_text("index\tsentence\n0\tthe film was great\n1\tso dull\n")
    status, out, err = attentune(command, tmp_path / "many", "--task", "cola", "--data_dir", tmp_path)
    assert status == 0, err
    assert "acceptable" in out
    status, _, err = attentune(command, tmp_path / "many", "--text", "so dull")
    assert status == 2
    assert "holds a run for each of cola; got no task" in err


# predict --explain


def test_predictions_are_the_same_with_a_column_more(run: Path, folder: Path, attentune: Command) -> None:
    flags = ("predict", run, "--input_file", folder / "validation.csv")
    _, without, _ = attentune(*flags)
    status, out, _ = attentune(*flags, "--explain")
    assert status == 0
    plain, rows = (list(csv.DictReader(io.StringIO(text))) for text in (without, out))
    assert len(plain) == 20
    assert [{name: own for name, own in row.items() if name != "explanation"} for row in rows] == plain
    texts = [row["text"] for row in csv.DictReader((folder / "validation.csv").open())]
    for text, row, expected in zip(texts, rows, explain_texts(run, texts, method="ssa"), strict=True):
        tokens = json.loads(row["explanation"])["tokens"]
        assert (
            [text[token["start"] : token["end"]] for token in tokens]
            == [token["text"] for token in tokens]
            == text.split()
        )
        # Other rows share the batch, and bf16 rounds.
        assert [token["score"] for token in tokens] == pytest.approx(
            [token.score for token in expected.tokens], abs=0.02
        )


def test_the_column_costs_no_pass(run: Path) -> None:
    saved = Predictor.load(run)
    batches = []
    saved.model.register_forward_pre_hook(
        lambda module, inputs, options: batches.append(len(options["input_ids"])), with_kwargs=True
    )
    predict_explained(saved, rows_of(["a film", "", "so dull"] * 5))
    assert sum(batches) == 15


@pytest.mark.integration
def test_pairs_and_no_rows_have_a_column_too(tiny: Tiny, tmp_path: Path) -> None:
    from helpers.tiny_runs import rows_for, tiny_run

    pairs = rows_for("pair")
    _, column = predict_explained(tiny_run(tiny(), "pair"), pairs)
    assert {token["in"] for token in json.loads(column[0])["tokens"]} == {"text", "pair"}
    logits, column = predict_explained(tiny_run(tiny()), rows_of([]))
    assert (len(logits), column) == (0, [])
