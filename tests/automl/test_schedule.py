"""The order of members, and their updates when time gets short, with plain numbers."""

from dataclasses import replace

import pytest

from attentune.automl.budget import FIRST, BudgetPlan, EncoderSpeed, MemberState, Schedule, SpeedModel
from attentune.automl.portfolio import Member
from attentune.runs.records import RecordStore
from helpers.tasks import small_record

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


def test_an_adapted_member_that_does_not_fit_with_its_adaptation_is_not_begun(schedule):
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
    assert schedule.next_member(35, 1) is None
    assert schedule.updates_of(sesame) == 100


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
