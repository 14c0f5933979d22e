"""Explanations as an HTML page, and as coloured text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.style import Style
from rich.text import Text

from attentune.explain.explanation import Explanation
from attentune.io.files import write_text
from attentune.report.highlight import highest, score_text, segments, share_of, sides
from attentune.report.templating import html_templates, one_line

# A token with at least this share of the highest score counts as strong.
STRONG = 0.5
LEGEND = (
    "The brighter a word, the more it contributed; strong words are bold and underlined. For scores with a sign, red"
    " speaks for the class, and blue in italics against it."
)
# Brighter than on a page, since the background of a terminal may be dark.
_AGAINST_RGB, _FOR_RGB, _UNSIGNED_RGB = (45, 125, 245), (230, 45, 40), (235, 120, 0)


def write_explanations(path: str | Path, groups: Sequence[Sequence[Explanation]], *, title: str) -> None:
    """Write explanations as one HTML file; see `render_explanations`."""
    write_text(path, render_explanations(groups, title=title))


def render_explanations(groups: Sequence[Sequence[Explanation]], *, title: str) -> str:
    """Render explanations as one HTML file that needs no network and holds no script."""
    by_words = all(explanation.level == "word" for group in groups for explanation in group)
    template = html_templates.get_template("explanations.html.jinja")
    return template.render(groups=groups, title=title, by_words=by_words)


def terminal_text(explanation: Explanation) -> Text:
    """Return the text with each token in the colour of its score, below two lines of facts.

    Bold, underlines and italics repeat what the colour shows, for readers who cannot see it.
    """
    tokens, signed = explanation.tokens, explanation.signed
    most = highest(tokens)
    lines = Text().append(f"{summary_line(explanation)}\n{one_line(explanation.unit)}\n", style="dim")
    for name, text, own_tokens in sides(explanation.text, explanation.pair, tokens):
        lines.append(f"{name}: " if name else "", style="dim")
        for segment in segments(text, own_tokens, signed=signed):
            share = share_of(segment.score or 0.0, most)
            lines.append(segment.text, style="" if segment.score is None else _terminal_style(share, signed=signed))
        lines.append("\n")
    return lines


def _terminal_style(share: float, *, signed: bool) -> Style:
    """Return a colour from grey, which is readable on dark and light backgrounds, to the full colour."""
    full = (_FOR_RGB if share > 0 else _AGAINST_RGB) if signed else _UNSIGNED_RGB
    red, green, blue = (round(128 + abs(share) * (end - 128)) for end in full)
    strong = abs(share) >= STRONG
    return Style(
        color=f"#{red:02x}{green:02x}{blue:02x}",
        bold=strong or None,
        underline=strong or None,
        italic=(signed and share < 0) or None,
    )


def summary_line(explanation: Explanation) -> str:
    """Return the method, predicted class, probability, cost and range of scores in one line."""
    signed = explanation.signed
    scores = [token.score for token in explanation.tokens] or [0.0]
    least = min(scores) if signed else 0.0
    score_range = f"scores {score_text(least, signed=signed)} to {score_text(max(scores), signed=signed)}"
    return f"{explanation.method}: {prediction_text(explanation)}; {cost_text(explanation)}; {score_range}"


def prediction_text(explanation: Explanation) -> str:
    """Return the prediction, or the explained class and the prediction if they differ."""
    if explanation.probability is None:
        return f"predicted {explanation.prediction:.4g}"
    label = f"{one_line(str(explanation.label))} ({explanation.probability:.3f})"
    if explanation.contrast is not None:
        label += f" and not {one_line(explanation.contrast)}"
    if explanation.label == explanation.prediction:
        return label
    return f"{label}, but predicted {one_line(str(explanation.prediction))}"


def cost_text(explanation: Explanation) -> str:
    """Return the number of passes through the model and the seconds that an explanation took."""
    passes = "1 pass" if explanation.passes == 1 else f"{explanation.passes:,} passes"
    return f"{passes}, {explanation.seconds:.3g} s"


html_templates.filters |= {"prediction_text": prediction_text, "cost_text": cost_text}
