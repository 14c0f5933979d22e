"""Linear models of the vectors of a frozen encoder."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import torch

from attentune.baselines.linear import Baseline, has_many_classes
from attentune.config import ModelConfig
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.tokenization import Features, budget_order, encode_rows, pad_batch
from attentune.errors import CheckpointError
from attentune.inference.scoring import default_batch_tokens
from attentune.models.build import build_model, encoder_fingerprint, load_tokenizer
from attentune.models.cpu_layers import frozen_weights, use_fused_layers, use_own_attention
from attentune.models.precision import has_fast_bf16
from attentune.nn.compiled.memory import kept_memory
from attentune.nn.heads import masked_mean

# Numbers of a pair: from the token ids, and from the embeddings, the middle layer and the last one each.
_OF_IDS, _OF_STATES = 9, 7
NUM_FEATURES = _OF_IDS + 3 * _OF_STATES


@dataclass(frozen=True)
class TokenStates:
    """The tokens of one text in a frozen encoder, without special tokens (unless it has no others)."""

    ids_T: np.ndarray  # token ids
    states_LTD: np.ndarray  # float32 embeddings, and hidden states of the middle and the last layer
    means_LD: np.ndarray  # their means over all tokens of the text


def alignment_features(first: TokenStates, second: TokenStates) -> np.ndarray:
    """Return (NUM_FEATURES,) float32, how well the tokens of two texts match; docs/small-data.md describes them.

    Source: BERTScore (Zhang et al. 2020, section 3: recall and precision by greedy matching).
    """
    numbers = _id_features(first.ids_T.tolist(), second.ids_T.tolist())
    for one_TD, other_UD, mean_D, other_mean_D in zip(
        _unit(first.states_LTD), _unit(second.states_LTD), _unit(first.means_LD), _unit(second.means_LD), strict=True
    ):
        cosines_TU = one_TD @ other_UD.T
        if not cosines_TU.size:  # a tokenizer without special tokens has none for an empty text
            cosines_TU = np.zeros((1, 1), dtype=np.float32)
        best_T, best_U = cosines_TU.max(axis=1), cosines_TU.max(axis=0)
        for best in (best_T, best_U):
            numbers += [best.mean(), best.min(), best.std()]
        numbers.append(mean_D @ other_mean_D)
    return np.array(numbers, dtype=np.float32)


def _id_features(first: Sequence[int], second: Sequence[int]) -> list[float]:
    sets, pairs = [set(first), set(second)], [set(pairwise(ids)) for ids in (first, second)]
    both, both_pairs = sets[0] & sets[1], pairs[0] & pairs[1]
    shared = [sum(one in both for one in ids) for ids in (first, second)]
    lengths = [max(1, len(first)), max(1, len(second))]
    return [
        *(count / length for count, length in zip(shared, lengths, strict=True)),
        len(both) / max(1, len(sets[0] | sets[1])),
        *(len(both_pairs) / max(1, len(own)) for own in pairs),
        *(float(np.log(length)) for length in lengths),
        *(float(np.log1p(len(ids) - count)) for count, ids in zip(shared, (first, second), strict=True)),
    ]


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def chunks(lengths: Sequence[int], most: int) -> Iterator[range]:
    """Yield consecutive ranges of items whose lengths add up to at most `most`, or of one longer item."""
    start, total = 0, 0
    for number, length in enumerate(lengths):
        if number > start and total + length > most:
            yield range(start, number)
            start, total = number, 0
        total += length
    if len(lengths):
        yield range(start, len(lengths))


# Multiplications that the encoder may spend on training rows: about 20 seconds on two CPU cores.
_BUDGET_CPU, _BUDGET_GPU = 3e12, 3e14
# Fewer rows than this are never sampled.
_FEWEST_ROWS = 1000
# Texts whose vectors, and pairs whose alignments, are kept: 0.6 GB for two vectors of 384 numbers.
KEPT = 200_000
# Tokens whose hidden states are held at a time: 75 MB for vectors of 384 numbers.
_HELD_TOKENS = 16_384
# The encoders of loaded baselines that are in use: those of an ensemble's folds encode each text once.
_SHARED: weakref.WeakValueDictionary[tuple[str, str | None, int], FrozenEncoder] = weakref.WeakValueDictionary()


class _Kept:
    """Rows of numbers by key, each computed once, until there are more than `KEPT`."""

    def __init__(self, compute: Callable[[list[Any]], np.ndarray]) -> None:
        self._compute, self.seconds = compute, 0.0
        self._places: dict[Hashable, int] = {}
        self._rows_NF = np.zeros((0, 0), dtype=np.float32)

    def rows(self, keys: Sequence[Hashable]) -> np.ndarray:
        """Return the (N, F) numbers of keys, of which there is at least one."""
        began = time.perf_counter()
        fresh = list(dict.fromkeys(key for key in keys if key not in self._places))
        if self._places and len(self._places) + len(fresh) > KEPT:
            # Predicting files of any length must not fill the memory.
            self._places, fresh = {}, list(dict.fromkeys(keys))
        if fresh:
            made_NF = self._compute(fresh)
            first = len(self._places)
            self._places |= {key: first + number for number, key in enumerate(fresh)}
            self._rows_NF = np.concatenate([self._rows_NF, made_NF]) if first else made_NF
        self.seconds += time.perf_counter() - began
        return np.ascontiguousarray(self._rows_NF[[self._places[key] for key in keys]])


class FrozenEncoder:
    """The vectors of texts from a pre-trained encoder without any training.

    Those of each distinct text or pair are kept for later calls, until there are more than `KEPT`. With `in_bf16`,
    for comparisons only, it computes in bf16 where that is fast, with three digits.
    """

    def __init__(self, encoder: ModelConfig, max_length: int, *, use_cpu: bool = False, in_bf16: bool = False) -> None:
        name, code = encoder.name_or_path, encoder.trust_remote_code
        self.encoder = ModelConfig(name_or_path=name, revision=encoder.revision, trust_remote_code=code)
        self.max_length = max_length
        self._use_cpu, self._in_bf16 = use_cpu, in_bf16
        self._loaded: tuple[Any, Any, torch.device] | None = None
        self._vectors, self._alignments = _Kept(self._encode), _Kept(self._align)

    @property
    def width(self) -> int:
        return int(self._load()[0].config.encoder_config.hidden_size)

    @property
    def seconds(self) -> float:
        """The seconds that encoding took so far."""
        return self._vectors.seconds + self._alignments.seconds

    def vectors(self, texts: Sequence[str], *, middle: bool = False) -> np.ndarray:
        """Return the (N, D) float32 mean of the last or the middle layer's states of each text's tokens, unpadded."""
        return np.ascontiguousarray(self._vectors.rows(texts).reshape(len(texts), 2, -1)[:, int(middle)])

    def alignments(self, rows: TextRows) -> np.ndarray:
        """Return the (N, NUM_FEATURES) float32 `alignment_features` of each pair."""
        return self._alignments.rows(list(zip(rows.texts, rows.pairs or (), strict=True)))

    def pair_features(self, rows: TextRows, *, middle: bool = False) -> np.ndarray:
        """Return (N, 4 D + 1) float32: u, v, |u - v|, u * v and the cosine, of the texts' unit vectors u and v."""
        u_ND, v_ND = self.unit_vectors(rows, middle=middle)
        product_ND = u_ND * v_ND
        return np.concatenate(
            [u_ND, v_ND, np.abs(u_ND - v_ND), product_ND, product_ND.sum(axis=1, keepdims=True)], axis=1
        )

    def unit_vectors(self, rows: TextRows, *, middle: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean vectors of the first and the second texts of pairs, (N, D) each, scaled to length 1."""
        both_ND = _unit(self.vectors((*rows.texts, *(rows.pairs or ())), middle=middle))
        return both_ND[: len(rows)], both_ND[len(rows) :]

    def affordable_rows(self, rows: TextRows) -> int:
        """Return how many of these rows can be encoded at a cost of about 20 seconds on two CPU cores."""
        if len(rows) <= _FEWEST_ROWS:
            return len(rows)
        model, _, device = self._load()
        # The lengths of a sample are enough.
        sample = rows.take(range(0, len(rows), max(1, len(rows) // 500)))
        texts = (*sample.texts, *(sample.pairs or ()))
        lengths = self.tokens(texts).lengths
        weights = sum(weight.numel() for weight in model.encoder.parameters())
        weights -= model.get_input_embeddings().weight.numel()
        cost = float(lengths.sum()) / len(sample) * max(weights, 1)
        budget = _BUDGET_CPU if device.type == "cpu" else _BUDGET_GPU
        return max(_FEWEST_ROWS, min(len(rows), int(budget / cost)))

    def _load(self) -> tuple[Any, Any, torch.device]:
        if self._loaded is None:
            tokenizer = load_tokenizer(self.encoder)
            space, length = LabelSpace("regression"), self.max_length
            model = build_model(self.encoder, space, tokenizer, max_length=length, is_pair=False, seed=0).eval()
            accelerated = torch.accelerator.is_available() and not self._use_cpu
            device = (torch.accelerator.current_accelerator() if accelerated else None) or torch.device("cpu")
            model = model.to(device).requires_grad_(False)
            if device.type == "cpu":
                use_own_attention(model)
                if self._in_bf16 and has_fast_bf16(device):
                    use_fused_layers(model)
            self._loaded = model, tokenizer, device
        return self._loaded

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return (N, 2 D): the mean of the last and of the middle layer's states."""
        features, width = self.tokens(texts), self.width
        vectors_ND = np.zeros((len(texts), 2 * width), dtype=np.float32)
        for places, hidden, mask_BT in self._batches(features, np.arange(len(texts))):
            vectors_ND[places, :width] = masked_mean(hidden[-1], mask_BT).cpu().numpy()
            vectors_ND[places, width:] = masked_mean(hidden[_middle(hidden)], mask_BT).cpu().numpy()
        return vectors_ND

    def _align(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        numbers = {text: number for number, text in enumerate(dict.fromkeys(text for pair in pairs for text in pair))}
        features = self.tokens(list(numbers))
        pairs_N2 = np.array([[numbers[first], numbers[second]] for first, second in pairs])
        made = []
        for part in chunks(features.lengths[pairs_N2].sum(axis=1).tolist(), _HELD_TOKENS):
            states = self._token_states(features, np.unique(pairs_N2[part]))
            made += [alignment_features(states[first], states[second]) for first, second in pairs_N2[part].tolist()]
        return np.stack(made)

    def _token_states(self, features: Features, rows: np.ndarray) -> dict[int, TokenStates]:
        made = {}
        for places, hidden, mask_BT in self._batches(features, rows):
            chosen = [hidden[depth] for depth in (0, _middle(hidden), -1)]
            means_BLD = torch.stack([masked_mean(hidden_BTD, mask_BT) for hidden_BTD in chosen], dim=1).cpu().numpy()
            states_BLTD = torch.stack(chosen, dim=1).float().cpu().numpy()
            for number, place in enumerate(places.tolist()):
                start, end = features.starts[place : place + 2]
                plain_T = ~features.special[start:end]
                kept_T = np.flatnonzero(plain_T if plain_T.any() else ~plain_T)
                ids_T, states_LTD = features.ids[start:end][kept_T], states_BLTD[number][:, kept_T]
                made[place] = TokenStates(ids_T, states_LTD, means_BLD[number])
        return made

    def tokens(self, texts: Sequence[str]) -> Features:
        ids = tuple(str(number) for number in range(len(texts)))
        rows = TextRows(ids, tuple(texts), None, None, "texts")
        return encode_rows(rows, self._load()[1], max_length=self.max_length)

    @torch.inference_mode()
    def _batches(
        self, features: Features, rows: np.ndarray
    ) -> Iterator[tuple[np.ndarray, tuple[torch.Tensor, ...], torch.Tensor]]:
        """Encode rows of similar length together; yield which they are, each layer's (B, T, D) states and the mask."""
        model, tokenizer, device = self._load()
        is_bf16 = self._in_bf16 and has_fast_bf16(device)
        precision = torch.autocast(device.type, torch.bfloat16) if is_bf16 else contextlib.nullcontext()
        with kept_memory(), frozen_weights(model), precision:
            for batch_places in budget_order(features.lengths[rows], default_batch_tokens(device)):
                batch = pad_batch(features, rows[batch_places], pad_token_id=tokenizer.pad_token_id)
                inputs = {name: tensor.to(device) for name, tensor in batch.inputs.items()}
                encoded = model.encode(**inputs, output_hidden_states=True)
                hidden = (*encoded.hidden_states[:-1], encoded.last_hidden_state)
                yield rows[batch_places], hidden, inputs["attention_mask"].bool()


def _middle(hidden: Sequence[torch.Tensor]) -> int:
    return (len(hidden) - 1) // 2


class OnFrozenEncoder(Baseline):
    """A linear model of features that a frozen encoder computes."""

    strengths: ClassVar[tuple[float, ...]] = (0.0001, 0.001, 0.01, 0.1, 1.0)
    standardises = True
    _sampling_key = "frozen rows"

    def __init__(self, frozen: FrozenEncoder, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.frozen = frozen

    def _affordable_rows(self, rows: TextRows) -> int:
        return self.frozen.affordable_rows(rows)

    def cut_lengths(self, rows: TextRows) -> np.ndarray:
        """Return (N,) the maximum length for rows with a longer text, else 0."""
        texts, most = (*rows.texts, *(rows.pairs or ())), self.frozen.max_length
        cut_N = self.frozen.tokens(texts).cut_lengths(most).reshape(-1, len(rows)).max(axis=0) if texts else []
        return np.where(np.asarray(cut_N) > 0, most, 0)

    def _state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        encoder = self.frozen.encoder
        return {}, {
            "name_or_path": encoder.name_or_path,
            "revision": encoder.revision,
            "encoder_fingerprint": encoder_fingerprint(encoder),
            "max_length": self.frozen.max_length,
        }

    @classmethod
    def _restored(cls, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> Self:
        # Code that comes with an encoder is never run on the word of a file.
        encoder = ModelConfig(name_or_path=str(settings["name_or_path"]), revision=settings["revision"])
        if encoder_fingerprint(encoder) != settings["encoder_fingerprint"]:
            raise CheckpointError(
                f"{encoder.name_or_path}: is another encoder than the one that the baseline was fitted on. Put that one"
                " back, or train the baseline again."
            )
        length = int(settings["max_length"])
        key = (encoder.name_or_path, encoder.revision, length)
        return cls(_SHARED.setdefault(key, FrozenEncoder(encoder, length)), seed=int(settings["seed"]))


class FrozenLinear(OnFrozenEncoder):
    """Logistic or ridge regression on standardised mean vectors; for pairs on `FrozenEncoder.pair_features`.

    Of many classes on vectors with a root mean square of 1, not standardised.
    """

    name = "frozen-linear"
    middle: ClassVar[bool] = False  # whether the vectors are those of the middle layer

    def _features(self, rows: TextRows) -> np.ndarray:
        features_ND = (
            self.frozen.pair_features(rows, middle=self.middle)
            if self.is_pair
            else self.frozen.vectors(rows.texts, middle=self.middle)
        ).astype(np.float64)
        assert self.label_space is not None  # fitted or loaded
        is_many = has_many_classes(self.label_space, is_pair=self.is_pair)
        return _unit(features_ND) * np.sqrt(features_ND.shape[1]) if is_many else features_ND

    def _num_features(self) -> int:
        return 4 * self.frozen.width + 1 if self.is_pair else self.frozen.width


class FrozenMiddle(FrozenLinear):
    """The same on the vectors of the encoder's middle layer, a member of `auto` (results/intents)."""

    name = "frozen-middle"
    middle = True


class Cosine(OnFrozenEncoder):
    """Logistic or linear regression on one feature: the cosine of the mean vectors of a pair's texts."""

    name = "cosine"
    compares_pairs = True
    strengths = (0.1, 1.0, 10.0, 100.0)

    def _features(self, rows: TextRows) -> np.ndarray:
        u_ND, v_ND = self.frozen.unit_vectors(rows)
        return (u_ND * v_ND).sum(axis=1, keepdims=True).astype(np.float64)

    def _num_features(self) -> int:
        return 1


class TokenAlignment(OnFrozenEncoder):
    """Logistic or ridge regression on how well the tokens of a pair's texts match: `alignment_features`."""

    name = "token-alignment"
    compares_pairs = True
    strengths = (0.001, 0.01, 0.1, 1.0, 10.0)

    def _features(self, rows: TextRows) -> np.ndarray:
        return self.frozen.alignments(rows).astype(np.float64)

    def _num_features(self) -> int:
        return NUM_FEATURES
