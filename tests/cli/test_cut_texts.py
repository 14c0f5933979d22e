"""Texts that are longer than a run reads: it is told once, with their share, and a word is never shown in part."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import attentune as library
from attentune.baselines.registry import make_baseline
from attentune.config import ModelConfig
from attentune.data.dataset import LabelSpace, TextRows
from attentune.inference.predictor import Predictor
from helpers.tiny_runs import saved_ensemble, saved_model

Tiny = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]
SPACE = LabelSpace("classification", ("bad", "good"))
LONG = " ".join(f"w{number}" for number in range(200))
NOTE = "1 of 2 texts (50.0%) have more than 64 tokens; the rest was not read."


@pytest.fixture(scope="module")
def home(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("cut")
    saved_model(home / "run", tiny("bert"), SPACE)
    saved_ensemble(home / "ensemble", tiny, space=SPACE)
    (home / "new.csv").write_text(f"text,label\n{LONG},good\nshort,bad\n")
    return home


@pytest.fixture(scope="module")
def frozen(home: Path, tiny: Tiny) -> Path:
    """A run of a linear model on a frozen encoder that reads 64 tokens."""
    folder = home / "frozen"
    encoder = ModelConfig(name_or_path=str(tiny("bert")))
    baseline = make_baseline("frozen-linear", encoder=encoder, max_length=64, seed=0)
    texts = tuple(f"w{place} w{place % 2}" for place in range(20))
    rows = TextRows(tuple(map(str, range(20))), texts, None, np.arange(20) % 2, "rows")
    folder.mkdir()
    baseline.fit(rows, SPACE).save(folder)
    return folder


@pytest.mark.parametrize("kind", ["run", "ensemble", "frozen"])
def test_parts_explanations_and_python_tell_it_for_every_kind_of_run(
    home: Path, frozen: Path, attentune: Command, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "a.csv").write_text(f"text\n{LONG}\nshort\n")
    (tmp_path / "b.csv").write_text("text\n" + "short\n" * 2)
    words = ("predict", home / kind, "--input_file", f"{tmp_path}/*.csv", "--output_dir", tmp_path / "out")
    assert "1 of 2 texts (50.0%) have more than 64 tokens" in attentune(*words, "--shard", "1/2")[2]
    assert "was not read" not in attentune(*words, "--shard", "2/2")[2]
    words = ("explain", home / kind, "--input_file", tmp_path / "a.csv", "--method", "leave-one-out")
    assert NOTE in attentune(*words)[2]
    saved = Predictor.load(home / kind)
    for _ in range(2):
        answers = library.predict(saved, [LONG, "short"])
        assert [one.get("truncated") for one in answers] == [True, None]


@pytest.mark.parametrize("kind", ["run", "ensemble", "frozen"])
def test_predict_and_evaluate_tell_the_share_once(home: Path, frozen: Path, attentune: Command, kind: str) -> None:
    for words in (("predict", "--input_file"), ("evaluate", "--validation_file")):
        status, _, err = attentune(words[0], home / kind, words[1], home / "new.csv")
        assert (status, err.count("was not read")) == (0, 1), err
        assert NOTE in err
        assert "--long_texts windows" in err


def test_explain_counts_the_words_that_were_not_read(home: Path, attentune: Command) -> None:
    words = ("explain", home / "run", "--input_file", home / "new.csv", "--method", "gradient")
    status, out, err = attentune(*words, "--format", "json")
    first, second = map(json.loads, out.splitlines())
    assert status == 0
    assert NOTE in err
    assert [token["text"] for token in first["tokens"]] == LONG.split()[: len(first["tokens"])]
    assert first["unread_words"] == 200 - len(first["tokens"])
    assert "unread_words" not in second
    assert f"{first['unread_words']} more words were not read." in attentune(*words)[1]
