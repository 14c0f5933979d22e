"""Arguments for transformers' Trainer follow the same rule as Attentune's own defaults."""

from collections.abc import Callable
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, Trainer

from attentune.config import TrainingConfig
from attentune.errors import DataError
from attentune.integrations.hf_trainer import new_model, recommended_arguments
from attentune.training.prepare import RunSize, choose_settings

Tiny = Callable[..., Path]


def rows(count: int) -> Dataset:
    ids = [[2, 5 + n % 7, 6 + n % 5, 3] for n in range(count)]
    return Dataset.from_dict(
        {"input_ids": ids, "attention_mask": [[1] * 4] * count, "labels": [n % 2 for n in range(count)]}
    )


def test_they_are_those_of_attentune_train(tiny: Tiny, tmp_path: Path) -> None:
    model, _ = new_model(str(tiny("bert")), ["bad", "good"])
    made = recommended_arguments(
        model, rows(300), output_dir=str(tmp_path), eval_dataset=rows(120), report_to="none", use_cpu=True
    )
    encoder = model.config.encoder_config
    wanted = choose_settings(TrainingConfig(), RunSize(300, 4.0, 120, encoder.num_hidden_layers, encoder.hidden_size))
    for name in ("learning_rate", "num_train_epochs", "per_device_train_batch_size", "load_best_model_at_end"):
        assert getattr(made, name) == getattr(wanted, name)
    assert (made.eval_strategy, made.save_strategy) == ("steps", "steps")
    assert made.eval_steps == made.save_steps == wanted.save_steps == 60
    assert (made.warmup_steps, made.weight_decay) == (0.1, 0.01)
    chosen = recommended_arguments(model, rows(300), output_dir=str(tmp_path), report_to="none", warmup_steps=7)
    assert (chosen.warmup_steps, chosen.get_warmup_steps(100)) == (7, 7)


def test_a_model_of_transformers_trains_with_them(tiny: Tiny, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(tiny("bert"))
    options = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "num_train_epochs": 2, "save_strategy": "no"}
    made = recommended_arguments(model, rows(40), output_dir=str(tmp_path), **options)
    assert (made.num_train_epochs, made.eval_strategy, made.load_best_model_at_end) == (2, "no", False)
    trainer = Trainer(model, made, train_dataset=rows(40))
    assert trainer.train().global_step == 6
    assert trainer.lr_scheduler is not None


def test_rows_have_to_be_tokenised(tiny: Tiny, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(tiny("bert"))
    with pytest.raises(DataError, match="got rows with text, expected tokenised rows with input_ids"):
        recommended_arguments(model, [{"text": "fine"}], output_dir=str(tmp_path))
    with pytest.raises(DataError, match="got no rows"):
        recommended_arguments(model, [], output_dir=str(tmp_path))
