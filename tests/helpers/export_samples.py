"""Saves untrained runs with perturbed weights, and runs the code of the documentation on export."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from attentune.models.saving import save_model
from helpers.tiny_models import build

PAGE = Path(__file__).resolve().parents[2] / "docs" / "exporting.md"


def save_run(checkpoint: Path, folder: Path, **options: Any) -> Path:
    """Save a model from `tiny_models.build`, without the settings of a run; return its folder."""
    model, tokenizer = build(checkpoint, **options)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.startswith("encoder."):
                weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    folder.mkdir(parents=True)
    save_model(model, tokenizer, folder)
    return folder


def blocks() -> list[str]:
    """Return the Python blocks of the page from the one with onnxruntime on, in order."""
    found = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return found[next(place for place, text in enumerate(found) if "onnxruntime" in text) :]


def without_torch(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process that cannot import PyTorch, transformers or Attentune."""
    barred = "import sys\nfor name in ('torch', 'transformers', 'attentune'):\n    sys.modules[name] = None\n"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", barred + script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
