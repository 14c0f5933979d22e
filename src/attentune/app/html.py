"""The page's results as HTML. All texts are escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from attentune.explain.answers import Answer, MaskedWord
from attentune.explain.explanation import Explanation, HeadAttention
from attentune.report.explanations import HIGHLIGHT_STYLE, highlight_html
from attentune.report.highlight import hex_tone, share_of, sides, visible

# Results have a white background in the dark theme too, because the colors of scores are designed for it.
STYLE = f"""
.att, .att * {{ color: #1a1a1a; }}
.att {{ font-size: 15px; line-height: 1.5; }}
.att-runs {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }}
.att-box {{ background: #fff; border: 1px solid #ddd; border-radius: 8px; padding: .8rem 1rem; min-width: 0; }}
.att-box h3 {{ font-size: .95rem; margin: 0 0 .4rem; font-weight: 600; overflow-wrap: anywhere; }}
.att-said {{ font-size: 1.15rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }}
.att .note, .att .facts, .att .legend, .att .side {{ color: #555; font-size: .85rem; margin: .3rem 0; }}
.att-bars {{ display: grid; grid-template-columns: minmax(3rem, max-content) 1fr max-content; gap: .2rem .6rem;
  align-items: center; margin: .3rem 0 .6rem; max-width: 34rem; }}
.att-bars .name {{ overflow-wrap: anywhere; }}
.att-bars .track {{ position: relative; background: #eef1f4; border-radius: 3px; height: .9rem; overflow: hidden; }}
.att-bars .fill {{ position: absolute; inset: 0 auto 0 0; background: #3d7ab8; }}
.att-bars .was {{ position: absolute; top: 0; bottom: 0; width: 3px; margin-left: -1px; background: #1a1a1a; }}
.att-bars .figure {{ font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }}
.att-message {{ background: #fff4e5; border: 1px solid #e0a040; border-left-width: 5px; border-radius: 6px;
  padding: .6rem .9rem; overflow-wrap: anywhere; white-space: pre-wrap; }}
.att mark {{ background: #1a1a1a; color: #fff; border-radius: 3px; padding: .1rem .35rem; font-size: .85em; }}
.att-scroll {{ overflow: auto; max-height: 32rem; }}
.att table {{ border-collapse: collapse; font-size: .85rem; }}
.att td, .att th {{ padding: .1rem .35rem; text-align: right; font-weight: normal; border: 1px solid #eee; }}
.att .heads {{ font-size: .75rem; font-variant-numeric: tabular-nums; }}
.att .heads td, .att .heads th {{ padding: .1rem .2rem; }}
.att th[scope=row] {{ position: sticky; left: 0; background: #fff; }}
.att th[scope=row], .att .words {{ text-align: left; white-space: pre; }}
.att tr.pair-begins td, .att tr.pair-begins th {{ border-top: 2px solid #555; }}
{HIGHLIGHT_STYLE}"""

_MAX_CLASSES = 12
_ACTIVE = str.maketrans({"{": "&#123;", "}": "&#125;", "$": "&#36;", "`": "&#96;"})


def inert(html: str) -> str:
    """Escape the characters that the front end's template languages would interpret."""
    return html.translate(_ACTIVE)


def message(text: str) -> str:
    """Render an error message."""
    return inert(f'<div class="att"><div class="att-message" role="alert">{escape(visible(text))}</div></div>')


def side_by_side(html_parts: Sequence[tuple[str, str]]) -> str:
    """Render named panels side by side; their bodies are HTML from this module's functions."""
    sections = "".join(
        f'<section class="att-box"><h3>{escape(visible(name, one_line=True))}</h3>{body}</section>'
        for name, body in html_parts
    )
    return inert(f'<div class="att" aria-live="polite"><div class="att-runs">{sections}</div></div>')


def trouble(text: str) -> str:
    """Render the reason why a box has no content."""
    return f'<div class="att-message">{escape(visible(text))}</div>'


def prediction(answer: Answer, before: Answer | None = None) -> str:
    """Render the predicted class with a bar per class, or the predicted score.

    Args:
        answer: the prediction.
        before: the prediction for the unmasked text; a line on each bar marks the probability in it.
    """
    if not answer.probabilities:
        change = "" if before is None else f" ({float(answer.prediction) - float(before.prediction):+.4g})"
        return f'<p class="att-said">score <strong>{float(answer.prediction):.4g}</strong>{change}</p>'
    label = str(answer.prediction)
    # In multi-label classification there is no joint probability of the labels.
    share = f" ({answer.probabilities[label]:.1%})" if label in answer.probabilities else ""
    sentence = f"<strong>{_line(label) or 'no label'}</strong>{share}"
    if before is not None and before.prediction != answer.prediction:
        sentence += f", no longer {_line(str(before.prediction))}"
    names = sorted(answer.probabilities, key=answer.probabilities.__getitem__, reverse=True)
    ordered = [name for name in answer.probabilities if name in names[:_MAX_CLASSES]]
    bars = "".join(
        _bar(name, answer.probabilities[name], None if before is None else before.probabilities[name])
        for name in ordered
    )
    rest = len(names) - len(ordered)
    more = f'<p class="note">and {rest} less likely classes</p>' if rest else ""
    return f'<p class="att-said">{sentence}</p><div class="att-bars">{bars}</div>{more}'


def _bar(name: str, share: float, before: float | None) -> str:
    was = "" if before is None else f'<span class="was" style="left:{100 * before:.2f}%"></span>'
    change = "" if before is None else f" ({100 * (share - before):+.1f})"
    return (
        f'<span class="name">{_line(name)}</span>'
        f'<span class="track"><span class="fill" style="width:{100 * share:.2f}%"></span>{was}</span>'
        f'<span class="figure">{share:.1%}{change}</span>'
    )


def explanation(result: Explanation) -> str:
    """Render the text with its scores."""
    passes = "1 pass" if result.passes == 1 else f"{result.passes:,} passes"
    about = "" if result.probability is None or not result.signed else f" for and against {_line(str(result.label))}"
    return f'<p class="facts">{_line(result.method)}{about}; {passes}, {result.seconds:.3g} s</p>' + highlight_html(
        result, result.tokens
    )


def masked_word(masked: MaskedWord, text: str, pair: str | None) -> str:
    """Render the text with one word masked, and the prediction for it."""
    word = masked.word
    if not masked.tokens:
        return trouble("The word lies beyond this run's maximum length, so masking it changes nothing.")
    parts = []
    for name, side_text, _ in sides(text, pair, ()):
        place = "text" if name == "" else name
        shown = escape(visible(side_text))
        if place == word.within:
            left, right = escape(visible(side_text[: word.start])), escape(visible(side_text[word.end :]))
            shown = f'{left}<mark title="{_line(word.text)}">[MASK]</mark>{right}'
        parts.append(f'<p class="side">{name}</p>' if name else "")
        parts.append(f'<p class="marked"><bdi dir="auto">{shown}</bdi></p>')
    return prediction(masked.after, masked.before) + "".join(parts)


def heads(result: HeadAttention) -> str:
    """Render a table with one row per token and one column per head, and a column of the token gate's importance."""
    most = max((share for shares in result.attention for share in shares), default=0.0)
    top = max(result.importance or (0.0,))
    columns = "".join(f'<th scope="col">{head}</th>' for head in result.heads)
    gate = "" if result.importance is None else '<th scope="col">SSA</th>'
    lines, within = [], "text"
    for number, token in enumerate(result.tokens):
        begins = ' class="pair-begins"' if token.within != within and number else ""
        within = token.within
        cells = "".join(_cell(share, most) for share in result.attention[number])
        importance = "" if result.importance is None else _cell(result.importance[number], top)
        lines.append(f'<tr{begins}><th scope="row">{_line(token.text)}</th>{cells}{importance}</tr>')
    return (
        f'<p class="facts">Attention of the first token in layer {result.layer}, one column per head.</p>'
        f'<div class="att-scroll"><table class="heads"><thead><tr><th class="words">{result.unit}</th>{columns}{gate}'
        f"</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(share: float, most: float) -> str:
    return f'<td style="background:{hex_tone(share_of(share, most), signed=False)}">{_short_share(share)}</td>'


def _short_share(share: float) -> str:
    """Format with two decimals and without a leading zero, because tables of heads are wide."""
    return f"{share:.2f}".removeprefix("0")


def preview(header: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> str:
    """Render the first rows of a table."""
    head = "".join(f'<th scope="col">{_line(name)}</th>' for name in header)
    cells = ["".join(f'<td class="words">{_short(entry)}</td>' for entry in row) for row in rows]
    lines = "".join(f"<tr>{row}</tr>" for row in cells)
    shown = f"{total:,} rows" if total == len(rows) else f"the first {len(rows)} of {total:,} rows"
    return (
        f'<p class="facts">{shown}</p><div class="att-scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def slider_label(words: int, number: int = 0, word: str = "") -> str:
    """Return the label of the slider, which names the masked word."""
    if not words:
        return "Mask a word"
    if not number:
        return f"Mask a word: none of {words} is masked"
    return f"Mask a word: {number} of {words}, {visible(word, one_line=True)[:40]}"


def heading(title: str, facts: Sequence[str]) -> str:
    """Render the heading of the page."""
    return inert(f'<p class="att-title">{_line(title)}</p><p>{"<br>".join(map(_line, facts))}</p>')


def _line(text: str) -> str:
    return escape(visible(text, one_line=True))


def _short(text: str) -> str:
    return _line(text if len(text) <= 80 else text[:77] + "...")
