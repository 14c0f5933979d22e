"""Read checkpoints of the released SSA program: a folder with pytorch_model.bin and its configuration."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoTokenizer, BertTokenizer, PreTrainedConfig

from attentune.config import ModelConfig, to_dict
from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError
from attentune.models.build import row_options
from attentune.models.configuration import AttentuneConfig
from attentune.models.head_settings import settle_head
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.saving import Tokenizer, first_line, prepare_tokenizer, quiet

_PREFIXES = {"bert": "bert.", "roberta": "roberta."}
# A constant buffer with the positions 0, 1, 2, ..., which some versions of the program's library saved.
_IGNORED_BUFFERS = ("embeddings.position_ids",)
_TOKEN_HEAD = "token_gate.token_head"
_PARTS = {
    "token_cls.transform.dense.": f"{_TOKEN_HEAD}.dense.",  # BERT
    "token_cls.transform.LayerNorm.": f"{_TOKEN_HEAD}.norm.",
    "token_cls.dense.": f"{_TOKEN_HEAD}.dense.",  # RoBERTa
    "token_cls.layer_norm.": f"{_TOKEN_HEAD}.norm.",
    "token_cls.decoder.weight": f"{_TOKEN_HEAD}.output.weight",
    "token_cls.bias": f"{_TOKEN_HEAD}.output.bias",
    "seq_cls.classifier.": "classifier.",
    "classifier.dense.": "head.pooler.dense.",  # RoBERTa without SSA
    "classifier.out_proj.": "classifier.",
    "classifier.": "classifier.",
}
_POSITION = re.compile(r"token_cls\.op\.(\d+)\.weight")


@dataclass(frozen=True)
class ReleasedForm:
    family: str  # "bert" or "roberta"
    kind: str  # "hybrid", "co" (co-training) or "plain" (without SSA)
    positions: int | None  # the number of positions, for a token head with separate weights for each position

    @property
    def preset(self) -> str:
        return {"hybrid": "ssa-hybrid-released", "co": "ssa-co-released", "plain": "bert"}[self.kind]


def recognise(names: Sequence[str], source: str) -> ReleasedForm:
    """Infer the architecture of a checkpoint from its weight names."""
    families = [family for family, prefix in _PREFIXES.items() if any(name.startswith(prefix) for name in names)]
    has_tokens = any(name.startswith("token_cls.") for name in names)
    has_attention = any(name.startswith("seq_cls.classifier.") for name in names)
    has_plain = any(name.startswith("classifier.") for name in names)
    if len(families) != 1 or has_attention == has_plain or (has_attention and not has_tokens):
        raise CheckpointError(
            f"{source}: has weights such as {', '.join(names[:3]) or 'none'}, but the released program's have names"
            " that begin with bert. or roberta., and with seq_cls.classifier. or classifier.; is it another program's?"
        )
    numbers = sorted(int(match[1]) for name in names if (match := _POSITION.fullmatch(name)))
    if numbers != list(range(len(numbers))):
        raise CheckpointError(f"{source}: lacks some of the token head's weights token_cls.op.0 to {numbers[-1]}.")
    kind = "hybrid" if has_attention else "co" if has_tokens else "plain"
    return ReleasedForm(families[0], kind, len(numbers) or None)


def our_weights(state: Mapping[str, Tensor], form: ReleasedForm, classes: Sequence[int]) -> dict[str, Tensor]:
    """Convert the weights to Attentune's names and float32."""
    made: dict[str, Tensor] = {}
    pooler, prefix = "head.pooler.dense.", _PREFIXES[form.family]
    has_own_pooler = any(name.startswith("classifier.dense.") for name in state)
    for name, weight in state.items():
        ours = _our_name(name, prefix, pooler, keeps_pooler=not has_own_pooler)
        if ours is not None:
            made[ours] = weight.float().contiguous()
    for name in ("classifier.weight", "classifier.bias"):
        if name in made:
            made[name] = made[name][list(classes)].contiguous()
    if form.positions is not None:
        stacked = [state[f"token_cls.op.{number}.weight"].float() for number in range(form.positions)]
        made[f"{_TOKEN_HEAD}.output.weight"] = torch.stack(stacked)
        made.pop(f"{_TOKEN_HEAD}.output.bias", None)  # the released program never applies it to positions
    return made


def _our_name(name: str, prefix: str, pooler: str, *, keeps_pooler: bool) -> str | None:
    """Return the name of a weight in Attentune; None for a weight without a counterpart."""
    if _POSITION.fullmatch(name):
        return None
    # Weights converted from TensorFlow before 2019 have these names.
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
    if name.startswith(prefix):
        inner = name[len(prefix) :]
        if inner in _IGNORED_BUFFERS:
            return None
        if inner.startswith("pooler.dense."):
            return pooler + inner.removeprefix("pooler.dense.") if keeps_pooler else None
        return f"encoder.{inner}"
    for old, new in _PARTS.items():
        if name.startswith(old):
            return new + name[len(old) :]
    return name


WEIGHTS_FILE = "pytorch_model.bin"
_CONFIG_FILES = ("config.json", "bert_config.json")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")
# Fields of config.json that do not describe the encoder's architecture.
_NOT_SETTINGS = {"model_type", "architectures", "torch_dtype", "dtype", "num_labels", "id2label", "label2id"}


@dataclass(frozen=True)
class ReleasedCheckpoint:
    folder: Path  # the folder of the checkpoint
    form: ReleasedForm  # the architecture, from the weight names
    state: dict[str, Tensor]  # the weights by their names in the checkpoint
    encoder: PreTrainedConfig  # the configuration of the encoder

    @classmethod
    def read(cls, folder: str | Path) -> ReleasedCheckpoint:
        """Read a folder, with PyTorch's weights-only mode for pickled files, which runs no code from them."""
        path = Path(folder)
        state = _read_weights(path)
        form = recognise(list(state), str(path))
        return cls(path, form, state, _read_config(path, form.family))

    @property
    def outputs(self) -> int:
        """The number of classes; 1 for regression."""
        name = next(
            name
            for name in ("seq_cls.classifier.weight", "classifier.out_proj.weight", "classifier.weight")
            if name in self.state
        )
        return len(self.state[name])

    @property
    def has_tokenizer(self) -> bool:
        """Whether the folder has tokenizer files; the released BERT program does not write them."""
        return any((self.folder / name).is_file() for name in _TOKENIZER_FILES)


def _read_weights(folder: Path) -> dict[str, Tensor]:
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        raise CheckpointError(
            f"{folder}: holds no {WEIGHTS_FILE}, expected a folder that the released program wrote, such as"
            " results/RTE/dev_0.66, with that file and config.json."
        )
    try:
        weights = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        # PyTorch's message suggests weights_only=False, which is unsafe for untrusted files.
        raise CheckpointError(
            f"{file}: could not be read as a file of tensors alone. It is torn, or holds other Python objects, which"
            " could run code and are never loaded; get a whole copy of the state dict."
        ) from error
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    ):
        raise CheckpointError(
            f"{file}: holds no state dict, expected tensors by name, as torch.save(state_dict) writes."
        )
    # DataParallel adds this prefix.
    return {name.removeprefix("module."): value for name, value in weights.items()}


def _read_config(folder: Path, family: str) -> PreTrainedConfig:
    file = next((folder / name for name in _CONFIG_FILES if (folder / name).is_file()), None)
    if file is None:
        raise CheckpointError(f"{folder}: holds neither {' nor '.join(_CONFIG_FILES)}; copy the encoder's there.")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return CONFIG_MAPPING[family](**{key: value for key, value in values.items() if key not in _NOT_SETTINGS})
    except Exception as error:  # untrusted values may raise any exception type
        raise CheckpointError(f"{file}: are no settings of a {family} encoder: {first_line(error)}") from error


def load_released_tokenizer(source: str, encoder: PreTrainedConfig, *, lower_case: bool = True) -> Tokenizer:
    path = Path(source)
    file = path if path.suffix == ".txt" else path / "vocab.txt"
    is_plain_vocabulary = path.is_file() or (file.is_file() and not (path / "tokenizer.json").is_file())
    with quiet():
        try:
            if is_plain_vocabulary:
                tokens = file.read_text(encoding="utf-8").splitlines()
                vocabulary = {token: number for number, token in enumerate(tokens)}
                tokenizer = BertTokenizer(vocab=vocabulary, do_lower_case=lower_case)
            else:
                tokenizer = AutoTokenizer.from_pretrained(source, config=encoder)
        except Exception as error:  # untrusted files may raise any exception type
            raise CheckpointError(
                f"{source}: no tokenizer could be loaded: {first_line(error)} Expected the folder or hub name of the"
                " encoder that the checkpoint was trained from, such as bert-base-uncased, or its vocab.txt."
            ) from error
    if len(tokenizer) > encoder.vocab_size or len(tokenizer) < len(tokenizer.all_special_ids) + 8:
        raise CheckpointError(
            f"{source}: its tokenizer knows {len(tokenizer)} tokens, but the checkpoint has embeddings for"
            f" {encoder.vocab_size}; name the one that it was trained with."
        )
    return prepare_tokenizer(tokenizer, encoder)


def build_released(
    checkpoint: ReleasedCheckpoint,
    settings: ModelConfig,
    label_space: LabelSpace,
    tokenizer: Tokenizer,
    *,
    classes: Sequence[int],
    max_length: int,
    is_pair: bool,
) -> AttentuneForSequenceClassification:
    weights = our_weights(checkpoint.state, checkpoint.form, classes)
    has_pooler = "head.pooler.dense.weight" in weights
    config = AttentuneConfig(
        encoder=checkpoint.encoder,
        token_gate=to_dict(settings.token_gate),
        head=settle_head(settings, label_space, checkpoint.encoder, is_pair=is_pair, has_pooler=has_pooler),
        **row_options(label_space, tokenizer, max_length=max_length, is_pair=is_pair),
    )
    model = AttentuneForSequenceClassification(config)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]]
        raise CheckpointError(
            f"{checkpoint.folder}: its weights do not make a {checkpoint.form.family} encoder with its config.json:"
            f" {' '.join(lines[:2])}"
        ) from error
    return model.eval()
