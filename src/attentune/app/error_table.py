"""The worst errors of a file as a table, in which a click on a text explains it."""

from __future__ import annotations

from html import escape

from attentune.app.html import input_attribute
from attentune.app.run_rows import WrongRows
from attentune.report.highlight import visible

MOST_ROWS = 20
_TEXT_CHARACTERS = 300


def error_table(found: WrongRows) -> str:
    """Render the worst errors: text, label, prediction and how wrong it is."""
    errors, total = found.errors[:MOST_ROWS], len(found.errors)
    if not errors:
        return f'<p class="facts">All {_line(found.source)} are right.</p>'
    if found.is_regression:
        facts = f"The largest errors on {found.source}"
    else:
        facts = f"{total:,} of {found.source} {'is' if total == 1 else 'are'} wrong; the worst first"
    more = f", {MOST_ROWS} of them" if total > MOST_ROWS else ""
    size = "" if found.is_regression else " The error is the probability of the prediction minus that of the label."
    lines = []
    for error in errors:
        pair = None if found.rows.pairs is None else found.rows.pairs[error.row]
        text = found.rows.texts[error.row]
        cut = _cut(text) if pair is None else f"{_cut(text)} | {_cut(pair)}"
        shown = _line(cut) or "(empty)"
        distance = f"{error.size:.3g}" if found.is_regression else f"{error.size:.2f}"
        lines.append(
            f'<tr><td class="text"><button type="button" data-input="{input_attribute(text, pair)}">{shown}</button>'
            "</td>"
            f'<td data-name="label">{_line(error.label)}</td><td data-name="prediction">{_line(error.prediction)}</td>'
            f'<td class="size" data-name="error">{distance}</td></tr>'
        )
    return (
        f'<p class="facts">{_line(facts)}{more}. Click a text to explain it.{size}</p><table class="errors"><thead><tr>'
        '<th scope="col">text</th><th scope="col">label</th><th scope="col">prediction</th><th scope="col">error</th>'
        f"</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARACTERS else f"{text[: _TEXT_CHARACTERS - 3]}..."


def _line(text: str) -> str:
    return escape(visible(" ".join(text.split()), one_line=True))
