"""Reference implementations of the label generators: loops with one text at a time, no padding and no batches."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attentune.data.tokenization import Features
from attentune.seeding import derive_key, numpy_generator, seed_global
from attentune.token_labels.base import LabelSource
from attentune.token_labels.corruption import random_mask, random_spans, spread_copies


class Row:
    """A row of encoded texts, as a batch of one of a model."""

    def __init__(self, features: Features, row: int, model: Any, mask_token_id: int) -> None:
        begin, end = features.starts[row], features.starts[row + 1]
        self.model, self._mask = model, mask_token_id
        self.ids = [int(token) for token in features.ids[begin:end]]
        self.places = [place for place, is_special in enumerate(features.special[begin:end]) if not is_special]
        self.second = None if features.second_starts is None else int(features.second_starts[row])
        self._type_ids = None if features.type_ids is None else features.type_ids[begin:end].astype(int).tolist()

    def inputs(self, gone: Iterable[int] = ()) -> dict[str, Tensor]:
        """Return the model inputs, with these token positions masked."""
        lost = set(gone)
        ids = [self._mask if place in lost else own for place, own in enumerate(self.ids)]
        inputs = {"input_ids": torch.tensor([ids])}
        if self._type_ids is not None:
            inputs["token_type_ids"] = torch.tensor([self._type_ids])
        if self.second is not None:
            inputs["second_start"] = torch.tensor([self.second])
        return inputs

    @torch.no_grad()
    def logits(self, gone: Iterable[int] = ()) -> Tensor:
        return self.model(**self.inputs(gone)).logits[0]

    @torch.no_grad()
    def embedded(self, gone: Iterable[int] = ()) -> Tensor:
        """Return the word embeddings (1, T, E), with these token positions masked."""
        return self.model.get_input_embeddings()(self.inputs(gone)["input_ids"])

    def gradient(self, value: Callable[[Tensor], Tensor], embedded_1TE: Tensor) -> Tensor:
        """Return the gradient (T, E) of a function of the logits at these word embeddings."""
        point_1TE, usual = embedded_1TE.detach().clone().requires_grad_(), self.model.get_input_embeddings()
        self.model.set_input_embeddings(_Given(point_1TE))
        try:
            result = value(self.model(**self.inputs()).logits[0])
        finally:
            self.model.set_input_embeddings(usual)
        return torch.autograd.grad(result, point_1TE)[0][0]


class _Given(nn.Module):
    """Replaces the word embeddings and returns a given tensor."""

    def __init__(self, embedded_1TE: Tensor) -> None:
        super().__init__()
        self.embedded_1TE = embedded_1TE

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.embedded_1TE


def row_of(source: LabelSource, row: int) -> Row:
    return Row(source.features, row, getattr(source.scorer, "model", None), source.mask_token_id)


def ordinary(source: LabelSource, row: int) -> list[int]:
    return row_of(source, row).places


def answer(source: LabelSource, row: int, places: Iterable[int] = ()) -> Tensor:
    return row_of(source, row).logits(places)


def is_right(source: LabelSource, row: int, logits_C: Tensor) -> bool:
    if source.comparator.label_space.task_type == "regression":
        return abs(float(logits_C) - float(source.gold[row])) <= source.comparator.tolerance
    return int(logits_C.argmax()) == int(source.gold[row])


def is_same(source: LabelSource, one_C: Tensor, other_C: Tensor) -> bool:
    if source.comparator.label_space.task_type == "regression":
        return abs(float(one_C) - float(other_C)) <= source.comparator.tolerance
    return int(one_C.argmax()) == int(other_C.argmax())


def fall(source: LabelSource, row: int, plain_C: Tensor, masked_C: Tensor) -> float:
    gold = source.gold[row]
    if source.comparator.label_space.task_type == "regression":
        rise = abs(float(masked_C) - float(gold)) - abs(float(plain_C) - float(gold))
        return min(1.0, max(0.0, rise / source.comparator.score_range))
    plain, masked = plain_C.double().softmax(0), masked_C.double().softmax(0)
    return max(0.0, float(plain[int(gold)] - masked[int(gold)]))


def flat(source: LabelSource, given: dict[tuple[int, int], list[float]]) -> np.ndarray:
    """Return the mean of the values given to each (row, position), as flat labels; -1 where there are none."""
    values = np.full(len(source.features.ids), -1.0)
    for (row, place), own in given.items():
        values[source.features.starts[row] + place] = sum(own) / len(own)
    return values


def probing_labels(
    source: LabelSource,
    epoch: int,
    *,
    ratio: float = 1.0,
    mask_share: float = 0.3,
    soft: bool = False,
    assumed_correct: Iterable[int] = (),
    ask: Any = None,
) -> tuple[np.ndarray, Counter[str]]:
    """Compute the labels of `flip`, or with `soft` those of `drop`.

    Rows in `assumed_correct` are skipped only if their predictions are wrong both with and without masks.
    """
    ask, trusted = ask or answer, set(assumed_correct)
    given: dict[tuple[int, int], list[float]] = defaultdict(list)
    facts: Counter[str] = Counter()
    used: Counter[int] = Counter()
    for row in map(int, spread_copies(len(source.features), ratio, source.seed, epoch)):
        copy, used[row] = used[row], used[row] + 1
        facts["probed"] += 1
        plain_C = ask(source, row)
        places = random_mask(source.features, row, mask_share, source.seed, epoch, row, copy).tolist()
        masked_C = ask(source, row, places)
        if not is_right(source, row, plain_C) and not (row in trusted and is_right(source, row, masked_C)):
            continue
        flipped = not is_right(source, row, masked_C) if row in trusted else not is_same(source, plain_C, masked_C)
        facts["correct"] += 1
        facts["flipped"] += flipped
        for place in places:
            given[row, place].append(fall(source, row, plain_C, masked_C) / len(places) if soft else float(flipped))
    return flat(source, given), facts


def leave_one_out_labels(source: LabelSource, rows: Iterable[int], *, soft: bool) -> tuple[np.ndarray, Counter[str]]:
    given: dict[tuple[int, int], list[float]] = defaultdict(list)
    facts: Counter[str] = Counter()
    for row in rows:
        plain_C = answer(source, row)
        facts["probed"] += 1
        if not is_right(source, row, plain_C):
            continue
        turned = False
        for place in ordinary(source, row):
            masked_C = answer(source, row, [place])
            flipped = not is_same(source, plain_C, masked_C)
            turned |= flipped
            given[row, place].append(fall(source, row, plain_C, masked_C) if soft else float(flipped))
        facts["correct"] += 1
        facts["flipped"] += turned
    return flat(source, given), facts


def released_spans(
    length: int, random: np.random.RandomState, *, chance: float = 0.1, longest: float = 0.7
) -> set[int]:
    """Mask a text of `length` tokens as the released program does, one token after another."""
    cut_1, cut_2, cut_3 = (np.percentile(np.arange(length), share) for share in (25, 50, 75))
    masked: set[int] = set()
    for token in range(length):
        if random.rand() > chance:
            continue
        if token < cut_1:
            start, end = 0.0, cut_1
        elif token < cut_2:
            start, end = cut_1, cut_2
        elif token < cut_3:
            start, end = cut_2, cut_3
        else:
            start, end = cut_3, float(length)
        if end - start <= 1:
            continue
        last, p = random.randint(int(start), int(end)), random.rand()
        if p > longest and last >= start + 2:
            masked |= {last, last - 1, last - 2}
        elif 2 * longest - 1 < p < longest and last >= start + 1:
            masked |= {last, last - 1}
        else:
            masked |= {last}
    return masked


def released_shares(each: float, epochs: int) -> list[float]:
    """Return the share of kept samples by epoch: it rises while the next value is below 1."""
    shares, share = [], 0.0
    for _ in range(epochs):
        shares.append(share)
        if share + each < 1.0:
            share += each
    return shares


def released_pool(
    source: LabelSource, epoch: int, *, wanted: int, ask: Any = answer, assumed_correct: Iterable[int] = ()
) -> list[tuple[int, list[int]]]:
    """Return the pool of kept samples, rows with their masked positions, testing one row after another.

    Rows in `assumed_correct` are scored only with masks.
    """
    trusted = set(assumed_correct)
    pool: list[tuple[int, list[int]]] = []
    for number in range(20):
        if len(pool) >= wanted:
            break
        for row in range(len(source.features)):
            if row not in trusted and not is_right(source, row, ask(source, row)):
                continue
            key = (source.seed, epoch, row) if number == 0 else (source.seed, epoch, row, number)
            places = random_spans(source.features, row, chance=0.1, rm_threshold=0.7, key=key).tolist()
            masked_C = ask(source, row, places)
            kept = is_right(source, row, masked_C) if row in trusted else is_same(source, ask(source, row), masked_C)
            if kept and (row, places) not in pool:
                pool.append((row, places))
    return pool


def released_samples(source: LabelSource, epoch: int, *, wanted: int, **options: Any) -> list[tuple[int, list[int]]]:
    """Return the kept samples of an epoch: a draw from the pool, in the pool's order."""
    pool = released_pool(source, epoch, wanted=wanted, **options)
    drawn = numpy_generator("kept samples", source.seed, epoch).permutation(len(pool))[:wanted]
    return [pool[place] for place in sorted(drawn)]


def path_integral(start_1TE: Tensor, end_1TE: Tensor, steps: int, slope: Callable[[Tensor], Tensor]) -> np.ndarray:
    """Return the integrated gradients (T,) from one text's word embeddings to another's, by Gauss-Legendre."""
    total_TE = torch.zeros_like(end_1TE[0], dtype=torch.float64)
    for node, weight in zip(*np.polynomial.legendre.leggauss(steps), strict=True):
        total_TE += float(weight) / 2.0 * slope(start_1TE + (1.0 + float(node)) / 2.0 * (end_1TE - start_1TE))
    return (total_TE * (end_1TE - start_1TE)[0]).sum(dim=-1).numpy()


def ridge_weights(kept_SF: np.ndarray, answers_S: np.ndarray, weights_S: np.ndarray) -> np.ndarray:
    """Return the coefficients of a weighted ridge regression (alpha 1) with an intercept that is not penalised."""
    design = np.hstack([kept_SF, np.ones((len(kept_SF), 1))])
    penalty = np.diag([1.0] * kept_SF.shape[1] + [0.0])
    return np.linalg.solve(design.T @ (weights_S[:, None] * design) + penalty, design.T @ (weights_S * answers_S))[:-1]


def row_loss(source: LabelSource, row: int, logits_C: Tensor) -> Tensor:
    gold = source.gold[row]
    if source.comparator.label_space.task_type == "regression":
        return (logits_C[0] - float(gold)) ** 2
    return -logits_C.log_softmax(0)[int(gold)]


def rise_scores(source: LabelSource, row: int) -> np.ndarray:
    """Return the scores (T,) of a first-order approximation of the rise in loss: (E[mask] - E[t]) . dL/dE[t]."""
    text = row_of(source, row)
    own_1TE, masked_1TE = text.embedded(), text.embedded(range(len(text.ids)))
    gradient_TE = text.gradient(lambda logits_C: row_loss(source, row, logits_C), own_1TE)
    return ((masked_1TE - own_1TE)[0] * gradient_TE).sum(dim=-1).numpy()


def integrated_gradients(source: LabelSource, row: int, *, steps: int) -> np.ndarray:
    """Return the integrated gradients (T,) of minus the loss from the masked text to the text."""
    text = row_of(source, row)

    def slope(point_1TE: Tensor) -> Tensor:
        return text.gradient(lambda logits_C: -row_loss(source, row, logits_C), point_1TE)

    return path_integral(text.embedded(text.places), text.embedded(), steps, slope)


def lime_weights(source: LabelSource, row: int, key: int, *, samples: int) -> np.ndarray:
    """Return the coefficients (T,) of a weighted ridge regression (alpha 1) of minus the loss on the kept tokens.

    Special tokens get 0.
    """
    text = row_of(source, row)
    scores, places = np.zeros(len(text.ids)), text.places
    if not places:
        return scores
    seed_global(key)
    kept_SF, answers_S, weights_S = [], [], []
    for _ in range(samples):
        # The last random number belongs to the special tokens, which are never masked.
        kept_F = torch.bernoulli(torch.full((1, len(places) + 1), 0.5))[0].numpy()
        gone = [place for place, is_kept in zip(places, kept_F, strict=False) if not is_kept]
        kept_SF.append(kept_F)
        answers_S.append(-float(row_loss(source, row, text.logits(gone))))
        weights_S.append(np.exp(-((1.0 - np.sqrt(kept_F[:-1].mean())) ** 2) / 0.25**2))
    scores[places] = ridge_weights(np.array(kept_SF), np.array(answers_S), np.array(weights_S))[: len(places)]
    return scores


def labels_of_scores(scores: np.ndarray, places: list[int], *, soft: bool, top_share: float = 0.3) -> np.ndarray:
    """Convert scores to labels.

    Hard labels are 1 for positive scores in the top share and 0 for the bottom half. Soft labels are the scores divided
    by the highest one, at least 0.
    """
    labels = np.full(len(scores), -1.0)
    if not places:
        return labels
    if soft:
        highest = max(scores[place] for place in places)
        for place in places:
            labels[place] = max(0.0, scores[place]) / highest if highest > 0 else 0.0
        return labels
    falling = sorted(places, key=lambda place: -scores[place])
    for place in falling[len(places) - len(places) // 2 :]:
        labels[place] = 0.0
    for place in falling[: max(1, round(top_share * len(places)))]:
        if scores[place] > 0:
            labels[place] = 1.0
    return labels


def attribution_key(source: LabelSource, epoch: int, row: int) -> int:
    return derive_key("attribution", source.seed, epoch, row)
