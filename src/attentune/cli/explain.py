"""`attentune explain`: attribute predictions to words; with `--fit`, fit a head that does so in the predicting pass."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attentune.cli.flags import FORMAT, PRECISION, TEXT_SETTINGS, TEXTS, Parser, command_parser, config_from, has_flag
from attentune.cli.inputs import (
    check_columns,
    check_named,
    check_text_flags,
    output_ending,
    read_file_rows,
    tell,
    text_chunks,
)
from attentune.cli.output import progress_lines, table
from attentune.data.tables import visible
from attentune.explain.explanation import check_method_names, ignored_text
from attentune.report.document import score_text

if TYPE_CHECKING:
    from attentune.explain.by_class import ClassWord
    from attentune.explain.explanation import Explanation

_HELP = f"""
attentune explain RUN (--text TEXT | --input_file FILE | --task TASK) [flags]

Score how much each word of a text contributed to the prediction of a saved run.

RUN  a run folder or checkpoint
--fit  fit a head that explains each prediction in the same pass instead; see explain --fit --help
--method A,B  one or several methods (default: fast-shap if explain --fit has fitted enough, else leave-one-out)
--target CLASS  the class to explain (default: the predicted one)
--contrast CLASS  explain why the class and not this one, by the difference of their logits
--level word|token  score words or tokens (default: word)
--seed N>=0  random seed of lime, shap and random (default: 0)
--samples N  copies per text for lime (5000 if not given) and shap (500)
--steps N  steps of integrated-gradients (default: 50)
--by_class  instead of texts, print the words that speak for each class over all rows, with intervals
--format text|json  output format (text if not given)
--output_file FILE  write the result to this file: .html .jsonl .txt
{PRECISION}
{TEXTS}

examples:
  attentune explain runs/mine --text "The story was not dull at all."
  attentune explain runs/mine --text "What a mess." --method ssa,leave-one-out,integrated-gradients
  attentune explain runs/rte --text "A cat sat." --text_pair "An animal sat." --method gradient --target entailment
  attentune explain runs/mine --input_file new.csv --method leave-one-out --output_file why.html
  attentune explain runs/mine --input_file new.csv --by_class    (the words that speak for each class over the file)

methods: fast-shap (after attentune explain RUN --fit), ssa (runs that score tokens), gradient, integrated-gradients,
leave-one-out, lime, shap, attention, attention-gradient, random. For baselines and ensembles leave-one-out, lime, shap
and random delete whole words; the other methods need one model. Scores are signed (all but those of ssa, attention,
attention-gradient, random): positive ones support the class, negative ones contradict it.
Each line of JSON: {{"text", "pair", "method", "label", "probability", "prediction", "signed", "passes", "seconds",
"level", "unit", "tokens": [{{"text", "start", "end", "score"}}]}}; "unit" says what a score is; of pairs each token has
"in" too: "text" or "pair"; words that were left out have "without", the probability (or score) predicted then."""

_FIT_HELP = f"""
attentune explain RUN --fit [flags]

Fit a head to a saved run that explains each prediction in the pass that makes it.

RUN  a run folder
--fit  fit the head
--input_file FILE  a file of texts without labels (default: the run's training rows)
--max_samples N  the most texts, drawn at random (default: 2000)
--copies N  masked copies of each text, an even number (default: 8)
--seed N>=0  random seed of the copies (default: 0)
{PRECISION}
{FORMAT}

examples:
  attentune explain runs/mine --fit
  attentune explain runs/mine --fit --input_file unlabelled.csv --max_samples 5000
  attentune explain runs/mine --text "The story was not dull at all."       (now by fast-shap)
  attentune predict runs/mine --input_file new.csv --explain --output_file labelled.csv

The model predicts masked copies of texts, and a small head learns from its hidden states what each token contributes
(FastSHAP, Jethani et al. 2022). It is saved in the run's folder; the model is not changed. Labels are not used. A head
that explains less than half of the variance on held-out texts is kept, but used with --method fast-shap only."""
_FIT_SETTINGS = ("data.text_column", "data.text_pair_column", "data.id_column", "data.delimiter", "data.encoding")


def parser(arguments: Sequence[str] = ()) -> Parser:
    if has_flag(arguments, "fit"):
        return command_parser("explain --fit", _FIT_HELP, _FIT_SETTINGS)
    return command_parser("explain", _HELP, TEXT_SETTINGS)


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser(arguments).parse(arguments)
    if parsed.fit:
        return _fit(parsed, problems)
    if parsed.by_class and parsed.text:
        problems.append("--text: does not go with --by_class.")
    if parsed.by_class and parsed.level != "word":
        problems.append("--level: got token, but --by_class ranks words; leave it out.")
    kind = output_ending(parsed, (".jsonl", ".txt") if parsed.by_class else (".html", ".jsonl", ".txt"), problems)
    if parsed.format == "json":
        kind = ".jsonl"
    data = check_text_flags(parsed, problems)
    check_named(parsed)
    check_columns(parsed.input_file, data)
    check_method_names(parsed.method or ())

    from attentune.data.tables import WHOLE
    from attentune.inference.predictor import Predictor

    saved = Predictor.load(parsed.run)
    chunks = text_chunks(parsed, data, saved, WHOLE)
    tell(chunks.notes)
    (rows,) = chunks.read()
    _show_scores(parsed, saved, rows, kind)
    if parsed.output_file is not None:
        tell([f"{len(rows)} text{'' if len(rows) == 1 else 's'} written to {parsed.output_file}"])
    return 0


def _show_scores(parsed: Any, saved: Any, rows: Any, kind: str) -> None:
    """Score the words by one or several methods, and show the scores; `kind` is the ending of the output."""
    from attentune.explain.by_class import check_signed
    from attentune.explain.explainer import default_method, weak_head_note
    from attentune.explain.scorer import Settings
    from attentune.explain.texts import explain_rows

    usual = "leave-one-out" if parsed.by_class else default_method(saved)
    if parsed.method is None and not parsed.by_class and (note := weak_head_note(saved)):
        tell([note])
    methods = list(dict.fromkeys([usual] if parsed.method is None else parsed.method))
    if parsed.by_class:
        check_signed(methods)
    report, total = progress_lines(), len(rows) * len(methods)
    explanations = explain_rows(
        saved,
        rows,
        methods=methods,
        target=parsed.target,
        level=parsed.level,
        settings=Settings(parsed.seed, parsed.steps, parsed.samples, parsed.contrast),
        precision=parsed.precision,
        progress=(lambda rows: report("explained", rows, total)) if total >= 20 else None,
    )
    tell(saved.read.notes())
    if parsed.by_class:
        _show_by_class(parsed, explanations[methods[0]], saved.label_space, kind)
        return
    groups = [list(group) for group in zip(*explanations.values(), strict=True)]
    if kind == ".html":
        from attentune.report.explanations import render_explanations

        _put(parsed, render_explanations(groups, title=f"Explained with {Path(parsed.run).name}"))
    elif kind == ".jsonl":
        _put(parsed, _json_lines(explanation.to_dict() for group in groups for explanation in group))
    elif parsed.output_file is None:
        print_explanations(groups)
    else:
        _put(parsed, _score_tables(groups))


def _show_by_class(parsed: Any, explanations: Sequence[Any], label_space: Any, kind: str) -> None:
    from attentune.explain.by_class import class_units, words_by_class

    by_class, units = words_by_class(explanations, label_space), class_units(explanations, label_space)
    if kind == ".jsonl":
        words = ((name, asdict(word)) for name, words in by_class.items() for word in words)
        _put(parsed, _json_lines({"class": name, **word, "unit": units[name]} for name, word in words))
    else:
        method = explanations[0].method if explanations else ""
        _put(parsed, class_tables(by_class, units, method, len(explanations)))


def _json_lines(results: Iterable[dict[str, Any]]) -> str:
    from attentune.results import without_nan

    return "".join(json.dumps(without_nan(one), ensure_ascii=False) + "\n" for one in results)


def _put(parsed: Any, text: str) -> None:
    from attentune.io.files import write_text

    if parsed.output_file is None:
        sys.stdout.write(text)
    else:
        write_text(parsed.output_file, text)


def print_explanations(groups: Sequence[Sequence[Explanation]]) -> None:
    """Print the explanations of each text: coloured on a terminal, else as tables with one line per word."""
    if not sys.stdout.isatty():
        sys.stdout.write(_score_tables(groups))
        return
    from rich.console import Console

    from attentune.report.explanations import LEGEND, terminal_text

    console = Console(highlight=False, soft_wrap=True)
    for group in groups:
        for explanation in group:
            console.print(terminal_text(explanation))
    console.print(LEGEND, style="dim")


def _score_tables(groups: Sequence[Sequence[Explanation]]) -> str:
    """Format one table per text, with one column per method, and below the words a line each for passes and seconds."""
    from attentune.report.explanations import effect_text, outcome_name, outcome_text, prediction_text

    tables = []
    for group in groups:
        columns: dict[str, list[str]] = {}
        for one in group:
            scores = (score_text(token.score, signed=one.signed) for token in one.tokens)
            columns[one.method] = [*scores, "", f"{one.passes:,}", f"{one.seconds:.3g}"]
            if one.method == "leave-one-out" and one.level == "word":
                without = (outcome_text(value, one) for value in one.without or ())
                columns[outcome_name(one)] = [*without, "", "", ""]
        below = [f"{one.method}: {visible(one.unit, one_line=True)}" for one in group]
        below += [f"{one.method}: {effect}" for one in group if (effect := effect_text(one))]
        below += [f"{group[0].unread_words:,} more words were not read."] if group[0].unread_words else []
        below += [visible(ignored_text(group[0].ignored), one_line=True)] if group[0].ignored else []
        one = group[0]
        names = [*(token.text for token in one.tokens), "", "passes", "seconds"]
        rows = list(zip(names, *columns.values(), strict=True))
        lines = table((one.level, *columns), rows, right=range(1, len(columns) + 1))
        second = "" if one.pair is None else f"pair: {visible(one.pair, one_line=True)}\n"
        title = f"text: {visible(one.text, one_line=True)}\n{second}prediction: {prediction_text(one)}"
        tables.append("\n".join([f"{title}\n\n{lines}", *below]))
    return "\n\n".join([*tables, ""]) if tables else ""


def class_tables(by_class: Mapping[str, Sequence[ClassWord]], units: Mapping[str, str], method: str, rows: int) -> str:
    tables = []
    for name, words in by_class.items():
        title = f"words for {visible(name, one_line=True)}"
        if not words:
            tables.append(f"{title}: none in three rows and more whose interval is above 0")
            continue
        entries = [
            (
                one.word + (" (second text)" if one.within == "pair" else ""),
                f"{one.rows:,}",
                score_text(one.score, signed=True),
                f"{score_text(one.low, signed=True)} to {score_text(one.high, signed=True)}",
            )
            for one in words
        ]
        shown = table(("word", "rows", "mean score", "95 % interval"), entries, right=(1, 2))
        tables.append(f"{title}\n\n{shown}\nscore: {visible(units[name], one_line=True)}")
    note = f"{method}, {rows:,} rows; bootstrap intervals over rows; ranked by lower bound times rows."
    return "\n\n".join([*tables, note, ""])


def _fit(parsed: Any, problems: list[str]) -> int:
    data = config_from(parsed, problems).data
    check_named(parsed)

    from attentune.explain.texts import fit_explainer
    from attentune.inference.predictor import Predictor
    from attentune.results import to_json

    saved = Predictor.load(parsed.run)
    facts = fit_explainer(
        saved,
        None if parsed.input_file is None else read_file_rows(parsed.input_file, data, saved),
        precision=parsed.precision,
        progress=progress_lines(),
        max_samples=parsed.max_samples,
        copies=parsed.copies,
        seed=parsed.seed,
    )
    is_json = parsed.format == "json"
    content = {"run": parsed.run, **asdict(facts), "is_default": facts.is_used}
    print(to_json(content) if is_json else f"{facts.note(parsed.run)}\n", end="")
    return 0
