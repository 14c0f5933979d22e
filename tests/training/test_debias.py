"""Training against shortcuts: a weak model that cannot know its rows by heart, its products, whole runs."""

import math
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from attentune.config import ObjectiveConfig, load_config
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.load import load_data
from attentune.data.splits import fold_rows, row_groups
from attentune.demo.domains import Sentence, split_sentences
from attentune.errors import ConfigError, DataError
from attentune.seeding import numpy_generator
from attentune.training.callbacks import ProgressDisplay
from attentune.training.debias import out_of_fold, weak_features
from attentune.training.objective import build_objective
from attentune.training.run import train
from helpers.interrupted import assert_same, die_after_step, losses_of, outcome, run
from helpers.native import needs_native
from helpers.samples import BAD, GOOD, make_rows, settings, trainer_of, write_reviews

Tiny = Callable[..., Path]
TWO, THREE = LabelSpace("classification", ("bad", "good")), LabelSpace("classification", ("bad", "fair", "good"))
STILL = {
    "model__dropout": 0,
    "model__head__dropout": 0,
    "training__precision": "fp32",
    "training__learning_rate": 1e-12,
}


# The weak model


def reviews(folder: Path, rows: int = 40) -> TextRows:
    overrides = {"data.train_file": str(write_reviews(folder / "some.csv", rows, seed=3))}
    return load_data(load_config(overrides=overrides).data, seed=1, splits=("train",)).splits["train"]


def test_each_row_is_predicted_by_a_model_of_the_other_folds(tmp_path: Path) -> None:
    rows = reviews(tmp_path)
    got_NC, features = out_of_fold(rows, TWO, 7), weak_features(rows).toarray()
    seen = []
    for fold in fold_rows(rows, 5, "debias", 7)[0]:
        others = [row for row in range(len(rows)) if row not in fold]
        model = LogisticRegression(max_iter=1000).fit(features[others], rows.labels[others])
        for row in fold:
            seen.append(row)
            expected = np.maximum(model.predict_proba(features[row : row + 1])[0], 1 / len(rows))
            assert got_NC[row] == pytest.approx(np.log(expected), abs=1e-4)
    assert sorted(seen) == list(range(len(rows)))
    np.testing.assert_array_equal(out_of_fold(rows, TWO, 7), got_NC)
    assert np.abs(out_of_fold(rows, TWO, 8) - got_NC).max() > 0.01


def test_it_cannot_know_labels_by_heart() -> None:
    """Labels without a pattern, each text twice: a model of all rows knows them, and one of other folds none."""
    draw = random.Random(1)
    labels = [draw.randint(0, 1) for _ in range(100)]
    texts = [" ".join(f"w{draw.randrange(60)}" for _ in range(12)) for _ in labels]
    rows = make_rows([*texts, *(text.upper() for text in texts)], [*labels, *labels])
    assert len(np.unique(row_groups(rows))) == 100
    features = weak_features(rows)
    by_heart = LogisticRegression(C=100, max_iter=1000).fit(features, rows.labels).predict(features)
    assert np.mean(by_heart == rows.labels) > 0.95
    assert np.mean(out_of_fold(rows, TWO, 1).argmax(axis=1) == rows.labels) < 0.65


@given(st.lists(st.tuples(*[st.text("ab B!.", max_size=8)] * 2), min_size=1, max_size=30), st.booleans())
def test_features_are_those_of_a_plain_loop(texts: list[tuple[str, str]], are_pairs: bool) -> None:
    rows = make_rows(
        [one for one, _ in texts], [0] * len(texts), pairs=[two for _, two in texts] if are_pairs else None
    )
    expected = []
    for one, two in texts:
        row: dict[Any, float] = {"any": 1.0}
        sides = [re.findall(r"\w+|[^\w\s]+", side.lower()) for side in ((one, two) if are_pairs else (one,))]
        for side, tokens in enumerate(sides):
            for place, token in enumerate(tokens):
                row[side, token] = 1.0
                if place:
                    row[side, tokens[place - 1], token] = 1.0
        if are_pairs:
            for side in (0, 1):
                inside = [token for token in set(sides[side]) if token in sides[1 - side]]
                row["share", side] = len(inside) / max(1, len(set(sides[side])))
            row["all"] = float(row["share", 1] == 1)
        expected.append({name: value for name, value in row.items() if value})
    count = Counter(name for row in expected for name in row)
    kept = [name for name, number in count.items() if number >= max(2, 0.02 * len(texts))]
    columns = sorted(tuple(row.get(name, 0.0) for row in expected) for name in kept)
    assert sorted(map(tuple, weak_features(rows).T.toarray().tolist())) == columns


def test_a_class_that_other_folds_lack_has_the_least_probability() -> None:
    rows = make_rows([f"w{number} thing" for number in range(20)], [0] * 19 + [1])
    log_p_NC = out_of_fold(rows, THREE, 1)
    assert log_p_NC[19].tolist() == pytest.approx([0, math.log(1 / 20), math.log(1 / 20)])
    assert log_p_NC[:, 2].tolist() == pytest.approx([math.log(1 / 20)] * 20)


# The loss


@pytest.mark.parametrize("class_weights", [None, [0.5, 1.0, 4.0]])
@pytest.mark.parametrize("parts", [[slice(None)], [slice(0, 1), slice(1, 6)]], ids=["whole", "parts"])
def test_the_loss_of_a_product_is_that_of_a_plain_loop(class_weights: Any, parts: list[slice]) -> None:
    """Rows with weights, in one batch and in two, beside the loss of labelled tokens."""
    draw = np.random.default_rng(2)
    logits, tokens, p = draw.normal(size=(6, 3)), draw.normal(size=(6, 4, 2)), draw.dirichlet(np.ones(3), 6)
    labels, weights, ones = np.array([0, 2, 1, 0, 2, 1]), draw.uniform(0.1, 2, 6), draw.integers(0, 2, (6, 4))
    settings = ObjectiveConfig(class_weights=class_weights, alpha=0.7)
    objective = build_objective(settings, THREE, labels, row_weights=weights)
    denominators, got = objective.denominators(labels, ones.size, 0.0), 0.0
    for part in parts:
        output = SimpleNamespace(logits=torch.tensor(logits[part]), token_logits=torch.tensor(tokens[part]))
        given = (labels[part], ones[part].astype(float), weights[part], np.log(p[part]))
        got += float(denominators.combine(objective.sums(output, *map(torch.tensor, given))))
    weight_of = class_weights or [1.0, 1.0, 1.0]
    above, token_loss = 0.0, 0.0
    for row in range(6):
        scores = [math.exp(logits[row, label]) * p[row, label] for label in range(3)]
        y = labels[row]
        above -= weights[row] * weight_of[y] * math.log(scores[y] / sum(scores))
        for t in range(4):
            chosen, other = tokens[row, t, ones[row, t]], tokens[row, t, 1 - ones[row, t]]
            token_loss += weights[row] * math.log(1 + math.exp(other - chosen))
    expected = 0.7 * above / sum(weight_of[y] for y in labels) + 0.3 * token_loss / ones.size
    assert got == pytest.approx(expected, rel=1e-5)


# Runs


def test_the_steps_of_a_product_are_those_of_a_plain_loop(tiny: Tiny, tmp_path: Path) -> None:
    """All rows in each step, batches of 8, without dropout, against single rows; predictions are of the logits."""
    whole = {**STILL, "training__max_steps": 3, "training__gradient_accumulation_steps": 8}
    weighted = {**whole, "objective__debias": "product", "objective__class_weights": {"bad": 5, "good": 0.5}}
    parts = trainer_of(load_config(overrides=settings(tmp_path, tiny("bert"), **weighted)))
    model, features, above, below = parts.model.eval(), parts.inputs.features["train"], [0.0, 0.0, 0.0], 0.0
    log_p_NC = out_of_fold(parts.inputs.data.splits["train"], parts.inputs.data.label_space, 42)
    with torch.no_grad(), parts.embeddings.whole(1.0):
        for row, label in enumerate(parts.inputs.labels):
            ids = torch.from_numpy(features.ids[features.row(row)].astype(np.int64))[None]
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].tolist()
            for step in range(3):
                weak = [4 * step / 3 * log_p for log_p in log_p_NC[row]]
                scores = [math.exp(logit + more) for logit, more in zip(logits, weak, strict=True)]
                above[step] -= (5, 0.5)[label] * math.log(scores[label] / sum(scores))
            below += (5, 0.5)[label]
    record = run(tmp_path, tiny("bert"), **weighted)
    assert losses_of(tmp_path / "run") == pytest.approx([one / below for one in above], rel=1e-4)
    assert record.train["debias"]["weak_accuracy"] == np.mean(log_p_NC.argmax(axis=1) == parts.inputs.labels)
    plain = run(tmp_path, tiny("bert"), **whole, training__output_dir=str(tmp_path / "plain"))
    assert plain.scores == record.scores, "of steps that move nothing the model predicts the same"


def test_what_a_run_is_resumed_by_is_that_of_the_rows_alone(tiny: Tiny, tmp_path: Path) -> None:
    given = settings(tmp_path, tiny("bert"), objective__debias="product")
    inputs = trainer_of(load_config(overrides=given)).inputs
    plain = trainer_of(load_config(overrides=settings(tmp_path, tiny("bert")))).inputs
    assert plain.debias is None
    assert plain.fingerprint == inputs.fingerprint


def test_it_does_not_see_ignored_words(tiny: Tiny, tmp_path: Path) -> None:
    accuracy = []
    for words in (None, [*GOOD, *BAD]):
        given = settings(tmp_path, tiny("bert"), objective__debias="product", data__ignore_words=words)
        accuracy.append(trainer_of(load_config(overrides=given)).inputs.debias.facts["weak_accuracy"])
    assert accuracy[0] > 0.8
    assert accuracy[1] < 0.7


def test_pairs_are_predicted_by_the_words_that_both_have(tiny: Tiny, tmp_path: Path) -> None:
    for name, rows in (("train", 30), ("validation", 10)):
        draw, lines = random.Random(name), ["text,second,label"]
        for number in range(rows):
            words = [f"w{draw.randrange(50)}" for _ in range(6)]
            other = words[:4] if number % 2 else [f"w{draw.randrange(50)}" for _ in range(4)]
            lines.append(f"{' '.join(words)},{' '.join(other)},{('no', 'yes')[number % 2]}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    columns = {"data__text_column": "text", "data__text_pair_column": "second"}
    found = run(tmp_path, tiny("bert"), **columns, objective__debias="product").train["debias"]
    assert found["weak_accuracy"] > 0.9


def test_none_is_the_run_without_the_setting(tiny: Tiny, tmp_path: Path) -> None:
    run(tmp_path, tiny("bert"), preset="ssa-hybrid")
    run(tmp_path, tiny("bert"), preset="ssa-hybrid", **{"objective__debias": "none", **elsewhere(tmp_path, "none")})
    run(tmp_path, tiny("bert"), preset="ssa-hybrid", **{"objective__debias": "product", **elsewhere(tmp_path, "on")})
    plain, none, product = (outcome(tmp_path / name) for name in ("run", "none", "on"))
    assert_same(none, plain)
    assert "debias" not in plain["train"]
    assert product["weights"] != plain["weights"]


def elsewhere(folder: Path, name: str) -> dict[str, str]:
    return {"training__output_dir": str(folder / name)}


@pytest.mark.integration
def test_a_killed_run_goes_on_with_the_same_weak_model(tiny: Tiny, tmp_path: Path) -> None:
    method = {"preset": "ssa-hybrid", "objective__debias": "product", "training__save_steps": 3}
    run(tmp_path, tiny("bert"), **method, **elsewhere(tmp_path, "whole"))
    die_after_step(8, lambda: run(tmp_path, tiny("bert"), **method))
    run(tmp_path, tiny("bert"), **method, training__resume=True)
    assert_same(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))


@needs_native
def test_a_product_trains_with_layers_in_c(tiny: Tiny, tmp_path: Path) -> None:
    losses = {}
    for fused, kind in ((True, "product"), (False, "product"), (True, "none")):
        changes = {**STILL, "training__precision": "bf16", "training__fused_layers": fused, "objective__debias": kind}
        record = run(tmp_path, tiny("bert", hidden=64), **changes, **elsewhere(tmp_path, f"{kind}-{fused}"))
        assert (record.train["fused_layers"] > 0) == fused
        losses[fused, kind] = losses_of(tmp_path / f"{kind}-{fused}")
    assert losses[True, "product"] == pytest.approx(losses[False, "product"], abs=0.01)
    assert np.mean(losses[True, "product"]) < np.mean(losses[True, "none"]) - 0.1, "the weak model knows these rows"


# Refusals


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data__task_type": "ordinal", "data__label_names": ["bad", "good"]}, "labels of the type ordinal"),
        ({"data__task_type": "multi_label"}, "labels of the type multi_label"),
        ({"data__label_column": "number", "data__task_type": "regression"}, "labels of the type regression"),
    ],
)
def test_other_kinds_of_labels_are_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    for name in ("train", "validation"):
        lines = (f"text {row},{('bad', 'good')[row % 2]},{row / 7}" for row in range(20))
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label,number", *lines]) + "\n")
    with pytest.raises(ConfigError, match=rf"objective.debias: got product for {told}.*classification.*none"):
        run(tmp_path, Path("embedded"), objective__debias="product", **changes)


def test_soft_targets_and_few_rows_are_refused(tmp_path: Path) -> None:
    rows = make_rows([f"text {row}" for row in range(12)], [0, 1] * 6)
    splits = {"train": replace(rows, targets=np.full((12, 2), 0.5)), "validation": rows}
    config = load_config(overrides=settings(tmp_path, Path("embedded"), objective__debias="product"))
    with pytest.raises(ConfigError, match="objective.debias: got product for rows with soft targets"):
        train(config, data=TaskData("some", TWO, ("accuracy",), splits))
    few = {"train": rows.take(range(9)), "validation": rows}
    with pytest.raises(DataError, match="data.csv: got 9 training rows, expected at least 10 .*objective.debias"):
        train(config, data=TaskData("some", TWO, ("accuracy",), few))


@pytest.mark.parametrize("loss", ["focal", "binary-cross-entropy", "softmax-cross-entropy"])
def test_a_product_refuses_other_losses(loss: str) -> None:
    with pytest.raises(
        ConfigError, match=f"objective.debias: product .*objective.loss is {loss}; set loss cross-entropy"
    ):
        load_config(overrides={"objective.debias": "product", "objective.loss": loss})


# A planted shortcut


def planted(sentences: list[Sentence], agreement: float, seed: int) -> TextRows:
    """Begin each sentence with a word: that of its label in this share of the rows, else that of the other label."""
    words, agrees_N = ("Monday", "Sunday"), numpy_generator("planted", seed).random(len(sentences)) < agreement
    labels = [one.label for one in sentences]
    chosen = [words[label if agrees else 1 - label] for label, agrees in zip(labels, agrees_N, strict=True)]
    return make_rows([f"{word}: {one.text}" for word, one in zip(chosen, sentences, strict=True)], labels)


@pytest.mark.integration
def test_less_is_lost_to_a_planted_word(tmp_path: Path) -> None:
    """It agrees with the label in 90 % of the training rows, and in none of the rows of the second split."""
    parts = split_sentences(train_size=400, seed=1)
    splits = {
        "train": planted(parts["train"], 0.9, 1),
        "validation": planted(parts["held_out"], 0.9, 2),
        "validation_against": planted(parts["held_out"], 0.0, 3),
    }
    data, falls = TaskData("planted", TWO, ("accuracy",), splits), {}
    for kind in ("none", "product"):
        changes = {"objective__debias": kind, "training__max_steps": 80, "training__eval_strategy": "no"}
        changes |= {"training__learning_rate": 1e-4, "training__per_device_train_batch_size": 16}
        given = settings(tmp_path, Path("embedded"), preset="bert-mean", **changes, **elsewhere(tmp_path, kind))
        scores = train(load_config(overrides=given), data=data, display=ProgressDisplay(quiet=True)).scores
        falls[kind] = scores["validation"]["accuracy"] - scores["validation_against"]["accuracy"]
    assert falls["none"] > 0.1, "the word is learnt"
    assert falls["product"] < falls["none"] / 2, falls
