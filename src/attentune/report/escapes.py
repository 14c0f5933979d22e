"""Text from data made safe for each kind of file: it is shown as it is, and nothing in it is obeyed."""

from __future__ import annotations

import html
import re

from attentune.report.highlight import visible

# What Markdown, the HTML in it or GitHub's mathematics could take for more than a sign.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~$&#])")
# What would begin a list or a heading, and what GitHub makes links and mentions of.
_AT_BEGIN = re.compile(r"^([-+=]|\d+(?=[.)]))")
_LINKS = re.compile(r"(?<=[a-zA-Z])(:)(?=//)|(?<=www)(\.)|(@)", re.IGNORECASE)
_LATEX = {
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
    "[": r"{[}",
    "]": r"{]}",
    "±": r"\ensuremath{\pm}",
    "↑": r"\ensuremath{\uparrow}",
    "↓": r"\ensuremath{\downarrow}",
    "†": r"\ensuremath{\dagger}",
}
_MINUS = re.compile(r"(?<![\w.)}-])-(?=\d)")
_NUMBER = re.compile(r"[+-]?[\d.,]+")


def for_html(text: str) -> str:
    """Text between or inside tags, on one line."""
    return html.escape(visible(text, one_line=True))


def for_markdown(text: str) -> str:
    """Text in a paragraph or a cell of a table."""
    shown = visible(text, one_line=True)
    if _NUMBER.fullmatch(shown):
        return shown
    escaped = _LINKS.sub(lambda found: f"\\{found[0]}", _MARKDOWN.sub(r"\\\1", shown))
    if _AT_BEGIN.match(escaped):
        # Digits cannot be escaped; what follows them can.
        digits = len(escaped) - len(escaped.lstrip("0123456789"))
        escaped = f"{escaped[:digits]}\\{escaped[digits:]}" if not re.match(r"\d+\.\d", escaped) else escaped
    return escaped


def for_latex(text: str) -> str:
    """Text in a paragraph or a cell. Needs \\usepackage[T1]{fontenc} and textcomp; letters outside of Latin need a
    Unicode engine such as LuaLaTeX."""
    escaped = "".join(_LATEX.get(sign, sign) for sign in visible(text, one_line=True))
    return _MINUS.sub(r"\\ensuremath{-}", escaped)


def for_csv(text: str) -> str:
    """A cell. A spreadsheet would compute what begins with one of = + - @, unless it is a number."""
    shown = visible(text, one_line=True)
    is_formula = shown[:1] in ("=", "+", "-", "@") and not re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", shown)
    return f"'{shown}" if is_formula else shown
