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
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attentune.data.dataset import TextRows
from attentune.data.ignored_words import rows_with
from attentune.seeding import numpy_generator

MOST_CUES, MOST_TOKENS = 5, 3
LEAST_ROWS, LEAST_SHARE, LEAST_LABEL_SHARE, ALPHA = 10, 0.02, 0.75, 0.01
# Of more rows, or of longer texts, some are drawn, so that the check takes a second or two.
SAMPLED_ROWS, _SAMPLED_CHARACTERS = 20_000, 4_000_000
# A name has a capital inside sentences in this share of its occurrences, and a small letter in at most that share.
# Where many words have capitals inside sentences (German, titles), capitals tell no names.
_CAPITAL, _SMALL, _MANY_CAPITALS = 0.5, 0.05, 0.2
# Three plain words are a cue if they begin (end) the text in this share of their rows, and have this share of all rows;
# then with the words after (before) them, which are as constant. Texts are read backwards for their ends.
_EDGES = {"opening phrase": 1, "closing phrase": -1}
_AT_EDGE, _LEAST_EDGE_SHARE, _LONGEST_PHRASE = 0.95, 0.05, 20
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


# Tokens without case, and those of the texts of each row: one, or two of a pair.
_Phrase = tuple[str, ...]
_Texts = Sequence[Sequence[Sequence[str]]]


@dataclass(frozen=True)
class _Candidate:
    """A phrase whose rows have one label more often than others."""

    words: _Phrase
    kind: str  # as in `Cue`
    label: int
    rows: Sequence[int]  # the indices of the rows that have it
    label_rows: int  # how many of them have the label


def find_cues(rows: TextRows, ones_NC: np.ndarray) -> tuple[tuple[Cue, ...], int]:
    """Find cues in rows with labels, given as (N, C) ones and zeros.

    Returns the cues, the most significant first, and the number of rows that were looked at.
    """
    places = _sample(rows)
    if len(places) < len(rows):
        rows, ones_NC = rows.take(places), ones_NC[places]
    least = max(LEAST_ROWS, int(np.ceil(LEAST_SHARE * len(rows))))
    # No phrase can go with a label of fewer rows.
    labels = np.flatnonzero(ones_NC.sum(axis=0) >= LEAST_LABEL_SHARE * least)
    if not len(labels):
        return (), len(rows)
    sides = zip(*filter(None, (rows.texts, rows.pairs)), strict=True)
    texts = [[_TOKEN.findall(text) for text in both] for both in sides]
    kinds = _kinds(itertools.chain.from_iterable(texts))
    texts = [[[*map(str.casefold, tokens)] for tokens in both] for both in texts]
    phrases = _phrases(texts, least)
    candidates = list(_candidates(phrases, texts, kinds, ones_NC, labels))
    significant = _significant(candidates, ones_NC, len(phrases) * len(labels))
    cues = (_cue(one, rows) for one in _without_parts(significant))
    return tuple(itertools.islice(filter(None, cues), MOST_CUES)), len(rows)


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


def _kinds(texts: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return the kind of each word: "name", "number", "link", "mark"; "" and "word" for plain words."""
    forms, starts = Counter[str](), Counter[str]()  # as written; starts: where a capital is due anyway
    for tokens in texts:
        forms.update(tokens)
        starts.update(itertools.compress(tokens, [True, *map(_ENDS.__contains__, tokens)]))
    kinds: dict[str, str] = {}
    small, capital, inside = Counter[str](), Counter[str](), Counter[str]()  # inside: capitals inside sentences
    cased = 0  # words inside sentences
    for form, count in forms.items():
        word = form.casefold()
        kinds[word] = _kind_of(word)
        if form[0].isupper():
            capital[word] += count
            inside[word] += count - starts[form]
        elif form[0].islower():
            small[word] += count
        else:
            continue
        cased += count - starts[form]
    if inside.total() <= _MANY_CAPITALS * cased:
        for word, count in inside.items():
            total = capital[word] + small[word]
            if not kinds[word] and count > _CAPITAL * total and small[word] <= _SMALL * total:
                kinds[word] = "name"
    return kinds


def _kind_of(word: str) -> str:
    """Return the kind of a token that is odd in itself; "" for words, "word" for single letters, which are no names."""
    if "@" in word[1:] or word.startswith(("http://", "https://", "www.")):
        return "link"
    if not any(map(str.isalnum, word)):
        return "mark"
    if any(map(str.isdigit, word)):
        return "number"
    return "word" if len(word) == 1 or word[1] in "'\u2019" else ""


def _phrases(texts: _Texts, least: int) -> dict[_Phrase, list[int]]:
    """Return the phrases of up to three tokens that are in so many rows at least, each with these rows."""
    counts = Counter(itertools.chain.from_iterable(set().union(*both) for both in texts))
    frequent = {word for word, count in counts.items() if count >= least}
    rows_of: defaultdict[_Phrase, list[int]] = defaultdict(list)
    for row, both in enumerate(texts):
        shifted = ([tokens[begin:] for begin in range(MOST_TOKENS)] for tokens in both)
        phrases = (zip(*lists[:length], strict=False) for lists in shifted for length in range(1, MOST_TOKENS + 1))
        for phrase in dict.fromkeys(filter(frequent.issuperset, itertools.chain.from_iterable(phrases))):
            rows_of[phrase].append(row)
    return {phrase: rows for phrase, rows in rows_of.items() if len(rows) >= least}


def _candidates(
    phrases: Mapping[_Phrase, list[int]],
    texts: _Texts,
    kinds: Mapping[str, str],
    ones_NC: np.ndarray,
    labels: np.ndarray,
) -> Iterator[_Candidate]:
    """Yield the phrases that look odd and go with a label."""
    least_C = np.maximum(LEAST_LABEL_SHARE, (1 + ones_NC.mean(axis=0)) / 2)
    edges = {
        kind: Counter(_first_words(tokens[::step], kinds) for both in texts for tokens in both)
        for kind, step in _EDGES.items()
    }
    for phrase, rows in phrases.items():
        kind = _kind([kinds[word] for word in phrase])
        if not kind and len(rows) >= _LEAST_EDGE_SHARE * len(texts):
            at_edge = (kind for kind, step in _EDGES.items() if edges[kind][phrase[::step]] >= _AT_EDGE * len(rows))
            kind = next(at_edge, "")
        if not kind:
            continue
        counts_C = ones_NC[rows].sum(axis=0)
        for label in labels[counts_C[labels] >= least_C[labels] * len(rows)]:
            words = phrase
            if step := _EDGES.get(kind):
                words = _with_next_words(words[::step], [tokens[::step] for row in rows for tokens in texts[row]])[
                    ::step
                ]
            yield _Candidate(words, kind, int(label), rows, int(counts_C[label]))


def _kind(kinds: Sequence[str]) -> str:
    """Return why a phrase of words of these kinds should not decide, a kind of `Cue`; "" if it may."""
    if {"", "word"} & set(kinds) or (set(kinds) != {"mark"} and "mark" in (kinds[0], kinds[-1])):
        return ""  # plain words, or the full stop after a name
    return next(kind for kind in ("link", "name", "number", "mark") if kind in kinds)


def _first_words(tokens: Sequence[str], kinds: Mapping[str, str]) -> _Phrase:
    """Return the first three words of a text, which marks may precede; none if a mark is among them."""
    words = tuple(itertools.islice(itertools.dropwhile(lambda word: kinds[word] == "mark", tokens), MOST_TOKENS))
    return words if len(words) == MOST_TOKENS and "mark" not in {kinds[word] for word in words} else ()


def _with_next_words(phrase: _Phrase, texts: Sequence[Sequence[str]]) -> _Phrase:
    """Return a phrase with the words after it that hardly ever differ."""
    words, size = [*phrase], len(phrase)
    rests = [tokens[at + size :] for tokens in texts for at in range(len(tokens)) if tokens[at : at + size] == words]
    least = _AT_EDGE * len(rests)
    while len(words) < _LONGEST_PHRASE:
        word, count = max(Counter(rest[0] for rest in rests if rest).items(), key=lambda item: item[1], default=("", 0))
        if count < least:
            break
        words.append(word)
        rests = [rest[1:] for rest in rests if rest[:1] == [word]]
    return tuple(words)


def _significant(candidates: Sequence[_Candidate], ones_NC: np.ndarray, tested: int) -> list[_Candidate]:
    """Return the candidates that Fisher's exact test, one-sided, with Holm's correction confirms, in the order of p.

    Phrases that are no candidates count as tested, with larger p-values, which can only make fewer significant.
    """
    from scipy.stats import hypergeom

    totals_C = ones_NC.sum(axis=0)
    counts = [(one.label_rows - 1, len(ones_NC), totals_C[one.label], len(one.rows)) for one in candidates]
    p_K = np.array([float(hypergeom.sf(*count)) for count in counts])
    order = np.argsort(p_K, kind="stable")
    is_kept = np.logical_and.accumulate(p_K[order] * (tested - np.arange(len(order))) <= ALPHA)
    return [candidates[place] for place in order[is_kept]]


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


def _cue(candidate: _Candidate, rows: TextRows) -> Cue | None:
    """Return the cue of a phrase, as it is written most often; None if it could not be left out by that."""
    signs = r"\s*".join(map(re.escape, candidate.words))
    sample = rows.take(candidate.rows[:_SEARCHED_ROWS])
    texts = [f"{text}\n{pair}" for text, pair in zip(sample.texts, sample.pairs or ("",) * len(sample), strict=True)]
    written = Counter(" ".join(found.split()) for text in texts for found in re.findall(signs, text, re.IGNORECASE))
    if not written:
        return None
    (phrase, _), *_ = written.most_common(1)
    if sum(1 for _ in rows_with(sample, phrase)) < _SAME_ROWS * len(sample):
        return None
    return Cue(phrase, candidate.kind, candidate.label, len(candidate.rows), candidate.label_rows)
