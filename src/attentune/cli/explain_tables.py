"""Explanations as plain-text tables: one line per word, one column per method or head."""

from __future__ import annotations

from collections.abc import Sequence

from attentune.cli.output import table
from attentune.explain.explanation import Explanation, HeadAttention
from attentune.report.explanations import prediction_text
from attentune.report.highlight import score_text, visible


def score_tables(groups: Sequence[Sequence[Explanation]]) -> str:
    """Format one table per text, with one column per method."""
    tables = []
    for group in groups:
        first = group[0]
        columns = [[token.text for token in first.tokens]]
        columns += [[score_text(token.score, signed=own.signed) for token in own.tokens] for own in group]
        columns = [[visible(entry, one_line=True) for entry in column] for column in columns]
        columns[0] += ["", "passes", "seconds"]
        for column, own in zip(columns[1:], group, strict=True):
            column += ["", f"{own.passes:,}", f"{own.seconds:.3g}"]
        head = _head(first.text, first.pair, prediction_text(first))
        header = (first.unit, *(own.method for own in group))
        tables.append(head + table(header, list(zip(*columns, strict=True)), right=range(1, len(header))))
    return "\n\n".join([*tables, ""]) if tables else ""


def head_tables(found: Sequence[HeadAttention]) -> str:
    """Format one table per text, with one column per attention head."""
    tables = []
    for one in found:
        label = visible(str(one.label), one_line=True)
        heads = [f"head {head}" for head in one.heads]
        header = (one.unit, *heads, *(() if one.importance is None else ("ssa",)))
        lines = []
        for number, token in enumerate(one.tokens):
            shares = [*one.attention[number], *(() if one.importance is None else (one.importance[number],))]
            lines.append((visible(token.text, one_line=True), *(f"{share:.3f}" for share in shares)))
        prediction = label if one.probability is None else f"{label} ({one.probability:.3f})"
        head = _head(one.text, one.pair, f"{prediction}; layer {one.layer}")
        tables.append(head + table(header, lines, right=range(1, len(header))))
    return "\n\n".join([*tables, ""]) if tables else ""


def _head(text: str, pair: str | None, prediction: str) -> str:
    second = "" if pair is None else f"pair: {visible(pair, one_line=True)}\n"
    return f"text: {visible(text, one_line=True)}\n{second}prediction: {prediction}\n\n"
