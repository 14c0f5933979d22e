"""SSA in transformers' own Trainer: arguments, labels, losses, evaluation, what is saved, and what is refused."""

import copy
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import GradientState
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

import attentune
from attentune.config import TrainingConfig, load_config
from attentune.errors import ConfigError, DataError
from attentune.inference.scoring import score_rows
from attentune.integrations.hf_trainer import ClassifierCallback, key_of, new_model, read_rows, recommended_arguments
from attentune.nn.losses import resolve_loss, with_token_loss
from attentune.token_labels.corruption import copy_numbers, random_mask, spread_copies
from attentune.training.prepare import RunSize, choose_settings
from helpers.samples import BAD, FILLER, GOOD, settings, trainer_of, write_reviews

Tiny = Callable[..., Path]
LABELS = ["bad", "good"]


def reviews(folder: Path, tokenizer: Any, *, seed: int = 1, scores: bool = False) -> Dataset:
    rows = list(csv.DictReader(write_reviews(folder / "reviews.csv", 24, seed=seed).open()))
    labels = [LABELS.index(row["label"]) for row in rows]
    data = Dataset.from_dict(
        {"text": [row["text"] for row in rows], "label": [float(4 * label) for label in labels] if scores else labels}
    )
    return data.map(lambda row: tokenizer(row["text"], truncation=True))


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    options = {"num_train_epochs": 3, "learning_rate": 1e-3, "per_device_train_batch_size": 8, "seed": 7}
    quiet = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    return TrainingArguments(output_dir=str(folder / "out"), **{**options, **quiet, **changes})


class Watch(TrainerCallback):
    """Keeps a copy of the model as it is at the beginning of each epoch, and the batches of each."""

    def __init__(self, ssa: Any) -> None:
        self.models: list[Any] = []
        self.targets: list[dict[Any, np.ndarray]] = []
        self._ssa = ssa

    def on_epoch_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.models.append(copy.deepcopy(model).eval())
        self.targets.append(dict(self._ssa.targets))


@pytest.mark.integration
def test_labels_are_those_of_the_model_at_the_epochs_beginning(tiny: Tiny, tmp_path: Path) -> None:
    model, tokenizer = new_model(str(tiny("bert")), LABELS, preset="ssa-hybrid", max_length=32)
    data = reviews(tmp_path, tokenizer)
    ssa = attentune.SSACallback(model, tokenizer, data)
    watch = Watch(ssa)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    trainer = Trainer(
        model=model, args=arguments(tmp_path), train_dataset=data, data_collator=ssa.collator, callbacks=[ssa, watch]
    )
    trainer.train()
    assert not watch.targets[0]
    assert len(ssa.facts) == 3
    features, gold, keys = read_rows(data, special_ids=model.config.special_token_ids, is_regression=False)
    labelled = 0
    for epoch in (1, 2):
        copies = spread_copies(24, 1.0, 7, epoch)
        for row, number in zip(copies, copy_numbers(copies), strict=True):
            ids = torch.tensor(data[int(row)]["input_ids"])[None]
            places = random_mask(features, int(row), 0.3, 7, epoch, int(row), int(number))
            masked = ids.clone()
            masked[0, places] = tokenizer.mask_token_id
            with torch.no_grad():
                plain, other = (watch.models[epoch](input_ids=own).logits.argmax().item() for own in (ids, masked))
            found = watch.targets[epoch][keys[int(row)]]
            if plain != gold[row]:
                assert (found == -1).all()
                continue
            labelled += 1
            wanted = np.full(len(found), -1.0)
            wanted[places] = float(plain != other)
            np.testing.assert_array_equal(found, wanted)
    assert labelled > 4
    changed = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    assert "token_gate.token_head.output.weight" in changed


def test_batches_carry_labels_in_training_only_and_the_loss_has_both(tiny: Tiny, tmp_path: Path) -> None:
    model, tokenizer = new_model(str(tiny("bert")), LABELS, preset="ssa-co", max_length=32)
    data = reviews(tmp_path, tokenizer)
    ssa = attentune.SSACallback(model, tokenizer, data, preset="ssa-co", overrides={"objective.alpha": 0.9})
    rows = [{name: data[n][name] for name in ("input_ids", "attention_mask", "label")} for n in range(4)]
    targets = [np.where(np.arange(len(row["input_ids"])) % 3 == 1, 1.0, -1.0).astype(np.float32) for row in rows]
    ssa.targets.update({key_of(row): own for row, own in zip(rows[:3], targets, strict=False)})
    model.eval()
    plain = ssa.collator(rows)
    assert "token_targets" not in plain
    model.train()
    batch = ssa.collator(rows)
    assert batch["token_targets"].shape == batch["input_ids"].shape
    for number, own in enumerate(targets[:3]):
        np.testing.assert_array_equal(batch["token_targets"][number, : len(own)], own)
        assert (batch["token_targets"][number, len(own) :] == -1).all()
    assert (batch["token_targets"][3] == -1).all()
    model.eval()
    with torch.no_grad():
        task, both = model(**plain), model(**batch)
        picked = batch["token_targets"] >= 0
        tokens = torch.nn.functional.cross_entropy(both.token_logits[picked], batch["token_targets"][picked].long())
        torch.testing.assert_close(both.loss, 0.9 * task.loss + 0.1 * tokens)
        batch["token_targets"][:] = -1
        torch.testing.assert_close(model(**batch).loss, task.loss)
    nothing = with_token_loss(torch.tensor(2.0), task.token_logits, torch.full(picked.shape, -1.0), share=0.3)
    assert nothing == 2.0


def test_from_five_lines_to_predictions(tiny: Tiny, tmp_path: Path) -> None:
    model, tokenizer = new_model(str(tiny("roberta")), LABELS, preset="ssa-hybrid", max_length=32)
    train, dev = reviews(tmp_path, tokenizer), reviews(tmp_path, tokenizer, seed=2)
    ssa = attentune.SSACallback(model, tokenizer, train)
    trainer = Trainer(
        model=model,
        args=arguments(tmp_path, eval_strategy="epoch", gradient_accumulation_steps=2, save_strategy="epoch"),
        train_dataset=train,
        eval_dataset=dev,
        data_collator=ssa.collator,
        callbacks=[ssa],
        processing_class=tokenizer,
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
    )
    trainer.train()
    logged = [entry["eval_accuracy"] for entry in trainer.state.log_history if "eval_accuracy" in entry]
    assert len(logged) == 3
    trainer.save_model(str(tmp_path / "saved"))
    texts = [row["text"] for row in dev]
    found = attentune.predict(tmp_path / "saved", texts)
    hits = [LABELS.index(row["prediction"]) == label for row, label in zip(found, dev["label"], strict=True)]
    assert np.mean(hits) == pytest.approx(logged[-1])
    # From a checkpoint the last epoch is gone through again, with labels.
    checkpoint = sorted((tmp_path / "out").glob("checkpoint-*"))[0]
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert len(ssa.facts) == 2
    assert all("probed" in facts for facts in ssa.facts)


@pytest.mark.integration
def test_scores_and_padded_rows(tiny: Tiny, tmp_path: Path) -> None:
    model, tokenizer = new_model(str(tiny("bert")), None, preset="ssa-co", max_length=32)
    data = reviews(tmp_path, tokenizer, scores=True)
    padded = data.map(lambda row: tokenizer(row["text"], truncation=True, padding="max_length", max_length=32))
    ssa = attentune.SSACallback(model, tokenizer, padded, preset="ssa-co", overrides={"labels.tolerance": 5.0})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        trainer = Trainer(
            model=model, args=arguments(tmp_path), train_dataset=padded, data_collator=ssa.collator, callbacks=[ssa]
        )
        trainer.train()
    assert ssa.facts[-1]["correct"] == 24
    assert len(ssa.targets) == len({key_of(row) for row in data})


def test_what_cannot_work_is_said(tiny: Tiny, tmp_path: Path) -> None:
    model, tokenizer = new_model(str(tiny("bert")), LABELS, preset="ssa-hybrid")
    data = reviews(tmp_path, tokenizer)
    with pytest.raises(ConfigError, match="objective.debias: got product, expected none.*Use attentune.train"):
        new_model(str(tiny("bert")), LABELS, preset="robust")
    with pytest.raises(ConfigError, match="labels.generator: got corruption, expected flip"):
        attentune.SSACallback(model, tokenizer, data, overrides={"labels.generator": "corruption"})
    plain, _ = new_model(str(tiny("bert")), LABELS)
    with pytest.raises(ConfigError, match="has no token gate that could learn"):
        attentune.SSACallback(plain, tokenizer, data)
    with pytest.raises(DataError, match="row 0 has text, label, expected input_ids and a number as label"):
        attentune.SSACallback(model, tokenizer, data.select_columns(["text", "label"]))
    words = data.remove_columns("label").add_column("label", ["bad"] * 24)
    with pytest.raises(DataError, match="number classes that are words"):
        attentune.SSACallback(model, tokenizer, words)
    with pytest.raises(DataError, match="a stream has none"):
        attentune.SSACallback(model, tokenizer, data.to_iterable_dataset())


def pairs(tokenizer: Any, *, scores: bool) -> tuple[Dataset, list[list[str]]]:
    """Tokenised pairs, and the same rows as cells of a file."""
    draw = np.random.default_rng(5)
    cells = []
    for _ in range(24):
        first, second = (" ".join(draw.choice([*GOOD, *BAD, *FILLER], 4)) for _ in range(2))
        share = len({*first.split()} & {*second.split()})
        cells.append([first, second, f"{1980 + 10 * share + draw.random():.3f}" if scores else LABELS[share > 0]])
    labels = [float(row[2]) if scores else LABELS.index(row[2]) for row in cells]
    data = Dataset.from_dict({"a": [row[0] for row in cells], "b": [row[1] for row in cells], "label": labels})
    return data.map(lambda row: tokenizer(row["a"], row["b"], truncation=True)), cells


@pytest.mark.integration
@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("preset", ["bi-encoder-mean", "task-attention", "bi-encoder-cosine"])
def test_loss_and_start_are_those_of_attentune_train(tiny: Tiny, tmp_path: Path, preset: str, scores: bool) -> None:
    model, tokenizer = new_model(
        str(tiny("bert")), None if scores else LABELS, preset=preset, is_pair=True, max_length=32
    )
    data, cells = pairs(tokenizer, scores=scores)
    for name in ("train", "validation"):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["text", "text_pair", "label"], *cells])
    columns = {"data__text_column": "text", "data__text_pair_column": "text_pair", "data__label_column": "label"}
    kind = {"data__task_type": "regression"} if scores else {"data__label_names": ",".join(LABELS)}
    changes = {**columns, **kind, "preset": preset, "data__max_length": 32, "training__precision": "fp32"}
    config = load_config(overrides=settings(tmp_path, tiny("bert"), **changes))
    ours = trainer_of(config)
    ours.start_classifier()

    classifier = ClassifierCallback(model, tokenizer, data)
    starts: list[np.ndarray] = []

    def scored(one: Any) -> np.ndarray:
        options = {"pad_token_id": tokenizer.pad_token_id, "accelerator": ours.inputs.accelerator}
        return score_rows(one, ours.inputs.features["train"], **options).logits_NC

    accumulation = GradientState()

    class Look(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            starts.append(scored(model))

    trainer = Trainer(
        model=model,
        args=arguments(tmp_path, gradient_accumulation_steps=2, num_train_epochs=2, seed=42),
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[classifier, Look()],
    )
    before = dict(accumulation.plugin_kwargs)
    trainer.train()
    assert accumulation.plugin_kwargs == before
    loss = resolve_loss(model.config.loss, model.config.task_type)
    assert loss == ours.model.config.loss
    assert (loss == "pearson") == (scores and preset != "bi-encoder-cosine")
    assert (model.config.score_mean, model.config.score_std) == pytest.approx(ours.inputs.score_scale)
    torch.testing.assert_close(torch.from_numpy(starts[0]), torch.from_numpy(scored(ours.model)), rtol=1e-4, atol=1e-4)
    if loss == "pearson":
        predicted, gold = trainer.predict(data).predictions[:, 0], np.array(data["label"])
        if abs(float(model.outputs.scale) - 1) > 1e-9:  # the predictions rise with the labels
            assert np.polyfit(predicted, gold, 1) == pytest.approx([1, 0], abs=0.05 * abs(gold.mean()))


# Arguments for transformers' Trainer follow the same rule as Attentune's own defaults


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
