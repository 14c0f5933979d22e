"""Writing a model into a folder, and loading it again."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoTokenizer

from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError
from attentune.io.files import MANIFEST, read_json, verify_manifest, write_text
from attentune.models.configuration import AttentuneConfig, check_values
from attentune.models.hub import Tokenizer, loading, prepare_tokenizer, quiet
from attentune.models.inspection import check_size, problem_in
from attentune.models.modeling import AttentuneForSequenceClassification

_MEND = "Train it again, or use another copy."


def load_model(folder: str | Path) -> tuple[AttentuneForSequenceClassification, Tokenizer]:
    """A saved model in evaluation mode, and its tokenizer, from a run folder or checkpoint.

    Raises:
        CheckpointError: there is no saved model of ours in the folder.
    """
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
        with torch.device("meta"):
            check_size(AttentuneForSequenceClassification(config), path)
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


def check_undamaged(folder: Path) -> None:
    """See to it that a checkpoint is as it was written. Folders without a manifest pass.

    Raises:
        CheckpointError: with what is wrong.
    """
    problem = verify_manifest(folder) if (folder / MANIFEST).is_file() else None
    if problem is not None:
        raise CheckpointError(
            f"{folder}: this checkpoint is damaged: {problem}. Use another checkpoint, or another copy of it."
        )


def save_model(model: AttentuneForSequenceClassification, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights (safetensors only), configuration and tokenizer into an existing folder.

    The tokenizer is written so that who loads it by itself gets our tokens: as long, as many segments, text as text.
    """
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8")) | {
        "model_max_length": _longest_row(model.config, tokenizer),
        "model_input_names": tokenizer.model_input_names,
        "padding_side": "right",
        "truncation_side": "right",
        "split_special_tokens": True,
    }
    write_text(file, json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    # safetensors makes files that only their owner can read; weights are as public as the rest of the folder.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)


def _longest_row(config: AttentuneConfig, tokenizer: Tokenizer) -> int:
    """Where a row is cut, in tokens; of texts that are read apart where neither is cut that is not too long itself."""
    if not config.is_bi_encoder:
        return config.max_seq_length
    ordinary = config.max_seq_length - tokenizer.num_special_tokens_to_add(pair=False)
    return 2 * ordinary + tokenizer.num_special_tokens_to_add(pair=True)


def label_space_of(config: AttentuneConfig) -> LabelSpace:
    """What a saved model predicts."""
    if config.task_type == "regression":
        return LabelSpace("regression")
    names = tuple(config.id2label[index] for index in range(config.num_labels))
    thresholds = None if config.thresholds is None else tuple(config.thresholds)
    return LabelSpace(config.task_type, names, config.ordinal_prediction, thresholds)


def model_type(folder: Path) -> str | None:
    """What config.json says that the folder holds; None where it cannot be told."""
    try:
        return read_json(folder / "config.json").get("model_type")
    except (OSError, ValueError, AttributeError):
        return None
