"""`attentune report`: write tables, verdicts and figures of comparisons."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from attentune.cli.flags import check, parser_of
from attentune.cli.inputs import tell, texts_of_run
from attentune.errors import AttentuneError
from attentune.report.load import RecordedRun, TaskTexts


def texts_of(runs: Sequence[RecordedRun]) -> dict[str, TaskTexts]:
    """Read the texts by task, from the data of the task's first finished run, or say why there are none."""
    texts: dict[str, TaskTexts] = {}
    for run in runs:
        if not run.record.is_done or run.record.run.task in texts:
            continue
        try:
            found = TaskTexts(texts_of_run(run.record, run.record.split or "", "a report"))
        except (AttentuneError, OSError, ValueError) as error:
            found = TaskTexts(problem=f"The texts are not shown: {' '.join(str(error).split())}")
        texts[run.record.run.task] = found
    return texts


_HELP = """
attentune report DIR [DIR ...] --output_file report.html [flags]

Write tables with confidence intervals, verdicts and figures of comparisons and runs.

DIR...  folders of comparisons or runs
--output_file FILE  the report: HTML (.html), Markdown (.md) or LaTeX (.tex)
--figures DIR  also write each figure as SVG, PNG and PDF to this folder
--baseline NAME  the method that the others are compared with (default: the first one)
--no_texts  a page without texts of rows; by default they are read from the data files, if these are unchanged

examples:
  attentune report comparisons/first --output_file report.html
  attentune report comparisons/first --baseline bert-mean --output_file tables.tex --figures figures
  attentune report runs/bert-1 runs/bert-2 runs/sesame-1 runs/sesame-2 --output_file report.md

DIR is the folder of a comparison, which may still be in progress, or of a run. Several run folders are compared by
preset and seed. The page is a single file and needs no network."""

parser = parser_of("report", _HELP)


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    if parsed.output_file is None and parsed.figures is None:
        problems.append("--output_file: is missing; name the report: --output_file report.html")
    if parsed.output_file is not None and Path(parsed.output_file).is_dir():
        problems.append(f"--output_file: {parsed.output_file} is a folder, expected a file; choose another name.")
    if parsed.figures is not None and Path(parsed.figures).is_file():
        problems.append(f"--figures: {parsed.figures} is a file, expected a folder; choose another name.")
    check(problems)

    from attentune.report.charts import check_figure_file
    from attentune.report.contents import make_report
    from attentune.report.load import collect
    from attentune.report.writing import check_report_file, write_figures, write_report

    if parsed.output_file is not None:
        check_report_file(parsed.output_file)
    if parsed.figures is not None:
        check_figure_file(Path(parsed.figures) / "figure.png")
    data = collect(parsed.dirs)
    if not parsed.no_texts and str(parsed.output_file or "").lower().endswith(".html"):
        data = dataclasses.replace(data, texts=texts_of(data.runs))
    report = make_report(data, parsed.baseline)
    figures = {} if parsed.figures is None else write_figures(report, Path(parsed.figures))
    if figures:
        tell([f"{len(figures)} figures written to {parsed.figures}"])
    if parsed.output_file is not None:
        write_report(report, parsed.output_file, figures)
        tell([f"written to {parsed.output_file}"])
    return 0
