"""`attentune explain`, with a fitted head too, and `predict --explain`: every kind of output, and mistakes."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from attentune.config import load_config
from attentune.explain.explanation import overlap
from attentune.explain.texts import explain_texts, predict_explained
from attentune.inference.predictor import Predictor
from attentune.report.explanations import effect_text
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.samples import settings
from helpers.tiny_models import rows_of

TEXT = "the film was <b>great</b>, so unwatchable"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("explain")


@pytest.fixture(scope="module")
def run(tiny, folder):
    overrides = settings(folder, tiny("bert"), preset="ssa-hybrid", training__num_train_epochs=1)
    train(load_config(overrides=overrides), display=ProgressDisplay(quiet=True))
    return folder / "run"


@pytest.fixture(scope="module")
def plain_run(tiny, tmp_path_factory):
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


def test_json_lines_are_those_of_python(run, attentune):
    methods = ("ssa", "leave-one-out", "shap")
    flags = ("--method", ",".join(methods), "--format", "json", "--samples", 16, "--seed", 5, "--level", "token")
    out, _ = attentune.done("explain", run, "--text", TEXT, *flags, "--target", "good")
    lines = parsed(out)
    assert [line["method"] for line in lines] == list(methods)
    for line in lines:
        (expected,) = explain_texts(
            run, [TEXT], method=line["method"], samples=16, seed=5, level="token", target="good"
        )
        assert {**line, "seconds": 0} == {**expected.to_dict(), "seconds": 0}
        assert line["label"] == "good"
    whole = sum(sum(overlap(piece, word) for piece in expected.pieces) > 1 for word in expected.words)
    assert [line["passes"] for line in lines] == [1, 1 + len(expected.pieces) + whole, 17]


def test_every_text_that_is_given_is_read(plain_run, attentune):
    given = [("a cat sat", "it rained"), ("a dog ran", "it snowed")]
    words = [word for text, pair in given for word in ("--text", text, "--text_pair", pair)]
    out, _ = attentune.done("explain", plain_run, *words, "--method", "gradient", "--format", "json")
    assert [(line["text"], line["pair"]) for line in parsed(out)] == given
    out, _ = attentune.done("predict", plain_run, *words, "--format", "json")
    assert [line["id"] for line in parsed(out)] == ["0", "1"]
    one, _ = attentune.done("predict", plain_run, *words[4:], "--format", "json")
    assert parsed(out)[1]["p_yes"] == pytest.approx(parsed(one)[0]["p_yes"], abs=1e-5)


def test_methods_stand_side_by_side_in_a_table(run, attentune):
    out, _ = attentune.done(
        "explain", run, "--text", TEXT, "--method", "ssa, gradient,leave-one-out", "--precision", "fp32"
    )
    lines = out.splitlines()
    assert lines[0] == f"text: {TEXT}"
    assert lines[1].startswith("prediction: ")
    (expected,) = explain_texts(run, [TEXT], method="leave-one-out", precision="fp32")
    without = f"p({expected.label}) without it".split()
    assert lines[3].split() == ["word", "ssa", "gradient", "leave-one-out", *without]
    first = next(place for place, line in enumerate(lines) if line.startswith("ssa: importance that the token head"))
    assert lines[first + 2] == f"leave-one-out: {expected.unit}"
    assert f"leave-one-out: {effect_text(expected)}" in lines[first + 3 :]
    *words, passes, seconds = [line.split() for line in lines[5:first] if line.strip()]
    for token, after, (word, _, _, score, share) in zip(expected.words, expected.without, words, strict=True):
        assert (word, float(score)) == (token.text, pytest.approx(token.score, rel=1e-2, abs=1e-4))
        assert float(share) == pytest.approx(after, abs=1e-3)
    assert passes == ["passes", "1", "2", str(expected.passes)]
    assert seconds[0] == "seconds"


def test_a_file_of_texts_becomes_a_page(run, tmp_path, attentune):
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
def test_other_files_are_written_by_their_endings(run, tmp_path, attentune, name):
    status, out, err = attentune("explain", run, "--text", TEXT, "--output_file", tmp_path / name)
    assert (status, out) == (0, "")
    assert f"1 text written to {tmp_path / name}" in err
    content = (tmp_path / name).read_bytes()
    if name == "why.jsonl":
        assert parsed(content.decode())[0]["text"] == TEXT
    else:
        assert content.decode().startswith(f"text: {TEXT}\n")


def test_words_by_class_are_tables_or_lines(run, folder, attentune):
    words = ("explain", run, "--input_file", folder / "validation.csv", "--by_class")
    out, _ = attentune.done(*words)
    assert out.startswith("words for bad")
    assert "leave-one-out, 20 rows; bootstrap intervals over rows; ranked by lower bound times rows.\n" in out
    out, _ = attentune.done(*words, "--format", "json")
    for line in parsed(out):
        assert line["rows"] >= 3
        assert 0 < line["low"] <= line["score"] <= line["high"]


def test_pairs_are_explained_without_a_token_gate(plain_run, attentune):
    flags = ("--text", "A cat sat.", "--text-pair", "It rained.", "--method", "gradient", "--format", "json")
    out, _ = attentune.done("explain", plain_run, *flags)
    (line,) = parsed(out)
    assert [(token["text"], token["in"]) for token in line["tokens"]] == [
        *((word, "text") for word in ("A", "cat", "sat", ".")),
        *((word, "pair") for word in ("It", "rained", ".")),
    ]
    out, _ = attentune.done("explain", plain_run, *flags[:-2])
    assert out.startswith("text: A cat sat.\npair: It rained.\nprediction: ")


def test_a_run_without_token_gate_is_told_what_works(plain_run, attentune):
    expected = {
        ("explain", "--method", "ssa"): "Methods that work on it: gradient, integrated-gradients, leave-one-out",
        (
            "predict",
            "--explain",
        ): f"Fit a head to it once: attentune explain {plain_run} --fit; or use attentune explain",
    }
    for words, message in expected.items():
        err = attentune.refused(words[0], plain_run, "--text", "a", "--text_pair", "b", *words[1:])
        assert message in err


# predict --explain


def test_predictions_are_the_same_with_a_column_more(run, folder, attentune):
    flags = ("predict", run, "--input_file", folder / "validation.csv")
    _, without, _ = attentune(*flags)
    out, _ = attentune.done(*flags, "--explain")
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


def test_the_column_costs_no_pass(run):
    saved = Predictor.load(run)
    batches = []
    saved.model.register_forward_pre_hook(
        lambda module, inputs, options: batches.append(len(options["input_ids"])), with_kwargs=True
    )
    predict_explained(saved, rows_of(["a film", "", "so dull"] * 5))
    assert sum(batches) == 15


@pytest.mark.integration
def test_pairs_and_no_rows_have_a_column_too(tiny, tmp_path):
    from helpers.tiny_runs import rows_for, tiny_run

    pairs = rows_for("pair")
    _, column = predict_explained(tiny_run(tiny(), "pair"), pairs)
    assert {token["in"] for token in json.loads(column[0])["tokens"]} == {"text", "pair"}
    logits, column = predict_explained(tiny_run(tiny()), rows_of([]))
    assert (len(logits), column) == (0, [])


# `attentune explain --fit`: from a finished run to an explanation with every prediction


FILM = "the film was great and the story never dull"


@pytest.fixture
def fitted_run(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture
def share(monkeypatch):
    """Set the share of variance that heads are found to explain, which a few rows do not decide."""
    return lambda value: monkeypatch.setattr("attentune.explain.fast_shap._explained_variance", lambda *words: value)


def test_a_fitted_run_explains_in_one_pass_and_its_predictions_stay_the_same(fitted_run, tmp_path, attentune, share):
    share(0.5)
    texts = [f"{FILM} {n}" for n in range(5)]
    (tmp_path / "new.csv").write_text("\n".join(["text", *texts]) + "\n")
    flags = ("predict", fitted_run, "--input_file", tmp_path / "new.csv", "--precision", "fp32")
    before, _ = attentune.done(*flags)
    out, err = attentune.done("explain", fitted_run, "--fit", "--copies", "2", "--format", "json")
    facts = json.loads(out)
    assert (facts["run"], facts["copies"], facts["seed"]) == (str(fitted_run), 2, 0)
    assert (facts["explained_variance"], facts["is_default"]) == (0.5, True)
    assert facts["texts"] > facts["held_out_texts"] > 0
    assert "head fitted:" in err
    (found,) = parsed(attentune.done("explain", fitted_run, "--text", FILM, "--format", "json")[0])
    assert (found["method"], found["signed"], found["passes"]) == ("fast-shap", True, 1)
    assert [token["text"] for token in found["tokens"]] == FILM.split()
    rows = list(csv.DictReader(io.StringIO(attentune.done(*flags, "--explain")[0])))
    explanations = [json.loads(row.pop("explanation")) for row in rows]
    assert rows == list(csv.DictReader(io.StringIO(before)))
    for found, expected in zip(explanations, explain_texts(fitted_run, texts, precision="fp32"), strict=True):
        scores = [token.score for token in expected.tokens]
        assert (expected.method, found["unit"]) == ("fast-shap", expected.unit)
        assert [token["score"] for token in found["tokens"]] == pytest.approx(scores, rel=1e-3, abs=1e-5)


def test_a_weak_head_explains_no_predictions(plain_run, tmp_path, attentune, share):
    share(0.1)
    run = Path(shutil.copytree(plain_run, tmp_path / "run"))
    (tmp_path / "pairs.csv").write_text("text,second\n" + "".join(f"a cat sat {n},it rained\n" for n in range(20)))
    attentune.done("explain", run, "--fit", "--input_file", tmp_path / "pairs.csv", "--copies", "2")
    err = attentune.refused("predict", run, "--text", "a cat sat", "--text_pair", "it rained", "--explain")
    assert "explains 10%" in err
    assert "--fit --input_file" in err


@pytest.mark.parametrize("value", [0.49, 0.8])
def test_a_head_that_explains_too_little_is_not_used_by_itself(fitted_run, tmp_path, attentune, share, value):
    share(value)
    lines = [f"{word} {n} film" for word in ("great", "dull", "long", "new") for n in range(5)]
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(lines) + "\n")
    out, _ = attentune.done("explain", fitted_run, "--fit", "--input_file", tmp_path / "texts.csv", "--copies", "2")
    assert f"Fitted on 14 texts; on 6 others its scores explain {value:.0%} of how" in out
    assert ("leave-one-out stays the default" in out) == (value < 0.5)
    card = (fitted_run / "README.md").read_text()
    assert card.count("## Explanations") == 1
    assert f"explain {value:.0%}" in card.split("## Explanations")[1]
    assert attentune("explain", fitted_run, "--fit", "--input_file", tmp_path / "texts.csv", "--copies", "2")[0] == 0
    assert (fitted_run / "README.md").read_text() == card  # the section is replaced

    def method_of(*flags: str) -> tuple[str, bool]:
        out, err = attentune.done("explain", fitted_run, "--text", FILM, "--format", "json", *flags)
        return json.loads(out)["method"], "so leave-one-out is the default" in err

    assert method_of() == (("fast-shap", False) if value >= 0.5 else ("leave-one-out", True))
    assert method_of("--method", "fast-shap") == ("fast-shap", False)
    out, _ = attentune.done("predict", fitted_run, "--text", FILM, "--explain")
    # Without the head, this run's token gate scores the words.
    assert ("token head" in out) == (value < 0.5)
