"""`import attentune` stays light, and importing the model class makes transformers know the model."""

import subprocess
import sys

import pytest

LIGHT = """
import sys
import attentune
attentune.load_config(preset="bert")
assert not {"torch", "transformers"} & set(sys.modules)
"""
REGISTERED = """
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.pipelines import PIPELINE_REGISTRY
from attentune import AttentuneForSequenceClassification
from attentune.models.configuration import AttentuneConfig
from attentune.models.pipeline import AttentunePipeline
assert type(AutoConfig.for_model("attentune")) is AttentuneConfig
assert AutoModelForSequenceClassification._model_mapping[AttentuneConfig] is AttentuneForSequenceClassification
assert PIPELINE_REGISTRY.supported_tasks["text-classification"]["impl"] is AttentunePipeline
"""


@pytest.mark.parametrize(
    "code", [pytest.param(LIGHT, id="light"), pytest.param(REGISTERED, id="registered", marks=pytest.mark.integration)]
)
def test_what_an_import_does(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
