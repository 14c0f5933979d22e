"""The record of a run goes to JSON that any reader takes, and back."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from attentune.errors import CheckpointError
from attentune.results import RunResult, to_json, versions, without_nan

RESULT = RunResult(
    scores={"validation": {"pearson": 0.5, "spearmanr": float("nan")}},
    train={"seconds": 1.5, "tokens": 30, "tokens_per_second": 20.0, "peak_memory_bytes": 1 << 30},
    best={"metric": "pearson", "value": 0.5, "step": 3},
    config={"data": {"label_names": ["naïve 😀", "b"]}},
    seed=3,
    versions={"torch": "2.13.0"},
    data_fingerprint={"train": "ab"},
    notes=["said"],
)


def test_a_record_goes_to_a_file_and_back(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(RESULT.to_json(), encoding="utf-8")
    undefined = {"validation": {"pearson": 0.5, "spearmanr": None}}
    assert RunResult.load(file) == dataclasses.replace(RESULT, scores=undefined)
    assert "naïve 😀" in RESULT.to_json()


def test_metrics_are_the_training_figures_and_the_scores() -> None:
    assert RESULT.metrics() == {"train": RESULT.train, **RESULT.scores}
    assert list(RESULT.metrics()) == ["train", "validation"]


@pytest.mark.parametrize("content", ["", "[]", "3", "{}", '{"scores": {}}', "{" * 10, '"text"'])
def test_a_file_that_is_no_record_is_refused_and_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"run\.json: is not the record of a finished run"):
        RunResult.load(file)


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.json: is not the record"):
        RunResult.load(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"binary\.json: is not the record"):
        RunResult.load(tmp_path / "binary.json")


def test_what_is_no_number_becomes_null() -> None:
    nested = {"a": [1.0, math.nan, {"b": -math.inf}], "c": (math.inf, 0), "d": np.float64("nan"), "e": "NaN"}
    assert without_nan(nested) == {"a": [1.0, None, {"b": None}], "c": [None, 0], "d": None, "e": "NaN"}
    text = to_json(nested)
    assert json.loads(text, parse_constant=pytest.fail) == without_nan(nested)
    assert text.endswith("}\n")
    assert math.isnan(nested["a"][1])  # the input is left as it was


def test_versions_name_what_a_result_depends_on() -> None:
    found = versions()
    assert {"python", "platform", "attentune", "torch", "transformers", "tokenizers", "numpy"} <= set(found)
    assert found["torch"].startswith("2.")
    assert "not installed" not in found.values()
