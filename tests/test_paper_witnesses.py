"""What the papers say of whole methods, against transformers' classes and plain loops over whole runs."""

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

import attentune.training.run as run_module
from attentune.config import load_config
from attentune.token_labels.flip import random_mask
from attentune.token_labels.planner import EpochPlanner
from attentune.training.objective import Objective
from helpers.interrupted import run
from helpers.label_references import probing_labels
from helpers.label_sources import features_of
from helpers.tiny_models import FIRST, LONG, build


def test_the_preset_bert_is_transformers_own_class_with_the_same_weights(tiny):
    folder = tiny("bert")
    ours, tokenizer = build(folder, settings=load_config(preset="bert").model)
    theirs = BertForSequenceClassification.from_pretrained(folder, num_labels=2)
    theirs.classifier.load_state_dict(ours.classifier.state_dict())
    assert theirs.dropout.p == ours.dropout.p == 0.1
    batch = tokenizer([FIRST, LONG], padding=True, return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(ours(**batch).logits, theirs.eval()(**batch).logits, rtol=1e-5, atol=1e-6)


PROGRAM = {"model.head.pooler": "auto", "model.token_gate.attention_threshold": 0.3}


@pytest.mark.parametrize("overrides", [{}, PROGRAM], ids=["paper", "program"])
def test_ssa_h_is_equation_1_on_the_encoders_output(tiny, overrides):
    """The paper's [CLS] is the last layer's; the released program's goes through the pooler, and it has a threshold."""
    settings = load_config(preset="ssa-hybrid", overrides=overrides).model
    model, tokenizer = build(tiny("bert"), settings=settings)
    batch = tokenizer([FIRST, LONG], padding=True, return_tensors="pt")
    with torch.no_grad():
        found = model(**batch).logits
        hidden_BTD = model.encoder(**batch).last_hidden_state
        scores_BT = model.token_gate.token_head(hidden_BTD).softmax(dim=-1)[..., 1]
        for row, ids in enumerate(batch["input_ids"].tolist()):
            first_D = hidden_BTD[row, 0]
            if overrides:
                first_D = torch.tanh(model.head.pooler.dense(first_D))
            ordinary = [t for t, token in enumerate(ids) if token not in tokenizer.all_special_ids]
            kept = [t for t in ordinary if scores_BT[row, t] >= settings.token_gate.attention_threshold]
            weights = torch.stack([scores_BT[row, t].exp() for t in kept])
            mixed_D = sum(w * hidden_BTD[row, t] for w, t in zip(weights / weights.sum(), kept, strict=True))
            logits_C = model.classifier(0.5 * first_D + 0.5 * mixed_D)
            torch.testing.assert_close(found[row], logits_C, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("preset", ["ssa-co", "ssa-hybrid", "bert-mask"])
def test_presets_mask_three_tokens_of_ten(preset):
    labels = load_config(preset=preset).labels
    assert labels.tolerance == 0.3, "row 12: scores within 0.3 are equal"
    for count in range(1, 41):
        masked = random_mask(features_of("s" + count * "o" + "s"), 0, labels.mask_share, 1, 1)
        assert len(masked) == max(1, round(0.3 * count))


@pytest.mark.integration
def test_a_run_labels_with_the_weights_at_the_end_of_the_previous_epoch(tiny, tmp_path, monkeypatch):
    begun: list[tuple[Any, Any]] = []
    original = EpochPlanner.begin_epoch

    def begin_epoch(self: EpochPlanner, epoch: int, on_rows: Any) -> Any:
        source = self.generator.source
        model = copy.deepcopy(source.scorer.model).eval()
        plan = original(self, epoch, on_rows)
        begun.append((replace(source, scorer=SimpleNamespace(model=model)), plan))
        return plan

    monkeypatch.setattr(EpochPlanner, "begin_epoch", begin_epoch)
    run(tmp_path, tiny("bert"), preset="ssa-hybrid", training__precision="fp32", training__num_train_epochs=4)
    assert [plan.token_labels is None for _, plan in begun] == [True, False, False, False]
    differs = 0
    for epoch in (1, 2, 3):
        source, plan = begun[epoch]
        expected, _ = probing_labels(source, epoch)
        np.testing.assert_array_equal(plan.token_labels.values, expected.astype(np.float32))
        differs += not np.array_equal(expected, probing_labels(begun[epoch - 1][0], epoch)[0])
    assert differs, "the model of another epoch gives other labels"


@pytest.mark.integration
def test_bert_m_trains_on_every_row_and_on_masked_copies_with_the_rows_label(tiny, tmp_path, monkeypatch):
    seen: list[tuple[list[int], int]] = []
    labels: list[int] = []
    rows: list[Any] = []
    step, sums = run_module.forward_backward, Objective.sums

    def watched_step(task: Any, plan: Any, samples: np.ndarray, denominators: Any) -> Any:
        def before(module: Any, args: Any, inputs: dict[str, Any]) -> None:
            texts = zip(inputs["input_ids"], inputs["attention_mask"].bool(), strict=True)
            numbers = plan.rows[samples].tolist()
            seen.extend((ids[mask].tolist(), row) for (ids, mask), row in zip(texts, numbers, strict=True))

        rows.append(task.inputs)
        handle = task.wrapped.register_forward_pre_hook(before, with_kwargs=True)
        try:
            return step(task, plan, samples, denominators)
        finally:
            handle.remove()

    def watched_sums(self: Objective, output: Any, labels_B: torch.Tensor, *others: Any) -> torch.Tensor:
        labels.extend(labels_B.tolist())
        return sums(self, output, labels_B, *others)

    monkeypatch.setattr(run_module, "forward_backward", watched_step)
    monkeypatch.setattr(Objective, "sums", watched_sums)
    run(tmp_path, tiny("bert"), preset="bert-mask", training__precision="fp32", training__num_train_epochs=1)
    train = rows[0]
    assert labels == [train.labels[row] for _, row in seen]
    features = train.features["train"]
    count, plain, masked = len(train.labels), 0, 0
    for ids, row in seen:
        begin, end = features.starts[row : row + 2]
        own, special = features.ids[begin:end].tolist(), features.special[begin:end]
        places = [place for place, (one, other) in enumerate(zip(ids, own, strict=True)) if one != other]
        assert all(ids[place] == train.tokenizer.mask_token_id and not special[place] for place in places)
        assert len(places) in (0, max(1, round(0.3 * int((~special).sum()))))
        plain, masked = plain + (not places), masked + bool(places)
    assert (plain, masked) == (count, count)
