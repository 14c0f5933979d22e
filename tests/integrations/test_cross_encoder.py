"""Runs on pairs, exported as classes of transformers, are CrossEncoders of sentence-transformers with equal scores."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attentune.config import load_config
from attentune.data.dataset import LabelSpace
from attentune.inference.predictor import Predictor, predict_rows
from attentune.integrations.hub import WITHOUT_ATTENTUNE
from attentune.integrations.transformers import export_for_transformers
from helpers.tiny_models import FIRST, LONG, SECOND, TWO, rows_of
from helpers.tiny_runs import save_run

Tiny = Callable[..., Path]
PAIRS = [(FIRST, SECOND), (LONG, FIRST), (SECOND, "[SEP] is text"), ("", "a"), (LONG * 3, "short")]
# As the page has it: CrossEncoder applies a sigmoid to single scores, so the logits are asked for.
SCRIPT = (
    WITHOUT_ATTENTUNE
    + """
import json
import torch
from sentence_transformers import CrossEncoder
model = CrossEncoder(sys.argv[1], device="cpu")
print(json.dumps(model.predict(json.loads(sys.argv[2]), activation_fn=torch.nn.Identity()).tolist()))
"""
)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("family", "pooler", "space"),
    [
        ("bert", "fresh", TWO),
        ("bert", "fresh", LabelSpace("regression")),
        ("roberta", "fresh", LabelSpace("classification", ("a", "b", "c"))),
        ("deberta-v2", "none", TWO),
    ],
)
def test_the_scores_are_those_of_the_run(
    family: str, pooler: str, space: LabelSpace, tiny: Tiny, tmp_path: Path
) -> None:
    settings = load_config(preset="bert").model
    settings = replace(settings, head=replace(settings.head, pooler=pooler))
    run = save_run(tiny(family), tmp_path / "run", settings=settings, label_space=space, is_pair=True)
    export_for_transformers(run, tmp_path / "stock", code="stock")
    # DeBERTa's tokenizer, as transformers loads it, takes a special token that a text spells for one.
    pairs = [pair for pair in PAIRS if family != "deberta-v2" or "[SEP]" not in pair[1]]
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "stock"), json.dumps(pairs)]
    done = subprocess.run(words, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = np.array(json.loads(done.stdout.splitlines()[-1])).reshape(len(pairs), -1)
    firsts, seconds = zip(*pairs, strict=True)
    wanted = predict_rows(Predictor.load(run), rows_of(firsts, seconds), precision="fp32")
    assert found == pytest.approx(wanted, abs=1e-4)
    assert wanted.std(axis=0).min() > 1e-2, "the pairs differ"
