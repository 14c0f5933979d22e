"""The worst errors of a file as a table, of one run or of two, in which a click on a text explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from attentune.app.html import input_attribute
from attentune.app.run_rows import WrongRows
from attentune.inference.evaluation import RowError
from attentune.report.highlight import visible

MOST_ROWS = 20
# Of two runs, in each group: rows that both get wrong, that only the first does, that only the second does.
MOST_IN_GROUP = 10
_TEXT_CHARACTERS, _LABEL_CHARACTERS = 300, 40

_Errors = Mapping[int, RowError]


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
    lines = [
        f"<tr>{_text_cell(found, error.row)}{_cell('label', error.label)}{_cell('prediction', error.prediction)}"
        f'<td class="size" data-name="error">{_size(error, found.task_type)}</td></tr>'
        for error in errors
    ]
    facts = f"{_line(facts)}. Click a text to explain it. {_ERRORS.get(found.task_type, _ERROR)}"
    return _table(facts, ("label", "prediction", "error"), lines)


def joined_error_table(names: Sequence[str], found: Sequence[WrongRows]) -> str:
    """Render the worst errors of two runs on the same rows as one table, in groups.

    These are the rows that both get wrong, that only the first does, and that only the second does, each with the
    largest errors first. Of scores, which are never quite right, the groups are the largest errors of both, and the
    rows on which one run is further off than the other.
    """
    first, second = ({error.row: error for error in own.errors} for own in found)
    source, task_type = found[0].source, found[0].task_type
    if not first and not second:
        return f'<p class="facts">All {_line(source)} are right by both runs.</p>'
    groups = (_groups_of_scores if task_type == "regression" else _groups)(names, first, second)
    lines = []
    for title, rows in groups.items():
        shown = rows[:MOST_IN_GROUP]
        count = "" if task_type == "regression" else f": {len(rows):,}"
        most = f", the {MOST_IN_GROUP} worst" if len(shown) < len(rows) else ""
        heading = _line(f"{title}{count}{most}")
        lines.append(f'<tr class="group"><th colspan="4" scope="rowgroup">{heading}</th></tr>')
        for row in shown:
            errors = (first.get(row), second.get(row))
            label = next(error.label for error in errors if error is not None)
            answers = (_answer(name, label, error, task_type) for name, error in zip(names, errors, strict=True))
            lines.append(f"<tr>{_text_cell(found[0], row)}{_cell('label', label)}{''.join(answers)}</tr>")
    facts = f"{_line(source)}. Click a text to explain it. {_ERRORS.get(task_type, _ERROR)} It stands beside"
    return _table(f"{facts} {'each' if task_type == 'regression' else 'a wrong'} prediction.", ("label", *names), lines)


def _groups(names: Sequence[str], first: _Errors, second: _Errors) -> dict[str, list[int]]:
    """Return the rows of each group by its title, worst first."""

    def ordered(rows: set[int]) -> list[int]:
        return sorted(rows, key=lambda row: (-sum(own[row].size for own in (first, second) if row in own), row))

    wrong, other = set(first), set(second)
    return {
        "Wrong by both": ordered(wrong & other),
        f"Wrong by {names[0]} only": ordered(wrong - other),
        f"Wrong by {names[1]} only": ordered(other - wrong),
    }


def _groups_of_scores(names: Sequence[str], first: _Errors, second: _Errors) -> dict[str, list[int]]:
    lead = {row: first[row].size - second[row].size for row in first}
    groups = {
        "The largest errors of both": sorted(first, key=lambda row: -min(first[row].size, second[row].size)),
        f"{names[0]} is further off": sorted((row for row in lead if lead[row] > 0), key=lambda row: -lead[row]),
        f"{names[1]} is further off": sorted((row for row in lead if lead[row] < 0), key=lambda row: lead[row]),
    }
    return {title: rows for title, rows in groups.items() if rows}


def _answer(name: str, label: str, error: RowError | None, task_type: str) -> str:
    """Render what a run predicts: the label where it is right, else its prediction and the error."""
    if error is None:
        return _cell(name, label)
    size = f' <span class="size">{_size(error, task_type)}</span>'
    return _cell(name, error.prediction, size, wrong=task_type != "regression")


def _table(facts: str, columns: Sequence[str], lines: Sequence[str]) -> str:
    heads = "".join(f'<th scope="col">{_line(name)}</th>' for name in columns)
    return (
        f'<p class="facts">{facts}</p><div class="att-errors"><table class="errors"><thead><tr>'
        f'<th scope="col" class="text">text</th>{heads}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def _text_cell(found: WrongRows, row: int) -> str:
    text, pair = found.rows.texts[row], None if found.rows.pairs is None else found.rows.pairs[row]
    cut = _cut(text) if pair is None else f"{_cut(text)} | {_cut(pair)}"
    button = f'<button type="button" data-input="{input_attribute(text, pair)}">{_line(cut) or "(empty)"}</button>'
    return f'<td class="text">{button}</td>'


def _cell(name: str, text: str, more: str = "", *, wrong: bool = False) -> str:
    kind = ' class="wrong"' if wrong else ""
    return f'<td{kind} data-name="{_line(name)}">{_line(_cut(text, _LABEL_CHARACTERS))}{more}</td>'


def _size(error: RowError, task_type: str) -> str:
    return f"{error.size:.3g}" if task_type == "regression" else f"{error.size:.2f}"


_ERROR = "The error is the probability of the prediction minus that of the label."
_ERRORS = {
    "regression": "The error is the distance of the two scores.",
    "multi_label": "The error is the largest one of a label's probability.",
}


def _cut(text: str, most: int = _TEXT_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _line(text: str) -> str:
    return escape(visible(" ".join(text.split()), one_line=True))
