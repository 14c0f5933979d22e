"""The text of an explanation as HTML: its words can be clicked, and those that matter are painted; all is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from attentune.explain.explanation import Explanation
from attentune.explain.words import Subword
from attentune.report.highlight import Segment, highest, score_text, segments, share_of, sides, visible

# Words with a smaller share of the strongest word's score stay unpainted. Scores without a sign are positive, and most
# are far from 0. On 100 sentences of the demo's validation rows, these limits paint on average 34 % of the words by
# leave-one-out, 32 % by integrated gradients, 43 % by ssa and 31 % by attention; without a limit it would be all.
WEAK_SIGNED, WEAK_UNSIGNED = 0.3, 0.7
# A masked word: where it is ("text" or "pair"), its first character, and the one after its last.
Span = tuple[str, int, int]


def words_html(explanation: Explanation) -> str:
    """Render the whole text, or both texts of a pair, below a legend.

    Each word is a toggle button, named by its `Span` in the attribute `data-word`. Subwords name the word that they
    belong to. Text that the run does not read has no buttons.
    """
    most, parts = highest(explanation.tokens), [_legend(explanation)]
    for name, text, tokens in sides(explanation.text, explanation.pair, explanation.tokens):
        within = name or "text"
        words = [word for word in explanation.words if word.within == within]
        shown = "".join(_segments(segments(text, tokens, signed=explanation.signed), words, most, explanation.signed))
        parts.append(f'<p class="side">{_SIDES[name]}</p>' if name else "")
        group = f'<p class="marked" role="group" aria-label="{_SIDES[name]}: words to mask">'
        parts.append(f'{group}<bdi dir="auto">{shown}</bdi></p>')
    return "".join(parts)


_SIDES = {"": "Text", "text": "Text", "pair": "Second text"}


def _segments(parts: Sequence[Segment], words: Sequence[Subword], most: float, signed: bool) -> Iterator[str]:
    place, is_first = 0, True
    for part in parts:
        shown = escape(part.text)
        while place < len(words) and words[place].end <= part.start:
            place += 1
        is_word = part.score is not None and place < len(words) and words[place].start < part.end
        if part.score is None or not is_word or not part.text.strip():
            yield shown
            continue
        word, share = words[place], share_of(part.score, most)
        painted = abs(share) >= (WEAK_SIGNED if signed else WEAK_UNSIGNED)
        kind = ("for" if share > 0 else "against") if signed else "plain"
        tone = f' style="--share:{abs(share):.2f}"' if painted else ""
        yield (
            f'<span class="{f"t {kind}" if painted else "t"}" role="button" tabindex="{0 if is_first else -1}"'
            f' aria-pressed="false" data-word="{word.within}:{word.start}:{word.end}"'
            f' title="{score_text(part.score, signed=signed)}"{tone}>{shown}</span>'
        )
        is_first = False


def _legend(explanation: Explanation) -> str:
    signed, most = explanation.signed, highest(explanation.tokens)
    weak = WEAK_SIGNED if signed else WEAK_UNSIGNED
    low = score_text(-most, signed=True) if signed else score_text(weak * most, signed=False)
    if not signed:
        meaning = "the more orange, the more it matters"
    elif explanation.probability is None:
        meaning = "red: for a higher score; blue, dashed: for a lower one"
    else:
        name = escape(visible(str(explanation.label), one_line=True))
        meaning = f"red: for {name}; blue, dashed: against it"
    unit = escape(visible(explanation.unit, one_line=True))
    return (
        f'<p class="legend">{low}<span class="ramp {"signed" if signed else "plain"}"></span>'
        f"{score_text(most, signed=signed)}: {unit}<br>{meaning}; words below {weak:.0%} of the strongest stay"
        " unpainted</p>"
    )
