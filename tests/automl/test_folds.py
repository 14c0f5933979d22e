"""Folds of groups: no group is divided, classes are spread, and odd inputs get folds too."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.automl.folds import make_folds
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.splits import row_groups
from attentune.errors import DataError

BINARY = LabelSpace("classification", ("no", "yes"))


def rows_of(texts, labels, pairs=None):
    texts = tuple(texts)
    return TextRows(tuple(map(str, range(len(texts)))), texts, pairs and tuple(pairs), np.array(labels), "rows")


def same_group(first, second):
    """Whether two rows are linked directly, written plainly."""
    clean = [[" ".join(text.split()).casefold() for text in row] for row in (first, second)]
    return clean[0][0] == clean[1][0] or (len(clean[0]) == 2 and sorted(clean[0]) == sorted(clean[1]))


TEXT = st.sampled_from(["a", "A ", "b", " b", "c", "d e", "D  E", "f", "g", "h", "i", "j"])


@given(st.lists(st.tuples(TEXT, TEXT, st.integers(0, 2)), min_size=2, max_size=40), st.integers(2, 5), st.booleans())
def test_linked_rows_share_a_fold_and_every_fold_has_rows(drawn, folds, is_pair):
    texts, pairs, labels = zip(*drawn, strict=True)
    rows = rows_of(texts, labels, pairs if is_pair else None)
    group_N = row_groups(rows)
    fold_N = make_folds(rows, LabelSpace("classification", ("x", "y", "z")), folds=folds, seed=1)
    assert set(fold_N) == set(range(min(folds, group_N.max() + 1)))
    assert all(len(set(fold_N[group_N == group])) == 1 for group in range(group_N.max() + 1))
    # Plain closure of the links.
    cells = [(text, pair) if is_pair else (text,) for text, pair in zip(texts, pairs, strict=True)]
    reached = list(range(len(cells)))
    for _ in cells:
        for i, first in enumerate(cells):
            for j, second in enumerate(cells):
                if same_group(first, second):
                    reached[i] = reached[j] = min(reached[i], reached[j])
    if np.bincount(reached).max() <= max(1, len(cells) / 2):
        assert all(
            (group_N[i] == group_N[j]) == (reached[i] == reached[j]) for i in range(len(cells)) for j in range(i)
        )


@pytest.mark.parametrize("count", [20, 101])
def test_classes_of_single_rows_differ_by_at_most_one(count):
    labels = np.random.default_rng(0).integers(0, 3, count)
    fold_N = make_folds(
        rows_of(map(str, range(count)), labels), LabelSpace("ordinal", ("x", "y", "z")), folds=5, seed=2
    )
    for label in range(3):
        counts = np.bincount(fold_N[labels == label], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert np.ptp(np.bincount(fold_N)) <= 2


def test_large_groups_leave_the_classes_balanced():
    generator = np.random.default_rng(1)
    texts = [f"premise {n}" for n in generator.integers(0, 60, 300)]
    labels = generator.integers(0, 2, 300)
    fold_N = make_folds(rows_of(texts, labels, map(str, range(300))), BINARY, folds=5, seed=0)
    for label in (0, 1):
        shares = np.bincount(fold_N[labels == label], minlength=5) / (labels == label).sum()
        assert np.abs(shares - 0.2).max() < 0.03


def test_scores_and_label_sets_are_spread():
    scores = np.random.default_rng(2).exponential(size=200)
    fold_N = make_folds(rows_of(map(str, range(200)), scores), LabelSpace("regression"), folds=4, seed=0)
    assert np.ptp([np.median(scores[fold_N == fold]) for fold in range(4)]) < 0.2
    sets = (np.random.default_rng(3).random((200, 3)) < [0.5, 0.2, 0.06]).astype(np.int64)
    fold_N = make_folds(
        rows_of(map(str, range(200)), sets), LabelSpace("multi_label", ("x", "y", "z")), folds=4, seed=0
    )
    for label in range(3):
        counts = np.bincount(fold_N[sets[:, label] == 1], minlength=4)
        assert counts.max() - counts.min() <= 1 + 0.1 * counts.mean()


def test_the_seed_decides():
    rows = rows_of(map(str, range(50)), np.arange(50) % 2)
    first, again, other = (make_folds(rows, BINARY, folds=5, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_class_with_fewer_rows_than_folds():
    labels = np.array([1] * 2 + [0] * 38)
    fold_N = make_folds(rows_of(map(str, range(40)), labels), BINARY, folds=5, seed=0)
    assert len(set(fold_N[:2])) == 2
    assert np.ptp(np.bincount(fold_N)) <= 1


def test_a_group_of_most_rows_is_divided():
    labels = np.arange(30) % 2
    # One premise for 28 rows: pairs are linked by both texts only.
    rows = rows_of(["p"] * 28 + ["q", "q"], labels, ["same", "same", *map(str, range(28))])
    group_N = row_groups(rows)
    assert group_N[0] == group_N[1]
    assert group_N.max() + 1 == 28
    # One text for 28 rows: they are not linked.
    assert row_groups(rows_of(["p"] * 28 + ["q", "q"], labels)).max() + 1 == 29
    assert np.ptp(np.bincount(make_folds(rows_of(["p"] * 30, labels), BINARY, folds=5, seed=0))) == 0


def test_too_few_rows_and_missing_labels_are_refused():
    with pytest.raises(DataError, match="got 1 rows and 5 folds, expected at least 2 of each"):
        make_folds(rows_of(["a"], [0]), BINARY, folds=5, seed=0)
    unlabelled = TextRows(("0", "1"), ("a", "b"), None, None, "rows")
    with pytest.raises(DataError, match="expected labels in every row"):
        make_folds(unlabelled, BINARY, folds=2, seed=0)


def test_nearly_equal_texts_share_a_fold():
    texts = [f"RT @user{row}: the match tonight was decided by goal {row // 4} in the last minute" for row in range(8)]
    texts = [text.replace("goal", f"goal by {'Ada' if row < 4 else 'Bo'}") for row, text in enumerate(texts)]
    others = [f"something else {word} entirely" for word in "abcdefghijklmnop"]
    rows = rows_of([*texts, *others], np.arange(24) % 2)
    fold_N = make_folds(rows, BINARY, folds=4, seed=0)
    assert len(set(fold_N[:8])) == 1
    pairs = rows_of(
        ["q", *others[:3]] * 2, [0, 1] * 4, ["the cat sat on the mat today", "b", "c", "d", "e", "f", "g", "h"]
    )
    swapped = rows_of(["a b c d e f", "g h"], [0, 1], ["g h", "a b c d e x"])
    assert row_groups(pairs)[0] == row_groups(pairs)[4]
    assert len(set(row_groups(swapped))) == 2  # one group would be all rows
