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
    assert RESULT.metrics() == {"train": RESULT.train, **RESULT.scores}


@pytest.mark.parametrize(
    "content", [None, b"\xff\xfe", b"", b"[]", b"3", b"{}", b'{"scores": {}}', b"{" * 10, b'"text"']
)
def test_a_file_that_is_no_record_is_refused_and_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"run\.json: is not the record of a finished run"):
        RunResult.load(tmp_path / "run.json")


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
