"""fast-shap: what the fitted head says, how it is saved, what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.explain.explainer import Explainer, default_method
from attentune.explain.fast_shap import explained_output, fit_attribution_head, values_of
from attentune.explain.scorer import Settings
from attentune.explain.texts import fit_explainer
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.models.saving import HEAD_SETTINGS as SETTINGS
from attentune.models.saving import HEAD_WEIGHTS as WEIGHTS
from attentune.models.saving import save_model
from attentune.seeding import numpy_generator
from helpers.tiny_models import rows_of
from helpers.tiny_runs import rows_for, tiny_run

Tiny = Callable[..., Path]
WORDS = (
    "the actors seem dull and bright birds sing outside my cold window",
    "nobody plays guitar at home and never leaves",
)


def texts(count: int, seed: int = 0) -> list[str]:
    generator = numpy_generator("fast-shap texts", seed)
    return [" ".join(generator.choice(" ".join(WORDS).split(), size=generator.integers(3, 9))) for _ in range(count)]


def saved_run(tiny: Tiny, folder: Path, kind: str = "classification") -> ModelPredictor:
    run = tiny_run(tiny(), kind, gate=False)
    folder.mkdir()
    save_model(run.model, run.tokenizer, folder)
    return Predictor.load(folder)


def rows_like(kind: str, count: int, seed: int = 0):
    second = texts(count, seed + 1) if kind in ("pair", "bi-encoder") else None
    return rows_of(texts(count, seed), second)


@pytest.mark.parametrize(
    "kind",
    [
        "classification",
        *(pytest.param(kind, marks=pytest.mark.integration) for kind in ("pair", "regression", "ordinal")),
    ],
)
def test_a_fitted_head_predicts_masked_copies_and_is_loaded_as_saved(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    run = saved_run(tiny, tmp_path / "run", kind)
    facts = fit_explainer(run, rows_like(kind, 160), copies=4, seed=1)
    assert (facts.texts, facts.held_out_texts, facts.copies) == (130, 30, 4)
    assert facts.explained_variance > 0.3
    loaded = Predictor.load(tmp_path / "run")
    assert default_method(loaded) == ("fast-shap" if facts.explained_variance >= 0.5 else "leave-one-out")
    new = rows_like(kind, 10, seed=7)
    found = Explainer(loaded, new).attributions("fast-shap")
    exact = Explainer(loaded, new).attributions("shap", settings=Settings(samples=400))
    correlations = [np.corrcoef(a.scores, b.scores)[0, 1] for a, b in zip(found, exact, strict=True)]
    assert np.mean(correlations) > 0.5
    again = Predictor.load(tmp_path / "run")
    for one, other in zip(found, Explainer(again, new).attributions("fast-shap"), strict=True):
        assert np.array_equal(one.scores, other.scores)


def test_a_fit_is_a_function_of_its_seed_and_leaves_the_model_alone(tiny: Tiny, tmp_path: Path) -> None:
    run, rows = saved_run(tiny, tmp_path / "run"), rows_like("classification", 40)
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    torch.manual_seed(1)
    weights = []
    for seed in (1, 1, 2):
        fit_explainer(run, rows, copies=2, seed=seed)
        weights.append((tmp_path / "run" / WEIGHTS).read_bytes())
        torch.rand(3)  # others' random numbers do not matter
    assert weights[0] == weights[1] != weights[2]
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    assert not run.model.training


@pytest.mark.parametrize("contrast", [None, 1])
def test_which_value_is_explained(tiny: Tiny, contrast: int | None) -> None:
    scorer = Explainer(tiny_run(tiny(), "pair"), rows_for("pair")).scorer
    logits_NC = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    values_NO = values_of(logits_NC, scorer.label_space)
    asked = replace(scorer, contrast=contrast)
    for target in (0, 2):
        expected = asked.value(torch.from_numpy(logits_NC), torch.full((6,), target)).numpy()
        assert explained_output(values_NO, target, asked) == pytest.approx(expected, abs=1e-6)


def test_two_classes_scores_and_label_sets_have_their_values(tiny: Tiny) -> None:
    two = Explainer(tiny_run(tiny()), rows_for("classification")).scorer
    logits_NC = np.array([[1.0, 3.0], [2.0, -1.0]], dtype=np.float32)
    assert values_of(logits_NC, two.label_space).tolist() == [[2.0], [-3.0]]
    assert explained_output(values_of(logits_NC, two.label_space), 0, two).tolist() == [-2.0, 3.0]
    one = Explainer(tiny_run(tiny(), "regression"), rows_for("regression")).scorer
    assert values_of(logits_NC[:, :1], one.label_space).tolist() == [[1.0], [2.0]]
    sets = replace(two, label_space=LabelSpace("multilabel", ("a", "b")), contrast=0)
    assert explained_output(values_of(logits_NC, sets.label_space), 1, sets).tolist() == [2.0, -3.0]


@pytest.mark.parametrize("kind", ["classification", "pair"])
def test_contrasts_add_up_to_the_difference_of_logits(tiny: Tiny, kind: str) -> None:
    run, rows = tiny_run(tiny(), kind, with_head=True), rows_for(kind, 1)
    explainer = Explainer(run, rows)
    first, last = run.label_space.names[0], run.label_space.names[-1]
    (plain,) = explainer.attributions("fast-shap", target=last)
    (found,) = explainer.attributions("fast-shap", target=last, settings=Settings(contrast=first))
    (against,) = explainer.attributions("fast-shap", target=first, settings=Settings(contrast=last))
    assert found.scores == pytest.approx(-against.scores, abs=1e-5)
    assert found.scores.any()
    if kind == "classification":
        assert found.scores == pytest.approx(plain.scores, abs=1e-5)
    else:
        head, count = explainer.scorer.attribution_head, int((found.scores != 0).sum())
        nothing = head.nothing_MO[min(count, len(head.nothing_MO)) - 1].numpy()
        expected = (found.logits[2] - found.logits[0]) - (nothing[3 + 2] - nothing[3 + 0])
        assert found.scores.sum() == pytest.approx(expected, abs=1e-4)


def test_calibration_after_the_fit_divides_the_scores(tiny: Tiny, tmp_path: Path) -> None:
    run, rows = saved_run(tiny, tmp_path / "run"), rows_like("classification", 30)
    fit_explainer(run, rows, copies=2)
    before = Explainer(Predictor.load(tmp_path / "run"), rows).attributions("fast-shap")
    run.model.config.calibration_temperature = 2.0
    save_model(run.model, run.tokenizer, tmp_path / "run")
    after = Explainer(Predictor.load(tmp_path / "run"), rows).attributions("fast-shap")
    for one, other in zip(before, after, strict=True):
        assert one.scores / 2 == pytest.approx(other.scores, rel=1e-4, abs=1e-6)


def test_damaged_files_and_a_head_of_other_weights_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    run = saved_run(tiny, tmp_path / "run")
    fit_explainer(run, rows_like("classification", 30), copies=2)
    settings, weights = (tmp_path / "run" / SETTINGS).read_text(), (tmp_path / "run" / WEIGHTS).read_bytes()

    def refused(message: str = r"cannot be loaded.*Fit it again: attentune explain") -> None:
        with pytest.raises(CheckpointError, match=message):
            _ = Predictor.load(tmp_path / "run").attribution_head

    (tmp_path / "run" / WEIGHTS).write_bytes(b"torn")
    refused()
    (tmp_path / "run" / WEIGHTS).unlink()
    refused()
    (tmp_path / "run" / WEIGHTS).write_bytes(weights)
    (tmp_path / "run" / SETTINGS).write_text(json.dumps(json.loads(settings) | {"layers": [0, 999]}))
    refused()
    (tmp_path / "run" / SETTINGS).write_text(settings)
    with torch.no_grad():
        run.model.classifier.bias.add_(0.1)
    save_model(run.model, run.tokenizer, tmp_path / "run")
    refused(r"fitted to other weights.*attentune explain")


def test_what_cannot_be_fitted_is_told(tiny: Tiny, tmp_path: Path) -> None:
    run = saved_run(tiny, tmp_path / "run")
    with pytest.raises(DataError, match=r"got 3 texts of two words or more, expected at least 20"):
        fit_explainer(run, rows_of(["the actors", "cold birds", "my window", "", "I"]))
    with pytest.raises(ConfigError, match=r"copies: got 3, expected an even number"):
        fit_explainer(run, rows_like("classification", 30), copies=3)
    apart = saved_run(tiny, tmp_path / "apart", "bi-encoder")
    with pytest.raises(ConfigError, match="encodes the texts of a pair apart"):
        fit_explainer(apart, rows_like("bi-encoder", 30))
    with pytest.raises(ConfigError, match="does not say what it was trained on"):
        fit_explainer(run)
    assert not (tmp_path / "run" / SETTINGS).exists()


def test_long_texts_take_fewer_rows(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attentune.explain.fast_shap._MOST_TOKENS", 250)
    scorer = Explainer(tiny_run(tiny()), rows_like("classification", 60)).scorer
    _, facts = fit_attribution_head(scorer, copies=2)
    assert 20 <= facts.texts + facts.held_out_texts < 60
