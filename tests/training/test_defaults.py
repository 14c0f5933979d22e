"""Open training settings are chosen by rows, text length and encoder size; given ones are kept."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import TrainingConfig, load_config
from attentune.training.prepare import (
    RunSize,
    _describe,
    choose_settings,
    chosen,
    default_batch_size,
    default_epochs,
    default_learning_rate,
    default_loss,
)
from attentune.training.run_folder import RULED

MINILM, BASE, LARGE = (6, 384), (12, 768), (24, 1024)


def size(rows: int = 1000, **changes: float) -> RunSize:
    values: dict = {"mean_tokens": 20.0, "validation_rows": 200, "layers": 6, "hidden_size": 384} | changes
    return RunSize(rows=rows, **values)


def updates(training: TrainingConfig, rows: int) -> int:
    return math.ceil(chosen(training.num_train_epochs) * rows / chosen(training.per_device_train_batch_size))


@pytest.mark.parametrize(
    ("rows", "batch", "epochs", "steps"),
    [
        (100, 16, 40, 250),
        (300, 16, 32, 600),
        (1000, 16, 9.6, 600),
        (5000, 16, 3, 938),
        (10_000, 32, 3, 938),
        (100_000, 32, 3, 9375),
    ],
)
def test_small_data_gets_updates_and_large_data_three_epochs(rows: int, batch: int, epochs: float, steps: int) -> None:
    settled = choose_settings(TrainingConfig(), size(rows))
    assert (settled.per_device_train_batch_size, settled.num_train_epochs) == (batch, epochs)
    assert updates(settled, rows) == steps
    assert default_batch_size(100_000, mean_tokens=129) == 16
    assert default_batch_size(100_000, mean_tokens=128) == 32


@pytest.mark.parametrize(("shape", "rate"), [(MINILM, 1e-4), (BASE, 3.5e-5), (LARGE, 1.9e-5), ((2, 32), 2e-4)])
def test_the_learning_rate_falls_with_the_size_of_the_encoder(shape: tuple[int, int], rate: float) -> None:
    assert default_learning_rate(*shape) == rate


def test_frozen_encoders_and_adapters_train_at_higher_rates() -> None:
    assert default_learning_rate(*BASE, frozen=True) == 1e-3
    assert default_learning_rate(*BASE, lora=True) == 1.8e-4
    assert choose_settings(TrainingConfig(freeze_encoder=True), size()).learning_rate == 1e-3
    assert choose_settings(TrainingConfig(lora_rank=4), size()).learning_rate == 5e-4


def test_given_settings_are_kept() -> None:
    given_ones = TrainingConfig(
        learning_rate=3e-5,
        num_train_epochs=2.0,
        per_device_train_batch_size=8,
        eval_strategy="no",
        save_steps=7,
        load_best_model_at_end=False,
    )
    assert choose_settings(given_ones, size()) == given_ones
    assert _describe(given_ones, given_ones) is None


def test_a_run_of_many_epochs_is_scored_and_saved_ten_times() -> None:
    settled = choose_settings(TrainingConfig(), size(300))
    assert (settled.eval_strategy, settled.eval_steps, settled.save_steps) == ("steps", 60, 60)
    each_epoch = choose_settings(TrainingConfig(), size(1000))
    assert (each_epoch.eval_strategy, each_epoch.eval_steps, each_epoch.save_steps) == ("epoch", None, None)
    asked = choose_settings(TrainingConfig(eval_strategy="epoch"), size(300))
    assert (asked.eval_strategy, asked.eval_steps) == ("epoch", None)


def test_max_steps_decides_how_often_a_run_is_scored() -> None:
    settled = choose_settings(TrainingConfig(max_steps=30), size(300))
    assert (settled.eval_strategy, settled.save_steps) == ("epoch", None), "30 steps are fewer than two epochs"


def test_processes_and_accumulation_count_as_one_batch() -> None:
    assert choose_settings(TrainingConfig(), size(4000, processes=2)).num_train_epochs == 4.8
    assert choose_settings(TrainingConfig(gradient_accumulation_steps=2), size(4000)).num_train_epochs == 4.8


def test_the_best_weights_are_kept_where_enough_rows_tell_them() -> None:
    assert choose_settings(TrainingConfig(), size(validation_rows=100)).load_best_model_at_end is True
    assert choose_settings(TrainingConfig(), size(validation_rows=99)).load_best_model_at_end is False
    assert choose_settings(TrainingConfig(eval_strategy="no"), size()).load_best_model_at_end is False


@given(
    rows=st.integers(1, 10**7),
    mean_tokens=st.floats(1, 1e4),
    layers=st.integers(1, 100),
    hidden_size=st.integers(1, 20_000),
    processes=st.integers(1, 64),
)
def test_any_size_gets_valid_settings(rows, mean_tokens, layers, hidden_size, processes):
    given_size = RunSize(rows, mean_tokens, 10, layers, hidden_size, processes)
    settled = choose_settings(TrainingConfig(), given_size)
    assert 1e-5 <= chosen(settled.learning_rate) <= 2e-4
    assert 3 <= chosen(settled.num_train_epochs) <= 40
    assert choose_settings(settled, given_size) == settled, "what is chosen is not chosen again"
    assert all(getattr(settled, name) is not None for name in RULED if name not in ("eval_steps", "save_steps"))


@given(st.integers(1, 10**6), st.integers(1, 1000))
def test_more_rows_never_mean_more_epochs(rows: int, rows_per_step: int) -> None:
    assert default_epochs(rows, rows_per_step) >= default_epochs(rows + 1, rows_per_step)


def test_the_choice_is_described() -> None:
    settled = choose_settings(TrainingConfig(learning_rate=1e-5), size(300))
    assert _describe(TrainingConfig(learning_rate=1e-5), settled) == (
        "chosen by rows, text length and encoder: num_train_epochs 32, per_device_train_batch_size 16,"
        " load_best_model_at_end true"
    )


def test_an_open_setting_is_not_used() -> None:
    with pytest.raises(RuntimeError, match="is None, expected the value that choose_settings gives it"):
        chosen(None)


@pytest.mark.parametrize(
    ("preset", "changes", "task_type", "is_pair", "loss"),
    [
        ("task-attention", {}, "regression", True, "pearson"),
        ("task-attention-original", {}, "regression", True, "pearson"),
        ("bi-encoder-mean", {}, "regression", True, "pearson"),
        ("bi-encoder-mean", {"objective.loss": "mse"}, "regression", True, "mse"),
        ("task-attention", {}, "regression", False, "auto"),
        ("task-attention", {}, "classification", True, "auto"),
        ("bi-encoder-cosine", {}, "regression", True, "auto"),
        ("bert", {}, "regression", True, "auto"),
        # What needs predictions on the scale of the labels, or more rows in a batch, keeps the squared error.
        ("bi-encoder-mean", {"training.per_device_train_batch_size": 1}, "regression", True, "auto"),
        ("ssa-co", {"model.pair_encoding": "bi-encoder"}, "regression", True, "auto"),
    ],
)
def test_scores_from_a_dot_product_have_pearsons_loss(preset, changes, task_type, is_pair, loss):
    config = load_config(preset=preset, overrides=changes)
    assert default_loss(config, task_type, is_pair=is_pair) == loss
