"""What is no usable encoder is refused with one clear error, whatever libraries below make of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertModel,
    CanineConfig,
    CanineModel,
    CanineTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

from attentune.config import LayerMixConfig, ModelConfig
from attentune.errors import UnsupportedEncoderError
from attentune.models.build import load_tokenizer
from helpers.tiny import FAMILIES, MAX_POSITIONS
from helpers.tiny_models import build

Tiny = Callable[..., Path]
GPT2 = {"vocab_size": 354, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
T5 = {"vocab_size": 354, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture
def folder(tiny: Tiny, tmp_path: Path) -> Path:
    """A copy of a tiny BERT to break."""
    return Path(shutil.copytree(tiny("bert"), tmp_path / "encoder"))


def refusal(folder: Path, **options: object) -> str:
    with pytest.raises(UnsupportedEncoderError) as caught:
        build(folder, **options)
    assert str(caught.value).startswith(f"{folder}: ")
    return str(caught.value)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (lambda: GPT2LMHeadModel(GPT2Config(**GPT2)), "is a gpt2 model with a decoder, expected an encoder"),
        (lambda: T5ForConditionalGeneration(T5Config(**T5)), "is a t5 model with a decoder"),
        (lambda: BertModel(BertConfig(vocab_size=354, **SIZES, is_decoder=True)), "is a bert model with a decoder"),
        (lambda: ViTModel(ViTConfig(**SIZES, image_size=16, patch_size=8)), "is a vit model without word embeddings"),
    ],
    ids=["GPT-2", "T5", "BERT turned decoder", "ViT"],
)
def test_what_is_no_text_encoder_is_refused_though_its_tokenizer_is_one(tiny, tmp_path: Path, model, told) -> None:
    model().save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny("bert")).save_pretrained(tmp_path)
    assert told in refusal(tmp_path)
    if "gpt2" in told:
        file = str(tiny("bert") / "tokenizer.json")
        PreTrainedTokenizerFast(tokenizer_file=file, bos_token="[SEP]", eos_token="[SEP]").save_pretrained(tmp_path)
        assert f"{told}. Choose an encoder such as" in refusal(tmp_path)


def test_a_tokenizer_without_the_special_tokens_is_refused(folder: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")
    tokenizer.save_pretrained(folder)
    assert "its tokenizer has no cls, mask token, expected those of" in refusal(folder)


@pytest.mark.integration
def test_a_slow_tokenizer_is_refused(tmp_path: Path) -> None:
    CanineModel(CanineConfig(**SIZES, num_hash_buckets=16)).save_pretrained(tmp_path)
    CanineTokenizer().save_pretrained(tmp_path)
    assert "(CanineTokenizer) has no fast version" in refusal(tmp_path)


def test_a_tokenizer_of_another_encoder_is_refused(folder: Path, tiny: Tiny) -> None:
    for file in tiny("roberta").glob("tokenizer*"):
        shutil.copy(file, folder)
    assert "its tokenizer has 455 tokens, but the encoder has embeddings for 354" in refusal(folder)


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(UnsupportedEncoderError, match="no encoder could be loaded"):
        load_tokenizer(ModelConfig(name_or_path=""))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "nothing"}, "`nothing`"),
        ({"hidden_size": 64}, "no encoder could be loaded"),
        ({"hidden_size": "wide"}, "no encoder could be loaded"),
        ({"num_attention_heads": 5}, "not a multiple of the number of attention heads"),
        ({"num_hidden_layers": 5}, "its checkpoint lacks 32 of the encoder's weights (encoder.layer.3."),
    ],
)
def test_a_configuration_that_does_not_fit_the_weights_is_refused(folder: Path, values: dict, message: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    assert message in refusal(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_length_beyond_the_encoders_positions_is_refused(tiny: Tiny, family: str) -> None:
    message = refusal(tiny(family), max_length=MAX_POSITIONS + 1)
    assert f"accepts at most {MAX_POSITIONS} tokens, but data.max_length is {MAX_POSITIONS + 1}." in message
    assert f"Set --max_length {MAX_POSITIONS} or less." in message


@pytest.mark.parametrize(
    ("kind", "layers", "needed"), [("second", 1, 2), ("second-to-last", 1, 2), ("sum-last-4", 3, 4)]
)
def test_a_selection_of_layers_that_are_not_there_is_refused(tiny: Tiny, kind: str, layers: int, needed: int) -> None:
    message = refusal(tiny("bert", layers=layers), layer_mix=LayerMixConfig(kind))
    assert f"has {layers} layer(s), but model.layer_mix.kind {kind} needs {needed}. Choose last" in message
    build(tiny("bert", layers=needed), layer_mix=LayerMixConfig(kind))
