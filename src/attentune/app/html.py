"""The page's results as HTML. All texts are escaped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from attentune.app.words import words_html
from attentune.explain.agreement import Agreement
from attentune.explain.answers import Answer, MaskedWords
from attentune.explain.explanation import Explanation, HeadAttention
from attentune.report.highlight import share_of, visible

# What is said of an error that is no user's mistake.
BUG = (
    "Internal error: this is a bug in Attentune, not in your input. The terminal that runs this page shows the"
    " traceback."
)

_MAX_CLASSES = 12
_ACTIVE = str.maketrans({"{": "&#123;", "}": "&#125;", "$": "&#36;", "`": "&#96;"})
_HINT = (
    "Click a word to mask it and see what changes. Keyboard: Tab to a text, arrow keys to a word, Enter; Escape undoes"
    " all."
)


@dataclass(frozen=True)
class Panel:
    """What one run says of a text."""

    name: str  # the run
    answer: Answer  # its prediction
    explanations: tuple[Explanation, ...] = ()  # its explanations, the chosen method first
    agreement: Agreement | None = None  # of the first two, if there are two
    problem: str = ""  # why there is no explanation; empty if there is one


def inert(html: str) -> str:
    """Escape the characters that the front end's template languages would interpret."""
    return html.translate(_ACTIVE)


def message(text: str) -> str:
    """Render an error message."""
    return inert(f'<div class="att"><div class="att-message" role="alert">{escape(visible(text))}</div></div>')


def note(text: str) -> str:
    """Render a note in small type."""
    return inert(f'<div class="att"><p class="note">{_line(text)}</p></div>')


def panels(shown: Sequence[Panel], text: str, pair: str | None) -> str:
    """Render what each run says, side by side: same classes in the same order, explanations at the same height.

    The text is part of the HTML, so that a click on a word asks about this text even if another one has been typed.
    """
    classes = shown_classes([panel.answer for panel in shown])
    boxes = []
    for panel in shown:
        body = trouble(panel.problem) if panel.problem else ""
        body += "".join(explanation(one, alone=len(panel.explanations) == 1) for one in panel.explanations)
        if panel.agreement is not None:
            body += _agreement(panel.agreement, panel.explanations)
        boxes.append(
            f'<section class="att-box"><h2>{_line(panel.name)}</h2>'
            f'<div class="att-prediction" aria-live="polite">{prediction(panel.answer, classes=classes)}</div>'
            f'<div class="att-whys">{body}</div></section>'
        )
    has_words = any(panel.explanations for panel in shown)
    return inert(
        f'<div class="att" data-input="{input_attribute(text, pair)}">{_TOOLS if has_words else ""}'
        f'<div class="att-runs aligned">{"".join(boxes)}</div></div>'
    )


_TOOLS = (
    f'<div class="att-tools"><p class="att-hint">{_HINT}</p><p class="att-masked" role="status"></p>'
    '<button type="button" data-do="undo">Undo</button><button type="button" data-do="reset">Show all words</button>'
    "</div>"
)


def input_attribute(text: str, pair: str | None) -> str:
    """Return a text or pair as JSON for an attribute, in ASCII: browsers would change control characters."""
    return escape(json.dumps({"text": text, "pair": pair}))


def side_by_side(html_parts: Sequence[tuple[str, str]]) -> str:
    """Render named boxes side by side; their bodies are HTML from this module's functions."""
    sections = "".join(f'<section class="att-box"><h2>{_line(name)}</h2>{body}</section>' for name, body in html_parts)
    return inert(f'<div class="att"><div class="att-runs">{sections}</div></div>')


def trouble(text: str) -> str:
    """Render the reason why a box has no content."""
    return f'<div class="att-message">{escape(visible(text))}</div>'


def shown_classes(answers: Sequence[Answer]) -> list[str]:
    """Return the classes that get a bar: those of all runs in their order, of many the likeliest of any run."""
    names = list(dict.fromkeys(name for one in answers for name in one.probabilities))
    likeliest = sorted(names, key=lambda name: -max(one.probabilities.get(name, 0.0) for one in answers))
    return [name for name in names if name in likeliest[:_MAX_CLASSES]]


def prediction(answer: Answer, before: Answer | None = None, classes: Sequence[str] | None = None) -> str:
    """Render the predicted class with a bar per class, or the predicted score."""
    if not answer.probabilities:
        change = "" if before is None else f" ({float(answer.prediction) - float(before.prediction):+.4g})"
        return f'<p class="att-said">score <strong>{float(answer.prediction):.4g}</strong>{change}</p>'
    label = str(answer.prediction)
    # In multi-label classification there is no joint probability of the labels.
    share = f" ({answer.probabilities[label]:.1%})" if label in answer.probabilities else ""
    sentence = f"<strong>{_line(label) or 'no label'}</strong>{share}"
    if before is not None and before.prediction != answer.prediction:
        sentence += f", no longer {_line(str(before.prediction))}"
    classes = shown_classes([answer]) if classes is None else classes
    bars = "".join(
        _bar(name, answer.probabilities.get(name), None if before is None else before.probabilities.get(name))
        for name in classes
    )
    rest = len(set(answer.probabilities) - set(classes))
    more = f'<p class="note">and {rest} less likely classes</p>' if rest else ""
    return f'<p class="att-said">{sentence}</p><div class="att-bars">{bars}</div>{more}'


def _bar(name: str, share: float | None, before: float | None) -> str:
    if share is None:
        return f'<span class="name">{_line(name)}</span><span class="absent">not a class of this run</span>'
    was = "" if before is None else f'<span class="was" style="left:{100 * before:.2f}%"></span>'
    change = "" if before is None else f' <span class="change">{100 * (share - before):+.1f}</span>'
    return (
        f'<span class="name">{_line(name)}</span>'
        f'<span class="track"><span class="fill" style="width:{100 * share:.2f}%"></span>{was}</span>'
        f'<span class="figure">{share:.1%}{change}</span>'
    )


def explanation(result: Explanation, *, alone: bool = True) -> str:
    """Render the text with its scores."""
    passes = "1 pass" if result.passes == 1 else f"{result.passes:,} passes"
    facts = f"{passes}, {result.seconds:.3g} s"
    if result.method == "ssa" and not alone:
        facts = "free: from the pass that predicts; approximate"
    return f'<div class="att-why"><h3>{_line(result.method)}</h3><p class="facts">{facts}</p>{words_html(result)}</div>'


def _agreement(found: Agreement, explanations: Sequence[Explanation]) -> str:
    names = " and ".join(_line(one.method) for one in explanations)
    if not found.strongest:
        return ""
    same = (
        f"{found.shared} of the {found.strongest} strongest words are the same"
        if found.strongest > 1
        else f"the strongest word is {'the same' if found.shared else 'another one'}"
    )
    correlation = found.rank_correlation
    ranks = "" if correlation is None else f"; rank correlation of all words {correlation:.2f}"
    return f'<p class="facts att-agreement">Agreement of {names}: {same}{ranks}.</p>'


def masked_prediction(masked: MaskedWords, classes: Sequence[str]) -> str:
    """Render a run's prediction with words masked, and which of them it does not read."""
    unread = [word.text for word, tokens in zip(masked.words, masked.tokens, strict=True) if not tokens]
    shown = prediction(masked.after, masked.before, classes)
    if unread:
        words = ", ".join(f"“{word}”" for word in unread)
        shown += trouble(f"Beyond this run's maximum length, so masking changes nothing: {words}")
    return inert(shown)


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
        f'<p class="facts">One column per head: {result.unit}.</p>'
        f'<div class="att-scroll" tabindex="0" role="region" aria-label="Attention of the heads"><table class="heads">'
        f'<thead><tr><th scope="col" class="words">{result.level}</th>{columns}{gate}'
        f"</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(share: float, most: float) -> str:
    return f'<td class="plain" style="--share:{max(0.0, share_of(share, most)):.2f}">{_short_share(share)}</td>'


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
        f'<p class="facts">{shown}</p><div class="att-scroll" tabindex="0" role="region" aria-label="Predictions">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def heading(title: str, facts: Sequence[str]) -> str:
    """Render the heading of the page."""
    return inert(f'<h1 class="att-title">{_line(title)}</h1><p>{"<br>".join(map(_line, facts))}</p>')


def _line(text: str) -> str:
    return escape(visible(text, one_line=True))


def _short(text: str) -> str:
    return _line(text if len(text) <= 80 else text[:77] + "...")
