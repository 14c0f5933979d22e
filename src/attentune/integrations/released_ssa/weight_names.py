"""The weights' names in checkpoints of the program that SSA's authors released, and ours.

Its BERT and its RoBERTa give the token head other names. With weights shared over positions that head ends in `decoder`
and `bias`; without, in `op.0`, `op.1`, ..., one a position and without bias.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attentune.errors import CheckpointError

_PREFIXES = {"bert": "bert.", "roberta": "roberta."}
# Without weights that matter: BERT's positions 0, 1, 2, ... were saved by some versions of its library.
_PASSED_OVER = ("embeddings.position_ids",)
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
    """What the names in a checkpoint say of it.

    Attributes:
        family: "bert" or "roberta".
        kind: "hybrid", "co" (co-training) or "plain" (without SSA).
        positions: with a token head that has weights of its own for each position, how many; else None.
    """

    family: str
    kind: str
    positions: int | None

    @property
    def preset(self) -> str:
        """The preset that has this form."""
        return {"hybrid": "ssa-hybrid-released", "co": "ssa-co-released", "plain": "bert"}[self.kind]


def recognise(names: Sequence[str], source: str) -> ReleasedForm:
    """The form of a checkpoint with weights of these names.

    Raises:
        CheckpointError: the released program writes no such checkpoint.
    """
    families = [family for family, prefix in _PREFIXES.items() if any(name.startswith(prefix) for name in names)]
    has_tokens = any(name.startswith("token_cls.") for name in names)
    has_attention = any(name.startswith("seq_cls.classifier.") for name in names)
    has_plain = any(name.startswith("classifier.") for name in names)
    if len(families) != 1 or has_attention == has_plain or (has_attention and not has_tokens):
        raise CheckpointError(
            f"{source}: has weights such as {', '.join(names[:3]) or 'none'}, but the released program's have names"
            " that begin with bert. or roberta., and with seq_cls.classifier. or classifier.; is it another program's?"
        )
    numbers = sorted(int(found[1]) for name in names if (found := _POSITION.fullmatch(name)))
    if numbers != list(range(len(numbers))):
        raise CheckpointError(f"{source}: lacks some of the token head's weights token_cls.op.0 to {numbers[-1]}.")
    kind = "hybrid" if has_attention else "co" if has_tokens else "plain"
    return ReleasedForm(families[0], kind, len(numbers) or None)


def our_weights(state: Mapping[str, Tensor], form: ReleasedForm, classes: Sequence[int]) -> dict[str, Tensor]:
    """The weights under our names, float32.

    Args:
        state: the checkpoint's weights by its own names.
        form: from `recognise`.
        classes: for each of our classes in order, its row in the checkpoint's classifier.
    """
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
        # The released program made biases for the positions, too, and never used them.
        made[f"{_TOKEN_HEAD}.output.bias"] = torch.zeros(form.positions, 2)
    return made


def _our_name(name: str, prefix: str, pooler: str, *, keeps_pooler: bool) -> str | None:
    """None for a weight that has no counterpart here."""
    if _POSITION.fullmatch(name):
        return None
    # Weights converted from TensorFlow were called so before 2019.
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
    if name.startswith(prefix):
        inner = name[len(prefix) :]
        if inner in _PASSED_OVER:
            return None
        if inner.startswith("pooler.dense."):
            return pooler + inner.removeprefix("pooler.dense.") if keeps_pooler else None
        return f"encoder.{inner}"
    for old, new in _PARTS.items():
        if name.startswith(old):
            return new + name[len(old) :]
    return name
