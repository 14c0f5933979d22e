"""The known tasks: each is found by the names that users type, and its file says what the project relies on."""

import pytest

from attentune.data.builtin import load_spec, spec_names
from attentune.data.dataset import TASK_TYPES
from attentune.errors import ConfigError

TASKS = (
    *("ax", "cfimdb", "cola", "hans", "mnli", "mrpc", "qnli", "qqp", "quora", "rte"),
    *("sick", "sick-r", "sst2", "sst5", "sts", "stsb", "wnli"),
)


def test_all_tasks_are_there() -> None:
    assert spec_names() == TASKS


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("CoLA", "cola"),
        ("STS-B", "stsb"),
        ("sts_b", "stsb"),
        ("stsb", "stsb"),
        ("sts", "sts"),
        ("sst-2", "sst2"),
        ("SST 5", "sst5"),
        ("MNLI-mm", "mnli"),
        ("mnli_matched", "mnli"),
        ("AX", "ax"),
        ("HANS", "hans"),
        ("SICK-R", "sick-r"),
        ("SICK", "sick"),
        ("sick_e", "sick"),
    ],
)
def test_names_as_users_type_them(typed: str, name: str) -> None:
    assert load_spec(typed).name == name


def test_an_unknown_task_lists_the_near_and_all() -> None:
    with pytest.raises(ConfigError) as caught:
        load_spec("colla")
    assert "there is no task 'colla'. Did you mean 'cola'?" in str(caught.value)
    assert "mrpc" in str(caught.value)
    with pytest.raises(ConfigError, match=r"Did you mean 'sst\d' or 'sst\d'"):
        load_spec("sst")
    with pytest.raises(ConfigError, match=r"no task '\?'\. Known tasks: ax, "):
        load_spec("?")


LABELS = {
    "cola": ("unacceptable", "acceptable"),
    "sst2": ("negative", "positive"),
    "mrpc": ("not_equivalent", "equivalent"),
    "qqp": ("not_duplicate", "duplicate"),
    "mnli": ("entailment", "neutral", "contradiction"),
    "ax": ("entailment", "neutral", "contradiction"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
    "wnli": ("not_entailment", "entailment"),
    "hans": ("entailment", "non-entailment"),
    "sst5": ("very negative", "negative", "neutral", "positive", "very positive"),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_have_the_order_of_their_publisher(name: str) -> None:
    assert load_spec(name).label_names == LABELS[name]


@pytest.mark.parametrize("name", ["cola", "sst2", "mrpc", "qqp", "wnli", "sst5"])
def test_numbers_in_the_files_are_ids_in_this_order(name: str) -> None:
    spec = load_spec(name)
    assert [spec.label_values[str(number)] for number in range(len(spec.label_names))] == list(spec.label_names)


def test_types_and_metrics() -> None:
    types = {name: load_spec(name).task_type for name in TASKS}
    assert {name for name in TASKS if types[name] == "regression"} == {"stsb", "sts", "sick-r"}
    assert {name for name in TASKS if types[name] == "ordinal"} == {"sst5"}
    first = {name: load_spec(name).metrics[0] for name in TASKS}
    assert first["cola"] == first["ax"] == "matthews_correlation"
    assert first["mrpc"] == first["qqp"] == "f1"
    assert first["stsb"] == first["sts"] == first["sick-r"] == "pearson"
    assert load_spec("mrpc").metrics == ("f1", "accuracy")
    assert load_spec("stsb").metrics == ("pearson", "spearmanr")


@pytest.mark.parametrize("name", TASKS)
def test_each_file_is_complete(name: str) -> None:
    spec = load_spec(name)
    assert spec.task_type in TASK_TYPES
    assert spec.quoting in ("none", "csv")
    assert (spec.label_names == ()) == (spec.task_type == "regression")
    assert all(part and "\n" not in part for part in (spec.title, spec.description, spec.source))
    assert {split.split("_")[0] for split in spec.splits} <= {"train", "validation", "test"}
    assert all(split.optional for key, split in spec.splits.items() if key.startswith("test"))
    assert "." in spec.folders
