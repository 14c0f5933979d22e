"""Words that a run leaves out of its texts: the function, against a plain loop; and runs, from training to serving."""

import json
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from starlette.testclient import TestClient

from attentune.config import load_config
from attentune.config.load import to_yaml
from attentune.data.dataset import TaskData
from attentune.data.ignored_words import data_without_words, shortened, without_words
from attentune.errors import ConfigError
from attentune.explain.texts import explain_texts, predict_explained
from attentune.inference.predictor import Predictor, predict, predict_rows
from attentune.integrations.hf_trainer import new_model
from attentune.integrations.onnx import export_run
from attentune.integrations.transformers import export_for_transformers
from attentune.serving.api import api_app
from attentune.serving.backend import RunBackend
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.samples import make_rows, settings
from helpers.tiny_models import rows_of

Tiny = Callable[..., Path]
QUIET = ProgressDisplay(quiet=True)


def kind(sign: str) -> str:
    """Whether a character is white space, part of a word, or a unit by itself, by Unicode's own tables."""
    if sign.isspace():
        return "space"
    if any(name in unicodedata.name(sign, "") for name in ("CJK UNIFIED", "HIRAGANA", "KATAKANA", "THAI")):
        return "alone"
    is_mark = unicodedata.category(sign) in ("Mn", "Mc") and not "\ufe00" <= sign <= "\ufe0f"
    return "word" if sign.isalnum() or sign == "_" or is_mark else "alone"


def ends_at(text: str, start: int, phrase: str) -> int | None:
    """Where a phrase that begins at `start` ends; None if there is none. White space stands for any of it."""
    place, number = start, 0
    while number < len(phrase):
        if phrase[number].isspace():
            if place == len(text) or not text[place].isspace():
                return None
            while place < len(text) and text[place].isspace():
                place += 1
            while phrase[number].isspace():
                number += 1
        elif place == len(text) or text[place].casefold() != phrase[number].casefold():
            return None
        else:
            place, number = place + 1, number + 1
    joined = [(text[start - 1 : start], text[start]), (text[place - 1], text[place : place + 1])]
    is_within = any(one and two and kind(one) == kind(two) == "word" for one, two in joined)
    return None if is_within else place


def number_of_units(phrase: str) -> int:
    return sum(
        kind(sign) == "alone" or (kind(sign) == "word" and (place == 0 or kind(phrase[place - 1]) != "word"))
        for place, sign in enumerate(phrase)
    )


def without_by_loop(text: str, phrases: Sequence[str]) -> str:
    """The reference: character by character, again until nothing is found."""
    while True:
        gone = [False] * len(text)
        start = 0
        while start < len(text):
            ends = [(number_of_units(one), end) for one in phrases if (end := ends_at(text, start, one)) is not None]
            if text[start].isspace() or not ends:
                start += 1
            else:
                end = max(ends)[1]
                gone[start:end] = [True] * (end - start)
                start = end
        if not any(gone):
            return text
        result, place = "", 0
        while place < len(text):
            after = place
            while after < len(text) and (gone[after] or text[after].isspace()):
                after += 1
            if not any(gone[place:after]):
                result, place = result + text[place : max(after, place + 1)], max(after, place + 1)
                continue
            first = place + gone[place:after].index(True)
            last = after - gone[place:after][::-1].index(True)
            left, right = text[place:first], text[last:after]
            if place > 0 and after < len(text):
                if left or right:
                    result += right if not left or ("\n" in right and "\n" not in left) else left
                elif kind(text[place - 1]) == kind(text[after]) == "word":
                    result += " "
            place = after
        text = result


# Few characters, so that phrases occur; a combining accent, a character that is a word alone, and a variant of emoji.
signs = st.sampled_from("aAbß1_ \n.!-'\u0301é成❤\ufe0f")
phrases = st.text(signs, min_size=1, max_size=4).map(str.strip).filter(bool)


@given(st.text(signs, max_size=14), st.lists(phrases, min_size=1, max_size=3))
def test_the_words_left_out_are_those_of_a_plain_loop(text: str, words: list[str]) -> None:
    found = shortened(text, tuple(words))
    assert found.text == without_by_loop(text, words)
    assert shortened(found.text, tuple(words)).ignored == ()  # nothing is left
    assert "".join(text[place] if place >= 0 else " " for place in found.origins) == found.text
    assert bool(found.ignored) == (found.text != text)
    assert all(word.casefold() in text.casefold() for word in found.ignored)


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("With Kevin  Costner, who", ["kevin costner"], "With , who"),
        ("A start in art", ["ART"], "A start in"),
        ("good!!bad, so good!!", ["!!"], "good bad, so good"),
        ("good!!!", ["!!"], "good!"),
        ("title: Costner\nbody: dull", ["costner"], "title:\nbody: dull"),
        ("cafe\u0301", ["cafe"], "cafe\u0301"),
        ("好电影成龙", ["电影"], "好成龙"),
        ("one one two two", ["one two"], ""),
        ("a b c", ["a b", "a", "b c"], "c"),  # the first, then the longest
        (" \t", ["a"], " \t"),
    ],
)
def test_examples(text: str, words: list[str], expected: str) -> None:
    assert shortened(text, tuple(words)).text == without_by_loop(text, words) == expected
    assert shortened("STRASSE", ("straße",)).text == ""


def test_rows_without_ignored_words_are_the_same_object():
    rows = make_rows(["a b", "b"], [0, 1], ["B!", ""])
    assert without_words(rows, None) is without_words(rows, ()) is rows
    data = TaskData("x", None, (), {"train": rows})  # type: ignore[arg-type]
    assert data_without_words(data, None) is data
    without = data_without_words(data, ("b",)).splits["train"]
    assert (without.texts, without.pairs, without.ids) == (("a", ""), ("!", ""), rows.ids)


# Settings


def ignored(value: Any) -> Any:
    return load_config(overrides={"data.ignore_words": value}).data.ignore_words


def test_the_words_are_a_list_or_a_file(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("\ufeffKevin Costner\n\n!!\nnone\n10,000\n", "utf-8")
    assert ignored(str(file)) == ("Kevin Costner", "!!", "none", "10,000")
    assert ignored("costner, !!,null") == ("costner", "!!", "null")
    assert ignored([",", "a"]) == (",", "a")
    assert ignored("") is ignored(None) is None
    with pytest.raises(ConfigError, match=r"data.ignore_words: got '.*missing.txt', expected .*no file"):
        ignored(str(tmp_path / "missing.txt"))
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match="data.ignore_words: got .*latin.*UTF-8"):
        ignored(str(tmp_path / "latin"))


def test_a_flag_takes_a_list_as_yaml_and_a_finished_run_none(attentune, tmp_path, tiny):
    values = settings(tmp_path, tiny("bert"))
    flags = ("--label_column", "label", "--model_name_or_path", tiny("bert"))
    out, _ = attentune.done("doctor", values["data.train_file"], *flags, "--ignore_words", '["film, the", "film"]')
    assert "Findings" in out
    told = attentune.refused("predict", tmp_path, "--text", "x", "--ignore_words", "x")
    assert "data.ignore_words" in told
    assert "setting of training" in told


# Runs

WORDS = ("kevin costner", "eastwood", "!!")
HYBRID: dict[str, Any] = {
    "preset": "ssa-hybrid", "training__num_train_epochs": 1, "training__baselines": "tfidf-linear,frozen-linear"
}  # fmt: skip
# Pairs of texts that differ in ignored words only.
ALIKE = (
    ("the film with Kevin Costner was great", "the film with EASTWOOD was great"),
    ("a dull story!!", "a dull story"),
    ("Eastwood", "!!"),
)


@pytest.fixture(scope="module")
def folder(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has seen the ignored words in one class only."""
    place = tmp_path_factory.mktemp("ignored")
    values = settings(place, tiny("bert"), **HYBRID)
    for split in ("train", "validation"):
        file = place / f"{split}.csv"
        file.write_text(file.read_text("utf-8").replace("great", "great Eastwood!!"), "utf-8")
    train(load_config(overrides=values | {"data.ignore_words": list(WORDS)}), display=QUIET)
    return place / "run"


def test_a_run_with_ignored_words_has_the_weights_of_one_on_texts_without_them(folder, tmp_path, tiny):
    values = settings(tmp_path, tiny("bert"), **HYBRID)
    result = train(load_config(overrides=values), display=QUIET)
    weights, expected = (load_file(one / "model.safetensors") for one in (folder, tmp_path / "run"))
    assert weights.keys() == expected.keys()
    assert all(np.array_equal(weights[name], expected[name]) for name in expected)
    content = json.loads((folder / "run.json").read_text("utf-8"))
    assert content["scores"] == json.loads(json.dumps(result.scores))
    scores = [one["score"] for one in content["baselines"]["methods"]]
    assert scores == [one["score"] for one in result.baselines["methods"]]
    assert content["data_fingerprint"] != result.data_fingerprint  # of the user's rows


def test_texts_that_differ_in_ignored_words_have_equal_logits(folder):
    firsts, seconds = (list(texts) for texts in zip(*ALIKE, strict=True))
    saved = Predictor.load(folder)
    assert np.array_equal(predict_rows(saved, rows_of(firsts)), predict_rows(saved, rows_of(seconds)))
    assert predict(folder, firsts) == predict(folder, seconds)
    assert predict(folder, firsts[2:]) == predict(folder, [""])
    assert predict(folder, ["the film was great"]) != predict(folder, ["the film was dull"])
    with TestClient(api_app(RunBackend(saved, name="mine"), hosts=[]), base_url="http://localhost") as client:
        one, other = (client.post("/predict", json={"texts": texts}).json() for texts in (firsts, seconds))
        assert one == other
        first = {"text": firsts[0], "words": [{"in": "text", "start": 32, "end": 37}]}  # great, where the user has it
        second = {"text": seconds[0], "words": [{"in": "text", "start": 27, "end": 32}]}
        masked = [client.post("/mask", json=asked).json() for asked in (first, second)]
        assert masked[0] == masked[1]
        assert masked[0]["unread"] == []
        assert masked[0]["before"] != masked[0]["after"]
        asked = {"text": firsts[0], "words": [{"in": "text", "start": 14, "end": 27}]}
        answer = client.post("/mask", json=asked).json()
        assert (answer["unread"], answer["after"]) == (["Kevin Costner"], answer["before"])


@pytest.mark.parametrize("method", ["leave-one-out", "ssa", "gradient"])
def test_explanations_are_of_the_text_without_ignored_words(folder, method):
    firsts, seconds = (list(texts) for texts in zip(*ALIKE, strict=True))
    one, other = (explain_texts(folder, texts, method=method) for texts in (firsts, seconds))
    assert [found.text for found in one] == ["the film with was great", "a dull story", ""]
    assert [found.ignored for found in one] == [("Kevin Costner",), ("!!",), ("Eastwood",)]
    assert [found.ignored for found in other] == [("EASTWOOD",), (), ("!!",)]
    same = [[replace(found, seconds=0.0, ignored=()) for found in texts] for texts in (one, other)]
    assert same[0] == same[1]
    for found in one:
        assert all(found.text[token.start : token.end] == token.text for token in found.tokens)
    assert one[0].to_dict()["ignored"] == ["Kevin Costner"]
    assert "ignored" not in other[1].to_dict()
    assert "never sees: Kevin Costner." in one[0]._repr_html_()


def test_commands_say_which_words_were_left_out(folder, attentune, tmp_path):
    text = ("--text", "<b> Kevin Costner was great")
    out, _ = attentune.done("explain", folder, *text)
    assert "Ignored words, which the model never sees: Kevin Costner." in out
    attentune.done("explain", folder, *text, "--output_file", tmp_path / "page.html")
    assert "never sees: Kevin Costner." in (tmp_path / "page.html").read_text("utf-8")
    rows = tmp_path / "texts.csv"
    rows.write_text("text\nKevin Costner was great\nit was great\n", "utf-8")
    attentune.done("predict", folder, "--input_file", rows, "--explain", "--output_file", tmp_path / "out.csv")
    _, column = predict_explained(Predictor.load(folder), rows_of(["Kevin Costner was great", "it was great"]))
    content = json.loads(column[0])
    assert (content["ignored"], content["text"]) == (["Kevin Costner"], "was great")
    assert set(json.loads(column[1])) == {"unit", "tokens"}


@pytest.mark.parametrize("baseline", ["tfidf-linear", "frozen-linear"])
def test_baselines_leave_words_out_too(folder, tmp_path, tiny, baseline):
    values = settings(tmp_path, tiny("bert"), preset=baseline)
    values |= {"data.train_file": str(folder.parent / "train.csv"), "data.ignore_words": list(WORDS)}
    train(load_config(overrides=values), display=QUIET)
    firsts, seconds = (list(texts) for texts in zip(*ALIKE, strict=True))
    assert predict(tmp_path / "run", firsts) == predict(tmp_path / "run", seconds)
    (found,) = explain_texts(tmp_path / "run", firsts[:1])
    assert (found.text, found.ignored) == ("the film with was great", ("Kevin Costner",))


def test_copies_that_would_read_the_words_are_refused(folder, tmp_path):
    for export in (export_run, export_for_transformers):
        with pytest.raises(ConfigError, match="'kevin costner'.*data.ignore_words"):
            export(folder, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    with pytest.raises(ConfigError, match="data.ignore_words.*tokenised"):
        new_model(str(folder), labels=["a", "b"], overrides={"data.ignore_words": ["x"]})


def test_the_words_are_kept_in_the_run_folder(folder, tmp_path):
    saved = Predictor.load(folder).config
    assert saved.data.ignore_words == WORDS
    (tmp_path / "config.yaml").write_text(to_yaml(saved), "utf-8")
    assert load_config(tmp_path / "config.yaml").data.ignore_words == WORDS
