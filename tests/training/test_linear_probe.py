"""A run that starts from a linear probe: its first predictions are the frozen solution's, and it resumes exactly."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression, Ridge

from attentune.config import ObjectiveConfig, load_config
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError
from attentune.inference.scoring import score_rows
from attentune.nn.classifiers import CosineSimilarity
from attentune.training.linear_probe import Solution, fit_classifier
from attentune.training.objective import build_objective
from attentune.training.trainer import Trainer
from helpers.interrupted import log_of, run
from helpers.samples import BAD, FILLER, GOOD, settings, trainer_of
from helpers.tiers import integration_unless

Tiny = Callable[..., Path]
ROWS = 40
PROBE = {"training__linear_probe": True, "training__precision": "fp32", "training__num_train_epochs": 1}
PAIR = {**PROBE, "preset": "bi-encoder-mean", "model__head__combine": "concat-cosine", "model__head__dropout": 0}
COSINE = {"preset": "bi-encoder-cosine", "training__precision": "fp32", "training__num_train_epochs": 1}


def write(folder: Path, kind: str, *, pairs: bool) -> dict[str, Any]:
    """Write rows whose label follows from their words; return the settings of their columns."""
    draw = np.random.default_rng(7)
    names = ("bad", "mixed", "good")
    for name, rows in (("train", ROWS), ("validation", 12)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", *(["text_pair"] if pairs else []), "label"])
            for _ in range(rows):
                mood = int(draw.integers(0, 2 if kind == "two" else 3))
                words = [*draw.choice(FILLER, 4), draw.choice(GOOD if mood == 2 or (kind == "two" and mood) else BAD)]
                second = words[::-1] if mood else [*draw.choice(FILLER, 5)]
                label = {
                    "two": names[2 * (mood > 0)],
                    "three": names[mood],
                    "ordinal": names[mood],
                    "regression": f"{mood + 0.25 * draw.random():.3f}",
                    "multi_label": "|".join(names[: mood + 1]),
                }[kind]
                writer.writerow([" ".join(words), *([" ".join(second)] if pairs else []), label])
    types = {"two": "classification", "three": "classification"}
    names_of = {"ordinal": {"data__label_names": "bad,mixed,good"}}
    return {
        "data__task_type": types.get(kind, kind),
        "data__text_column": "text",
        "data__label_column": "label",
        **({"data__text_pair_column": "text_pair"} if pairs else {}),
        **names_of.get(kind, {}),
    }


def built(folder: Path, encoder: Path, **changes: Any) -> Trainer:
    """The parts of a run before its first step."""
    return trainer_of(load_config(overrides=settings(folder, encoder, **changes)))


def features_of(parts: Trainer) -> np.ndarray:
    inputs = parts.inputs
    options = {"pad_token_id": inputs.tokenizer.pad_token_id, "accelerator": inputs.accelerator}
    return score_rows(
        parts.model, inputs.features["train"], rows=np.arange(ROWS), with_vectors=True, **options
    ).vectors_NF


def outputs_of(solution: Solution, x_NF: np.ndarray) -> np.ndarray:
    return x_NF.astype(np.float64) @ solution.weight_KF.T + solution.bias_K


def logits_of(parts: Trainer) -> np.ndarray:
    inputs = parts.inputs
    return parts.planner.generator.source.scorer.logits(np.arange(len(inputs.labels))).astype(np.float64)


KINDS = ("two", "three", "ordinal", "regression", "multi_label")
MODELS: dict[str, tuple[bool, dict[str, Any]]] = {
    "cls": (False, PROBE),
    "mean": (False, {**PROBE, "preset": "bert-mean"}),
    "cls-mean": (False, {**PROBE, "preset": "bert-cls-mean"}),
    "self-attention": (False, {**PROBE, "preset": "task-attention"}),
    "cross-encoder": (True, PROBE),
    "concat": (True, {**PAIR, "model__head__combine": "concat"}),
    "concat-cosine": (True, PAIR),
    "cross-attention": (True, {**PROBE, "preset": "task-attention", "model__head__combine": "concat"}),
}
FAST = ("mean", "self-attention", "cross-encoder", "concat")
CASES = [
    *(pytest.param("two", model, id=f"two-{model}", marks=integration_unless(model in FAST)) for model in MODELS),
    *(pytest.param(kind, "concat-cosine", id=f"{kind}-concat-cosine") for kind in KINDS[1:]),
    *(pytest.param(kind, "mean", id=f"{kind}-mean", marks=pytest.mark.integration) for kind in KINDS[1:]),
]


@pytest.mark.parametrize(("kind", "model"), CASES)
def test_the_first_predictions_are_those_of_the_fitted_linear_model(tiny, tmp_path, kind, model):
    pairs, changes = MODELS[model]
    parts = built(tmp_path, tiny("bert"), **{**changes, **write(tmp_path, kind, pairs=pairs)})
    x_NF, labels = features_of(parts), parts.inputs.labels
    random = logits_of(parts)
    assert "linear probe: fitted to 40 training rows in" in str(parts.start_classifier())
    got = logits_of(parts)
    assert not np.allclose(got, random)
    assert parts.model.training
    inputs = parts.inputs
    fitted = fit_classifier(x_NF, labels, inputs.data.label_space, parts.objective, None, seed=42)
    assert got == pytest.approx(outputs_of(fitted, x_NF), abs=2e-3)
    if kind == "regression":
        assert np.corrcoef(got[:, 0], labels)[0, 1] > np.corrcoef(random[:, 0], labels)[0, 1]
    elif kind != "multi_label":
        assert np.mean(got.argmax(axis=1) == labels) >= np.bincount(labels).max() / ROWS


# The fit


def features(rows: int = 120) -> np.ndarray:
    draw = np.random.default_rng(3)
    return draw.normal(size=(rows, 6)) * [1, 1, 2, 1, 0.5, 1] * 0.01 + 5.0


def standardised(x_NF: np.ndarray) -> np.ndarray:
    return (x_NF - x_NF.mean(axis=0)) / np.sqrt(np.mean((x_NF - x_NF.mean(axis=0)) ** 2))


def fit(
    x_NF: np.ndarray, labels: np.ndarray, space: LabelSpace, weights_N: np.ndarray | None = None, **options: Any
) -> Solution:
    return fit_classifier(
        x_NF, labels, space, build_objective(ObjectiveConfig(**options), space, labels), weights_N, seed=1
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_are_fitted_as_by_scikit_learn_with_row_and_class_weights(classes: int) -> None:
    x_NF, space = features(), LabelSpace("classification", ("a", "b", "c")[:classes])
    noisy = standardised(x_NF)[:, 2] + 0.5 * np.random.default_rng(1).normal(size=len(x_NF))
    labels_N = np.digitize(noisy, [-0.5, 0.5][: classes - 1])
    weights_N, of_class = np.random.default_rng(2).uniform(0.5, 2, len(x_NF)), [1.0, 3.0, 0.5][:classes]
    fitted = fit(x_NF, labels_N, space, weights_N, class_weights=of_class)
    strength = float(re.search(r"C = ([\d.e-]+)", fitted.note)[1].rstrip("."))
    theirs = LogisticRegression(C=strength, max_iter=2000)
    theirs.fit(standardised(x_NF), labels_N, sample_weight=weights_N * np.array(of_class)[labels_N])
    logits_NK = outputs_of(fitted, x_NF)
    assert logits_NK.sum(axis=1) == pytest.approx(np.zeros(len(x_NF)), abs=1e-2)
    assert softmax(logits_NK, axis=1) == pytest.approx(theirs.predict_proba(standardised(x_NF)), abs=1e-2)


def test_scores_are_fitted_by_ridge_regression() -> None:
    x_NF, space = features(), LabelSpace("regression")
    scores_N = 40 * (x_NF[:, 2] - 5) + 0.1 * np.random.default_rng(1).normal(size=len(x_NF)) + 3
    fitted = fit(x_NF, scores_N, space)
    strength = float(re.search(r"C = ([\d.e-]+)", fitted.note)[1].rstrip("."))
    theirs = Ridge(alpha=1 / strength).fit(standardised(x_NF), scores_N)
    assert outputs_of(fitted, x_NF)[:, 0] == pytest.approx(theirs.predict(standardised(x_NF)), abs=1e-6)
    assert np.corrcoef(outputs_of(fitted, x_NF)[:, 0], scores_N)[0, 1] > 0.9


def test_a_class_without_rows_is_unlikely() -> None:
    x_NF, space = features(), LabelSpace("classification", ("a", "b", "c", "d"))
    labels_N = 2 * (x_NF[:, 2] > 5).astype(int)
    fitted = fit(x_NF, labels_N, space)
    chances_NK = softmax(outputs_of(fitted, x_NF), axis=1)
    assert set(chances_NK.argmax(axis=1)) == {0, 2}
    assert chances_NK[:, [1, 3]].max() < 0.02


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("kind", ["classification", "regression", "multi_label"])
def test_a_handful_of_rows_and_constant_features_give_finite_weights(kind: str, rows: int) -> None:
    space = LabelSpace(kind, () if kind == "regression" else ("a", "b"))
    labels = {
        "classification": np.arange(rows) % 2,
        "regression": np.arange(rows) * 0.5,
        "multi_label": np.ones((rows, 2)),
    }[kind]
    for x_NF in (features(rows), np.ones((rows, 3))):
        fitted = fit(x_NF, labels, space)
        assert np.isfinite(outputs_of(fitted, x_NF)).all()


def test_a_labels_class_weight_is_that_of_its_presence() -> None:
    x_NF, space = features(), LabelSpace("multi_label", ("a", "b"))
    labels = (np.random.default_rng(4).random((len(x_NF), 2)) < 0.3).astype(np.float32)
    plain = fit(x_NF, labels, space)
    heavy = fit(x_NF, labels, space, class_weights=[1, 30])
    rise_NK = outputs_of(heavy, x_NF) - outputs_of(plain, x_NF)
    assert rise_NK[:, 0] == pytest.approx(np.zeros(len(x_NF)), abs=1e-6)
    assert rise_NK[:, 1].mean() > 2


def test_outputs_of_corn_are_fitted_to_the_rows_of_their_condition() -> None:
    x_NF, space = features(), LabelSpace("ordinal", ("a", "b", "c"))
    labels_N = np.digitize(standardised(x_NF)[:, 2], [-0.5, 0.5])
    fitted = fit(x_NF, labels_N, space, loss="corn")
    assert fitted.weight_KF.shape == (2, 6)
    reached = labels_N >= 1
    outputs_NK = outputs_of(fitted, x_NF)
    assert np.mean((outputs_NK[:, 0] > 0) == reached) > 0.9
    assert np.mean((outputs_NK[reached, 1] > 0) == (labels_N[reached] > 1)) > 0.9


# Cosines


@pytest.mark.parametrize(("kind", "combine"), [("two", "cosine"), ("regression", "cosine"), ("two", "scaled-dot")])
def test_one_number_starts_at_its_best_scale_without_being_asked(tiny, tmp_path: Path, kind: str, combine: str) -> None:
    """Else a dot product of similar texts is positive for all pairs, as on Quora, and predicts the second class."""
    changes = COSINE if combine == "cosine" else COSINE | {"preset": "bi-encoder-mean", "model__head__combine": combine}
    parts = built(tmp_path, tiny("bert"), **changes, **write(tmp_path, kind, pairs=True))
    assert isinstance(parts.model.classifier, CosineSimilarity) == (combine == "cosine")
    cosine_N1, labels = features_of(parts), parts.inputs.labels
    assert cosine_N1.shape == (ROWS, 1)
    assert combine != "cosine" or np.abs(cosine_N1).max() <= 1 + 1e-6
    assert "scale and offset are fitted to 40 training rows" in str(parts.start_classifier())
    got = logits_of(parts)
    fitted = fit_classifier(cosine_N1, labels, parts.inputs.data.label_space, parts.objective, None, seed=42)
    expected = outputs_of(fitted, cosine_N1)
    if kind == "regression":
        assert got == pytest.approx(expected, abs=2e-3)
    else:
        assert got[:, 0].tolist() == [0.0] * ROWS
        assert got[:, 1] == pytest.approx(expected[:, 1] - expected[:, 0], abs=2e-3)


@pytest.mark.parametrize(
    ("kind", "changes", "told"),
    [
        ("two", PAIR | {"model__head__combine": "dot"}, "linear_probe: got true with .*combine dot.*concat-cosine"),
        ("three", COSINE, r"model.head.combine: got cosine, which gives one number.*Set it to concat"),
        ("multi_label", COSINE, r"model.head.combine: got cosine, which gives one number.*Set it to concat"),
    ],
)
def test_what_one_number_cannot_start_from_is_refused(tiny: Tiny, tmp_path: Path, kind, changes, told) -> None:
    with pytest.raises(ConfigError, match=told):
        run(tmp_path, tiny("bert"), **changes, **write(tmp_path, kind, pairs=True))
    assert not (tmp_path / "run").exists()


def test_a_run_that_only_gets_worse_ends_with_the_frozen_solution(tiny: Tiny, tmp_path: Path) -> None:
    """The validation rows are the training rows here, and the learning rate is far too high."""
    data = write(tmp_path, "two", pairs=True)
    (tmp_path / "validation.csv").write_text((tmp_path / "train.csv").read_text())
    changes = {**PAIR, **data, "training__learning_rate": 3.0, "training__load_best_model_at_end": True}
    run(tmp_path, tiny("bert"), **changes)
    first = log_of(tmp_path / "run")[0]
    result = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (first["step"], first["is_best"]) == (0, True)
    assert (result["best"]["step"], result["train"]["final_step"]) == (0, 0)
    assert result["scores"]["validation"] == first["validation"]


@pytest.mark.integration
def test_a_strong_pull_keeps_the_weights_at_the_probe(tiny: Tiny, tmp_path: Path) -> None:
    """With lr x l2_sp = 1 each step starts from the start again, the classifier's included."""
    data = write(tmp_path, "two", pairs=True)
    distances = {}
    for pull in (0.0, 1000.0):
        changes = {**PAIR, **data, "training__l2_sp": pull, "training__lr_scheduler_type": "constant"}
        folder = tmp_path / f"run-{pull}"
        start = built(tmp_path, tiny("bert"), **changes)
        start.start_classifier()
        run(tmp_path, tiny("bert"), **changes, training__output_dir=str(folder))
        after = load_file(folder / "model.safetensors")
        with start.embeddings.whole(1.0):
            distances[pull] = max(
                float((after[name] - weight.detach()).abs().max()) for name, weight in start.model.named_parameters()
            )
    # One step of AdamW moves a weight by at most about the learning rate, 1e-3.
    assert distances[1000.0] < 1.1e-3 < distances[0.0]
