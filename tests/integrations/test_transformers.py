"""Runs exported for transformers: as its own classes, as CrossEncoders, or with code; loaded without Attentune."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

import attentune
from attentune.config import load_config, load_preset
from attentune.config.parse import parse_section
from attentune.config.schema import ModelConfig
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError, ExportError
from attentune.inference.predictor import Predictor, predict_rows
from attentune.integrations.exports import WITHOUT_ATTENTUNE
from attentune.integrations.transformers import (
    AUTO_MAP,
    code_files,
    differing_predictions,
    export_for_transformers,
    stock_model,
    unavailable_reason,
)
from attentune.metrics.metrics import probabilities_of
from attentune.models.saving import save_model
from helpers.tiers import covering
from helpers.tiny import FAMILIES
from helpers.tiny_models import FIRST, LONG, SECOND, TWO, build, encoded, rows_of
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


def elsewhere(script: str, folder: Path, rows: list[Any], **environment: str) -> Any:
    """What a script says of these rows, by a folder, in a process of its own."""
    words = [sys.executable, "-c", script, str(folder), json.dumps(rows)]
    around = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    done = subprocess.run(words, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


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


@covering("family, pooler", FAMILIES, ["fresh", "none"])
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
    assert made.config.problem_type == {"regression": "regression", "multi_label": "multi_label_classification"}.get(
        space.task_type, "single_label_classification"
    )
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
    out, _ = attentune_command.done("export", run, "--format", "transformers", "--output_dir", folder)
    assert f"{folder}: loads as DistilBertForSequenceClassification of transformers, without trust_remote_code" in out
    assert "max difference from the run, loaded without Attentune: " in out
    assert not list(folder.glob("*.py"))
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["id2label"]) == ("distilbert", {"0": "bad", "1": "good"})
    assert not {"auto_map", "custom_pipelines"} & set(config)
    texts = [FIRST, "[SEP] is text", LONG]
    name, found = elsewhere(PIPELINE, folder, texts)
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


# Runs on pairs, exported as classes of transformers, are CrossEncoders of sentence-transformers with equal scores


READ_TOGETHER = [(FIRST, SECOND), (LONG, FIRST), (SECOND, "[SEP] is text"), ("", "a"), (LONG * 3, "short")]
# As the page has it: CrossEncoder applies a sigmoid to single scores, so the logits are asked for.
CROSS_ENCODER = (
    WITHOUT_ATTENTUNE
    + """
import json
import torch
from sentence_transformers import CrossEncoder

def scores(folder, pairs):
    return CrossEncoder(folder, device="cpu").predict(pairs, activation_fn=torch.nn.Identity()).tolist()

print(json.dumps([scores(*asked) for asked in json.loads(sys.argv[2])]))
"""
)


@pytest.mark.integration
def test_a_cross_encoder_scores_as_the_run(tiny, tmp_path):
    asked, wanted = [], {}
    for family, pooler, space in (
        ("bert", "fresh", TWO),
        ("bert", "fresh", SCORES),
        ("roberta", "fresh", THREE),
        ("deberta-v2", "none", TWO),
    ):
        name, head = f"{family}-{space.task_type}", with_head(pooler=pooler)
        run = save_run(tiny(family), tmp_path / f"{name}-run", settings=head, label_space=space, is_pair=True)
        export_for_transformers(run, tmp_path / name, code="stock")
        # DeBERTa's tokenizer, as transformers loads it, takes a special token that a text spells for one.
        pairs = [pair for pair in READ_TOGETHER if family != "deberta-v2" or "[SEP]" not in pair[1]]
        asked.append((str(tmp_path / name), pairs))
        wanted[name] = predict_rows(Predictor.load(run), rows_of(*zip(*pairs, strict=True)), precision="fp32")
    for (name, logits), found in zip(wanted.items(), elsewhere(CROSS_ENCODER, tmp_path, asked), strict=True):
        assert np.reshape(found, logits.shape) == pytest.approx(logits, abs=1e-4), name
        assert logits.std(axis=0).min() > 1e-2, "the pairs differ"


# Run folders with the model's code, loaded where Attentune cannot be imported


FILMS = ["The movie was not unwatchable.", "Birds!", "It is simply long, and nobody knows why."]
PAIRS = ["Nobody plays the guitar.", "Some birds can fly.", "It is neither funny nor sad."]
REMOTE = (
    WITHOUT_ATTENTUNE
    + """
import json
from transformers import pipeline
asked = pipeline("text-classification", model=sys.argv[1], trust_remote_code=True)
print(json.dumps(asked(json.loads(sys.argv[2]), top_k=None, truncation=True)))
"""
)


def run_of(folder: Path, encoder: Path, preset: str, *, is_pair: bool = False, space: LabelSpace = TWO) -> Path:
    """An untrained run of a preset."""
    problems: list[str] = []
    settings = parse_section(ModelConfig, load_preset(preset)["model"], "model", problems)
    model, tokenizer = build(encoder, settings=settings, is_pair=is_pair, label_space=space, max_length=48)
    folder.mkdir(parents=True)
    save_model(model, tokenizer, folder)
    (folder / "config.yaml").write_text(f"preset: {preset}\ntraining: {{use_cpu: true, precision: fp32}}\n")
    return folder


def rows_elsewhere(folder: Path, texts: list[object], cache: Path) -> list[list[dict[str, Any]]]:
    """What a pipeline in a process without Attentune says of each text."""
    return elsewhere(REMOTE, folder, texts, HF_MODULES_CACHE=str(cache))


def asked_elsewhere(folder: Path, texts: list[object], cache: Path) -> list[dict[str, float]]:
    """The same as scores by label."""
    return [{entry["label"]: entry["score"] for entry in row} for row in rows_elsewhere(folder, texts, cache)]


@pytest.mark.integration
def test_a_pipeline_without_attentune_says_what_the_run_says(tiny: Tiny, tmp_path: Path, attentune_command) -> None:
    run = run_of(tmp_path / "run", tiny("bert"), "ssa-hybrid")
    out, _ = attentune_command.done("export", run, "--format", "transformers", "--output_dir", tmp_path / "hub")
    assert "loads with trust_remote_code=True" in out
    files = {path.name for path in (tmp_path / "hub").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "modeling_attentune.py"} <= files
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["auto_map"] == AUTO_MAP
    shares = asked_elsewhere(tmp_path / "hub", FILMS, tmp_path / "cache")
    for found, wanted in zip(shares, attentune.predict(run, FILMS), strict=True):
        assert found == pytest.approx(wanted["probabilities"], abs=1e-5)
    # With Attentune it is a run folder as any other, and transformers takes the installed class.
    here = attentune.predict(tmp_path / "hub", FILMS)
    assert [row["prediction"] for row in here] == [row["prediction"] for row in attentune.predict(run, FILMS)]
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "hub")
    assert type(model) is attentune.AttentuneForSequenceClassification


@pytest.mark.integration
@pytest.mark.parametrize(
    "space", [TWO, LabelSpace("multi_label", ("a", "b", "c"))], ids=["two classes", "several labels"]
)
def test_a_pipeline_without_attentune_obeys_thresholds(tiny, tmp_path, attentune_command, space):
    run = run_of(tmp_path / "run", tiny("bert"), "ssa-hybrid", space=space)
    shares = [list(row["probabilities"].values()) for row in attentune.predict(run, FILMS)]
    middles = [(min(own) + max(own)) / 2 for own in zip(*shares, strict=True)]
    if space is TWO:  # between two rows on one side of a half, so that an answer turns
        low, middle, high = sorted(good for _, good in shares)
        middles[1] = (middle + high) / 2 if middle >= 0.5 else (low + middle) / 2
    file = run / "config.json"
    config = json.loads(file.read_text()) | {"thresholds": middles if space is not TWO else middles[1:]}
    file.write_text(json.dumps(config))
    out, _ = attentune_command.done("export", run, "--format", "transformers", "--output_dir", tmp_path / "hub")
    assert "the folder has a pipeline that predicts like the run" in out
    found = rows_elsewhere(tmp_path / "hub", FILMS, tmp_path / "cache")
    expected = [row["prediction"] for row in attentune.predict(run, FILMS)]
    if space is TWO:
        assert [row[0]["label"] for row in found] == expected
        assert any(row[0]["score"] < row[1]["score"] for row in found), "a threshold turned an answer"
    else:
        assert [{part["label"] for part in row if part["predicted"]} for row in found] == [set(row) for row in expected]
    assert len({str(row) for row in expected}) > 1
    # The run itself is as it was, and the folder loads here too.
    assert "custom_pipelines" not in json.loads(file.read_text())
    assert [row["prediction"] for row in attentune.predict(tmp_path / "hub", FILMS)] == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "preset", "is_pair"),
    [
        ("roberta", "sesame-weighted", False),
        ("deberta-v2", "blur-value", False),
        ("modernbert", "ssa-hybrid", True),
        ("distilbert", "task-attention", True),
        ("albert", "bi-encoder-mean", True),
        ("bert", "bi-encoder-cosine", True),
        ("roberta", "bi-encoder-concat", True),
        ("mpnet", "blur-bert", False),
    ],
)
def test_presets_and_families(family: str, preset: str, is_pair: bool, tiny: Tiny, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", tiny(family), preset, is_pair=is_pair)
    made = export_for_transformers(run, tmp_path / "hub")
    assert made.max_difference <= 1e-5
    rows: list[object] = FILMS
    if is_pair:
        rows = [{"text": text, "text_pair": pair} for text, pair in zip(FILMS, PAIRS, strict=True)]
    shares = asked_elsewhere(made.folder, rows, tmp_path / "cache")
    for found, wanted in zip(shares, attentune.predict(run, FILMS, PAIRS if is_pair else None), strict=True):
        assert found == pytest.approx(wanted["probabilities"], abs=1e-5)


def test_the_code_is_whole_and_flat() -> None:
    files = code_files()
    assert {"modeling_attentune.py", "configuration_attentune.py", "attentune_nn_blur.py"} <= set(files)
    for name, text in files.items():
        compile(text, name, "exec")
        assert "from attentune" not in text
        assert ".register(" not in text
        for line in text.splitlines():
            if line.startswith("from ."):
                assert f"{line.split()[1][1:]}.py" in files
    assert not any(name in files for name in ("attentune_models_build.py", "attentune_config.py"))


@pytest.mark.integration
def test_what_cannot_be_written_is_said(tiny: Tiny, tmp_path: Path, attentune_command, monkeypatch) -> None:
    run = run_of(tmp_path / "run", tiny("bert"), "bert")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        export_for_transformers(run, run)
    status, _, err = attentune_command(
        "export", run, "--format", "transformers", "--output_dir", tmp_path / "x", "--quantize", "int8"
    )
    assert (status, "--quantize: goes with --format onnx" in err) == (2, True)
    saved = Predictor.load(run)
    monkeypatch.setattr(
        "attentune.integrations.transformers.code_files", lambda: {"modeling_attentune.py": "raise ValueError('no')"}
    )
    with pytest.raises(ExportError, match="could not be loaded without Attentune"):
        export_for_transformers(saved, tmp_path / "y", code="remote")
    assert not (tmp_path / "y").exists()
    assert torch.is_grad_enabled()
