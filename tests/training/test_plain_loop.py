"""A run beside the same run written out in plain PyTorch and transformers, which ends with the same weights."""

from __future__ import annotations

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
from attentune.data.batching import bucketed_order
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.samples import settings, trainer_of

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
def test_a_run_ends_with_the_weights_of_a_plain_loop(
    tiny: Tiny, tmp_path: Path, preset: str, vector: Callable[[Tensor, Tensor], Tensor], accumulation: int
) -> None:
    changes = EXACT | {"preset": preset, "training__gradient_accumulation_steps": accumulation}
    config = load_config(overrides=settings(tmp_path, tiny("bert"), **changes))
    start = trainer_of(config).model.classifier
    expected = plain_weights(tmp_path / "train.csv", tiny("bert"), start, vector, accumulation=accumulation)
    train(config, display=ProgressDisplay(quiet=True))
    found = load_file(tmp_path / "run" / "model.safetensors")
    assert set(expected) <= set(found)
    moved = 0.0
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")
        moved = max(moved, float(weight.abs().max()))
    assert moved > 0.0
