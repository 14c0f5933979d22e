"""The demo's synthetic ground truth: spans, the placement of the shortcut, no leaks; the shortcut experiment."""

import csv
import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from attentune.errors import ConfigError, StorageError
from attentune.seeding import numpy_generator
from attentune.stats.estimate import mean_over_seeds_and_examples
from attentune_lab import synthetic as demo
from attentune_lab.interval import Interval
from attentune_lab.shortcut import RELIES, RESISTS, UNDECIDED, ShortcutLine, mean_of, sentences
from attentune_lab.synthetic import WORDS, DemoRow, generate, write_files

POSITIVE, NEGATIVE = (set(words) for words in zip(*WORDS["train_words"], *WORDS["other_words"], strict=True))
SENTIMENT = POSITIVE | NEGATIVE
# Written out by hand: the words between or around an ordered pair after which the second word is the one that counts.
LATER_CUES = (
    r"started .* but ended",
    r"went from .* to",
    r"expected .* and it was",
    r"trailer looked .*, yet",
    r"\bless .* than",
    r"What seemed .* soon became",
    r"opening .* gave way to",
    r"Once .*, the \w+ turned",
)

SPLITS = ("train", "validation", "challenge")


@pytest.fixture(scope="module")
def rows() -> dict[str, list[DemoRow]]:
    return {split: generate(split, 1200, seed=7, shortcut_strength=0.9) for split in SPLITS}


def words_of(row: DemoRow) -> list[str]:
    return [row.text[start:end] for start, end in row.decisive]


def verdict(text: str, decisive: list[str], kind: str) -> int:
    """The label that a reader would give, from the text and the kind alone."""
    sentiment = [word for word in decisive if word in SENTIMENT]
    if kind == "single":
        return int(sentiment[0] in POSITIVE)
    if kind == "context":
        return int(sentiment[0] in NEGATIVE)
    later = any(re.search(cue, text) for cue in LATER_CUES)
    return int(sentiment[1 if later else 0] in POSITIVE)


def swap(text: str, spans: tuple[tuple[int, int], ...], words: list[str]) -> str:
    for (start, end), word in sorted(zip(spans, words, strict=True), reverse=True):
        text = text[:start] + word + text[end:]
    return text


@pytest.mark.parametrize("split", SPLITS)
def test_spans_hold_whole_words_of_the_right_sort_which_decide(rows: dict[str, list[DemoRow]], split: str) -> None:
    for row in rows[split]:
        for start, end in row.decisive:
            assert re.fullmatch(r"\W?[A-Za-z]+\W?", row.text[max(0, start - 1) : end + 1])
        sentiment = [word for word in words_of(row) if word in SENTIMENT]
        expected = {"single": (1, 1), "context": (2, 1), "pair": (2, 2)}[row.kind]
        assert (len(row.decisive), len(sentiment)) == expected
        assert list(row.decisive) == sorted(row.decisive)
        if row.shortcut is not None:
            assert row.text[slice(*row.shortcut)] in WORDS["shortcut_venues"]
        outside = swap(row.text, row.decisive, ["-"] * len(row.decisive))
        assert not SENTIMENT & set(re.findall(r"\w+", outside.lower()))
        assert row.label == verdict(row.text, words_of(row), row.kind)


@pytest.mark.parametrize(("split", "agreement"), [("train", 0.9), ("validation", 0.9), ("challenge", 0.1)])
def test_shortcut_goes_with_the_label_as_often_as_stated(rows, split, agreement):
    for kind in demo.KINDS:
        marked = [row for row in rows[split] if row.shortcut is not None and row.kind == kind]
        agrees = [WORDS["shortcut_venues"][row.label] == row.text[slice(*row.shortcut)] for row in marked]
        # Four standard errors of the smallest kind.
        assert np.mean(agrees) == pytest.approx(agreement, abs=4 * (0.09 / 270) ** 0.5)
    free = np.mean([row.shortcut is None for row in rows[split]])
    assert free == pytest.approx(demo.SHORTCUT_FREE_SHARE, abs=0.035)


@pytest.mark.parametrize("split", SPLITS)
def test_labels_and_kinds_are_balanced_and_lengths_vary(rows: dict[str, list[DemoRow]], split: str) -> None:
    counts = Counter((row.kind, row.label) for row in rows[split])
    assert counts == {(kind, label): 300 if kind == "single" else 150 for kind in demo.KINDS for label in (0, 1)}
    lengths = {len(row.text.split()) for row in rows[split]}
    assert lengths <= set(range(12, 31))
    assert len(lengths) > 10


def test_no_text_leaks_even_where_there_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"train_words": WORDS["train_words"][:6], "other_words": []}
    few |= {"slots": {name: words[:2] for name, words in WORDS["slots"].items()}}
    monkeypatch.setattr(demo, "WORDS", WORDS | few | {name: WORDS[name][:2] for name in ("venue", "filler")})
    venues = re.compile("|".join(WORDS["shortcut_venues"] + WORDS["neutral_venues"]))
    texts = {}
    for split, seed in (("train", 4), ("validation", 5), ("challenge", 4)):
        made = generate(split, 400, seed=seed, shortcut_strength=0.8)
        texts[split] = {venues.sub("CINEMA", row.text) for row in made}
        assert len(texts[split]) == len(made)
    assert len(set.union(*texts.values())) == sum(map(len, texts.values()))


def test_only_some_sentiment_words_are_kept_from_training(rows: dict[str, list[DemoRow]]) -> None:
    used = {split: {word for row in rows[split] for word in words_of(row) if word in SENTIMENT} for split in SPLITS}
    assert used["train"] == {word for pair in WORDS["train_words"] for word in pair}
    assert used["validation"] == used["challenge"] == SENTIMENT


def test_a_bag_of_words_falls_for_the_shortcut_and_has_little_else() -> None:
    def accuracies(strength: float) -> list[float]:
        made = {split: generate(split, 600, seed=5, shortcut_strength=strength) for split in SPLITS}
        counter = CountVectorizer().fit([row.text for row in made["train"]])
        features = {split: counter.transform([row.text for row in made[split]]) for split in SPLITS}
        labels = {split: [row.label for row in made[split]] for split in SPLITS}
        model = LogisticRegression(max_iter=500).fit(features["train"], labels["train"])
        return [model.score(features[split], labels[split]) for split in ("validation", "challenge")]

    validation, challenge = accuracies(0.9)
    assert validation > 0.8
    assert challenge < 0.3
    without_shortcut = accuracies(0.5)
    assert max(without_shortcut) < 0.75
    assert abs(without_shortcut[0] - without_shortcut[1]) < 0.1


def test_mistakes_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        generate("dev", -1, seed=0, shortcut_strength=1.5)
    assert caught.value.problems == (
        "the demo has no split 'dev'; expected one of: train, validation, challenge",
        "-1 rows were asked for; expected 0 or more",
        "shortcut_strength is 1.5; expected a chance from 0 to 1",
    )
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="file: could not be written"):
        write_files(tmp_path / "file", train_size=1, eval_size=1)
    monkeypatch.setattr(demo, "_MAX_DRAWS", 0)
    with pytest.raises(ConfigError, match="ran out of new single texts for train after 0 rows; ask for fewer"):
        generate("train", 1, seed=0, shortcut_strength=0.9)


def test_shortcut_words_and_files_hold_the_truth(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "demo"
    paths = write_files(folder, train_size=30, eval_size=10, seed=9, shortcut_strength=0.6)
    assert sorted(path.name for path in folder.iterdir()) == ["challenge.csv", "train.csv", "validation.csv"]
    for split, path in paths.items():
        with path.open(encoding="utf-8", newline="") as file:
            written = list(csv.DictReader(file))
        made = generate(split, 30 if split == "train" else 10, seed=9, shortcut_strength=0.6)
        for number, (line, row) in enumerate(zip(written, made, strict=True)):
            assert line["id"] == f"{split}-{number}"
            assert (line["text"], line["label"], line["kind"]) == (row.text, demo.LABEL_NAMES[row.label], row.kind)
            assert json.loads(line["decisive"]) == [list(span) for span in row.decisive]
            assert json.loads(line["shortcut"]) == (None if row.shortcut is None else list(row.shortcut))
    # Another strength changes nothing but the cinema.
    plain = generate("train", 200, seed=3, shortcut_strength=0.5)
    strong = generate("train", 200, seed=3, shortcut_strength=1.0)
    assert any(one.text != other.text for one, other in zip(plain, strong, strict=True))
    for one, other in zip(plain, strong, strict=True):
        assert words_of(one) == words_of(other)
        if other.shortcut is not None:
            assert other.text[slice(*other.shortcut)] == WORDS["shortcut_venues"][other.label]


# The shortcut experiment: means and intervals over seeds and reviews, and the verdicts.


def line(preset: str, low: float, high: float) -> ShortcutLine:
    fall = Interval((low + high) / 2, low, high)
    return ShortcutLine(preset, Interval(0.9, 0.88, 0.92), Interval(0.8, 0.7, 0.9), fall, 10.0, ("run",))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.02, 0.05, RESISTS),
        (0.01, 0.09, RESISTS),
        (0.01, 0.1, RELIES),
        (0.2, 0.6, RELIES),
        (-0.1, 0.3, UNDECIDED),
        (math.nan, math.nan, UNDECIDED),
    ],
)
def test_verdicts_follow_from_the_interval_of_the_fall(low: float, high: float, verdict: str) -> None:
    assert line("bert", low, high).verdict == verdict


def test_means_cover_seeds_and_reviews_and_sentences_name_the_presets() -> None:
    lines = [line("a", -0.1, 0.3), line("b", -0.02, 0.05), line("c", 0.2, 0.3), line("d", 0.3, 0.4)]
    assert [text.rpartition(": ")[2] for text in sentences(lines)] == ["b.", "c, d.", "a."]
    assert sentences(lines[1:2]) == ["Resist the shortcut (the whole interval of the fall is below 0.1): b."]
    # Means cover seeds and reviews and one seed has no interval.
    values_SN = numpy_generator("shortcut").integers(-1, 2, size=(3, 600)).astype(float)
    made, expected = mean_of(values_SN), mean_over_seeds_and_examples(values_SN)
    assert (made.value, made.low, made.high) == (expected.value, expected.low, expected.high)
    assert made.low < np.mean(values_SN) < made.high
    alone = mean_of(values_SN[:1])
    assert alone.value == pytest.approx(values_SN[0].mean())
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)


@pytest.mark.integration
def test_the_shortcut_experiment_prints_its_table(attentune, tiny, tmp_path):
    flags = ("--model_name_or_path", tiny("bert"), "--num_train_epochs", "0.1", "--output_dir", tmp_path / "shortcut")
    out, err = attentune.done("shortcut", "--presets", "bert", *flags)
    assert "3 of 3:" in err
    assert out.splitlines()[0].split()[:4] == ["preset", "validation", "challenge", "fall"]
    assert out.splitlines()[2].split()[0] == "bert"
    assert "Undecided (" in out or "Resist the shortcut" in out or "Rely on the shortcut" in out
    again, _ = attentune.done("shortcut", "--presets", "bert", *flags, "--format", "json")
    (line,) = json.loads(again)
    assert len(line["folders"]) == 3
    fall = line["validation"]["value"] - line["challenge"]["value"]
    assert line["fall"]["value"] == pytest.approx(fall)
    assert line["fall"]["low"] < fall < line["fall"]["high"]
