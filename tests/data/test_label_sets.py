"""Several labels a row: read from lists and from texts with a separator, cut, sampled and looked over."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attentune.config import DataConfig
from attentune.data.doctor import examine, full_lines
from attentune.data.load import load_data
from attentune.data.splits import stratified_folds, stratified_sample, stratified_split
from attentune.errors import ConfigError, DataError

ROWS = [["joy", "love"], ["anger"], [], ["love"], ["anger", "joy", "anger"], ["joy"]] * 4


def write_json(path: Path, sets: list[Any]) -> str:
    lines = [json.dumps({"text": f"text {number}", "labels": own}) for number, own in enumerate(sets)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def load(**settings: Any) -> Any:
    return load_data(DataConfig(task_type="multi_label", validation_share=0.25, **settings), seed=1)


def test_a_separator_of_train_counts_in_a_test_file(tmp_path):
    cells = ["a;b", "b", "a", "b;a", "c", ""] * 3
    (tmp_path / "t.csv").write_text("text,labels\n" + "".join(f"t {n},{cell}\n" for n, cell in enumerate(cells)))
    (tmp_path / "test.csv").write_text("text,labels\none,c;b\n")
    data = load(train_file=str(tmp_path / "t.csv"), test_file=str(tmp_path / "test.csv"))
    assert data.splits["test"].labels.tolist() == [[0, 1, 1]]


def test_a_test_file_without_labels_has_none(tmp_path):
    train = write_json(tmp_path / "t.jsonl", ROWS)
    for name, cells in (("empty", [""] * 3), ("lists", [[]] * 3), ("nulls", [None] * 3), ("unknown", [-1] * 3)):
        data = load(train_file=train, test_file=write_json(tmp_path / f"{name}.jsonl", cells))
        assert data.splits["test"].labels is None, name


def test_known_tasks_have_one_label_a_row(data_dir):
    with pytest.raises(ConfigError, match="the rows of rte have one label each"):
        load_data(DataConfig(task="rte", data_dir=str(data_dir), task_type="multi_label"), seed=1)
    with pytest.raises(ConfigError, match="data.label_separator: is for custom data"):
        load_data(DataConfig(task="rte", data_dir=str(data_dir), label_separator=";"), seed=1)


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


def test_the_doctor_counts_labels_and_finds_those_that_teach_nothing(tmp_path):
    train = write_json(tmp_path / "t.jsonl", [*ROWS, ["joy"]])
    data = load(train_file=train, validation_file=train, label_names=("anger", "joy", "love", "fear"))
    report = examine(data)
    lines = "\n".join(full_lines(report))
    assert "multi_label into 4 labels, any number per row" in lines
    assert "labels: anger 8 (32.0 %), joy 13 (52.0 %), love 8 (32.0 %), fear 0 (0.0 %), no label 4 (16.0 %)" in lines
    assert [f.message for f in report.findings if f.kind == "missing-class" and f.split == "train"] == [
        "train: no row has the label 'fear'."
    ]


def test_texts_with_other_sets_conflict(tmp_path):
    rows = [("same", ["a"]), ("same", ["a", "b"]), ("other", ["b"]), ("other", ["b"]), ("x", [])]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps({"text": text, "labels": own}) for text, own in rows))
    report = examine(load(train_file=str(path), validation_file=str(path)))
    assert report.splits["train"].conflicts == 1


def test_a_hub_data_set_with_lists_of_classes(tmp_path):
    import datasets

    names = ["sad", "glad", "calm"]
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "labels": datasets.Sequence(datasets.ClassLabel(names=names)),
            "tags": datasets.Sequence(datasets.Value("string")),
        }
    )
    rows = {"text": ["a", "b", "c", "d"], "labels": [[0, 2], [1], [], [2]], "tags": [["x"], ["y"], [], ["x", "y"]]}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows, features=features)}).save_to_disk(tmp_path / "set")
    config = {"dataset_name": str(tmp_path / "set"), "task_type": "multi_label", "validation_share": 0.3}
    data = load_data(DataConfig(**config, label_column="labels"), seed=1)
    assert data.label_space.names == ("sad", "glad", "calm")
    tags = load_data(DataConfig(**config, label_column="tags"), seed=1)
    assert tags.label_space.names == ("x", "y")
    with pytest.raises(DataError, match="use --task_type multi_label"):
        load_data(DataConfig(dataset_name=str(tmp_path / "set"), label_column="tags"), seed=1)
