"""Render a report as HTML, Markdown, LaTeX or CSV, and write it and its figures to files."""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import io
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from attentune.errors import ConfigError
from attentune.io.files import storage_errors, write_bytes, write_text
from attentune.report.document import Figure, Report, Section, Table, slug, with_minus
from attentune.report.figures.base import FIGURE_KINDS, check_figure_file, figure_bytes
from attentune.report.overview.contents import SHORT_LABELS, VERDICT_HEADER, Overview
from attentune.report.templating import html_templates, latex_templates, markdown_templates, one_line

# Widths of the window, in rem, below which a table shows each row as a block; the page is 74 rem wide at most.
_STACKED_AT = (24, 32, 40, 48, 56, 66, 76)
_CHARACTER_REM, _COLUMN_REM, _LONG_REM, _PAGE_REM = 0.46, 0.9, 18.0, 74.0
_SCROLLED_AT = 40
# The heat map needs this much for the names and for each task.
_HEAT_NAMES_REM, _HEAT_COLUMN_REM = 16.0, 5.2
# Longer tables, and those that few readers need, are folded.
_MOST_OPEN_ROWS = 30
_FOLDED = ("spreads", "other-metrics", "common", "methods", "cost")
_COLOURS = {"#000000": "currentColor", "#000": "currentColor", "#dddddd": "var(--line)", "#ffffff": "var(--page)",
            "#555555": "var(--soft)", "black": "currentColor", "white": "var(--page)"}  # fmt: skip


def render_html(report: Report) -> str:
    """Render one HTML file with its style and figures inside, and a script that sorts tables: it needs no network."""
    overview = report.overview
    sections = list(_sections(report))
    script = (resources.files("attentune.report") / "templates" / "report.js").read_text(encoding="utf-8")
    columns = len(overview.heat.columns) if overview is not None and overview.heat is not None else 0
    return html_templates.get_template("report.html.jinja").render(
        report=report,
        title=report.title if overview is None else f"{overview.question} {report.title}",
        overview=overview,
        sections=sections,
        contents=_contents(overview, sections),
        verdict_header=VERDICT_HEADER,
        verdict_notes=_verdict_notes(report),
        script=script,
        stacked_at=_STACKED_AT,
        heat_rem=math.ceil(_HEAT_NAMES_REM + _HEAT_COLUMN_REM * columns),
    )


def _sections(report: Report) -> Iterator[Section]:
    """Yield the sections without the parts that the overview shows in another form."""
    for section in report.sections:
        parts = tuple(
            part for part in section.parts if report.overview is None or not report.overview.replaces(part.name)
        )
        if parts:
            title = "Scores" if report.overview is not None and section.title == "Results" else section.title
            yield dataclasses.replace(section, title=title, parts=parts)


def _contents(overview: Overview | None, sections: list[Section]) -> list[tuple[str, str]]:
    """Return the address and name of each part of the page below the heat map."""
    about = [("about", "About this report")] if overview is not None else []
    return [*_overview_contents(overview), *((slug(section.title), section.title) for section in sections), *about]


def _overview_contents(overview: Overview | None) -> Iterator[tuple[str, str]]:
    """Yield the address and name of each part of the overview."""
    if overview is None:
        return
    for number, run in enumerate(overview.runs, start=1):
        yield f"run-{number}", "The run" if len(overview.runs) == 1 else run.title
    parts = (
        ("by-task", "Task by task", overview.panels),
        ("cost-and-score", "Cost and score", overview.costs),
        ("rows", "Which rows change", () if overview.runs else overview.rows),
        ("comparisons", "All comparisons", overview.verdicts),
        ("confusion", "Confusion matrices", overview.confusions),
    )
    yield from ((address, name) for address, name, content in parts if content)


def _verdict_notes(report: Report) -> tuple[str, ...]:
    """Return the notes below the tables of verdicts and differences."""
    return tuple(
        note
        for section in report.sections
        for part in section.parts
        if isinstance(part, Table) and part.name in ("differences", "verdicts")
        for note in part.notes
    )


def inline_svg(figure: Figure) -> Markup:
    """Draw a figure as an SVG element of the page, in the page's colours and with text as text."""
    svg = figure_bytes(figure.draw(), "svg", text_as_text=True).decode("utf-8")
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(font-family|transform)(: [^;\"]*; ?|=\"rotate\(-0 [^\"]*\")", "", svg).replace(" \n", " ")
    # Names that other elements refer to are made unique in the page, others are dropped.
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: f' id="{figure.name}-{found[1]}"' if found[1] in used else "", svg)
    svg = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{figure.name}-", svg)
    for colour, name in _COLOURS.items():
        svg = re.sub(rf"((?:fill|stroke): ?){re.escape(colour)}(?=[;\"])", rf"\g<1>{name}", svg)
    label = str(Markup.escape(one_line(f"{figure.title}. {figure.alt}".strip())))
    svg = re.sub(r"\n\s*", "\n", re.sub(r"(\d\.\d\d)\d+", r"\1", svg))
    svg = re.sub(r"<svg[^>]*?(viewBox=\"[^\"]*\")[^>]*>", lambda found: _opening(found, label), svg, count=1)
    # Matplotlib has escaped the texts.
    return Markup(svg)


def _opening(found: re.Match[str], label: str) -> str:
    """Return the first tag of a figure, with its size in pixels."""
    width, height = (round(float(number) * 4 / 3) for number in found[1].split('"')[1].split()[2:])
    return f'<svg {found[1]} width="{width}" height="{height}" role="img" aria-label="{label}">'


def needed_rem(table: Table) -> float:
    """Estimate the width of a table in rem."""
    width = 0.0
    for number, name in enumerate(table.header):
        texts = [row[number] for row in table.rows]
        if table.name == "scores":
            texts = [part for text in texts for part in score_parts(text)]
        longest = max(map(len, [*name.split(), *texts]), default=1)
        width += _COLUMN_REM + min(_LONG_REM, _CHARACTER_REM * longest)
    return width


def stack_rem(table: Table) -> int:
    """Return the width of the window below which a table shows each row as a block."""
    needed = needed_rem(table) + 2
    return next((rem for rem in _STACKED_AT if rem >= needed), _SCROLLED_AT)


def is_wide(table: Table) -> bool:
    """Return whether a table is wider than the page, and is scrolled."""
    return needed_rem(table) > _PAGE_REM


def _is_folded(table: Table) -> bool:
    return table.name in _FOLDED or len(table.rows) > _MOST_OPEN_ROWS


def _sha256(script: str) -> Markup:
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return Markup(f"sha256-{digest}")


def _sort_key(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6g}"


def score_parts(text: str) -> list[str]:
    """Split "54.0 (50.2 to 57.9) †" into "54.0 †" and "50.2 to 57.9"."""
    found = re.fullmatch(r"(\S+) \(([^()]*)\)(.*)", text)
    return [text] if found is None else [found[1] + found[3], found[2]]


html_templates.filters |= {
    "score_parts": score_parts,
    "with_minus": with_minus,
    "short_label": lambda name: SHORT_LABELS.get(name, name),
    "slug": slug,
    "inline_svg": inline_svg,
    "sha256": _sha256,
    "sort_key": _sort_key,
    "stack_rem": stack_rem,
    "is_wide": is_wide,
    "is_folded": _is_folded,
}


REPORT_KINDS = (".html", ".md", ".csv", ".tex")


def check_report_file(path: str | Path) -> None:
    """Check, before the work is done, that a report can be written to a file of this name."""
    extension = Path(path).suffix.lower()
    if extension not in REPORT_KINDS:
        raise ConfigError(f"{path}: expected a name that ends in {', '.join(REPORT_KINDS)}.")
    if extension == ".html":
        check_figure_file(Path(path).with_suffix(".svg"))


def write_figures(report: Report, folder: str | Path) -> dict[str, Path]:
    """Write each figure as SVG, PNG and PDF."""
    folder = Path(folder)
    check_figure_file(folder / "figure.png")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    png_files = {}
    for figure in report.figures():
        drawing = figure.draw()
        for extension in FIGURE_KINDS:
            write_bytes(folder / f"{figure.name}{extension}", figure_bytes(drawing, extension[1:]))
        png_files[figure.name] = folder / f"{figure.name}.png"
    return png_files


def write_report(report: Report, path: str | Path, figures: Mapping[str, Path] | None = None) -> None:
    """Write a report in the format of the path's extension."""
    check_report_file(path)
    extension, folder = Path(path).suffix.lower(), Path(path).resolve().parent
    relative = {name: Path(os.path.relpath(file.resolve(), folder)) for name, file in (figures or {}).items()}
    if extension == ".html":
        text = render_html(report)
    elif extension == ".csv":
        text = render_csv(report)
    elif extension == ".md":
        text = render_markdown(report, {name: quote(file.as_posix()) for name, file in relative.items()})
    else:
        # Without the extension, so that LaTeX chooses a format that it can read.
        text = render_latex(report, {name: str(file.with_suffix("")) for name, file in relative.items()})
    write_text(path, text)


def render_markdown(report: Report, figures: Mapping[str, str]) -> str:
    """Render Markdown with pipe tables."""
    sections = _printed_sections(report, figures)
    return markdown_templates.get_template("report.md.jinja").render(report=report, sections=sections, figures=figures)


def render_latex(report: Report, figures: Mapping[str, str]) -> str:
    """Render LaTeX tables to include in a paper with \\input; see `render_markdown`."""
    sections = _printed_sections(report, figures)
    return latex_templates.get_template("report.tex.jinja").render(
        answer=report.answer, sections=sections, figures=figures
    )


def _printed_sections(report: Report, figures: Mapping[str, str]) -> list[Section]:
    """Keep the tables and the figures that have a file, and the sections with any of them."""
    sections = []
    for section in report.sections:
        parts = tuple(part for part in section.parts if not isinstance(part, Figure) or part.name in figures)
        if parts:
            sections.append(replace(section, parts=parts))
    return sections


def render_csv(report: Report) -> str:
    """Render the results as one table with all digits: a line for each task, training set size and method."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    if report.results:
        writer.writerow(report.results[0])
    writer.writerows([_csv_cell(value) for value in result.values()] for result in report.results)
    return buffer.getvalue()


def _csv_cell(value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return repr(float(value)) if isinstance(value, float) else escape_csv(str(value))


def escape_csv(text: str) -> str:
    """Escape a cell: a spreadsheet would evaluate text that starts with = + - or @, unless it is a number."""
    text = one_line(text)
    is_formula = text[:1] in ("=", "+", "-", "@") and not re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", text)
    return f"'{text}" if is_formula else text
