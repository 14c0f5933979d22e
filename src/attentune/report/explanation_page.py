"""Explanations as one HTML file that needs nothing else: no script, no address, nothing that a text could set going."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from attentune.explain.explanation import Explanation
from attentune.io.files import write_text
from attentune.report.explanation_text import said
from attentune.report.highlight import visible
from attentune.report.highlight_html import MARKED_STYLE, marked

# Even if a text should ever get through, a browser would run and fetch nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_STYLE = f"""
:root {{ color-scheme: light; }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 1.5rem auto; max-width: 72rem;
  padding: 0 1rem; }}
h1 {{ font-size: 1.3rem; margin: 0 0 .5rem; }}
h2 {{ font-size: 1rem; margin: 2rem 0 .5rem; border-top: 1px solid #ccc; padding-top: 1rem; }}
h3 {{ font-size: .95rem; margin: 0; }}
input {{ margin: 0 .3rem 0 0; }}
label {{ margin-right: 1rem; }}
.note, .facts, .legend, .side {{ color: #555; font-size: .85rem; margin: .2rem 0; }}
.methods {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1rem; }}
article {{ border: 1px solid #ddd; border-radius: 6px; padding: .6rem .8rem; min-width: 0; }}
{MARKED_STYLE}#words:checked ~ main .by-pieces, #pieces:checked ~ main .by-words {{ display: none; }}
"""

_NOTE = (
    "The stronger the tone and the thicker the line below it, the more a word mattered; a dashed line speaks against"
    " the class. Tones reach from 0 to the highest score of each box. Point at a word to see its score. A word's score"
    " is the sum of its pieces', or where scores have no sign the highest of them. Words without a line mattered"
    " little, or were not read: encoders cut long texts."
)


def write_page(path: str | Path, groups: Sequence[Sequence[Explanation]], *, title: str) -> None:
    """Write a page.

    Args:
        path: an .html file.
        groups: for each text its explanations, by one method or several, which stand side by side.
        title: what was explained.

    Raises:
        StorageError: the file could not be written.
    """
    write_text(path, page(groups, title=title))


def page(groups: Sequence[Sequence[Explanation]], *, title: str) -> str:
    """The page's text; see `write_page`."""
    by_words = all(explanation.unit == "word" for group in groups for explanation in group)
    shown = escape(visible(title, one_line=True))
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{shown}</title><style>{_STYLE}</style></head>\n<body><h1>{shown}</h1>\n",
        _toggle("words", "words", by_words),
        _toggle("pieces", "pieces, as the encoder reads them", not by_words),
        f'<p class="note">{escape(_NOTE)}</p>\n<main>\n',
    ]
    for number, group in enumerate(groups, start=1):
        parts.append(f'<section><h2>Text {number}</h2><div class="methods">\n')
        parts += [_box(explanation) for explanation in group]
        parts.append("</div></section>\n")
    return "".join([*parts, "</main></body></html>\n"])


def _toggle(name: str, label: str, is_checked: bool) -> str:
    checked = " checked" if is_checked else ""
    return f'<input type="radio" name="unit" id="{name}"{checked}><label for="{name}">{label}</label>\n'


def _box(explanation: Explanation) -> str:
    """One method's view of one text."""
    passes = "1 pass" if explanation.passes == 1 else f"{explanation.passes:,} passes"
    return (
        f"<article><h3>{escape(explanation.method)}</h3>"
        f'<p class="facts">{escape(said(explanation))}; {passes}, {explanation.seconds:.3g} s</p>'
        f'<div class="by-words">{marked(explanation, explanation.words)}</div>'
        f'<div class="by-pieces">{marked(explanation, explanation.pieces)}</div></article>\n'
    )
