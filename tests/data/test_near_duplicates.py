"""Nearly equal texts with other labels, against the comparison of all pairs."""

import random
import re
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from attentune.data.splits import ALIKE, near_duplicates, near_groups
from helpers.samples import make_rows


def jaccard(first: str, second: str) -> float:
    a, b = (Counter(re.findall(r"\w+", text.casefold())) for text in (first, second))
    return (a & b).total() / max(1, (a | b).total())


def test_pairs_are_those_of_the_comparison_of_all_texts() -> None:
    draw = random.Random(3)
    texts = [" ".join(draw.choices("abcdefghij", k=draw.randint(5, 9))) for _ in range(60)]
    texts += [" ".join([*text.split()[:-1], "z"]) for text in texts]
    labels = [draw.randint(0, 2) for _ in texts]
    rows = make_rows(texts, labels)
    found = {pair.second: pair for pair in near_duplicates(rows)}
    for later in range(len(texts)):
        alike = [
            jaccard(texts[earlier], texts[later])
            for earlier in range(later)
            if labels[earlier] != labels[later] and texts[earlier] != texts[later]
        ]
        best = max(alike, default=0.0)
        assert (later in found) == (best >= ALIKE), texts[later]
        if later in found:
            pair = found[later]
            assert pair.similarity == best == jaccard(texts[pair.first], texts[later])
    assert len(found) > 5


def test_case_and_punctuation_do_not_count_but_equal_texts_are_left_to_the_conflicts() -> None:
    rows = make_rows(["So good!", "so good", "so good", "so bad", "So good!"], [0, 1, 0, 1, 1])
    assert [pair[:3] for pair in near_duplicates(rows)] == [(0, 1, 1.0), (2, 4, 1.0)]


def test_the_second_texts_of_pairs_count_as_texts_of_their_own() -> None:
    texts = ["one two three four five six"] * 2
    rows = make_rows(texts, [0, 1], ["a cat sat here", "a dog sat here"])
    (pair,) = near_duplicates(rows)
    assert pair.similarity == 9 / 11
    assert pair.words == (["cat"], ["dog"])
    assert near_duplicates(make_rows(texts, [0, 1], ["a cat sat", "the dog ran"])) == []


def test_retweets_filled_templates_and_copies_are_in_one_group():
    tweet = "Trains are late again this morning, thank you so much"
    template = "Your parcel {} of order {} will arrive on Monday before noon"
    texts = [
        tweet,
        f"RT @anna: {tweet} https://t.co/x1",
        f"RT @bob_2: {tweet.lower()}!! @carol",
        template.format(1234, 99),
        template.format(5678, 42),
        "Trains are full",
        "are trains full?",
        "Trains are late",
        "\N{GRINNING FACE}",
        "\N{GRINNING FACE} ",
        "\N{POUTING FACE}",
    ]
    groups = near_groups(texts)
    assert [groups.index(number) for number in groups] == [0, 0, 0, 3, 3, 5, 5, 7, 8, 8, 10]
    # Where numbers may be what the label is about, they are words.
    long = "in the year {} the town had more than a hundred houses"
    assert len(set(near_groups([long.format(1900), long.format(2000)], numbers=True))) == 1
    assert len(set(near_groups(["it was the year of 1900", "it was the year of 2000"], numbers=True))) == 2
    assert len(set(near_groups(["it was the year of 1900", "it was the year of 2000"]))) == 1


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=12), max_size=12))
def test_groups_are_those_of_comparing_each_with_every_other(texts):
    words = [Counter(text) for text in texts]
    groups = near_groups([" ".join(text) for text in texts])
    reached = list(range(len(words)))
    for _ in words:
        for i, first in enumerate(words):
            for j, second in enumerate(words):
                common, either = (first & second).total(), (first | second).total()
                is_long = min(first.total(), second.total()) >= 5
                if first == second or (is_long and common >= ALIKE * either):
                    reached[i] = reached[j] = min(reached[i], reached[j])
    assert [groups.index(one) for one in groups] == [reached.index(one) for one in reached]
