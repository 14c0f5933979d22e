"""The trials of a search: sampled alike by every process, never repeated, and pruned where others did better."""

from __future__ import annotations

from pathlib import Path

import pytest

from attentune.errors import CheckpointError
from attentune.runs.search_settings import SamplerConfig, SelectionCriterion
from attentune.runs.space import Dimension, Space
from attentune.runs.study import JOURNAL_FILE, SearchStudy

GRID = Space((Dimension("a", (1, 2, 3)), Dimension("b", ("x", "y"))))
RATE = Space((Dimension("rate", (), 1e-6, 1e-2, None, True), Dimension("kind", ("good", "bad"))))


def play(
    folder: Path,
    space: Space,
    sampler_config: SamplerConfig,
    score,
    count: int = 100,
    *,
    anew: bool = False,
) -> list[dict]:
    """Draw trials one by one and end each with its score; `anew` opens the study again each time."""
    study = SearchStudy(folder, space, sampler_config, SelectionCriterion())
    for _ in range(count):
        study = SearchStudy(folder, space, sampler_config, SelectionCriterion()) if anew else study
        if not study.add():
            break
        trial = study.trials()[-1]
        study.finish(trial.name, "done", score(trial.params), scores=[score(trial.params)], seconds=1.0)
    return [trial.params for trial in study.trials()]


def test_a_grid_is_tried_once_from_end_to_end_in_an_order_of_its_seed(tmp_path):
    sampler_config = SamplerConfig("grid", trials=None, seed=1)
    found = play(tmp_path, GRID, sampler_config, lambda params: params["a"])
    points = GRID.points()
    assert points is not None
    assert sorted(map(repr, found)) == sorted(map(repr, points))
    assert found != points
    other = tmp_path / "other"
    other.mkdir()
    part = play(other, GRID, SamplerConfig("grid", trials=4, seed=1), lambda params: 0.0, anew=True)
    assert part == found[:4]
    study = SearchStudy(tmp_path, GRID, sampler_config, SelectionCriterion())
    best = max(study.trials(), key=lambda trial: trial.value)
    assert (best.params["a"], best.scores, best.seconds, best.status) == (3, (3,), 1.0, "done")


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_what_is_drawn_does_not_depend_on_the_process(tmp_path, sampler):
    sampler_config = SamplerConfig(sampler, trials=12, startup=4, seed=3)
    places = [tmp_path / name for name in ("one", "two", "three")]
    for one in places:
        one.mkdir()
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
        tmp_path,
        GRID,
        SamplerConfig(sampler, trials=50, startup=2),
        lambda params: params["a"],
    )
    assert len(found) == len({repr(point) for point in found}) == 6


def is_pruned(study: SearchStudy, name: str, step: int, score: float) -> bool:
    """Decide as a worker does, which only reads, and then store the score as the command does."""
    reader = SearchStudy(study.folder, Space(), study.sampling, study.criterion, read_only=True)
    before = (study.folder / JOURNAL_FILE).read_bytes()
    is_worse = reader.is_worse(name, {step: score})
    assert (study.folder / JOURNAL_FILE).read_bytes() == before
    study.report(name, {step: score})
    return is_worse


def test_pruning_gives_up_what_is_worse_than_the_median(tmp_path):
    study = SearchStudy(tmp_path, RATE, SamplerConfig("random", "median", startup=2, trials=9), SelectionCriterion())
    for score in (0.5, 0.6, 0.7):
        study.add()
        name = study.trials()[-1].name
        assert not is_pruned(study, name, 1, score)
        assert not is_pruned(study, name, 2, score + 0.1)
        study.finish(name, "done", score + 0.1)
    study.add()
    name = study.trials()[-1].name
    assert is_pruned(study, name, 1, 0.55)
    study.finish(name, "pruned", seconds=2.0, message="worse")
    last = study.trials()[-1]
    assert (last.status, last.value, last.message, last.seconds) == ("pruned", None, "worse", 2.0)
    study.add()
    name = study.trials()[-1].name
    assert not is_pruned(study, name, 1, 0.65)
    # What a resumed run reports again is ignored.
    study.report(name, {1: 0.01})
    assert not SearchStudy(tmp_path, Space(), study.sampling, study.criterion, read_only=True).is_worse(name, {})
    # Where lower is better, higher is given up.
    lower = tmp_path / "lower"
    lower.mkdir()
    other = SearchStudy(
        lower,
        RATE,
        SamplerConfig("random", "median", startup=1, trials=9),
        SelectionCriterion(metric="mean_squared_error"),
    )
    other.add()
    assert not is_pruned(other, "trial-0001", 1, 0.5)
    other.finish("trial-0001", "done", 0.5)
    other.add()
    assert is_pruned(other, "trial-0002", 1, 0.6)


@pytest.mark.parametrize("is_told_first", [False, True])
def test_halving_gives_up_the_lower_half(tmp_path, is_told_first):
    study = SearchStudy(tmp_path, RATE, SamplerConfig("random", "halving", trials=9), SelectionCriterion())
    for score, expected in ((0.5, False), (0.6, False), (0.4, True), (0.7, False), (0.3, True)):
        study.add()
        name = study.trials()[-1].name
        if is_told_first:  # the command has read the score from the log before the worker asks
            study.report(name, {1: score})
        assert is_pruned(study, name, 1, score) == expected


def test_a_torn_line_of_a_killed_command_is_dropped_and_a_damaged_journal_is_refused(tmp_path):
    study = SearchStudy(tmp_path, GRID, SamplerConfig("grid", trials=4), SelectionCriterion())
    study.add()
    journal, known = tmp_path / JOURNAL_FILE, [trial.params for trial in study.trials()]
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "worker')
    study = SearchStudy(tmp_path, GRID, SamplerConfig("grid", trials=4), SelectionCriterion())
    assert [trial.params for trial in study.trials()] == known
    assert study.add()
    journal.write_bytes(b"nonsense\n" + journal.read_bytes())
    with pytest.raises(CheckpointError, match=r"trials.journal: is damaged .* Delete it; what is recorded stays"):
        SearchStudy(tmp_path, GRID, SamplerConfig("grid", trials=4), SelectionCriterion())


def test_a_failed_trial_can_be_tried_again_at_its_point(tmp_path):
    study = SearchStudy(tmp_path, GRID, SamplerConfig("grid", trials=2), SelectionCriterion())
    study.add()
    first = study.trials()[0]
    study.finish(first.name, "failed", seconds=1.0, message="no")
    assert [(trial.status, trial.message) for trial in study.trials()] == [("failed", "no")]
    study.retry(first.name)
    again = study.trials()
    assert [(trial.name, trial.params, trial.status, trial.message) for trial in again] == [
        (first.name, first.params, "running", "")
    ]
    assert study.add()
    assert not study.add()
    assert len({repr(trial.params) for trial in study.trials()}) == 2


def test_importance_is_told_of_enough_trials_only(tmp_path):
    sampler_config = SamplerConfig("random", trials=30, seed=1)
    score = lambda params: float(params["kind"] == "good") + params["rate"]  # noqa: E731
    play(tmp_path, RATE, sampler_config, score, 9)
    study = SearchStudy(tmp_path, RATE, sampler_config, SelectionCriterion())
    assert study.importance() == (None, "9 finished trials are too few; at least 10 are needed")
    play(tmp_path, RATE, sampler_config, score)
    shares, note = study.importance()
    assert shares is not None
    assert note == ""
    assert list(shares) == ["kind", "rate"]
    assert shares["kind"] > 0.9
    assert sum(shares.values()) == pytest.approx(1)
    flat = tmp_path / "flat"
    flat.mkdir()
    play(flat, RATE, sampler_config, lambda params: 0.5, 10)
    assert SearchStudy(flat, RATE, sampler_config, SelectionCriterion()).importance() == (
        None,
        "all finished trials have the same score",
    )
