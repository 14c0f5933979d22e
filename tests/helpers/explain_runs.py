"""Builds runs to explain, in memory: tiny encoders whose predictions differ between texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attentune.config import Config, HeadConfig
from attentune.config.schema import TokenGateConfig
from attentune.data.dataset import LabelSpace, TextRows
from attentune.inference.predictor import ModelPredictor, predict_rows
from attentune.models.attribution_heads import outputs_of
from attentune.nn.attribution_head import AttributionHead
from helpers.tiny_models import build, rows_of

KINDS = ("classification", "pair", "bi-encoder", "regression", "ordinal")  # the third: two texts, encoded separately
# Includes a word of several subwords, punctuation, a single word, an empty text and a long text.
TEXTS = (
    "The actors seem unwatchable, and the plot never moves!",
    "Yes",
    "",
    "Nobody plays the guitar at 7:45.",
    "Birds are singing outside my window, and the train leaves although nobody knows why; it is cold in the house.",
)
SPACES = {
    "classification": LabelSpace("classification", ("bad", "good")),
    "pair": LabelSpace("classification", ("no", "maybe", "yes")),
    "bi-encoder": LabelSpace("classification", ("no", "maybe", "yes")),
    "regression": LabelSpace("regression"),
    "ordinal": LabelSpace("ordinal", ("low", "middle", "high"), "expected-value"),
}
ON_CPU = replace(Config(), training=replace(Config().training, precision="fp32", use_cpu=True))


def rows_for(kind: str, count: int = len(TEXTS)) -> TextRows:
    """Return the first `count` of `TEXTS` as rows, or pairs of them."""
    texts = TEXTS[:count]
    return rows_of(texts, [TEXTS[-1 - place] for place in range(count)] if kind in ("pair", "bi-encoder") else None)


def tiny_run(
    folder: Path,
    kind: str = "classification",
    *,
    gate: bool = True,
    max_length: int = 64,
    with_head: bool = False,
    **model: Any,
) -> ModelPredictor:
    """Build a run on the checkpoint in `folder`; its logits have mean 0 and standard deviation 1 over `TEXTS`.

    `with_head` gives it an attribution head with random weights; a bi-encoder can have none.
    """
    options: dict[str, Any] = {"head": HeadConfig(kind="mean", combine="concat")} | model
    if gate:
        options["token_gate"] = TokenGateConfig(kind="ssa")
    if kind == "bi-encoder":
        options["pair_encoding"] = "bi-encoder"
    built, tokenizer = build(
        folder, label_space=SPACES[kind], is_pair=kind in ("pair", "bi-encoder"), max_length=max_length, **options
    )
    run = ModelPredictor(Path("runs/tiny"), ON_CPU, SPACES[kind], built, tokenizer)
    logits_NC = predict_rows(run, rows_for(kind))
    linear = getattr(built.classifier, "linear", built.classifier)
    with torch.no_grad():
        mean_C, scale = torch.from_numpy(logits_NC.mean(axis=0)), 1.0 / float(np.std(logits_NC, axis=0).mean())
        linear.weight.mul_(scale)
        linear.bias.sub_(mean_C).mul_(scale)
    built.encoder.set_attn_implementation("sdpa")  # the state after loading; predicting has changed it
    if with_head and kind != "bi-encoder":
        run.__dict__["attribution_head"] = random_head(run)
    return run


def random_head(run: ModelPredictor) -> AttributionHead:
    """Make an attribution head for a run with random weights, also where a new one has zeros."""
    encoder = run.model.encoder.config
    layers = sorted({0, encoder.num_hidden_layers // 2, encoder.num_hidden_layers})
    with torch.random.fork_rng():
        torch.manual_seed(5)
        outputs = outputs_of(run.label_space)
        head = AttributionHead(hidden_size=encoder.hidden_size, layers=layers, width=12, outputs=outputs, longest=20)
        for tensor in (*head.parameters(), head.nothing_MO):
            torch.nn.init.normal_(tensor, std=0.5)
    return head.eval()


def hooks_of(model: Any) -> int:
    """Count the hooks of a model, except those that transformers leaves behind after it has returned attention."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [hook for module in model.modules() for kind in kinds for hook in getattr(module, kind).values()]
    return sum(getattr(hook, "__module__", "") != "transformers.utils.output_capturing" for hook in hooks)
