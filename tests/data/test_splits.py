"""Stratified parts, folds and splits of one file: sizes, balance, and equal texts on one side."""

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import DataConfig, load_config
from attentune.data.doctor import examine
from attentune.data.load import load_data
from attentune.data.splits import (
    ALIKE,
    fold_rows,
    near_groups,
    normalised,
    row_groups,
    split_rows,
    stratified_folds,
    stratified_sample,
    stratified_split,
)
from attentune.runs.search_settings import Search, SearchSettings, Space
from attentune.runs.trials import rows_of
from helpers.samples import make_rows, write_reviews

class_labels = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(lambda values: np.array(values, dtype=np.int64))


@given(labels=class_labels, size=st.integers(1, 70))
def test_a_part_has_its_size_balance_and_order(labels, size):
    places = stratified_sample(labels, size, 1)
    size = min(size, len(labels))
    assert len(places) == size
    assert np.all(np.diff(places) > 0)
    classes, counts = np.unique(labels, return_counts=True)
    taken = np.array([np.count_nonzero(labels[places] == label) for label in classes])
    assert np.all(taken <= counts)
    if size >= len(classes):
        assert np.all(taken >= 1)
    # Within one row of the exact share, but for the rows that the least of one a class moves about.
    assert np.all(np.abs(taken - counts * size / len(labels)) < 1 + len(classes))


def test_shares_are_exact_where_they_can_be():
    labels = np.repeat([0, 1, 2], [600, 300, 100])
    assert np.bincount(labels[stratified_sample(labels, 100, 3)]).tolist() == [60, 30, 10]
    assert np.bincount(labels[stratified_sample(labels, 10, 3)]).tolist() == [6, 3, 1]


def test_only_the_key_decides():
    labels = np.arange(1000) % 3
    first = stratified_sample(labels, 50, 1, "train")
    np.random.default_rng(0).random(5)
    assert np.array_equal(first, stratified_sample(labels, 50, 1, "train"))
    assert not np.array_equal(first, stratified_sample(labels, 50, 2, "train"))
    assert not np.array_equal(first, stratified_sample(labels, 50, 1, "validation"))


def test_scores_keep_their_spread():
    scores = np.linspace(0.0, 5.0, 1000)
    part = scores[stratified_sample(scores, 100, 1)]
    tenths = np.histogram(part, bins=10, range=(0, 5))[0]
    assert np.all(np.abs(tenths - 10) <= 1)
    constant = stratified_sample(np.zeros(20), 5, 1)
    assert len(constant) == 5


def test_without_labels_all_rows_count_alike():
    places = stratified_sample(None, 10, 1, num_rows=100)
    assert len(np.unique(places)) == 10
    assert places.max() < 100
    assert not np.array_equal(places, np.arange(10))


@given(labels=class_labels.filter(lambda values: len(values) > 1), share=st.floats(0.001, 0.9), seed=st.integers(0, 9))
def test_a_cut_loses_nothing_and_keeps_every_class_in_the_first_part(labels, share, seed):
    first, second = stratified_split(labels, share, seed)
    assert np.array_equal(np.sort(np.concatenate([first, second])), np.arange(len(labels)))
    assert len(first) >= 1
    assert len(second) >= 1
    if np.bincount(labels).max() > 1:
        assert set(labels[first]) == set(labels)
    assert np.all(np.diff(first) > 0)
    assert np.all(np.diff(second) > 0)


def test_a_cut_has_the_share_and_the_balance():
    labels = np.repeat([0, 1], [800, 200])
    first, second = stratified_split(labels, 0.1, 42)
    assert np.bincount(labels[second]).tolist() == [80, 20]
    assert np.bincount(labels[first]).tolist() == [720, 180]
    assert not np.array_equal(second, stratified_split(labels, 0.1, 43)[1])


def test_rare_labels_are_in_every_part():
    """A label that 1 row in 20 has beside a common one, and rows without any."""
    labels = np.zeros((200, 3), dtype=np.int64)
    labels[:180, 0] = 1
    labels[::20, 1] = 1
    labels[100:150, 2] = 1
    kept, cut = stratified_split(labels, 0.2, 7)
    assert len(cut) == 40
    assert sorted([*kept, *cut]) == list(range(200))
    assert labels[cut].sum(axis=0)[1] == 2
    assert labels[cut].any(axis=1).sum() in range(34, 39)
    assert labels[stratified_sample(labels, 20, 7)].sum(axis=0)[1] == 1
    assert [labels[part].sum(axis=0)[1] for part in stratified_folds(labels, 5, 7)] == [2, 2, 2, 2, 2]


def overlap(rows, first, second):
    keys = [tuple(map(normalised, row)) for row in zip(rows.texts, rows.pairs or rows.texts, strict=True)]
    return {keys[place] for place in first} & {keys[place] for place in second}


WORDS = st.lists(st.sampled_from("abcdefghijkl"), min_size=1, max_size=3).map(" ".join)


@given(
    drawn=st.lists(st.tuples(WORDS, WORDS, st.integers(0, 2)), min_size=2, max_size=40),
    share=st.floats(0.05, 0.5),
    is_pair=st.booleans(),
)
def test_equal_texts_are_on_one_side_unless_the_note_warns(drawn, share, is_pair):
    texts, pairs, labels = zip(*drawn, strict=True)
    rows = make_rows(texts, labels, pairs if is_pair else None)
    first, second, note = split_rows(rows, share, 1)
    assert sorted([*first, *second]) == list(range(len(rows)))
    assert len(first) >= 1
    assert len(second) >= 1
    assert not overlap(rows, first, second) or "Warning" in note
    if len(set(row_groups(rows, largest=1.0))) == len(rows):
        plain = stratified_split(rows.labels, share, 1)
        assert note == ""
        assert np.array_equal(second, plain[1])


def test_a_grouped_cut_has_the_share_and_the_balance():
    words = [f"{first}{second}" for first in "abcdefghijklmnopqrst" for second in "abcdefghij"]
    texts = [f"{word} {word}x" for word in words for _ in range(1 + hash_of(word) % 4)]
    labels = [hash_of(text) % 3 // 2 for text in texts]
    rows = make_rows(texts, labels)
    first, second, note = split_rows(rows, 0.2, 1)
    assert not overlap(rows, first, second)
    assert "stay together" in note
    shares = np.bincount(rows.labels[second]) / np.bincount(rows.labels)
    assert np.abs(shares - 0.2).max() < 0.02
    folds, _ = fold_rows(rows, 5, 1)
    assert sorted(np.concatenate(folds)) == list(range(len(rows)))
    for fold in folds:
        assert not overlap(rows, fold, np.setdiff1d(np.arange(len(rows)), fold))
        shares = np.bincount(rows.labels[fold]) / np.bincount(rows.labels)
        assert np.abs(shares - 0.2).max() < 0.02


def hash_of(text):
    return sum(place * ord(sign) for place, sign in enumerate(text, start=3)) // 3


def test_invisible_differences_case_and_the_order_of_pairs_do_not_separate_rows():
    twins = ["caf\u00e9 au lait", "Cafe\u0301  au\u200b lait\n"]
    others = [f"{word} {word}" for word in "bcdefghijklmnopqrstuvwxyz"]
    groups = row_groups(make_rows([*twins, *others], [0, 1] * 13 + [0]))
    assert groups[0] == groups[1]
    assert len(set(groups)) == 26
    swapped = row_groups(make_rows(["a b", "C", *others], [0, 1] * 13 + [0], ["c", "A B", *map(str.upper, others)]))
    assert swapped[0] == swapped[1]
    assert len(set(swapped)) == 26


def test_texts_that_cannot_be_separated_are_split_plainly_with_a_warning():
    rows = make_rows(["same"] * 20, [0, 1] * 10)
    first, second, note = split_rows(rows, 0.2, 1)
    assert np.array_equal(second, stratified_split(rows.labels, 0.2, 1)[1])
    assert "Warning: 20 rows (100.0 %)" in note
    folds, note = fold_rows(rows, 4, 1)
    assert [*map(len, folds)] == [5] * 4
    assert "Warning" in note
    # One text for most of the rows: it stays in the first part.
    rows = make_rows(["same"] * 15 + [*"abcde"], [0, 1] * 10)
    first, second, note = split_rows(rows, 0.2, 1)
    assert not overlap(rows, first, second)
    assert {rows.texts[place] for place in second} <= set("abcde")
    # Each text has a class of its own, which no part may lose.
    rows = make_rows(["no"] * 10 + ["yes"] * 10, [0] * 10 + [1] * 10)
    first, second, note = split_rows(rows, 0.2, 1)
    assert np.bincount(rows.labels[first]).tolist() == [8, 8]
    assert "Warning" in note


def test_folds_without_equal_texts_are_those_without_groups():
    rows = make_rows([f"{word}{word}" for word in "abcdefghijklmnopqrstuvwxyz"], [0, 1] * 13)
    folds, note = fold_rows(rows, 5, "folds", 1)
    assert all(map(np.array_equal, folds, stratified_folds(rows.labels, 5, "folds", 1)))
    assert note == ""


# Cross-validation: every row is scored on once, parts are stratified, and validation rows stay unseen


def load(folder: Path, splits: Any = None, seed: int = 1, **settings: Any) -> Any:
    if not (folder / "train.csv").exists():
        write_reviews(folder / "train.csv", 50, seed=1)
    return load_data(DataConfig(train_file=str(folder / "train.csv"), **settings), seed=seed, splits=splits)


def test_every_row_is_scored_on_once_and_never_trained_on_then(tmp_path):
    whole = load(tmp_path, splits=("train",), validation_share=0.02)
    seen = []
    for fold in range(1, 6):
        data = load(tmp_path, folds=5, fold=fold)
        assert list(data.splits) == ["train", "validation"]
        train, scored = data.splits["train"], data.splits["validation"]
        assert len(scored) == 10
        assert not set(train.ids) & set(scored.ids)
        assert len(train) == 40
        share = whole.splits["train"].labels.mean()
        assert abs(scored.labels.mean() - share) <= 0.1
        seen += scored.ids
        assert f"Fold {fold} of 5: 10 of the 50 training rows are scored on, the other 40 trained on" in data.notes[-1]
    assert sorted(seen) == sorted(f"r{number}" for number in range(50))


def test_the_cut_depends_on_its_own_seed_alone(tmp_path):
    one, same = (load(tmp_path, folds=5, fold=2, seed=seed).fingerprint() for seed in (1, 7))
    other = load(tmp_path, folds=5, fold=2, fold_seed=2).fingerprint()
    assert one == same
    assert one["validation"] != other["validation"]


def test_splits_are_made_as_they_are_asked_for(tmp_path):
    whole = load(tmp_path, folds=5, fold=2).splits
    for splits in (("train",), ("validation",), ("train", "validation")):
        found = load(tmp_path, splits=splits, folds=5, fold=2).splits
        assert tuple(found) == splits
        assert all(rows.fingerprint() == whole[name].fingerprint() for name, rows in found.items())


def test_validation_rows_stay_unseen_and_test_rows_stay(tmp_path):
    files = {name: str(write_reviews(tmp_path / f"{name}.csv", 9, seed=3)) for name in ("validation_file", "test_file")}
    data = load(tmp_path, folds=5, fold=1, **files)
    assert {name: len(rows) for name, rows in data.splits.items()} == {"train": 40, "validation": 10, "test": 9}
    assert "The rows of validation are not used." in data.notes[-1]


def test_calibration_and_sizes_go_on_top(tmp_path):
    data = load(tmp_path, folds=5, fold=1, calibration_share=0.25, max_train_samples=20)
    assert {name: len(rows) for name, rows in data.splits.items()} == {"train": 20, "calibration": 10, "validation": 10}


# The splits that are made of one file keep rows with equal texts on one side


DISTINCT = ("warm", "cold", "kind", "rude", "quick", "slow", "lovely", "dull", "clean", "noisy")
# Each text as it is, with other case and spaces, decomposed accents, and an invisible sign.
FORMS = ("{} caf\u00e9", " {} CAF\u00c9 ", "{}  cafe\u0301", "{}\u200b caf\u00e9")


def write(path: Path, *, pairs: bool = False) -> str:
    rows = []
    for number, form in enumerate(FORMS):
        for word in DISTINCT:
            one, other = form.format(word), form.format(word[::-1])
            if pairs and number % 2:
                one, other = other, one
            label = "pos" if DISTINCT.index(word) % 2 == 0 else "neg"
            rows.append({"text": one, "label": label} | ({"text2": other} if pairs else {}))
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def keys(rows):
    both = zip(rows.texts, rows.pairs or [""] * len(rows), strict=True)
    return {frozenset(map(normalised, row)) for row in both}


@pytest.mark.parametrize(("name", "pairs"), [("a.csv", False), ("a.tsv", False), ("a.jsonl", False), ("a.csv", True)])
def test_no_text_is_in_two_splits(tmp_path, name, pairs):
    given = {"data.train_file": write(tmp_path / name, pairs=pairs), "data.text_column": "text"}
    if pairs:
        given["data.text_pair_column"] = "text2"
    for settings in (
        {},
        {"data.validation_share": 0.3, "data.calibration_share": 0.3, "training.calibrate": "temperature"},
        {"data.folds": 5, "data.fold": 2},
        {"data.folds": 3, "data.fold": 1, "data.calibration_share": 0.3, "training.calibrate": "temperature"},
    ):
        data = load_data(load_config(overrides=given | settings).data, seed=1)
        parts = [keys(rows) for rows in data.splits.values()]
        assert len(parts) == 2 + ("data.calibration_share" in settings)
        assert sum(map(len, parts)) == len(set.union(*parts)) == len(DISTINCT)
        assert all(len(set(rows.labels)) == 2 for rows in data.splits.values())
        together = [note for note in data.notes if re.search("rows .100.0 %. with equal.* texts stay together", note)]
        assert len(together) == len(parts) - 1
        assert not [finding for finding in examine(data).findings if finding.kind == "leak"]
    data = rows_of(Search(SearchSettings(), Space(), {}, 42), load_config(overrides=given))
    assert not keys(data.splits["train"]) & keys(data.splits["validation"])
    assert "stay together" in data.notes[-1]


def test_a_leak_that_cannot_be_avoided_is_not_put_down_to_the_user(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("text,label\n" + "good one,pos\nbad one,neg\n" * 20)
    data = load_data(load_config(overrides={"data.train_file": str(path)}).data, seed=1)
    assert any("Warning: 40 rows (100.0 %) with equal texts could not be kept together" in note for note in data.notes)
    (leak,) = [finding for finding in examine(data).findings if finding.kind == "leak"]
    assert "cut from one file with too few different texts" in leak.cure
    other = tmp_path / "other.csv"
    other.write_text("text,label\nGood  one,pos\n")
    given = {"data.train_file": str(path), "data.validation_file": str(other)}
    (leak,) = [f for f in examine(load_data(load_config(overrides=given).data, seed=1)).findings if f.kind == "leak"]
    assert leak.cure == "Remove these rows from train."


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
