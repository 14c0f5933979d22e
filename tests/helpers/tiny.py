"""Tiny random encoders of every supported family, built offline: config, weights and the family's tokenizer.

`build_tiny("roberta", folder)` writes a checkpoint that `AutoModel` and `AutoTokenizer` load like one from the hub.
Vocabularies are built from the sentences below. The trainers of WordPiece and Unigram break ties at random, so these
vocabularies are built by counting; only byte-level BPE, whose trainer is deterministic, is trained.
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
CORPUS = """\
The film was a quiet joy from the first scene to the last. I would not watch this again, even for free!
A man is playing the guitar on the street. Nobody is playing any instrument in the park.
The actors seem bored and the plot never moves. Two dogs run through the snow near a frozen lake.
She read the book twice, and she liked it more the second time. It is neither funny nor sad; it is simply long.
The children are eating apples under the old tree. What a wonderful surprise: the ending made me cry.
The doctor near the lawyer thanked the student. The senators who met the judge stopped the president.
Is the bridge open to cars on Sunday? How can I learn to cook rice without burning it?
What is the best way to learn a language quickly? The company said its profit rose by 12 percent in 2019.
Shares of the firm fell 3.5 points on Monday. The weather was cold, but the market was full of people.
A woman in a red coat is cutting an onion. The waiter brought us cold soup and warm water.
Everything about this hotel was terrible: the room, the food, the staff. The music is lovely, the story is weak.
They built the house in less than a year. Mary gave John a letter that he never opened.
The book that I bought yesterday is not interesting. He went to the shop because he wanted some bread.
The cat sat on the mat and slept all afternoon. Some birds can fly, others cannot.
All of the students passed the exam. None of the students passed the exam.
Birds are singing outside my window every morning. This movie is great, great, great!
This movie is bad, dull and much too long. The river flows past the village and into the sea.
A boy kicks a ball over the wall. The girl is not kicking the ball.
Where did you find such good coffee? The train to the north leaves at 7:45.
Prices went up again, so we stayed at home. The old professor smiled and closed the door.
Although the judge slept, the lawyer kept talking. The scientist proved that the water was safe.
Police found the missing boat after three days. The team lost the game, yet the fans were happy.
An honest, moving and beautiful picture of family life. The jokes are tired and the hero is hard to like.
You will laugh, you will think, you will want to see it again. The director knows exactly what she is doing.
Every line of the script sounds false. The phone works well, although the battery is weak.
We walked home slowly in the rain. Who wrote the song that everyone knows?
The earth moves around the sun once a year. Three people are sitting at a small table.
There is no one sitting at the table. The car is faster than the train.
He said that the answer was "yes", not "no". The new law protects rivers, forests and small farms.
A few of the questions (about ten) were very hard. Nothing in the report explains why the bridge fell.
"""


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
