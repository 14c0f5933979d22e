"""Tokenizers from vocabularies for transformers 4, which reads them from files only: as transformers 5 builds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase

Vocab = Any  # ids by token, or tokens with their log probabilities


def fast_tokenizer(
    name: str, vocab: Vocab, names: Mapping[str, Any], merges: list[tuple[str, str]] | None = None
) -> PreTrainedTokenizerBase:
    """Build the fast tokenizer of a class of transformers.

    Args:
        name: the class as transformers 5 calls it, one of `PIPELINES`.
        vocab: the vocabulary: ids by token; for SentencePiece's families the tokens with their log probabilities.
        names: the special tokens, as in "cls_token".
        merges: the pairs of byte-level BPE.
    """
    plain = {key: str(token) for key, token in names.items()}
    pipeline = PIPELINES[name](vocab, merges, plain)
    return getattr(transformers, f"{name}Fast")(tokenizer_object=pipeline, **names)


def _mpnet(vocab: Vocab, merges: Any, names: Mapping[str, str]) -> Tokenizer:
    made = Tokenizer(models.WordPiece(vocab, unk_token=names["unk_token"]))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    made.post_processor = _roberta_processing(made, names)
    return made


def _roberta(vocab: Vocab, merges: Any, names: Mapping[str, str]) -> Tokenizer:
    made = Tokenizer(models.BPE(vocab, merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = _roberta_processing(made, names)
    return made


def _albert(vocab: Vocab, merges: Any, names: Mapping[str, str]) -> Tokenizer:
    made = _unigram(vocab, names)
    quotes = [normalizers.Replace(quote, '"') for quote in ("``", "''")]
    made.normalizer = normalizers.Sequence(
        [*quotes, normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    made.pre_tokenizer = _words_then_metaspace()
    made.post_processor = _with_segments(made, names)
    return made


def _deberta(vocab: Vocab, merges: Any, names: Mapping[str, str]) -> Tokenizer:
    made = _unigram(vocab, names)
    space = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    made.normalizer = normalizers.Sequence([space, normalizers.NFC(), normalizers.Strip(left=False, right=True)])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")])
    made.post_processor = _with_segments(made, names)
    return made


def _xlm_roberta(vocab: Vocab, merges: Any, names: Mapping[str, str]) -> Tokenizer:
    made = _unigram(vocab, names)
    made.pre_tokenizer = _words_then_metaspace()
    start, end = names["cls_token"], names["sep_token"]
    made.post_processor = processors.TemplateProcessing(
        single=[start, "$A", end],
        pair=[start, "$A", end, end, "$B", end],
        special_tokens=[(token, made.token_to_id(token)) for token in (start, end)],
    )
    return made


def _unigram(vocab: Vocab, names: Mapping[str, str]) -> Tokenizer:
    tokens = [token for token, _ in vocab]
    made = Tokenizer(models.Unigram(vocab, unk_id=tokens.index(names["unk_token"]), byte_fallback=False))
    made.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return made


def _words_then_metaspace() -> pre_tokenizers.PreTokenizer:
    metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])


def _with_segments(made: Tokenizer, names: Mapping[str, str]) -> processors.PostProcessor:
    start, end = names["cls_token"], names["sep_token"]
    return processors.TemplateProcessing(
        single=f"{start}:0 $A:0 {end}:0",
        pair=f"{start}:0 $A:0 {end}:0 $B:1 {end}:1",
        special_tokens=[(token, made.token_to_id(token)) for token in (start, end)],
    )


def _roberta_processing(made: Tokenizer, names: Mapping[str, str]) -> processors.PostProcessor:
    start, end = names["cls_token"], names["sep_token"]
    numbers: Any = made.get_vocab(with_added_tokens=True)
    return processors.RobertaProcessing((end, numbers[end]), (start, numbers[start]), True, False)


PIPELINES: Mapping[str, Callable[[Vocab, Any, Mapping[str, str]], Tokenizer]] = {
    "AlbertTokenizer": _albert,
    "DebertaV2Tokenizer": _deberta,
    "MPNetTokenizer": _mpnet,
    "RobertaTokenizer": _roberta,
    "XLMRobertaTokenizer": _xlm_roberta,
}
