"""Exported graphs in transformers.js, with Node and its packages from npm."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import attentune
from attentune.config import load_config
from attentune.data.dataset import LabelSpace
from attentune.integrations.onnx import export_run
from helpers.tiny_models import FIRST, SECOND
from helpers.tiny_runs import save_run

pytestmark = pytest.mark.slow
PACKAGE = "@huggingface/transformers@4"
SCRIPT = """
import { pipeline, env } from "@huggingface/transformers";
env.allowRemoteModels = false;
env.localModelPath = process.argv[2];
const classify = await pipeline("text-classification", process.argv[3], { dtype: process.argv[4] });
console.log(JSON.stringify(await classify(JSON.parse(process.argv[5]), { top_k: null })));
"""
# None is too long: transformers.js cuts the separator off at the end, where other libraries keep it.
TEXTS = [FIRST, SECOND, FIRST + SECOND, "Birds!", "a"]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with transformers.js and the program that uses it."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.fail("no node and npm: install them, or deselect this test", pytrace=False)
    folder = tmp_path_factory.mktemp("node")
    (folder / "classify.mjs").write_text(SCRIPT)
    # Without scripts: that of onnxruntime-node fetches CUDA's libraries from elsewhere.
    subprocess.run([npm, "install", "--ignore-scripts", "--no-audit", PACKAGE], cwd=folder, check=True, timeout=500)
    return folder


def classified(packages: Path, folder: Path, dtype: str) -> list[dict[str, float]]:
    words = ["node", "classify.mjs", f"{folder.parent}/", folder.name, dtype, json.dumps(TEXTS)]
    done = subprocess.run(words, cwd=packages, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [{part["label"]: part["score"] for part in row} for row in json.loads(done.stdout)]


@pytest.mark.parametrize(
    ("family", "preset", "space"),
    [
        ("bert", "ssa-hybrid", LabelSpace("classification", ("bad", "good"))),
        ("roberta", "sesame-weighted", LabelSpace("classification", ("a", "b", "c"))),
        ("deberta-v2", "bert", LabelSpace("classification", ("a", "b", "c"))),
        ("modernbert", "bert-mean", LabelSpace("multi_label", ("a", "b", "c"))),
    ],
)
def test_a_pipeline(family, preset, space, tiny, packages, tmp_path):
    model = load_config(preset=preset).model
    run = save_run(tiny(family), tmp_path / "run", settings=model, label_space=space, max_length=48)
    export_run(run, tmp_path / "served", quantize="int8")
    # Exported weights compute in float32, whatever the processor's default is.
    wanted = [row["probabilities"] for row in attentune.predict(run, TEXTS, precision="fp32")]
    for found, expected in zip(classified(packages, tmp_path / "served", "fp32"), wanted, strict=True):
        assert found == pytest.approx(expected, abs=1e-4)
    for found, expected in zip(classified(packages, tmp_path / "served", "q8"), wanted, strict=True):
        assert found == pytest.approx(expected, abs=0.1)
