"""Labels are mapped by name; what cannot be mapped is listed with its place."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from attentune.config.schema import DataConfig
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.labels import (
    LabelReader,
    decide_task_type,
    find_space,
    label_key,
    map_labels,
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
def test_what_a_model_does_is_a_sentence(space: LabelSpace, job: str) -> None:
    assert space.job(is_pair=False) == job
    assert space.job(is_pair=True) == job.replace("a text", "a pair of texts")


def test_the_range_of_scores_is_said() -> None:
    assert SCORES.job(is_pair=False, score_range=(0.5, 1984.0)) == "gives a text a score from 0.5 to 1984"


def table(labels: list[Any], class_names: tuple[str, ...] | None = None) -> Table:
    declared = {} if class_names is None else {"label": class_names}
    return Table("rows.csv", ("label",), {"label": labels}, len(labels), tuple(range(2, 2 + len(labels))), declared)


def names_of(labels: list[str], task_type: str = "classification", **settings: Any) -> tuple[str, ...]:
    return find_space(task_type, DataConfig(**settings), table(labels), "label")[0].names


def test_ids_follow_the_order_of_the_names_not_of_the_rows() -> None:
    for names in permutations(("a", "b", "c")):
        labels = LabelReader(LabelSpace("classification", names)).read(table(["c", "a", "b", "a"]), "label")
        assert labels is not None
        assert labels.dtype == np.int64
        assert [names[label] for label in labels] == ["c", "a", "b", "a"]


def test_values_stand_for_names_and_spaces_do_not_count() -> None:
    reader = LabelReader(CLASSES, {"0": "bad", "1": "good", "1.0": "good"})
    labels = reader.read(table(["1", "good", " 0 ", "1.0"]), "label")
    assert labels is not None
    assert labels.tolist() == [1, 1, 0, 1]


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
def test_labels_that_look_or_count_the_same_are_one_class(first: str, second: str) -> None:
    assert label_key(first) == label_key(second)
    rows = table([second, first, first, "other", "other"])
    space, _ = find_space("classification", DataConfig(), rows, "label")
    assert len(space.names) == 2
    reader = LabelReader(space)
    labels = reader.read(rows, "label")
    assert labels is not None
    assert labels[0] == labels[1] == labels[2] != labels[3]
    note = reader.spellings(rows, "label")
    assert note is not None
    assert note.isprintable()
    assert "(1 row)" in note or "(2 rows)" in note


@pytest.mark.parametrize(
    ("first", "second"),
    [("1", "01"), ("1.1", "1.10"), ("true", "True"), ("1", "true"), ("2.5", "2.50"), ("1", "one"), ("\U0001f3f4", "x")],
)
def test_labels_that_only_may_be_the_same_stay_apart(first: str, second: str) -> None:
    assert label_key(first) != label_key(second)
    assert len(names_of([first, second])) == 2
    assert (
        LabelReader(LabelSpace("classification", names_of([first, second]))).spellings(table([first]), "label") is None
    )


def test_the_most_frequent_spelling_is_the_name_but_none_with_invisible_characters() -> None:
    assert names_of(["1", "1.0", "1.0", "0"]) == ("0", "1.0")
    assert names_of(["1", "1.0", "0"]) == ("0", "1")
    assert names_of(["a\u200b", "a\u200b", "a", "b"]) == ("a", "b")


def test_equal_numbers_of_a_declared_order_stay_two_classes() -> None:
    names = ("1", "1.0", "2")
    assert names_of(["1", "1.0", "2"], label_names=names) == names
    labels = LabelReader(LabelSpace("classification", names)).read(table(["1.0", "1", "2.0"]), "label")
    assert labels is not None
    assert labels.tolist() == [1, 0, 2]


def test_unknown_labels_are_all_listed_with_the_first_place_of_each() -> None:
    with pytest.raises(LabelError) as caught:
        LabelReader(CLASSES).read(table(["bad", "goood", "ugly", "goood", "good"]), "label")
    message = str(caught.value)
    assert message.startswith("rows.csv:3: unknown labels: 'goood' (first at rows.csv:3. Did you mean 'good'?)")
    assert "'ugly' (first at rows.csv:4)" in message
    assert "Known: 'bad', 'good'." in message
    assert message.count("goood") == 1


@pytest.mark.parametrize("missing", ["", "  ", None])
def test_a_missing_label_is_an_error_with_its_line(missing: str | None) -> None:
    for is_test in (False, True):
        with pytest.raises(LabelError, match=r"^rows.csv:3: column 'label' has no label here"):
            LabelReader(CLASSES).read(table(["bad", missing]), "label", is_test=is_test)


@pytest.mark.parametrize("values", [["", ""], [None, None], ["-1", "-1"], ["-1", ""]])
def test_a_test_split_may_have_no_labels_at_all(values: list[Any]) -> None:
    assert LabelReader(CLASSES).read(table(values), "label", is_test=True) is None
    with pytest.raises(LabelError):
        LabelReader(CLASSES).read(table(values), "label")


def test_minus_one_is_a_label_where_it_is_a_class() -> None:
    labels = LabelReader(LabelSpace("classification", ("-1", "1"))).read(table(["-1", "-1"]), "label", is_test=True)
    assert labels is not None
    assert labels.tolist() == [0, 0]


def test_scores_are_read_as_numbers() -> None:
    labels = LabelReader(SCORES, score_range=(0, 5)).read(table(["0", "3.25", "5.0", "1e0"]), "label")
    assert labels is not None
    assert labels.dtype == np.float64
    assert labels.tolist() == [0.0, 3.25, 5.0, 1.0]


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "good", "3,5", "1_0", "٣"])
def test_what_is_no_finite_number(text: str) -> None:
    assert parse_number(text) is None
    with pytest.raises(LabelError, match=r"^rows.csv:3: label .* expected a finite number"):
        LabelReader(SCORES).read(table(["1.0", text]), "label")


@pytest.mark.parametrize("score", ["5.01", "-0.1"])
def test_scores_out_of_range(score: str) -> None:
    with pytest.raises(LabelError, match=r"^rows.csv:3: .* expected a score from 0 to 5"):
        LabelReader(SCORES, score_range=(0, 5)).read(table(["1.0", score]), "label")


def test_names_are_sorted_as_texts_or_as_whole_numbers() -> None:
    assert names_of(["b", "a", "c", "b"]) == ("a", "b", "c")
    assert names_of(["10", "9", "-1", "2"]) == ("-1", "2", "9", "10")
    assert names_of(["10.0", "9.5", "-1", "2"]) == ("-1", "2", "9.5", "10.0")
    assert names_of(["10", "9", "x"]) == ("10", "9", "x")


def test_given_and_declared_names_keep_their_order() -> None:
    assert names_of(["b", "a"], label_names=("b", "c", "a")) == ("b", "c", "a")
    space, _ = find_space("classification", DataConfig(), table(["b", "a"], ("z", "b", "a")), "label")
    assert space.names == ("z", "b", "a")


@pytest.mark.parametrize("names", [("a",), ("a", "a"), ("a", "b", "a"), ()])
def test_label_names_must_be_two_or_more_each_once(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"label_names: .* at least two names, each once"):
        names_of(["a", "b"], label_names=names)


def test_ordinal_needs_an_order() -> None:
    assert names_of(["3", "1", "2"], "ordinal") == ("1", "2", "3")
    assert names_of(["10.0", "2.5", "1", "2.50", "2.5"], "ordinal") == ("1", "2.5", "10.0")
    assert names_of(["low", "high"], "ordinal", label_names=("low", "high")) == ("low", "high")
    with pytest.raises(ConfigError, match=r"needs its labels in order.*high, low.*label_names"):
        names_of(["low", "high"], "ordinal")


def test_regression_has_no_names() -> None:
    assert find_space("regression", DataConfig(), table(["1.5", "2.5"]), "label")[0] == LabelSpace("regression")
    with pytest.raises(ConfigError, match="label_names"):
        names_of(["1.5"], "regression", label_names=("a", "b"))


def test_a_single_class_cannot_be_learned() -> None:
    with pytest.raises(LabelError, match="holds only the label 'a', expected at least two classes"):
        names_of(["a", "a", "a"])
    with pytest.raises(LabelError, match=r"rows.csv:4: column 'label' has no label here"):
        names_of(["a", "a", ""])


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
    ],
)
def test_numbers_that_may_be_scores(names: list[str], column: str, cure: str) -> None:
    doubt = task_type_doubt(names, column)
    assert doubt is not None
    assert repr(column) in doubt[0]
    assert cure in doubt[1]


@pytest.mark.parametrize(
    ("names", "column"),
    [
        (["1", "2", "3", "4", "5"], "score"),
        (["0.0", "1.0"], "score"),
        (["-1", "0", "1"], "label"),
        ([str(number) for number in range(77)], "label"),
        ([str(number) for number in range(1, 31)], "intent_id"),
        ([f"intent {number}" for number in range(30)], "score"),
        (["1.5", "good"], "score"),
    ],
)
def test_numbers_and_names_that_are_classes(names: list[str], column: str) -> None:
    assert task_type_doubt(names, column) is None


def test_the_task_type_is_the_asked_else_the_tasks_else_classification() -> None:
    assert decide_task_type(DataConfig(task_type="ordinal"), "regression")[0] == "ordinal"
    assert decide_task_type(DataConfig(), "regression")[0] == "regression"
    task_type, note = decide_task_type(DataConfig(), None)
    assert task_type == "classification"
    assert "the default" in note


def rows(labels: np.ndarray | None) -> TextRows:
    return TextRows(("0", "1"), ("a", "b"), None, labels, "rows.csv")


def test_labels_map_to_another_space_by_name() -> None:
    target = LabelSpace("classification", ("other", "good", "bad"))
    mapped = map_labels(rows(np.array([0, 1])), CLASSES, target)
    assert mapped.labels is not None
    assert mapped.labels.tolist() == [2, 1]
    assert map_labels(rows(None), CLASSES, target).labels is None
    same = rows(np.array([0.5, 1.5]))
    assert map_labels(same, SCORES, SCORES) is same


def test_labels_that_have_no_place_in_another_space() -> None:
    with pytest.raises(LabelError, match="does not know the label 'bad'; it was trained on 'good', 'ugly'"):
        map_labels(rows(np.array([0, 1])), CLASSES, LabelSpace("classification", ("good", "ugly")))
    with pytest.raises(LabelError, match="labels are classes, but the model was trained on scores"):
        map_labels(rows(np.array([0, 1])), CLASSES, SCORES)
    with pytest.raises(LabelError, match="labels are scores, but the model was trained on classes"):
        map_labels(rows(np.array([0.0, 1.0])), SCORES, CLASSES)


def test_labels_that_are_all_different_are_refused() -> None:
    with pytest.raises(LabelError, match=r"a different label in each of its 11 rows .*Is it an id or a free text\?"):
        find_space("classification", DataConfig(), table([f"id {number}" for number in range(11)]), "label")
    # A few rows may have a class each, and one repeated label is enough.
    find_space("classification", DataConfig(), table([f"id {number}" for number in range(10)]), "label")
    find_space("classification", DataConfig(), table([f"id {number}" for number in range(10)] + ["id 0"]), "label")
    find_space("regression", DataConfig(), table([str(number / 7) for number in range(11)]), "label")


def test_many_classes_of_one_row_are_pointed_out() -> None:
    labels = [f"id {number}" for number in range(51)] + ["id 0"] * 49
    _, notes = find_space("classification", DataConfig(), table(labels), "label")
    assert notes[0].startswith("warning: column 'label' holds 51 classes in 100 rows: most have one row")
    _, notes = find_space("classification", DataConfig(), table([*labels, "id 0", "id 0"]), "label")
    assert notes == ()
