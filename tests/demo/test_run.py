"""The demo's run of `auto`, whose time may be up before it has scored its rows."""

import json
from pathlib import Path

import pytest

from attentune.config import load_config
from attentune.demo.run import _auto_run, data_settings
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train


@pytest.mark.integration
def test_rows_that_auto_had_no_time_to_score_are_scored(tmp_path: Path) -> None:
    folder = tmp_path / "auto"
    settings = data_settings(tmp_path / "data", train_size=40, seed=1) | {"training.output_dir": str(folder)}
    config = load_config(overrides=settings, preset="tfidf-linear")
    train(config, display=ProgressDisplay(quiet=True))
    result = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**result, "scores": {}}))
    (folder / "auto").mkdir()
    (folder / "auto" / "leaderboard.json").write_text('{"stopped": false}')
    for file in folder.glob("predictions_*.csv"):
        file.unlink()
    scores = _auto_run(config, 1.0, None, quiet=True).scores
    assert {name: score.rows for name, score in scores.items()} == {"held out": 400, "films": 1000}
    assert all(score.accuracy > 0.5 for score in scores.values())
