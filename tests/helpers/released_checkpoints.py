"""Writes checkpoints in the format of the released SSA program, with a reference implementation of its model."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel

NAMES = {
    "bert": {"dense": "token_cls.transform.dense", "norm": "token_cls.transform.LayerNorm"},
    "roberta": {"dense": "token_cls.dense", "norm": "token_cls.layer_norm"},
}


def released_state(
    encoder: Path, family: str, kind: str, *, shared: bool = True, outputs: int = 2, positions: int = 40, seed: int = 0
) -> dict[str, Tensor]:
    """Return the state dict of the program's model of this kind ("hybrid", "co", "plain") with a tiny encoder."""
    torch.manual_seed(seed)
    model = AutoModel.from_pretrained(encoder)
    size = model.config.hidden_size
    state = {f"{family}.{name}": value.clone() for name, value in model.state_dict().items() if "pooler" not in name}
    linear = {"pooler": nn.Linear(size, size), "dense": nn.Linear(size, size), "out": nn.Linear(size, outputs)}
    has_own_pooler = family == "roberta" and kind == "plain"
    state |= _named(linear["pooler"], "classifier.dense" if has_own_pooler else f"{family}.pooler.dense")
    if kind != "plain":
        state |= _named(linear["dense"], NAMES[family]["dense"])
        norm = nn.LayerNorm(size)
        nn.init.normal_(norm.weight, mean=1.0, std=0.3)
        nn.init.normal_(norm.bias, std=0.1)
        state |= _named(norm, NAMES[family]["norm"])
        if shared:
            state |= {"token_cls.decoder.weight": torch.randn(2, size) / 6, "token_cls.bias": torch.randn(2) / 6}
        else:
            state |= {f"token_cls.op.{place}.weight": torch.randn(2, size) / 6 for place in range(positions)}
            state["token_cls.bias"] = torch.randn(2)  # never applied
    head = "seq_cls.classifier" if kind == "hybrid" else "classifier.out_proj" if has_own_pooler else "classifier"
    return state | _named(linear["out"], head)


def _named(module: nn.Module, prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value.detach().clone() for name, value in module.state_dict().items()}


def write_released(
    folder: Path, encoder: Path, state: dict[str, Tensor], *, config_name: str = "config.json", legacy: bool = False
) -> Path:
    """Write a checkpoint folder as the program does: weights and settings, no tokenizer."""
    folder.mkdir(parents=True)
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    values = json.loads((encoder / "config.json").read_text())
    # The version of the library that the program uses writes no model_type.
    kept = {name: value for name, value in values.items() if name not in ("model_type", "architectures", "dtype")}
    (folder / config_name).write_text(json.dumps(kept))
    return folder


@torch.no_grad()
def released_logits(
    state: dict[str, Tensor],
    family: str,
    encoder: Path,
    batch: dict[str, Tensor],
    special_BT: Tensor,
    *,
    cls_weight: float = 0.5,
    threshold: float = 0.3,
) -> tuple[Tensor, Tensor | None]:
    """Return the logits and the tokens' importance, computed from the state dict as the program does.

    `special_BT` is True at special tokens and padding, which the program labels -1.
    """
    model = AutoModel.from_pretrained(encoder).eval()
    own = {name.removeprefix(f"{family}."): value for name, value in state.items() if name.startswith(f"{family}.")}
    model.load_state_dict(own, strict=False)
    hidden_BTD = model(**batch).last_hidden_state
    eps = model.config.layer_norm_eps

    def linear(values: Tensor, name: str) -> Tensor:
        return values @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    has_own_pooler = "classifier.dense.weight" in state
    pooled_BD = torch.tanh(linear(hidden_BTD[:, 0], "classifier.dense" if has_own_pooler else f"{family}.pooler.dense"))
    if f"{NAMES[family]['dense']}.weight" not in state:
        return linear(pooled_BD, "classifier.out_proj" if has_own_pooler else "classifier"), None
    changed = nn.functional.gelu(linear(hidden_BTD, NAMES[family]["dense"]))
    centred = changed - changed.mean(-1, keepdim=True)
    normal = centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + eps)
    normal = normal * state[f"{NAMES[family]['norm']}.weight"] + state[f"{NAMES[family]['norm']}.bias"]
    if "token_cls.decoder.weight" in state:
        tokens_BT2 = normal @ state["token_cls.decoder.weight"].T + state["token_cls.bias"]
    else:
        rows = [normal[:, place] @ state[f"token_cls.op.{place}.weight"].T for place in range(normal.shape[1])]
        tokens_BT2 = torch.stack(rows, dim=1)
    importance_BT = tokens_BT2.softmax(-1)[..., 1]
    if "seq_cls.classifier.weight" not in state:
        return linear(pooled_BD, "classifier"), importance_BT
    left_out = special_BT | (importance_BT < threshold)
    weights_BT = (importance_BT - 10000.0 * left_out.float()).softmax(-1)
    mixed_BD = cls_weight * pooled_BD + (1 - cls_weight) * (weights_BT.unsqueeze(1) @ hidden_BTD).squeeze(1)
    return linear(mixed_BD, "seq_cls.classifier"), importance_BT


def namespace(**values: Any) -> str:
    """Return the flags as the program writes them to dev_results_*.txt."""
    return f"Namespace({', '.join(f'{name}={value!r}' for name, value in sorted(values.items()))})"
