"""Text from data made safe for each kind of file: it is shown as it is, and nothing in it is obeyed."""

from __future__ import annotations

import html
import re

from attentune.report.marked_text import visible

# All that Markdown or the HTML in it could take for more than a sign; GitHub also makes links of bare addresses.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$&@:^=])")
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
_NUMBER = re.compile(r"[+-]?[\d.,]+")


def for_html(text: str) -> str:
    """Text between or inside tags, on one line."""
    return html.escape(visible(text, one_line=True))


def for_markdown(text: str) -> str:
    """Text in a paragraph or a cell of a table. Plain numbers and words of letters stay as they are."""
    shown = visible(text, one_line=True)
    if _NUMBER.fullmatch(shown):
        return shown
    return re.sub(r"(?<=\d)\\([.])(?=\d)", r"\1", _MARKDOWN.sub(r"\\\1", shown))


def for_latex(text: str) -> str:
    """Text in a paragraph or a cell. Needs \\usepackage[T1]{fontenc} and textcomp; letters outside of Latin need a
    Unicode engine such as LuaLaTeX."""
    return "".join(_LATEX.get(sign, sign) for sign in visible(text, one_line=True))


def for_csv(text: str) -> str:
    """A cell. A spreadsheet would compute what begins with one of = + - @, unless it is a number."""
    shown = visible(text, one_line=True)
    is_formula = shown[:1] in ("=", "+", "-", "@") and not re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", shown)
    return f"'{shown}" if is_formula else shown
