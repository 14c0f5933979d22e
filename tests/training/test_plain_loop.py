"""Runs beside plain PyTorch: a loop that is written out, and layers without the C code."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from attentune.config import load_config
from attentune.data.tokenization import bucketed_order
from attentune.errors import CheckpointError
from attentune.inference.predictor import evaluate
from attentune.models.cpu_layers import use_bf16_gradients, use_fused_layers
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.interrupted import assert_same, die_after_step, losses_of, outcome, run
from helpers.native import needs_native
from helpers.samples import settings, trainer_of
from helpers.tiny_models import build

Tiny = Callable[..., Path]
LEARNING_RATE, WEIGHT_DECAY, BATCH, EPOCHS, WARMUP, MAX_NORM, LENGTH = 1e-3, 0.01, 8, 2, 0.1, 1.0, 32
# Large: else AdamW makes whole steps of what rounding leaves where a gradient is zero.
EPSILON = 1e-4
EXACT = {
    "model__dropout": 0,
    "model__head__dropout": 0,
    "model__head__pooler": "none",
    "training__precision": "fp32",
    "training__learning_rate": LEARNING_RATE,
    "training__adam_epsilon": EPSILON,
    "training__num_train_epochs": EPOCHS,
    "training__eval_strategy": "no",
    "training__baselines": "none",
    "data__max_length": LENGTH,
}


class Plain(nn.Module):
    """An encoder and a linear classifier on a vector of each text."""

    def __init__(self, encoder: Any, classifier: nn.Linear, vector: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.encoder, self.classifier, self.vector = encoder, classifier, vector

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden_BTD = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.classifier(self.vector(hidden_BTD, attention_mask))


def first_token(hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    return hidden_BTD[:, 0]


def mean_of_tokens(hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    mask_BT1 = mask_BT.to(hidden_BTD.dtype)[:, :, None]
    return (hidden_BTD * mask_BT1).sum(dim=1) / mask_BT1.sum(dim=1)


def plain_weights(
    rows: Path, encoder: Path, classifier: nn.Linear, vector: Callable[[Tensor, Tensor], Tensor], *, accumulation: int
) -> dict[str, Tensor]:
    """Train as nobody who reads it could misunderstand, and return the weights."""
    with rows.open(newline="") as file:
        table = list(csv.DictReader(file))
    names = sorted({row["label"] for row in table})
    labels_N = torch.tensor([names.index(row["label"]) for row in table])
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    tokens = tokenizer([row["text"] for row in table], truncation=True, max_length=LENGTH)["input_ids"]
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = Plain(AutoModel.from_pretrained(encoder, add_pooling_layer=False, **dropout), classifier, vector)
    decayed, others = [], []
    for name, weight in model.named_parameters():
        (decayed if weight.ndim > 1 and not name.endswith("bias") else others).append(weight)
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.999), eps=EPSILON)
    steps_per_epoch = -(-len(table) // (BATCH * accumulation))
    total = EPOCHS * steps_per_epoch
    warmup = int(np.ceil(WARMUP * total))

    def factor(step: int) -> float:
        return step / warmup if step < warmup else max(0.0, 1.0 - (step - warmup) / max(1, total - warmup))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    lengths = np.array([len(ids) for ids in tokens])
    model.train()
    for epoch in range(EPOCHS):
        batches = bucketed_order(lengths, BATCH, seed=42, epoch=epoch)  # rows in an order of the seed and the epoch
        for start in range(0, len(batches), accumulation):
            group = batches[start : start + accumulation]
            count = sum(len(batch) for batch in group)
            for batch in group:
                padded = tokenizer.pad({"input_ids": [tokens[row] for row in batch]}, return_tensors="pt")
                logits_BC = model(padded["input_ids"], padded["attention_mask"])
                (F.cross_entropy(logits_BC, labels_N[batch], reduction="sum") / count).backward()
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return {name: weight.detach() for name, weight in model.named_parameters()}


@pytest.mark.parametrize(
    ("preset", "vector", "accumulation"),
    [("bert", first_token, 1), ("bert-mean", mean_of_tokens, 1), ("bert", first_token, 2)],
)
def test_a_run_ends_with_the_weights_of_a_plain_loop(tiny, tmp_path, preset, vector, accumulation):
    changes = EXACT | {"preset": preset, "training__gradient_accumulation_steps": accumulation}
    config = load_config(overrides=settings(tmp_path, tiny("bert"), **changes))
    start = trainer_of(config).model.classifier
    expected = plain_weights(tmp_path / "train.csv", tiny("bert"), start, vector, accumulation=accumulation)
    assert train(config, display=ProgressDisplay(quiet=True)).train["fused_layers"] == 0, "in float32"
    found = load_file(tmp_path / "run" / "model.safetensors")
    assert set(expected) <= set(found)
    moved = 0.0
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")
        moved = max(moved, float(weight.abs().max()))
    assert moved > 0.0


# Layers that train by the C code

BF16 = {"training__precision": "bf16"}
STEPS = BF16 | {"training__save_steps": 2, "training__num_train_epochs": 2}


def encoder(tiny: Tiny) -> Path:
    """Its heads are 16 wide, as the C code wants them."""
    return tiny("bert", hidden=64)


@pytest.mark.integration
@needs_native
@pytest.mark.parametrize("steps", [1, 2], ids=["one batch a step", "two batches a step"])
def test_gradients_in_bf16_give_the_weights_of_gradients_in_float32(tiny, tmp_path, monkeypatch, steps):
    changes = STEPS | {"training__gradient_accumulation_steps": steps}
    kept: dict[str, int] = {}

    def note(model: Any) -> None:
        use_bf16_gradients(model)
        kept["weights"] = sum(one.grad_dtype == torch.bfloat16 for one in model.parameters())

    for name, used in (("bf16", note), ("float32", lambda model: None)):
        (tmp_path / name).mkdir()
        monkeypatch.setattr("attentune.training.optimizer.use_bf16_gradients", used)
        run(tmp_path / name, encoder(tiny), **changes)
    # With two batches in a step gradients are added, and bf16 would round their sums.
    assert kept == ({"weights": 18} if steps == 1 else {})
    assert_same(outcome(tmp_path / "bf16" / "run"), outcome(tmp_path / "float32" / "run"))


@needs_native
@pytest.mark.parametrize(("family", "matrices"), [("bert", 18), ("distilbert", 18), ("mpnet", 18), ("albert", 0)])
def test_gradients_are_bf16_where_a_layer_is_used_once(tiny: Tiny, family: str, matrices: int) -> None:
    model, _ = build(tiny(family, hidden=64))
    use_bf16_gradients(model)
    assert not any(one.grad_dtype == torch.bfloat16 for one in model.parameters()), "no layer is fused yet"
    assert use_fused_layers(model) > 0
    use_bf16_gradients(model)
    assert sum(one.grad_dtype == torch.bfloat16 for one in model.parameters()) == matrices


@pytest.mark.integration
@needs_native
def test_a_killed_run_goes_on_by_the_same_program_only(tiny, tmp_path, monkeypatch):
    base, resumed = encoder(tiny), {**STEPS, "training__resume": True}
    run(tmp_path, base, **STEPS, training__output_dir=str(tmp_path / "whole"))
    die_after_step(5, lambda: run(tmp_path, base, **STEPS))
    with monkeypatch.context() as patched:
        patched.setattr(
            "attentune.models.cpu_layers.unavailable_reason", lambda: "no C compiler found (cc, gcc, clang)"
        )
        with pytest.raises(CheckpointError, match=r"--fused_layers, which needs a C compiler\) \(was 3, now 0\)"):
            run(tmp_path, base, **resumed)
    run(tmp_path, base, **resumed)
    assert_same(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))


@pytest.mark.integration
@needs_native
@pytest.mark.parametrize("family", ["bert", "distilbert", "albert", "mpnet", "deberta-v2", "modernbert"])
def test_the_saved_model_repeats_the_scores(tiny: Tiny, tmp_path: Path, family: str) -> None:
    base = tiny(family, hidden=128 if family == "modernbert" else 64)  # heads of 32 and of 16
    result = run(tmp_path, base, **BF16)
    assert result.train["fused_layers"] == (1 if family == "albert" else 3)
    assert evaluate(tmp_path / "run")["validation"] == result.scores["validation"]


@needs_native
@pytest.mark.parametrize(
    "preset",
    [
        "bert",
        *(pytest.param(one, marks=pytest.mark.integration) for one in ("ssa-hybrid", "se-bert", "task-attention")),
    ],
)
def test_without_dropout_the_losses_are_those_of_pytorchs_operations(tiny, tmp_path, monkeypatch, preset):
    monkeypatch.setattr("attentune.nn.compiled.attention.fast_dropout", lambda values, levels: values)
    found = {}
    for name, fused in (("ours", True), ("theirs", False)):
        (tmp_path / name).mkdir()
        changes = BF16 | {"training__fused_layers": fused, "model__dropout": 0.0}
        result = run(tmp_path / name, encoder(tiny), preset=preset, **changes)
        assert result.train["fused_layers"] == (3 if fused else 0)
        found[name] = losses_of(tmp_path / name / "run")
    assert found["ours"] == pytest.approx(found["theirs"], abs=0.03)  # in bf16; processors add up in other orders
    assert found["ours"] != found["theirs"]
    assert max(found["ours"]) - min(found["ours"]) > 0.01, "something changes, so that this says something"
