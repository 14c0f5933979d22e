"""A text with its scores as a piece of HTML, for pages; every character of the text stays text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from attentune.explain.explanation import Explanation
from attentune.explain.words import Subword
from attentune.report.highlight import (
    AGAINST_RGB,
    FOR_RGB,
    MATTERS_RGB,
    hex_tone,
    highest,
    score_text,
    share_of,
    sides,
    stretches,
)

_UNDERLINE_PX = 4

# What `marked` needs in a page's style.
MARKED_STYLE = f"""\
.marked {{ margin: .5rem 0 0; line-height: 2; white-space: pre-wrap; overflow-wrap: anywhere; }}
.t {{ border-bottom: 0 solid #1a1a1a; padding: .1rem 0; border-radius: 2px; }}
.against {{ border-bottom-style: dashed; }}
.ramp {{ display: inline-block; width: 9rem; height: .7rem; border: 1px solid #999; vertical-align: middle;
  margin: 0 .4rem; }}
.ramp.plain {{ background: linear-gradient(to right, #fff, rgb{MATTERS_RGB}); }}
.ramp.signed {{ background: linear-gradient(to right, rgb{AGAINST_RGB}, #fff, rgb{FOR_RGB}); }}
"""


def marked(explanation: Explanation, tokens: Sequence[Subword]) -> str:
    """The whole text, its tokens on the tones of their scores, under a legend.

    Args:
        explanation: what was explained.
        tokens: its words or its pieces.
    """
    signed, most = explanation.signed, highest(tokens)
    parts = [_legend(most, signed=signed)]
    for name, text, own in sides(explanation.text, explanation.pair, tokens):
        if name:
            parts.append(f'<p class="side">{name}</p>')
        spans = [
            escape(part.text) if part.score is None else _span(part.text, part.score, most, signed=signed)
            for part in stretches(text, own, signed=signed)
        ]
        parts.append(f'<p class="marked"><bdi dir="auto">{"".join(spans)}</bdi></p>')
    return "".join(parts)


def _legend(most: float, *, signed: bool) -> str:
    least, kind = (score_text(-most, signed=True), "signed") if signed else ("0", "plain")
    return f'<p class="legend">{least}<span class="ramp {kind}"></span>{score_text(most, signed=signed)}</p>'


def _span(text: str, score: float, most: float, *, signed: bool) -> str:
    share = share_of(score, most)
    against = " against" if signed and share < 0 else ""
    style = f"background:{hex_tone(share, signed=signed)};border-bottom-width:{round(_UNDERLINE_PX * abs(share))}px"
    title = score_text(score, signed=signed)
    return f'<span class="t{against}" title="{title}" style="{style}">{escape(text)}</span>'
