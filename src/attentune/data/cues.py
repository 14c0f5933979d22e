"""Cues: names, numbers, addresses, marks and fixed phrases that go with one label, though they should not decide.

    texts -> tokens -> phrases of up to three tokens in enough rows -> those that go with a label -> those that look odd

A cue is in at least 2 % and 10 of the rows; 75 % of these have one label, and half of the way from that label's share
of all rows to all; and by Fisher's exact test, with Holm's correction over all phrases and labels, that is no chance.
Which words may decide no statistic can tell, so that a cue has to look odd too; plain words are no cues.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attentune.data.dataset import TextRows
from attentune.data.ignored_words import rows_with
from attentune.seeding import numpy_generator

MOST_CUES, MOST_TOKENS = 5, 3
LEAST_ROWS, LEAST_SHARE, LEAST_LABEL_SHARE, ALPHA = 10, 0.02, 0.75, 0.01
# Of more rows, or of longer texts, some are drawn, so that the check takes about half a second.
SAMPLED_ROWS, _SAMPLED_CHARACTERS = 20_000, 4_000_000
# A name has a capital inside sentences in this share of its occurrences, and a small letter in at most that share.
# Where many words have capitals inside sentences (German, titles), capitals tell no names.
_CAPITAL, _SMALL, _MANY_CAPITALS = 0.5, 0.05, 0.2
# Three plain words are a cue if they begin (end) the text in this share of their rows, and have this share of all rows;
# then with the words after (before) them, which are as constant.
OPENING, CLOSING = "opening phrase", "closing phrase"
_AT_PLACE, _LEAST_PLACED_SHARE, _LONGEST_PHRASE = 0.95, 0.05, 20
# A phrase stands for a part of it that is in hardly more rows.
_SAME_ROWS = 0.9
# Rows in which it is looked up how a cue is written.
_SEARCHED_ROWS = 200

_TOKEN = re.compile(
    r"(?:https?://|www\.)\S*[\w/]"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|\d+(?:[.,:/]\d+)*(?!\w)"
    r"|\w+(?:['\u2019]\w+)*"
    r"|\S"
)
# After these a word has a capital anyway.
_ENDS = frozenset(".!?:;\u2026\"'\u201c\u201d\u2018\u2019([{-\u2013\u2014*/|>")


@dataclass(frozen=True)
class Cue:
    """A phrase that goes with one label."""

    text: str  # as it is written most often
    kind: str  # "name", "number", "link", "mark", "opening phrase" or "closing phrase"
    label: int  # the id of the label
    rows: int  # how many rows have it
    label_rows: int  # how many of these have the label


@dataclass(frozen=True)
class Cues:
    """What was found in some rows."""

    found: tuple[Cue, ...]  # the most significant first
    rows: int  # how many rows were looked at


def find_cues(rows: TextRows, ones_NC: np.ndarray) -> Cues:
    """Find cues in rows with labels, given as (N, C) ones and zeros."""
    places = _sample(rows)
    if len(places) < len(rows):
        rows, ones_NC = rows.take(places), ones_NC[places]
    least = max(LEAST_ROWS, int(np.ceil(LEAST_SHARE * len(rows))))
    # No phrase can go with a label of fewer rows.
    labels = np.flatnonzero(ones_NC.sum(axis=0) >= LEAST_LABEL_SHARE * least)
    tokens = _Tokens.of(rows)
    if not len(labels) or not len(tokens.row_T):
        return Cues((), len(rows))
    levels = list(_levels(tokens, least))
    tested = sum(len(level.rows_F) for level in levels) * len(labels)
    candidates = (one for level in levels for one in _candidates(level, tokens, ones_NC, labels))
    cues = (_cue(one, tokens, rows) for one in _without_parts(_significant(candidates, ones_NC, tested)))
    return Cues(tuple(itertools.islice(filter(None, cues), MOST_CUES)), len(rows))


def ignore_flag(words: Sequence[str]) -> str:
    """Return the flag that leaves words out, quoted for a shell."""
    value = ",".join(words)
    if any("," in word for word in words) or value[0] in "[{" or (len(words) == 1 and "." in value):
        value = json.dumps(words, ensure_ascii=False)  # no other list, and no name of a file
    is_plain = not set('"$`\\!') & set(value)  # the shell reads these in double quotes
    return f"--ignore_words{'=' if value[0] == '-' else ' '}" + (f'"{value}"' if is_plain else shlex.quote(value))


def _sample(rows: TextRows) -> np.ndarray:
    """Draw the rows to look at, in order; all if they are few and short."""
    sizes_N = np.fromiter(map(len, rows.texts), np.int64, len(rows))
    if rows.pairs is not None:
        sizes_N += np.fromiter(map(len, rows.pairs), np.int64, len(rows))
    if len(rows) <= SAMPLED_ROWS and sizes_N.sum() <= _SAMPLED_CHARACTERS:
        return np.arange(len(rows))
    drawn = numpy_generator("cues", len(rows)).permutation(len(rows))[:SAMPLED_ROWS]
    return np.sort(drawn[np.cumsum(sizes_N[drawn]) <= _SAMPLED_CHARACTERS])


@dataclass(frozen=True)
class _Tokens:
    """The tokens of all texts, one after the other."""

    row_T: np.ndarray  # the row of each token
    word_T: np.ndarray  # its id, whatever its case
    is_first_T: np.ndarray  # whether it begins a text
    is_last_T: np.ndarray  # whether it ends a text
    opens_T: np.ndarray  # whether it is the first token of a text that is no mark
    closes_T: np.ndarray  # whether it is the last one
    words: tuple[str, ...]  # by id, without case
    kinds: Sequence[str]  # by id: "name", "number", "link", "mark"; "" and "word" for plain words

    @classmethod
    def of(cls, rows: TextRows) -> _Tokens:
        sides = [rows.texts] if rows.pairs is None else [rows.texts, rows.pairs]
        texts = [_TOKEN.findall(text) for both in zip(*sides, strict=True) for text in both]
        written = dict.fromkeys(itertools.chain.from_iterable(texts))
        written = dict(zip(written, range(len(written)), strict=True))
        form_T = np.fromiter(map(written.__getitem__, itertools.chain.from_iterable(texts)), np.int64)
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        ends = np.cumsum(lengths)
        is_first_T, is_last_T = np.zeros(len(form_T), dtype=bool), np.zeros(len(form_T), dtype=bool)
        is_first_T[(ends - lengths)[lengths > 0]], is_last_T[ends[lengths > 0] - 1] = True, True
        folded = [form.casefold() for form in written]
        words = dict.fromkeys(folded)
        words = dict(zip(words, range(len(words)), strict=True))
        word_T = np.fromiter(map(words.__getitem__, folded), np.int64, len(folded))[form_T]
        is_start_T = is_first_T.copy()
        is_end_V = np.array([form in _ENDS for form in written], dtype=bool)
        is_start_T[1:] |= is_end_V[form_T[:-1]]
        has_capital_V = np.array([form[0].isupper() for form in written], dtype=bool)
        is_small_V = np.array([form[0].islower() for form in written], dtype=bool)

        def count(where_T: np.ndarray) -> np.ndarray:
            return np.bincount(word_T[where_T], minlength=len(words))

        capital_T, small_T = has_capital_V[form_T], is_small_V[form_T]
        inside_W, small_W, all_W = count(capital_T & ~is_start_T), count(small_T), count(capital_T | small_T)
        inside = int((~is_start_T & (capital_T | small_T)).sum())
        is_name_W = (inside_W > _CAPITAL * all_W) & (small_W <= _SMALL * all_W)
        if int((capital_T & ~is_start_T).sum()) > _MANY_CAPITALS * inside:
            is_name_W[:] = False
        kinds = [_kind_of(word) or ("name" if name else "") for word, name in zip(words, is_name_W, strict=True)]
        row_T = np.repeat(np.arange(len(texts)) // len(sides), lengths)
        place_T = np.flatnonzero((np.array(kinds, dtype=object) != "mark")[word_T])  # tokens that are no marks
        text_T = np.repeat(np.arange(len(texts)), lengths)[place_T]
        opens_T, closes_T = np.zeros_like(is_first_T), np.zeros_like(is_first_T)
        opens_T[place_T[np.diff(text_T, prepend=-1) > 0]] = True
        closes_T[place_T[np.diff(text_T, append=len(texts)) > 0]] = True
        return cls(row_T, word_T, is_first_T, is_last_T, opens_T, closes_T, tuple(words), kinds)


def _kind_of(word: str) -> str:
    """Return the kind of a token that is odd in itself; "" for words, "word" for single letters, which are no names."""
    if "@" in word[1:] or word.startswith(("http://", "https://", "www.")):
        return "link"
    if not any(map(str.isalnum, word)):
        return "mark"
    if any(map(str.isdigit, word)):
        return "number"
    return "word" if len(word) == 1 or word[1] in "'\u2019" else ""


@dataclass(frozen=True)
class _Level:
    """The phrases of one number of tokens that are in enough rows."""

    length: int
    phrase_T: np.ndarray  # the phrase that begins at each token, or -1
    word_ids: np.ndarray  # (F, length) the words of each phrase
    row_P: np.ndarray  # the rows with a phrase, and
    phrase_P: np.ndarray  # the phrase that each of them has
    rows_F: np.ndarray  # the number of rows with each phrase
    first_F: np.ndarray  # the number of texts that it begins, both of pairs; marks may precede it
    last_F: np.ndarray  # the number of texts that it ends; marks may follow it


def _levels(tokens: _Tokens, least: int) -> Iterator[_Level]:
    """Yield the phrases of one, two, ... tokens that are in so many rows at least."""
    words = level = _level(tokens, tokens.word_T, np.arange(len(tokens.words))[:, None], least)
    yield level
    while level.length < MOST_TOKENS and len(level.rows_F):
        length, count = level.length, len(words.rows_F)
        first_T, next_T = level.phrase_T[:-length], words.phrase_T[length:]
        # The phrase is in one text: no token after its first one begins a text.
        is_phrase_T = (first_T >= 0) & (next_T >= 0) & ~tokens.is_first_T[length:]
        keys, found = np.unique(first_T[is_phrase_T] * count + next_T[is_phrase_T], return_inverse=True)
        phrase_T = np.full(len(tokens.word_T), -1)
        phrase_T[:-length][is_phrase_T] = found
        word_ids = np.column_stack([level.word_ids[keys // count], words.word_ids[keys % count]])
        level = _level(tokens, phrase_T, word_ids, least)
        yield level


def _level(tokens: _Tokens, phrase_T: np.ndarray, word_ids: np.ndarray, least: int) -> _Level:
    """Count rows, and drop the phrases of fewer than `least`."""
    length, num_rows = word_ids.shape[1], int(tokens.row_T[-1]) + 1
    is_phrase_T = phrase_T >= 0
    pairs = np.sort(phrase_T[is_phrase_T] * num_rows + tokens.row_T[is_phrase_T])  # faster than np.unique
    phrase_P, row_P = np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], num_rows)
    is_kept = np.bincount(phrase_P, minlength=len(word_ids)) >= least
    new_ids = np.append(np.where(is_kept, np.cumsum(is_kept) - 1, -1), -1)  # -1 stays -1
    phrase_T, phrase_P, row_P = new_ids[phrase_T], new_ids[phrase_P[is_kept[phrase_P]]], row_P[is_kept[phrase_P]]

    def count(ids: np.ndarray) -> np.ndarray:
        return np.bincount(ids[ids >= 0], minlength=int(is_kept.sum()))

    return _Level(
        length=length,
        phrase_T=phrase_T,
        word_ids=word_ids[is_kept],
        row_P=row_P,
        phrase_P=phrase_P,
        rows_F=count(phrase_P),
        first_F=count(phrase_T[tokens.opens_T]),
        last_F=count(phrase_T[np.roll(tokens.closes_T, 1 - length)]),
    )


@dataclass(frozen=True)
class _Candidate:
    """A phrase whose rows have one label more often than others."""

    words: tuple[int, ...]  # ids
    label: int
    rows: np.ndarray  # the indices of the rows that have it
    label_rows: int  # how many of them have the label
    kind: str  # as in `Cue`
    p: float = 1.0


def _candidates(level: _Level, tokens: _Tokens, ones_NC: np.ndarray, labels: np.ndarray) -> Iterator[_Candidate]:
    """Yield the phrases that look odd and go with a label."""
    kinds = [_phrase_kind(level, number, tokens, len(ones_NC)) for number in range(len(level.rows_F))]
    base_C = ones_NC.mean(axis=0)
    starts = np.searchsorted(level.phrase_P, np.arange(len(kinds) + 1))
    for number in (number for number, kind in enumerate(kinds) if kind):
        rows = level.row_P[starts[number] : starts[number + 1]]
        for label in labels:
            count = int(ones_NC[rows, label].sum())
            if count >= max(LEAST_LABEL_SHARE, (1 + base_C[label]) / 2) * len(rows):
                words = tuple(level.word_ids[number].tolist())
                candidate = _Candidate(words, int(label), rows, count, kinds[number])
                yield _with_neighbours(candidate, level, number, tokens)


def _phrase_kind(level: _Level, number: int, tokens: _Tokens, num_rows: int) -> str:
    """Return why a phrase should not decide, a kind of `Cue`; "" if it may."""
    kinds = [tokens.kinds[word] for word in level.word_ids[number].tolist()]
    if not {"", "word"} & set(kinds):
        if set(kinds) != {"mark"} and "mark" in (kinds[0], kinds[-1]):
            return ""  # the full stop after a name
        return next(kind for kind in ("link", "name", "number", "mark") if kind in kinds)
    rows = level.rows_F[number]
    if len(kinds) - kinds.count("mark") == MOST_TOKENS and rows >= _LEAST_PLACED_SHARE * num_rows:
        for kind, count in ((OPENING, level.first_F[number]), (CLOSING, level.last_F[number])):
            if count >= _AT_PLACE * rows:
                return kind
    return ""


def _with_neighbours(candidate: _Candidate, level: _Level, number: int, tokens: _Tokens) -> _Candidate:
    """Return an opening or closing phrase with the words after or before it that hardly ever differ."""
    if candidate.kind not in (OPENING, CLOSING):
        return candidate
    words, at = list(candidate.words), np.flatnonzero(level.phrase_T == number)
    step = 1 if candidate.kind == OPENING else -1
    edge = at + level.length - 1 if step == 1 else at
    while len(words) < _LONGEST_PHRASE:
        # A neighbour is in the same text: none after the last token, none before the first one.
        is_inside = ~(tokens.is_last_T if step == 1 else tokens.is_first_T)[edge]
        neighbours = tokens.word_T[edge[is_inside] + step]
        if not len(neighbours):
            break
        word = int(np.bincount(neighbours).argmax())
        if (neighbours == word).sum() < _AT_PLACE * len(at):
            break
        edge = edge[is_inside][neighbours == word] + step
        words = [*words, word] if step == 1 else [word, *words]
    return replace(candidate, words=tuple(words))


def _significant(candidates: Iterable[_Candidate], ones_NC: np.ndarray, tested: int) -> list[_Candidate]:
    """Return the candidates that Fisher's exact test, one-sided, with Holm's correction confirms, in the order of p.

    Phrases that are no candidates count as tested, with larger p-values, which can only make fewer significant.
    """
    from scipy.stats import hypergeom

    totals_C = ones_NC.sum(axis=0)
    with_p = [
        replace(one, p=float(hypergeom.sf(one.label_rows - 1, len(ones_NC), totals_C[one.label], len(one.rows))))
        for one in candidates
    ]
    ranked = sorted(with_p, key=lambda one: one.p)
    is_chance = (one.p * (tested - rank) > ALPHA for rank, one in enumerate(ranked))
    return ranked[: next((rank for rank, chance in enumerate(is_chance) if chance), len(ranked))]


def _without_parts(candidates: Sequence[_Candidate]) -> Iterator[_Candidate]:
    """Leave out parts of phrases in hardly more rows, and phrases with a part that is a cue of its own."""
    whole = [
        one
        for one in candidates
        if not any(
            len(one.words) < len(other.words) and _has(other, one) and len(other.rows) >= _SAME_ROWS * len(one.rows)
            for other in candidates
        )
    ]
    for one in whole:
        if not any(len(other.words) < len(one.words) and _has(one, other) for other in whole):
            yield one


def _has(whole: _Candidate, part: _Candidate) -> bool:
    length = len(part.words)
    return any(whole.words[begin : begin + length] == part.words for begin in range(len(whole.words) - length + 1))


def _cue(candidate: _Candidate, tokens: _Tokens, rows: TextRows) -> Cue | None:
    """Return the cue of a phrase, as it is written most often; None if it could not be left out by that."""
    signs = r"\s*".join(re.escape(tokens.words[word]) for word in candidate.words)
    sample = rows.take(candidate.rows[:_SEARCHED_ROWS])
    texts = [f"{text}\n{pair}" for text, pair in zip(sample.texts, sample.pairs or ("",) * len(sample), strict=True)]
    written = Counter(" ".join(found.split()) for text in texts for found in re.findall(signs, text, re.IGNORECASE))
    if not written:
        return None
    (phrase, _), *_ = written.most_common(1)
    if sum(1 for _ in rows_with(sample, phrase)) < _SAME_ROWS * len(sample):
        return None
    return Cue(phrase, candidate.kind, candidate.label, len(candidate.rows), candidate.label_rows)
