"""Saves a model to a folder and loads it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError
from attentune.io.files import MANIFEST, read_json, verify_manifest, write_text
from attentune.models.configuration import AttentuneConfig, check_values
from attentune.models.inspection import check_size, problem_in
from attentune.models.loading import Tokenizer, loading, prepare_tokenizer, quiet
from attentune.models.modeling import AttentuneForSequenceClassification

_MEND = "Train it again, or use another copy."


def load_model(folder: str | Path) -> tuple[AttentuneForSequenceClassification, Tokenizer]:
    """Load a saved model, in evaluation mode, and its tokenizer from a run folder or checkpoint."""
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"{path}: holds no config.json, expected the folder of a finished run (attentune train --output_dir ...)."
        )
    if model_type(path) not in (AttentuneConfig.model_type, None):
        raise CheckpointError(
            f"{path}: holds a plain {model_type(path)} encoder, expected the folder of a finished run. Train one on"
            f" it: attentune train --model_name_or_path {path} --output_dir ..."
        )
    check_undamaged(path)
    if not (path / "tokenizer.json").is_file():
        raise CheckpointError(f"{path}: holds no tokenizer.json; use a whole copy of the run folder, or train again.")
    problem = problem_in(path)
    if problem is not None:
        raise CheckpointError(f"{path}: {problem}")
    with loading(lambda reason: CheckpointError(f"{path}: no model of Attentune could be loaded: {reason} {_MEND}")):
        config = AttentuneConfig.from_pretrained(path)
        check_values(config)
        with torch.device("meta"), _no_values_on_meta():
            check_size(AttentuneForSequenceClassification(config), path)
        with _no_values_on_meta():
            model, info = AttentuneForSequenceClassification.from_pretrained(
                path, output_loading_info=True, use_safetensors=True, local_files_only=True, dtype=torch.float32
            )
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    broken = sorted(str(key) for kind in ("missing", "mismatched", "unexpected") for key in info[f"{kind}_keys"])
    if broken:
        raise CheckpointError(
            f"{path}: the saved weights and config.json do not fit together (see {', '.join(broken[:3])}); train again"
            " or use another copy."
        )
    return model.eval(), prepare_tokenizer(tokenizer, model.config.encoder_config)


@contextlib.contextmanager
def _no_values_on_meta() -> Iterator[None]:
    """Draw no random values for tensors on the meta device, which have none: PyTorch would import sympy to do so."""
    names = [name for name in dir(torch.nn.init) if name.endswith(("normal_", "uniform_"))]
    originals = {name: getattr(torch.nn.init, name) for name in names if not name.startswith("_")}

    def without_meta(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def drawn(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            return tensor if tensor.is_meta else draw(tensor, *args, **kwargs)

        return drawn

    try:
        for name, draw in originals.items():
            setattr(torch.nn.init, name, without_meta(draw))
        yield
    finally:
        for name, draw in originals.items():
            setattr(torch.nn.init, name, draw)


def check_undamaged(folder: Path) -> None:
    """Verify a checkpoint against its manifest. Folders without a manifest pass."""
    problem = verify_manifest(folder) if (folder / MANIFEST).is_file() else None
    if problem is not None:
        raise CheckpointError(
            f"{folder}: this checkpoint is damaged: {problem}. Use another checkpoint, or another copy of it."
        )


def save_model(model: AttentuneForSequenceClassification, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights (safetensors only), configuration and tokenizer into an existing folder.

    The tokenizer's settings are saved so that it yields the same tokens when it is loaded with transformers alone.
    """
    with quiet():
        model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder, longest=_longest_row(model.config, tokenizer))
    # safetensors creates files that only their owner can read; use the permissions of the other files.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, longest: int) -> None:
    """Write a tokenizer into an existing folder, to be loaded with transformers alone."""
    with quiet():
        tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8")) | {
        "model_max_length": longest,
        "model_input_names": tokenizer.model_input_names,
        "padding_side": "right",
        "truncation_side": "right",
        "split_special_tokens": True,
    }
    write_text(file, json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def _longest_row(config: AttentuneConfig, tokenizer: Tokenizer) -> int:
    """Return the maximum length of a row in tokens; for a bi-encoder that of two texts of maximum length."""
    if not config.is_bi_encoder:
        return config.max_seq_length
    content = config.max_seq_length - tokenizer.num_special_tokens_to_add(pair=False)
    return 2 * content + tokenizer.num_special_tokens_to_add(pair=True)


def label_space_of(config: AttentuneConfig) -> LabelSpace:
    """Return the label space of a saved model."""
    if config.task_type == "regression":
        return LabelSpace("regression")
    names = tuple(config.id2label[index] for index in range(config.num_labels))
    thresholds = None if config.thresholds is None else tuple(config.thresholds)
    return LabelSpace(config.task_type, names, config.ordinal_prediction, thresholds)


def model_type(folder: Path) -> str | None:
    """Read `model_type` from a folder's config.json; None if that fails."""
    try:
        return read_json(folder / "config.json").get("model_type")
    except (OSError, ValueError, AttributeError):
        return None
