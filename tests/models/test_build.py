"""Fresh models of every family, and such from an earlier run: weights, pooler where there is one, and settings."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from attentune.config import HeadConfig, ModelConfig, load_config, preset_names
from attentune.data.dataset import LabelSpace
from attentune.models.build import load_tokenizer, pooler_is_trained, resolve_encoder
from attentune.models.saving import pooler_dense, readable_positions, save_model
from attentune.nn.heads import Pooler
from helpers.tiny import FAMILIES, MAX_POSITIONS
from helpers.tiny_models import FIRST, LONG, TWO, Built, build, encoded, logits_of

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
def test_the_weights_are_the_checkpoints_bit_for_bit_and_its_pooler_if_it_has_one(tiny, family, pooler):
    folder = tiny(family, pooler=pooler)
    model, _ = build(folder)
    checkpoint = AutoModel.from_pretrained(folder)
    theirs = checkpoint.state_dict()
    ours = model.encoder.state_dict()
    assert {name for name in theirs if not name.startswith("pooler")} == set(ours)
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())
    assert all(weight.dtype == torch.float32 for weight in model.parameters())
    has_one = family in ("bert", "albert", "mpnet") if pooler is None else pooler
    dense = pooler_of(model)
    assert (dense is not None) == has_one == model.config.head["with_pooler"]
    assert dense is None or same(dense, pooler_dense(checkpoint))
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


# Starting from an earlier run: its encoder, and its slots and classifier where they fit


def saved_run(tiny: Tiny, folder: Path, preset: str = "ssa-hybrid", **options: object) -> tuple[Built, Path]:
    """A model whose weights are all unlike fresh ones, and its folder."""
    model, tokenizer = build(tiny("bert"), settings=load_config(preset=preset).model, **options)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.01)
    save_model(model, tokenizer, folder)
    return (model, tokenizer), folder


@pytest.mark.parametrize("preset", ["bert", "ssa-hybrid", "ssa-co"])
def test_the_same_method_goes_on_where_the_run_ended(tiny: Tiny, tmp_path: Path, preset: str) -> None:
    before, folder = saved_run(tiny, tmp_path, preset)
    again = build(folder, settings=load_config(preset=preset).model, seed=7)
    assert torch.equal(logits_of(again, FIRST, LONG), logits_of(before, FIRST, LONG))


def test_what_does_not_fit_is_fresh_and_the_encoder_is_kept(tiny: Tiny, tmp_path: Path) -> None:
    (before, _), folder = saved_run(tiny, tmp_path)
    three = LabelSpace("classification", ("a", "b", "c"))
    model, _ = build(folder, settings=load_config(preset="ssa-co").model, label_space=three, max_length=64)
    for name, weight in before.encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], weight)
    theirs, mine = before.token_gate.state_dict(), model.token_gate.state_dict()
    assert theirs
    assert all(torch.equal(mine[name], weight) for name, weight in theirs.items())
    assert model.classifier.weight.shape == (3, before.classifier.weight.shape[1])


def test_a_classifier_of_other_labels_is_not_taken(tiny: Tiny, tmp_path: Path) -> None:
    (before, _), folder = saved_run(tiny, tmp_path)
    settings = load_config(preset="ssa-hybrid").model
    turned, _ = build(folder, settings=settings, label_space=LabelSpace("classification", ("good", "bad")))
    same, _ = build(folder, settings=settings, label_space=TWO)
    assert not torch.equal(turned.classifier.weight, before.classifier.weight)
    assert torch.equal(same.classifier.weight, before.classifier.weight)


def test_dropout_can_be_set_anew(tiny: Tiny, tmp_path: Path) -> None:
    _, folder = saved_run(tiny, tmp_path)
    settings: ModelConfig = replace(load_config(preset="ssa-hybrid").model, dropout=0.3)
    model, _ = build(folder, settings=settings)
    assert model.encoder.embeddings.dropout.p == 0.3
