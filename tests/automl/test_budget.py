"""The budget, the order of members when time gets short, and the portfolio, with plain numbers."""

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from attentune.automl.budget import (
    FIRST,
    BudgetPlan,
    EncoderSpeed,
    LoadMeter,
    MemberState,
    PlanRequest,
    Schedule,
    SpeedModel,
    load_now,
    make_plan,
    parse_duration,
    time_needed,
)
from attentune.automl.portfolio import Member, all_members, choose_members, encoder_labels
from attentune.config import load_config, preset_names
from attentune.errors import ConfigError
from attentune.runs.records import RecordStore
from helpers.tasks import small_record

MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))

MEMBERS = choose_members(is_pair=False, task_type="classification", encoders=["embedded"])
WORK = BudgetPlan(folds=5, train_rows=800, held_rows=200, updates=600, batch_size=16, tokens_per_row=20)


def _speed(train=3000.0, predict=12000.0):
    return SpeedModel({"embedded": EncoderSpeed(train, predict, overhead_s=3.0)})


def _plan(rows, seconds, *, tokens=20.0, jobs=2, members=MEMBERS, **options):
    return make_plan(PlanRequest(rows, tokens, members, _speed(), seconds, jobs, **options))


def _member(name):
    return next(member for member in MEMBERS if member.name == name)


def test_times_and_workers():
    for text, seconds in (("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5m", 90), ("45", 45), (600, 600)):
        assert parse_duration(text) == seconds
    for text in ("", "ten minutes", "10d", "-5m", "10m5", "nan", "1e3"):
        with pytest.raises(ConfigError, match="expected a time such as 90s, 10m, 1h"):
            parse_duration(text)
    with pytest.raises(ConfigError, match="time_limit: got '5s', expected at least 10s"):
        parse_duration("5s")
    # Workers and the time that they need.
    assert [time_needed([10, 10, 10, 10], 2), time_needed([30, 2, 2], 2), time_needed([], 2)] == [20, 30, 0]


def test_the_seconds_of_a_fold_are_those_of_its_tokens_and_frozen_vectors_are_made_once():
    # 600 updates of 16 rows of 20 tokens at 3,000 tokens/s: 64 s; loading and saving: 3 s; 200 rows at 12,000 tokens/s.
    assert _speed().seconds(_member("bert-cls-mean"), WORK) == pytest.approx(64 + 3 + 1 / 3, abs=0.1)
    # The linear probe: 800 rows at 12,000 tokens/s, and 0.4 ms a row for the fit; of many rows 4,096 are used.
    assert _speed().seconds(_member("bert-mean"), WORK) == pytest.approx(68.98, abs=0.1)
    many = replace(WORK, train_rows=80_000)
    probe_s = _speed().seconds(_member("bert-mean"), many) - _speed().seconds(_member("bert-cls-mean"), many)
    assert probe_s == pytest.approx(4096 * (20 / 12000 + 4e-4))
    # ssa-hybrid: 1.2 times that, and in each of 12 epochs 1.75 predictions of 800 rows.
    expected = 64 * 1.2 + 3 + 1 / 3 + 12 * 1.75 * 800 * 20 / 12000
    assert _speed().seconds(_member("ssa-hybrid"), WORK) == pytest.approx(expected, abs=0.1)
    # Frozen vectors are made once for all folds.
    # 1,000 rows at 12,000 tokens/s, once for five folds and the fit on all rows; a model is fitted on 1,000 rows.
    frozen, encode_s = _member("frozen-linear"), 1000 * 20 / 12000
    assert _speed().seconds(frozen, WORK) == pytest.approx(0.2 + encode_s / 6 + 0.4)
    assert _speed().seconds(frozen, replace(WORK, folds=1)) == pytest.approx(0.2 + encode_s / 2 + 0.4)
    # Of many rows a slow encoder encodes a sample.
    speed = SpeedModel({"embedded": EncoderSpeed(3000, 12000, overhead_s=3.0, frozen_rows=500)})
    sample_s = 0.2 + 700 * 20 / 12000 / 2 + 700 * 4e-4
    for rows in (800, 80_000):
        assert speed.seconds(frozen, replace(WORK, folds=1, train_rows=rows)) == pytest.approx(sample_s)
    # Linear models of many classes take longer.
    few, many = _speed(), replace(_speed(), labels=150)
    for name, row_s, free in (("tfidf-linear", 3e-4, 50), ("frozen-linear", 4e-4, 20)):
        more_s = many.seconds(_member(name), WORK) - few.seconds(_member(name), WORK)
        assert more_s == pytest.approx(1000 * row_s * (150 / free - 1))


def test_predictions_follow_finished_runs_and_the_load_of_the_machine():
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
    # Predictions follow the load of the machine.
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


def test_a_second_less_costs_few_updates():
    """From half of the updates down to a third, five folds are kept and use what the limit leaves them."""
    plans = {seconds: _plan(1000, float(seconds), jobs=1) for seconds in range(120, 420)}
    updates = [plan.updates for plan in plans.values() if plan.folds == 5]
    assert updates == sorted(updates)
    (whole,) = {_plan(1000, 1e9, jobs=1).updates}
    short = [count for count in updates if count <= whole / 2]
    assert short[0] == round(0.33 * whole)
    assert short[-1] == round(0.5 * whole)
    assert all(more <= 1.13 * less for less, more in pairwise(short))


def test_time_is_kept_for_an_adapted_encoder_and_for_runs_that_follow():
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
    # Time is kept for runs that follow.
    members, speed, tokens = [_member("bert-mean")], _speed(), 20.0
    options = {"members": members, "rows": 1000, "tokens_per_row": tokens, "speed": speed, "jobs": 1}
    for seconds in (60.0, 120.0, 300.0, 900.0):
        plan = make_plan(PlanRequest(**options, seconds=seconds, later_runs=2.5))
        fold_s = speed.seconds(members[0], plan)
        assert 0.3 * seconds < (plan.folds + 2.5) * fold_s < seconds
    # Where they leave no time for the member, the baselines have all folds, if these fit.
    options["members"] = [_member("tfidf-linear"), *members]
    for labels, folds in ((2, 5), (500, 1)):
        plan = make_plan(
            PlanRequest(**options | {"speed": replace(speed, labels=labels)}, seconds=12.0, later_runs=2.5)
        )
        assert ("only baselines" in plan.notes[0], plan.folds) == (True, folds)


def test_less_time_means_fewer_updates_then_fewer_folds_then_a_held_out_part():
    plan = _plan(300, 3600)
    assert (plan.folds, plan.train_rows, plan.held_rows, plan.updates, plan.batch_size) == (5, 240, 60, 600, 16)
    assert plan.notes == ()
    # Less time means fewer updates then fewer folds then a held out part.
    from_scratch = [replace(_member("bert-mean"), probed=False)]
    for members, folds in ((MEMBERS, [5, 5, 3, 1]), (from_scratch, [5, 5, 2, 1])):
        plans = [_plan(1000, seconds, members=members) for seconds in (3600, 100, 40, 20)]
        assert [plan.folds for plan in plans] == folds
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


# The order of members, and their updates when time gets short, with plain numbers.


FOLDS = (1, 2, 3, 4, 5)


@pytest.fixture
def schedule(tmp_path):
    """A baseline and two fine-tuned members; a fold of the first takes 10 seconds, one of the second 20."""
    speed = SpeedModel({"tiny": EncoderSpeed(train_tokens_per_s=800.0, predict_tokens_per_s=1e9, overhead_s=0.0)})
    plan = BudgetPlan(folds=5, train_rows=80, held_rows=20, updates=100, batch_size=16, tokens_per_row=5.0)
    made = Schedule(plan, speed)
    for name, kind, cost in (
        ("tfidf-linear", "baseline", 1.0),
        ("bert", "fine-tuned", 1.0),
        ("sesame", "fine-tuned", 2.0),
    ):
        member = Member(name, kind, name, encoder=None if kind == "baseline" else "tiny", cost=cost)
        state = MemberState(member, RecordStore(tmp_path), 42, FOLDS)
        state.waiting = [*state.parts]
        made.states.append(state)
    return made


def finish(state: MemberState, *numbers: int) -> None:
    for number in numbers or state.parts:
        state.waiting.remove(number)
        state.records[number] = small_record(state.run(number))


def begin(state: MemberState, number: int) -> None:
    state.waiting.remove(number)
    state.running.add(number)


def adapted(state: MemberState) -> MemberState:
    """Make a member one whose encoder is adapted first."""
    state.member = replace(state.member, adapted=True)
    state.waiting.insert(0, FIRST)
    return state


def test_a_fold_takes_what_its_tokens_take_and_a_running_one_half_of_it(schedule):
    _, bert, sesame = schedule.states
    assert schedule.remaining(sesame, 50) == pytest.approx([10] * 5, rel=0.01)
    begin(bert, 1)
    assert schedule.remaining(bert) == pytest.approx([10] * 4 + [5], rel=0.01)
    schedule.speed.observe(bert.member, replace(schedule.plan, updates=50), seconds=10.0)
    assert schedule.seconds(bert) == pytest.approx(20, rel=0.01)
    # The adaptation of an encoder has 300 updates, a fold 100.
    adapted(sesame)
    sesame.member = replace(sesame.member, encoder="other", cost=1.0)
    schedule.speed.encoders["other"] = schedule.speed.encoders["tiny"]
    assert schedule.remaining(sesame, 50) == pytest.approx([30] + [5] * 5, rel=0.01)


def test_folds_wait_for_the_adaptation_of_their_encoder(schedule):
    tfidf, bert, sesame = schedule.states
    adapted(bert)
    finish(tfidf)
    assert schedule.next_member(100.0, 2) is bert
    begin(bert, FIRST)
    # A free worker takes a fold of another member meanwhile.
    assert schedule.next_member(1000.0, 2) is sesame
    assert schedule.next_member(10.0, 2) is None
    bert.running.clear()
    assert schedule.next_member(100.0, 2) is bert


def test_an_adapted_member_comes_with_its_adaptation_or_not_at_all(schedule):
    tfidf, bert, _ = schedule.states
    adapted(bert)
    finish(tfidf)
    assert schedule.next_member(82.0, 1) is bert
    # 30 seconds and five folds with half of the updates.
    assert schedule.next_member(50.0, 1) is None


def test_an_adapted_member_with_fewer_updates_goes_before_others(schedule):
    tfidf, bert, sesame = schedule.states
    adapted(sesame)
    sesame.member = replace(sesame.member, cost=1.0)
    schedule.states[1:] = [sesame, bert]
    finish(tfidf)
    # It needs 80 seconds, bert 50.
    assert schedule.next_member(70.0, 1) is sesame
    assert 50 <= sesame.updates < 100


def test_members_are_tried_in_their_order_and_begun_ones_first(schedule):
    tfidf, bert, sesame = schedule.states
    assert schedule.next_member(1000, 1) is tfidf
    finish(tfidf)
    assert schedule.next_member(1000, 1) is bert
    # One that fits goes before one that needs fewer updates.
    schedule.states.sort(key=lambda state: state is not sesame)
    assert schedule.next_member(60, 1) is bert
    assert (bert.updates, sesame.updates) == (0, 0)
    begin(sesame, 1)
    assert schedule.next_member(1000, 1) is sesame


def test_updates_are_lowered_to_fit_into_the_time_left(schedule):
    tfidf, bert, sesame = schedule.states
    finish(tfidf)
    finish(bert)
    schedule.speed.observe(bert.member, schedule.plan, seconds=10.0)
    assert schedule.next_member(80, 1) is sesame
    assert schedule.updates_of(sesame) == pytest.approx(0.95 * 80, abs=2)
    assert sum(schedule.remaining(sesame)) <= 80


def test_a_prediction_that_no_run_has_corrected_fills_less_of_the_time(schedule):
    tfidf, bert, sesame = schedule.states
    finish(tfidf)
    # All updates need 50 of 52 seconds, of which the prediction may fill 85 %.
    assert schedule.next_member(52, 1) is bert
    assert schedule.updates_of(bert) == pytest.approx(0.95 * 0.85 * 52 / 50 * 100, abs=1)
    finish(bert)
    assert schedule.next_member(50, 1) is None  # no member has less than half of the updates
    assert sesame.updates == 0


def test_epochs_that_a_user_sets_are_kept(schedule):
    schedule.has_fixed_updates = True
    tfidf, bert, _ = schedule.states
    finish(tfidf)
    assert schedule.next_member(49, 1) is None
    finish(bert, 1)
    schedule.give_up_late_members(30, 1)
    assert bert.note.startswith("given up: its other folds need about 40 s, 30 s were left")


def test_a_late_member_goes_on_with_fewer_updates_or_is_given_up(schedule):
    bert = schedule.states[1]
    finish(bert, 1)
    schedule.speed.observe(bert.member, schedule.plan, seconds=10.0)
    schedule.give_up_late_members(30, 1)
    assert not bert.note
    assert schedule.updates_of(bert) == pytest.approx(0.95 * 30 / 40 * 100, abs=2)
    schedule.give_up_late_members(13, 1)
    assert not bert.note  # with a quarter of the updates the others fit
    assert 25 <= schedule.updates_of(bert) < 50
    schedule.give_up_late_members(8, 1)
    assert bert.note.startswith("given up: its other folds need about")


def test_a_member_without_disk_space_is_left_out(schedule):
    tfidf, bert, sesame = schedule.states
    schedule.speed.encoders["tiny"] = replace(schedule.speed.encoders["tiny"], disk_bytes=10_000_000)
    schedule.free_bytes = 90_000_000
    assert schedule.next_member(1000, 1) is tfidf
    finish(tfidf)
    assert schedule.next_member(1000, 1) is bert
    finish(bert)
    assert schedule.next_member(1000, 1) is None
    assert sesame.note == "left out: its folds need about 50 MB of disk space, 40 MB are left"


def test_the_first_fine_tuned_member_may_have_few_updates(schedule):
    tfidf, bert, sesame = schedule.states
    finish(tfidf)
    assert schedule.next_member(20, 1) is None  # not even with 50 updates
    assert schedule.next_member(35, 1) is bert
    assert schedule.updates_of(bert) == pytest.approx(0.95 * 0.85 * 35 / 50 * 100, abs=1)
    finish(bert)
    assert schedule.next_member(59, 1) is None
    assert schedule.updates_of(sesame) == 100
    # With fewer than half of the updates only if it starts at a linear probe; here 50 updates need 50 s of 59.
    sesame.member = replace(sesame.member, probed=True)
    schedule.plan = replace(schedule.plan, updates=200)
    assert schedule.next_member(59, 1) is None
    schedule.speed.observe(bert.member, schedule.plan, seconds=20.0)
    assert schedule.next_member(59, 1) is sesame
    assert schedule.updates_of(sesame) == pytest.approx(0.95 * 59, abs=2)


def test_the_preferred_encoder_goes_first_even_with_fewer_updates(schedule):
    tfidf, bert, sesame = schedule.states
    schedule.speed.encoders["slow"] = replace(schedule.speed.encoders["tiny"], train_tokens_per_s=200.0)
    bert.member = replace(bert.member, encoder="slow", probed=True)
    sesame.member = replace(sesame.member, cost=1.0)
    finish(tfidf)
    # All updates of it need 200 of 150 seconds, those of the other encoder 50.
    assert schedule.next_member(150, 1) is sesame
    schedule.preferred = ("slow",)
    assert schedule.next_member(150, 1) is bert
    assert schedule.updates_of(bert) == pytest.approx(0.95 * 0.85 * 150 / 2, abs=1)
    finish(bert)
    assert schedule.next_member(60, 1) is sesame


def test_each_of_equal_encoders_has_an_early_member(schedule):
    """The second one's may have fewer updates too, but no fewer than a third of the plan's."""
    tfidf, bert, sesame = schedule.states
    schedule.speed.encoders["slow"] = replace(schedule.speed.encoders["tiny"], train_tokens_per_s=200.0)
    finish(tfidf)
    finish(bert)
    sesame.member = replace(sesame.member, encoder="slow", probed=True, cost=1.0)
    further = replace(bert, member=replace(bert.member, name="further"), records={}, waiting=list(bert.parts))
    schedule.states.append(further)
    assert schedule.next_member(150, 1) is further
    schedule.preferred = ("tiny", "slow")
    assert schedule.next_member(150, 1) is sesame
    assert schedule.updates_of(sesame) == pytest.approx(0.95 * 0.85 * 150 / 2, abs=1)
    sesame.updates = 0
    assert schedule.next_member(90, 1) is sesame
    assert 33 <= schedule.updates_of(sesame) < 50
    sesame.updates = 0
    assert schedule.next_member(75, 1) is further


def test_a_late_fold_may_end_early_and_what_follows_is_saving_and_predicting(schedule):
    _, bert, sesame = schedule.states
    sesame.updates = 61
    assert [schedule.fewest_updates(state) for state in (bert, sesame)] == [25, 16]
    schedule.has_fixed_updates = True
    assert schedule.fewest_updates(bert) is None
    schedule.speed.encoders["tiny"] = EncoderSpeed(800.0, predict_tokens_per_s=50.0, overhead_s=3.0)
    assert schedule.speed.ending_seconds(bert.member, schedule.plan) == pytest.approx(
        3 + 2
    )  # 20 rows of 5 tokens at 50 tokens/s
    assert [schedule.speed.tokens_per_s(state.member) for state in (bert, sesame)] == [800, 400]


def test_a_baseline_that_seems_too_long_is_tried_before_time_is_left_unused(schedule):
    tfidf, _, _ = schedule.states
    member = Member("frozen-linear", "baseline", "frozen-linear", encoder="tiny")
    frozen = MemberState(member, tfidf.store, 42, FOLDS, waiting=[FIRST])
    schedule.states.insert(1, frozen)
    finish(tfidf)
    needed_s = sum(schedule.remaining(frozen))
    assert schedule.next_member(needed_s / 2, 1) is None
    assert schedule.last_try(needed_s / 20) is frozen
    assert schedule.last_try(0) is None
    begin(frozen, FIRST)
    assert schedule.last_try(needed_s / 2) is None


# The portfolio: which members are tried for which rows, in which order, and under which names.


def _names(**options):
    given = {"is_pair": False, "task_type": "classification", "encoders": ["embedded"], **options}
    return [member.name for member in choose_members(**given)]


def test_members_are_presets_in_their_order_with_unique_names():
    members = all_members()
    assert {member.method for member in members if not member.is_baseline} <= set(preset_names())
    assert len({member.name for member in members}) == len(members)
    # The probed members are those whose training starts at a linear probe.
    for member in all_members():
        if not member.is_baseline:
            config = load_config(preset=member.method, overrides=member.settings)
            # As attentune.training.linear_probe.is_probed says of the built model.
            assert member.probed == (config.training.linear_probe or config.model.head.combine == "cosine"), member.name
    # Baselines come first and second seeds last.
    members = choose_members(is_pair=False, task_type="classification", encoders=["embedded"])
    kinds = [member.is_baseline for member in members]
    assert kinds == sorted(kinds, reverse=True)
    seeds = [member.seed for member in members]
    assert seeds == sorted(seeds)
    assert 0 < seeds.count(1) < len(seeds)


def test_names_of_members_by_rows_and_encoders():
    assert not {"cosine", "token-alignment"} & {*_names()}
    assert "bert-mean" in _names()
    pairs = _names(is_pair=True)
    assert pairs[:5] == ["majority", "tfidf-linear", "cosine", "token-alignment", "frozen-linear"]
    assert "bert" in pairs
    assert "bert-mean" not in pairs
    assert "bi-encoder-cosine" in pairs
    assert "bi-encoder-cosine" not in _names(is_pair=True, num_labels=3)
    # Each encoder has a member and those without an encoder exist once.
    names = _names(encoders=["embedded", "models/e5-small"], names=["tfidf-linear", "frozen-linear", "bert-mean"])
    assert names == [
        "tfidf-linear", "frozen-linear", "frozen-linear@e5-small", "bert-mean", "bert-mean@e5-small"
    ]  # fmt: skip
    # Encoders with one short name are numbered.
    assert encoder_labels(["a", "x/b", "y/b"]) == {"a": "", "x/b": "@b", "y/b": "@b-2"}
    # Classifiers of many classes that start anywhere are left out, not of several labels a row, nor if they are named.
    late = {"ssa-hybrid", "ssa-hybrid-2", "task-attention", "task-attention-2", "sesame", "sesame-2", "bert-cls-mean"}
    late |= {"bert-mean-adapted"}
    assert late <= {*_names(num_labels=19)} & {*_names(num_labels=20, task_type="multi_label")}
    assert {*_names(num_labels=19)} - {*_names(num_labels=20)} == late
    assert {*_names(num_labels=20)} - {*_names(num_labels=19)} == {"frozen-middle"}
    assert "frozen-middle" in _names(names=["frozen-middle"])
    assert "bert-mean-adapted" in _names(num_labels=20, has_unlabeled=True)
    assert _names(num_labels=77, names=["sesame"]) == ["sesame"]
    # Names are chosen in the portfolio s order and exclude wins.
    assert _names(names=["sesame", "majority", "bert-mean"], exclude=["sesame"]) == ["majority", "bert-mean"]


@pytest.mark.parametrize(("options", "says"), MISTAKES["portfolios"])
def test_wrong_names_are_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        _names(**options)
