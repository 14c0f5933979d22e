"""What a part of another package must do, as checks that raise AssertionError with the reason.

Parts of the model: results do not depend on padding; gradients are finite and reach the encoder and every weight of the
part; evaluation repeats itself; a saved model gives the same logits. Losses: one finite loss a row, with a gradient.
Metrics: perfect predictions score best. Label generators: plans depend on seed, epoch and row only.
"""

import itertools
import math
import string
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, BertTokenizer

from attentune.config import Config, ModelConfig, load_config
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.tokenization import encode_rows, pad_batch
from attentune.errors import ConfigError
from attentune.metrics.metrics import Metric
from attentune.models.build import build_model, load_tokenizer
from attentune.models.saving import load_model, save_model
from attentune.nn.heads import needs_pairs
from attentune.nn.layer_mix import minimum_layers
from attentune.nn.losses import loss_task_types, row_losses
from attentune.plugins import GROUPS, full_name, load_plugin, plugin_names
from attentune.training.run import train

# One family with each kind of position: learned, relative and rotary.
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 16,
        "position_biased_input": False,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    },
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 8},
}
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_TEXTS = (
    "The movie was not unwatchable.",
    "Birds are singing outside my window, and the train leaves at 7:45 although nobody knows why; it is cold.",
    "",
)
_TOLERANCE = 1e-5
# The setting that names a part of the model.
_SETTINGS = {
    "attentune.heads": "head",
    "attentune.layer_mixes": "layer_mix",
    "attentune.token_gates": "token_gate",
    "attentune.blurs": "blur",
}
_NEEDS = ("classes", "two classes", "an order", "sets", "classes or sets")


def check_package(package: str, folder: str | Path | None = None) -> list[str]:
    """Check all parts of an installed package; return their names.

    `package` is the name of the distribution, as for pip. Tiny encoders and runs are written to `folder`, by default a
    temporary one. An AssertionError says which part does not do what its kind must do, a ConfigError that the package
    has no parts or that one cannot be imported.
    """
    found = [(group, name) for group in GROUPS for name in plugin_names(group) if name.startswith(f"{package}/")]
    if not found:
        raise ConfigError(
            f"{package}: has no entry points in {', '.join(GROUPS)}. Expected an installed package that declares some."
        )
    for group, name in found:
        check_part(group, name, folder)
    return [name for _, name in found]


def check_part(group: str, name: str, folder: str | Path | None = None) -> None:
    """Check one part of a group of `attentune.plugins.GROUPS`, named with or without its package."""
    try:
        name = full_name(group, name)
    except ValueError as error:
        raise ConfigError(f"{name}: got a part of {group}, expected {error}") from error
    if group == "attentune.losses":
        _check_loss(name)
    elif group == "attentune.metrics":
        _check_metric(name)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            check = _check_generator if group == "attentune.label_generators" else _check_model_part
            check(group, name, Path(temporary if folder is None else folder))


def build_tiny(family: str, folder: str | Path, *, layers: int = 3) -> Path:
    """Write a tiny encoder of a family of `ENCODERS`, with random weights and a WordPiece tokenizer; return its folder.

    Words are read letter by letter.
    """
    signs = string.ascii_lowercase + string.digits + string.punctuation
    pieces = [*_SPECIAL, *signs, *(f"##{sign}" for sign in signs)]
    tokenizer = BertTokenizer(vocab={piece: index for index, piece in enumerate(pieces)}, model_max_length=160)
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "cls_token_id", "sep_token_id")}
    config = AutoConfig.for_model(
        family,
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=160,
        initializer_range=0.2,  # instead of the default 0.02: outputs must clearly depend on the input
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        **ids,
        **ENCODERS[family],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)


def _require(holds: bool, name: str, what: str) -> None:
    if not holds:
        raise AssertionError(f"{name}: {what}")


# Parts of the model.


@dataclass(frozen=True)
class _Built:
    """A fresh model in evaluation mode, and how its inputs are made."""

    model: Any
    tokenizer: Any
    bi_encoder: bool

    def inputs(self, *texts: str) -> dict[str, torch.Tensor]:
        """Return texts as one batch; for a bi-encoder each with its reversed words as the second text."""
        pairs = tuple(" ".join(reversed(text.split())) for text in texts) if self.bi_encoder else None
        rows = TextRows(tuple(map(str, range(len(texts)))), texts, pairs, None, "contracts")
        features = encode_rows(rows, self.tokenizer, max_length=128, bi_encoder=self.bi_encoder)
        return pad_batch(features, range(len(texts)), pad_token_id=self.tokenizer.pad_token_id).inputs

    @torch.no_grad()
    def logits(self, *texts: str) -> torch.Tensor:
        return self.model(**self.inputs(*texts)).logits


def _check_model_part(group: str, name: str, folder: Path) -> None:
    for family in ENCODERS:
        built = _build(group, name, family, folder)
        what = f"{name} ({group}) on a tiny {family}"
        _check_padding(built, what)
        _check_gradients(built, what, own=f"{_SETTINGS[group]}.")
        _check_repeats_and_saving(built, what, folder / f"saved-{_SETTINGS[group]}-{family}")


def _build(group: str, name: str, family: str, folder: Path) -> _Built:
    part = _SETTINGS[group]
    layers = max(3, minimum_layers(name)) if part == "layer_mix" else 3
    encoder = build_tiny(family, folder / f"{family}-{layers}", layers=layers)
    settings: ModelConfig = replace(Config().model, name_or_path=str(encoder))
    changes: dict[str, Any] = {"kind": name} | ({"where": "context", "sigma": 0.6} if part == "blur" else {})
    settings = replace(settings, **{part: replace(getattr(settings, part), **changes)})
    pairs = part == "head" and needs_pairs(name)
    if pairs:
        settings = replace(settings, pair_encoding="bi-encoder", head=replace(settings.head, combine="concat"))
    tokenizer = load_tokenizer(settings)
    space = LabelSpace("classification", ("bad", "good"))
    model = build_model(settings, space, tokenizer, max_length=128, is_pair=pairs, seed=1)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(5)
        for weight_name, weight in model.named_parameters():
            if weight_name.startswith(f"{part}."):  # away from initial values, which may hide a mistake
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return _Built(model.eval(), tokenizer, pairs)


def _check_padding(built: _Built, what: str) -> None:
    together = built.logits(*_TEXTS)
    for row, text in enumerate(_TEXTS):
        distance = float((built.logits(text)[0] - together[row]).abs().max())
        _require(
            distance <= _TOLERANCE,
            what,
            f"the logits of a text differ by {distance:.2g} alone and in a batch with longer ones, expected at most"
            f" {_TOLERANCE}: padding has an effect. Use the mask of real tokens.",
        )
    distance = float((together[0] - together[1]).abs().max())
    _require(distance > _TOLERANCE, what, "two different texts have equal logits: tokens have no effect.")


def _check_gradients(built: _Built, what: str, *, own: str) -> None:
    model = built.model.train()
    output = model(**built.inputs(*_TEXTS), labels=torch.tensor([0, 1, 1]))
    loss = output.loss
    if output.token_logits is not None:  # a token head learns from token labels
        loss = loss + (output.token_logits**2).mean()
    loss.backward()
    model.eval()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
    broken = [name for name, grad in gradients.items() if grad is not None and not grad.isfinite().all()]
    _require(not broken, what, f"gradients are not finite: {', '.join(broken[:5])}.")
    reached = model.get_input_embeddings().weight.grad
    _require(reached is not None and bool(reached.abs().sum() > 0), what, "no gradient reaches the encoder.")
    unused = [name for name, grad in gradients.items() if name.startswith(own) and (grad is None or not grad.any())]
    _require(not unused, what, f"weights without a gradient: {', '.join(unused[:5])}. Remove or use them.")
    model.zero_grad()


def _check_repeats_and_saving(built: _Built, what: str, folder: Path) -> None:
    logits_BC = built.logits(*_TEXTS)
    same = torch.equal(built.logits(*_TEXTS), logits_BC)
    _require(same, what, "evaluation gives other logits the second time: it must be deterministic.")
    folder.mkdir(parents=True, exist_ok=True)
    save_model(built.model, built.tokenizer, folder)
    model, tokenizer = load_model(folder)
    same = torch.equal(replace(built, model=model.eval(), tokenizer=tokenizer).logits(*_TEXTS), logits_BC)
    _require(same, what, "a saved and loaded model gives other logits: keep all state in parameters and buffers.")


# Losses and metrics.


def _check_loss(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for task_type in loss_task_types(name):
        columns = 1 if task_type == "regression" else 3
        logits_BC = torch.randn(8, columns, generator=generator, requires_grad=True)
        labels_B = {
            "regression": torch.randn(8, generator=generator),
            "multi_label": torch.randint(2, (8, columns), generator=generator),
        }.get(task_type, torch.randint(columns, (8,), generator=generator))
        rows = row_losses(name, logits_BC, labels_B)
        what = f"{name} ({task_type})"
        shapes = tuple(rows.loss_B.shape), tuple(rows.weight_B.shape)
        _require(shapes == ((8,), (8,)), what, f"got losses and weights of shapes {shapes}, expected (8,) for 8 rows.")
        _require(bool(rows.loss_B.isfinite().all()), what, "losses are not finite.")
        _require(bool((rows.weight_B >= 0).all()) and bool(rows.weight_B.any()), what, "weights of rows are negative.")
        rows.mean().backward()
        grad = logits_BC.grad
        _require(grad is not None and bool(grad.isfinite().all()) and bool(grad.any()), what, "logits get no gradient.")


def _check_metric(name: str) -> None:
    metric = load_plugin("attentune.metrics", name)
    _require(isinstance(metric, Metric), name, f"got {type(metric).__name__}, expected an attentune.metrics Metric.")
    _require(metric.needs in _NEEDS, name, f"needs is {metric.needs!r}, expected one of {', '.join(_NEEDS)}.")
    draw = np.random.default_rng(0)
    labels: np.ndarray = draw.integers(2, size=(60, 3) if metric.needs == "sets" else 60)
    given: np.ndarray = draw.integers(2, size=labels.shape)
    if metric.needs == "an order":
        labels, given = draw.normal(size=60), draw.normal(size=60)
    perfect, random = metric.score(labels, labels), metric.score(labels, given)
    _require(math.isfinite(perfect) and math.isfinite(random), name, "a score of proper predictions is not finite.")
    sign = 1 if metric.greater_is_better else -1
    _require(sign * (perfect - random) > 0, name, f"perfect predictions score {perfect:g}, random ones {random:g}.")


# Label generators.


def _check_generator(group: str, name: str, folder: Path) -> None:
    encoder = build_tiny("bert", folder / "bert-generator")
    file = folder / "rows.csv"
    nouns, verbs, ends = ("film", "plot", "cast", "score"), ("was", "seemed"), ("dull", "great", "slow")
    lines = [
        f"the {' '.join(words)},{('no', 'yes')[words[2] == 'great']}" for words in itertools.product(nouns, verbs, ends)
    ]
    file.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    settings: dict[str, Any] = {
        "model.name_or_path": str(encoder),
        "model.token_gate.kind": "ssa",
        "labels.generator": name,
        "data.train_file": str(file),
        "data.max_length": 64,
        "training.overwrite_output_dir": True,
        "training.num_train_epochs": 2,
        "training.learning_rate": 1e-3,
        "training.per_device_train_batch_size": 8,
        "training.use_cpu": True,
        "training.baselines": "none",
    }
    weights = []
    for number, seed in enumerate((1, 1, 2)):
        run = folder / f"run-{number}"
        config = load_config(overrides=settings | {"training.output_dir": str(run), "training.seed": seed})
        train(config)
        weights.append(load_model(run)[0].state_dict())
    same = [all(torch.equal(weights[0][key], other[key]) for key in weights[0]) for other in weights[1:]]
    _require(
        same[0], name, "two runs with one seed end with other weights: choices must depend on seed, epoch and row only."
    )
    _require(not same[1], name, "two seeds end with the same weights.")
