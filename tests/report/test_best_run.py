"""The best run of a comparison or search: by the mean score, and how sure the choice is, or a refusal with its cure."""

import json
import re
from pathlib import Path

import pytest

from attentune.config import load_config, to_yaml
from attentune.errors import CheckpointError, ConfigError
from attentune.report.analysis import best_run
from attentune.runs.grid import Run
from attentune.runs.records import RecordStore
from helpers.tasks import small_record

SCORES = {"bert": (0.60, 0.70, 0.65), "sesame": (0.80, 0.95, 0.85), "ssa-co": (0.83, 0.82, 0.84)}


def comparison(folder: Path, scores=SCORES, *, task: str = "cola", size: int | None = None, kept: bool = True) -> Path:
    """Write the records of a comparison; run folders hold a file that marks them as finished."""
    store = RecordStore(folder)
    for method, values in scores.items():
        for seed, score in enumerate(values, 1):
            run = Run(task, size, method, seed)
            if kept:
                store.run_folder(run).mkdir(parents=True)
                (store.run_folder(run) / "run.json").write_text("{}")
            store.write(small_record(run, status="failed" if score is None else "done", score=score), folder)
    return folder


def test_the_method_with_the_best_mean_and_its_best_run_are_chosen(tmp_path: Path) -> None:
    best = best_run(comparison(tmp_path))
    assert best.folder == tmp_path / "runs/cola/all/sesame/seed-2"
    assert "sesame, the best of 3 by its mean accuracy of 0.8667 over 3 runs; this one has 0.9500" in best.sentence
    assert "The choice is a tie with 1 of 2 others (ssa-co): no difference shown between ssa-co and sesame" in (
        best.sentence
    )
    assert "\n" not in best.sentence


def test_a_clear_choice_is_called_clear(tmp_path: Path) -> None:
    best = best_run(comparison(tmp_path, {"bert": (0.6, 0.61, 0.62), "sesame": (0.9, 0.92, 0.91)}))
    assert "The choice is clear: bert is worse than sesame on cola by 30.0 points" in best.sentence
    alone = best_run(comparison(tmp_path / "alone", {"bert": (0.6,)}))
    assert alone.sentence.endswith("There is no other to choose from.")


def test_lower_is_better_for_errors_and_failed_runs_do_not_count(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    for method, values in {"bert": (0.5, 0.3), "sesame": (0.2, None)}.items():
        for seed, score in enumerate(values, 1):
            run = Run("own", None, method, seed)
            record = small_record(run, status="failed" if score is None else "done", score=score)
            record = type(record)(**{**vars(record), "metric": "mean_squared_error"})
            store.run_folder(run).mkdir(parents=True)
            (store.run_folder(run) / "run.json").write_text("{}")
            store.write(type(record)(**{**vars(record), "scores": {"validation": {record.metric: score}}}), tmp_path)
    assert best_run(tmp_path).folder == tmp_path / "runs/own/all/sesame/seed-1"


def test_the_largest_size_is_taken(tmp_path: Path) -> None:
    comparison(tmp_path, {"bert": (0.9,), "sesame": (0.8,)}, size=250)
    comparison(tmp_path, {"bert": (0.6,), "sesame": (0.7,)}, size=1000)
    best = best_run(tmp_path)
    assert best.folder == tmp_path / "runs/cola/1000/sesame/seed-1"
    comparison(tmp_path, {"bert": (0.5,)}, size=None)
    assert best_run(tmp_path).folder == tmp_path / "runs/cola/all/bert/seed-1"


def test_of_several_tasks_one_is_named(tmp_path: Path) -> None:
    comparison(comparison(tmp_path, {"bert": (0.6,)}), {"bert": (0.7,)}, task="rte")
    with pytest.raises(ConfigError, match=r"has the tasks cola, rte; name one with --task cola"):
        best_run(tmp_path)
    with pytest.raises(ConfigError, match=r"--task: got 'mrpc', expected one of .*: cola, rte"):
        best_run(tmp_path, "mrpc")
    assert best_run(tmp_path, "RTE").folder == tmp_path / "runs/rte/all/bert/seed-1"


def test_models_that_were_not_kept_are_refused_with_the_flag_that_keeps_them(tmp_path: Path) -> None:
    record = re.escape(str(tmp_path / "records/cola/all/sesame/seed-2.json"))
    with pytest.raises(CheckpointError, match=rf"sesame is the best, but .* --keep_best .* delete {record} and repeat"):
        best_run(comparison(tmp_path, kept=False))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), r"holds no finished run of a comparison or search"),
        (("run.json",), r"is a run folder, which is used as it is. Leave out --best"),
        (("tasks.json",), r"is a run folder"),
        (("runs.jsonl.gz",), r"holds a packed comparison, which has no models"),
    ],
)
def test_other_folders_are_refused(tmp_path: Path, files: tuple[str, ...], message: str) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(CheckpointError, match=message):
        best_run(tmp_path)
    with pytest.raises(CheckpointError, match="there is no such folder"):
        best_run(tmp_path / "missing")


def test_a_search_has_the_model_of_its_best_trial_or_none(tmp_path: Path) -> None:
    comparison(tmp_path, {"trial-0001": (0.6,), "trial-0002": (0.7,)}, task="own", kept=False)
    (tmp_path / "search.json").write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"trials\.json: cannot be read .* Repeat the search's command to its end"
    ):
        best_run(tmp_path)
    trials = {
        "best": "trial-0002",
        "choice": {"metric": "accuracy"},
        "rows": {"score_on": "train"},
        "trials": [{"name": "trial-0002", "mean": 0.7, "settings": {"training.learning_rate": 2e-3}}],
    }
    (tmp_path / "trials.json").write_text(json.dumps(trials))
    with pytest.raises(CheckpointError, match=r"has no trained model, only settings.*without --settings_only"):
        best_run(tmp_path)
    (tmp_path / "best").mkdir()
    (tmp_path / "best/run.json").write_text("{}")
    (tmp_path / "best/config.yaml").write_text(to_yaml(load_config(overrides={"training.learning_rate": 1e-3})))
    with pytest.raises(CheckpointError, match=r"has other settings than trial-0002, the best trial"):
        best_run(tmp_path)
    (tmp_path / "best/config.yaml").write_text(to_yaml(load_config(overrides={"training.learning_rate": 2e-3})))
    best = best_run(tmp_path)
    assert best.folder == tmp_path / "best"
    assert "settings of trial-0002, the best of 2 trials by its mean accuracy of 0.7000 on held-out rows of train" in (
        best.sentence
    )
    assert "tie with 1 of 1 others (trial-0001)" in best.sentence
