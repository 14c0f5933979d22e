"""A user's own files and data sets of the hub: columns, labels by name, a cut validation part, rows to predict."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attentune.config.schema import DataConfig
from attentune.data.dataset import LabelSpace, TaskData
from attentune.data.load import load_data
from attentune.data.unlabelled import read_unlabelled
from attentune.errors import ConfigError, DataError, LabelError

CLASSES = LabelSpace("classification", ("bad", "good"))


def write(folder: Path, name: str, rows: list[dict[str, Any]] | str) -> str:
    path = folder / name
    text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


def reviews(count: int) -> list[dict[str, Any]]:
    return [{"text": f"review {number}", "label": "good" if number % 4 == 0 else "bad"} for number in range(count)]


def load(
    seed: int = 1, splits: tuple[str, ...] | None = None, space: LabelSpace | None = None, **settings: Any
) -> TaskData:
    return load_data(DataConfig(**settings), seed=seed, splits=splits, label_space=space)


def test_three_files(tmp_path):
    data = load(
        train_file=write(tmp_path, "train.csv", "id,text,label\nx,one,good\ny,two,bad\n"),
        validation_file=write(tmp_path, "dev.tsv", "label\ttext\nbad\tthree\n"),
        test_file=write(tmp_path, "test.jsonl", [{"text": "four"}]),
    )
    assert data.name == "train.csv"
    assert data.label_space == CLASSES
    assert data.metrics[0] == "accuracy"
    assert list(data.splits) == ["train", "validation", "test"]
    train, validation, test = data.splits.values()
    assert (train.ids, train.texts, train.pairs, train.lines) == (("x", "y"), ("one", "two"), None, (2, 3))
    assert train.labels.tolist() == [1, 0]
    assert validation.labels.tolist() == [0]
    assert (test.labels, test.ids) == (None, ("0",))
    said = " ".join(data.notes)
    assert "text 'text', label 'label'" in said
    assert "classification, the default" in said
    assert "bad, good" in said


def test_a_validation_part_is_cut_and_said(tmp_path):
    path = write(tmp_path, "train.jsonl", reviews(100))
    data = load(train_file=path, validation_share=0.2)
    train, validation = data.splits["train"], data.splits["validation"]
    assert (len(train), len(validation)) == (80, 20)
    assert np.bincount(validation.labels).tolist() == [15, 5]
    assert not set(train.ids) & set(validation.ids)
    assert validation.texts == tuple(f"review {number}" for number in validation.ids)
    assert list(map(int, validation.ids)) == sorted(map(int, validation.ids))
    assert any("20 of the 100 training rows were cut" in note for note in data.notes)
    again = load(train_file=path, validation_share=0.2)
    assert again.fingerprint() == data.fingerprint()
    assert load(seed=2, train_file=path, validation_share=0.2).fingerprint() != data.fingerprint()
    assert set(load(train_file=path, validation_share=0).splits) == {"train"}
    only = load(train_file=path, validation_share=0.2, splits=("validation",))
    assert only.fingerprint() == {"validation": data.fingerprint()["validation"]}


def test_parts_are_stratified_seeded_and_said(tmp_path):
    files = {
        "train_file": write(tmp_path, "train.jsonl", reviews(100)),
        "validation_file": write(tmp_path, "dev.jsonl", reviews(40)),
        "test_file": write(tmp_path, "test.jsonl", reviews(30)),
    }
    data = load(**files, max_train_samples=20, max_eval_samples=8)
    assert [len(rows) for rows in data.splits.values()] == [20, 8, 30]
    assert np.bincount(data.splits["train"].labels).tolist() == [15, 5]
    assert any("Only 20 of the 100 rows of train" in note for note in data.notes)
    other = load(**files, max_train_samples=20, max_eval_samples=8, seed=2).splits
    assert other["train"].ids != data.splits["train"].ids
    assert other["validation"].ids == data.splits["validation"].ids  # so that seeds can be paired by row
    assert not any("Only" in note for note in load(**files, max_train_samples=100).notes)


def test_labels_of_a_model_are_kept_when_scoring(tmp_path):
    space = LabelSpace("classification", ("good", "neutral", "bad"))
    dev = write(tmp_path, "dev.csv", "text,label\na,good\nb,bad\n")
    data = load(validation_file=dev, train_file="gone.csv", splits=("validation",), space=space)
    assert data.label_space == space
    assert data.splits["validation"].labels.tolist() == [0, 2]
    with pytest.raises(ConfigError, match="the model was trained for classification"):
        load(validation_file=dev, space=space, task_type="regression")
    with pytest.raises(LabelError, match="unknown labels: 'bad'"):
        load(validation_file=dev, space=LabelSpace("classification", ("good", "fine")))


def test_splits_that_there_are_not(tmp_path):
    path = write(tmp_path, "train.jsonl", reviews(10))
    with pytest.raises(ConfigError, match=r"this data has no split 'test'. Its splits: train, validation"):
        load(train_file=path, splits=("test",))
    with pytest.raises(ConfigError, match=r"no file is given for test. Give it with --test_file"):
        load(validation_file=path, splits=("test",), space=CLASSES)


def test_a_test_file_alone_needs_known_classes(tmp_path):
    path = write(tmp_path, "test.csv", "text\na\n")
    with pytest.raises(LabelError, match="no labels to find the classes in"):
        load(test_file=path)
    assert load(test_file=path, space=CLASSES).splits["test"].labels is None


def predict(path: str, space: LabelSpace = CLASSES, is_pair: bool = False, **settings: Any) -> Any:
    return read_unlabelled(path, label_space=space, is_pair=is_pair, config=DataConfig(**settings))


def test_rows_to_predict(tmp_path):
    rows = predict(write(tmp_path, "a.csv", "utterance\nhello\n"))
    assert (rows.texts, rows.pairs, rows.labels, rows.ids) == (("hello",), None, None, ("0",))
    rows = predict(write(tmp_path, "b.csv", "text,label\nhello,good\n"), label_column="label")
    assert rows.labels.tolist() == [1]
    assert predict(write(tmp_path, "c.csv", "text,label\nhello,shiny\n")).labels is None
    assert predict(write(tmp_path, "d.csv", "text\nhello\n"), label_column="label").labels is None


def test_pairs_to_predict(tmp_path):
    path = write(tmp_path, "a.csv", "premise,hypothesis\nA,B\n")
    rows = predict(path, is_pair=True)
    assert (rows.texts, rows.pairs) == (("A",), ("B",))
    assert predict(path).pairs is None
    with pytest.raises(DataError, match="compares two texts, but only the column 'text' was found"):
        predict(write(tmp_path, "b.csv", "text\nA\n"), is_pair=True)


def test_a_known_tasks_own_columns_count_when_predicting(tmp_path):
    path = write(tmp_path, "a.tsv", "Quality\t#1 String\t#2 String\n1\tA\tB\n")
    space = LabelSpace("classification", ("not_equivalent", "equivalent"))
    rows = predict(path, space, is_pair=True, task="mrpc")
    assert (rows.texts, rows.pairs, rows.labels.tolist()) == (("A",), ("B",), [1])
    with pytest.raises(DataError, match="there is no column 'key'"):
        predict(path, space, is_pair=True, task="mrpc", id_column="key")


# Hugging Face data sets from disk (no network): splits, declared classes, values of other types


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    import datasets

    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["pos", "neg"]),
            "tags": [datasets.Value("int8")],
        }
    )
    parts: dict[str, dict[str, list[Any]]] = {
        "test": {"text": ["t"], "label": [-1], "tags": [[1]]},
        "unsupervised": {"text": ["u"], "label": [-1], "tags": [[1]]},
        "train": {"text": ["None", "b", "nan"], "label": [1, 0, 1], "tags": [[1], [], [2]]},
        "validation": {"text": ["v"], "label": [0], "tags": [[1]]},
    }
    folder = tmp_path_factory.mktemp("hub") / "saved"
    loaded = {name: datasets.Dataset.from_dict(part, features=features) for name, part in parts.items()}
    datasets.DatasetDict(loaded).save_to_disk(folder)
    return folder


def load_set(folder: Path, **settings: Any) -> TaskData:
    return load_data(DataConfig(dataset_name=str(folder), **settings), seed=1)


def test_a_data_set_from_disk(saved):
    data = load_set(saved)
    assert data.label_space == LabelSpace("classification", ("pos", "neg"))
    assert list(data.splits) == ["train", "validation", "test"]
    train = data.splits["train"]
    assert train.texts == ("None", "b", "nan")
    assert train.lines is None
    assert train.labels.tolist() == [1, 0, 1]
    assert data.splits["test"].labels is None
    assert any("not used: unsupervised" in note for note in data.notes)


def test_a_single_data_set_is_train_and_shuffled_rows_stay_so(tmp_path):
    import datasets

    rows = {"sentence": [f"s{number}" for number in range(20)], "score": [number / 4 for number in range(20)]}
    shuffled = datasets.Dataset.from_dict(rows).select([3, 1, *range(4, 20)])
    shuffled.save_to_disk(tmp_path / "one")
    data = load_set(tmp_path / "one", task_type="regression", validation_share=0.1)
    train, validation = data.splits["train"], data.splits["validation"]
    assert len(train) + len(validation) == 18
    score_of = {
        text: score
        for part in (train, validation)
        if part.labels is not None
        for text, score in zip(part.texts, part.labels, strict=True)
    }
    assert score_of["s3"] == 0.75
    assert "s0" not in score_of


@pytest.fixture
def unnamed():
    """Rows whose columns have names that say nothing."""
    import datasets

    texts = [f"das war der Film mit der Nummer {number}" for number in range(40)]
    stars = [3 + number % 2 for number in range(40)]
    return datasets.Dataset.from_dict({"nr": list(range(40)), "kommentar": texts, "sterne": stars})


@pytest.mark.parametrize("kind", ["save_to_disk", "csv", "json", "parquet"])
def test_columns_are_chosen_by_what_they_hold_as_for_files(tmp_path, unnamed, kind, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    if kind == "save_to_disk":
        datasets.DatasetDict(train=unnamed).save_to_disk(folder)
    else:
        folder.mkdir()
        getattr(unnamed, f"to_{kind}")(folder / f"reviews.{kind}")
    data = load_set(folder)
    assert data.splits["train"].texts[0] == "das war der Film mit der Nummer 0"
    assert data.label_space.names == ("3", "4")
    (note,) = [note for note in data.notes if note.startswith("Columns")]
    unnamed.to_csv(tmp_path / "rows.csv")
    (from_file,) = [
        note
        for note in load_data(DataConfig(train_file=str(tmp_path / "rows.csv")), seed=1).notes
        if note.startswith("Columns")
    ]
    assert note == from_file
    assert "label 'sterne', text 'kommentar'" in note


def test_a_folder_of_files_with_another_separator(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "rows.csv").write_text("kommentar;sterne\nso ein Film;3\nnein;4\n" * 20)
    with pytest.raises(DataError, match=r"not separated by commas.* --train_file .*/set/rows.csv"):
        load_set(tmp_path / "set")


def test_what_cannot_be_used(saved, tmp_path):
    with pytest.raises(DataError, match="row 0: column 'tags' holds a"):
        load_set(saved, text_column="tags", label_column="label")
    with pytest.raises(ConfigError, match="dataset_config_name"):
        load_set(saved, dataset_config_name="plain")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError, match=r"this data set cannot be loaded.* a folder has to hold the files of save_to_disk"
    ):
        load_set(tmp_path / "empty")


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
