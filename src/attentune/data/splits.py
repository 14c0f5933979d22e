"""Seeded, stratified samples, splits and folds; the groups of nearly equal texts, which none of them may separate."""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from attentune.data.dataset import TextRows
from attentune.data.labels import plain_label
from attentune.seeding import numpy_generator

_NUM_BINS = 10


def stratified_sample(labels: np.ndarray | None, size: int, *key: int | str, num_rows: int | None = None) -> np.ndarray:
    """Draw a sample with the same share of each class (or of each tenth of the scores)."""
    strata = strata_of(labels, num_rows)
    counts = np.bincount(strata)
    return _draw(strata, _allocate(counts, counts, min(size, len(strata))), key)


def stratified_split(
    labels: np.ndarray, share: float, *key: int | str, groups: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Split rows in two with the same balance of labels; a single row (or group) of a class goes to the first."""
    strata = strata_of(labels)
    counts = np.bincount(strata)
    size = min(max(1, round(len(strata) * share)), len(strata) - 1)
    quotas = _allocate(counts, np.maximum(counts - 1, 0), size)
    if quotas.sum() == 0:
        # Every class has a single row, but the second split needs one.
        quotas[np.argmax(counts)] = 1
    second = None if groups is None or _are_single(groups) else _draw_groups(strata, groups, quotas, key)
    if second is None:
        second = _draw(strata, quotas, key)
    return np.setdiff1d(np.arange(len(strata)), second), second


def stratified_folds(
    labels: np.ndarray, count: int, *key: int | str, groups: np.ndarray | None = None
) -> list[np.ndarray]:
    """Split rows into folds whose sizes, and counts of each class (or tenth of the scores), differ by at most one row.

    With groups they differ by as little as `deal_groups` finds.
    """
    strata = strata_of(labels)
    if groups is not None and not _are_single(groups):
        fold_N = deal_groups(np.eye(int(strata.max()) + 1)[strata], groups, count, "parts", *key)
        return [np.flatnonzero(fold_N == fold) for fold in range(count)]
    # The rows, ordered by stratum and shuffled within each, are dealt to the folds in turn.
    order = np.concatenate(
        [
            numpy_generator("parts", *key, stratum).permutation(np.flatnonzero(strata == stratum))
            for stratum in range(int(strata.max()) + 1)
        ]
    )
    return [np.sort(order[fold::count]) for fold in range(count)]


def deal_groups(strata_NK: np.ndarray, groups: np.ndarray, count: int, *key: int | str) -> np.ndarray:
    """Assign each group of rows to a fold, and return the fold of each row: (N,) int64, from 0.

    Groups are assigned one by one, large ones and rare strata first, each to the fold that has the smallest share of
    its strata so far. If all groups are single rows, the counts of a stratum in two folds differ by at most one.

    Source:
        Greedy assignment as in scikit-learn's `StratifiedGroupKFold`, which takes neither scores nor several labels
        per row; for those Sechidis et al., "On the stratification of multi-label data", ECML PKDD 2011.
    """
    sizes_G = np.bincount(groups)
    counts_GK = np.zeros((len(sizes_G), strata_NK.shape[1]))
    np.add.at(counts_GK, groups, strata_NK)
    totals_K = np.maximum(strata_NK.sum(axis=0), 1.0)
    rarest_G = np.where(counts_GK > 0, totals_K, np.inf).min(axis=1)
    shuffled = numpy_generator(*key).permutation(len(sizes_G))
    order = shuffled[np.lexsort((rarest_G[shuffled], -sizes_G[shuffled]))]
    filled_FK, rows_F = np.zeros((count, len(totals_K))), np.zeros(count)
    fold_G = np.zeros(len(sizes_G), dtype=np.int64)
    for place, group in enumerate(order.tolist()):
        there = np.flatnonzero(counts_GK[group])
        added = counts_GK[group, there]
        # The increase of the sum of squared shares.
        cost_F = ((2 * filled_FK[:, there] + added) * added / totals_K[there] ** 2).sum(axis=1)
        remaining = len(sizes_G) - place
        if (rows_F == 0).sum() >= remaining:  # every fold gets a group
            cost_F = np.where(rows_F == 0, cost_F, np.inf)
        fold = int(np.lexsort((rows_F, np.round(cost_F, 12)))[0])
        fold_G[group] = fold
        filled_FK[fold, there] += added
        rows_F[fold] += sizes_G[group]
    return fold_G[groups]


def split_rows(rows: TextRows, share: float, *key: int | str) -> tuple[np.ndarray, np.ndarray, str]:
    """Split labelled rows in two, nearly equal texts together, or equal ones where that is off the size by half."""
    assert rows.labels is not None
    wanted = max(1, round(len(rows) * share))
    for near in (True, False):
        groups = row_groups(rows, largest=1.0, near=near)
        first, second = stratified_split(rows.labels, share, *key, groups=groups)
        if abs(len(second) - wanted) <= max(2, wanted / 2) and not _are_divided(groups, (first, second)):
            break
    return first, second, _groups_note(groups, (first, second), near)


def fold_rows(rows: TextRows, count: int, *key: int | str) -> tuple[list[np.ndarray], str]:
    """Split labelled rows into folds, nearly equal texts together, or equal ones where a fold had twice its size."""
    assert rows.labels is not None
    for near in (True, False):
        groups = row_groups(rows, largest=1.0, near=near)
        if len(np.unique(groups)) >= count:
            folds = stratified_folds(rows.labels, count, *key, groups=groups)
            if not near or max(map(len, folds)) <= max(2, 2 * len(rows) / count):
                break
    else:
        folds = stratified_folds(rows.labels, count, *key)
    return folds, _groups_note(groups, folds, near)


def _are_divided(groups: np.ndarray, parts: Sequence[np.ndarray]) -> bool:
    return sum(len(np.unique(groups[part])) for part in parts) > len(np.unique(groups))


def _groups_note(groups: np.ndarray, parts: Sequence[np.ndarray], near: bool) -> str:
    together = int((np.bincount(groups)[groups] > 1).sum())
    if not together:
        return ""
    kind = "equal or nearly equal" if near else "equal"
    counted = f"{together:,} rows ({100 * together / len(groups):.1f} %) with {kind} texts"
    if _are_divided(groups, parts):
        return f" Warning: {counted} could not be kept together; scores are too high where texts are memorised."
    return f" {counted} stay together."


def row_groups(rows: TextRows, *, largest: float = 0.5, near: bool = True) -> np.ndarray:
    """Number the groups of rows that must not be separated: (N,) int64, from 0.

    Single texts: rows with nearly equal texts, such as retweets and filled templates. Pairs: rows with nearly equal
    first texts (premises), or nearly the same words in both texts together, and what these links connect.

    A group of more than half of the rows is divided into groups of equal texts, see `normalised`, and if that is not
    enough, for pairs, into groups that have both texts in common, in either order.
    """
    first = [normalised(text) for text in rows.texts]
    # Scores may be about the numbers in a text.
    alike = partial(near_groups, numbers=rows.labels is not None and np.issubdtype(rows.labels.dtype, np.floating))
    levels: list[list[Sequence[Hashable]]]
    if rows.pairs is None:
        levels = [[alike(first)], [first]] if near else [[first]]
    else:
        second = [normalised(text) for text in rows.pairs]
        both = [frozenset(pair) for pair in zip(first, second, strict=True)]
        levels = [[first, both], [both]]
        if near:
            joined = [" ".join(pair) for pair in zip(first, second, strict=True)]
            levels = [[alike(first), alike(joined), both], *levels]
    group_N = _connected(levels[0], len(rows))
    limits = [*(0.5 for _ in levels[1:]), largest]
    for limit, keys in zip(limits, [*levels[1:], []], strict=True):
        is_large_N = np.bincount(group_N, minlength=1)[group_N] > max(1, limit * len(rows))
        if not is_large_N.any():
            continue
        finer_N = len(rows) + _connected(keys, len(rows))
        group_N = np.unique(np.where(is_large_N, finer_N, group_N), return_inverse=True)[1]
    return group_N


def normalised(text: str) -> str:
    """Return a text without what a reader does not see: case, white space, invisible signs, composition of accents."""
    return " ".join(plain_label(text).casefold().split())


def _connected(columns: Iterable[Sequence[Hashable]], count: int) -> np.ndarray:
    """Return the connected components of rows that have equal keys in a column, numbered by their first rows."""
    edges = list[tuple[int, int]]()
    for keys in columns:
        first: dict[Hashable, int] = {}
        edges += [(first.setdefault(key, row), row) for row, key in enumerate(keys)]
    return _components(edges, count)


def _components(edges: Iterable[tuple[int, int]], count: int) -> np.ndarray:
    """Number the connected components by their first member; scipy's take 0.3 s to import, before a mistake is told."""
    parents = list(range(count))

    def root(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    for edge in edges:
        one, other = map(root, edge)
        parents[max(one, other)] = min(one, other)
    return np.unique([root(number) for number in range(count)], return_inverse=True)[1]


def _are_single(groups: np.ndarray) -> bool:
    return len(np.unique(groups)) == len(groups)


def strata_of(labels: np.ndarray | None, num_rows: int | None = None) -> np.ndarray:
    """Return the stratum of each row: its class, its decile of the scores, or its rarest label."""
    if labels is None:
        return np.zeros(num_rows or 0, dtype=np.int64)
    if np.issubdtype(labels.dtype, np.floating):
        edges = np.quantile(labels, np.linspace(0, 1, _NUM_BINS + 1)[1:-1])
        labels = np.searchsorted(np.unique(edges), labels, side="left")
    if labels.ndim == 2:  # C for rows without a label
        counts_NC = np.where(labels > 0, labels.sum(axis=0), len(labels) + 1)
        labels = np.where(labels.any(axis=1), counts_NC.argmin(axis=1), labels.shape[1])
    return np.unique(labels, return_inverse=True)[1]


def _allocate(counts: np.ndarray, limits: np.ndarray, size: int) -> np.ndarray:
    """The number of rows per stratum: proportional, within the limits, and at least one if possible."""
    size = min(size, int(limits.sum()))
    if size == 0:
        return np.zeros_like(counts)
    exact = counts * size / counts.sum()
    least = (limits > 0).astype(np.int64) if size >= np.count_nonzero(limits) else np.zeros_like(counts)
    quotas = np.clip(np.floor(exact).astype(np.int64), least, limits)
    while quotas.sum() != size:
        step = 1 if quotas.sum() < size else -1
        free = quotas < limits if step > 0 else quotas > least
        lack = np.where(free, (exact - quotas) * step, -np.inf)
        quotas[np.argmax(lack)] += step
    return quotas


def _draw(strata: np.ndarray, quotas: np.ndarray, key: tuple[int | str, ...]) -> np.ndarray:
    chosen = [
        numpy_generator("stratified", *key, stratum).permutation(np.flatnonzero(strata == stratum))[:quota]
        for stratum, quota in enumerate(int(quota) for quota in quotas)
        if quota
    ]
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, dtype=np.int64)


def _draw_groups(
    strata: np.ndarray, groups: np.ndarray, quotas: np.ndarray, key: tuple[int | str, ...]
) -> np.ndarray | None:
    """Draw whole groups, about as many rows of each stratum as its quota; None if none can be spared."""
    by_group = np.split(np.argsort(groups, kind="stable"), np.cumsum(np.bincount(groups))[:-1])
    own = [np.unique(strata[rows], return_counts=True) for rows in by_group]
    left, need, chosen = np.bincount(strata), quotas.copy(), list[int]()

    def take(group: int) -> None:
        there, counts = own[group]
        left[there] -= counts
        need[there] -= counts
        chosen.append(group)

    def can_be_spared(group: int) -> bool:
        there, counts = own[group]
        return bool((left[there] > counts).all())

    order = numpy_generator("groups", *key).permutation(len(by_group)).tolist()
    for group in order:
        there, counts = own[group]
        # Whether the sum of squared differences from the quotas falls.
        if (counts * (2 * need[there] - counts)).sum() > 0 and can_be_spared(group):
            take(group)
    smallest_first = sorted(order, key=lambda group: len(by_group[group]))
    for stratum in np.flatnonzero((need == quotas) & (quotas > 0)):
        if need[stratum] == quotas[stratum]:
            spare = (g for g in smallest_first if stratum in own[g][0] and g not in chosen and can_be_spared(g))
            if (group := next(spare, None)) is not None:
                take(group)
    return np.sort(np.concatenate([by_group[group] for group in chosen])) if chosen else None


# Two texts are nearly equal if they share this many of the words of both (Jaccard).
ALIKE = 0.8
# Texts with fewer words must have the same ones: one word may turn them into another text.
_FEWEST_WORDS = 5
# Of the earlier rows with a word, so many are compared, the latest: texts from templates have many.
_MOST_ROWS = 100
_WORD = re.compile(r"\w+")
# What a retweet or a copy adds or changes: links, names of users, "RT".
_ADDED = re.compile(r"https?://\S+|www\.\S+|@\w+|\brt\b")
# Groups of long texts are formed by their first words.
_MOST_WORDS = 100

Words = frozenset[int]


def near_groups(texts: Sequence[str], *, numbers: bool = False) -> list[int]:
    """Number texts so that nearly equal ones, and what a chain of these connects, have the same number.

    Case, punctuation, spaces and the order of words are ignored, and so is what retweets and filled templates add or
    change: links, names of users ("@name"), "RT", and numbers. Of long texts the first 100 words count. 100,000 texts
    take 2 to 20 seconds.
    """
    vocabulary: dict[tuple[str, int], int] = {}
    places: dict[Hashable, int] = {}
    place_N = [places.setdefault(_content(text, vocabulary, numbers), len(places)) for text in texts]
    words: list[Words] = [own if isinstance(own, frozenset) else frozenset() for own in places]
    return _components(_alike(words), len(words))[place_N].tolist()


def _alike(words: Sequence[Words]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of nearly equal texts that share one of their rarest words; none of texts of few words.

    Source:
        Prefix filtering: Chaudhuri, Ganti and Kaushik, "A primitive operator for similarity joins in data cleaning",
        ICDE 2006. Two sets that share enough share one of their rarest words.
    """
    counts = np.bincount([word for own in words for word in own], minlength=1)
    rank = np.argsort(np.argsort(counts, kind="stable"), kind="stable").tolist()
    with_word: dict[int, list[int]] = defaultdict(list)
    for place, own in enumerate(words):
        rarest = sorted(own, key=rank.__getitem__)[: len(own) - math.ceil(ALIKE * len(own)) + 1]
        earlier: dict[int, None] = {}
        for word in rarest if len(own) >= _FEWEST_WORDS else ():
            earlier |= dict.fromkeys(with_word[word][-_MOST_ROWS:])
            with_word[word].append(place)
        for other in itertools.islice(earlier, _MOST_ROWS):
            common = len(own & words[other])
            if common / (len(own) + len(words[other]) - common) >= ALIKE:
                yield other, place


def _content(text: str, vocabulary: dict[tuple[str, int], int], numbers: bool) -> Hashable:
    """Return the numbers of the words of a text, without what a copy adds; or the text itself if it has no words.

    A word that occurs again counts as another word.
    """
    plain = text.casefold()
    found = _WORD.findall(_ADDED.sub(" ", plain))[:_MOST_WORDS]
    words = found if numbers else [word for word in found if not word.isdigit()]
    seen: dict[str, int] = {}
    own = set[int]()
    for word in words if len(words) >= _FEWEST_WORDS else found:
        seen[word] = seen.get(word, 0) + 1
        own.add(vocabulary.setdefault((word, seen[word]), len(vocabulary)))
    return frozenset(own) or " ".join(plain.split())
