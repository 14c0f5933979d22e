"""Exactly one source, and settings that go with it."""

from pathlib import Path
from typing import Any

import pytest

from attentune.config.schema import DataConfig
from attentune.data.load import load_data
from attentune.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "got"),
    [
        ({}, "got none"),
        ({"task": "rte", "train_file": "a.csv"}, "got task and train_file together"),
        ({"task": "rte", "dataset_name": "imdb"}, "got task and dataset_name together"),
        ({"dataset_name": "imdb", "test_file": "a.csv"}, "got dataset_name and test_file together"),
    ],
)
def test_none_or_several_sources(settings: dict[str, Any], got: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_data(DataConfig(**settings), seed=1)
    message = str(caught.value)
    assert got in message
    assert all(way in message for way in ("--task NAME --data_dir FOLDER", "--train_file FILE", "--dataset_name NAME"))


def test_settings_of_another_source_are_all_told(tmp_path: Path) -> None:
    config = DataConfig(
        task="rte", data_dir=str(tmp_path), text_column="a", label_names=("a", "b"), dataset_config_name="c"
    )
    with pytest.raises(ConfigError) as caught:
        load_data(config, seed=1)
    problems = " ".join(caught.value.problems)
    assert len(caught.value.problems) == 3
    assert all(name in problems for name in ("data.text_column", "data.label_names", "data.dataset_config_name"))
    with pytest.raises(ConfigError, match=r"data\.data_dir"):
        load_data(DataConfig(train_file="a.csv", data_dir=str(tmp_path)), seed=1)
