"""Render a report as HTML, Markdown, LaTeX or CSV, and write it and its figures to files."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from attentune.errors import ConfigError
from attentune.io.files import storage_errors, write_bytes, write_text
from attentune.report.document import Figure, Report, Section
from attentune.report.figures.base import FIGURE_KINDS, check_figure_file, figure_bytes
from attentune.report.page import render_html
from attentune.report.templating import latex_templates, markdown_templates, one_line

REPORT_KINDS = (".html", ".md", ".csv", ".tex")


def check_report_file(path: str | Path) -> None:
    """Check, before the work is done, that a report can be written to a file of this name.

    Raises:
        ConfigError: the extension is none of `REPORT_KINDS`, or it is .html and Matplotlib is not installed.
    """
    extension = Path(path).suffix.lower()
    if extension not in REPORT_KINDS:
        raise ConfigError(f"{path}: expected a name that ends in {', '.join(REPORT_KINDS)}.")
    if extension == ".html":
        check_figure_file(Path(path).with_suffix(".svg"))


def write_figures(report: Report, folder: str | Path) -> dict[str, Path]:
    """Write each figure as SVG, PNG and PDF.

    Returns:
        The PNG files by the figures' names.

    Raises:
        ConfigError: Matplotlib is not installed.
        StorageError: a file could not be written.
    """
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
    """Write a report in the format of the path's extension.

    Args:
        report: the content.
        path: a .html, .md, .csv or .tex file.
        figures: the files of `write_figures`, to which Markdown and LaTeX refer; HTML embeds its figures.

    Raises:
        ConfigError: see `check_report_file`.
        StorageError: the file could not be written.
    """
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
    """Render Markdown with pipe tables.

    Args:
        report: the content.
        figures: the pictures' addresses by the figures' names; figures without an address are left out.
    """
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
