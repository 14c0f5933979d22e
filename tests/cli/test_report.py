"""`attentune report` on run folders, and what it refuses."""

from __future__ import annotations

import csv
import json

import pytest

from attentune.config import load_config
from attentune.errors import CheckpointError
from attentune.runs.grid import RunGrid
from attentune.runs.manifest import open_comparison
from attentune.training.run import train
from helpers.made_records import write_comparison
from helpers.samples import settings


@pytest.mark.integration
def test_run_folders_together_are_a_comparison(attentune, tiny, tmp_path):
    folders = []
    for preset in ("bert", "sesame-weighted"):
        for seed in (1, 2):
            folder = tmp_path / f"{preset}-{seed}"
            changes = {"training__output_dir": str(folder), "training__seed": seed, "training__num_train_epochs": 1}
            train(load_config(preset=preset, overrides=settings(tmp_path, tiny("bert"), **changes)))
            folders.append(folder)
    weights = folders[-1] / "layers.json"
    lines = [{"layer": layer, "mean": 0.9, "std": 0.1, "quartiles": [0.8, 0.9, 1.0]} for layer in (1, 2, 3)]
    weights.write_text(json.dumps({"validation": lines}))
    status, out, err = attentune(
        "report",
        *folders,
        "--output_file",
        tmp_path / "r.csv",
        "--figures",
        tmp_path / "f",
        "--baseline",
        "sesame-weighted",
    )
    assert (status, out) == (0, ""), err
    lines = list(csv.DictReader((tmp_path / "r.csv").open()))
    assert [(line["method"], line["baseline"], line["seeds"]) for line in lines] == [
        ("bert", "sesame-weighted", "2"),
        ("sesame-weighted", "sesame-weighted", "2"),
    ]
    scores = [json.loads((folder / "run.json").read_text())["scores"]["validation"]["accuracy"] for folder in folders]
    assert float(lines[0]["mean"]) == pytest.approx(sum(scores[:2]) / 2)
    assert (tmp_path / "f/layers-sesame-weighted-2.svg").is_file()
    assert attentune("report", *folders, "--output_file", tmp_path / "r.md")[0] == 0
    facts = json.loads((folders[0] / "run.json").read_text())["train"]
    assert facts["parameters"] > facts["added_parameters"] > 0
    assert f"{facts['parameters']:,}" in (tmp_path / "r.md").read_text()


def test_a_comparison_is_packed_and_then_only_read(attentune, tmp_path):
    write_comparison(tmp_path / "c", {"bert": 0.6, "sesame": 0.8})
    status, out, err = attentune("report", tmp_path / "c", "--pack", tmp_path / "p")
    assert (status, out, err) == (0, "", f"6 runs packed into {tmp_path / 'p'}\n")
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["predictions.jsonl.gz", "runs.jsonl.gz"]
    for name in ("c", "p"):
        assert attentune("report", tmp_path / name, "--output_file", tmp_path / f"{name}.csv")[0] == 0
    assert (tmp_path / "c.csv").read_bytes() == (tmp_path / "p.csv").read_bytes()
    with pytest.raises(CheckpointError, match="holds a packed comparison, which is read only"):
        open_comparison(tmp_path / "p", RunGrid(configs={}, own={}, of_tasks=(), runs=()))
