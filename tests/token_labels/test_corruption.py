"""Corrupted texts: one changed word in a share of the rows, and labels that say which."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import LabelsConfig
from attentune.data.dataset import LabelSpace
from attentune.data.tokenization import Features, TokenWords
from attentune.token_labels.base import LabelSource, PredictionComparator
from attentune.token_labels.corruption import Corruption, are_forms
from attentune.token_labels.plan import EpochPlan

CLS, SEP = 1, 2
# Words by their token ids: "walked" and "ships" have two tokens.
WORDS = {
    "the": (10,),
    "a": (11,),
    "walk": (12,),
    "walked": (12, 13),
    "ship": (14,),
    "ships": (14, 15),
    "red": (16,),
    "sea": (17,),
}


def rows_of_words(*texts: str, pairs: bool = False) -> tuple[Features, TokenWords]:
    """Return rows of these words; with pairs, a row's two texts are separated by "|"."""
    ids, types, special, starts, seconds = [], [], [], [0], []
    first, end, numbers, words = [], [], [0], []
    for text in texts:
        for segment, part in enumerate(text.split("|") if pairs else [text]):
            if segment == 0:
                ids, types, special = [*ids, CLS], [*types, 0], [*special, True]
            else:
                seconds.append(len(ids) - starts[-1])
            for word in part.split():
                first.append(len(ids))
                ids += WORDS[word]
                end.append(len(ids))
                words.append(word)
            new = len(ids) - len(types)
            types, special = [*types, *[segment] * new], [*special, *[False] * new]
            ids, types, special = [*ids, SEP], [*types, segment], [*special, True]
        starts.append(len(ids))
        numbers.append(len(words))
    features = Features(
        ids=np.array(ids, np.int32),
        type_ids=np.array(types, np.int8),
        special=np.array(special),
        starts=np.array(starts),
        full_lengths=np.diff(starts),
        second_starts=np.array(seconds) if pairs else None,
    )
    return features, TokenWords(np.array(first), np.array(end), np.array(numbers), tuple(words))


def generator_of(*texts: str, ratio: float = 1.0, seed: int = 3, pairs: bool = False) -> Corruption:
    features, words = rows_of_words(*texts, pairs=pairs)
    comparator = PredictionComparator(LabelSpace("classification", ("text",)))
    source = LabelSource(features, np.zeros(len(features), np.int64), comparator, None, -1, seed, lambda: words)
    return Corruption(LabelsConfig("corruption", ratio=ratio), source)


def sample(plan: EpochPlan, row: int) -> tuple[list[int], list[float], list[int]]:
    """Return the token ids, labels and segments of a sample."""
    whole = plan.features.row(row)
    return (
        plan.features.ids[whole].tolist(),
        plan.token_labels.sample(row).tolist(),
        plan.features.type_ids[whole].tolist(),
    )


def changes_by_a_plain_rule(text: str, vocabulary: list[str], longest: int) -> set[tuple[tuple[int, ...], ...]]:
    """Return all (ids, labels) that one change of a word can give, as the docstring says."""
    words = text.split()
    made = set()

    def add(kept: list[tuple[str, float]]) -> None:
        ids = (CLS, *(token for word, _ in kept for token in WORDS[word]), SEP)
        labels = (-1.0, *(label for word, label in kept for _ in WORDS[word]), -1.0)
        if len(ids) <= longest:
            made.add((ids, labels))

    for place, word in enumerate(words):
        plain = [(one, 0.0) for one in words]
        if len(words) > 1:
            marked = place + 1 if place + 1 < len(words) else place - 1
            add([(one, float(number == marked)) for number, one in enumerate(words) if number != place])
        add([*plain[: place + 1], (word, 1.0), *plain[place + 1 :]])
        for other in vocabulary:
            if other != word:
                add([*plain[:place], (other, 1.0), *plain[place + 1 :]])
        # The last word is exchanged with the one before, which is the same as that one with the last.
        if place + 1 < len(words) and words[place + 1] != word:
            add([*plain[:place], (words[place + 1], 1.0), (word, 1.0), *plain[place + 2 :]])
    return made


TEXTS = st.lists(st.lists(st.sampled_from(sorted(WORDS)), min_size=1, max_size=6).map(" ".join), min_size=1, max_size=5)


@given(TEXTS, st.integers(0, 1000))
def test_a_changed_row_is_one_of_those_that_the_rule_allows(texts, seed):
    made = generator_of(*texts, seed=seed).plan(0)
    vocabulary = sorted({word for text in texts for word in text.split()})
    features = rows_of_words(*texts)[0]
    longest = int(features.lengths.max())
    for row, text in enumerate(texts):
        ids, labels, _ = sample(made, row)
        if 1.0 not in labels:
            assert ids == features.ids[features.row(row)].tolist()
            continue
        assert (tuple(ids), tuple(labels)) in changes_by_a_plain_rule(text, vocabulary, longest)


def test_the_share_of_changed_rows():
    generator = generator_of(*["the red ship walked", "a red sea"] * 500, ratio=0.5)
    made = generator.plan(0)
    changed = sum(1.0 in made.token_labels.sample(row) for row in range(1000))
    assert 440 < changed < 560
    assert not any(1.0 in generator_of("a sea", "the ship", ratio=0.0).plan(0).token_labels.values for _ in range(5))


def test_a_plan_is_a_function_of_seed_epoch_and_row():
    texts = ["the red ship walked", "a red sea", "the ships walk the sea"]
    first, again = generator_of(*texts).plan(2), generator_of(*texts).plan(2)
    assert np.array_equal(first.features.ids, again.features.ids)
    others = [generator_of(*texts).plan(3), generator_of(*texts, seed=4).plan(2)]
    assert all(not np.array_equal(first.features.ids, other.features.ids) for other in others)
    # Rows that follow change what words there are, but not which rows are changed.
    longer = generator_of(*texts, "a sea", ratio=0.5).plan(2)
    before = generator_of(*texts, ratio=0.5).plan(2)
    assert [1.0 in longer.token_labels.sample(row) for row in range(3)] == [
        1.0 in before.token_labels.sample(row) for row in range(3)
    ]


def test_words_of_a_pair_stay_in_their_text():
    texts = ["the red | a sea", "a | ship", "the ships walk | the red sea"]
    generator = generator_of(*texts, pairs=True)
    original = rows_of_words(*texts, pairs=True)[0]
    for epoch in range(60):
        made = generator.plan(epoch)
        for row in range(3):
            ids, _, types = sample(made, row)
            assert [token for token in ids if token <= SEP] == [CLS, SEP, SEP]
            between = ids.index(SEP)
            assert types == [0] * (between + 1) + [1] * (len(ids) - between - 1)
            # The second text begins after the first one's [SEP].
            assert made.features.second_starts[row] == between + 1
        assert made.features.lengths.max() <= original.lengths.max()


def test_a_row_of_one_word_is_left_as_it_is():
    made = generator_of("sea", "the red ship").plan(0)
    assert sample(made, 0)[:2] == ([CLS, 17, SEP], [-1.0, 0.0, -1.0])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("walk", "walked", True),
        ("walk", "walks", True),
        ("walking", "walked", True),
        ("make", "making", True),
        ("story", "stories", True),
        ("walk", "walk", False),
        ("sea", "see", False),
        ("interesting", "interval", False),
        ("he", "her", False),
        ("form", "formidable", False),
    ],
)
def test_what_counts_as_a_form_of_a_word(first, second, expected):
    assert are_forms(first, second) is are_forms(second, first) is expected


def test_without_words_the_error_says_what_is_missing():
    features, _ = rows_of_words("the sea")
    source = LabelSource(features, np.zeros(1, np.int64), None, None, -1, 1)
    with pytest.raises(ValueError, match=r"LabelSource\.words"):
        Corruption(LabelsConfig("corruption"), source).plan(0)
