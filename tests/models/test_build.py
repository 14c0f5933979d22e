"""Fresh models over every family: the checkpoint's weights, a pooler where there is one, and what the settings say."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from attentune.config import HeadConfig, ModelConfig, load_config, preset_names
from attentune.data.dataset import LabelSpace
from attentune.models.build import build_model, load_tokenizer, pooler_is_trained, resolve_encoder
from attentune.models.saving import label_space_of, pooler_dense, readable_positions
from attentune.nn.heads import Pooler
from helpers.tiny import FAMILIES, MAX_POSITIONS
from helpers.tiny_models import FIRST, LONG, TWO, build, encoded, logits_of

Tiny = Callable[..., Path]
POOLERS = ("bert", "roberta", "albert", "mpnet", "xlm-roberta")
CASES = [(family, None) for family in FAMILIES] + [(family, has) for family in POOLERS for has in (True, False)]
every_family = pytest.mark.parametrize("family", FAMILIES)


def pooler_of(model: nn.Module) -> nn.Linear | None:
    found = [module.dense for module in model.modules() if isinstance(module, Pooler)]
    assert len(found) <= 1
    return found[0] if found else None


def same(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(("family", "pooler"), CASES)
def test_the_encoders_weights_are_the_checkpoints_bit_for_bit(tiny: Tiny, family: str, pooler: bool | None) -> None:
    folder = tiny(family, pooler=pooler)
    model, _ = build(folder)
    theirs = AutoModel.from_pretrained(folder).state_dict()
    ours = model.encoder.state_dict()
    assert {name for name in theirs if not name.startswith("pooler")} == set(ours)
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())
    assert all(weight.dtype == torch.float32 for weight in model.parameters())


@pytest.mark.parametrize(("family", "pooler"), CASES)
def test_the_pooler_is_taken_over_exactly_where_the_checkpoint_has_one(
    tiny: Tiny, family: str, pooler: bool | None
) -> None:
    folder = tiny(family, pooler=pooler)
    has_one = family in ("bert", "albert", "mpnet") if pooler is None else pooler
    model, _ = build(folder)
    dense = pooler_of(model)
    assert (dense is not None) == has_one == model.config.head["with_pooler"]
    if dense is not None:
        assert same(dense, pooler_dense(AutoModel.from_pretrained(folder)))
    assert pooler_dense(model.encoder) is None  # pooling is the head's alone


@pytest.mark.parametrize("family", ["bert", "albert", "roberta", "distilbert"])
def test_the_settings_can_ask_for_a_fresh_pooler_or_none(tiny: Tiny, family: str) -> None:
    fresh, _ = build(tiny(family), head=HeadConfig(pooler="fresh"))
    assert pooler_of(fresh) is not None
    theirs = pooler_dense(AutoModel.from_pretrained(tiny(family)))
    assert theirs is None or not torch.equal(pooler_of(fresh).weight, theirs.weight)
    assert pooler_of(fresh).weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert pooler_of(build(tiny(family), head=HeadConfig(pooler="none"))[0]) is None


@pytest.mark.parametrize("name", [name for name in preset_names() if name.startswith(("sesame", "se-", "blur"))])
def test_sesame_has_the_checkpoints_pooler_and_a_fresh_one_only_where_there_is_none(tiny: Tiny, name: str) -> None:
    settings = load_config(preset=name).model
    assert settings.head.pooler == "auto"
    folder = tiny("bert", layers=4)
    assert same(pooler_of(build(folder, settings=settings)[0]), pooler_dense(AutoModel.from_pretrained(folder)))
    assert pooler_of(build(tiny("distilbert", layers=4), settings=settings)[0]) is not None


@pytest.mark.parametrize("by_cls", [True, False])
def test_a_pooler_that_the_last_training_did_not_use_is_new(tiny: Tiny, tmp_path: Path, by_cls: bool) -> None:
    folder = tmp_path / "sentence-transformer"
    shutil.copytree(tiny("bert"), folder)
    (folder / "1_Pooling").mkdir()
    pooling = {"pooling_mode_cls_token": by_cls, "pooling_mode_mean_tokens": not by_cls}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    made = pooler_of(build(folder)[0])
    assert made is not None
    assert same(made, pooler_dense(AutoModel.from_pretrained(folder))) == by_cls


def test_the_embedded_encoder_was_trained_on_the_mean_of_its_tokens() -> None:
    assert not pooler_is_trained(ModelConfig())


@torch.no_grad()
def test_attention_blocks_start_close_to_a_mean_and_with_u_09_1_on_single_tokens() -> None:
    """On the embedded encoder; the poster says the opposite of U(0.9, 1)."""
    largest = {}
    for init in ("default", "uniform"):
        model, tokenizer = build(Path("embedded"), head=HeadConfig("self-attention", init=init), label_space=TWO)
        inputs = encoded(tokenizer, "a fast and funny film that is not for everyone")
        hidden_1TD, block = model.encode(**inputs).last_hidden_state, model.head.blocks[0].attention
        query, key = (
            linear(hidden_1TD).unflatten(-1, (block.heads, -1)).transpose(1, 2) for linear in (block.query, block.key)
        )
        weights_1HTT = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(dim=-1)
        largest[init] = weights_1HTT[0, :, 0].amax(dim=-1).mean().item()
    assert largest["default"] < 1.2 / hidden_1TD.shape[1]
    assert largest["uniform"] > 0.9


def test_regression_starts_at_the_mean_score(tiny: Tiny) -> None:
    settings = ModelConfig(name_or_path=str(tiny("bert")))
    tokenizer = load_tokenizer(settings)
    options = {"max_length": 16, "is_pair": False, "seed": 1, "loss": "mse"}
    model = build_model(settings, LabelSpace("regression"), tokenizer, score_mean=3.25, score_std=2.0, **options)
    plain = build_model(settings, LabelSpace("regression"), tokenizer, **options)
    assert model.classifier.bias.tolist() == [0.0]
    found, raw = (logits_of((one.eval(), tokenizer), FIRST, LONG) for one in (model, plain))
    assert torch.equal(found, 3.25 + 2.0 * raw.double())


@pytest.mark.parametrize("kind", ["mean", "cls-mean"])
def test_other_heads_take_no_pooler(tiny: Tiny, kind: str) -> None:
    model, _ = build(tiny("bert"), head=HeadConfig(kind=kind, pooler="fresh"))
    assert pooler_of(model) is None
    assert not model.config.head["with_pooler"]


def test_a_checkpoint_with_another_models_head_is_an_encoder_too(tiny: Tiny, tmp_path: Path) -> None:
    masked = AutoModelForMaskedLM.from_pretrained(tiny("bert"))
    masked.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny("bert")).save_pretrained(tmp_path)
    model, _ = build(tmp_path)
    assert same(model.encoder.embeddings, masked.bert.embeddings)
    assert same(model.encoder.encoder, masked.bert.encoder)
    assert pooler_of(model) is None


@every_family
def test_gradients_reach_every_weight(tiny: Tiny, family: str) -> None:
    model, tokenizer = build(tiny(family), head=HeadConfig(pooler="fresh"))
    assert all(parameter.requires_grad for parameter in model.parameters())
    output = model(**encoded(tokenizer, FIRST, LONG), labels=torch.tensor([0, 1]))
    output.loss.backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not [name for name, p in model.named_parameters() if p.grad.abs().sum() == 0]


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_fresh_weights_are_a_function_of_the_seed_alone(tiny: Tiny, family: str) -> None:
    def fresh(seed: int, state: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(state)
        return build(tiny(family), head=HeadConfig(pooler="fresh"), seed=seed)[0].state_dict()

    with torch.random.fork_rng(devices=[]):
        one, again, other = fresh(1, 0), fresh(1, 5), fresh(2, 0)
    assert all(torch.equal(one[name], again[name]) for name in one)
    differ = {name for name in one if not torch.equal(one[name], other[name])}
    assert differ == {"head.pooler.dense.weight", "classifier.weight"}
    assert one["classifier.weight"].std().item() == pytest.approx(0.02, rel=0.5)
    assert one["classifier.bias"].abs().sum() == 0


@pytest.mark.parametrize(
    ("space", "outputs", "kind"),
    [
        (LabelSpace("regression"), 1, "regression"),
        (LabelSpace("ordinal", ("low", "middle", "high")), 3, "single_label_classification"),
        (LabelSpace("classification", ("only",)), 1, None),
        (
            LabelSpace("classification", tuple(f"label {n}" for n in range(150, 0, -1))),
            150,
            "single_label_classification",
        ),
        (LabelSpace("classification", ("LABEL_1", "LABEL_0")), 2, "single_label_classification"),
    ],
)
def test_every_kind_of_label_space_is_kept(tiny: Tiny, space: LabelSpace, outputs: int, kind: str | None) -> None:
    model, tokenizer = build(tiny("bert"), label_space=space)
    assert logits_of((model, tokenizer), FIRST, LONG).shape == (2, outputs)
    assert label_space_of(model.config) == space
    assert (model.config.num_labels, model.config.problem_type) == (outputs, kind)
    if space.names:
        assert list(model.config.id2label.values()) == list(space.names)
        assert list(model.config.label2id) == list(space.names)


@pytest.mark.integration
@every_family
def test_the_models_dropout_is_the_settings(tiny: Tiny, family: str) -> None:
    def outputs(dropout: float | None) -> tuple[torch.Tensor, torch.Tensor]:
        model, tokenizer = build(tiny(family), dropout=dropout, head=HeadConfig(dropout=0.0))
        model.train()
        inputs = encoded(tokenizer, FIRST, LONG)
        return model(**inputs).logits, model(**inputs).logits

    assert torch.equal(*outputs(0.0))
    assert not torch.equal(*outputs(0.3))
    by_itself = build(tiny(family))[0].encoder
    asked = build(tiny(family), dropout=0.3)[0].encoder
    rates = [{m.p for m in encoder.modules() if isinstance(m, nn.Dropout)} for encoder in (by_itself, asked)]
    assert rates[1] == {0.3}
    assert rates[0] == ({0.0} if family == "modernbert" else {0.1})


def test_the_heads_dropout_is_the_settings(tiny: Tiny) -> None:
    model, _ = build(tiny("bert"), head=HeadConfig(dropout=0.25))
    assert model.dropout.p == 0.25


@every_family
def test_the_longest_length_is_that_of_the_encoders_positions(tiny: Tiny, family: str) -> None:
    model, tokenizer = build(tiny(family), max_length=MAX_POSITIONS)
    assert readable_positions(model.encoder) == MAX_POSITIONS
    inputs = tokenizer("x " * 500, truncation=True, max_length=MAX_POSITIONS, return_tensors="pt")
    assert inputs["input_ids"].shape == (1, MAX_POSITIONS)
    assert model(**inputs).logits.isfinite().all()


@every_family
def test_mask_and_unknown_stand_for_words(tiny: Tiny, family: str) -> None:
    model, tokenizer = build(tiny(family))
    ids = set(model.special_ids.tolist())
    assert ids == {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id}
    assert not ids & {tokenizer.mask_token_id, tokenizer.unk_token_id}


def test_a_batch_without_a_mask_is_all_real(tiny: Tiny) -> None:
    model, tokenizer = build(tiny("bert"))
    inputs = encoded(tokenizer, FIRST)
    with torch.no_grad():
        assert torch.equal(model(input_ids=inputs["input_ids"]).logits, model(**inputs).logits)


def test_embedded_is_the_encoder_of_the_installed_package() -> None:
    assert (Path(resolve_encoder("embedded")) / "config.json").is_file()
    assert resolve_encoder("bert-base-uncased") == "bert-base-uncased"
    model, tokenizer = build(Path("embedded"), label_space=TWO)
    assert (model.config.encoder.hidden_size, model.config.encoder.num_hidden_layers) == (384, 6)
    assert model.config.encoder.name_or_path == "embedded"
    assert load_tokenizer(ModelConfig()).vocab_size == len(tokenizer) == 30522
