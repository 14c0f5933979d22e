"""`attentune report`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from attentune.cli.flags import Parser
from attentune.errors import ConfigError

_EXAMPLES = """examples:
  attentune report comparisons/first --output_file report.html
  attentune report comparisons/first --baseline bert-mean --output_file tables.tex --figures figures
  attentune report runs/bert-1 runs/bert-2 runs/sesame-1 runs/sesame-2 --output_file report.md
  attentune report comparisons/first hans --output_file report.html       (with the bars of attentune hans)

DIR is the folder of a comparison (also of one that is not done yet), of a run, or one that holds hans.json or
layers.json. Run folders together make a comparison, by preset and seed. The page needs no network and no other file."""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune report",
        usage="attentune report DIR [DIR ...] --output_file report.html [flags]",
        description="Write tables with intervals and verdicts, and figures, of comparisons and runs.",
        epilog=_EXAMPLES,
    )
    made.add_argument("folders", metavar="DIR", nargs="+", help="folders of comparisons, runs, or attentune hans")
    made.add_argument(
        "--output_file", metavar="FILE", help="a page (.html), Markdown (.md), LaTeX (.tex) or CSV (.csv)"
    )
    made.add_argument("--figures", metavar="DIR", help="also write each figure as SVG, PNG and PDF into this folder")
    made.add_argument(
        "--baseline", metavar="NAME", help="what the others are compared with (default: the first method)"
    )
    return made


def run(arguments: Sequence[str]) -> int:
    """Write the report; return the exit status."""
    parsed, problems = parser().parse(arguments)
    if parsed.output_file is None and parsed.figures is None:
        problems.append("--output_file: is missing; name the report: --output_file report.html")
    if parsed.output_file is not None and Path(parsed.output_file).is_dir():
        problems.append(f"--output_file: {parsed.output_file} is a folder, expected a file; choose another name.")
    if parsed.figures is not None and Path(parsed.figures).is_file():
        problems.append(f"--figures: {parsed.figures} is a file, expected a folder; choose another name.")
    if problems:
        raise ConfigError(problems)

    from attentune.report.figures.base import check_figure_file
    from attentune.report.load import collect
    from attentune.report.sections.contents import make_report
    from attentune.report.writing import check_report_file, write_figures, write_report

    if parsed.output_file is not None:
        check_report_file(parsed.output_file)
    if parsed.figures is not None:
        check_figure_file(Path(parsed.figures) / "figure.png")
    report = make_report(collect(parsed.folders), parsed.baseline)
    drawn = {} if parsed.figures is None else write_figures(report, Path(parsed.figures))
    if drawn:
        print(f"{len(drawn)} figures written to {parsed.figures}", file=sys.stderr)
    if parsed.output_file is not None:
        write_report(report, parsed.output_file, drawn)
        print(f"written to {parsed.output_file}", file=sys.stderr)
    return 0
