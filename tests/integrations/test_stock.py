"""Runs exported as classes of transformers: equal logits in every family, and a reason where there is no such class."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from attentune.config import load_config
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError
from attentune.inference.predictor import Predictor, predict_rows
from attentune.integrations.hub import WITHOUT_ATTENTUNE
from attentune.integrations.transformers import (
    differing_predictions,
    export_for_transformers,
    stock_model,
    unavailable_reason,
)
from attentune.metrics.metrics import probabilities_of
from helpers.tiny import FAMILIES
from helpers.tiny_models import FIRST, LONG, SECOND, TWO, encoded, rows_of
from helpers.tiny_runs import save_run

Tiny = Callable[..., Path]
# What the head of each family's class has between its two linear layers decides which of our heads it can hold.
WITH_TANH = {"bert", "roberta", "albert", "mpnet", "xlm-roberta"}
WITHOUT_POOLER = {"distilbert", "electra", "deberta-v2"}
SCORES, THREE = LabelSpace("regression"), LabelSpace("classification", ("a", "b", "c"))
SEVERAL = LabelSpace("multi_label", ("a", "b", "c"))
ORDERED = LabelSpace("ordinal", ("low", "middle", "high"))
PIPELINE = (
    WITHOUT_ATTENTUNE
    + """
import json
from transformers import pipeline
asked = pipeline("text-classification", model=sys.argv[1])
print(json.dumps([type(asked.model).__name__, asked(json.loads(sys.argv[2]), top_k=None, truncation=True)]))
"""
)


def with_head(preset: str = "bert", **head: Any) -> Any:
    model = load_config(preset=preset).model
    return replace(model, head=replace(model.head, **head))


def logits_by_both(run: Path, texts: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of the run, and of the class of transformers after it was saved and loaded."""
    saved = Predictor.load(run)
    folder = run.with_name(run.name + "-stock")
    stock_model(saved.model).save_pretrained(folder)
    loaded = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert type(loaded).__module__.startswith("transformers.")
    inputs = encoded(saved.tokenizer, *texts)
    with torch.no_grad():
        return saved.model(**inputs).logits, loaded(**inputs).logits


@pytest.mark.parametrize("pooler", ["fresh", "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, pooler: str, tiny: Tiny, tmp_path: Path) -> None:
    run = save_run(tiny(family), tmp_path / "run", settings=with_head(pooler=pooler), label_space=THREE)
    reason = unavailable_reason(Predictor.load(run).model)
    if family in (WITH_TANH if pooler == "fresh" else WITHOUT_POOLER):
        assert reason is None
        ours, theirs = logits_by_both(run, (FIRST, SECOND, LONG, "", "a"))
        torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)
        assert ours.std(dim=0).min() > 1e-2, "the texts differ"
        return
    assert reason is not None
    if family == "modernbert":
        assert reason == (
            "ModernBertForSequenceClassification has a LayerNorm between its two linear layers, ours has none"
        )
    else:
        way_out = "none" if pooler == "fresh" else "fresh"
        assert f"train with --set model.head.pooler={way_out}" in reason
        assert reason.startswith(f"the class of transformers for {family} ")


@pytest.mark.parametrize(
    ("space", "loss"),
    [(SCORES, "auto"), (SCORES, "pearson"), (THREE, "focal"), (SEVERAL, "auto"), (ORDERED, "auto")],
    ids=["scores", "scaled scores", "focal", "several labels", "ordered"],
)
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_outputs_scale_and_temperature(family: str, space: LabelSpace, loss: str, tiny: Tiny, tmp_path: Path) -> None:
    run = save_run(tiny(family), tmp_path / "run", settings=with_head(), label_space=space, loss=loss)
    saved = Predictor.load(run)
    if loss == "pearson":
        saved.model.outputs.scale.fill_(2.5)
        saved.model.outputs.offset.fill_(-1.5)
    saved.model.config.calibration_temperature = 1.7
    made = stock_model(saved.model)
    assert made.config.problem_type == {
        "regression": "regression",
        "multi_label": "multi_label_classification",
    }.get(space.task_type, "single_label_classification")
    inputs = encoded(saved.tokenizer, FIRST, SECOND, LONG)
    with torch.no_grad():
        torch.testing.assert_close(made(**inputs).logits, saved.model(**inputs).logits, atol=1e-5, rtol=0)
    if space.task_type != "regression":
        assert list(made.config.id2label.values()) == list(space.names)


def test_more_labels_than_the_dense_layer_holds(tiny: Tiny, tmp_path: Path) -> None:
    """Two rows of the dense layer are needed for each label; the tiny encoder is 32 wide."""
    many = [LabelSpace("classification", tuple(f"class {number}" for number in range(count))) for count in (16, 17)]
    runs = [
        save_run(tiny("electra"), tmp_path / f"run-{space.num_labels}", settings=with_head(), label_space=space)
        for space in many
    ]
    ours, theirs = logits_by_both(runs[0], (FIRST, LONG))
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)
    reason = unavailable_reason(Predictor.load(runs[1]).model)
    assert (
        reason == "the class of transformers for electra has a dense layer with gelu that cannot be made the identity"
    )
    with pytest.raises(ValueError, match="cannot be made the identity; expected a model without"):
        stock_model(Predictor.load(runs[1]).model)


@pytest.mark.parametrize(
    ("preset", "pair", "reason"),
    [
        ("bert-mean", False, "its head is mean, not cls"),
        ("blur-bert", False, "it blurs attention"),
        ("se-bert", False, "it rescales the layers by squeeze-and-excitation"),
        ("sesame-weighted", False, "it blurs attention"),
        ("ssa-hybrid", False, "its token gate changes the sentence vector"),
        ("task-attention", False, "its head is self-attention, not cls"),
        ("bi-encoder-cosine", True, "it encodes the texts of a pair separately"),
    ],
)
def test_reasons(preset: str, pair: bool, reason: str, tiny: Tiny, tmp_path: Path) -> None:
    run = save_run(tiny("bert"), tmp_path / "run", settings=load_config(preset=preset).model, is_pair=pair)
    assert unavailable_reason(Predictor.load(run).model) == reason


def test_reasons_of_losses_windows_and_layers(tiny: Tiny, tmp_path: Path) -> None:
    run = save_run(tiny("bert"), tmp_path / "run", settings=with_head(), label_space=ORDERED, loss="corn")
    model = Predictor.load(run).model
    assert unavailable_reason(model) == "with the loss corn its logits are not linear in the sentence vector"
    model.config.window = 48
    assert unavailable_reason(model) == "it reads long texts in windows"
    model.config.window, model.config.layer_mix = None, {**model.config.layer_mix, "kind": "sum-last-4"}
    assert unavailable_reason(model) == "its head takes the layer mix 'sum-last-4', not the last layer"


def test_what_the_class_leaves_out(tiny: Tiny, tmp_path: Path) -> None:
    run = save_run(tiny("bert"), tmp_path / "run", settings=load_config(preset="ssa-co").model)
    model = Predictor.load(run).model
    assert unavailable_reason(model) is None, "with beta 1 the gate does not change the sentence vector"
    assert differing_predictions(model) == "the token gate, which scores each token, is left out"
    ours, theirs = logits_by_both(run, (FIRST, LONG))
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)
    model.config.ordinal_prediction = "expected-value"
    assert "nearest to the mean of class numbers" in differing_predictions(model)
    model.config.thresholds = [0.7]
    assert "predicts by its thresholds" in differing_predictions(model)


@pytest.fixture
def attentune_command(attentune: object) -> object:
    """The fixture `attentune`, under a name that leaves the package its own."""
    return attentune


@pytest.mark.integration
def test_a_pipeline_without_attentune_and_its_code(tiny: Tiny, tmp_path: Path, attentune_command) -> None:
    run = save_run(tiny("distilbert"), tmp_path / "run", settings=with_head())
    (run / "README.md").write_text(
        "---\nlibrary_name: attentune\n---\n\n# A card\n\n## How to use\n\n```python\nimport attentune\n```\n\n"
        "## Limits\n\n- One run.\n- It needs Attentune to be installed; transformers alone cannot load it.\n- Last.\n"
    )
    folder = tmp_path / "hub"
    status, out, err = attentune_command("export", run, "--format", "transformers", "--output_dir", folder)
    assert status == 0, err
    assert f"{folder}: loads as DistilBertForSequenceClassification of transformers, without trust_remote_code" in out
    assert "max difference from the run, loaded without Attentune: " in out
    assert not list(folder.glob("*.py"))
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["id2label"]) == ("distilbert", {"0": "bad", "1": "good"})
    assert not {"auto_map", "custom_pipelines"} & set(config)
    texts = [FIRST, "[SEP] is text", LONG]
    around = {**os.environ, "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-c", PIPELINE, str(folder), json.dumps(texts)]
    done = subprocess.run(words, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    name, found = json.loads(done.stdout)
    assert name == "DistilBertForSequenceClassification"
    saved = Predictor.load(run)
    expected = probabilities_of(predict_rows(saved, rows_of(texts), precision="fp32"), saved.label_space)
    for row, wanted in zip(found, expected, strict=True):
        shares = dict(zip(saved.label_space.names, wanted.tolist(), strict=True))
        assert {part["label"]: part["score"] for part in row} == pytest.approx(shares, abs=1e-5)
    card = (folder / "README.md").read_text()
    assert "library_name: transformers" in card
    assert "attentune" not in card.lower()
    assert card.index('pipeline("text-classification", model="FOLDER")') < card.index("## Limits")
    assert "- One run.\n- Last.\n" in card


@pytest.mark.integration
def test_the_form_can_be_chosen(tiny: Tiny, tmp_path: Path, attentune_command) -> None:
    run = save_run(tiny("bert"), tmp_path / "run", settings=with_head())
    made = export_for_transformers(run, tmp_path / "remote", code="remote")
    assert (made.class_name, made.reason) == (None, None)
    assert "modeling_attentune.py" in made.files
    file = run / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"thresholds": [0.7]}))
    status, out, _ = attentune_command("export", run, "--format", "transformers", "--output_dir", tmp_path / "auto")
    reason = "the run predicts by its thresholds, and transformers by the highest probability"
    assert (status, f"why not a class of transformers: {reason}\n" in out) == (0, True)
    assert (tmp_path / "auto" / "modeling_attentune.py").is_file()
    status, out, _ = attentune_command(
        "export", run, "--format", "transformers", "--code", "stock", "--output_dir", tmp_path / "stock"
    )
    assert (status, f"note: {reason}\n" in out) == (0, True)
    assert not list((tmp_path / "stock").glob("*.py"))


def test_what_cannot_be_a_class_of_transformers_is_refused(tiny: Tiny, tmp_path: Path, attentune_command) -> None:
    run = save_run(tiny("bert"), tmp_path / "run", settings=load_config(preset="bert-mean").model, label_space=TWO)
    with pytest.raises(ConfigError) as caught:
        export_for_transformers(run, tmp_path / "x", code="stock")
    assert str(caught.value) == (
        f"--code: got stock, but no class of transformers has the logits of {run}: its head is mean, not cls. Leave"
        " --code out to write the code of the model (loaded with trust_remote_code)."
    )
    with pytest.raises(ConfigError, match=r"--code: got 'stok', expected auto, stock, remote\. Did you mean 'stock'"):
        export_for_transformers(run, tmp_path / "x", code="stok")
    status, _, err = attentune_command("export", run, "--code", "stock", "--output_dir", tmp_path / "x")
    assert (status, "--code: goes with --format transformers" in err) == (2, True)
    assert not (tmp_path / "x").exists()
