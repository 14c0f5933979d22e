"""Jinja2 environments for HTML, Markdown and LaTeX. Each escapes every value that a template prints.

Texts, labels and method names come from data files. A template prints them with `{{ value }}`, and the environment
makes them inert. Only a value marked with the filter `safe` or `e` is printed without the environment's escaping.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from attentune.report.highlight import hex_tone, highest, score_text, segments, share_of, sides, visible

# Characters with a meaning in Markdown, in HTML inside Markdown or in GitHub's mathematics.
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~$&#])")
# Prefixes of lists and headings, and what GitHub turns into links and mentions.
_MARKDOWN_BLOCK_START = re.compile(r"^([-+=]|\d+(?=[.)]))")
_MARKDOWN_AUTOLINK = re.compile(r"(?<=[a-zA-Z])(:)(?=//)|(?<=www)(\.)|(@)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?[\d.,]+")
_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
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
    """Escape text for a Markdown paragraph or table cell."""
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
    """Escape text for a LaTeX paragraph or table cell.

    The result needs \\usepackage[T1]{fontenc} and textcomp; letters outside Latin need a Unicode engine, for example
    LuaLaTeX.
    """
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
html_templates.globals |= {
    "hex_tone": hex_tone, "highest": highest, "score_text": score_text, "segments": segments, "share_of": share_of,
    "sides": sides,
}  # fmt: skip
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
