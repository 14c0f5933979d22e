"""Loads and saves models, tokenizers and attribution heads, and refuses folders that must not be read.

Refused are contents that could make transformers or its dependencies run code, read files outside of the folder,
download something, or exhaust the memory (`problem_in`).
"""

import contextlib
import hashlib
import json
import math
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoTokenizer, PreTrainedConfig
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
from transformers.utils import logging as hf_logging

from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError, UnsupportedEncoderError
from attentune.io.files import MANIFEST, read_json, verify_manifest, write_text, written_together
from attentune.models.configuration import AttentuneConfig, check_values
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.nn.attribution_head import AttributionHead
from attentune.results import to_json

__all__ = ["Tokenizer"]

# Models.


def load_model(folder: str | Path) -> tuple[AttentuneForSequenceClassification, Tokenizer]:
    """Load a saved model, in evaluation mode, and its tokenizer from a run folder or checkpoint."""
    path = Path(folder)
    refusal = _why_no_run(path)
    if refusal is None:
        check_undamaged(path)
        refusal = problem_in(path)
    if refusal is not None:
        raise CheckpointError(f"{path}: {refusal}")
    with loading(
        lambda reason: CheckpointError(
            f"{path}: no model of Attentune could be loaded: {reason} Train it again, or use another copy."
        )
    ):
        model, info = load_weights(path, AttentuneConfig.from_pretrained(path))
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    broken = sorted(str(key) for kind in ("missing", "mismatched", "unexpected") for key in info[f"{kind}_keys"])
    if broken:
        raise CheckpointError(
            f"{path}: the saved weights and config.json do not fit together (see {', '.join(broken[:3])}); train again"
            " or use another copy."
        )
    return model.eval(), prepare_tokenizer(tokenizer, model.config.encoder_config)


def load_weights(folder: Path, config: AttentuneConfig) -> tuple[AttentuneForSequenceClassification, dict[str, Any]]:
    """Load the weights of a saved model with this configuration, once it is checked; also return the loading report."""
    check_values(config)
    with torch.device("meta"):
        check_size(AttentuneForSequenceClassification(config), folder)
    return AttentuneForSequenceClassification.from_pretrained(
        folder,
        config=config,
        output_loading_info=True,
        use_safetensors=True,
        local_files_only=True,
        dtype=torch.float32,
    )


def _why_no_run(path: Path) -> str | None:
    """Return why this is not the folder of a finished run; None if it is."""
    if not (path / "config.json").is_file():
        return "holds no config.json, expected the folder of a finished run (attentune train --output_dir ...)."
    kind = model_type(path)
    if kind not in (AttentuneConfig.model_type, None):
        return (
            f"holds a plain {kind} encoder, expected the folder of a finished run. Train one on it: attentune train"
            f" --model_name_or_path {path} --output_dir ..."
        )
    if not (path / "tokenizer.json").is_file():
        return "holds no tokenizer.json; use a whole copy of the run folder, or train again."
    return None


def check_undamaged(folder: Path) -> None:
    """Verify a checkpoint against its manifest. Folders without a manifest pass."""
    problem = verify_manifest(folder) if (folder / MANIFEST).is_file() else None
    if problem is not None:
        raise CheckpointError(
            f"{folder}: this checkpoint is damaged: {problem}. Use another checkpoint, or another copy of it."
        )


def save_model(model: AttentuneForSequenceClassification, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights, configuration and tokenizer into an existing folder."""
    with quiet():
        model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder, longest=model.config.max_seq_length)
    # safetensors creates files that only their owner can read; use the permissions of the other files.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, longest: int) -> None:
    """Write a tokenizer into an existing folder, with settings that give the same tokens with transformers alone."""
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


def label_space_of(config: AttentuneConfig) -> LabelSpace:
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


# What libraries raise and print.


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and loading reports; our own checks report problems."""
    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()


@contextlib.contextmanager
def loading(error_of: Callable[[str], Exception]) -> Iterator[None]:
    """Convert any exception that libraries raise while they load untrusted files."""
    with quiet():
        try:
            yield
        except BaseException as error:
            # A panic in the Rust code of tokenizers is not an Exception.
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise error_of(first_line(error)) from error
            raise


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message as a sentence."""
    lines = str(error).strip()[:1000].splitlines() or [type(error).__name__]
    message = f"there is no {lines[0]}" if isinstance(error, KeyError) else lines[0]
    return message if message.endswith("?") else message.rstrip(".:") + "."


# Tokenizers and encoders.


def prepare_tokenizer(tokenizer: Tokenizer, encoder_config: PreTrainedConfig) -> Tokenizer:
    """Configure a loaded tokenizer: pad and truncate on the right, no special tokens from text, segment ids."""
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    keep_text_as_text(tokenizer)
    ask_for_segments(tokenizer, encoder_config)
    return tokenizer


def keep_text_as_text(tokenizer: Tokenizer) -> None:
    """Make the tokenizer encode "[MASK] </s>" as plain characters. It is not saved: call this after every load."""
    tokenizer.split_special_tokens = True
    backend = tokenizer.backend_tokenizer
    if type(backend.model).__name__ != "Unigram":
        return
    # The vocabularies of ALBERT, DeBERTa-v2 and XLM-R have the special tokens as pieces too: they are split first.
    special = [token for token in tokenizer.all_special_tokens if len(token) > 1]
    parts = "|".join(f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in special)
    split = Split(Regex(f"▁?(?:{parts})"), "isolated")
    backend.pre_tokenizer = split if backend.pre_tokenizer is None else Sequence([backend.pre_tokenizer, split])


def ask_for_segments(tokenizer: Tokenizer, config: PreTrainedConfig) -> None:
    """Make the tokenizer return token type ids if the encoder has segment embeddings."""
    # ALBERT's tokenizer omits them by default, so that the encoder could not tell the two texts of a pair.
    if (getattr(config, "type_vocab_size", None) or 0) > 1 and "token_type_ids" not in tokenizer.model_input_names:
        tokenizer.model_input_names = [*tokenizer.model_input_names, "token_type_ids"]


def special_token_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of start, end, separator and padding tokens; mask and unknown tokens stand for words."""
    kinds = ("cls", "sep", "bos", "eos", "pad")
    ids = {getattr(tokenizer, f"{kind}_token_id", None) for kind in kinds}
    return sorted(int(i) for i in ids - {None, tokenizer.mask_token_id, tokenizer.unk_token_id} if i is not None)


def check_is_encoder(name: str, config: PreTrainedConfig, tokenizer: Tokenizer) -> None:
    kind = config.model_type
    causal = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    missing = [kind for kind in ("cls", "pad", "mask") if getattr(tokenizer, f"{kind}_token_id") is None]
    problem = None
    if causal or getattr(config, "is_encoder_decoder", False) or getattr(config, "is_decoder", False):
        problem = f"is a {kind} model with a decoder, expected an encoder."
    elif not tokenizer.is_fast:
        problem = f"its tokenizer ({type(tokenizer).__name__}) has no fast version, expected a tokenizer.json."
    # If its files are missing, transformers creates a tokenizer with the special tokens and little else.
    elif len(tokenizer) < len(tokenizer.all_special_ids) + 8:
        problem = "its tokenizer has no vocabulary; are tokenizer.json or the vocabulary's files missing?"
    elif missing:
        problem = f"its tokenizer has no {', '.join(missing)} token, expected those of a masked language model."
    if problem is not None:
        raise UnsupportedEncoderError(
            f"{name}: {problem} Choose an encoder such as embedded, bert-base-uncased, roberta-base or"
            " answerdotai/ModernBERT-base."
        )


def readable_positions(encoder: nn.Module) -> int | None:
    """Return the maximum length that the encoder's position embeddings allow; None if it is not known."""
    positions = getattr(encoder.config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    first = getattr(table, "padding_idx", None)  # RoBERTa and its relatives count from the padding id + 1
    return positions if first is None else positions - first - 1


def pooler_dense(encoder: nn.Module) -> nn.Linear | None:
    """Return the dense layer of the encoder's pooler (`pooler.dense` in BERT, `pooler` in ALBERT); None without one."""
    pooler = getattr(encoder, "pooler", None)
    dense = getattr(pooler, "dense", pooler)
    return dense if isinstance(dense, nn.Linear) else None


def is_pooler_weight(name: str) -> bool:
    return "pooler" in name.split(".")


# Folders that must not be read.

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".msgpack")
_SETTINGS_BYTES, _TOKENIZER_BYTES = 1 << 23, 1 << 28
# The largest known vocabulary has a million entries, the deepest encoder 48 layers.
_LARGEST, _MOST_LAYERS = 1 << 24, 1000
# Weights that a checkpoint may lack, such as a pooler's.
_SLACK = 1 << 24
# What transformers reads.
_SETTINGS = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_WORDS = ("tokenizer.json", "vocab.json")
_ATTENTIONS = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
CONVERT = (
    "It holds weights as a pickle, which can run code when it is read; only safetensors are read. Convert it in a"
    " sandbox (docs/reliability.md, Pickled weights), or take a copy with model.safetensors."
)


def problem_in(folder: Path, *, trust_remote_code: bool = False) -> str | None:
    """Return why this folder must not be loaded, with a remedy; None if it may."""
    try:
        for entry in sorted(folder.iterdir()):
            problem = _problem_of_entry(entry, folder)
            if problem is not None:
                return f"{entry.name} {problem}"
        for file in sorted(folder.glob("*.json")):
            problem = _problem_of_json(file, trust_remote_code) if file.is_file() else None
            if problem is not None:
                return f"{file.name} {problem}"
        return _problem_of_weights(folder)
    except (OSError, RuntimeError) as error:  # resolve() raises RuntimeError for a link to itself
        reason = error.strerror if isinstance(error, OSError) else None
        return f"cannot be read ({reason or error}). Change its rights, or use another copy."


def problem_in_settings(values: Any, *, trust_remote_code: bool = False, with_numbers: bool = True) -> str | None:
    """Return why these settings of a model or tokenizer must not be used; None if they may."""
    for name, value in _flat(values):
        key = name.split(".")[-1]
        if key == "auto_map" and not trust_remote_code and not _is_known(values, name):
            return (
                "names code that comes with the model (auto_map). If you trust whoever wrote it, add"
                " --trust_remote_code; else take another model."
            )
        if key in ("quantization_config", "transformers_weights", "gguf_file", "tokenizer_object"):
            return f"sets {key}, which is not read. Take the line out, or use a plain copy of the model."
        if key.endswith(("_file", "_files")) and value:
            return f"names a file of its own ({name}), expected the usual names in its folder. Take the line out."
        if "attn_implementation" in key and isinstance(value, str) and value not in _ATTENTIONS:
            return (
                f"asks for the attention {value[:60]!r}, expected one of {', '.join(_ATTENTIONS)}. Take the line out."
            )
        if with_numbers and isinstance(value, int) and abs(value) > (_MOST_LAYERS if "layers" in key else _LARGEST):
            return f"sets {name} to more than any encoder has. Correct the number, or use another copy."
    return None


def _is_known(values: Any, name: str) -> bool:
    """Whether transformers has this model type built in and therefore ignores the code that comes with it."""
    for section in name.split(".")[:-1]:
        values = values.get(section) if isinstance(values, Mapping) else None
    kind = values.get("model_type") if isinstance(values, Mapping) else None
    return isinstance(kind, str) and kind in CONFIG_MAPPING


def weights_in(folder: Path) -> dict[str, tuple[int, ...]]:
    """Read names and shapes of the folder's weights from the headers of its safetensors files."""
    files = [folder / WEIGHTS]
    if not files[0].exists() and not (folder / INDEX).exists():
        raise ValueError(f"there is no {WEIGHTS}")
    if not files[0].exists():
        files = [folder / name for name in sorted(set(read_json(folder / INDEX)["weight_map"].values()))]
    return {name: shape for file in files for name, shape in _shapes(file).items()}


def check_size(shell: nn.Module, folder: Path) -> None:
    """Check that a model on the meta device, built from its settings, is not larger than its saved weights."""
    wanted = sum(weight.numel() for weight in shell.parameters())
    there = sum(math.prod(shape) for shape in weights_in(folder).values())
    if wanted > there + _SLACK:
        raise ValueError(f"config.json describes a model of {wanted} weights, but its files hold {there}")


def _problem_of_entry(entry: Path, folder: Path) -> str | None:
    if entry.is_symlink() and not entry.is_dir():
        target = entry.resolve()
        homes = [folder.resolve()]
        if folder.resolve().parent.name == "snapshots":  # the hub's cache keeps files outside of the snapshots
            homes.append(folder.resolve().parent.parent / "blobs")
        if not any(target.is_relative_to(home) for home in homes):
            return "is a link out of the folder. Put the file itself there (cp -L)."
        if not target.exists():
            return "is a link to nothing. Use a whole copy of the folder."
    mode = entry.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return "is a pipe or a device, expected a file. Use another copy of the folder."
    return None


def _problem_of_json(file: Path, trust_remote_code: bool) -> str | None:
    if file.name == "adapter_config.json":
        return "makes it an adapter of another model. Merge it into that model first, and save both."
    if file.name in (*_SETTINGS, *_WORDS) and file.stat().st_size > (
        _TOKENIZER_BYTES if file.name in _WORDS else _SETTINGS_BYTES
    ):
        return "is larger than any that is known. Use another copy of the folder."
    if file.name not in ("config.json", "tokenizer_config.json"):
        return None
    try:
        content = read_json(file)
    except ValueError as error:
        return f"cannot be read ({error}). Use another copy of the folder."
    if not isinstance(content, Mapping):
        return f"holds a {type(content).__name__}, expected an object. Use another copy of the folder."
    with_numbers = file.name == "config.json"
    return problem_in_settings(content, trust_remote_code=trust_remote_code, with_numbers=with_numbers)


def _problem_of_weights(folder: Path) -> str | None:
    has_file, has_index = (folder / WEIGHTS).exists(), (folder / INDEX).exists()
    if not has_file and not has_index:
        if any(entry.suffix.lower() in _PICKLES for entry in folder.iterdir()):
            return f"there is no {WEIGHTS}. {CONVERT}"
        return None
    if not has_file:
        try:
            names = set(read_json(folder / INDEX)["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return f"{INDEX} cannot be read ({error}). Use another copy of the folder."
        for name in names:
            if not isinstance(name, str) or PurePosixPath(name).name != name or not name.endswith(".safetensors"):
                return f"{INDEX} names {str(name)[:60]!r}, expected safetensors files in this folder. {CONVERT}"
    try:
        weights_in(folder)
    except (ValueError, KeyError, TypeError, OSError) as error:
        return f"holds weights that are no safetensors ({error}). Use another copy of the folder."
    return None


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    try:
        # safetensors checks the header's size, types and shapes, and that tensors neither overlap nor leave gaps.
        with safe_open(file, framework="numpy") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OverflowError) as error:
        raise ValueError(f"{file.name}: {' '.join(str(error).split())[:300]}") from error


def _flat(values: Any) -> Iterator[tuple[str, Any]]:
    """Yield every name and value, nested ones with dotted names."""
    left: list[tuple[str, Any]] = [("", values)]
    while left:
        path, value = left.pop()
        parts = value.items() if isinstance(value, Mapping) else ()
        for key, part in parts:
            name = f"{path}.{key}" if path else str(key)
            yield name, part
            left.append((name, part))
        if isinstance(value, list):
            left += [(path, part) for part in value]


# Attribution heads, fitted to a run.

HEAD_WEIGHTS, HEAD_SETTINGS = "attribution_head.safetensors", "attribution_head.json"
_AGAIN = "Fit it again: attentune explain {folder} --fit"


def save_attribution_head(head: AttributionHead, model: Any, facts: dict[str, Any], folder: Path) -> None:
    settings = {
        "layers": list(head.layers),
        "model": weights_of(model),
        "calibration_temperature": float(model.config.calibration_temperature),
        "fitted": facts,
    }
    with written_together(folder, "attribution_head", last=HEAD_SETTINGS) as target:
        safetensors.torch.save_file(head.state_dict(), target / HEAD_WEIGHTS)
        # safetensors creates files that only their owner can read.
        (target / HEAD_WEIGHTS).chmod((folder / "config.json").stat().st_mode)
        (target / HEAD_SETTINGS).write_text(to_json(settings), encoding="utf-8")


def load_attribution_head(folder: Path, model: Any) -> AttributionHead | None:
    """Load the head of a run folder; None if it has none."""
    if not (folder / HEAD_SETTINGS).is_file():
        return None
    again = _AGAIN.format(folder=folder)
    try:
        settings = read_json(folder / HEAD_SETTINGS)
        head = _head_of(safetensors.torch.load_file(folder / HEAD_WEIGHTS), settings["layers"], model)
        fitted_to, temperature = settings["model"], float(settings["calibration_temperature"])
        head.explained_variance = float(settings["fitted"]["explained_variance"])
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{folder / HEAD_WEIGHTS}: cannot be loaded: {reason} {again}") from error
    if fitted_to != weights_of(model):
        raise CheckpointError(
            f"{folder / HEAD_WEIGHTS}: was fitted to other weights than this folder has, so its scores would explain"
            f" another model. {again}"
        )
    # Calibration after the fit divides the logits, and with them every score.
    for tensor in (head.output.weight.data, head.output.bias.data, head.nothing_MO):
        tensor.mul_(temperature / float(model.config.calibration_temperature))
    return head.fold().eval().to(next(model.parameters()).device)


def outputs_of(space: LabelSpace) -> int:
    """Return how many values a head explains: a score, the log odds of two classes, or of each class and each logit."""
    if space.task_type == "regression":
        return 1
    classes = space.num_labels
    return classes if space.is_multilabel else 1 if classes == 2 else 2 * classes


def _head_of(weights: dict[str, Tensor], layers: list[int], model: Any) -> AttributionHead:
    """Rebuild a head from saved weights; raise if its sizes are not the model's."""
    encoder = model.encoder.config
    sizes = len(weights["norms.0.weight"]), len(weights["output.weight"])
    wanted = encoder.hidden_size, outputs_of(label_space_of(model.config))
    if sizes != wanted or not all(0 <= layer <= encoder.num_hidden_layers for layer in layers):
        raise ValueError(
            f"got hidden size and outputs {sizes} and layers {layers}, expected {wanted} and at most"
            f" {encoder.num_hidden_layers}."
        )
    head = AttributionHead(
        hidden_size=wanted[0],
        layers=layers,
        width=len(weights["dense.weight"]),
        outputs=wanted[1],
        longest=len(weights["nothing_MO"]),
    )
    head.load_state_dict(weights)
    return head


def weights_of(model: nn.Module) -> str:
    """Hash the vectors among a model's weights (biases, norms); training changes all."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.named_parameters()):
        if tensor.ndim == 1:
            digest.update(name.encode() + tensor.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()
