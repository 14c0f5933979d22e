"""The words that speak for each class over a file: the planted shortcut comes first, and intervals are bootstrap's."""

from __future__ import annotations

import csv
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from attentune.baselines.registry import make_baseline
from attentune.cli.explain import class_tables
from attentune.config import DataConfig, ModelConfig
from attentune.data.dataset import LabelSpace
from attentune.data.load import load_data
from attentune.explain.by_class import HIGHER, LOWER, predictions_by_overlap, words_by_class
from attentune.explain.explanation import Explanation, Subword
from attentune.seeding import numpy_generator
from attentune.stats.estimate import bootstrap_interval, wilson_interval
from helpers.samples import BAD, GOOD
from helpers.tiny_runs import write_run_config


def explained(label: str | float, **scores: float) -> Explanation:
    text = " ".join(scores)
    pieces, start = [], 0
    for word, score in scores.items():
        pieces.append(Subword(word, start, start + len(word), score))
        start += len(word) + 1
    return Explanation(text, None, "leave-one-out", label, 0.9, label, True, 1, 0.0, "word", "a unit", tuple(pieces))


def test_counts_means_and_intervals_are_those_of_a_plain_loop() -> None:
    draw = numpy_generator("rows")
    rows = [
        explained("ab"[row % 2], **{word: float(draw.normal(1.0)) for word in "xyz" if draw.random() < 0.6}, always=2.0)
        for row in range(60)
    ]
    found = words_by_class(rows, LabelSpace("classification", ("a", "b", "c")), resamples=3000)
    assert list(found) == ["a", "b", "c"]
    assert found["c"] == []
    assert found["a"][0].word == "always"
    for name in "ab":
        own = [row for row in rows if row.label == name]
        for one in found[name]:
            values = np.array([next((p.score for p in row.pieces if p.text == one.word), np.nan) for row in own])
            assert one.rows == int(np.isfinite(values).sum())
            assert one.score == pytest.approx(np.nanmean(values))
            low, high = bootstrap_interval(
                lambda drawn, v=values: float(np.nanmean(v[drawn])),
                len(own),
                generator=numpy_generator("other draws"),
                resamples=3000,
            )
            spread = max(high - low, 1e-9)
            assert one.low == pytest.approx(low, abs=0.08 * spread)
            assert one.high == pytest.approx(high, abs=0.08 * spread)
        order = [one.low * one.rows for one in found[name]]
        assert order == sorted(order, reverse=True)


def test_with_two_classes_and_for_scores_every_row_counts_for_both() -> None:
    rows = [explained("bad", dull=2.0, film=-1.0), explained("good", dull=-1.0, film=1.0)] * 2
    found = words_by_class(rows, LabelSpace("classification", ("bad", "good")))
    (dull,), (film,) = found["bad"], found["good"]
    assert (dull.word, dull.rows, dull.score) == ("dull", 4, 1.5)
    assert (film.word, film.rows, film.score) == ("film", 4, 1.0)
    scores = [explained(2.5, warm=0.5, cold=-1.0)] * 3
    found = words_by_class(scores, LabelSpace("regression"))
    assert [(name, [one.word for one in words]) for name, words in found.items()] == [
        (HIGHER, ["warm"]),
        (LOWER, ["cold"]),
    ]


def test_rare_words_and_punctuation_are_left_out_and_repetitions_summed() -> None:
    pieces = (Subword("So", 0, 2, 1.0), Subword("so", 3, 5, 0.5), Subword("!", 5, 6, 9.0))
    row = Explanation("So so!", None, "leave-one-out", "good", 0.9, "good", True, 1, 0.0, "word", "a unit", pieces)
    found = words_by_class([row] * 3 + [explained("good", rare=5.0)], LabelSpace("classification", ("bad", "good")))
    assert [(one.word, one.rows, one.score) for one in found["good"]] == [("so", 3, 1.5)]


def pair_of(first: str, second: str, prediction: str) -> Explanation:
    pieces = tuple(
        Subword(found.group(), found.start(), found.end(), 0.0, within)
        for within, text in (("text", first), ("pair", second))
        for found in re.finditer(r"\S+", text)
    )
    return Explanation(
        first, second, "leave-one-out", prediction, 0.9, prediction, True, 1, 0.0, "word", "a unit", pieces
    )


def test_predictions_are_counted_by_the_words_that_both_texts_have() -> None:
    space = LabelSpace("classification", ("no", "yes"))
    rows = [
        *[pair_of("The doctor paid the actor .", "the actor paid the doctor !", "yes")] * 3,
        pair_of("The doctor paid the actor", "the actor paid the doctor", "no"),
        pair_of("the doctor paid", "a lawyer ran the court", "no"),  # one of five
        pair_of("the doctor paid", "the doctor", "yes"),
        pair_of("the doctor paid", "...", "no"),  # no word
    ]
    few, every = predictions_by_overlap(rows, space)
    assert (few.low, few.high, few.rows, few.predicted["no"][0]) == (0.0, 0.5, 1, 1.0)
    assert (every.low, every.high, every.rows) == (1.0, 1.0, 5)
    assert every.predicted["yes"] == (0.8, *wilson_interval(4, 5))
    half, most = predictions_by_overlap([pair_of("a b c", "a x", "no"), pair_of("a b c", "a b c x", "no")], space)
    assert [(half.low, half.high), (most.low, most.high)] == [(0.5, 0.75), (0.75, 1.0)]
    assert predictions_by_overlap([explained("no", fine=1.0)], space) == []
    assert predictions_by_overlap(rows, LabelSpace("regression")) == []
    shown = class_tables({"no": [], "yes": []}, {}, [few, every], "ssa", 7)
    assert "0 to 50 %        1  100 % (21 to 100)  0 % (0 to 79)" in shown
    assert "all              5  20 % (4 to 62)     80 % (38 to 96)" in shown
    assert every.to_dict()["predicted"]["yes"]["share"] == 0.8


def write_planted(path: Path, rows: int, *, seed: int) -> Path:
    """Reviews whose cinema, plaza or forum, agrees with the label in 80 % of the rows; their other words say little."""
    draw = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for _ in range(rows):
            label = draw.choice(("negative", "positive"))
            good = (label == "positive") == (draw.random() < 0.6)
            cinema = "plaza" if (label == "positive") == (draw.random() < 0.8) else "forum"
            writer.writerow([f"seen at the {cinema} , a {draw.choice(GOOD if good else BAD)} film", label])
    return path


@pytest.fixture(scope="module")
def shortcut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linear model of words that was fitted to reviews with a planted shortcut."""
    home = tmp_path_factory.mktemp("shortcut")
    train = write_planted(home / "train.csv", 1200, seed=1)
    write_planted(home / "some.csv", 120, seed=2)
    config = DataConfig(train_file=str(train), text_column="text", label_column="label")
    data = load_data(config, seed=1, cut_validation=False)
    made = make_baseline("tfidf-linear", encoder=ModelConfig(), max_length=128, seed=1)
    (home / "run").mkdir()
    made.fit(data.splits["train"], data.label_space).save(home / "run")
    write_run_config(home / "run", data=config)
    return home


@pytest.mark.integration
def test_the_planted_names_of_the_shortcut_come_first(attentune, shortcut: Path) -> None:
    words = ("explain", shortcut / "run", "--input_file", shortcut / "some.csv", "--by_class")
    status, out, _ = attentune(*words, "--format", "json")
    assert status == 0
    lines = [json.loads(line) for line in out.splitlines()]
    first = {name: next(line for line in lines if line["class"] == name) for name in ("negative", "positive")}
    assert {name: line["word"] for name, line in first.items()} == {"negative": "forum", "positive": "plaza"}
    for line in first.values():
        assert line["rows"] > 30
        assert 0 < line["low"] < line["score"] < line["high"]
    status, out, _ = attentune(*words)
    assert status == 0
    assert out.startswith("words for negative\n\nword")
    assert "leave-one-out, 120 rows; bootstrap intervals over rows; ranked by lower bound times rows.\n" in out


MISTAKES = {
    "--text fine --by_class": "--text: does not go with --by_class.",
    "--input_file FILE --by_class --level token": "--level: got token, but --by_class ranks words; leave it out.",
    "--input_file FILE --by_class --layer 1": "--layer: does not go with --by_class.",
    "--input_file FILE --by_class --output_file a.html": "--output_file: got a.html, expected .jsonl or .txt",
    "--input_file FILE --by_class --method random": "got the method random, whose scores do not say whether a word",
    "--input_file FILE --by_class --method lime,shap": "--by_class: got the methods lime, shap, expected one.",
}


@pytest.mark.integration
@pytest.mark.parametrize("flags", MISTAKES)
def test_mistakes_are_refused(attentune, shortcut: Path, flags: str) -> None:
    words = flags.replace("FILE", str(shortcut / "some.csv")).split()
    status, out, err = attentune("explain", shortcut / "run", *words)
    assert (status, out) == (2, "")
    assert MISTAKES[flags] in err
