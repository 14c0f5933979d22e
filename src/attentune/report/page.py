"""A report as one HTML file that needs nothing else: no script, no address, figures inside."""

from __future__ import annotations

import base64
from collections.abc import Iterator

from attentune.report.document import Figure, Report, Section, Table
from attentune.report.escapes import for_html
from attentune.report.figures.base import figure_bytes
from attentune.report.numbers import slug

# Even if a text should ever get through, a browser would run and fetch nothing. A picture cannot run anything either.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 1.5rem auto; max-width: 76rem;
  padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; border-top: 1px solid #ccc; padding-top: 1rem; }
nav a { margin-right: .9rem; }
a { color: #0b57a4; }
.wide { overflow-x: auto; margin: .8rem 0 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .2rem 0; }
th, td { padding: .25rem .7rem .25rem 0; text-align: right; vertical-align: top; white-space: nowrap; }
th { border-top: 1.5px solid #1a1a1a; border-bottom: 1px solid #1a1a1a; }
tbody tr:last-child td { border-bottom: 1.5px solid #1a1a1a; }
.word { text-align: left; }
.long { white-space: normal; min-width: 18rem; overflow-wrap: anywhere; }
.note { color: #555; font-size: .82rem; margin: .3rem 0; max-width: 60rem; overflow-wrap: anywhere; }
figure { margin: 1.2rem 0 0; break-inside: avoid; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption { font-size: .88rem; max-width: 60rem; margin-bottom: .2rem; }
@media print { body { max-width: none; margin: 0; font-size: 11px; } nav { display: none; }
  .wide { overflow: visible; } th, td { white-space: normal; } }
"""
_LONG = 60


def report_page(report: Report) -> str:
    """The page's text."""
    title = for_html(report.title)
    links = "".join(f'<a href="#{_anchor(section)}">{for_html(section.title)}</a>' for section in report.sections)
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{for_html(_POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n",
            *(f"<p>{for_html(sentence)}</p>\n" for sentence in report.sentences),
            f"<nav>{links}</nav>\n<main>\n",
            *(piece for section in report.sections for piece in _section(section)),
            "</main></body></html>\n",
        ]
    )


def _anchor(section: Section) -> str:
    return slug(section.title)


def _section(section: Section) -> Iterator[str]:
    yield f'<section id="{_anchor(section)}"><h2>{for_html(section.title)}</h2>\n'
    for sentence in section.sentences:
        yield f"<p>{for_html(sentence)}</p>\n"
    for part in section.parts:
        yield _table(part) if isinstance(part, Table) else _figure(part)
    yield "</section>\n"


def _table(table: Table) -> str:
    longest = [max(len(row[place]) for row in table.rows) for place in range(len(table.header))]
    marks = [
        " ".join(["word"] * (place < table.left) + ["long"] * (longest[place] > _LONG))
        for place in range(len(table.header))
    ]
    head = "".join(_cell("th", text, mark) for text, mark in zip(table.header, marks, strict=True))
    body = "\n".join(
        f"<tr>{''.join(_cell('td', text, mark) for text, mark in zip(row, marks, strict=True))}</tr>"
        for row in table.rows
    )
    notes = "".join(f'<p class="note">{for_html(note)}</p>\n' for note in table.notes)
    return (
        f'<div class="wide"><table><caption>{for_html(table.title)}</caption><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>\n{notes}"
    )


def _cell(tag: str, text: str, mark: str) -> str:
    named = f' class="{mark}"' if mark else ""
    scope = ' scope="col"' if tag == "th" else ""
    return f"<{tag}{scope}{named}>{for_html(text)}</{tag}>"


def _figure(figure: Figure) -> str:
    content = base64.b64encode(figure_bytes(figure.draw(), "svg")).decode()
    alt = for_html(f"{figure.title}. {figure.alt}".strip())
    return (
        f'<figure id="figure-{figure.name}"><figcaption><b>{for_html(figure.title)}.</b> {for_html(figure.caption)}'
        f'</figcaption><img src="data:image/svg+xml;base64,{content}" alt="{alt}"></figure>\n'
    )
