"""The baselines by name."""

from __future__ import annotations

from pathlib import Path

from attentune.baselines.base import Baseline, read_baseline_file
from attentune.baselines.frozen import Cosine, FrozenEncoder, FrozenLinear, OnFrozenEncoder, TokenAlignment
from attentune.baselines.majority import Majority
from attentune.baselines.tfidf import TfidfLinear
from attentune.config import ModelConfig
from attentune.config.parse import did_you_mean
from attentune.data.dataset import TaskData
from attentune.errors import CheckpointError, ConfigError

BASELINES: dict[str, type[Baseline]] = {
    kind.name: kind for kind in (Majority, TfidfLinear, FrozenLinear, Cosine, TokenAlignment)
}
# These compare the two texts of a pair.
OF_PAIRS = (Cosine.name, TokenAlignment.name)


def baselines_for(data: TaskData) -> tuple[str, ...]:
    """Return the names of the baselines that fit the rows of a task: some need pairs."""
    return tuple(name for name in BASELINES if name not in OF_PAIRS or data.is_pair)


def make_baseline(
    name: str, *, encoder: ModelConfig, max_length: int, seed: int, frozen: FrozenEncoder | None = None
) -> Baseline:
    """Make a baseline that is not fitted yet.

    Args:
        name: a name in `BASELINES`.
        encoder: names the encoder of those on a frozen encoder; nothing is loaded before it is needed.
        max_length: the maximum length of a text in tokens, for these.
        seed: seeds its random choices.
        frozen: an encoder to share with other baselines, instead of a new one of `encoder`.

    Raises:
        ConfigError: there is no baseline of this name.
    """
    if name not in BASELINES:
        raise ConfigError(
            f"baseline: got {name!r}, expected one of {', '.join(BASELINES)}.{did_you_mean(name, tuple(BASELINES))}"
        )
    kind = BASELINES[name]
    if issubclass(kind, OnFrozenEncoder):
        return kind(frozen or FrozenEncoder(encoder, max_length), seed=seed)
    return TfidfLinear(seed=seed) if kind is TfidfLinear else kind()


def load_baseline(folder: str | Path) -> Baseline:
    """Load a saved baseline of any kind.

    Raises:
        CheckpointError: the folder holds no baseline, or it is damaged, or its encoder has changed.
    """
    name = read_baseline_file(folder)["name"]
    if name not in BASELINES:
        raise CheckpointError(
            f"{folder}: holds the baseline {name!r}, expected one of {', '.join(BASELINES)}. It was written by another"
            " version; update attentune, or train it again."
        )
    return BASELINES[name].load(folder)
