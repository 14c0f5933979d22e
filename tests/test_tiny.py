"""The tiny checkpoints behave as the families' real ones, and text that spells a special token can be read as text."""

import pytest
from transformers import AutoModel, AutoTokenizer

from helpers.tiny import FAMILIES, MAX_POSITIONS
from helpers.tiny_models import FIRST, LONG, SECOND

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


@every_family
def test_loads_as_the_familys_own_classes(tiny, family):
    tokenizer, model = AutoTokenizer.from_pretrained(tiny(family)), AutoModel.from_pretrained(tiny(family))
    assert type(tokenizer).__name__ == TOKENIZER_CLASSES[family]
    assert tokenizer.is_fast
    assert tokenizer.model_max_length == MAX_POSITIONS
    assert model.config.model_type == family
    assert model.config.vocab_size == len(tokenizer) == model.get_input_embeddings().num_embeddings
    assert 300 <= len(tokenizer) <= 500
    assert model.config.pad_token_id == tokenizer.pad_token_id == model.get_input_embeddings().padding_idx


@every_family
def test_special_tokens_stand_in_their_places_and_offsets_point_into_the_text(tiny, family):
    tokenizer = AutoTokenizer.from_pretrained(tiny(family))
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
    assert len({tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.mask_token_id, *cls, *sep}) == 5
    assert tokenizer(f"The {tokenizer.mask_token} was good.")["input_ids"].count(tokenizer.mask_token_id) == 1
    assert tokenizer([FIRST, LONG], padding=True)["attention_mask"][0][-1] == 0
    encoded = tokenizer(FIRST, SECOND, return_offsets_mapping=True)
    for sequence, text in enumerate((FIRST, SECOND)):
        rows = zip(encoded.sequence_ids(), encoded["offset_mapping"], strict=True)
        spans = [span for owner, span in rows if owner == sequence]
        assert "".join(text[start:end] for start, end in spans).replace(" ", "") == text.replace(" ", "")
