"""Hugging Face data sets from disk (no network): splits, declared classes, values of other types."""

from pathlib import Path
from typing import Any

import pytest

from attentune.config.schema import DataConfig
from attentune.data.dataset import LabelSpace, TaskData
from attentune.data.load import load_data
from attentune.errors import ConfigError, DataError


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


def load(folder: Path, **settings: Any) -> TaskData:
    return load_data(DataConfig(dataset_name=str(folder), **settings), seed=1)


def test_a_data_set_from_disk(saved):
    data = load(saved)
    assert data.label_space == LabelSpace("classification", ("pos", "neg"))
    assert list(data.splits) == ["train", "validation", "test"]
    train = data.splits["train"]
    assert train.texts == ("None", "b", "nan")
    assert train.lines is None
    assert train.labels is not None
    assert train.labels.tolist() == [1, 0, 1]
    assert data.splits["test"].labels is None
    assert any("not used: unsupervised" in note for note in data.notes)


def test_a_single_data_set_is_train_and_shuffled_rows_stay_so(tmp_path):
    import datasets

    rows = {"sentence": [f"s{number}" for number in range(20)], "score": [number / 4 for number in range(20)]}
    shuffled = datasets.Dataset.from_dict(rows).select([3, 1, *range(4, 20)])
    shuffled.save_to_disk(tmp_path / "one")
    data = load(tmp_path / "one", task_type="regression", validation_share=0.1)
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
    data = load(folder)
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
        load(tmp_path / "set")


def test_what_cannot_be_used(saved, tmp_path):
    with pytest.raises(DataError, match="row 0: column 'tags' holds a"):
        load(saved, text_column="tags", label_column="label")
    with pytest.raises(ConfigError, match="dataset_config_name"):
        load(saved, dataset_config_name="plain")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError, match=r"this data set cannot be loaded.* a folder has to hold the files of save_to_disk"
    ):
        load(tmp_path / "empty")


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
