"""Encoders of single texts, as sentence-transformers and SetFit load them.

A run of these kinds has one: bi-encoders, whose texts are encoded separately; classifiers on the mean or the first
token of a plain encoder; and the baselines on a frozen encoder. `text_encoder` finds it, `linear_head` the classifier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attentune.baselines.frozen import Cosine, FrozenLinear, TokenAlignment
from attentune.baselines.predictor import BaselinePredictor
from attentune.data.batching import pad_batch
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.tokenization import encode_rows
from attentune.errors import ConfigError
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.integrations.hub.stock import last_layer
from attentune.models.build import build_model, load_tokenizer
from attentune.models.loading import Tokenizer
from attentune.nn.classifiers import DotProduct, ScaledDotProduct, ScaledOutput, ScaledSimilarity
from attentune.nn.masked import masked_mean


@dataclass(frozen=True)
class TextEncoder:
    """An encoder of single texts: the encoder, a pooling of its tokens, and possibly a dense layer.

    Attributes:
        encoder: the encoder of transformers, on the CPU, in float32 and evaluation mode.
        tokenizer: its tokenizer.
        max_length: the maximum length of a text in tokens.
        pooling: "mean" over the tokens, or "cls" for the first one.
        dense: a linear layer on the pooled vector; None without one.
        activation: the name of the function after it in torch.nn, "Tanh" or "Identity".
        similarity: how two vectors are compared, "cosine" or "dot".
        scale, offset: the score of a pair is scale x similarity + offset; None if it is not a function of it.
    """

    encoder: Any
    tokenizer: Tokenizer
    max_length: int
    pooling: str
    dense: nn.Linear | None = None
    activation: str = "Identity"
    similarity: str = "cosine"
    scale: float | None = None
    offset: float | None = None

    @property
    def width(self) -> int:
        """The number of values in a vector."""
        return int(self.encoder.config.hidden_size if self.dense is None else self.dense.out_features)

    @torch.no_grad()
    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Encode texts, (N, D) float32."""
        rows = TextRows(tuple(map(str, range(len(texts)))), tuple(texts), None, None, "texts")
        features = encode_rows(rows, self.tokenizer, max_length=self.max_length)
        inputs = pad_batch(features, range(len(texts)), pad_token_id=self.tokenizer.pad_token_id).inputs
        hidden_NTD = self.encoder(**inputs).last_hidden_state
        pooled_ND = hidden_NTD[:, 0]
        if self.pooling == "mean":
            pooled_ND = masked_mean(hidden_NTD, inputs["attention_mask"].bool())
        if self.dense is None:
            return pooled_ND
        return getattr(nn, self.activation)()(self.dense(pooled_ND))


def text_encoder(saved: Predictor) -> TextEncoder:
    """Return the encoder of single texts of a run.

    Raises:
        ConfigError: it has none; the message says why, and which format has its predictions.
    """
    if isinstance(saved, BaselinePredictor):
        return _of_baseline(saved)
    return _of_model(saved.single_model("export"))


def _of_baseline(saved: BaselinePredictor) -> TextEncoder:
    baseline = saved.baseline
    if not isinstance(baseline, (Cosine, FrozenLinear)):
        reason = "has no encoder"
        if isinstance(baseline, TokenAlignment):
            reason = "predicts from the vectors of all tokens of both texts, not from one vector a text"
        raise ConfigError(
            f"export: got {saved.folder}, a {saved.kind}, which {reason}. Expected frozen-linear, cosine or a"
            " fine-tuned encoder."
        )
    frozen = baseline.frozen
    tokenizer = load_tokenizer(frozen.encoder)
    space = LabelSpace("regression")
    model = build_model(frozen.encoder, space, tokenizer, max_length=frozen.max_length, is_pair=False, seed=0)
    scale = offset = None
    if isinstance(baseline, Cosine):
        # Of two classes the second one's logit minus the first one's.
        weights_P, bias_P = baseline.linear.weights_PD[:, 0], baseline.linear.bias_P
        scale, offset = (float(values[-1] - (values[0] if len(values) > 1 else 0)) for values in (weights_P, bias_P))
    return TextEncoder(
        model.encoder.eval(), tokenizer, frozen.max_length, "mean", scale=scale, offset=offset, similarity="cosine"
    )


def _of_model(saved: ModelPredictor) -> TextEncoder:
    config = saved.model.config
    model: Any = saved.model
    head = config.head["kind"]
    reasons = {
        "it blurs attention": config.blur["where"] != "none",
        "it mixes the encoder's layers": config.layer_mix["kind"] != "last" or config.layer_mix["squeeze"],
        "its token gate changes the sentence vector": config.token_gate["kind"] != "none"
        and config.token_gate["beta"] < 1.0,
        "it reads long texts in windows": config.window is not None,
        "its weights contain adapters; export the finished run": config.lora is not None,
        "it encodes the two texts of a pair together (sentence-transformers loads such a run as CrossEncoder)": (
            saved.is_pair and not config.is_bi_encoder
        ),
        f"its head is {head}, not mean or cls": head not in ("mean", "cls"),
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    if reason is not None:
        raise ConfigError(
            f"export: {saved.folder} is not an encoder of single texts for sentence-transformers: {reason}. Use"
            " --format transformers or onnx, or train one of the presets bi-encoder-cosine, bi-encoder-mean and"
            " bert-mean."
        )
    dense, activation = None, "Identity"
    if head == "cls" and model.head.pooler is not None:
        dense, activation = model.head.pooler.dense, "Tanh"
    made: dict[str, Any] = {}
    classifier = model.classifier
    if isinstance(classifier, ScaledSimilarity):
        made = {"scale": classifier.scale.item(), "offset": classifier.offset.item()}
    if isinstance(classifier, (DotProduct, ScaledDotProduct)):
        if dense is not None:
            raise ConfigError(
                f"export: {saved.folder} applies a projection after a pooler; expected one of them. Use --format"
                " transformers or onnx."
            )
        dense = classifier.projection
        scale = made.get("scale", 1.0) / math.sqrt(dense.out_features) if made else 1.0
        made = {"similarity": "dot", "scale": scale, "offset": made.get("offset", 0.0)}
    if made and isinstance(model.outputs, ScaledOutput):
        made["scale"] *= float(model.outputs.scale)
        made["offset"] = made["offset"] * float(model.outputs.scale) + float(model.outputs.offset)
    if made:
        made |= {name: config.score_std * made[name] / config.calibration_temperature for name in ("scale", "offset")}
        made["offset"] += config.score_mean
    return TextEncoder(
        model.encoder,
        saved.tokenizer,
        config.max_seq_length,
        "cls" if head == "cls" else "mean",
        dense=dense,
        activation=activation,
        **made,
    )


def linear_head(saved: Predictor) -> tuple[np.ndarray, np.ndarray]:
    """Return the linear classifier on the vectors of `text_encoder`: weights (C, D) and biases (C,).

    Raises:
        ConfigError: the run has no such classifier, or does not predict the most probable of several classes.
    """
    space = saved.label_space
    reasons = {
        "it compares pairs of texts": saved.is_pair,
        f"its task is {space.task_type}": space.task_type not in ("classification", "ordinal"),
        "it predicts by thresholds": space.thresholds is not None,
        "it predicts the class nearest to the mean of class numbers": space.ordinal_prediction == "expected-value",
        "it has one class": space.num_labels < 2,
        "its training rows lacked a class": isinstance(saved, BaselinePredictor)
        and isinstance(saved.baseline, FrozenLinear)
        and len(saved.baseline.linear.classes_P) < space.num_labels,
        "with the loss corn its logits are not linear in the vector": isinstance(saved, ModelPredictor)
        and saved.model.outputs is not None,
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    if reason is not None:
        others = "" if isinstance(saved, BaselinePredictor) else ", or --format onnx"
        raise ConfigError(
            f"export: {saved.folder} is not a SetFit model, which takes a single text and predicts the most probable"
            f" class by a logistic regression: {reason}. Use --format sentence-transformers for the encoder alone"
            f"{others}."
        )
    if isinstance(saved, BaselinePredictor):
        assert isinstance(saved.baseline, FrozenLinear)
        order = np.argsort(saved.baseline.linear.classes_P)
        return saved.baseline.linear.weights_PD[order], saved.baseline.linear.bias_P[order]
    weight_CD, bias_C = last_layer(saved.single_model("export").model)
    return weight_CD.double().numpy(), bias_C.double().numpy()
