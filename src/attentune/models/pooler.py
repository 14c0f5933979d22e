"""Which pooler a head on [CLS] begins with."""

from __future__ import annotations

from transformers.utils import cached_file

from attentune.errors import ConfigError


def leaves_pooler_out(source: str, revision: str | None) -> bool:
    """Whether a checkpoint's last training went past its pooler, which then is a leftover of an earlier one.

    So it is with sentence-transformers: their models, known by modules.json, pool the encoder's tokens themselves.

    Args:
        source: a folder or a name on the hub.
        revision: of a name on the hub.
    """
    found = cached_file(
        source,
        "modules.json",
        revision=revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return found is not None


def settle_pooler(wanted: str, name: str, *, has_pooler: bool, left_out: bool) -> str:
    """What `model.head.pooler` comes to with this encoder: "own", "fresh" or "none".

    Args:
        wanted: "auto", "own", "fresh" or "none".
        name: the encoder's, for the message.
        has_pooler: whether its checkpoint came with a pooler.
        left_out: whether its last training went past that pooler.

    Raises:
        ConfigError: the own one is wanted, but there is none.
    """
    if wanted == "own" and not has_pooler:
        raise ConfigError(
            f"model.head.pooler: own, but the checkpoint of {name} has no pooler. Expected auto, fresh or none."
        )
    if wanted != "auto":
        return wanted
    if not has_pooler:
        return "none"
    return "fresh" if left_out else "own"
