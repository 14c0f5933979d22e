"""The model's configuration class, saved as `config.json`."""

from typing import Any, ClassVar

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from attentune.nn.losses import LOSSES
from attentune.plugins import is_plugin

_NO_BLUR = {"where": "none", "sigma": 0.3, "size": 3, "layers": "all", "learnable": "no"}
_LAST_LAYER = {"kind": "last", "squeeze": False, "ratio": 3, "init": "neutral"}
_NO_BLOCKS = {
    "layers": 0,
    "bare": False,
    "init": "default",
    "attention_heads": None,
    "combine": None,
    "projection": None,
}
_NO_GATE = {"kind": "none", "beta": 0.5, "share_weights": True, "attention_threshold": 0.0}


class AttentuneConfig(PreTrainedConfig):
    """Configuration of an `AttentuneForSequenceClassification`: an encoder and what fills the four slots.

    Args:
        encoder: the encoder's own configuration, or its mapping with `model_type`.
        blur: {"where": ..., "sigma": ..., "size": ..., "layers": ..., "learnable": ...}.
        layer_mix: {"kind": ..., "squeeze": ..., "ratio": ..., "init": ...}; the kind is a key of
            `nn.layer_mix.LAYER_MIXES`.
        token_gate: {"kind": ..., "beta": ..., "share_weights": ..., "attention_threshold": ...}.
        head: {"kind": ..., "beta": ..., "with_pooler": ..., "dropout": ...}; for attention blocks "layers", "bare",
            "init" and "attention_heads" too, for a bi-encoder "combine" and "projection".
        task_type: "classification", "regression", "ordinal" or "multi_label".
        special_token_ids: ids of special tokens ([CLS], [SEP], padding; not the mask token).
        max_seq_length: maximum length of a text or pair in tokens.
        window: window length in tokens for longer texts; None for no windows.
        window_stride: tokens that consecutive windows share.
        is_pair: whether it was trained on pairs of texts.
        pair_encoding: "cross-encoder" (both texts in one row) or "bi-encoder" (each encoded separately).
        loss: the training loss, a key of `nn.losses.LOSSES` or "auto"; the classifier's outputs depend on it.
        focal_gamma: gamma of the focal loss.
        ordinal_prediction: how an ordered class is predicted, "argmax" or "expected-value".
        calibration_temperature: softmax temperature, fitted on held-out rows; logits are divided by it.
        thresholds: decision thresholds, probabilities from which a label (of two classes the second one) is predicted;
            None for the default. The model returns logits; `attentune predict` and the pipeline apply thresholds.
        score_mean: regression: the mean of the training scores.
        score_std: regression: their standard deviation; logits are score_mean + score_std x what the classifier says.
        lora: {"rank": ..., "alpha": ..., "dropout": ...} of adapters in the encoder during training; None in a finished
            run, whose weights contain them.
    """

    model_type = "attentune"
    # Transformers' Trainer passes only the logits to metrics.
    keys_to_ignore_at_inference: ClassVar = [
        "token_scores",
        "token_logits",
        "layer_weights",
        "hidden_states",
        "attentions",
    ]

    def __init__(
        self,
        encoder: PreTrainedConfig | dict[str, Any] | None = None,
        blur: dict[str, Any] | None = None,
        layer_mix: dict[str, Any] | None = None,
        token_gate: dict[str, Any] | None = None,
        head: dict[str, Any] | None = None,
        task_type: str = "classification",
        special_token_ids: list[int] | None = None,
        max_seq_length: int = 128,
        window: int | None = None,
        window_stride: int = 0,
        is_pair: bool = False,
        pair_encoding: str = "cross-encoder",
        loss: str = "auto",
        focal_gamma: float = 2.0,
        ordinal_prediction: str = "argmax",
        calibration_temperature: float = 1.0,
        thresholds: list[float] | None = None,
        score_mean: float = 0.0,
        score_std: float = 1.0,
        lora: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(encoder, dict):
            values = dict(encoder)
            encoder = CONFIG_MAPPING[values.pop("model_type")](**values)
        self.encoder: PreTrainedConfig | None = encoder
        self.blur = {**_NO_BLUR, **(blur or {})}
        self.layer_mix = {**_LAST_LAYER, **(layer_mix or {})}
        self.token_gate = {**_NO_GATE, **(token_gate or {})}
        self.head = {**_NO_BLOCKS, **(head or {"kind": "cls", "beta": 0.5, "with_pooler": False, "dropout": 0.1})}
        self.task_type = task_type
        self.special_token_ids = special_token_ids or []
        self.max_seq_length = max_seq_length
        self.window = window
        self.window_stride = window_stride
        self.is_pair = is_pair
        self.pair_encoding = pair_encoding
        self.loss = loss
        self.focal_gamma = focal_gamma
        self.ordinal_prediction = ordinal_prediction
        self.calibration_temperature = calibration_temperature
        self.thresholds = thresholds
        self.score_mean = score_mean
        self.score_std = score_std
        self.lora = lora
        super().__init__(**kwargs)

    @property
    def is_bi_encoder(self) -> bool:
        """Whether the texts of a pair are encoded separately."""
        return bool(self.is_pair and self.pair_encoding == "bi-encoder")

    @property
    def encoder_config(self) -> PreTrainedConfig:
        """The encoder's configuration; an error if there is none."""
        if not isinstance(self.encoder, PreTrainedConfig):
            raise ValueError("this AttentuneConfig has no encoder, expected one: AttentuneConfig(encoder=...).")
        return self.encoder

    def get_text_config(self, *args: Any, **kwargs: Any) -> PreTrainedConfig:
        """Return the configuration with hidden size and vocabulary, for Hugging Face's tools."""
        return self.encoder if isinstance(self.encoder, PreTrainedConfig) else self


def check_values(config: AttentuneConfig) -> None:
    """Validate a configuration, since a config.json may come from anyone."""
    has_classes = config.task_type != "regression"
    names = list(config.id2label.values()) if has_classes else []
    wrong = {
        "task_type": config.task_type not in ("classification", "regression", "ordinal", "multi_label"),
        "id2label": not _are_names(config.id2label, names),
        "special_token_ids": not _are_ids(config.special_token_ids),
        "max_seq_length": type(config.max_seq_length) is not int or not 4 <= config.max_seq_length <= 1 << 20,
        "is_pair": type(config.is_pair) is not bool,
        "pair_encoding": config.pair_encoding not in ("cross-encoder", "bi-encoder"),
        "loss": config.loss not in ("auto", *LOSSES) and not is_plugin(config.loss),
        "ordinal_prediction": config.ordinal_prediction not in ("argmax", "expected-value"),
        "calibration_temperature": not _is_positive(config.calibration_temperature),
        "thresholds": config.thresholds is not None and not _are_thresholds(config),
        "score_mean": not _is_number(config.score_mean) or (has_classes and config.score_mean != 0),
        "score_std": not _is_positive(config.score_std) or (has_classes and config.score_std != 1),
    }
    for name in (name for name, is_wrong in wrong.items() if is_wrong):
        value = repr(getattr(config, name))[:80]
        raise ValueError(f"config.json: {name} is {value}, which Attentune never writes. Was the file edited?")


def _are_names(id2label: dict[Any, Any], names: list[Any]) -> bool:
    """Whether ids count from 0, and names are different words."""
    words = all(isinstance(name, str) for name in names)
    return words and sorted(id2label) == list(range(len(id2label))) and len(set(names)) == len(names)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < float("inf")


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _are_thresholds(config: AttentuneConfig) -> bool:
    """Whether there is a probability per label or for the second of two classes, or ascending cut points if ordinal."""
    ordered = config.num_labels - 1
    count = {"multi_label": config.num_labels, "classification": 1 if ordered == 1 else -1, "ordinal": ordered}
    highest = ordered if config.task_type == "ordinal" else 1
    values: Any = config.thresholds
    return (
        isinstance(values, list)
        and len(values) == count.get(config.task_type)
        and all(type(value) in (int, float) and 0 <= value <= highest for value in values)
        and (config.task_type != "ordinal" or values == sorted(values))
    )


def _are_ids(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


AutoConfig.register(AttentuneConfig.model_type, AttentuneConfig, exist_ok=True)
