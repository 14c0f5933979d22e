"""Writing a report: the kind of file that its name says, and its figures as files of their own."""

from __future__ import annotations

import os
from pathlib import Path

from attentune.errors import ConfigError
from attentune.io.files import storage_errors, write_bytes, write_text
from attentune.report.document import Report
from attentune.report.figures.base import FIGURE_KINDS, check_figure_file, figure_bytes
from attentune.report.page import report_page
from attentune.report.text_report import report_csv, report_latex, report_markdown

REPORT_KINDS = (".html", ".md", ".csv", ".tex")


def check_report_file(path: str | Path) -> None:
    """Check that a report can be written into a file of this name, before the work is done.

    Raises:
        ConfigError: the name's ending is none of `REPORT_KINDS`, or a page is wanted without Matplotlib.
    """
    ending = Path(path).suffix.lower()
    if ending not in REPORT_KINDS:
        raise ConfigError(f"{path}: expected a name that ends in {', '.join(REPORT_KINDS)}.")
    if ending == ".html":
        check_figure_file(Path(path).with_suffix(".svg"))


def write_figures(report: Report, folder: str | Path) -> dict[str, Path]:
    """Write each figure as SVG, PNG and PDF; the PNG files by figure.

    Raises:
        ConfigError: Matplotlib is not installed.
        StorageError: a file could not be written.
    """
    folder = Path(folder)
    check_figure_file(folder / "figure.png")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for figure in report.figures():
        drawn = figure.draw()
        for ending in FIGURE_KINDS:
            write_bytes(folder / f"{figure.name}{ending}", figure_bytes(drawn, ending[1:]))
        written[figure.name] = folder / f"{figure.name}.png"
    return written


def write_report(report: Report, path: str | Path, figures: dict[str, Path] | None = None) -> None:
    """Write a report.

    Args:
        report: what is written.
        path: a .html, .md, .csv or .tex file.
        figures: those of `write_figures`, which Markdown and LaTeX refer to; a page has its own inside.

    Raises:
        ConfigError: as `check_report_file`.
        StorageError: the file could not be written.
    """
    check_report_file(path)
    ending, near = Path(path).suffix.lower(), Path(path).resolve().parent
    if ending == ".html":
        write_text(path, report_page(report))
    elif ending == ".csv":
        write_text(path, report_csv(report))
    else:
        found = {name: Path(os.path.relpath(file.resolve(), near)) for name, file in (figures or {}).items()}
        if ending == ".md":
            write_text(path, report_markdown(report, {name: _address(file) for name, file in found.items()}))
        else:
            # LaTeX chooses the kind of file that it can read.
            write_text(path, report_latex(report, {name: str(file.with_suffix("")) for name, file in found.items()}))


def _address(file: Path) -> str:
    from urllib.parse import quote

    return quote(file.as_posix())
