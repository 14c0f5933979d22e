"""Changed copies of texts, and how far scores fall on them: numbers, intervals, command."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.inference.predictor import Predictor
from attentune_lab.robustness import label_indicative_words, overlap, perturbations, stress, words_of
from helpers.interrupted import run as trained
from helpers.tiny_models import rows_of

TEXTS = ["The quick, brown fox doesn't jump!", "", "a b c", "Überraschung: 3.5 points (again)"]
PAIRS = ["A fox jumps.", "nothing here", "c b a", "It was great, great!"]
ROWS = rows_of(TEXTS, PAIRS, [0, 1, 0, 1])
CHANGES = perturbations(ROWS)


def changed(name: str, indicative_words: frozenset[str] = frozenset(), seed: int = 1):
    return CHANGES[name](ROWS, seed, indicative_words)


@pytest.mark.parametrize("name", CHANGES)
def test_ids_and_labels_stay(name: str) -> None:
    after = changed(name, frozenset({"fox"}))
    assert (after.ids, after.labels.tolist()) == (ROWS.ids, [0, 1, 0, 1])
    assert (after.texts, after.pairs) != (ROWS.texts, ROWS.pairs)


def test_texts_are_changed_as_said() -> None:
    assert changed("first text only").pairs == ("",) * 4
    assert changed("first text only").texts == tuple(TEXTS)
    assert changed("second text only").texts == ("",) * 4
    assert (changed("swapped").texts, changed("swapped").pairs) == (tuple(PAIRS), tuple(TEXTS))
    # Case and punctuation.
    assert changed("lower case").texts[0] == "the quick, brown fox doesn't jump!"
    assert changed("upper case").texts[3] == "ÜBERRASCHUNG: 3.5 POINTS (AGAIN)"
    assert changed("no punctuation").texts[0] == "The quick brown fox doesn t jump"
    assert changed("no punctuation").texts[3] == "Überraschung 3 5 points again"
    # Typos are functions of seed and row.
    assert changed("typos").texts == changed("typos").texts
    several = {changed("typos", seed=seed).texts[0] for seed in range(8)}
    assert len(several) > 2
    # Overlap is the share of the second texts words.
    assert overlap("The cat sat", "the cat slept") == pytest.approx(2 / 3)
    assert overlap("anything", "") == 0.0


@given(st.text(max_size=80), st.integers(0, 5))
def test_a_typo_moves_neighbouring_letters_of_some_words_and_nothing_else(text: str, seed: int) -> None:
    after = CHANGES["typos"](rows_of([text]), seed, frozenset()).texts[0]
    assert Counter(after) == Counter(text)
    moved = [place for place, (a, b) in enumerate(zip(text, after, strict=True)) if a != b]
    long_words = [word for word in words_of(text) if len(word) >= 4]
    assert len(moved) <= 2 * max(1, len(long_words) // 8)
    assert long_words or not moved


def test_the_words_that_tell_the_labels_are_found_and_left_out() -> None:
    texts = [f"the film was {'dull' if n % 2 else 'fine'} word{n} {'and long' if n % 3 else ''}" for n in range(60)]
    rows = rows_of(texts, labels=[n % 2 for n in range(60)])
    assert label_indicative_words(rows, count=2) == {"dull", "fine"}
    after = CHANGES["label-indicative words removed"](rows, 1, frozenset({"dull", "fine"})).texts
    assert after[1] == "the film was word1 and long"
    assert not {"dull", "fine"} & {word for text in after for word in words_of(text)}
    # For scores and several labels the words that go with any of them are found.
    scores = [n / 60 for n in range(60)]
    texts = [f"a {'big' if n >= 30 else 'small'} {'red' if n % 2 else 'blue'} thing{n % 7}" for n in range(60)]
    assert label_indicative_words(rows_of(texts, labels=scores), count=2) == {"big", "small"}
    labels = [[n % 2, int(n >= 30)] for n in range(60)]
    assert label_indicative_words(rows_of(texts, labels=labels), count=4) == {"big", "small", "red", "blue"}
    # Rare words and those of all rows tell nothing.
    rows = rows_of([f"the{' once' if n == 0 else ''}" for n in range(20)], labels=[int(n == 0) for n in range(20)])
    assert label_indicative_words(rows) == frozenset()


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trained run and one that has hardly been trained, on the same rows."""
    folder = tmp_path_factory.mktemp("stress")
    for name, epochs in (("good", 12), ("poor", 0.2)):
        changes = {"training__num_train_epochs": epochs, "training__output_dir": str(folder / name)}
        trained(folder, tiny("bert"), **changes)
    return folder / "good", folder / "poor"


def test_scores_and_falls_are_those_of_evaluating_the_changed_rows(runs: tuple[Path, Path]) -> None:
    saved = Predictor.load(runs[0])
    data = saved.data(None, ("validation",))
    training = saved.data(None, ("train",)).splits["train"]
    report = stress([saved], data, training_rows=training, resamples=50)
    # The thirds take each row once.
    assert sum(line.rows for line in report.parts) == 20
    assert all(line.name.startswith("length") for line in report.parts)
    right = sum(line.rows * line.scores[0].value for line in report.parts)
    assert right == pytest.approx(20 * report.original[0].value)
    as_they_are = saved.evaluator(data).score(("validation",))["validation"]["accuracy"]
    assert report.original[0].value == pytest.approx(as_they_are)
    assert as_they_are > 0.6  # else there is nothing to fall
    validation = data.splits["validation"]
    changes = perturbations(validation)
    assert [line.name for line in report.changes] == list(changes)
    for line in report.changes:
        rows = changes[line.name](validation, 42, frozenset(report.label_indicative_words))
        changed = type(data)(data.name, data.label_space, data.metrics, {"validation": rows})
        score = saved.evaluator(changed).score(("validation",))["validation"]["accuracy"]
        assert line.scores[0].value == pytest.approx(score)
        assert line.falls[0].value == pytest.approx(as_they_are - score)
        assert line.falls[0].low <= line.falls[0].value <= line.falls[0].high
        assert line.difference is None


def test_removing_the_label_indicative_words_lowers_the_score(runs: tuple[Path, Path]) -> None:
    saved = Predictor.load(runs[0])
    report = stress([saved], saved.data(None, ("train",)), resamples=200)  # rows that it has learnt
    assert {"good", "bad"} & set(report.label_indicative_words)
    line = next(line for line in report.changes if line.name == "label-indicative words removed")
    assert line.falls[0].low > 0


def test_two_runs_stand_side_by_side(runs: tuple[Path, Path], attentune) -> None:
    out, err = attentune.done("stress", *runs, "--format", "json")
    report = json.loads(out)
    assert "scoring the rows: typos" in err
    for line in report["changes"]:
        first, second = line["falls"]
        assert line["difference"]["value"] == pytest.approx(second["value"] - first["value"])
        assert line["difference"]["low"] <= line["difference"]["value"] <= line["difference"]["high"]
    out, _ = attentune.done("stress", *runs)
    for text in ("drop of run 1", "difference", "length low", "Label-indicative words that were excluded:"):
        assert text in out
