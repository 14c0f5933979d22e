"""Runs in sentence-transformers and SetFit: equal vectors, scores of pairs and probabilities, or a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import attentune
from attentune.baselines.registry import make_baseline
from attentune.config import ModelConfig, load_config
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError, ExportError
from attentune.inference.predictor import Predictor, predict_rows
from attentune.integrations.hub import sentences
from attentune.integrations.hub.sentences import export_for_sentences, linear_head, text_encoder
from attentune.metrics.metrics import probabilities_of
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.tiny_models import FIRST, LONG, SECOND, rows_of
from helpers.tiny_runs import save_run

Tiny = Callable[..., Path]
# XLM-R's tokenizer reads special tokens in a text as such when it is loaded from a folder, so none are among these.
TEXTS, OTHERS = [FIRST, SECOND, LONG, "", "a (b) c"], [LONG, FIRST, "a", SECOND, LONG]
SCORES, THREE = LabelSpace("regression"), LabelSpace("classification", ("a", "b", "c"))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load exports in this process, which is faster; `test_from_the_command_line` loads one elsewhere."""

    def load(folder: Path, texts: list[str]) -> dict[str, Any]:
        model = SentenceTransformer(str(folder), device="cpu")
        vectors = model.encode(texts, convert_to_tensor=True)
        return {"vectors": vectors, "similarities": model.similarity_pairwise(vectors[:-1], vectors[1:])}

    monkeypatch.setattr(sentences, "_loaded_elsewhere", load)


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
    assert made.similarity == ("cosine" if preset == "bi-encoder-cosine" else "dot")
    assert (made.max_difference <= 1e-5, made.note) == (True, None)
    logits_NC = predict_rows(run, rows_of(TEXTS, OTHERS), precision="fp32")
    wanted_N = logits_NC[:, 0] if space is SCORES else logits_NC[:, 1] - logits_NC[:, 0]
    np.testing.assert_allclose(scores(made.folder), wanted_N, atol=1e-5 * max(1.0, np.abs(wanted_N).max()), rtol=0)
    assert np.ptp(wanted_N) > 1e-3
    assert not list(made.folder.rglob("*.py"))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("family", "preset", "space", "pooling"),
    [
        ("mpnet", "bert-mean", THREE, "mean"),
        ("bert", "bert", THREE, "cls"),  # with a pooler, which becomes a dense layer
        ("distilbert", "bert", None, "cls"),
    ],
)
def test_a_setfit_head(
    family: str, preset: str, space: LabelSpace | None, pooling: str, tiny: Tiny, tmp_path: Path
) -> None:
    options = {} if space is None else {"label_space": space}
    run = save_run(tiny(family), tmp_path / "run", settings=load_config(preset=preset).model, **options)
    made = export_for_sentences(run, tmp_path / "out", output_format="setfit")
    assert (made.pooling, made.labels) == (pooling, space.names if space else ("bad", "good"))
    settings = json.loads((made.folder / "config_setfit.json").read_text())
    assert settings == {"normalize_embeddings": False, "labels": list(made.labels)}
    vectors = SentenceTransformer(str(made.folder), device="cpu").encode(TEXTS)
    head = joblib.load(made.folder / "model_head.pkl")
    space_of_run = Predictor.load(run).label_space
    wanted = probabilities_of(predict_rows(run, rows_of(TEXTS), precision="fp32"), space_of_run)
    np.testing.assert_allclose(head.predict_proba(vectors), wanted, atol=1e-5)
    assert head.predict(vectors).tolist() == np.argmax(wanted, axis=1).tolist()


def baseline(name: str, folder: Path, rows: list[str]) -> Path:
    """A trained baseline on the embedded encoder."""
    file = folder / "rows.csv"
    file.write_text("\n".join(rows) + "\n")
    columns = {"data.text_column": "text", "data.label_column": "label"}
    if rows[0].startswith("text,other"):
        columns["data.text_pair_column"] = "other"
    overrides = {**columns, "data.train_file": str(file), "training.output_dir": str(folder / "run")}
    train(load_config(preset=name, overrides=overrides), display=ProgressDisplay(quiet=True))
    return folder / "run"


@pytest.mark.integration
def test_the_baselines_of_a_frozen_encoder(tmp_path: Path) -> None:
    texts = [
        f"film {number} was {'fine' if number % 2 else 'dull'},{'good' if number % 2 else 'bad'}"
        for number in range(40)
    ]
    run = baseline("frozen-linear", tmp_path, ["text,label", *texts])
    made = export_for_sentences(run, tmp_path / "setfit", output_format="setfit")
    vectors = SentenceTransformer(str(made.folder), device="cpu").encode(TEXTS)
    shares = joblib.load(made.folder / "model_head.pkl").predict_proba(vectors)
    wanted = [list(row["probabilities"].values()) for row in attentune.predict(run, TEXTS)]
    np.testing.assert_allclose(shares, wanted, atol=0.05)  # the run encodes in bf16 where that is fast
    (tmp_path / "pairs").mkdir()
    pairs = [f"film {n},{'film' if n % 2 else 'cold soup'} {n},{'same' if n % 2 else 'other'}" for n in range(40)]
    run = baseline("cosine", tmp_path / "pairs", ["text,other,label", *pairs])
    made = export_for_sentences(run, tmp_path / "cosine")
    assert made.scale is not None
    assert made.scale > 0
    logits_NC = predict_rows(run, rows_of(TEXTS, OTHERS))
    np.testing.assert_allclose(scores(made.folder), logits_NC[:, 1] - logits_NC[:, 0], atol=0.2)
    with pytest.raises(ConfigError, match=r"is not a SetFit model, .*: it compares pairs of texts\. Use --format"):
        export_for_sentences(run, tmp_path / "x", output_format="setfit")


@pytest.mark.parametrize("output_format", ["sentence-transformers", "setfit"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tfidf-linear", "a tfidf-linear baseline, which has no encoder"),
        (
            "token-alignment",
            "a token-alignment baseline, which predicts from the vectors of all tokens of both texts, not from one"
            " vector a text",
        ),
    ],
)
def test_a_baseline_without_a_vector_of_each_text(
    name: str, reason: str, output_format: str, tiny: Tiny, tmp_path: Path
) -> None:
    made = make_baseline(name, encoder=ModelConfig(name_or_path=str(tiny("bert"))), max_length=32, seed=1)
    (tmp_path / "run").mkdir()
    made.fit(
        rows_of(TEXTS, OTHERS if name == "token-alignment" else None, [0, 1, 0, 1, 0]),
        LabelSpace("classification", ("other", "same")),
    ).save(tmp_path / "run")
    with pytest.raises(ConfigError, match=rf"{reason}\. Expected frozen-linear, cosine or a fine-tuned encoder\."):
        export_for_sentences(tmp_path / "run", tmp_path / "out", output_format=output_format)
    assert not (tmp_path / "out").exists()


@pytest.mark.integration
def test_from_the_command_line(tiny: Tiny, tmp_path: Path, attentune) -> None:
    model = load_config(preset="bi-encoder-concat").model
    run = save_run(tiny("bert"), tmp_path / "run", settings=model, is_pair=True)
    folder = tmp_path / "out"
    status, out, err = attentune("export", run, "--format", "sentence-transformers", "--output_dir", folder)
    assert status == 0, err
    assert f"{folder}: loads as SentenceTransformer; vectors of 32 values, mean of the tokens\n" in out
    assert "max difference from the run in float32, loaded without Attentune: " in out
    assert "note: the score of a pair is a linear layer on both vectors" in out
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


@pytest.mark.parametrize(
    ("space", "loss", "reason"),
    [
        (SCORES, "auto", "its task is regression"),
        (LabelSpace("multi_label", ("a", "b")), "auto", "its task is multi_label"),
        (LabelSpace("ordinal", ("a", "b", "c")), "corn", "with the loss corn its logits are not linear"),
        (LabelSpace("classification", ("bad", "good"), thresholds=(0.3,)), "auto", "it predicts by thresholds"),
        (LabelSpace("ordinal", ("a", "b", "c"), "expected-value"), "auto", "nearest to the mean of class numbers"),
    ],
)
def test_what_is_no_setfit_model(space: LabelSpace, loss: str, reason: str, tiny: Tiny, tmp_path: Path) -> None:
    model = load_config(preset="bert-mean").model
    run = save_run(tiny("bert"), tmp_path / "run", settings=model, label_space=space, loss=loss)
    saved = replace(Predictor.load(run), label_space=space)
    with pytest.raises(ConfigError, match=rf"is not a SetFit model, .*{reason}.*\. Use --format sentence-transformers"):
        linear_head(saved)


@pytest.mark.usefixtures("here")
def test_a_difference_and_a_missing_package_are_told(tiny: Tiny, tmp_path: Path, monkeypatch) -> None:
    run = save_run(tiny("bert"), tmp_path / "run", settings=load_config(preset="bert-mean").model)
    monkeypatch.setattr(sentences, "TOLERANCE", -1.0)
    with pytest.raises(ExportError, match="by sentence-transformers its vectors differ by .*; nothing was written"):
        export_for_sentences(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(sentences.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r"not installed; run: pip install 'attentune\[export\]'"):
        export_for_sentences(run, tmp_path / "out")
