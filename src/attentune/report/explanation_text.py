"""Explanations as coloured text in a terminal."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text

from attentune.explain.explanation import Explanation
from attentune.report.highlight import highest, score_text, share_of, sides, stretches, visible

# From this share of the highest score on a token counts as strong.
STRONG = 0.5
LEGEND = (
    "The brighter a word, the more it mattered; strong ones are bold and underlined. Where scores have a sign, red"
    " speaks for the class, and blue in italics against it."
)
_AGAINST_RGB, _FOR_RGB, _MATTERS_RGB = (45, 125, 245), (230, 45, 40), (235, 120, 0)


def coloured(explanation: Explanation) -> Text:
    """The text, each token in the colour of its score, under a line of facts.

    So that colour is not alone, strong tokens are bold and underlined, and those against the class in italics.
    """
    tokens, signed = explanation.tokens, explanation.signed
    most = highest(tokens)
    lines = Text().append(facts(explanation) + "\n", style="dim")
    for name, text, own in sides(explanation.text, explanation.pair, tokens):
        lines.append(f"{name}: " if name else "", style="dim")
        for part in stretches(text, own, signed=signed):
            share = share_of(part.score or 0.0, most)
            lines.append(part.text, style=_style(share, signed=signed) if part.score is not None else "")
        lines.append("\n")
    return lines


def _style(share: float, *, signed: bool) -> Style:
    """From grey, which can be read on dark and light alike, to the full colour."""
    full = (_FOR_RGB if share > 0 else _AGAINST_RGB) if signed else _MATTERS_RGB
    red, green, blue = (round(128 + abs(share) * (end - 128)) for end in full)
    strong = abs(share) >= STRONG
    return Style(
        color=f"#{red:02x}{green:02x}{blue:02x}",
        bold=strong or None,
        underline=strong or None,
        italic=(signed and share < 0) or None,
    )


def facts(explanation: Explanation) -> str:
    """One line: method, class, probability, cost, the span of scores."""
    signed = explanation.signed
    scores = [token.score for token in explanation.tokens] or [0.0]
    least = min(scores) if signed else 0.0
    span = f"scores {score_text(least, signed=signed)} to {score_text(max(scores), signed=signed)}"
    passes = "1 pass" if explanation.passes == 1 else f"{explanation.passes:,} passes"
    return f"{explanation.method}: {said(explanation)}; {passes}, {explanation.seconds:.3g} s; {span}"


def said(explanation: Explanation) -> str:
    """What the model says, and of which class the scores tell if it is another one."""
    if explanation.probability is None:
        return f"predicted {explanation.prediction:.4g}"
    label = f"{visible(str(explanation.label), one_line=True)} ({explanation.probability:.3f})"
    if explanation.label == explanation.prediction:
        return label
    return f"{label}, though it predicts {visible(str(explanation.prediction), one_line=True)}"
