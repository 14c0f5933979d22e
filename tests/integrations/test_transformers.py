"""Run folders with the model's code, loaded where Attentune cannot be imported."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import attentune
from attentune.config import load_preset
from attentune.config.parse import parse_section
from attentune.config.schema import ModelConfig
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError, ExportError
from attentune.inference.predictor import Predictor
from attentune.integrations.transformers import AUTO_MAP, code_files, export_for_transformers
from attentune.models.saving import save_model
from helpers.tiny_models import TWO, build

Tiny = Callable[..., Path]
TEXTS = ["The movie was not unwatchable.", "Birds!", "It is simply long, and nobody knows why."]
PAIRS = ["Nobody plays the guitar.", "Some birds can fly.", "It is neither funny nor sad."]
PIPELINE = """
import json, sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "attentune":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Nothing())
from transformers import pipeline
asked = pipeline("text-classification", model=sys.argv[1], trust_remote_code=True)
print(json.dumps(asked(json.loads(sys.argv[2]), top_k=None, truncation=True)))
"""


def run_of(folder: Path, encoder: Path, preset: str, *, is_pair: bool = False, space: LabelSpace = TWO) -> Path:
    """An untrained run of a preset."""
    problems: list[str] = []
    settings = parse_section(ModelConfig, load_preset(preset)["model"], "model", problems)
    model, tokenizer = build(encoder, settings=settings, is_pair=is_pair, label_space=space, max_length=48)
    folder.mkdir(parents=True)
    save_model(model, tokenizer, folder)
    (folder / "config.yaml").write_text(f"preset: {preset}\ntraining: {{use_cpu: true, precision: fp32}}\n")
    return folder


def asked_elsewhere(folder: Path, texts: list[object], cache: Path) -> list[dict[str, float]]:
    """What a pipeline in a process without Attentune says: scores by label for each text."""
    around = {**os.environ, "HF_MODULES_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-c", PIPELINE, str(folder), json.dumps(texts)]
    done = subprocess.run(words, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [{entry["label"]: entry["score"] for entry in row} for row in json.loads(done.stdout)]


@pytest.mark.integration
def test_a_pipeline_without_attentune_says_what_the_run_says(tiny: Tiny, tmp_path: Path, attentune_command) -> None:
    run = run_of(tmp_path / "run", tiny("bert"), "ssa-hybrid")
    status, out, err = attentune_command("export", run, "--format", "transformers", "--output_dir", tmp_path / "hub")
    assert status == 0, err
    assert "loads with trust_remote_code=True" in out
    files = {path.name for path in (tmp_path / "hub").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "modeling_attentune.py"} <= files
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["auto_map"] == AUTO_MAP
    shares = asked_elsewhere(tmp_path / "hub", TEXTS, tmp_path / "cache")
    for found, wanted in zip(shares, attentune.predict(run, TEXTS), strict=True):
        assert found == pytest.approx(wanted["probabilities"], abs=1e-5)
    # With Attentune it is a run folder as any other, and transformers takes the installed class.
    here = attentune.predict(tmp_path / "hub", TEXTS)
    assert [row["prediction"] for row in here] == [row["prediction"] for row in attentune.predict(run, TEXTS)]
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "hub")
    assert type(model) is attentune.AttentuneForSequenceClassification


@pytest.mark.integration
@pytest.mark.parametrize(
    "space", [TWO, LabelSpace("multi_label", ("a", "b", "c"))], ids=["two classes", "several labels"]
)
def test_a_pipeline_without_attentune_obeys_thresholds(
    tiny: Tiny, tmp_path: Path, attentune_command, space: LabelSpace
) -> None:
    run = run_of(tmp_path / "run", tiny("bert"), "ssa-hybrid", space=space)
    shares = [list(row["probabilities"].values()) for row in attentune.predict(run, TEXTS)]
    middles = [(min(own) + max(own)) / 2 for own in zip(*shares, strict=True)]
    if space is TWO:  # between two rows on one side of a half, so that an answer turns
        low, middle, high = sorted(good for _, good in shares)
        middles[1] = (middle + high) / 2 if middle >= 0.5 else (low + middle) / 2
    file = run / "config.json"
    config = json.loads(file.read_text()) | {"thresholds": middles if space is not TWO else middles[1:]}
    file.write_text(json.dumps(config))
    status, out, err = attentune_command("export", run, "--format", "transformers", "--output_dir", tmp_path / "hub")
    assert status == 0, err
    assert "the folder has a pipeline that predicts like the run" in out
    around = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-c", PIPELINE, str(tmp_path / "hub"), json.dumps(TEXTS)]
    done = subprocess.run(words, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, expected = json.loads(done.stdout), [row["prediction"] for row in attentune.predict(run, TEXTS)]
    if space is TWO:
        assert [row[0]["label"] for row in found] == expected
        assert any(row[0]["score"] < row[1]["score"] for row in found), "a threshold turned an answer"
    else:
        assert [{part["label"] for part in row if part["predicted"]} for row in found] == [set(row) for row in expected]
    assert len({str(row) for row in expected}) > 1
    # The run itself is as it was, and the folder loads here too.
    assert "custom_pipelines" not in json.loads(file.read_text())
    assert [row["prediction"] for row in attentune.predict(tmp_path / "hub", TEXTS)] == expected


@pytest.fixture
def attentune_command(attentune: object) -> object:
    """The fixture `attentune`, under a name that leaves the package its own."""
    return attentune


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "preset", "is_pair"),
    [
        ("roberta", "sesame-weighted", False),
        ("deberta-v2", "blur-value", False),
        ("modernbert", "ssa-hybrid-released", True),
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
    rows: list[object] = TEXTS
    if is_pair:
        rows = [{"text": text, "text_pair": pair} for text, pair in zip(TEXTS, PAIRS, strict=True)]
    shares = asked_elsewhere(made.folder, rows, tmp_path / "cache")
    for found, wanted in zip(shares, attentune.predict(run, TEXTS, PAIRS if is_pair else None), strict=True):
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
    assert (status, "--quantize and --opset: go with --format onnx" in err) == (2, True)
    saved = Predictor.load(run)
    monkeypatch.setattr(
        "attentune.integrations.transformers.code_files", lambda: {"modeling_attentune.py": "raise ValueError('no')"}
    )
    with pytest.raises(ExportError, match="could not be loaded without Attentune"):
        export_for_transformers(saved, tmp_path / "y", code="remote")
    assert not (tmp_path / "y").exists()
    assert torch.is_grad_enabled()
