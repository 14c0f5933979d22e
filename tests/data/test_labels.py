"""Labels are mapped by name; what cannot be mapped is listed with its place."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from attentune.config.schema import DataConfig
from attentune.data.dataset import LabelSpace
from attentune.data.labels import (
    LabelReader,
    check_same_labels,
    decide_task_type,
    find_space,
    label_key,
    parse_number,
    task_type_doubt,
)
from attentune.data.tables import Table
from attentune.errors import ConfigError, LabelError

CLASSES = LabelSpace("classification", ("bad", "good"))
SCORES = LabelSpace("regression")


@pytest.mark.parametrize(
    ("space", "job"),
    [
        (CLASSES, "sorts a text into bad or good"),
        (LabelSpace("classification", ("a", "b", "c")), "sorts a text into a, b or c"),
        (LabelSpace("ordinal", ("low", "high")), "sorts a text into the ordered classes low or high"),
        (LabelSpace("multi_label", ("late", "rude", "cold")), "gives a text any of the labels late, rude and cold"),
        (SCORES, "gives a text a score"),
        (
            LabelSpace("classification", tuple(f"c{n}" for n in range(77))),
            "sorts a text into 77 classes (c0, c1, c2, ...)",
        ),
        (LabelSpace("ordinal", tuple(map(str, range(9)))), "sorts a text into 9 ordered classes (0, 1, 2, ...)"),
        (LabelSpace("multi_label", tuple("abcdefgh")), "gives a text any of 8 labels (a, b, c, ...)"),
        (LabelSpace("classification", ("yes", "no, never")), "sorts a text into yes or 'no, never'"),
        (LabelSpace("classification", ("a\nb", "only")), "sorts a text into a\\nb or only"),
    ],
)
def test_what_a_model_does_is_a_sentence(space, job):
    assert space.job(is_pair=False) == job
    assert space.job(is_pair=True) == job.replace("a text", "a pair of texts")
    assert SCORES.job(is_pair=False, score_range=(0.5, 1984.0)) == "gives a text a score from 0.5 to 1984"


def table(labels: list[Any], class_names: tuple[str, ...] | None = None) -> Table:
    declared = {} if class_names is None else {"label": class_names}
    return Table("rows.csv", ("label",), {"label": labels}, len(labels), tuple(range(2, 2 + len(labels))), declared)


def names_of(labels: list[str], task_type: str = "classification", **settings: Any) -> tuple[str, ...]:
    return find_space(task_type, DataConfig(**settings), table(labels), "label")[0].names


ORDER, NEGATIVE = LabelSpace("classification", ("1", "1.0", "2")), LabelSpace("classification", ("-1", "1"))


@pytest.mark.parametrize(
    ("space", "options", "cells", "expected"),
    [
        *(
            (LabelSpace("classification", names), {}, [*"caba"], [names.index(name) for name in "caba"])
            for names in permutations("abc")
        ),
        # Values stand for names, and spaces do not count.
        (CLASSES, {"values": {"0": "bad", "1": "good", "1.0": "good"}}, ["1", "good", " 0 ", "1.0"], [1, 1, 0, 1]),
        (ORDER, {}, ["1.0", "1", "2.0"], [1, 0, 2]),
        (NEGATIVE, {"is_test": True}, ["-1", "-1"], [0, 0]),
        (SCORES, {}, ["0", "3.25", "5.0", "1e0"], [0.0, 3.25, 5.0, 1.0]),
        # A test split may have no labels at all.
        *((CLASSES, {"is_test": True}, cells, None) for cells in (["", ""], [None, None], ["-1", "-1"], ["-1", ""])),
    ],
)
def test_labels_are_read_as_ids_of_classes_or_as_scores(space, options, cells, expected):
    made = {name: value for name, value in options.items() if name != "is_test"}
    labels = LabelReader(space, **made).read(table(cells), "label", is_test="is_test" in options).labels
    assert expected == (None if labels is None else labels.tolist())
    assert labels is None or labels.dtype == (np.float64 if space is SCORES else np.int64)


@pytest.mark.parametrize(
    ("space", "cells", "message"),
    [
        *((CLASSES, ["bad", missing], "rows.csv:3: column 'label' has no label here") for missing in ("", "  ", None)),
        *((CLASSES, cells, "rows.csv:[23]: ") for cells in (["", ""], [None, None], ["-1", "-1"], ["-1", ""])),
        *(
            (SCORES, ["1.0", text], "rows.csv:3: label .* expected a finite number")
            for text in ("nan", "inf", "-Infinity", "good", "3,5", "1_0", "٣")
        ),
    ],
)
def test_labels_that_cannot_be_read_are_told_with_their_line(space, cells, message):
    reader = LabelReader(space)
    assert "finite" not in message or parse_number(cells[1]) is None
    for is_test in (False, True)[: 1 + (cells[0] == "bad")]:
        with pytest.raises(LabelError, match=f"^{message}"):
            reader.read(table(cells), "label", is_test=is_test)


@pytest.mark.parametrize(
    ("labels", "settings", "expected"),
    [
        (["b", "a", "c", "b"], {}, ("a", "b", "c")),
        (["10", "9", "-1", "2"], {}, ("-1", "2", "9", "10")),
        (["10.0", "9.5", "-1", "2"], {}, ("-1", "2", "9.5", "10.0")),
        (["10", "9", "x"], {}, ("10", "9", "x")),
        # The most frequent spelling is the name, but none with invisible characters.
        (["1", "1.0", "1.0", "0"], {}, ("0", "1.0")),
        (["1", "1.0", "0"], {}, ("0", "1")),
        (["a\u200b", "a\u200b", "a", "b"], {}, ("a", "b")),
        (["b", "a"], {"label_names": ("b", "c", "a")}, ("b", "c", "a")),
        (["1", "1.0", "2"], {"label_names": ORDER.names}, ORDER.names),
        (["3", "1", "2"], {"task_type": "ordinal"}, ("1", "2", "3")),
        (["10.0", "2.5", "1", "2.50", "2.5"], {"task_type": "ordinal"}, ("1", "2.5", "10.0")),
        (["low", "high"], {"task_type": "ordinal", "label_names": ("low", "high")}, ("low", "high")),
        (["1.5", "2.5"], {"task_type": "regression"}, ()),
        # A few rows may have a class each, and one repeated label is enough.
        ([f"id {number}" for number in range(10)], {}, tuple(f"id {number}" for number in range(10))),
        ([f"id {number}" for number in [*range(10), 0]], {}, tuple(f"id {number}" for number in range(10))),
        ([str(number / 7) for number in range(11)], {"task_type": "regression"}, ()),
    ],
)
def test_classes_have_their_names_in_order(labels, settings, expected):
    assert names_of(labels, **settings) == expected


@pytest.mark.parametrize(
    ("labels", "settings", "message"),
    [
        *(
            (["a", "b"], {"label_names": names}, "label_names: .* at least two names, each once")
            for names in (("a",), ("a", "a"), ("a", "b", "a"), ())
        ),
        (["low", "high"], {"task_type": "ordinal"}, "needs its labels in order.*high, low.*label_names"),
        (["1.5"], {"task_type": "regression", "label_names": ("a", "b")}, "label_names"),
        (["a", "a", "a"], {}, "holds only the label 'a', expected at least two classes"),
        (["a", "a", ""], {}, "rows.csv:4: column 'label' has no label here"),
        (
            [f"id {number}" for number in range(11)],
            {},
            r"a different label in each of its 11 rows .*Is it an id or a free text\?",
        ),
    ],
)
def test_classes_that_cannot_be_are_refused(labels, settings, message):
    with pytest.raises(ConfigError if "label_names" in message else LabelError, match=message):
        names_of(labels, **settings)


def test_names_that_a_data_set_declares_keep_their_order():
    space, _ = find_space("classification", DataConfig(), table(["b", "a"], ("z", "b", "a")), "label")
    assert space.names == ("z", "b", "a")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1", "1.0"),
        ("4", "4.000"),
        ("-1", "-1.0"),
        ("+1", "1"),
        ("0", "-0.0"),
        ("pos", "pos\u200b"),
        ("pos", "\ufeffpos"),
        ("po\u00ads", "pos"),
        ("n\u00e9", "ne\u0301"),
        ("very good", "very\u00a0good"),
        ("a\r\nb", "a\nb"),
    ],
)
def test_labels_that_look_or_count_the_same_are_one_class(first, second):
    assert label_key(first) == label_key(second)
    rows = table([second, first, first, "other", "other"])
    space, _ = find_space("classification", DataConfig(), rows, "label")
    assert len(space.names) == 2
    labels, _, note = LabelReader(space).read(rows, "label")
    assert labels[0] == labels[1] == labels[2] != labels[3]
    assert note.isprintable()
    assert "(1 row)" in note or "(2 rows)" in note


@pytest.mark.parametrize(
    ("first", "second"),
    [("1", "01"), ("1.1", "1.10"), ("true", "True"), ("1", "true"), ("2.5", "2.50"), ("1", "one"), ("\U0001f3f4", "x")],
)
def test_labels_that_only_may_be_the_same_stay_apart(first, second):
    assert label_key(first) != label_key(second)
    assert len(names_of([first, second])) == 2
    reader = LabelReader(LabelSpace("classification", names_of([first, second])))
    assert reader.read(table([first]), "label").note is None


def test_unknown_labels_are_all_listed_with_the_first_place_of_each():
    with pytest.raises(LabelError) as caught:
        LabelReader(CLASSES).read(table(["bad", "goood", "ugly", "goood", "good"]), "label")
    message = str(caught.value)
    assert message.startswith("rows.csv:3: unknown labels: 'goood' (first at rows.csv:3. Did you mean 'good'?)")
    assert "'ugly' (first at rows.csv:4)" in message
    assert "Known: 'bad', 'good'." in message
    assert message.count("goood") == 1


@pytest.mark.parametrize(
    ("names", "column", "cure"),
    [
        (["0.5", "1", "1.5"], "label", "ordinal (3 classes"),
        (["1,5", "2,5", "3"], "grade", "ordinal (3 classes"),
        (["0", "2.5", "n/a"], "grade", "ordinal (2 classes"),
        ([f"{number / 10}" for number in range(1, 23)], "label", "regression (scores) or classification"),
        ([str(number) for number in range(21)], "score", "regression (scores) or classification"),
        ([str(3 * number) for number in range(21)], "label", "regression"),
        ([str(year) for year in range(1950, 1980)], "class", "regression"),
        # Numbers and names that are classes.
        (["1", "2", "3", "4", "5"], "score", None),
        (["0.0", "1.0"], "score", None),
        (["-1", "0", "1"], "label", None),
        ([str(number) for number in range(77)], "label", None),
        ([str(number) for number in range(1, 31)], "intent_id", None),
        ([f"intent {number}" for number in range(30)], "score", None),
        (["1.5", "good"], "score", None),
    ],
)
def test_numbers_that_may_be_scores_are_doubtful(names, column, cure):
    doubt = task_type_doubt(names, column)
    assert (doubt is None) == (cure is None)
    assert cure is None or (repr(column) in doubt[0] and cure in doubt[1])


def test_the_task_type_is_the_asked_else_classification():
    assert decide_task_type(DataConfig(task_type="ordinal"), columns=1, reading=None)[0] == "ordinal"
    task_type, note = decide_task_type(DataConfig(), columns=1, reading=None)
    assert task_type == "classification"
    assert "the default" in note


def test_other_labels_than_those_of_the_model_are_refused():
    check_same_labels(CLASSES, LabelSpace("classification", ("other", "good", "bad")), "rows.csv")
    check_same_labels(SCORES, SCORES, "rows.csv")
    for space, other, message in (
        (CLASSES, LabelSpace("classification", ("good", "ugly")), "does not know the label 'bad'; .* 'good', 'ugly'"),
        (CLASSES, SCORES, "labels are classes, but the model was trained on scores"),
        (SCORES, CLASSES, "labels are scores, but the model was trained on classes"),
    ):
        with pytest.raises(LabelError, match=message):
            check_same_labels(space, other, "rows.csv")


def test_many_classes_of_one_row_are_pointed_out():
    labels = [f"id {number}" for number in range(51)] + ["id 0"] * 49
    _, notes = find_space("classification", DataConfig(), table(labels), "label")
    assert notes[0].startswith("warning: column 'label' holds 51 classes in 100 rows: most have one row")
    _, notes = find_space("classification", DataConfig(), table([*labels, "id 0", "id 0"]), "label")
    assert notes == ()
