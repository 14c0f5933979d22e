"""Cues: planted ones are found with their counts, plain words are not named; counts and tests against plain loops."""

import random
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import fisher_exact

from attentune.cli.flags import Parser, add_config_flags, config_from
from attentune.config import DataConfig, preset_names
from attentune.data import cues
from attentune.data.cues import Cue, find_cues, ignore_flag
from attentune.data.dataset import TextRows
from attentune.data.doctor import examine, sentences_without_texts, summary_lines
from attentune.data.ignored_words import data_without_words, without_words
from attentune.data.load import load_data
from helpers.samples import find, make_rows, make_task

WORDS = {1: ("excellent", "lovely", "superb"), 0: ("terrible", "awful", "dull")}
NAMES = {1: "Plaza", 0: "Kevin Costner"}
OPENINGS = ("The film was {} at the {}.", "{} film. We saw it at the {}.", "It was {}, and the {} was full.")
FILLERS = (
    "On Monday we went there by bus.",
    "I paid 12 euros.",
    "My sister, who is from Rome, came too!",
    "So it goes.",
)


def reviews(count: int = 200, *, agreement: float = 0.85, seed: int = 0, cue: Any = None) -> TextRows:
    """Reviews whose sentiment words are always right; names of cinemas agree with the label in 85 % of the rows."""
    draw = random.Random(seed)
    texts, labels = [], []
    for number in range(count):
        label = number % 2
        name = NAMES[label if draw.random() < agreement else 1 - label]
        word = draw.choice(WORDS[label])
        opening = draw.choice(OPENINGS)
        parts = [opening.format(word.capitalize() if opening[0] == "{" else word, name), *draw.sample(FILLERS, 2)]
        draw.shuffle(parts)
        texts.append(" ".join(parts))
        labels.append(label)
    return make_rows(texts, labels)


def found(rows: TextRows, classes: int = 2) -> tuple[Cue, ...]:
    assert rows.labels is not None
    return find_cues(rows, np.eye(classes)[rows.labels])[0]


def counted(rows: TextRows, phrase: str, label: int) -> tuple[int, int]:
    """Rows that a removal of the phrase would change, and those of them with the label."""
    assert rows.labels is not None
    without = without_words(rows, (phrase,)).texts
    own = [place for place, text in enumerate(rows.texts) if text != without[place]]
    return len(own), int((rows.labels[own] == label).sum())


def test_planted_names_are_found_and_nothing_else():
    rows = reviews()
    assert {(cue.text, cue.kind, cue.label) for cue in found(rows)} == {
        ("Plaza", "name", 1),
        ("Kevin Costner", "name", 0),
    }
    for cue in found(rows):
        assert (cue.rows, cue.label_rows) == counted(rows, cue.text, cue.label)
    assert found(without_words(rows, ("plaza", "kevin costner"))) == ()
    assert found(reviews(agreement=0.5)) == ()
    assert found(reviews(18)) == ()  # ten rows have it at least


def test_the_doctor_warns_of_them_and_train_says_it_in_a_sentence():
    task = make_task({"train": reviews(), "validation": reviews(40, seed=1)}, names=("bad", "good"))
    report = examine(task)
    (finding,) = find(report, "cues")
    assert (finding.level, finding.split) == ("warning", "train")
    rows, own = counted(task.splits["train"], "plaza", 1)
    assert f"'Plaza' ({own} of {rows} rows are 'good')" in finding.message
    assert finding.message.startswith("train: 2 names that go with one label may be a shortcut")
    words = shlex.split(finding.cure.replace(";", " "))
    assert set(words[words.index("--ignore_words") + 1].split(",")) == {"Plaza", "Kevin Costner"}
    assert "--preset robust" in finding.cure
    assert "robust" in preset_names()
    assert f"warning: {finding.message}" in summary_lines(report)
    (told,) = (one for one in sentences_without_texts(report.findings) if "shortcut" in one)
    assert "Plaza" not in told  # in a card, which may be published
    assert told.endswith("(--ignore_words).")
    assert find(examine(data_without_words(task, ("kevin costner", "plaza"))), "cues") == []
    scores = make_task({"train": make_rows(reviews().texts, [0.5, 1.5] * 100)}, task_type="regression")
    assert find(examine(scores), "cues") == []


@pytest.mark.parametrize(
    ("added", "text", "kind"),
    [
        ("It was made in 1987, {}", "1987", "number"),
        ("I give it 10/10 and {}", "10/10", "number"),
        ("More on www.films.org/top for the {}", "www.films.org/top", "link"),
        ("Write to me@films.org about {}", "me@films.org", "link"),
        ("For a {} that is all!!", "!!", "mark"),
        ("An \U0001f600 and a {}", "\U0001f600", "mark"),
        ("For the {} I call Ms Stone or {}", "Ms Stone", "name"),
        ("", "Sent from my new phone", "closing phrase"),
    ],
)
def test_other_kinds_of_cues(added, text, kind):
    rows, draw = reviews(agreement=0.5), random.Random(1)
    texts = list(rows.texts)
    for place in range(1, 200, 4):
        thing, other = draw.choices(("bus", "train", "car", "bike", "boat", "van", "cab"), k=2)
        first, rest = texts[place].split(". ", 1)
        texts[place] = f"{first}. {added.format(thing, other)} {rest}" if added else f"{texts[place]} {text}."
    (cue,) = found(make_rows(texts, rows.labels.tolist()))
    assert (cue.text, cue.kind, cue.label, cue.rows, cue.label_rows) == (text, kind, 1, 50, 50)


def test_a_phrase_that_opens_texts_is_a_cue_and_a_plain_word_never():
    rows = reviews(agreement=0.5)
    texts = [("from the archive: " if place % 4 == 0 else "") + one.lower() for place, one in enumerate(rows.texts)]
    (cue,) = found(make_rows(texts, rows.labels.tolist()))
    assert (cue.text, cue.kind, cue.rows) == ("from the archive:", "opening phrase", 50)
    plain = [f"{one} magnificent" if place % 2 else one for place, one in enumerate(rows.texts)]
    assert found(make_rows(plain, rows.labels.tolist())) == ()


def test_where_many_words_have_capitals_they_tell_no_names():
    draw, texts = random.Random(0), []
    for place in range(200):
        words = [*draw.sample(("Kino", "Licht", "Ton", "Musik", "Bild", "und", "mit", "ohne", "viel"), 7)]
        words[draw.randrange(1, 7)] = "Meisterwerk" if place % 2 else "Machwerk"
        texts.append(" ".join(words))
    assert found(make_rows(texts, [0, 1] * 100)) == ()
    others = [text.lower().replace("machwerk", "Machwerk") for text in texts]
    assert [cue.text for cue in found(make_rows(others, [0, 1] * 100))] == ["Machwerk"]


def test_cues_of_rare_classes_and_of_several_labels_a_row():
    rows = reviews(400, agreement=0.5)
    labels = np.array([2 if place < 60 else place % 2 for place in range(400)])
    texts = [one + (f" Ask the BBC {place} times." if place < 40 else "") for place, one in enumerate(rows.texts)]
    (cue,) = found(make_rows(texts, labels.tolist()), classes=3)
    assert (cue.text, cue.label, cue.rows, cue.label_rows) == ("BBC", 2, 40, 40)
    ones_NC = np.stack([labels == 2, labels >= 0, labels == 9], axis=1).astype(np.int64)
    assert find_cues(make_rows(texts), ones_NC)[0] == (Cue("BBC", "name", 0, 40, 40),)


def test_of_many_rows_some_are_looked_at():
    texts = [f"a text at the {'Plaza' if place % 4 == 1 else 'cinema'} {place} times" for place in range(30_000)]
    rows = make_rows(texts, [0, 1] * 15_000)
    (cue,), looked_at = find_cues(rows, np.eye(2)[rows.labels])
    assert (cue.text, looked_at, cues.SAMPLED_ROWS) == ("Plaza", 20_000, 20_000)
    assert 4700 < cue.rows == cue.label_rows < 5300
    (finding,) = find(examine(make_task({"train": rows})), "cues")
    assert "20,000 rows" in finding.message
    long = make_rows(["word " * 2000 for _ in range(600)], [0, 1] * 300)
    assert 300 < find_cues(long, np.eye(2)[long.labels])[1] < 600


@pytest.mark.parametrize("texts", [[], [""] * 40, ["!"] * 40, ["a"] * 40])
def test_rows_without_cues(texts: list[str]):
    assert find_cues(make_rows(texts), np.eye(2)[[0, 1] * (len(texts) // 2)])[0] == ()


def test_random_labels_have_no_cues():
    rows = reviews(2000, agreement=0.5)
    for seed in range(20):
        labels = np.random.default_rng(seed).integers(0, 2, len(rows))
        assert find_cues(rows, np.eye(2)[labels])[0] == ()


# The parts, against plain loops


@given(st.lists(st.lists(st.lists(st.sampled_from("ab1!."), max_size=12), min_size=2, max_size=2), max_size=8))
def test_phrases_are_those_of_a_plain_loop(texts: list[list[list[str]]]) -> None:
    expected: dict[tuple[str, ...], set[int]] = {}
    for row, both in enumerate(texts):
        for tokens in both:
            for length in (1, 2, 3):
                for begin in range(len(tokens) - length + 1):
                    expected.setdefault(tuple(tokens[begin : begin + length]), set()).add(row)
    for least in (1, 2, 3):
        frequent = {phrase: sorted(rows) for phrase, rows in expected.items() if len(rows) >= least}
        assert cues._phrases(texts, least) == frequent


@pytest.mark.parametrize(
    ("text", "first"),
    [("a b c d", "a b c"), ("! . a b c", "a b c"), (". a b ! c", ""), ("! a b", ""), ("!", ""), ("", "")],
)
def test_marks_may_precede_the_first_words_of_a_text_but_not_be_among_them(text: str, first: str) -> None:
    kinds = {"!": "mark", ".": "mark", "a": "", "b": "name", "c": "word", "d": ""}
    assert cues._first_words(text.split(), kinds) == tuple(first.split())


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), max_size=12), st.integers(5, 50), st.integers(0, 30))
@example([(20, 1.0), (7, 1.0)], 30, 0)  # Bonferroni's correction would drop the second
def test_significance_is_that_of_a_plain_loop(sizes: Sequence[tuple[int, float]], ones: int, more: int) -> None:
    ones_NC = np.zeros((60, 1))
    ones_NC[:ones] = 1
    made = []
    for size, share in sizes:
        inside = min(ones, size, max(size - (60 - ones), round(share * size)))
        rows = np.concatenate([np.arange(inside), np.arange(ones, ones + size - inside)])
        made.append(cues._Candidate((), "name", 0, rows.tolist(), inside))
    tested = len(made) + more
    expected: list[float] = []
    p_values = []
    for one in made:
        a, b = one.label_rows, len(one.rows) - one.label_rows
        p_values.append(float(fisher_exact([[a, b], [ones - a, 60 - ones - b]], alternative="greater").pvalue))
    for rank, p in enumerate(sorted(p_values)):
        if p * (tested - rank) > cues.ALPHA:
            break
        expected.append(p)
    p_of = {id(one): p for one, p in zip(made, p_values, strict=True)}
    got = cues._significant(made, ones_NC, tested)
    assert [p_of[id(one)] for one in got] == pytest.approx(expected, rel=1e-6)


PRINTED = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=8)


@given(st.lists(PRINTED, min_size=1, max_size=5))
def test_the_flag_of_the_cure_gives_the_words_back(words: list[str]) -> None:
    flag = ignore_flag(words)
    parser = Parser(prog="attentune train")
    add_config_flags(parser, only=("data",))
    parsed, problems = parser.parse(shlex.split(flag))
    assert config_from(parsed, problems).data.ignore_words == tuple(words)


# Real rows


def uci(file: Path) -> TextRows:
    lines = [line.rsplit("\t", 1) for line in file.read_text("utf-8").split("\n") if line.strip()]
    return make_rows([text.strip() for text, _ in lines], [int(label) for _, label in lines])


def test_reviews_of_films_and_shops_have_no_cues(data_dir: Path) -> None:
    sst2 = load_data(DataConfig(task="sst2", data_dir=str(data_dir / "glue_data")), seed=1, splits=("train",))
    assert found(sst2.splits["train"]) == ()
    for name in ("amazon_cells", "imdb", "yelp"):
        assert found(uci(data_dir / "uci" / f"{name}_labelled.txt")) == ()
