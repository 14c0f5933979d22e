"""Tiny random encoders of every supported family, built offline: config, weights and the family's tokenizer.

`build_tiny("roberta", folder)` writes a checkpoint that `AutoModel` and `AutoTokenizer` load like one from the hub.
Vocabularies are built from the sentences of corpus.txt. The trainers of WordPiece and Unigram break ties at random, so
these vocabularies are built by counting; only byte-level BPE, whose trainer is deterministic, is trained.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AlbertTokenizer,
    AutoConfig,
    AutoModel,
    BertTokenizer,
    DebertaV2Tokenizer,
    DistilBertTokenizer,
    MPNetTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

MAX_POSITIONS = 160
CORPUS = Path(__file__).with_name("corpus.txt").read_text(encoding="utf-8")


@dataclass(frozen=True)
class _Family:
    """The properties of a family's checkpoint that differ between families."""

    tokenizer: Callable[[dict[str, str]], PreTrainedTokenizerBase]
    special: tuple[str, ...]  # pad, unk, cls, sep, mask
    config: dict[str, Any] = field(default_factory=dict)
    saves_pooler: bool = False  # whether the family's checkpoint on the hub has one
    first_position: int = 0  # RoBERTa counts positions from the padding id + 1


def _word_counts(*, lower: bool) -> Counter[str]:
    text = CORPUS.lower() if lower else CORPUS
    return Counter(word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text))


def _best(counts: Counter[str], size: int) -> list[tuple[str, int]]:
    """Return the `size` most frequent subwords; ties are in alphabetical order."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:size]


def _pieces(*, lower: bool) -> tuple[Counter[str], Counter[str]]:
    """Return word starts (including whole words) and continuations, with counts; both have all printable ASCII."""
    words = _word_counts(lower=lower)
    heads: Counter[str] = Counter()
    tails: Counter[str] = Counter()
    for word, count in words.items():
        for size in (2, 3):
            if word.isalpha() and len(word) > size:
                heads[word[:size]] += count
                tails[word[-size:]] += count
    signs = {chr(code): 1 for code in range(33, 127)}
    signs = {sign: 1 for sign in signs if not (lower and sign.isupper())}
    starts = Counter(signs) | Counter(dict(_best(heads, 40))) | Counter(dict(_best(words, 150)))
    return starts, Counter(signs) | Counter(dict(_best(tails, 40)))


def _wordpiece_vocab(special: Iterable[str]) -> dict[str, int]:
    starts, tails = _pieces(lower=True)
    pieces = [*special, *sorted(starts), *("##" + tail for tail in sorted(tails))]
    return {piece: index for index, piece in enumerate(pieces)}


def _unigram_vocab(head: Iterable[str], tail: Iterable[str] = (), *, lower: bool = False) -> list[tuple[str, float]]:
    """Return subwords with log probabilities; as in SentencePiece, longer subwords beat single characters."""
    starts, tails = _pieces(lower=lower)
    counts = Counter({"▁" + piece: count for piece, count in starts.items()}) + tails + Counter({"▁": 5})
    total = sum(counts.values())
    pieces = [(piece, math.log(counts[piece] / total)) for piece in sorted(counts)]
    return [*((token, 0.0) for token in head), *pieces, *((token, 0.0) for token in tail)]


def _byte_bpe(head: Iterable[str], tail: Iterable[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=450, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS.splitlines(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pieces = [*head, *sorted(model["vocab"], key=model["vocab"].__getitem__), *tail]
    return {piece: index for index, piece in enumerate(pieces)}, [(left, right) for left, right in model["merges"]]


def _greedy_mask(names: dict[str, str]) -> dict[str, Any]:
    """Return the token names with a mask token that strips the space before it, as in RoBERTa, XLM-R and others."""
    return {**names, "mask_token": AddedToken(names["mask_token"], lstrip=True, special=True, normalized=False)}


def _bert_tokenizer(names: dict[str, str], cls: type[BertTokenizer] = BertTokenizer) -> PreTrainedTokenizerBase:
    return cls(vocab=_wordpiece_vocab(names.values()), **names)


def _mpnet_tokenizer(names: dict[str, str]) -> PreTrainedTokenizerBase:
    head = (names["cls_token"], names["pad_token"], names["sep_token"], names["unk_token"])
    vocab = _wordpiece_vocab(head)
    return MPNetTokenizer(vocab={**vocab, names["mask_token"]: len(vocab)}, **names)


def _roberta_tokenizer(names: dict[str, str]) -> PreTrainedTokenizerBase:
    vocab, merges = _byte_bpe(("<s>", "<pad>", "</s>", "<unk>"), ("<mask>",))
    return RobertaTokenizer(vocab=vocab, merges=merges, **_greedy_mask(names))


def _modernbert_tokenizer(names: dict[str, str]) -> PreTrainedTokenizerBase:
    """Build a generic fast tokenizer: ModernBERT has no tokenizer class, and its pipeline is in `tokenizer.json`."""
    vocab, merges = _byte_bpe((), ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, vocab[token]) for token in ("[CLS]", "[SEP]")],
    )
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **_greedy_mask(names))


def _albert_tokenizer(names: dict[str, str]) -> PreTrainedTokenizerBase:
    return AlbertTokenizer(vocab=_unigram_vocab(names.values(), lower=True), **_greedy_mask(names))


def _deberta_tokenizer(names: dict[str, str]) -> PreTrainedTokenizerBase:
    vocab = _unigram_vocab(("[PAD]", "[CLS]", "[SEP]", "[UNK]"), ("[MASK]",))
    return DebertaV2Tokenizer(vocab=vocab, **names)


def _xlm_roberta_tokenizer(names: dict[str, str]) -> PreTrainedTokenizerBase:
    vocab = _unigram_vocab(("<s>", "<pad>", "</s>", "<unk>"), ("<mask>",))
    return XLMRobertaTokenizer(vocab=vocab, **_greedy_mask(names))


_BRACKETS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ANGLES = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
_ROBERTA_CONFIG = {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
_DEBERTA_CONFIG = {  # as microsoft/deberta-v3-base, with few position buckets so that the logarithmic ones occur
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 16,
    "max_relative_positions": -1,
    "position_biased_input": False,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "type_vocab_size": 0,
}
_MODERNBERT_CONFIG = {"global_attn_every_n_layers": 2, "local_attention": 8}

_FAMILIES: dict[str, _Family] = {
    "bert": _Family(_bert_tokenizer, _BRACKETS, saves_pooler=True),
    "roberta": _Family(_roberta_tokenizer, _ANGLES, _ROBERTA_CONFIG, first_position=2),
    "distilbert": _Family(lambda names: _bert_tokenizer(names, DistilBertTokenizer), _BRACKETS),
    "electra": _Family(_bert_tokenizer, _BRACKETS),
    "albert": _Family(
        _albert_tokenizer,
        ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
        {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
        saves_pooler=True,
    ),
    "deberta-v2": _Family(_deberta_tokenizer, _BRACKETS, _DEBERTA_CONFIG),
    "mpnet": _Family(
        _mpnet_tokenizer, ("<pad>", "[UNK]", "<s>", "</s>", "<mask>"), saves_pooler=True, first_position=2
    ),
    "modernbert": _Family(_modernbert_tokenizer, _BRACKETS, _MODERNBERT_CONFIG),
    "xlm-roberta": _Family(_xlm_roberta_tokenizer, _ANGLES, _ROBERTA_CONFIG, first_position=2),
}
FAMILIES: tuple[str, ...] = tuple(_FAMILIES)


def _config(family: str, tokenizer: PreTrainedTokenizerBase, *, layers: int, hidden: int) -> Any:
    spec = _FAMILIES[family]
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "intermediate_size" if family != "distilbert" else "hidden_dim": 2 * hidden,
        "max_position_embeddings": MAX_POSITIONS + spec.first_position,
    }
    if family in ("albert", "electra"):  # word embeddings may be narrower than the hidden size
        sizes["embedding_size"] = hidden // 2
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "cls_token_id", "sep_token_id")}
    ids |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    # 0.2 instead of the default 0.02: outputs must clearly depend on the input.
    return AutoConfig.for_model(family, vocab_size=len(tokenizer), initializer_range=0.2, **sizes, **ids, **spec.config)


def build_tiny(
    family: str, folder: Path, *, layers: int = 3, hidden: int = 32, pooler: bool | None = None, seed: int = 0
) -> Path:
    """Write a random checkpoint of `family` to `folder` (created if missing) and return the folder.

    `hidden` must be a multiple of 4, the number of heads. `pooler` determines whether the checkpoint has the weights of
    the pooler; None means as in the family's checkpoints on the hub. All other weights are equal with and without it.
    """
    spec = _FAMILIES[family]
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    tokenizer = spec.tokenizer(dict(zip(names, spec.special, strict=True)))
    tokenizer.model_max_length = MAX_POSITIONS
    config = _config(family, tokenizer, layers=layers, hidden=hidden)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        weights = (model := AutoModel.from_config(config)).state_dict()
    if not (spec.saves_pooler if pooler is None else pooler):
        weights = {name: weight for name, weight in weights.items() if not name.startswith("pooler.")}
    model.save_pretrained(folder, state_dict=weights)
    tokenizer.save_pretrained(folder)
    return folder
