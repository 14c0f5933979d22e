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
from transformers import Trainer, TrainerCallback, TrainingArguments

import attentune
from attentune.errors import ConfigError, DataError
from attentune.integrations.hf_trainer import key_of, new_model, read_rows
from attentune.nn.losses import with_token_loss
from attentune.token_labels.flip import copy_numbers, random_mask, spread_copies
from helpers.samples import write_reviews

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
    accumulation = dict(GradientState().plugin_kwargs)
    trainer.train()
    assert GradientState().plugin_kwargs == accumulation
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
    with pytest.raises(ConfigError, match="preset task-attention: is a bi-encoder"):
        new_model(str(tiny("bert")), LABELS, preset="task-attention", is_pair=True)
    with pytest.raises(ConfigError, match="objective.loss: got pearson"):
        new_model(str(tiny("bert")), None, overrides={"objective.loss": "pearson"})
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
