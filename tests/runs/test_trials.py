"""What a search varies, and its trials: sampled alike by every process, never repeated, pruned, and ranked."""

import math
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats
from sklearn.metrics import f1_score

from attentune.config import load_config
from attentune.data.load import load_data
from attentune.data.splits import stratified_folds
from attentune.errors import ConfigError, DataError
from attentune.results import SEARCH_FILE
from attentune.runs.driver import execute_run
from attentune.runs.records import Predictions
from attentune.runs.search_settings import (
    Dimension,
    Search,
    SearchSettings,
    Space,
    check_search,
    dimension_of,
    space_from,
)
from attentune.runs.trials import (
    SearchPlan,
    TrialOutcome,
    is_worse,
    next_point,
    part_scores,
    ranked,
    rows_of,
)
from attentune.training.run_folder import StopRequest
from helpers.samples import settings
from helpers.tasks import small_record

MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))

GRID = Space((Dimension("a", (1, 2, 3)), Dimension("b", ("x", "y"))))
RATE = Space((Dimension("rate", (), 1e-6, 1e-2, True), Dimension("kind", ("good", "bad"))))


def search_of(space: Space, sampler: str, *, seed: int = 42, metric: str = "accuracy", **options: Any) -> Search:
    return Search(SearchSettings(sampler=sampler, **{"pruner": "none", **options}), space, {}, seed, metric=metric)


def drawn(search: Search, score: Any, count: int = 100) -> list[TrialOutcome]:
    """Sample trials one by one, each after the one before has ended with its score."""
    trials: list[TrialOutcome] = []
    while len(trials) < count and (point := next_point(search, trials)) is not None:
        trials.append(TrialOutcome(f"trial-{len(trials) + 1:04d}", point, "done", value=score(point)))
    return trials


def test_a_grid_is_tried_once_from_end_to_end_in_an_order_of_its_seed():
    found, points = [trial.params for trial in drawn(search_of(GRID, "grid", seed=1), lambda _: 0.0)], GRID.points()
    assert sorted(map(repr, found)) == sorted(map(repr, points))
    assert found != points
    part = [trial.params for trial in drawn(search_of(GRID, "grid", seed=1, trials=4), lambda params: params["a"])]
    assert part == found[:4]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_what_is_drawn_depends_on_the_seed_and_the_scores_and_is_not_repeated(sampler):
    score = lambda params: params["rate"] + (params["kind"] == "good")  # noqa: E731
    found, again, other = (
        [trial.params for trial in drawn(search_of(RATE, sampler, trials=12, startup=4, seed=seed), score)]
        for seed in (3, 3, 4)
    )
    assert found == again
    assert found != other
    assert len({repr(point) for point in found}) == 12
    if sampler == "tpe":  # it has learnt which kind is the good one
        assert sum(point["kind"] == "good" for point in found[4:]) >= 6
    small = [
        trial.params for trial in drawn(search_of(GRID, sampler, trials=50, startup=2), lambda params: params["a"])
    ]
    assert len(small) == len({repr(point) for point in small}) == 6


@pytest.mark.parametrize(
    ("own", "finished", "greater", "expected"),
    [
        ({1: 0.55}, [0.5, 0.6, 0.7], True, True),
        ({1: 0.65}, [0.5, 0.6, 0.7], True, False),
        ({1: 0.6}, [0.5, 0.6, 0.7], True, False),
        ({1: 0.65, 2: 0.1}, [{1: 0.5, 2: 0.6}, {1: 0.6, 2: 0.6}], True, False),  # its best so far counts
        ({2: 0.1}, [0.5, 0.6, 0.7], True, False),  # no other was scored a second time
        ({1: 0.1}, [0.5], True, False),  # fewer than --startup
        ({1: 0.55}, [0.5, 0.4], False, True),  # where lower is better, higher is given up
    ],
)
def test_a_run_is_given_up_when_it_is_worse_than_the_median(own, finished, greater, expected):
    others = [scores if isinstance(scores, dict) else {1: scores} for scores in finished]
    assert is_worse(own, others, startup=2, greater_is_better=greater) == expected


def plan_of(folder: Path, encoder: Path, space: Space, pruner: str = "none", **changes: object) -> SearchPlan:
    values = settings(folder, encoder, **changes)
    del values["training.output_dir"]
    options = SearchSettings(sampler="grid", pruner=pruner, startup=1, seeds=2, search_share=0.5, preset="bert")
    (folder / SEARCH_FILE).touch()
    return SearchPlan(folder, Search(options, space, values, 42), [], lambda: None)


@pytest.mark.integration
def test_a_run_that_does_worse_than_others_ends_after_an_epoch(tiny, tmp_path):
    space = Space((Dimension("training.learning_rate", (1e-9, 1e-3)),))
    plan = plan_of(tmp_path, tiny("bert"), space, "median", training__num_train_epochs=3)
    # The first trial was right on all rows from the beginning.
    for run in plan.advance(1, ()):
        scored = [{"step": 3 * epoch, "validation": {"accuracy": 1.0}} for epoch in (1, 2, 3)]
        record = replace(small_record(run, score=1.0), scored=scored)
        for seed in (42, 43):
            plan.record_store.write(replace(record, run=replace(run, seed=seed)), tmp_path)
    plan.advance(2, ())
    assert [run.name for run in plan.runs][2:] == ["own/all/trial-0002/seed-42"]
    assert (len(plan.later), plan.is_complete) == (1, False)  # the other seed waits for the first one's word
    pruned = plan.runs[-1]
    record = execute_run(pickle.loads(pickle.dumps(plan.task(pruned))), stop=StopRequest())
    plan.record_store.write(record, plan.record_store.run_folder(pruned))
    plan.record_store.tidy(pruned)
    plan.advance(2, ())
    trial = plan.trials[1]
    assert trial.status == "pruned"
    assert trial.message.startswith("accuracy 0.")
    assert trial.message.endswith("when scored once, worse than others by then")
    record = plan.record_store.load(pruned)
    assert (record.status, record.score, record.is_done) == ("pruned", None, False)
    assert [line["step"] for line in record.curve][-1] == 3  # of nine
    assert record.error["traceback"] is None
    assert not (tmp_path / "runs").exists()
    assert plan.is_complete
    assert not plan.later


def test_a_failed_trial_is_tried_again_and_values_that_do_not_go_together_fail_theirs_only(tiny, tmp_path):
    plan = plan_of(tmp_path, tiny("bert"), Space((Dimension("training.learning_rate", (1e-4, 1e-3)),)))
    first, second = plan.advance(2, ())
    plan.record_store.write(small_record(first, status="failed"), tmp_path)
    plan.record_store.write(small_record(second, score=0.75), tmp_path)
    assert [run.name.split("/", 2)[2] for run in plan.advance(2, ())] == ["trial-0002/seed-43"]
    assert [trial.status for trial in plan.trials] == ["failed", "running"]
    plan.retry_failed()
    assert [trial.status for trial in plan.trials] == ["running", "running"]
    assert not plan.record_store.has(first)
    assert plan.record_store.has(second)
    # Values that do not go together fail their trial only.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-2"
    tmp_path.mkdir()
    space = Space(
        (Dimension("labels.generator", ("none", "flip")), Dimension("model.token_gate.kind", ("none", "ssa")))
    )
    plan = plan_of(tmp_path, tiny("bert"), space)
    plan.advance(4, ())
    failed = [trial for trial in plan.trials if trial.status == "failed"]
    assert [trial.params for trial in failed] == [{"labels.generator": "flip", "model.token_gate.kind": "none"}]
    assert "flip makes token labels" in failed[0].message
    assert len(plan.trials) == 4
    assert {run.method for run in plan.runs} == {trial.name for trial in plan.trials} - {failed[0].name}


def test_rows_are_the_same_for_every_trial_and_dev_stays_out(tiny, tmp_path):
    def rows(share: float, seed: int, changes: dict[str, Any], score_on: str = "train") -> Any:
        search = search_of(GRID, "grid", seed=seed, search_share=share, score_on=score_on)
        return rows_of(search, load_config(overrides={**values, **changes}))

    values = settings(tmp_path, tiny("bert"))
    data = rows(0.25, 3, {})
    assert {name: len(part) for name, part in data.splits.items()} == {"train": 36, "validation": 12}
    assert not {*data.splits["train"].ids} & {*data.splits["validation"].ids}
    assert "Dev is not looked at." in data.notes[-1]
    other = {"training.seed": 9, "training.learning_rate": 1e-6}
    assert rows(0.25, 3, other).fingerprint() == data.fingerprint()
    assert rows(0.25, 4, other).fingerprint() != data.fingerprint()
    dev = rows(0.25, 3, {}, "dev")
    assert {name: len(part) for name, part in dev.splits.items()} == {"train": 48, "validation": 20}
    found = rows(0.5, 3, {"data.max_train_samples": 20, "data.max_eval_samples": 4})
    assert {name: len(part) for name, part in found.splits.items()} == {"train": 10, "validation": 4}
    with pytest.raises(DataError, match="has 1 labelled training rows, so none can be cut"):
        rows(0.2, 3, {"data.max_train_samples": 1})
    # A dev that is cut from the training file stays out, too.
    cut = {"data.validation_file": None, "data.validation_share": 0.25}
    whole = load_data(load_config(overrides={**values, **cut}).data, seed=42)
    found = rows(0.5, 42, cut)
    assert {*found.splits["train"].ids, *found.splits["validation"].ids} == {*whole.splits["train"].ids}


def predictions(labels: list[str], predicted: list[str], names: tuple[str, ...]) -> Predictions:
    values = [np.array([names.index(text) for text in texts]) for texts in (labels, predicted)]
    return Predictions(tuple(map(str, range(len(labels)))), names, *values)


def test_the_rule_of_three_parts_against_a_plain_reference():
    draw, names = random.Random(3), ("good", "bad")  # as ids: not in the order of the alphabet
    labels = [draw.choice(names) for _ in range(61)]
    guesses = [label if draw.random() < 0.7 else draw.choice(names) for label in labels]
    ids = np.array([names.index(label) for label in labels])
    found = part_scores(predictions(labels, guesses, names), "f1", 42)
    expected = [
        f1_score([labels[place] == "bad" for place in part], [guesses[place] == "bad" for place in part])
        for part in stratified_folds(ids, 3, 42)
    ]
    assert found == pytest.approx(expected)
    mean = sum(expected) / 3
    std = math.sqrt(sum((score - mean) ** 2 for score in expected) / 2)
    for choose, k, metric, value in (
        ("three-parts", 1.0, "f1", mean - std),
        ("three-parts", 2.5, "f1", mean - 2.5 * std),
        ("score", 1.0, "f1", mean),
        ("three-parts", 1.0, "mean_squared_error", mean + std),  # lower errors are better, so the spread is added
    ):
        search = search_of(GRID, "grid", choose=choose, k=k, metric=metric)
        assert search.value(found) == pytest.approx(value)
    # Parts of scores and an undefined metric.
    rng = np.random.default_rng(5)
    labels = rng.uniform(0, 5, 40)
    guesses, ids = labels + rng.normal(0, 1, 40), tuple(map(str, range(40)))
    parts = stratified_folds(labels, 3, 1)
    assert part_scores(Predictions(ids, (), labels, guesses), "pearson", 1) == pytest.approx(
        [stats.pearsonr(labels[part], guesses[part]).statistic for part in parts]
    )
    constant = part_scores(Predictions(ids, (), labels, np.ones(40)), "pearson", 1)
    assert search_of(GRID, "grid", choose="three-parts", metric="pearson").value(constant) is None


def test_ranking_by_value_then_number_then_status():
    given = [(0.8, "done"), (0.855, "done"), (None, "failed"), (0.855, "done"), (0.9, "done"), (0.855, "done"),
             (None, "pruned")]  # fmt: skip
    trials = [TrialOutcome(f"trial-{n}", {}, status, value=value) for n, (value, status) in enumerate(given)]
    for greater_is_better, expected in ((True, [4, 1, 3, 5, 0, 6, 2]), (False, [0, 1, 3, 5, 4, 6, 2])):
        found = ranked(trials, greater_is_better=greater_is_better)
        assert [int(one.name[-1]) for one in found] == expected


# What a search varies: flags, mappings, and that each value is one.


def read(text: str) -> Dimension:
    problems: list[str] = []
    found = dimension_of(text, problems)
    assert problems == []
    assert found is not None
    return found


def checked(*searched: str, preset: str | None = "bert", **fixed: object) -> Search:
    overrides = {name.replace("__", "."): value for name, value in fixed.items()}
    return check_search(SearchSettings([read(text) for text in searched], preset=preset, overrides=overrides))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training.learning_rate=1e-5,3e-5", Dimension("training.learning_rate", ("1e-5", "3e-5"))),
        ("training.learning_rate=log:1e-5:1e-3", Dimension("training.learning_rate", (), 1e-5, 1e-3, True)),
        ("objective.alpha=0.5:0.9", Dimension("objective.alpha", (), 0.5, 0.9)),
        ("model.head.kind=cls", Dimension("model.head.kind", ("cls",))),
        ("data.label_column=a:b", Dimension("data.label_column", ("a:b",))),
    ],
)
def test_flags(text, expected):
    assert read(text) == expected


@pytest.mark.parametrize(("text", "message"), MISTAKES["flags"])
def test_flags_that_are_mistaken(text, message):
    problems: list[str] = []
    assert dimension_of(text, problems) is None
    assert message in problems[0]


def test_values_become_what_their_settings_are():
    space = checked(
        "training.learning_rate=1e-5,3e-5", "training.num_train_epochs=2:4", "training.freeze_encoder=no,yes"
    ).space
    assert [part.choices for part in space.dimensions] == [(1e-5, 3e-5), (), (False, True)]
    points = checked("training.per_device_train_batch_size=8:16", "data.max_length=16:18").space.points()
    assert len(points) == 9 * 3
    assert points[1] == {"training.per_device_train_batch_size": 8, "data.max_length": 17}
    assert all(isinstance(value, int) for point in points for value in point.values())
    found = checked("training.learning_rate=1e-5,1e-4", preset="blur-value", training__seed="7")
    config = found.config({"training.learning_rate": 1e-4})
    assert (config.preset, config.training.learning_rate, found.seed) == ("blur-value", 1e-4, 7)
    varied = checked("preset=bert,bert-mean", "training.learning_rate=1e-5,1e-4", preset=None)
    assert varied.config(varied.space.points()[3]).preset == "bert-mean"
    with pytest.raises(ConfigError, match="has a value of its own too"):
        checked("training.learning_rate=1e-5,1e-4", training__learning_rate="1e-4")


@pytest.mark.parametrize(("searched", "message"), MISTAKES["searches"])
def test_mistakes_are_told_before_anything_is_trained(searched, message):
    with pytest.raises(ConfigError) as caught:
        checked(*searched)
    assert message in str(caught.value)


def test_a_mapping_is_a_space_of_its_values_and_ranges():
    space = space_from(
        {"training.learning_rate": {"low": 1e-5, "high": 1e-3, "log": True}, "model.head.kind": ["cls", "mean"]},
        "space",
    )
    assert space.dimensions[0] == Dimension("training.learning_rate", (), 1e-5, 1e-3, True)
    assert space.dimensions[1].choices == ("cls", "mean")
    assert space.points() is None


@pytest.mark.parametrize(("content", "message"), MISTAKES["spaces"])
def test_spaces_that_are_none(content, message):
    with pytest.raises(ConfigError) as caught:
        check_search(SearchSettings(content))
    assert "space: " in str(caught.value)
    assert message in str(caught.value)
