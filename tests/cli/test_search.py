"""`attentune search`: trials that nothing can make lose or repeat one, and the best as a configuration."""

import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

import attentune
from attentune.config import load_config
from attentune.data.load import load_data
from attentune.runs.progress import ComparisonProgress
from attentune.runs.records import read_predictions
from attentune.runs.trials import part_scores
from helpers.comparisons import command, outcomes, times_done
from helpers.samples import run_here, settings

SPACE = ("--search", "training.learning_rate=1e-3,2e-3,1e30", "--choose", "three-parts", "--search_share", "0.5")
FLAGS = (*SPACE, "--jobs", "2")
# The last of the learning rates is hopeless, and fails.
LONG = {"num_train_epochs": 4, "save_steps": 2, "precision": "fp32", "max_grad_norm": 0, "seed": 5}


def words(folder: Path, encoder: Path, *flags: str, **changes: Any) -> list[str]:
    """The command line of a small search in `folder/search`."""
    given = {f"training__{name}": value for name, value in LONG.items()} | changes
    line = command(folder, encoder, *flags, output="search", verb="search", **given)
    place = next(number for number, word in enumerate(line) if word.startswith("training.learning_rate=0"))
    return [*line[: place - 1], *line[place + 1 :]]


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """A search that nothing interrupted: its folder's parent, outcomes, and what it printed."""
    folder = tmp_path_factory.mktemp("whole")
    out, err = run_here(words(folder, tiny("bert"), *FLAGS))
    return folder, outcomes(folder / "search"), out, err


def test_one_trial_is_recorded_and_written_as_a_configuration(attentune, tiny, tmp_path):
    space = ("--search", "training.learning_rate=2e-3", "--jobs", "1")
    out, _ = attentune.done(*words(tmp_path, tiny("bert"), *space, training__num_train_epochs=1))
    result = json.loads((tmp_path / "search/trials.json").read_text())
    assert [trial["status"] for trial in result["trials"]] == ["done"]
    assert load_config(tmp_path / "search/config.yaml").training.learning_rate == 2e-3
    assert f"model with its settings, trained on all training rows: {tmp_path / 'search/best'} (valid" in out


@pytest.mark.integration
def test_the_best_is_written_as_a_configuration_to_train_with(whole, tiny):
    folder, found, out, err = whole
    result = json.loads((folder / "search/trials.json").read_text())
    assert [trial["status"] for trial in result["trials"]] == ["done", "done", "failed"]
    best = result["trials"][0]
    assert (result["best"], best["value"] >= result["trials"][1]["value"]) == (best["name"], True)
    config = load_config(folder / "search/config.yaml")
    assert config.training.learning_rate == best["params"]["training.learning_rate"]
    assert (config.training.seed, config.training.num_train_epochs) == (5, 4)
    assert config.training.output_dir == str(folder / "search/best")
    record = found[f"records/own/all/{best['name']}/seed-5.json"]
    # What it was trained with, but for where and how.
    assert {**record["config"]["training"], "output_dir": None} == {
        **attentune.config.to_dict(config)["training"],
        "output_dir": None,
    }
    lines = out.splitlines()
    assert lines[0].split() == ["trial", "learning_rate", "accuracy", "std", "value", "seconds", "status"]
    assert lines[2].split()[:2] == [best["name"], f"{best['params']['training.learning_rate']:.4g}"]
    assert f"predict with it: attentune predict {folder / 'search/best'} --input_file FILE" in out
    assert "Trials are scored on 24 of the 48 training rows" in err
    assert "1 of 3 trials failed" in err
    assert "became nan at step" in err


@pytest.mark.integration
def test_trials_are_ranked_by_the_rule_of_three_parts(whole):
    folder, found, _, _ = whole
    for trial in json.loads((folder / "search/trials.json").read_text())["trials"][:2]:
        predictions = read_predictions(folder / f"search/records/own/all/{trial['name']}/seed-5.validation.csv")
        assert trial["scores"] == pytest.approx(part_scores(predictions, "accuracy", 5))
        assert trial["value"] == pytest.approx(fmean(trial["scores"]) - stdev(trial["scores"]))
        mean = found[f"records/own/all/{trial['name']}/seed-5.json"]["score"]
        assert trial["mean"] == pytest.approx(mean)  # 24 rows: parts of the same size


@pytest.mark.integration
def test_the_same_command_does_nothing_again_and_another_is_refused(whole, attentune, tiny):
    folder, before, _, _ = whole
    encoder = tiny("bert")
    again, _ = attentune.done(*words(folder, encoder, *FLAGS, "--format", "json"))
    assert json.loads(again)["trials"] == json.loads((folder / "search/trials.json").read_text())["trials"]
    assert set(times_done(folder / "search").values()) == {1}
    for flags, changes, message in (
        (("--k", "2"), {}, "k: was 1.0, now 2.0"),
        (("--seeds", "2"), {}, "seeds: was 1, now 2"),
        ((), {"training__num_train_epochs": 3}, "training.num_train_epochs: was 4.0, now 3.0"),
        ((), {"data__max_train_samples": 30}, "data.max_train_samples: was None, now 30"),
        (("--search", "model.head.kind=cls,mean"), {}, "space model.head.kind: was 'not there'"),
    ):
        err = attentune.refused(*words(folder, encoder, *FLAGS, *flags, **changes))
        assert "was begun as another search" in err
        assert message in err
    assert outcomes(folder / "search") == before
    # A failed trial is not done again, unless asked for.
    file = next(path for path in (folder / "search/records").rglob("*.json") if "failed" in path.read_text())
    stamp = file.stat().st_mtime_ns
    status, _, err = attentune(*words(folder, encoder, *FLAGS, "--retry_failed"))
    assert (status, file.stat().st_mtime_ns > stamp) == (0, True)
    assert "1 of 3 trials failed" in err
    assert outcomes(folder / "search") == before


@pytest.mark.integration
def test_search_from_python_on_dev_with_two_seeds(tiny, tmp_path):
    given = settings(tmp_path, tiny("bert"), training__num_train_epochs=1, training__seed=7)
    del given["training.output_dir"], given["training.learning_rate"]
    result = attentune.search(
        tmp_path / "search",
        space={"training.learning_rate": {"low": 1e-4, "high": 1e-3, "log": True}, "preset": ["bert", "bert-mean"]},
        sampler="random",
        trials=1,
        seeds=2,
        score_on="dev",
        overrides=given,
        jobs=2,
        display=ComparisonProgress(quiet=True),
    )
    assert (result.best.status, len(result.best.scores)) == ("done", 2)
    assert result.best.value == pytest.approx(sum(result.best.scores) / 2)
    assert result.config is not None
    config = load_config(result.config)
    assert config.preset == result.best.params["preset"]
    assert 1e-4 <= config.training.learning_rate <= 1e-3
    files = sorted(path.name for path in (tmp_path / "search/records").rglob("*.json"))
    assert files == ["seed-7.json", "seed-8.json"]
    record = json.loads(next((tmp_path / "search/records").rglob("seed-7.json")).read_text())
    assert record["data_fingerprint"]["validation"] == load_data(config.data, seed=7).splits["validation"].fingerprint()
