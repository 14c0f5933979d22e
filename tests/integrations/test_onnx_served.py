"""The script that serves an exported run without PyTorch predicts what the run predicts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attentune import predict
from attentune.data.dataset import LabelSpace
from helpers.tiny_models import TWO
from helpers.tiny_runs import blocks, save_run, without_torch

pytestmark = pytest.mark.integration

Tiny = Callable[..., Path]


@pytest.mark.parametrize(
    ("space", "more", "note"),
    [
        (TWO, {"thresholds": 1}, "the run predicts by thresholds"),
        (LabelSpace("multi_label", ("a", "b", "c")), {"thresholds": 3}, "by thresholds"),
        (LabelSpace("multi_label", ("a", "b", "c")), {}, None),
        (
            LabelSpace("ordinal", ("low", "middle", "high")),
            {"ordinal_prediction": "expected-value"},
            "by mean class numbers",
        ),
        (
            LabelSpace("ordinal", ("low", "middle", "high")),
            {"thresholds": 2},
            "by thresholds",
        ),
        (LabelSpace("regression"), {}, None),
    ],
    ids=["two classes", "labels", "labels at a half", "ordered", "cut points", "scores"],
)
def test_the_documented_script_predicts_as_the_run_does(
    tiny: Tiny, tmp_path: Path, space: LabelSpace, more: dict[str, Any], note: str | None, attentune: Any
) -> None:
    """Where thresholds, or the mean of ordered classes, change what is predicted."""
    run = save_run(tiny("bert"), tmp_path / "run", label_space=space)
    texts = ["the film was lovely", "a dull and awful story", "", "we saw it", "so great " * 9, "in town"]
    file = run / "config.json"
    (run / "config.yaml").write_text("training: {precision: fp32, use_cpu: true}\n")
    if "thresholds" in more:  # in the middle of what the texts have
        file.write_text(json.dumps(json.loads(file.read_text()) | {"calibration_temperature": 0.4}))
        shares = np.array([list(row["probabilities"].values()) for row in predict(run, texts)])
        if space.task_type == "ordinal":
            more = {"thresholds": np.quantile(shares @ np.arange(3), [0.35, 0.65]).tolist()}
        else:
            shares = shares[:, -more["thresholds"] :]
            more = {"thresholds": ((shares.min(axis=0) + shares.max(axis=0)) / 2).tolist()}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"calibration_temperature": 0.4, **more}))
    status, out, err = attentune("export", run, "--output_dir", tmp_path / "served")
    assert status == 0, err
    assert ("do that where you serve it" in out) == (note is not None)
    assert note is None or note in out
    done = without_torch(blocks()[0], str(tmp_path / "served"), *texts)
    assert done.returncode == 0, done.stderr
    lines, expected = [json.loads(line) for line in done.stdout.splitlines()], predict(run, texts)
    if space.task_type == "regression":
        assert [line["prediction"] for line in lines] == pytest.approx(
            [row["prediction"] for row in expected], abs=1e-4
        )
        return
    assert [line["prediction"] for line in lines] == [row["prediction"] for row in expected]
    for line, row in zip(lines, expected, strict=True):
        assert line["probabilities"] == pytest.approx(row["probabilities"], abs=1e-4)
    if "thresholds" in more:
        assert len({str(row["prediction"]) for row in expected}) > 1
