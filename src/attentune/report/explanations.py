"""Explanations as an HTML page, and as coloured text for a terminal; no text can become more than text in them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.style import Style
from rich.text import Text

from attentune.data.tables import visible
from attentune.explain.explanation import Explanation, Subword, ignored_text
from attentune.report.document import score_text
from attentune.report.writing import html_templates, one_line

# A token with at least this share of the highest score counts as strong.
STRONG = 0.5
# Words whose scores are listed under a text on a page.
MOST_STRONGEST = 5
LEGEND = (
    "The brighter a word, the more it contributed; strong words are bold and underlined. For scores with a sign, red"
    " speaks for the class, and blue in italics against it."
)
# Brighter than on a page, since the background of a terminal may be dark.
_AGAINST_RGB, _FOR_RGB, _UNSIGNED_RGB = (45, 125, 245), (230, 45, 40), (235, 120, 0)


class Segment(NamedTuple):
    """A run of characters of a text, safe to show."""

    text: str
    score: float | None  # None between tokens


def segments(text: str, tokens: Sequence[Subword], *, signed: bool) -> list[Segment]:
    """Split the whole text into segments, in order, the tokens with their scores.

    Tokens that share characters (subwords of one character) become one segment, with the sum of their scores if
    `signed`, else with the highest.
    """
    # Tokens that share characters (subwords of one character) become one segment.
    spans: list[tuple[int, int, float]] = []
    for token in tokens:
        if token.start == token.end:
            continue
        if spans and token.start < spans[-1][1]:
            start, end, score = spans[-1]
            merged = score + token.score if signed else max(score, token.score)
            spans[-1] = (start, max(end, token.end), merged)
        else:
            spans.append((token.start, token.end, token.score))
    parts: list[Segment] = []
    position = 0
    for start, end, score in spans:
        if start > position:
            parts.append(Segment(visible(text[position:start]), None))
        parts.append(Segment(visible(text[start:end]), score))
        position = end
    if position < len(text):
        parts.append(Segment(visible(text[position:]), None))
    return parts


def highest(tokens: Sequence[Subword]) -> float:
    """Return the largest absolute score; 0 without a finite one."""
    return max((abs(token.score) for token in tokens if math.isfinite(token.score)), default=0.0)


def share_of(score: float, most: float) -> float:
    """Return a score as a share of the highest, from -1 to 1."""
    return max(-1.0, min(1.0, score / most)) if most > 0 and math.isfinite(score) else 0.0


def sides(text: str, pair: str | None, tokens: Sequence[Subword]) -> list[tuple[str, str, list[Subword]]]:
    """Return for the text, and the second text of a pair, its name ("" for a single text), itself and its tokens."""
    if pair is None:
        return [("", text, list(tokens))]
    by_side = {name: [token for token in tokens if token.within == name] for name in ("text", "pair")}
    return [("text", text, by_side["text"]), ("pair", pair, by_side["pair"])]


def render_explanations(groups: Sequence[Sequence[Explanation]], *, title: str) -> str:
    """Render explanations as one HTML file that needs no network and holds no script."""
    by_words = all(explanation.level == "word" for group in groups for explanation in group)
    template = html_templates.get_template("explanations.html.jinja")
    return template.render(groups=groups, title=title, by_words=by_words)


def terminal_text(explanation: Explanation) -> Text:
    """Return the text with each token in the colour of its score, below two lines of facts."""
    tokens, signed = explanation.tokens, explanation.signed
    most = highest(tokens)
    lines = Text().append(f"{summary_line(explanation)}\n{one_line(explanation.unit)}\n", style="dim")
    if effect := effect_text(explanation):
        lines.append(f"{effect}\n")
    if explanation.ignored:
        lines.append(f"{one_line(ignored_text(explanation.ignored))}\n", style="dim")
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
    # Bold, underlines and italics repeat what the colour shows, for readers who cannot see it.
    return Style(
        color=f"#{red:02x}{green:02x}{blue:02x}",
        bold=strong or None,
        underline=strong or None,
        italic=(signed and share < 0) or None,
    )


def summary_line(explanation: Explanation) -> str:
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


def effect_text(explanation: Explanation) -> str:
    """Say what the highest score means, and how the prediction changes without the strongest word that was left out."""
    meaning = one_line(explanation.in_words())
    pairs = zip(explanation.words, explanation.without or (), strict=explanation.without is not None)
    measured = [(word, value) for word, value in pairs if value is not None]
    if not measured:
        return meaning
    word, after = max(measured, key=lambda pair: abs(pair[0].score))
    before, quantity = explanation.probability, f"p({one_line(str(explanation.label))})"
    if before is None:
        before, quantity = float(explanation.label), "the score"
    shown = [outcome_text(value, explanation) for value in (before, after)]
    change = f"stays at {shown[0]}"
    if shown[0] != shown[1]:
        change = f"{'falls' if after < before else 'rises'} from {shown[0]} to {shown[1]}"
    return f"{meaning} Without \u201c{one_line(word.text)}\u201d, {quantity} {change}.".strip()


def outcome_text(value: float | None, explanation: Explanation) -> str:
    """Return a probability, or for regression a score, as it is shown; "" for a word that was not left out."""
    if value is None:
        return ""
    return f"{value:.4g}" if explanation.probability is None else f"{value:.3f}"


def outcome_name(explanation: Explanation) -> str:
    """Return the heading of what is predicted without each word."""
    is_score = explanation.probability is None
    return "score without it" if is_score else f"p({one_line(str(explanation.label))}) without it"


def strongest(explanation: Explanation) -> list[tuple[str, str, str]]:
    """Return the words with the highest scores: each with its score and what is predicted without it."""
    words = explanation.words
    without = explanation.without or (None,) * len(words)
    ranked = sorted(zip(words, without, strict=True), key=lambda pair: -abs(pair[0].score))[:MOST_STRONGEST]
    return [
        (one_line(word.text), score_text(word.score, signed=explanation.signed), outcome_text(value, explanation))
        for word, value in ranked
    ]


def cost_text(explanation: Explanation) -> str:
    """Return the number of passes through the model and the seconds that an explanation took."""
    passes = "1 pass" if explanation.passes == 1 else f"{explanation.passes:,} passes"
    return f"{passes}, {explanation.seconds:.3g} s"


html_templates.filters |= {"prediction_text": prediction_text, "cost_text": cost_text}
html_templates.globals |= {
    "STRONG": STRONG, "effect_text": effect_text, "highest": highest, "ignored_text": ignored_text,
    "outcome_name": outcome_name,
    "score_text": score_text, "segments": segments, "share_of": share_of, "sides": sides, "strongest": strongest,
}  # fmt: skip
