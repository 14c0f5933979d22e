"""Builds what fills the model's slots from its configuration, and what is attached to the encoder: blur and adapters.

Adapters are those of the peft library, on query and value projections (Hu et al. 2021, "LoRA: Low-Rank Adaptation of
Large Language Models").
"""

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from attentune.errors import UnsupportedEncoderError
from attentune.models.configuration import AttentuneConfig
from attentune.nn.blur import BLUR_PLACES, GaussianBlur, apply_blur
from attentune.nn.classifiers import build_classifier, raw_outputs
from attentune.nn.heads import TOKEN_GATES, HeadOptions, ImportanceGate, build_head
from attentune.nn.layer_mix import LAYER_MIXES, LayerMix
from attentune.plugins import is_plugin, part_of, require_extra

# Paths of the value and output projections within an encoder layer. They are looked up in every module, not by the name
# of the family. ModernBERT's `Wqkv` computes queries, keys and values together.
_PROJECTIONS = (
    ("attention.self.value", "attention.output.dense"),  # BERT, RoBERTa, ELECTRA, XLM-R
    ("attention.self.value_proj", "attention.output.dense"),  # DeBERTa-v2
    ("attention.v_lin", "attention.out_lin"),  # DistilBERT
    ("attention.value", "attention.dense"),  # ALBERT
    ("attention.attn.v", "attention.attn.o"),  # MPNet
    ("attn.Wqkv", "attn.Wo"),  # ModernBERT
)


class BlurHooks:
    """Owns the hooks that blur an encoder's attention.

    Run the encoder within `prepared` only. The hooks and the latest matrices stay afterwards, since gradient
    checkpointing runs layers again in the backward pass; with it, each forward pass needs its backward pass before the
    next. `remove` removes the hooks.
    """

    def __init__(self, encoder: nn.Module, *, where: str, layers: tuple[int, ...] | None) -> None:
        self._encoder = encoder
        self._matrices: list[Tensor] = []
        self._is_prepared = False
        self._handles: list[Any] = []
        self._places: dict[nn.Module, int] = {}
        chosen = chosen_projections(encoder, layers)
        self.layers = len(chosen)
        for number, (value, output) in enumerate(chosen):
            if where in ("context", "scores"):
                self._places[output] = number
                self._handles.append(output.register_forward_pre_hook(self._before_output))
            if where in ("value", "scores"):
                self._places[value] = number
                self._handles.append(value.register_forward_hook(self._after_value))

    @contextlib.contextmanager
    def prepared(self, matrices: list[Tensor]) -> Iterator[None]:
        """Blur with these matrices while the block runs: one for all layers, or one for each blurred layer."""
        self._matrices, self._is_prepared = matrices, True
        try:
            yield
        finally:
            self._is_prepared = False

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __getstate__(self) -> dict[str, Any]:
        """Leave the last batch's matrices out of copies, since they may be part of an autograd graph."""
        return {**self.__dict__, "_matrices": []}

    def _matrix(self, module: nn.Module) -> Tensor:
        if not self._is_prepared and not (self._matrices and self._runs_again()):
            raise RuntimeError(
                "the encoder of a model with blur was called directly, but the blur needs the attention mask of the"
                " batch; call the model instead, with output_hidden_states=True for the encoder's layers."
            )
        return self._matrices[self._places[module] if len(self._matrices) > 1 else 0]

    def _runs_again(self) -> bool:
        """Whether gradient checkpointing may be running a layer again in the backward pass."""
        return any(
            module.training and getattr(module, "gradient_checkpointing", False) for module in self._encoder.modules()
        )

    def _before_output(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (apply_blur(self._matrix(module), inputs[0]), *inputs[1:])

    def _after_value(self, module: nn.Module, inputs: Any, output_BTD: Tensor) -> Tensor:
        matrix, linear = self._matrix(module), _linear(module)
        if linear is not None and linear.out_features == 3 * linear.in_features:  # queries, keys and values together
            queries_keys, values_BTD = output_BTD.split([output_BTD.shape[-1] // 3 * 2, output_BTD.shape[-1] // 3], -1)
            return torch.cat([queries_keys, apply_blur(matrix, values_BTD)], dim=-1)
        return apply_blur(matrix, output_BTD)


def projections(encoder: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Find the value and output projections of each layer, in order; layers that share weights appear once."""
    pairs: list[tuple[nn.Module, nn.Module]] = []
    for module in encoder.modules():
        for paths in _PROJECTIONS:
            with contextlib.suppress(AttributeError):  # it is no layer, or one of another family
                value, output = map(module.get_submodule, paths)
                if _linear(value) is not None and _linear(output) is not None:
                    pairs.append((value, output))
                    break
    return pairs


def chosen_projections(encoder: Any, layers: tuple[int, ...] | None) -> list[tuple[nn.Module, nn.Module]]:
    """Find the projections of the layers to blur."""
    pairs, count = projections(encoder), encoder.config.num_hidden_layers
    kind = encoder.config.model_type
    # ALBERT's layer groups exist once and are run repeatedly.
    shared = getattr(encoder.config, "num_hidden_groups", 0) * getattr(encoder.config, "inner_group_num", 1)
    shares = 0 < len(pairs) == shared < count
    if len(pairs) != count and not shares:
        raise UnsupportedEncoderError(
            f"model.blur: the value and output projections of attention were found in {len(pairs)} of this {kind}"
            f" encoder's {count} layers, expected all, so it cannot be blurred. Set model.blur.where none, or take an"
            " encoder of another family."
        )
    if layers is None:
        return pairs
    if shares:
        raise UnsupportedEncoderError(
            f"model.blur.layers: this {kind} encoder's {count} layers share their weights, so they can only be blurred"
            " all together; set it to all."
        )
    wrong = [number for number in layers if not 1 <= number <= count]
    if wrong:
        raise UnsupportedEncoderError(
            f"model.blur.layers: got {', '.join(map(str, wrong))}, expected numbers from 1 to {count}, the layers of"
            " this encoder, or all."
        )
    return [pairs[number - 1] for number in sorted(set(layers))]


def _linear(module: nn.Module) -> nn.Linear | None:
    """Return the linear layer itself, or the one inside an adapter; None for anything else."""
    inner = getattr(module, "base_layer", module)
    return inner if isinstance(inner, nn.Linear) else None


def _check_known(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known and not is_plugin(value):
        raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(known)}")


def blur_slot(config: AttentuneConfig, encoder: Any) -> tuple[GaussianBlur | None, BlurHooks | None]:
    """Build the blur and the hooks that apply it; (None, None) without blur."""
    blur = config.blur
    _check_known("blur.where", blur["where"], BLUR_PLACES)
    if blur["where"] == "none":
        return None, None
    numbers = None if blur["layers"] == "all" else tuple(int(number) for number in str(blur["layers"]).split(","))
    hooks = BlurHooks(encoder, where=blur["where"], layers=numbers)
    kernel = part_of({"gaussian": GaussianBlur}, "attentune.blurs", blur.get("kind", "gaussian"))
    heads = config.encoder_config.num_attention_heads
    sizes = {"size": blur["size"], "sigma": blur["sigma"], "layers": hooks.layers, "heads": heads}
    return kernel(**sizes, learnable=blur["learnable"]), hooks


def layer_mix_slot(config: AttentuneConfig) -> LayerMix | None:
    mix = config.layer_mix
    _check_known("layer_mix.kind", mix["kind"], LAYER_MIXES)
    if mix["kind"] == "last" and not mix["squeeze"]:
        return None
    encoder = config.encoder_config
    return LayerMix(
        kind=mix["kind"],
        num_layers=encoder.num_hidden_layers,
        hidden_size=encoder.hidden_size,
        squeeze=mix["squeeze"],
        ratio=mix["ratio"],
        neutral=mix["init"] == "neutral",
    )


def token_gate_slot(config: AttentuneConfig) -> ImportanceGate | None:
    gate = config.token_gate
    _check_known("token_gate.kind", gate["kind"], TOKEN_GATES)
    if gate["kind"] == "none":
        return None
    encoder = config.encoder_config
    return part_of({"ssa": ImportanceGate}, "attentune.token_gates", gate["kind"])(
        hidden_size=encoder.hidden_size,
        activation=_activation(encoder),
        positions=None if gate["share_weights"] else config.max_seq_length,
        share_of_head=gate["beta"],
        threshold=gate["attention_threshold"],
    )


def head_slot(config: AttentuneConfig) -> nn.Module:
    head, encoder = config.head, config.encoder_config
    options = HeadOptions(
        hidden_size=encoder.hidden_size,
        share_of_cls=head["beta"],
        with_pooler=head["with_pooler"],
        layers=head["layers"],
        bare=head["bare"],
        attention_heads=head["attention_heads"] or 1,
        inner_size=_first(encoder, ("intermediate_size", "hidden_dim")) or 4 * encoder.hidden_size,
        activation=_activation(encoder),
        dropout=float(_first(encoder, ("hidden_dropout_prob", "dropout", "mlp_dropout")) or 0.0),
        near_one=head["init"] == "uniform",
    )
    return build_head(head["kind"], options)


def classifier_slot(config: AttentuneConfig) -> nn.Module:
    """Build the classifier: a linear layer, or for a bi-encoder what combines the two texts."""
    return build_classifier(
        hidden_size=config.encoder_config.hidden_size,
        outputs=raw_outputs(config.loss, config.num_labels),
        combine=config.head["combine"],
        projection=config.head["projection"],
    )


def _activation(encoder: Any) -> Callable[[Tensor], Tensor]:
    activation = _first(encoder, ("hidden_act", "hidden_activation", "activation")) or "gelu"
    return ACT2FN[activation] if isinstance(activation, str) else activation


def _first(encoder: Any, names: tuple[str, ...]) -> Any:
    """Return the first of these settings that the encoder has; families name them differently."""
    return next((value for value in (getattr(encoder, name, None) for name in names) if value is not None), None)


# Names of the query and value projections by family; the first complete entry is used.
_TARGETS = (("query", "value"), ("query_proj", "value_proj"), ("q_lin", "v_lin"), ("q", "v"), ("Wqkv",))


def check_peft() -> None:
    require_extra("peft", "peft", what="training.lora_rank")


def adapter_settings(settings: dict[str, Any], encoder: nn.Module, **more: Any) -> Any:
    names = {name.split(".")[-1] for name, module in encoder.named_modules() if isinstance(module, nn.Linear)}
    targets = next((targets for targets in _TARGETS if names.issuperset(targets)), None)
    if targets is None:
        raise UnsupportedEncoderError(
            "training.lora_rank: found no projections to queries and values in this encoder, expected those of a"
            " BERT-like one. Train it without --lora_rank."
        )
    # Imported by name: transformers scans model code for imports and would require peft for models without adapters.
    return importlib.import_module("peft").LoraConfig(
        r=settings["rank"],
        lora_alpha=settings["alpha"],
        lora_dropout=settings["dropout"],
        target_modules=list(targets),
        bias="none",
        **more,
    )


def inject_adapters(encoder: nn.Module, settings: dict[str, Any]) -> None:
    """Add new adapters to an encoder, initially without effect, and train only these."""
    importlib.import_module("peft").inject_adapter_in_model(adapter_settings(settings, encoder), encoder)
    for name, module in encoder.named_modules():
        if ".lora_" in f".{name}":
            # Initialised by peft with B = 0; must not be initialised again.
            module._is_hf_initialized = True


def merge_adapters(model: Any) -> dict[str, Tensor] | None:
    """Merge a model's adapters into the weights of its encoder and remove them; return them as peft names them."""
    if model.config.lora is None:
        return None
    layer = importlib.import_module("peft.tuners.lora").LoraLayer
    adapters = {
        f"base_model.model.{name.replace('.default.', '.')}": value.detach().cpu().clone().contiguous()
        for name, value in model.encoder.named_parameters()
        if ".lora_" in name
    }
    for parent in list(model.encoder.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, layer):
                child.merge()
                setattr(parent, name, child.get_base_layer())
    model.encoder.requires_grad_(True)
    if hasattr(model.encoder, "peft_config"):
        del model.encoder.peft_config
    model.config.lora = None
    if model.blur_hooks is not None:
        # Its hooks were attached to the modules just replaced.
        model.blur_hooks.remove()
        model.blur_hooks = blur_slot(model.config, model.encoder)[1]
    return adapters
