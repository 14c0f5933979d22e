"""Explanations on standard output: coloured text on a terminal, else tables with one line per word."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from rich.console import Console

from attentune.cli.output import table
from attentune.explain.by_class import ClassWord, OverlapPredictions
from attentune.explain.explanation import Explanation, HeadAttention
from attentune.report.explanations import LEGEND, prediction_text, terminal_text
from attentune.report.highlight import score_text, visible


def print_explanations(groups: Sequence[Sequence[Explanation]]) -> None:
    """Print the explanations of each text: coloured on a terminal, else as tables."""
    if not sys.stdout.isatty():
        sys.stdout.write(score_tables(groups))
        return
    console = Console(highlight=False, soft_wrap=True)
    for group in groups:
        for explanation in group:
            console.print(terminal_text(explanation))
    console.print(LEGEND, style="dim")


def score_tables(groups: Sequence[Sequence[Explanation]]) -> str:
    """Format one table per text, with one column per method."""
    tables = []
    for group in groups:
        first = group[0]
        columns = [[token.text for token in first.tokens]]
        columns += [
            [score_text(token.score, signed=explanation.signed) for token in explanation.tokens]
            for explanation in group
        ]
        columns = [[visible(entry, one_line=True) for entry in column] for column in columns]
        columns[0] += ["", "passes", "seconds"]
        for column, explanation in zip(columns[1:], group, strict=True):
            column += ["", f"{explanation.passes:,}", f"{explanation.seconds:.3g}"]
        head = _head(first.text, first.pair, prediction_text(first))
        header = (first.level, *(explanation.method for explanation in group))
        unread = f"\n{count:,} more words were not read." if (count := first.unread_words) else ""
        units = "".join(f"\n{one.method}: {visible(one.unit, one_line=True)}" for one in group)
        tables.append(
            head + table(header, list(zip(*columns, strict=True)), right=range(1, len(header))) + units + unread
        )
    return "\n\n".join([*tables, ""]) if tables else ""


def head_tables(results: Sequence[HeadAttention]) -> str:
    """Format one table per text, with one column per attention head."""
    tables = []
    for one in results:
        label = visible(str(one.label), one_line=True)
        heads = [f"head {head}" for head in one.heads]
        header = (one.level, *heads, *(() if one.importance is None else ("ssa",)))
        lines = []
        for number, token in enumerate(one.tokens):
            shares = [*one.attention[number], *(() if one.importance is None else (one.importance[number],))]
            lines.append((visible(token.text, one_line=True), *(f"{share:.3f}" for share in shares)))
        prediction = label if one.probability is None else f"{label} ({one.probability:.3f})"
        head = _head(one.text, one.pair, f"{prediction}; layer {one.layer}")
        tables.append(head + table(header, lines, right=range(1, len(header))) + f"\n{one.unit}")
    return "\n\n".join([*tables, ""]) if tables else ""


def class_tables(
    by_class: Mapping[str, Sequence[ClassWord]],
    units: Mapping[str, str],
    overlap: Sequence[OverlapPredictions],
    method: str,
    rows: int,
) -> str:
    """Format one table per class, with the words that speak most for it, and of pairs one of shared words."""
    tables = []
    for name, words in by_class.items():
        title = f"words for {visible(name, one_line=True)}"
        if not words:
            tables.append(f"{title}: none in three rows and more whose interval is above 0")
            continue
        entries = [
            (
                visible(one.word, one_line=True) + (" (second text)" if one.within == "pair" else ""),
                f"{one.rows:,}",
                score_text(one.score, signed=True),
                f"{score_text(one.low, signed=True)} to {score_text(one.high, signed=True)}",
            )
            for one in words
        ]
        shown = table(("word", "rows", "mean score", "95 % interval"), entries, right=(1, 2))
        tables.append(f"{title}\n\n{shown}\nscore: {visible(units[name], one_line=True)}")
    if overlap:
        tables.append(_overlap_table(overlap))
    note = f"{method}, {rows:,} rows; bootstrap intervals over rows; ranked by lower bound times rows."
    return "\n\n".join([*tables, note, ""])


def _overlap_table(groups: Sequence[OverlapPredictions]) -> str:
    """Format how often each class is predicted, by the share of words that the texts share."""
    names = list(groups[0].predicted)
    entries = []
    for one in groups:
        shares = (
            f"{100 * share:.0f} % ({100 * low:.0f} to {100 * high:.0f})" for share, low, high in one.predicted.values()
        )
        words = "all" if one.low == 1 else f"{100 * one.low:.0f} to {100 * one.high:.0f} %"
        entries.append((words, f"{one.rows:,}", *shares))
    header = ("shared words", "rows", *(visible(name, one_line=True) for name in names))
    title = "predictions by the share of the second text's words that the first text has too, 95 % intervals"
    return f"{title}\n\n{table(header, entries, right=(1,))}"


def _head(text: str, pair: str | None, prediction: str) -> str:
    second = "" if pair is None else f"pair: {visible(pair, one_line=True)}\n"
    return f"text: {visible(text, one_line=True)}\n{second}prediction: {prediction}\n\n"
