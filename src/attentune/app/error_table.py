"""The worst errors of a file as a table, in which a click on a text explains it."""

from __future__ import annotations

from html import escape

from attentune.app.html import input_attribute
from attentune.app.run_rows import WrongRows
from attentune.report.highlight import visible

MOST_ROWS = 20
_TEXT_CHARACTERS, _LABEL_CHARACTERS = 300, 40


def error_table(found: WrongRows) -> str:
    """Render the worst errors: text, label, prediction and how wrong it is."""
    errors, total = found.errors[:MOST_ROWS], len(found.errors)
    if not errors:
        return f'<p class="facts">All {_line(found.source)} are right.</p>'
    worst = f"the {MOST_ROWS} worst" if total > MOST_ROWS else "the worst first"
    if found.task_type == "regression":
        facts = f"The largest errors on {found.source}; {worst}"
    else:
        facts = f"{total:,} of {found.source} {'is' if total == 1 else 'are'} wrong; {worst}"
    lines = []
    for error in errors:
        pair = None if found.rows.pairs is None else found.rows.pairs[error.row]
        text = found.rows.texts[error.row]
        cut = _cut(text) if pair is None else f"{_cut(text)} | {_cut(pair)}"
        shown = _line(cut) or "(empty)"
        distance = f"{error.size:.3g}" if found.task_type == "regression" else f"{error.size:.2f}"
        lines.append(
            f'<tr><td class="text"><button type="button" data-input="{input_attribute(text, pair)}">{shown}</button>'
            "</td>"
            f'<td data-name="label">{_line(_cut(error.label, _LABEL_CHARACTERS))}</td>'
            f'<td data-name="prediction">{_line(_cut(error.prediction, _LABEL_CHARACTERS))}</td>'
            f'<td class="size" data-name="error">{distance}</td></tr>'
        )
    columns = "".join(f'<th scope="col">{name}</th>' for name in ("label", "prediction", "error"))
    return (
        f'<p class="facts">{_line(facts)}. Click a text to explain it. {_ERRORS.get(found.task_type, _ERROR)}</p>'
        '<div class="att-errors"><table class="errors"><thead><tr><th scope="col" class="text">text</th>'
        f"{columns}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


_ERROR = "The error is the probability of the prediction minus that of the label."
_ERRORS = {
    "regression": "The error is the distance of the two scores.",
    "multi_label": "The error is the largest one of a label's probability.",
}


def _cut(text: str, most: int = _TEXT_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _line(text: str) -> str:
    return escape(visible(" ".join(text.split()), one_line=True))
