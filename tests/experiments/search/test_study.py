"""The trials of a search: sampled alike by every process, never repeated, and pruned where others did better."""

from __future__ import annotations

from pathlib import Path

import pytest

from attentune.experiments.execution.queue_storage import StorageConfig
from attentune.experiments.search.selection import SelectionCriterion
from attentune.experiments.search.space import Dimension, Space
from attentune.experiments.search.study import SamplerConfig, SearchStudy

GRID = Space((Dimension("a", (1, 2, 3)), Dimension("b", ("x", "y"))))
RATE = Space((Dimension("rate", (), 1e-6, 1e-2, None, True), Dimension("kind", ("good", "bad"))))
DONE = {"status": "done", "message": "", "seconds": 1.0}


@pytest.fixture(params=["journal", "sqlite"])
def storage_config(request, tmp_path: Path) -> StorageConfig:
    return StorageConfig(str(tmp_path), "one", None if request.param == "journal" else f"sqlite:///{tmp_path}/queue.db")


def play(
    storage_config: StorageConfig,
    space: Space,
    sampler_config: SamplerConfig,
    score,
    count: int = 100,
    *,
    anew: bool = False,
) -> list[dict]:
    """Draw trials one by one and end each with its score; `anew` opens the study again each time."""
    study = SearchStudy(storage_config, space, sampler_config, SelectionCriterion())
    for _ in range(count):
        study = SearchStudy(storage_config, space, sampler_config, SelectionCriterion()) if anew else study
        if not study.add():
            break
        trial = study.trials()[-1]
        study.note(trial.name, 42, {**DONE, "scores": [score(trial.params)]})
        study.finish(trial.name, "done", score(trial.params))
    return [trial.params for trial in study.trials()]


def test_a_grid_is_tried_once_from_end_to_end_in_an_order_of_its_seed(storage_config, tmp_path):
    sampler_config = SamplerConfig("grid", trials=None, seed=1)
    found = play(storage_config, GRID, sampler_config, lambda params: params["a"])
    points = GRID.points()
    assert points is not None
    assert sorted(map(repr, found)) == sorted(map(repr, points))
    assert found != points
    other = tmp_path / "other"
    other.mkdir()
    part = play(
        StorageConfig(str(other), "two"), GRID, SamplerConfig("grid", trials=4, seed=1), lambda params: 0.0, anew=True
    )
    assert part == found[:4]
    study = SearchStudy(storage_config, GRID, sampler_config, SelectionCriterion())
    best = max(study.trials(), key=lambda trial: trial.value)
    assert (best.params["a"], best.scores, best.seconds, best.status) == (3, (3,), 1.0, "done")


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_what_is_drawn_does_not_depend_on_the_process(tmp_path, sampler):
    sampler_config = SamplerConfig(sampler, trials=12, startup=4, seed=3)
    places = [StorageConfig(str(tmp_path / name), name) for name in ("one", "two", "three")]
    for one in places:
        Path(one.folder).mkdir()
    score = lambda params: params["rate"] + (params["kind"] == "good")  # noqa: E731
    found = [play(places[0], RATE, sampler_config, score), play(places[1], RATE, sampler_config, score, anew=True)]
    assert found[0] == found[1]
    assert len({repr(point) for point in found[0]}) == 12
    assert play(places[2], RATE, SamplerConfig(sampler, trials=12, startup=4, seed=4), score) != found[0]
    if sampler == "tpe":  # it has learnt which kind is the good one
        assert sum(point["kind"] == "good" for point in found[0][4:]) >= 6


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_small_space_is_not_tried_twice(tmp_path, sampler):
    found = play(
        StorageConfig(str(tmp_path), "one"),
        GRID,
        SamplerConfig(sampler, trials=50, startup=2),
        lambda params: params["a"],
    )
    assert len(found) == len({repr(point) for point in found}) == 6


def test_pruning_gives_up_what_is_worse_than_the_median(storage_config):
    study = SearchStudy(
        storage_config, RATE, SamplerConfig("random", "median", startup=2, trials=9), SelectionCriterion()
    )
    for score in (0.5, 0.6, 0.7):
        study.add()
        name = study.trials()[-1].name
        assert not study.report(name, 1, score)
        assert not study.report(name, 2, score + 0.1)
        study.finish(name, "done", score + 0.1)
    study.add()
    name = study.trials()[-1].name
    assert study.report(name, 1, 0.55)
    study.note(name, 42, {"status": "pruned", "scores": [], "message": "worse", "seconds": 2.0})
    study.finish(name, "pruned")
    last = study.trials()[-1]
    assert (last.status, last.value, last.message, last.seconds) == ("pruned", None, "worse", 2.0)
    study.add()
    name = study.trials()[-1].name
    assert not study.report(name, 1, 0.65)
    assert not study.report(name, 1, 0.01)  # the second word of a resumed run does not count
    # Where lower is better, higher is given up.
    other = SearchStudy(
        StorageConfig(storage_config.folder, "one", storage_config.storage, "lower"),
        RATE,
        SamplerConfig("random", "median", startup=1, trials=9),
        SelectionCriterion(metric="mean_squared_error"),
    )
    other.add()
    assert not other.report("trial-0001", 1, 0.5)
    other.finish("trial-0001", "done", 0.5)
    other.add()
    assert other.report("trial-0002", 1, 0.6)


def test_halving_gives_up_the_lower_half(tmp_path):
    study = SearchStudy(
        StorageConfig(str(tmp_path), "one"), RATE, SamplerConfig("random", "halving", trials=9), SelectionCriterion()
    )
    for score, is_pruned in ((0.5, False), (0.6, False), (0.4, True), (0.7, False), (0.3, True)):
        study.add()
        assert study.report(study.trials()[-1].name, 1, score) == is_pruned


def test_a_failed_trial_can_be_tried_again_at_its_point(storage_config):
    study = SearchStudy(storage_config, GRID, SamplerConfig("grid", trials=2), SelectionCriterion())
    study.add()
    first = study.trials()[0]
    study.note(first.name, 42, {"status": "failed", "scores": [], "message": "no", "seconds": 1.0})
    study.finish(first.name, "failed")
    study.finish(first.name, "done", 1.0)  # too late, and no harm
    assert [(trial.status, trial.message) for trial in study.trials()] == [("failed", "no")]
    study.retry(first.name)
    again = study.trials()
    assert [(trial.name, trial.params, trial.status, trial.message) for trial in again] == [
        (first.name, first.params, "running", "")
    ]
    assert study.results(first.name) == {}
    assert study.add()
    assert not study.add()
    assert len({repr(trial.params) for trial in study.trials()}) == 2


def test_importance_is_told_of_enough_trials_only(tmp_path):
    storage_config, sampler_config = StorageConfig(str(tmp_path), "one"), SamplerConfig("random", trials=30, seed=1)
    score = lambda params: float(params["kind"] == "good") + params["rate"]  # noqa: E731
    play(storage_config, RATE, sampler_config, score, 9)
    study = SearchStudy(storage_config, RATE, sampler_config, SelectionCriterion())
    assert study.importance() == (None, "9 finished trials are too few; 10 or more say something")
    play(storage_config, RATE, sampler_config, score)
    shares, note = study.importance()
    assert shares is not None
    assert note == ""
    assert list(shares) == ["kind", "rate"]
    assert shares["kind"] > 0.9
    assert sum(shares.values()) == pytest.approx(1)
    flat = StorageConfig(str(tmp_path), "one", study="flat")
    play(flat, RATE, sampler_config, lambda params: 0.5, 10)
    assert SearchStudy(flat, RATE, sampler_config, SelectionCriterion()).importance() == (
        None,
        "all finished trials have the same score",
    )


def test_the_first_command_says_what_the_search_is(storage_config):
    study = SearchStudy(storage_config, GRID, SamplerConfig("grid"), SelectionCriterion())
    assert study.register({"k": 1.0}) == {"k": 1.0}
    assert SearchStudy(storage_config, GRID, SamplerConfig("grid"), SelectionCriterion()).register({"k": 2.0}) == {
        "k": 1.0
    }
