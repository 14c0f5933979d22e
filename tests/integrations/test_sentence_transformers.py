"""Runs in sentence-transformers: equal vectors and scores of pairs, or a reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from attentune.config import load_config
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError, ExportError
from attentune.inference.predictor import Predictor, predict_rows
from attentune.integrations import sentence_transformers as sentences
from attentune.integrations.sentence_transformers import export_for_sentences, text_encoder
from helpers.tiny_models import FIRST, LONG, SECOND, rows_of
from helpers.tiny_runs import save_run

Tiny = Callable[..., Path]
# XLM-R's tokenizer reads special tokens in a text as such when it is loaded from a folder, so none are among these.
TEXTS, OTHERS = [FIRST, SECOND, LONG, "", "a (b) c"], [LONG, FIRST, "a", SECOND, LONG]
SCORES, THREE = LabelSpace("regression"), LabelSpace("classification", ("a", "b", "c"))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load exports in this process, which is faster; `test_from_the_command_line` loads one elsewhere."""

    def load(folder: Path, program: str, inputs: dict[str, Any]) -> dict[str, Any]:
        model = SentenceTransformer(str(folder), device="cpu")
        vectors = model.encode(inputs["texts"], convert_to_tensor=True)
        return {"vectors": vectors, "similarities": model.similarity_pairwise(vectors[:-1], vectors[1:])}

    monkeypatch.setattr(sentences, "computed_elsewhere", load)


def scores(folder: Path) -> np.ndarray:
    """The scores of pairs, from what sentence-transformers computes and `export.json` says."""
    model = SentenceTransformer(str(folder), device="cpu")
    similarity = model.similarity_pairwise(model.encode(TEXTS), model.encode(OTHERS)).double().numpy()
    about = json.loads((folder / "export.json").read_text())
    return about["scale"] * similarity + about["offset"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("family", "preset", "space"),
    [
        ("bert", "bi-encoder-cosine", LabelSpace("classification", ("other", "same"))),
        ("roberta", "bi-encoder-cosine", SCORES),
        ("xlm-roberta", "bi-encoder-mean", SCORES),
        ("modernbert", "bi-encoder-mean", LabelSpace("classification", ("other", "same"))),
    ],
)
def test_scores_of_pairs(family: str, preset: str, space: LabelSpace, tiny: Tiny, tmp_path: Path) -> None:
    model = load_config(preset=preset).model
    run = save_run(tiny(family), tmp_path / "run", settings=model, is_pair=True, label_space=space, max_length=40)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"calibration_temperature": 1.3}))
    made = export_for_sentences(run, tmp_path / "out")
    assert made.encoder.similarity == ("cosine" if preset == "bi-encoder-cosine" else "dot")
    assert (made.max_difference <= 1e-5, made.note) == (True, None)
    logits_NC = predict_rows(run, rows_of(TEXTS, OTHERS), precision="fp32")
    wanted_N = logits_NC[:, 0] if space is SCORES else logits_NC[:, 1] - logits_NC[:, 0]
    np.testing.assert_allclose(scores(made.folder), wanted_N, atol=1e-5 * max(1.0, np.abs(wanted_N).max()), rtol=0)
    assert np.ptp(wanted_N) > 1e-3
    assert not list(made.folder.rglob("*.py"))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("family", "preset", "pooling"),
    [
        ("mpnet", "bert-mean", "mean"),
        ("bert", "bert", "cls"),  # with a pooler, which becomes a dense layer
        ("distilbert", "bert", "cls"),
    ],
)
def test_the_classifier_fits_the_vectors(family: str, preset: str, pooling: str, tiny: Tiny, tmp_path: Path) -> None:
    run = save_run(tiny(family), tmp_path / "run", settings=load_config(preset=preset).model, label_space=THREE)
    made = export_for_sentences(run, tmp_path / "out")
    assert (made.encoder.pooling, made.note is None) == (pooling, False)
    vectors = SentenceTransformer(str(made.folder), device="cpu").encode(TEXTS)
    classifier = Predictor.load(run).single_model("test").model.classifier
    weight_CD, bias_C = classifier.weight.detach().numpy(), classifier.bias.detach().numpy()
    wanted_NC = predict_rows(run, rows_of(TEXTS), precision="fp32")
    np.testing.assert_allclose(vectors @ weight_CD.T + bias_C, wanted_NC, atol=1e-5)


@pytest.mark.integration
def test_from_the_command_line(tiny: Tiny, tmp_path: Path, attentune) -> None:
    model = load_config(preset="bi-encoder-concat").model
    run = save_run(tiny("bert"), tmp_path / "run", settings=model, is_pair=True)
    folder = tmp_path / "out"
    out, _ = attentune.done("export", run, "--format", "sentence-transformers", "--output_dir", folder)
    assert f"{folder}: loads as SentenceTransformer; vectors of 32 values, mean of the tokens\n" in out
    assert "max difference from the run in float32, loaded without Attentune: " in out
    assert "note: the folder has the encoder alone" in out
    saved = Predictor.load(run)
    vectors = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors, text_encoder(saved).vectors(TEXTS).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("preset", "pair", "reason"),
    [
        (
            "bert",
            True,
            r"encodes the two texts of a pair together \(sentence-transformers loads such a run as CrossEncoder",
        ),
        ("blur-bert", False, "it blurs attention"),
        ("se-bert", False, "it rescales the layers"),
        ("ssa-hybrid", False, "its token gate changes the sentence vector"),
        ("bert-cls-mean", False, "its head is cls-mean, not mean or cls"),
        ("task-attention", True, "its head is cross-attention, not mean or cls"),
    ],
)
def test_what_is_no_encoder_of_single_texts(preset: str, pair: bool, reason: str, tiny: Tiny, tmp_path: Path) -> None:
    run = save_run(tiny("bert"), tmp_path / "run", settings=load_config(preset=preset).model, is_pair=pair)
    with pytest.raises(
        ConfigError, match=rf"{reason}.* Use --format transformers or onnx, or train one of the presets"
    ):
        export_for_sentences(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("here")
def test_a_difference_and_a_missing_package_are_told(tiny: Tiny, tmp_path: Path, monkeypatch) -> None:
    run = save_run(tiny("bert"), tmp_path / "run", settings=load_config(preset="bert-mean").model)
    monkeypatch.setattr(sentences, "TOLERANCE", -1.0)
    with pytest.raises(ExportError, match="by sentence-transformers its outputs differ by .*; nothing was written"):
        export_for_sentences(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(sentences.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExportError, match="not installed; run: pip install -e "):
        export_for_sentences(run, tmp_path / "out")
