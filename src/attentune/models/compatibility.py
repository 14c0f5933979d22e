"""What differs between the supported versions of transformers, 4.57 and 5: import it from here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertTokenizer, PreTrainedTokenizerBase

__all__ = ["ENCODER_OPTIONS", "IS_TRANSFORMERS_4", "PreTrainedConfig", "bert_tokenizer"]

IS_TRANSFORMERS_4 = int(transformers.__version__.split(".", maxsplit=1)[0]) < 5

# transformers 5 keeps the old spelling for configurations only.
PreTrainedConfig = transformers.PretrainedConfig if IS_TRANSFORMERS_4 else transformers.PreTrainedConfig

# Encoders of transformers 4 keep the attention that they are built with. Only eager attention gives probabilities and
# can be blurred, so they have it throughout; it is slower than what encoders of transformers 5 are switched to.
ENCODER_OPTIONS: Mapping[str, str] = {"attn_implementation": "eager"} if IS_TRANSFORMERS_4 else {}


def bert_tokenizer(
    vocab: Mapping[str, int],
    *,
    cls: type[BertTokenizer] = BertTokenizer,
    do_lower_case: bool = True,
    names: Mapping[str, str] | None = None,
) -> PreTrainedTokenizerBase:
    """Build a fast tokenizer of the BERT family from a vocabulary, which transformers 4 reads from files only.

    Args:
        vocab: ids by token.
        cls: the class of transformers, such as `DistilBertTokenizer`.
        do_lower_case: whether texts are lower-cased.
        names: the special tokens, by their role, such as "cls_token"; BERT's by default.
    """
    names = names or {}
    if not IS_TRANSFORMERS_4:
        return cls(vocab=dict(vocab), do_lower_case=do_lower_case, **names)
    defaults = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    unknown, start, end = ({**defaults, **names}[name] for name in defaults)
    pipeline = Tokenizer(models.WordPiece(dict(vocab), unk_token=unknown))
    pipeline.normalizer = normalizers.BertNormalizer(lowercase=do_lower_case)
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pipeline.decoder = decoders.WordPiece(prefix="##")
    pipeline.post_processor = processors.TemplateProcessing(
        single=f"{start}:0 $A:0 {end}:0",
        pair=f"{start}:0 $A:0 {end}:0 $B:1 {end}:1",
        special_tokens=[(token, vocab[token]) for token in (start, end)],
    )
    fast: Any = getattr(transformers, f"{cls.__name__}Fast")
    return fast(tokenizer_object=pipeline, do_lower_case=do_lower_case, **names)
