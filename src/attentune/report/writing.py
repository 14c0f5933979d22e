"""Render a report as HTML, Markdown or LaTeX, each with its own escaping, and write it and its figures.

Texts, labels and method names come from data files. A template prints them with `{{ value }}`, and the environment
makes them inert. Only a value marked with the filter `safe` or `e` is printed without the environment's escaping.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from attentune.data.tables import visible
from attentune.errors import ConfigError
from attentune.io.files import storage_errors, write_bytes, write_text
from attentune.plugins import require_extra
from attentune.report.charts import FIGURE_KINDS, check_figure_file, figure_bytes
from attentune.report.document import Figure, Report, Section, Table, slug

REPORT_KINDS = (".html", ".md", ".tex")
# Longer tables, and those that few readers need, are folded.
_MOST_OPEN_ROWS = 30
_FOLDED = ("further", "common", "methods", "cost")
_COLOURS = {"#000000": "currentColor", "#000": "currentColor", "#dddddd": "var(--line)", "#ffffff": "var(--page)",
            "#555555": "var(--soft)", "black": "currentColor", "white": "var(--page)"}  # fmt: skip
_NEGATIVE = re.compile(r"(?<![\w.)-])-(?=\d)")
# Characters with a meaning in Markdown, in HTML inside Markdown or in GitHub's mathematics.
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~$&#])")
# Prefixes of lists and headings, and what GitHub turns into links and mentions.
_MARKDOWN_BLOCK_START = re.compile(r"^([-+=]|\d+(?=[.)]))")
_MARKDOWN_AUTOLINK = re.compile(r"(?<=[a-zA-Z])(:)(?=//)|(?<=www)(\.)|(@)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?[\d.,]+")
_LATEX_SPECIAL = {sign: f"\\{sign}" for sign in "{}$&#%_"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    # In braces: after \\, LaTeX would read [ as the start of a length.
    "[": r"{[}",
    "]": r"{]}",
    "±": r"\ensuremath{\pm}",
    "↑": r"\ensuremath{\uparrow}",
    "↓": r"\ensuremath{\downarrow}",
    "†": r"\ensuremath{\dagger}",
}
_LATEX_MINUS = re.compile(r"(?<![\w.)}-])-(?=\d)")


def one_line(text: str) -> str:
    """Return the text on one line, with control characters replaced by visible symbols."""
    return visible(text, one_line=True)


def escape_markdown(text: str) -> str:
    text = one_line(text)
    if _NUMBER.fullmatch(text):
        return text
    escaped = _MARKDOWN_AUTOLINK.sub(lambda match: f"\\{match[0]}", _MARKDOWN_SPECIAL.sub(r"\\\1", text))
    if _MARKDOWN_BLOCK_START.match(escaped) and not re.match(r"\d+\.\d", escaped):
        # Digits cannot be escaped; the character after them can.
        digits = len(escaped) - len(escaped.lstrip("0123456789"))
        escaped = f"{escaped[:digits]}\\{escaped[digits:]}"
    return escaped


def escape_latex(text: str) -> str:
    """Escape text for LaTeX with T1 fonts and textcomp; letters outside Latin need LuaLaTeX or the like."""
    escaped = "".join(_LATEX_SPECIAL.get(character, character) for character in one_line(text))
    return _LATEX_MINUS.sub(r"\\ensuremath{-}", escaped)


def _environment(escape: Callable[[str], str], **options: Any) -> Environment:
    """Create an environment that passes each printed value through `escape`, unless a filter marked it as safe."""

    def finalize(value: Any) -> Any:
        return value if isinstance(value, Markup) else escape(str(value))

    return Environment(
        loader=PackageLoader("attentune.report"),
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )


# HTML is escaped by Jinja2's autoescape after `finalize`.
html_templates = _environment(one_line, autoescape=True)
markdown_templates = _environment(escape_markdown, autoescape=False, keep_trailing_newline=True)
# Braces and percent signs are frequent in LaTeX, so its templates use <% block %> and << value >>.
latex_templates = _environment(
    escape_latex,
    autoescape=False,
    keep_trailing_newline=True,
    block_start_string="<%",
    block_end_string="%>",
    variable_start_string="<<",
    variable_end_string=">>",
    comment_start_string="<#",
    comment_end_string="#>",
)


def render_html(report: Report) -> str:
    """Render one HTML file with its style and figures inside and no script: it needs no network."""
    title = f"{report.question} {report.title}".strip()
    return html_templates.get_template("report.html.jinja").render(report=report, title=title)


def inline_svg(figure: Figure) -> Markup:
    """Draw a figure as an SVG element of the page, in the page's colours and with text as text."""
    svg = figure_bytes(figure.draw(), "svg", text_as_text=True).decode("utf-8")
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(font-family|transform)(: [^;\"]*; ?|=\"rotate\(-0 [^\"]*\")", "", svg).replace(" \n", " ")
    # The page's own font, and no joins and ends that nobody sees: a page with many figures can be sent by mail.
    svg = re.sub(r"; (font-family|stroke-line(join|cap)): [^;\"]*(?=[;\"])", "", svg)
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
    width, height = (round(float(number) * 4 / 3) for number in found[1].split('"')[1].split()[2:])
    return f'<svg {found[1]} width="{width}" height="{height}" role="img" aria-label="{label}">'


def score_parts(text: str) -> list[str]:
    """Split "54.0 (50.2 to 57.9) †" into "54.0 †" and "50.2 to 57.9"."""
    found = re.fullmatch(r"(\S+) \(([^()]*)\)(.*)", text)
    return [text] if found is None else [found[1] + found[3], found[2]]


def with_minus(text: str) -> str:
    """Put the minus sign before negative numbers; hyphens in names stay."""
    return _NEGATIVE.sub("\u2212", text)


html_templates.filters |= {
    "score_parts": score_parts, "with_minus": with_minus, "slug": slug, "inline_svg": inline_svg,
    "is_folded": lambda table: table.name in _FOLDED or len(table.rows) > _MOST_OPEN_ROWS,
}  # fmt: skip


def check_report_file(path: str | Path) -> None:
    """Check, before the work is done, that a report can be written to a file of this name."""
    extension = Path(path).suffix.lower()
    if extension not in REPORT_KINDS:
        raise ConfigError(f"{path}: expected a name that ends in {', '.join(REPORT_KINDS)}.")
    if extension == ".html":
        require_extra("report", "matplotlib", what=str(path))


def write_figures(report: Report, folder: str | Path) -> dict[str, Path]:
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
    check_report_file(path)
    extension, folder = Path(path).suffix.lower(), Path(path).resolve().parent
    relative = {name: Path(os.path.relpath(file.resolve(), folder)) for name, file in (figures or {}).items()}
    if extension == ".html":
        text = render_html(report)
    elif extension == ".md":
        text = render_markdown(report, {name: quote(file.as_posix()) for name, file in relative.items()})
    else:
        # Without the extension, so that LaTeX chooses a format that it can read.
        text = render_latex(report, {name: str(file.with_suffix("")) for name, file in relative.items()})
    write_text(path, text)


def render_markdown(report: Report, figures: Mapping[str, str]) -> str:
    sections = _printed_sections(report, figures)
    return markdown_templates.get_template("report.md.jinja").render(report=report, sections=sections, figures=figures)


def render_latex(report: Report, figures: Mapping[str, str]) -> str:
    sections = _printed_sections(report, figures)
    template = latex_templates.get_template("report.tex.jinja")
    return template.render(answer=report.answer, sections=sections, figures=figures)


def _column_types(table: Table) -> str:
    """Return LaTeX's types of the columns; those of long texts are wrapped, and share two thirds of a line."""
    wrapped = rf"p{{{0.66 / max(1, len(table.long_columns)):.2f}\linewidth}}"
    plain = ("l" if column < table.left else "r" for column in range(len(table.header)))
    return "".join(wrapped if column in table.long_columns else kind for column, kind in enumerate(plain))


latex_templates.filters["column_types"] = _column_types


def _printed_sections(report: Report, figures: Mapping[str, str]) -> list[Section]:
    """Keep the tables and the figures that have a file, and the sections with any of them or with sentences."""
    sections = []
    for section in report.sections:
        if section.on_page_only:
            continue
        parts = tuple(part for part in section.parts if not isinstance(part, Figure) or part.name in figures)
        if parts or section.sentences:
            sections.append(replace(section, parts=parts))
    return sections
