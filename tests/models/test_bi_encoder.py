"""A model that reads the texts of a pair apart, against each text read alone; and what it refuses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attentune.config import BlurConfig, HeadConfig, LayerMixConfig, ModelConfig, TokenGateConfig, load_config
from attentune.data.dataset import LabelSpace
from attentune.errors import UnsupportedEncoderError
from attentune.models.saving import load_model, save_model
from attentune.nn.heads import Attention, TransformerBlock
from helpers.tiny import FAMILIES
from helpers.tiny_models import FIRST, LONG, SECOND, Built, build, encoded, encoded_apart

Tiny = Callable[..., Path]
every_family = pytest.mark.parametrize("family", FAMILIES)
PAIRS = ((FIRST, LONG), (LONG, SECOND), ("", FIRST))
SCORE, THREE = LabelSpace("regression"), LabelSpace("classification", ("no", "maybe", "yes"))


def bi_encoder(tiny: Tiny, family: str = "bert", **options: Any) -> Built:
    slots = {name: options.pop(name) for name in ("head", "blur", "layer_mix", "token_gate") if name in options}
    settings = replace(ModelConfig(), pair_encoding="bi-encoder", **slots)
    model, tokenizer = build(tiny(family), settings=settings, is_pair=True, **options)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Normalisations too: as they are drawn, each layer's mean is 0 whatever the text.
            if not name.startswith("encoder.") or "norm" in name.lower():
                weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    return model, tokenizer


@every_family
@pytest.mark.parametrize("combine", ["dot", "concat"])
@torch.no_grad()
def test_each_text_is_read_as_if_it_were_alone(tiny: Tiny, family: str, combine: str) -> None:
    """By the encoder itself, from token ids, one text at a time: logits are those of both means."""
    model, tokenizer = bi_encoder(tiny, family, head=HeadConfig("mean", combine=combine))
    logits_BC = model(**encoded_apart(tokenizer, *PAIRS)).logits

    def mean_of(text: str) -> torch.Tensor:
        return model.encoder(**encoded(tokenizer, text)).last_hidden_state.mean(dim=1)

    texts_ND = torch.cat([mean_of(pair[place]) for place in (0, 1) for pair in PAIRS])
    torch.testing.assert_close(logits_BC, model.classifier(texts_ND), atol=2e-5, rtol=2e-5)


@torch.no_grad()
def test_blur_layer_mix_and_token_gate_work_text_by_text(tiny: Tiny) -> None:
    """Against a model of single texts with the same weights: its importances, and the means of its layers' weights."""
    slots = {
        "head": HeadConfig("cls-mean"),
        "blur": BlurConfig("context", 0.7),
        "layer_mix": LayerMixConfig("weighted", True),
        "token_gate": TokenGateConfig("ssa", 0.3, share_weights=False),
    }
    model, tokenizer = bi_encoder(tiny, **slots)
    single, _ = build(tiny("bert"), settings=replace(ModelConfig(), **slots))
    weights = {name: weight for name, weight in model.state_dict().items() if not name.startswith("classifier.")}
    assert single.load_state_dict(weights, strict=False).unexpected_keys == []
    vectors: list[torch.Tensor] = []
    single.classifier.register_forward_pre_hook(lambda module, given: vectors.append(given[0]))
    inputs = encoded_apart(tokenizer, *PAIRS)
    output = model(**inputs)
    for row, pair in enumerate(PAIRS):
        first, second = (single(**encoded(tokenizer, text)) for text in pair)
        expected_1C = model.classifier(torch.cat(vectors[-2:]))
        torch.testing.assert_close(output.logits[row], expected_1C[0], atol=2e-5, rtol=2e-5)
        length = int(inputs["attention_mask"][row].sum())
        for name in ("token_scores", "token_logits"):
            expected = torch.cat([getattr(first, name)[0], getattr(second, name)[0]])
            torch.testing.assert_close(getattr(output, name)[row, :length], expected, atol=1e-5, rtol=1e-5)
        expected_L = (first.layer_weights[0] + second.layer_weights[0]) / 2
        torch.testing.assert_close(output.layer_weights[row], expected_L, atol=1e-5, rtol=1e-5)
    assert output.layer_weights.std(dim=0).max() > 1e-4, "pairs differ"


@torch.no_grad()
def test_the_encoders_output_can_be_kept_and_given_back(tiny: Tiny) -> None:
    model, tokenizer = bi_encoder(tiny, head=HeadConfig("cross-attention", bare=True))
    inputs = encoded_apart(tokenizer, *PAIRS)
    kept_BTD = model.encode(**inputs).last_hidden_state
    assert kept_BTD.shape[:2] == inputs["input_ids"].shape
    assert not kept_BTD[inputs["attention_mask"] == 0].any()
    alone_TD = model.encoder(**encoded(tokenizer, LONG)).last_hidden_state[0]
    begin = int(inputs["second_start"][0])
    torch.testing.assert_close(kept_BTD[0, begin : begin + len(alone_TD)], alone_TD, atol=2e-5, rtol=2e-5)
    assert torch.equal(model(**inputs, encoded_BTD=kept_BTD).logits, model(**inputs).logits)


# Settled when built


def test_task_attention_is_settled_by_the_rows_and_saved_so(tiny: Tiny, tmp_path: Path) -> None:
    settings = load_config(preset="task-attention").model
    single, _ = build(tiny("bert"), settings=settings)
    assert single.config.head["kind"] == "self-attention"
    assert (single.config.head["layers"], single.config.head["bare"]) == (2, False)
    assert (single.config.pair_encoding, single.config.is_bi_encoder) == ("cross-encoder", False)
    assert isinstance(single.classifier, torch.nn.Linear)
    pairs, tokenizer = build(tiny("bert"), settings=settings, is_pair=True)
    assert pairs.config.head["kind"] == "cross-attention"
    assert (pairs.config.head["layers"], pairs.config.head["bare"]) == (0, True)
    assert pairs.config.is_bi_encoder
    scores, _ = build(tiny("bert"), settings=settings, is_pair=True, label_space=SCORE)
    assert [type(block) for block in scores.head.blocks] == [TransformerBlock, TransformerBlock, Attention]
    assert (pairs.classifier.projection.out_features, scores.classifier.projection.out_features) == (32, 4 * 32)
    save_model(pairs, tokenizer, tmp_path)
    assert load_model(tmp_path)[0].config.head == pairs.config.head


@pytest.mark.integration
@pytest.mark.parametrize(
    ("head", "is_pair", "layers"),
    [
        (HeadConfig("self-attention"), True, 2),
        (HeadConfig("self-attention", layers=3, bare=True), False, 3),
        (HeadConfig("cross-attention"), True, 1),
        (HeadConfig("cross-attention", bare=True), True, 1),
        (HeadConfig("cross-attention", layers=2, bare=True), True, 3),
        (HeadConfig("task-attention", layers=3), True, 3),
        (HeadConfig("task-attention", layers=3), False, 3),
    ],
)
def test_how_many_blocks(tiny: Tiny, head: HeadConfig, is_pair: bool, layers: int) -> None:
    settings = replace(ModelConfig(), pair_encoding="bi-encoder", head=head)
    model, _ = build(tiny("bert"), settings=settings, is_pair=is_pair)
    assert len(model.head.blocks) == layers


@pytest.mark.integration
def test_blocks_have_the_encoders_sizes_unless_told_otherwise(tiny: Tiny) -> None:
    for family in FAMILIES:
        settings = replace(ModelConfig(), dropout=0.25, head=HeadConfig("self-attention", dropout=0.5))
        model, _ = build(tiny(family), settings=settings)
        block = model.head.blocks[0]
        assert (block.attention.heads, block.inner.out_features) == (4, 64)
        assert block.attention.dropout == block.dropout.p == 0.25
        assert model.dropout.p == 0.5
    model, _ = build(tiny("bert"), head=HeadConfig("self-attention", attention_heads=16))
    assert model.head.blocks[1].attention.heads == 16


# What does not go together


def test_an_encoder_that_takes_no_embeddings_is_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertModel

    whole = BertModel.forward

    def without_embeddings(self: BertModel, input_ids: torch.Tensor, **others: Any) -> Any:
        return whole(self, input_ids, **others)

    monkeypatch.setattr(BertModel, "forward", without_embeddings)
    with pytest.raises(UnsupportedEncoderError, match="not accept inputs_embeds.*Set --pair_encoding cross-encoder"):
        bi_encoder(tiny)
    build(tiny("bert"), is_pair=True)


def test_inputs_of_the_other_kind_are_refused(tiny: Tiny) -> None:
    model, tokenizer = bi_encoder(tiny)
    inputs = encoded_apart(tokenizer, *PAIRS)
    with pytest.raises(ValueError, match="got no second_start, but this model is a bi-encoder"):
        model(**encoded(tokenizer, FIRST))
    joint, _ = build(tiny("bert"), is_pair=True)
    with pytest.raises(ValueError, match="got a second_start, but this model is not a bi-encoder"):
        joint(**inputs)


# Starting from another run


def saved_run(made: Built, folder: Path) -> Path:
    save_model(*made, folder)
    return folder


@torch.no_grad()
def test_a_run_goes_on_where_it_ended_and_takes_what_fits(tiny: Tiny, tmp_path: Path) -> None:
    made = bi_encoder(tiny, head=HeadConfig("cross-attention", bare=True, projection=9))
    folder = saved_run(made, tmp_path)
    settings = replace(ModelConfig(), pair_encoding="bi-encoder", head=HeadConfig("task-attention", bare=True))
    again, tokenizer = build(
        folder, settings=replace(settings, head=replace(settings.head, projection=9)), is_pair=True, seed=9
    )
    inputs = encoded_apart(tokenizer, *PAIRS)
    assert torch.equal(again(**inputs).logits, made[0](**inputs).logits)
    # Other labels: the blocks stay, the projection does not.
    settings = replace(settings, head=replace(settings.head, layers=0, projection=32))
    other, _ = build(folder, settings=settings, is_pair=True, label_space=SCORE)
    theirs, mine = made[0].head.state_dict(), other.head.state_dict()
    assert all(torch.equal(mine[name], weight) for name, weight in theirs.items())
    assert other.classifier.projection.weight.shape == (32, 32)


def test_blocks_of_another_kind_are_not_taken(tiny: Tiny, tmp_path: Path) -> None:
    """Self- and cross-attention have weights of the same names and shapes, which mean something else."""
    folder = saved_run(bi_encoder(tiny, head=HeadConfig("cross-attention", layers=1)), tmp_path)
    before, _ = load_model(folder)
    model, _ = build(folder, head=HeadConfig("self-attention", layers=1))
    name = "blocks.0.attention.query.weight"
    assert not torch.equal(model.head.state_dict()[name], before.head.state_dict()[name])
    assert torch.equal(model.get_input_embeddings().weight, before.get_input_embeddings().weight)
