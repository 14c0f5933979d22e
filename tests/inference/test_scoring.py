"""Logits of a split: in the order of its rows, whatever the batches, and the model left as it was."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import PartialState

from attentune.data.tokenization import Features, encode_rows
from attentune.inference.scoring import ModelEvaluator, make_accelerator, score_rows
from helpers.tiny import CORPUS, FAMILIES
from helpers.tiny_models import TWO, Built, build, logits_of, rows_of

Tiny = Callable[..., Path]
# Of all lengths, in no order, one of them twice.
TEXTS = ["Yes.", *CORPUS.splitlines()[:7], "", "No one knows.", "Yes."]


@pytest.fixture(scope="module")
def accelerator():
    made, settled = make_accelerator(precision="fp32", use_cpu=True)
    assert settled == "fp32"
    return made


def features_of(built: Built, texts: list[str] = TEXTS) -> Features:
    return encode_rows(rows_of(texts), built[1], max_length=128)


def predicted(built: Built, accelerator, batch_size: int, texts: list[str] = TEXTS, **options) -> np.ndarray:
    pad_token_id = built[1].pad_token_id
    features = features_of(built, texts)
    options |= {"pad_token_id": pad_token_id, "batch_size": batch_size, "accelerator": accelerator}
    return score_rows(built[0], features, **options).logits_NC


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_stand_in_the_order_of_the_rows_whatever_the_batches(tiny: Tiny, family: str, accelerator) -> None:
    built = build(tiny(family))
    expected_NC = np.concatenate([logits_of(built, text).numpy() for text in TEXTS])
    assert np.ptp(expected_NC[:, 0]) > 1e-3
    for batch_size in (1, 3, 4, 64):
        found_NC = predicted(built, accelerator, batch_size)
        assert found_NC.dtype == np.float32
        np.testing.assert_allclose(found_NC, expected_NC, atol=1e-5, rtol=0)


@pytest.mark.parametrize("training", [True, False])
def test_the_models_mode_is_put_back(tiny: Tiny, training: bool, accelerator) -> None:
    built = build(tiny("bert"))
    built[0].train(training)
    modes = {name: module.training for name, module in built[0].named_modules()}
    once = predicted(built, accelerator, 4)
    assert {name: module.training for name, module in built[0].named_modules()} == modes
    assert np.array_equal(predicted(built, accelerator, 4), once)  # dropout was off


def test_nothing_is_kept_for_a_backward_pass(tiny: Tiny, accelerator) -> None:
    built = build(tiny("bert"))
    before = {name: parameter.clone() for name, parameter in built[0].named_parameters()}
    predicted(built, accelerator, 4)
    assert all(parameter.grad is None for parameter in built[0].parameters())
    assert all(torch.equal(parameter, before[name]) for name, parameter in built[0].named_parameters())
    built[0].train()(**built[1](TEXTS[1], return_tensors="pt"), labels=torch.tensor([1])).loss.backward()


def test_progress_counts_every_row(tiny: Tiny, accelerator) -> None:
    counts: list[int] = []
    predicted(build(tiny("bert")), accelerator, 4, progress=counts.append)
    assert counts == [4, 4, 3]


def test_no_rows_give_no_logits(tiny: Tiny, accelerator) -> None:
    assert predicted(build(tiny("bert")), accelerator, 4, []).shape == (0, 2)


def test_an_evaluator_scores_the_splits_that_have_labels_and_keeps_the_logits(tiny: Tiny, accelerator) -> None:
    built = build(tiny("bert"))
    splits = {
        "validation": rows_of(TEXTS, labels=[0, 1] * 5 + [0]),
        "test": rows_of(TEXTS[:3]),
        "empty": rows_of([], labels=[]),
    }
    evaluator = ModelEvaluator(
        model=built[0],
        accelerator=accelerator,
        splits=splits,
        features={name: encode_rows(rows, built[1], max_length=128) for name, rows in splits.items()},
        label_space=TWO,
        metrics=("accuracy", "f1"),
        pad_token_id=built[1].pad_token_id,
        batch_size=4,
    )
    scores = evaluator.score(("validation", "test", "empty"))
    assert list(scores) == ["validation"]
    assert list(scores["validation"]) == ["accuracy", "f1"]
    right = evaluator.logits["validation"].argmax(axis=1) == splits["validation"].labels
    assert scores["validation"]["accuracy"] == pytest.approx(right.mean())
    assert evaluator.logits["test"].shape == (3, 2)

    kept = evaluator.logits["validation"] = -evaluator.logits["validation"]
    assert evaluator.score(("validation",), reuse=True)["validation"]["accuracy"] == pytest.approx(1 - right.mean())
    assert evaluator.score(("validation",)) == scores
    assert evaluator.logits["validation"] is not kept


def test_the_device_is_that_asked_for_whatever_an_earlier_accelerator_had(monkeypatch) -> None:
    # A stand-in for a GPU, which Accelerate finds on a machine that has one.
    make_accelerator(precision="fp32", use_cpu=True)
    PartialState._reset_state()
    with monkeypatch.context() as patched:
        patched.setenv("ACCELERATE_TORCH_DEVICE", "meta")
        assert make_accelerator(precision="fp32")[0].device.type == "meta"
    assert make_accelerator(precision="fp32", use_cpu=True)[0].device.type == "cpu"
