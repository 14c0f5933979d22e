"""Encoders like the embedded one, of other depths, with random weights."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from transformers import AutoConfig, AutoModel, AutoTokenizer

from attentune.models.build import resolve_encoder


@functools.cache
def random_encoder(layers: int) -> Path:
    """The folder of one with so many layers, for as long as this process lives."""
    folder = Path(tempfile.mkdtemp(prefix="attentune-encoder-"))
    source = resolve_encoder("embedded")
    config = AutoConfig.from_pretrained(source, num_hidden_layers=layers)
    AutoModel.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
