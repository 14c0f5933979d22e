"""The budget: predicted times, the choice of folds, rows and updates, and the number of workers, with plain numbers."""

import time
from dataclasses import replace

import pytest

from attentune.automl.budget import (
    HOLDOUT_ROWS,
    MAX_HELD_ROWS,
    BudgetPlan,
    EncoderSpeed,
    LoadMeter,
    PlanRequest,
    SpeedModel,
    jobs_for_memory,
    load_now,
    make_plan,
    parse_duration,
    time_needed,
)
from attentune.automl.portfolio import choose_members
from attentune.errors import ConfigError

MEMBERS = choose_members(is_pair=False, task_type="classification", encoders=["embedded"])
WORK = BudgetPlan(folds=5, train_rows=800, held_rows=200, updates=600, batch_size=16, tokens_per_row=20)


def _speed(train=3000.0, predict=12000.0):
    return SpeedModel({"embedded": EncoderSpeed(train, predict, overhead_s=3.0)})


def _plan(rows, seconds, *, tokens=20.0, jobs=2, **options):
    return make_plan(PlanRequest(rows, tokens, MEMBERS, _speed(), seconds, jobs, **options))


def _member(name):
    return next(member for member in MEMBERS if member.name == name)


def test_times():
    for text, seconds in (("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5m", 90), ("45", 45), (600, 600)):
        assert parse_duration(text) == seconds
    for text in ("", "ten minutes", "10d", "-5m", "10m5", "nan", "1e3"):
        with pytest.raises(ConfigError, match="expected a time such as 90s, 10m, 1h"):
            parse_duration(text)
    with pytest.raises(ConfigError, match="time_limit: got '5s', expected at least 10s"):
        parse_duration("5s")


def test_the_seconds_of_a_fold_are_those_of_its_tokens():
    # 600 updates of 16 rows of 20 tokens at 3,000 tokens/s: 64 s; loading and saving: 3 s; 200 rows at 12,000 tokens/s.
    assert _speed().seconds(_member("bert-cls-mean"), WORK) == pytest.approx(64 + 3 + 1 / 3, abs=0.1)
    # The linear probe: 800 rows at 12,000 tokens/s, and 0.4 ms a row for the fit; of many rows 4,096 are used.
    assert _speed().seconds(_member("bert-mean"), WORK) == pytest.approx(68.98, abs=0.1)
    many = replace(WORK, train_rows=80_000)
    probe_s = _speed().seconds(_member("bert-mean"), many) - _speed().seconds(_member("bert-cls-mean"), many)
    assert probe_s == pytest.approx(4096 * (20 / 12000 + 4e-4))
    # ssa-hybrid: 1.2 times that, and in each of 12 epochs 1.5 predictions of 800 rows.
    expected = 64 * 1.2 + 3 + 1 / 3 + 12 * 1.5 * 800 * 20 / 12000
    assert _speed().seconds(_member("ssa-hybrid"), WORK) == pytest.approx(expected, abs=0.1)


def test_frozen_vectors_are_made_once_for_all_folds():
    # 1,000 rows at 12,000 tokens/s, once for five folds and the fit on all rows; a model is fitted on 1,000 rows.
    frozen, encode_s = _member("frozen-linear"), 1000 * 20 / 12000
    assert _speed().seconds(frozen, WORK) == pytest.approx(0.2 + encode_s / 6 + 0.4)
    assert _speed().seconds(frozen, replace(WORK, folds=1)) == pytest.approx(0.2 + encode_s / 2 + 0.4)
    # Of many rows a slow encoder encodes a sample.
    speed = SpeedModel({"embedded": EncoderSpeed(3000, 12000, overhead_s=3.0, frozen_rows=500)})
    sample_s = 0.2 + 700 * 20 / 12000 / 2 + 700 * 4e-4
    for rows in (800, 80_000):
        assert speed.seconds(frozen, replace(WORK, folds=1, train_rows=rows)) == pytest.approx(sample_s)


def test_linear_models_of_many_classes_take_longer():
    few, many = _speed(), replace(_speed(), labels=150)
    for name, row_s in (("tfidf-linear", 3e-4), ("frozen-linear", 4e-4)):
        more_s = many.seconds(_member(name), WORK) - few.seconds(_member(name), WORK)
        assert more_s == pytest.approx(1000 * row_s * (150 / 20 - 1))


def test_a_finished_run_corrects_the_predictions_of_its_member_and_of_others():
    speed = _speed()
    first, other, baseline = (_member(name) for name in ("bert-mean", "sesame", "frozen-linear"))
    before = {member.name: speed.seconds(member, WORK) for member in (first, other, baseline)}
    speed.observe(first, WORK, 3 * before["bert-mean"])
    assert speed.seconds(first, WORK) == pytest.approx(3 * before["bert-mean"])
    assert speed.seconds(other, WORK) == pytest.approx(3 * before["sesame"])
    assert speed.seconds(baseline, WORK) == before["frozen-linear"]
    speed.observe(other, WORK, before["sesame"])  # its own measurement counts more than that of others
    assert speed.seconds(other, WORK) == pytest.approx(before["sesame"])
    speed.encoders["other"] = speed.encoders["embedded"]
    elsewhere = replace(first, name="bert-mean@other", encoder="other")
    assert speed.seconds(elsewhere, WORK) == before["bert-mean"]


def test_predictions_follow_the_load_of_the_machine():
    probe = EncoderSpeed(3000.0, 12000.0, overhead_s=3.0, load=5.0)
    speed = SpeedModel({"embedded": probe}, load=5.0)
    tfidf, frozen = _member("tfidf-linear"), _member("frozen-linear")
    probed, busy_s = speed.seconds(frozen, WORK), speed.seconds(tfidf, WORK)
    speed.load = 1.0
    assert speed.seconds(frozen, WORK) == pytest.approx(probed / 5)
    assert speed.seconds(tfidf, WORK) == pytest.approx(busy_s / 5)  # by constants of a free machine
    # The fits of a model on frozen vectors are not faster than those of none because the probe was slow.
    assert speed.seconds(_member("majority"), WORK) < speed.seconds(frozen, WORK)
    speed.load = 5.0
    assert speed.seconds(_member("majority"), WORK) < speed.seconds(frozen, WORK)
    speed.observe(tfidf, WORK, 5.0, load=2.0)
    assert speed.seconds(tfidf, WORK) == pytest.approx(5.0)
    assert speed.seconds(frozen, WORK) == pytest.approx(probed / 5 * 2)
    speed.observe(tfidf, WORK, 0.5, load=9.0)
    assert speed.load == pytest.approx(2.7)  # that of a moment is chance


def test_a_load_is_what_others_take_not_what_a_thread_waits_for():
    meter = LoadMeter()
    time.sleep(0.3)
    assert meter.load() < 5, "0.3 s asleep would be a load of far more"
    assert 1 <= load_now() <= 20


def test_time_is_kept_for_a_member_whose_encoder_is_adapted():
    """With all updates the first member would take most of the time, and the second one be left out."""
    tokens, seconds = 20.0, 300.0
    members = [_member("bert-mean"), replace(_member("bert-mean"), name="adapted", adapted=True)]
    speed = _speed()
    options = {"rows": 1000, "tokens_per_row": tokens, "speed": speed, "seconds": seconds, "jobs": 1}
    alone = make_plan(PlanRequest(members=members[:1], **options))
    both = make_plan(PlanRequest(members=members, **options))
    assert (alone.folds, both.folds) == (5, 5)
    assert both.updates < alone.updates
    fold_s = speed.seconds(members[1], both)
    adaptation_s = speed.seconds(members[1], replace(both, updates=300))
    # The second one may have fewer updates than the plan, at least half.
    assert 5 * fold_s + adaptation_s + 5 * fold_s / 2 < seconds
    # Where the adaptation itself would take too much, the plan is that of the first member.
    short = {**options, "seconds": 60.0}
    assert make_plan(PlanRequest(members=members, **short)) == make_plan(PlanRequest(members=members[:1], **short))


def test_time_is_kept_for_runs_that_follow():
    members, speed, tokens = [_member("bert-mean")], _speed(), 20.0
    options = {"members": members, "rows": 1000, "tokens_per_row": tokens, "speed": speed, "jobs": 1}
    for seconds in (60.0, 120.0, 300.0, 900.0):
        plan = make_plan(PlanRequest(**options, seconds=seconds, later_runs=2.5))
        fold_s = speed.seconds(members[0], plan)
        assert 0.3 * seconds < (plan.folds + 2.5) * fold_s < seconds
    # Where they leave no time for the member, the baselines have all folds.
    assert "only baselines" in make_plan(PlanRequest(**options, seconds=12.0, later_runs=2.5)).notes[0]


def test_much_time_means_five_folds_and_all_updates():
    plan = _plan(300, 3600)
    assert (plan.folds, plan.train_rows, plan.held_rows, plan.updates, plan.batch_size) == (5, 240, 60, 600, 16)
    assert plan.notes == ()


def test_less_time_means_fewer_updates_then_fewer_folds_then_a_held_out_part():
    plans = [_plan(1000, seconds) for seconds in (3600, 200, 100, 50, 30)]
    assert [plan.folds for plan in plans] == sorted((plan.folds for plan in plans), reverse=True)
    assert [plan.updates for plan in plans] == sorted((plan.updates for plan in plans), reverse=True)
    assert (plans[0].folds, plans[-1].folds) == (5, 1)
    assert any("instead of 5" in note for note in plans[-1].notes)
    assert any("updates instead of 600" in note for note in plans[-1].notes)


@pytest.mark.parametrize("rows", [100, 300, 1000, 5000, 20_000, 20_001, 100_000, 1_000_000])
@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_the_baselines_and_a_fine_tuned_member_fit_into_five_minutes(rows, jobs):
    plan = _plan(rows, 280, jobs=jobs)
    speed = _speed()
    core = [member for member in MEMBERS if member.is_baseline or member.name == "bert-mean"]
    seconds = [speed.seconds(member, plan) for member in core]
    assert sum(seconds) * plan.folds / jobs <= 0.7 * 280
    assert max(seconds) <= 0.7 * 280  # a fold is not divided among workers
    assert plan.updates >= 50
    assert plan.train_rows + plan.held_rows <= rows


def test_many_rows_are_held_out_and_as_many_are_used_as_updates_read():
    plan = _plan(100_000, 300)
    assert plan.folds == 1
    assert plan.held_rows == MAX_HELD_ROWS
    assert (
        plan.train_rows == max(HOLDOUT_ROWS - MAX_HELD_ROWS, plan.updates * plan.batch_size) < 100_000 - plan.held_rows
    )
    assert any("of the other 96,000 rows are trained on" in note for note in plan.notes)


def test_baselines_have_folds_if_no_fine_tuned_member_fits():
    plan = make_plan(PlanRequest(300, 20, MEMBERS, _speed(100.0, 3000.0), seconds=40, jobs=1))
    assert plan.folds == 5
    assert "only baselines are tried" in plan.notes[0]


def test_given_folds_and_epochs_are_kept_and_few_rows_have_few_folds():
    assert _plan(1000, 30, folds=4).folds == 4
    plan = _plan(1000, 30, epochs=2.0, batch_size=8)
    assert (plan.updates, plan.batch_size) == (2 * plan.train_rows // 8, 8)
    assert [_plan(rows, 3600).folds for rows in (12, 8)] == [3, 2]


def test_workers_and_the_time_that_they_need():
    assert [time_needed([10, 10, 10, 10], 2), time_needed([30, 2, 2], 2), time_needed([], 2)] == [20, 30, 0]
    for job_bytes, available, expected in ((1_000, 10_000, 8), (2_000, 10_000, 4), (20_000, 10_000, 1), (9, None, 8)):
        assert jobs_for_memory(8, job_bytes, available) == expected
    assert jobs_for_memory(8, 0, 10_000) == 8
