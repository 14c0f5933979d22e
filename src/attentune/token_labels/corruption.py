"""Corrupted texts, whose changed words a token head learns to detect: a training signal that needs no labels.

Source: replaced token detection (Clark et al. 2020, "ELECTRA", section 2), here with changes of whole words that make a
text ungrammatical or nonsensical, as in the detection of artificial errors (Rei and Yannakoudakis 2017, section 3).
"""

import itertools
from collections import defaultdict
from functools import cached_property, lru_cache

import numpy as np

from attentune.config import LabelsConfig
from attentune.data.tokenization import Features, TokenWords
from attentune.nn.losses import NO_LABEL
from attentune.seeding import numpy_generator
from attentune.token_labels.base import LabelGenerator, LabelSource
from attentune.token_labels.plan import EpochPlan, TokenLabels

# Two words are forms of one if they begin alike: at least with this many letters, and with all of the shorter one but
# at most so many; each may have so many further letters.
_LEAST_STEM, _LOST, _SUFFIX = 3, 2, 3


# A change: the tokens from one place to another (not included) are replaced by those at other places; for each of these
# the place whose segment it gets; and which of them have label 1.
_Change = tuple[int, int, np.ndarray, np.ndarray, slice]


class Corruption(LabelGenerator):
    """Every row once; in a share of the texts (`ratio`) one word is changed. Its tokens have label 1, all others 0.

    A change is one of five, drawn at random: the word is left out (the next word has label 1, at the end the last
    one), doubled, replaced by a word of another row, replaced by another form of it (a word of the rows that begins
    alike), or exchanged with the next one (at the end with the one before). A change that does not fit, or that would
    make the row longer than all rows, gives way to the next in this order.
    """

    def __init__(self, settings: LabelsConfig, source: LabelSource) -> None:
        super().__init__(settings, source)
        self._forms = lru_cache(maxsize=100_000)(self._find_forms)
        self._changes = (self._left_out, self._doubled, self._replaced, self._inflected, self._exchanged)

    def plan(self, epoch: int) -> EpochPlan:
        features, rows = self.source.features, range(len(self.source.features))
        samples = [self._sample(row, numpy_generator("corruption", self.source.seed, epoch, row)) for row in rows]
        starts = np.concatenate([[0], np.cumsum([len(taken) for taken, _, _ in samples])]).astype(np.int64)
        taken, own, values = (np.concatenate(parts) for parts in zip(*samples, strict=True))
        return EpochPlan(
            np.arange(len(features)),
            token_labels=TokenLabels(values, starts),
            facts={"ones": int((values == 1).sum()), "zeros": int((values == 0).sum())},
            features=_assembled(features, taken, own, starts),
        )

    def _sample(self, row: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a row, changed or not, as places in the flat arrays."""
        features, words = self.source.features, self._words
        whole = features.row(row)
        taken = own = np.arange(whole.start, whole.stop)
        values = np.where(features.special[own], NO_LABEL, 0.0).astype(np.float32)
        numbers = np.arange(words.starts[row], words.starts[row + 1])
        if len(numbers) < 2 or generator.random() >= self.settings.ratio:
            return taken, own, values
        number, first = int(generator.choice(numbers)), int(generator.integers(len(self._changes)))
        for kind in (*self._changes[first:], *self._changes[:first]):
            change = kind(row, number, generator)
            if change is None:
                continue
            start, end, new, stand, marked = change
            if len(taken) + len(new) - (end - start) > self._longest:
                continue
            labels = np.zeros(len(new), np.float32)
            labels[marked] = 1.0
            begin, after = start - whole.start, end - whole.start
            return (
                np.concatenate([taken[:begin], new, taken[after:]]),
                np.concatenate([own[:begin], stand, own[after:]]),
                np.concatenate([values[:begin], labels, values[after:]]),
            )
        return taken, own, values

    def _left_out(self, row: int, number: int, generator: np.random.Generator) -> _Change | None:
        marked = self._neighbour(row, number)
        if marked is None:
            return None
        kept, gone = self._tokens(marked), self._tokens(number)
        return min(kept[0], gone[0]), max(kept[-1], gone[-1]) + 1, kept, kept, slice(None)

    def _doubled(self, row: int, number: int, generator: np.random.Generator) -> _Change | None:
        one = self._tokens(number)
        both = np.concatenate([one, one])
        return one[0], one[-1] + 1, both, both, slice(len(one), None)

    def _replaced(self, row: int, number: int, generator: np.random.Generator) -> _Change | None:
        return self._with(number, int(generator.integers(len(self._words.texts))))

    def _inflected(self, row: int, number: int, generator: np.random.Generator) -> _Change | None:
        forms = self._forms(self._words.texts[number])
        return self._with(number, forms[int(generator.integers(len(forms)))]) if forms else None

    def _exchanged(self, row: int, number: int, generator: np.random.Generator) -> _Change | None:
        other = self._neighbour(row, number)
        if other is None or self._words.texts[other] == self._words.texts[number]:
            return None
        first, second = self._tokens(min(number, other)), self._tokens(max(number, other))
        both = np.concatenate([second, first])
        return first[0], second[-1] + 1, both, both, slice(None)

    def _with(self, number: int, other: int) -> _Change | None:
        """Put another word in the place of this one; None if both are the same."""
        if self._words.texts[number] == self._words.texts[other]:
            return None
        gone, new = self._tokens(number), self._tokens(other)
        return gone[0], gone[-1] + 1, new, np.full(len(new), gone[0]), slice(None)

    @cached_property
    def _words(self) -> TokenWords:
        if self.source.words is None:
            raise ValueError("labels.generator corruption needs the words of the rows (LabelSource.words), got None")
        return self.source.words()

    @cached_property
    def _longest(self) -> int:
        return int(self.source.features.lengths.max(initial=0))

    @cached_property
    def _by_stem(self) -> dict[str, dict[str, int]]:
        """The different words, each with the number of the first like it, by their first letters."""
        by_stem: dict[str, dict[str, int]] = defaultdict(dict)
        for number, text in enumerate(self._words.texts):
            if len(text) >= _LEAST_STEM and text.isalpha():
                by_stem[text[:_LEAST_STEM]].setdefault(text, number)
        return by_stem

    def _find_forms(self, text: str) -> tuple[int, ...]:
        alike = self._by_stem.get(text[:_LEAST_STEM], {})
        return tuple(number for other, number in alike.items() if are_forms(text, other))

    def _tokens(self, number: int) -> np.ndarray:
        return np.arange(self._words.first[number], self._words.end[number])

    def _neighbour(self, row: int, number: int) -> int | None:
        """Return the next word of a row, else the one before; None if there is none without a special token between."""
        words = self._words
        if number + 1 < words.starts[row + 1] and words.end[number] == words.first[number + 1]:
            return number + 1
        if number > words.starts[row] and words.end[number - 1] == words.first[number]:
            return number - 1
        return None


def are_forms(first: str, second: str) -> bool:
    """Whether two different words begin so alike that they may be forms of one word."""
    stem = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    least = max(_LEAST_STEM, min(len(first), len(second)) - _LOST)
    return first != second and stem >= least and max(len(first), len(second)) - stem <= _SUFFIX


def _assembled(features: Features, taken: np.ndarray, own: np.ndarray, starts: np.ndarray) -> Features:
    """Return rows of the tokens at these places; each has segment and kind of the place that it stands at."""
    seconds = None
    if features.second_starts is not None:
        rows = np.repeat(np.arange(len(features)), np.diff(starts))
        is_first = own < (features.starts[:-1] + features.second_starts)[rows]
        seconds = np.bincount(rows[is_first], minlength=len(features)).astype(np.int64)
    return Features(
        ids=features.ids[taken],
        type_ids=None if features.type_ids is None else features.type_ids[own],
        special=features.special[own],
        starts=starts,
        full_lengths=np.diff(starts),
        second_starts=seconds,
    )
