"""Whether the compiled layer is faster than PyTorch's operations, measured once for each kind of layer and kept.

On the processors that were measured it always was. On others it must not make anybody's training slower.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from attentune.nn.cpu import native
from attentune.nn.cpu.fused_layer import BFloat16Weights, LayerSettings, fused_layer
from attentune.nn.cpu.plain_layer import plain_layer, random_weights

# The compiled layer is used unless it takes this much longer, so that a busy machine does not decide.
LARGEST_RATIO = 1.1
# Texts and tokens of the batch.
_BATCH, _LENGTH = 16, 24
_REPEATS = 5


def is_fast(hidden: int, inner: int, heads: int) -> bool:
    """Return whether the compiled layer of this size takes at most `LARGEST_RATIO` of the time that PyTorch's takes.

    The ratio is kept in `native.cache_folder()` for this processor, version of PyTorch and number of threads; without a
    folder that can be written to it is measured in each process. If $ATTENTUNE_NATIVE is 1 nothing is measured.
    Call it only if the compiled code is available and right (`self_check.unavailable_reason`).
    """
    if os.environ.get("ATTENTUNE_NATIVE") == "1":
        return True
    return _ratio(hidden, inner, heads, torch.get_num_threads()) <= LARGEST_RATIO


@functools.cache
def _ratio(hidden: int, inner: int, heads: int, threads: int) -> float:
    """Return the kept ratio of times; measure and keep it if there is none."""
    file = native.cache_folder() / f"speed-{native.library_key()}.json"
    name = f"{hidden} x {inner}, {heads} heads, {threads} threads, PyTorch {torch.__version__}"
    kept = _kept(file)
    if name not in kept:
        kept = {**kept, name: round(measured_ratio(hidden, inner, heads), 3)}
        text = json.dumps(kept, indent=1) + "\n"
        native.keep_file(file, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return kept[name]


def measured_ratio(hidden: int, inner: int, heads: int) -> float:
    """Measure the time of the compiled layer, forward and backward, divided by that of PyTorch's operations in bf16."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
        generator = torch.Generator().manual_seed(0)
        weights = random_weights(hidden, inner, generator)
        hidden_BTD = torch.randn(_BATCH, _LENGTH, hidden, generator=generator).requires_grad_()
        mask = torch.zeros(_BATCH, 1, 1, _LENGTH)
        settings = LayerSettings(heads, 0.0, (0.0, 0.0), 1e-12)
        half = BFloat16Weights(weights)

        def step(layer: Callable[[], Tensor]) -> float:
            began = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16):
                out_BTD = layer()
            torch.autograd.grad(out_BTD.sum(), (hidden_BTD, *weights))
            return time.perf_counter() - began

        layers = (
            lambda: fused_layer(hidden_BTD, mask, weights, half, settings),
            lambda: plain_layer(hidden_BTD, mask, weights, settings),
        )
        # Turn by turn, so that other programs slow both; the first turn is not counted.
        times = [[step(layer) for layer in layers] for _ in range(1 + _REPEATS)][1:]
    ours, theirs = (min(each) for each in zip(*times, strict=True))
    return ours / theirs


def _kept(file: Path) -> dict[str, float]:
    """Return what is kept; nothing if the file is missing or damaged."""
    try:
        return {str(name): float(ratio) for name, ratio in json.loads(file.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
