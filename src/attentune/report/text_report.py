"""A report as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping

from attentune.report.document import Figure, Report, Section, Table
from attentune.report.escapes import for_csv, for_latex, for_markdown

_WRAP = 60


def report_csv(report: Report) -> str:
    """The results as one table with all digits, a line a task, size and method."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([for_csv(cell) for cell in line] for line in report.lines)
    return buffer.getvalue()


def report_markdown(report: Report, figures: Mapping[str, str]) -> str:
    """Markdown with pipe tables.

    Args:
        report: what is written.
        figures: by figure the address of a picture; figures without one are left out.
    """
    parts = [f"# {for_markdown(report.title)}", *map(for_markdown, report.sentences)]
    for section in _shown(report, figures):
        parts += [f"## {for_markdown(section.title)}", *map(for_markdown, section.sentences)]
        for part in section.parts:
            parts += _markdown_table(part) if isinstance(part, Table) else _markdown_figure(part, figures)
    return "\n\n".join(parts) + "\n"


def _shown(report: Report, figures: Mapping[str, str]) -> Iterator[Section]:
    """The sections with a table, or a figure that was drawn."""
    for section in report.sections:
        if any(isinstance(part, Table) or part.name in figures for part in section.parts):
            yield section


def _markdown_table(table: Table) -> list[str]:
    lines = [
        _pipes(table.header),
        _pipes(["---" if place < table.left else "---:" for place in range(len(table.header))], plain=True),
        *(_pipes(row) for row in table.rows),
    ]
    return [f"### {for_markdown(table.title)}", "\n".join(lines), *map(for_markdown, table.notes)]


def _pipes(cells: tuple[str, ...] | list[str], *, plain: bool = False) -> str:
    return f"| {' | '.join(cell if plain else for_markdown(cell) for cell in cells)} |"


def _markdown_figure(figure: Figure, figures: Mapping[str, str]) -> list[str]:
    if figure.name not in figures:
        return []
    return [f"![{for_markdown(figure.title)}]({figures[figure.name]})", for_markdown(figure.caption)]


def report_latex(report: Report, figures: Mapping[str, str]) -> str:
    """LaTeX tables to be put into a paper with \\input; see `report_markdown`."""
    parts = [
        "% Needs \\usepackage{booktabs}, \\usepackage[T1]{fontenc}, \\usepackage{textcomp}"
        + (", \\usepackage{graphicx}" if figures else "")
    ]
    for section in _shown(report, figures):
        parts += [for_latex(sentence) for sentence in section.sentences]
        for part in section.parts:
            parts += [_latex_table(part)] if isinstance(part, Table) else _latex_figure(part, figures)
    return "\n\n".join(parts) + "\n"


def _latex_table(table: Table) -> str:
    longest = [max(len(row[place]) for row in table.rows) for place in range(len(table.header))]
    columns = "".join(
        r"p{0.6\linewidth}" if length > _WRAP else "l" if place < table.left else "r"
        for place, length in enumerate(longest)
    )
    lines = [
        r"\begin{table}",
        r"\centering\small",
        rf"\caption{{{for_latex(table.title)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _row(table.header),
        r"\midrule",
        *(_row(row) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\smallskip\footnotesize {for_latex(note)}" for note in table.notes),
        r"\end{table}",
    ]
    return "\n".join(lines)


def _row(cells: tuple[str, ...]) -> str:
    # A line break that is followed by [ would take it for a length; for_latex puts it in braces.
    return f"{' & '.join(for_latex(cell) for cell in cells)} \\\\"


def _latex_figure(figure: Figure, figures: Mapping[str, str]) -> list[str]:
    if figure.name not in figures:
        return []
    return [
        "\n".join(
            [
                r"\begin{figure}",
                r"\centering",
                rf"\includegraphics[width=\linewidth]{{{figures[figure.name]}}}",
                rf"\caption{{{for_latex(f'{figure.title}. {figure.caption}')}}}",
                rf"\label{{fig:{figure.name}}}",
                r"\end{figure}",
            ]
        )
    ]
