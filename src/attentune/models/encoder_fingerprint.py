"""An encoder by its content, so that one which was changed in its place is not taken for the one that was there."""

from __future__ import annotations

import hashlib
from pathlib import Path

from attentune.config import ModelConfig
from attentune.io.files import sha256_of
from attentune.models.build import resolve_encoder
from attentune.models.hub import quiet
from attentune.models.warm_start import encoder_config_of

_NAMES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
)
_PATTERNS = ("model*.safetensors", "*.model", "merges.txt")


def encoder_fingerprint(settings: ModelConfig) -> str:
    """A SHA-256 over the files of an encoder in a folder; the commit of one on the hub, "" where that is not known.

    Args:
        settings: the model section of a configuration, whose encoder can be loaded.
    """
    source = resolve_encoder(settings.name_or_path)
    folder = Path(source)
    if not folder.is_dir():
        with quiet():
            config = encoder_config_of(source, revision=settings.revision, trust_remote_code=settings.trust_remote_code)
        return str(getattr(config, "_commit_hash", None) or "")
    found = {folder / name for name in _NAMES} | {path for pattern in _PATTERNS for path in folder.glob(pattern)}
    digest = hashlib.sha256()
    for path in sorted(path for path in found if path.is_file()):
        digest.update(f"{path.name} {sha256_of(path)}\n".encode())
    return digest.hexdigest()
