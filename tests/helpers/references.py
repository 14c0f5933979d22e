"""Reference implementations of attention blocks (loops in Python floats) and of blurred encoders."""

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attentune.config import BlurConfig
from helpers.tiny_models import FIRST, LONG, Built, build, encoded

Vector = list[float]
Text = list[Vector]


def texts_of(tensor: torch.Tensor) -> list[Text]:
    """Convert a tensor (N, T, D) to lists."""
    return tensor.detach().double().tolist()


def shaken(module: nn.Module, *, shift: float = 0.1) -> Any:
    """Give every weight a value of its own, far from where it begins."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7 + shift)
    return module.eval()


def linear_of(linear: nn.Linear, vector: Vector) -> Vector:
    bias = [0.0] * linear.out_features if linear.bias is None else linear.bias.detach().double().tolist()
    weight = linear.weight.detach().double().tolist()
    return [b + math.fsum(w * x for w, x in zip(row, vector, strict=True)) for row, b in zip(weight, bias, strict=True)]


def norm_of(norm: nn.LayerNorm, vector: Vector) -> Vector:
    mean = math.fsum(vector) / len(vector)
    variance = math.fsum((x - mean) ** 2 for x in vector) / len(vector)
    scale, shift = norm.weight.detach().double().tolist(), norm.bias.detach().double().tolist()
    return [(x - mean) / math.sqrt(variance + norm.eps) * a + b for x, a, b in zip(vector, scale, shift, strict=True)]


def attention_of(attention: Any, query_token: Vector, key_tokens: Text) -> Vector:
    """Return the attention output for one query token, given the non-padding key/value tokens."""
    query = linear_of(attention.query, query_token)
    keys = [linear_of(attention.key, token) for token in key_tokens]
    values = [linear_of(attention.value, token) for token in key_tokens]
    size = len(query) // attention.heads
    mixed: Vector = []
    for head in range(attention.heads):
        part = slice(head * size, (head + 1) * size)
        scores = [
            math.fsum(q * k for q, k in zip(query[part], key[part], strict=True)) / math.sqrt(size) for key in keys
        ]
        powers = [math.exp(score - max(scores)) for score in scores]
        for feature in range(size):
            weighted_sum = math.fsum(p * value[part][feature] for p, value in zip(powers, values, strict=True))
            mixed.append(weighted_sum / math.fsum(powers))
    return linear_of(attention.output, mixed)


def transformer_block_of(block: Any, queries: Text, own: Text) -> Text:
    """Return LN(h + dense(A(q, h, h))), then feed-forward and LN, for the text h = `own`; query i makes token i."""
    changed = []
    for query, token in zip(queries, own, strict=False):
        mixed = attention_of(block.attention, query, own)
        if block.dense is not None:
            mixed = linear_of(block.dense, mixed)
        hidden = norm_of(block.attention_norm, [a + b for a, b in zip(token, mixed, strict=True)])
        inner = block.activation(torch.tensor(linear_of(block.inner, hidden), dtype=torch.float64)).tolist()
        outer = linear_of(block.outer, inner)
        changed.append(norm_of(block.output_norm, [a + b for a, b in zip(hidden, outer, strict=True)]))
    return changed


def cross_attention_block_of(block: Any, queries: Text, own: Text) -> Text:
    return [attention_of(block, token, own) for token in queries]


# Blurred encoders: with hooks on modules named per family, or in the softmax itself

Tiny = Callable[..., Path]
PLACES = ("context", "value", "scores")
TEXTS = (FIRST, LONG, "")
LAYERS, HEADS = 3, 4
# The modules that project the values and the concatenated output of the heads, by family; {} is the layer.
_BERT = ("encoder.layer.{}.attention.self.value", "encoder.layer.{}.attention.output.dense")
_SHARED = "encoder.albert_layer_groups.0.albert_layers.0.attention."
PROJECTIONS = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "electra": _BERT,
    "distilbert": ("transformer.layer.{}.attention.v_lin", "transformer.layer.{}.attention.out_lin"),
    "albert": (_SHARED + "value", _SHARED + "dense"),
    "deberta-v2": ("encoder.layer.{}.attention.self.value_proj", _BERT[1]),
    "mpnet": ("encoder.layer.{}.attention.attn.v", "encoder.layer.{}.attention.attn.o"),
    "modernbert": ("layers.{}.attn.Wqkv", "layers.{}.attn.Wo"),
}


def blurred(tiny: Tiny, family: str, where: str, sigma: float = 0.5, **options: Any) -> Built:
    return build(tiny(family), blur=BlurConfig(where, sigma, **options))


def convolved(values: np.ndarray, sigma: float, *, axis: int) -> np.ndarray:
    """Blur along one axis with a window of 3, mirrored at both ends."""
    heights = np.exp(-(np.array([-1.0, 0.0, 1.0]) ** 2) / (2 * sigma**2))
    shares = heights / heights.sum()
    widths = [(1, 1) if place == axis % values.ndim else (0, 0) for place in range(values.ndim)]
    padded, count = np.pad(values, widths, mode="symmetric"), values.shape[axis]
    return sum(share * padded.take(range(k, k + count), axis=axis) for k, share in enumerate(shares))


def convolved_heads(features_BTD: Tensor, sigmas_H: np.ndarray) -> Tensor:
    """Blur each head's features along the tokens, with the sigma of that head."""
    parts = np.split(features_BTD.detach().double().numpy(), len(sigmas_H), axis=-1)
    joint = [convolved(part, sigma, axis=1) for part, sigma in zip(parts, sigmas_H, strict=True)]
    return torch.from_numpy(np.concatenate(joint, axis=-1)).to(features_BTD.dtype)


@contextlib.contextmanager
def blurred_softmax(sigmas_LH: np.ndarray) -> Iterator[None]:
    """Patch softmax to blur the probabilities (1, H, T, T) in both directions; each call is the next layer."""
    original, calls = torch.nn.functional.softmax, iter(sigmas_LH)

    def softmax(*args: Any, **options: Any) -> Tensor:
        table = original(*args, **options)
        parts = table.detach().double().numpy().reshape(HEADS, *table.shape[-2:])
        sigmas_H = next(calls)
        heads = [convolved(convolved(p, s, axis=0), s, axis=1) for p, s in zip(parts, sigmas_H, strict=True)]
        return torch.from_numpy(np.stack(heads)).reshape(table.shape).to(table.dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "softmax", softmax)
        yield
    assert next(calls, None) is None, "a softmax for each layer"


@torch.no_grad()
def by_other_means(built: Built, family: str, where: str, sigmas_LH: np.ndarray, text: str) -> Tensor:
    """Return the last layer's output (T, D) for a single text, with eager attention and the blur of this module."""
    encoder, inputs = built[0].encoder, encoded(built[1], text)
    encoder.set_attn_implementation("eager")
    if where == "scores":
        with blurred_softmax(sigmas_LH):
            return encoder(**inputs).last_hidden_state[0]

    def before(number: int) -> Any:
        return lambda module, args: (convolved_heads(args[0], sigmas_LH[number]),)

    def after(number: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            others, width = output.shape[-1] - 32, 32  # ModernBERT projects queries, keys and values in one module
            queries_keys, values = output.split([others, width], dim=-1)
            return torch.cat([queries_keys, convolved_heads(values, sigmas_LH[number])], dim=-1)

        return hook

    handles = []
    for number in range(1 if family == "albert" else LAYERS):
        value, output = (encoder.get_submodule(path.format(number)) for path in PROJECTIONS[family])
        if where == "context":
            handles.append(output.register_forward_pre_hook(before(number)))
        else:
            handles.append(value.register_forward_hook(after(number)))
    hidden_TD = encoder(**inputs).last_hidden_state[0]
    for handle in handles:
        handle.remove()
    return hidden_TD


@torch.no_grad()
def hidden_of(built: Built, *texts: str) -> list[Tensor]:
    """Return the hidden states (T, D) of each text's non-padding tokens, from the model with all texts in one batch."""
    inputs, kept = encoded(built[1], *texts), []
    handle = built[0].encoder.register_forward_hook(lambda module, args, output: kept.append(output.last_hidden_state))
    built[0](**inputs)
    handle.remove()
    return [hidden_TD[mask_T.bool()] for hidden_TD, mask_T in zip(kept[0], inputs["attention_mask"], strict=True)]


def distance(these: list[Tensor], those: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(these, those, strict=True))


def check(made: Built, plain: Built, family: str, where: str, sigmas_LH: np.ndarray) -> None:
    expected = [by_other_means(plain, family, where, sigmas_LH, text) for text in TEXTS]
    assert distance(hidden_of(made, *TEXTS), expected) < 2e-4
    assert distance(hidden_of(plain, *TEXTS), expected) > 0.02


def hooks_of(module: nn.Module) -> list[Any]:
    return [
        hook for part in module.modules() for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    ]
