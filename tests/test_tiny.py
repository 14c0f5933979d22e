"""The tiny checkpoints behave as the families' real ones, and text that spells a special token can be read as text."""

import copy
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, pre_tokenizers
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from attentune.testing.tiny import CORPUS, FAMILIES, MAX_POSITIONS, build_tiny

Tiny = Callable[..., Path]

FIRST, SECOND = "The movie was not unwatchable.", "Nobody plays the guitar in 1990."
LONG = "Birds are singing outside my window, and the train leaves at 7:45 although nobody knows why; it is cold."
LITERALS = "a [MASK] [SEP] [CLS] [PAD] [UNK] <mask> </s> <s> <pad> <unk> b"
POOLER_FAMILIES = ("bert", "roberta", "albert", "mpnet", "xlm-roberta")
UNIGRAM_FAMILIES = ("albert", "deberta-v2", "xlm-roberta")  # special tokens are pieces of their models
TOKENIZER_CLASSES = {
    "bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "BertTokenizer",
    "albert": "AlbertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "mpnet": "MPNetTokenizer",
    "modernbert": "TokenizersBackend",
    "xlm-roberta": "XLMRobertaTokenizer",
}
every_family = pytest.mark.parametrize("family", FAMILIES)


def load_tokenizer(folder: Path, **options: object) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder, **options)


def specials_from_text(tokenizer: PreTrainedTokenizerBase, *texts: str, **options: object) -> list[str]:
    """Special tokens (the unknown one aside) that came out of the text itself, not out of the template."""
    encoded = tokenizer(*texts, return_special_tokens_mask=True, **options)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    rows = zip(encoded.tokens(), encoded["input_ids"], encoded["special_tokens_mask"], strict=True)
    return [token.strip() for token, index, from_template in rows if index in special and not from_template]


def split_inside_specials(tokenizer: PreTrainedTokenizerBase) -> None:
    """Cut the first sign off any special token spelt in a text, so that no Unigram piece can be that token."""
    parts = "|".join(f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in tokenizer.all_special_tokens)
    backend = tokenizer.backend_tokenizer
    cut = pre_tokenizers.Split(Regex(f"▁?(?:{parts})"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([backend.pre_tokenizer, cut])


@every_family
def test_loads_as_the_familys_own_classes(tiny: Tiny, family: str) -> None:
    tokenizer, model = load_tokenizer(tiny(family)), AutoModel.from_pretrained(tiny(family))
    assert type(tokenizer).__name__ == TOKENIZER_CLASSES[family]
    assert tokenizer.is_fast
    assert tokenizer.model_max_length == MAX_POSITIONS
    assert model.config.model_type == family
    assert model.config.vocab_size == len(tokenizer) == model.get_input_embeddings().num_embeddings
    assert 300 <= len(tokenizer) <= 500
    assert model.config.pad_token_id == tokenizer.pad_token_id == model.get_input_embeddings().padding_idx


@every_family
def test_special_tokens_stand_in_their_places(tiny: Tiny, family: str) -> None:
    tokenizer = load_tokenizer(tiny(family))
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (FIRST, SECOND))
    cls, sep = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    between = sep * 2 if family in ("roberta", "xlm-roberta", "mpnet") else sep
    assert tokenizer(FIRST)["input_ids"] == cls + first + sep
    pair = tokenizer(FIRST, SECOND)
    assert pair["input_ids"] == cls + first + between + second + sep
    # There are no segments in ALBERT's tokenizer.
    has_types = family in ("bert", "electra", "deberta-v2")
    assert ("token_type_ids" in pair) == has_types
    if has_types:
        assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)


@every_family
def test_mask_and_padding_tokens(tiny: Tiny, family: str) -> None:
    tokenizer = load_tokenizer(tiny(family))
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("pad", "unk", "cls", "sep", "mask")}
    assert None not in ids.values()
    assert len(set(ids.values())) == 5
    assert max(ids.values()) < len(tokenizer)
    masked = tokenizer(f"The {tokenizer.mask_token} was good.")["input_ids"]
    assert masked.count(tokenizer.mask_token_id) == 1
    batch = tokenizer([FIRST, LONG], padding=True)
    assert batch["input_ids"][0][-1] == tokenizer.pad_token_id
    assert batch["attention_mask"][0][-1] == 0


@every_family
def test_offsets_point_into_the_text(tiny: Tiny, family: str) -> None:
    encoded = load_tokenizer(tiny(family))(FIRST, SECOND, return_offsets_mapping=True)
    for sequence, text in enumerate((FIRST, SECOND)):
        rows = zip(encoded.sequence_ids(), encoded["offset_mapping"], strict=True)
        spans = [span for owner, span in rows if owner == sequence]
        assert "".join(text[start:end] for start, end in spans).replace(" ", "") == text.replace(" ", "")


@every_family
@pytest.mark.parametrize("text", ["", " ", "😀 日本語 \u200b\ufffd\x00", "ﬁ e\u0301 İ ß", "\n\t\r", "x" * 3000])
def test_any_text_is_encoded(tiny: Tiny, family: str, text: str) -> None:
    tokenizer = load_tokenizer(tiny(family))
    encoded = tokenizer(text, truncation=True, return_offsets_mapping=True)
    assert 2 <= len(encoded["input_ids"]) <= MAX_POSITIONS
    assert all(0 <= start <= end <= len(text) for start, end in encoded["offset_mapping"])
    assert max(encoded["input_ids"]) < len(tokenizer)


@every_family
def test_outputs_are_finite_and_vary_with_the_input(tiny: Tiny, family: str) -> None:
    tokenizer, model = load_tokenizer(tiny(family)), AutoModel.from_pretrained(tiny(family)).eval()
    texts = ["The movie was good.", "The movie was bad."]
    with torch.no_grad():
        good_TD, bad_TD = (model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts)
        full = tokenizer("x " * 500, truncation=True, return_tensors="pt")
        assert full["input_ids"].shape[1] == MAX_POSITIONS
        assert model(**full).last_hidden_state.isfinite().all()
    assert good_TD.isfinite().all()
    assert good_TD.std() > 0.5
    assert (good_TD[0] - bad_TD[0]).abs().max() > 0.05


@every_family
def test_padding_changes_no_real_position(tiny: Tiny, family: str) -> None:
    tokenizer, model = load_tokenizer(tiny(family)), AutoModel.from_pretrained(tiny(family)).eval()
    alone, batch = tokenizer(FIRST, return_tensors="pt"), tokenizer([FIRST, LONG], padding=True, return_tensors="pt")
    length = alone["input_ids"].shape[1]
    with torch.no_grad():
        alone_TD, padded_TD = model(**alone).last_hidden_state[0], model(**batch).last_hidden_state[0, :length]
    torch.testing.assert_close(padded_TD, alone_TD, atol=1e-5, rtol=0)


@every_family
def test_dropout_is_on_in_training_except_in_modernbert(tiny: Tiny, family: str) -> None:
    tokenizer, model = load_tokenizer(tiny(family)), AutoModel.from_pretrained(tiny(family)).train()
    once, again = (model(**tokenizer(FIRST, return_tensors="pt")).last_hidden_state for _ in range(2))
    assert torch.equal(once, again) == (family == "modernbert")


def test_modernbert_has_both_kinds_of_layers(tiny: Tiny) -> None:
    assert set(AutoModel.from_pretrained(tiny("modernbert")).config.layer_types) == {
        "full_attention",
        "sliding_attention",
    }


@pytest.mark.integration
@pytest.mark.parametrize("pooler", [None, True, False])
@pytest.mark.parametrize("family", POOLER_FAMILIES)
def test_pooler_weights_are_in_the_checkpoint_as_asked(tiny: Tiny, family: str, pooler: bool | None) -> None:
    _, info = AutoModel.from_pretrained(tiny(family, pooler=pooler), output_loading_info=True)
    names = {"pooler.weight", "pooler.bias"} if family == "albert" else {"pooler.dense.weight", "pooler.dense.bias"}
    saved = family in ("bert", "albert", "mpnet") if pooler is None else pooler
    assert set(info["missing_keys"]) == (set() if saved else names)
    assert not info["unexpected_keys"]


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(POOLER_FAMILIES)))
def test_asking_for_a_pooler_where_there_is_none_is_an_error(tmp_path: Path, family: str) -> None:
    _, info = AutoModel.from_pretrained(build_tiny(family, tmp_path), output_loading_info=True)
    assert not info["missing_keys"]
    with pytest.raises(ValueError, match=f"{family} has no pooler"):
        build_tiny(family, tmp_path, pooler=True)


@pytest.mark.integration
@every_family
def test_the_same_seed_gives_the_same_files(tmp_path: Path, family: str) -> None:
    before = torch.random.get_rng_state()
    one, two, other = (build_tiny(family, tmp_path / name, seed=name == "other") for name in ("one", "two", "other"))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert sorted(file.name for file in one.iterdir()) == sorted(file.name for file in two.iterdir())
    assert all(file.read_bytes() == (two / file.name).read_bytes() for file in one.iterdir())
    assert (one / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


@pytest.mark.integration
@every_family
@pytest.mark.parametrize("layers", [2, 4])
def test_sizes_are_as_asked(tiny: Tiny, family: str, layers: int) -> None:
    folder = tiny(family, layers=layers, hidden=16)
    model = AutoModel.from_pretrained(folder)
    output = model(**load_tokenizer(folder)(FIRST, return_tensors="pt"), output_hidden_states=True)
    assert len(output.hidden_states) == layers + 1
    assert output.last_hidden_state.shape[-1] == 16


@every_family
def test_a_spelt_special_token_becomes_one_by_default(tiny: Tiny, family: str) -> None:
    tokenizer = load_tokenizer(tiny(family))
    assert set(specials_from_text(tokenizer, LITERALS)) == set(tokenizer.all_special_tokens) - {tokenizer.unk_token}


@every_family
@pytest.mark.parametrize("when", ["at call", "at load", "copied"])
def test_split_special_tokens_reads_text_as_text_except_in_unigram(tiny: Tiny, family: str, when: str) -> None:
    tokenizer = load_tokenizer(tiny(family), **({} if when == "at call" else {"split_special_tokens": True}))
    if when == "copied":
        tokenizer = pickle.loads(pickle.dumps(copy.deepcopy(tokenizer)))
    options = {"split_special_tokens": True} if when == "at call" else {}
    for texts in ((LITERALS,), ("a", LITERALS)):
        found = specials_from_text(tokenizer, *texts, **options)
        # Lower-casing hides ALBERT's tokens in capitals.
        expected = (
            ["<pad>"] if family == "albert" else [t for t in LITERALS.split() if t in tokenizer.all_special_tokens]
        )
        expected = [token for token in expected if token != tokenizer.unk_token]
        assert found == (expected if family in UNIGRAM_FAMILIES else [])


@pytest.mark.parametrize("family", UNIGRAM_FAMILIES)
def test_a_cut_before_the_model_reads_text_as_text_in_unigram(tiny: Tiny, family: str) -> None:
    plain = load_tokenizer(tiny(family), split_special_tokens=True)
    tokenizer = load_tokenizer(tiny(family), split_special_tokens=True)
    split_inside_specials(tokenizer)
    text = LITERALS + " x[SEP]</s>y <<s> ＜pad＞ [[MASK]"  # full-width signs: ALBERT normalises them to <pad>
    for cut in (tokenizer, pickle.loads(pickle.dumps(copy.deepcopy(tokenizer)))):
        assert specials_from_text(cut, text) == []
        assert specials_from_text(cut, "a", text) == []
    encoded = tokenizer(text, return_offsets_mapping=True)
    assert {end for _, end in encoded["offset_mapping"]} >= {match.end() for match in re.finditer(r"[\[<]", LITERALS)}
    for ordinary in [*CORPUS.splitlines(), "a < b [x] <b> 日本 😀", ""]:
        assert (
            tokenizer(ordinary, return_offsets_mapping=True).data == plain(ordinary, return_offsets_mapping=True).data
        )


@every_family
def test_split_special_tokens_at_load_is_saved(tiny: Tiny, family: str, tmp_path: Path) -> None:
    load_tokenizer(tiny(family), split_special_tokens=True).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["split_special_tokens"] is True
    assert load_tokenizer(tmp_path).split_special_tokens is True
