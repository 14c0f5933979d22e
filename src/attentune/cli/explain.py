"""`attentune explain`: attribute predictions to words."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attentune.cli.early_checks import add_best_flag, check_columns, check_named, use_best
from attentune.cli.flags import Parser, add_precision_flag, names_in, whole_number
from attentune.cli.output import add_text_flags, check_text_flags, read_texts, tell_cut_texts
from attentune.explain.explanation import check_method_names

_EXAMPLES = """examples:
  attentune explain runs/mine --text "The story was not dull at all."
  attentune explain runs/mine --text "What a mess." --method ssa,leave-one-out,integrated-gradients
  attentune explain runs/rte --text "A cat sat." --text_pair "An animal sat." --method gradient --target entailment
  attentune explain runs/rte --text "A cat sat." --text_pair "An animal sat." --method gradient --contrast entailment
  attentune explain runs/mine --input_file new.csv --method leave-one-out --output_file why.html
  attentune explain runs/mine --input_file new.csv --by_class    (the words that speak for each class over the file)
  attentune explain runs/mine --text "a whole lot foul, freaky and funny." --layer 6 --heads all --output_file heads.png

methods: fast-shap (after attentune explain RUN --fit), ssa (runs that score tokens), gradient, integrated-gradients,
leave-one-out, lime, shap, attention, attention-gradient, random. For baselines and ensembles leave-one-out, lime, shap
and random delete whole words, and for ensembles gradient and integrated-gradients are averaged over the models; other
methods need one model. Scores are signed (all but those of ssa, attention, attention-gradient, random): positive ones
support the class, negative ones contradict it.
Each line of JSON: {"text", "pair", "method", "label", "probability", "prediction", "signed", "passes", "seconds",
"level", "unit", "tokens": [{"text", "start", "end", "score"}]}; "unit" says what a score is; for pairs each token also
has "in": "text" or "pair"."""

_PAGES, _LINES, _TEXTS = (".html", ".htm"), (".jsonl", ".json"), (".txt",)


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune explain",
        usage="attentune explain RUN (--text TEXT | --input_file FILE | --task TASK) [flags]",
        description="Score how much each word of a text contributed to the prediction of a saved run.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    add_best_flag(made)
    made.add_argument(
        "--method",
        help="one or several methods, comma-separated (default: fast-shap after explain --fit, else leave-one-out)",
    )
    made.add_argument("--target", help="the class to explain (default: the predicted one)")
    made.add_argument(
        "--contrast", metavar="CLASS", help="explain why the class and not this one, by the difference of their logits"
    )
    made.add_argument(
        "--level", choices=("word", "token"), default="word", help="score words or tokens (default: word)"
    )
    made.add_argument("--seed", help="random seed of lime, shap and random (default: 0)")
    made.add_argument("--samples", help="copies per text for lime (default: 5000) and shap (default: 500)")
    made.add_argument("--steps", help="steps of integrated-gradients (default: 50)")
    made.add_argument(
        "--by_class",
        action="store_true",
        help="instead of texts, print the words that speak for each class over all rows, with intervals",
    )
    made.add_argument("--layer", help="show the attention heads of this layer: a number from 1, or last")
    made.add_argument("--heads", help="with --layer: comma-separated numbers from 1, or all (default: all)")
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    made.add_argument("--output_file", help="write the result to this file: .html .png .svg .pdf .jsonl .txt")
    add_precision_flag(made)
    add_text_flags(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Explain; return the exit status."""
    parsed, problems = parser().parse(arguments)
    numbers: dict[str, Any] = {
        "seed": whole_number("--seed", parsed.seed, problems, minimum=0),
        "samples": whole_number("--samples", parsed.samples, problems),
        "steps": whole_number("--steps", parsed.steps, problems),
    }
    if parsed.contrast is not None:
        numbers["contrast"] = parsed.contrast
    layer, heads = _layer(parsed, problems), _heads(parsed, problems)
    if parsed.by_class:
        _check_by_class(parsed, problems)
    use_best(parsed, names_rows=parsed.text is not None or parsed.input_file is not None)
    kind = _kind(parsed, problems)
    data = check_text_flags("explain", parsed, problems)
    check_named(parsed)
    check_columns(parsed.input_file, data)
    check_method_names(names_in(parsed.method))
    if kind == "figure":
        from attentune.report.charts import check_figure_file

        check_figure_file(parsed.output_file)

    from attentune.inference.predictor import Predictor

    saved = Predictor.load(parsed.run, data.task)
    rows = read_texts(parsed, data, saved)
    if parsed.layer is not None:
        return _show_heads(parsed, saved, rows, kind, layer, heads)
    return _show_scores(
        parsed, saved, rows, kind, {name: value for name, value in numbers.items() if value is not None}
    )


def _kind(parsed: Any, problems: list[str]) -> str:
    """Return the kind of output: "text", "json", or, by the name of the output file, "page" or "figure"."""
    from attentune.report.charts import FIGURE_KINDS

    if parsed.output_file is None:
        return parsed.format
    ending = Path(parsed.output_file).suffix.lower()
    kinds = dict.fromkeys(_PAGES, "page") | dict.fromkeys(FIGURE_KINDS, "figure") | dict.fromkeys(_LINES, "json")
    kind = (kinds | dict.fromkeys(_TEXTS, "text")).get(ending)
    if kind is None:
        endings = ", ".join((*_PAGES[:1], *FIGURE_KINDS, *_LINES[:1], *_TEXTS))
        problems.append(f"--output_file: got {parsed.output_file}, expected a name that ends in one of {endings}.")
    elif parsed.layer is not None and kind == "page":
        problems.append("--layer: attention heads can be written to .png, .svg, .pdf or .jsonl, not to .html.")
    return kind or "text"


def _layer(parsed: Any, problems: list[str]) -> int | None:
    """Return the number of the layer; None for the last one, or if none is given."""
    if parsed.layer is not None and parsed.contrast is not None:
        problems.append("--contrast: does not go with --layer; attention heads have no class.")
    if parsed.layer is None and parsed.heads is not None:
        problems.append("--heads: goes with --layer.")
    if parsed.layer in (None, "last"):
        return None
    return whole_number("--layer", parsed.layer, problems)


def _heads(parsed: Any, problems: list[str]) -> list[int] | None:
    if parsed.heads in (None, "all"):
        return None
    heads = [whole_number("--heads", part, problems) for part in parsed.heads.split(",")]
    return [head for head in heads if head is not None]


def _methods(parsed: Any, saved: Any) -> list[str]:
    from attentune.explain.explainer import default_method

    usual = "leave-one-out" if parsed.by_class else default_method(saved)
    wanted = usual if parsed.method is None else parsed.method
    return list(dict.fromkeys(names_in(wanted)))


def _show_scores(parsed: Any, saved: Any, rows: Any, kind: str, numbers: dict[str, Any]) -> int:
    from attentune.explain.explainer import free_methods
    from attentune.explain.scorer import Settings
    from attentune.explain.texts import explain_rows

    methods = _methods(parsed, saved)
    free = () if parsed.method or parsed.by_class or kind in ("json", "figure") else free_methods(saved)
    methods += [name for name in free if name not in methods]
    if parsed.by_class:
        from attentune.explain.by_class import check_signed

        check_signed(methods)
    explanations = explain_rows(
        saved,
        rows,
        methods=methods,
        target=parsed.target,
        level=parsed.level,
        settings=Settings(**numbers),
        precision=parsed.precision,
        progress=_progress(len(rows) * len(methods)),
    )
    tell_cut_texts(saved)
    if parsed.by_class:
        return _show_by_class(parsed, explanations[methods[0]], saved.label_space, kind)
    groups = [list(group) for group in zip(*explanations.values(), strict=True)]
    for name in free:
        _tell_agreement(name, methods[0], explanations)
    if kind == "page":
        from attentune.report.explanations import write_explanations

        write_explanations(parsed.output_file, groups, title=f"Explained with {Path(parsed.run).name}")
    elif kind == "figure":
        from attentune.report.tokens import draw_explanations

        draw_explanations(parsed.output_file, [explanation for group in groups for explanation in group])
    elif kind == "json":
        _put(parsed, _json_lines(explanation for group in groups for explanation in group))
    else:
        from attentune.cli.explain_tables import print_explanations, score_tables

        print_explanations(groups) if parsed.output_file is None else _put(parsed, score_tables(groups))
    return _done(parsed, len(rows))


def _tell_agreement(name: str, other: str, explanations: Any) -> None:
    """Say on standard error what a method is that is shown besides the default one."""
    from attentune.explain.texts import rank_correlation

    found = rank_correlation(explanations[name], explanations[other])
    agreement = "" if found is None else f" Its ranking of the words correlates with that of {other} by {found:.2f}."
    print(f"{name}: read from the pass that predicts, without extra cost, and approximate.{agreement}", file=sys.stderr)


def _check_by_class(parsed: Any, problems: list[str]) -> None:
    given = {"--text": parsed.text, "--layer": parsed.layer}
    problems += [f"{flag}: does not go with --by_class." for flag, value in given.items() if value is not None]
    if parsed.level != "word":
        problems.append("--level: got token, but --by_class ranks words; leave it out.")
    if parsed.output_file is not None and not parsed.output_file.lower().endswith((*_LINES, *_TEXTS)):
        problems.append(f"--output_file: got {parsed.output_file}, expected .jsonl or .txt with --by_class.")


def _show_by_class(parsed: Any, explanations: Sequence[Any], label_space: Any, kind: str) -> int:
    import json

    from attentune.cli.explain_tables import class_tables
    from attentune.explain.by_class import class_units, predictions_by_overlap, words_by_class

    by_class, units = words_by_class(explanations, label_space), class_units(explanations, label_space)
    overlap = predictions_by_overlap(explanations, label_space)
    if kind == "json":
        lines = [
            {"class": name, **word.to_dict(), "unit": units[name]} for name, words in by_class.items() for word in words
        ]
        lines += [group.to_dict() for group in overlap]
        _put(parsed, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    else:
        method = explanations[0].method if explanations else ""
        _put(parsed, class_tables(by_class, units, overlap, method, len(explanations)))
    return _done(parsed, len(explanations))


def _show_heads(parsed: Any, saved: Any, rows: Any, kind: str, layer: int | None, heads: list[int] | None) -> int:
    from attentune.explain.texts import head_attention

    tables = head_attention(saved, rows, layer=layer, heads=heads, level=parsed.level, precision=parsed.precision)
    if kind == "figure":
        from attentune.report.tokens import draw_heads

        draw_heads(parsed.output_file, tables)
    elif kind == "json":
        _put(parsed, _json_lines(tables))
    else:
        from attentune.cli.explain_tables import head_tables

        _put(parsed, head_tables(tables))
    return _done(parsed, len(rows))


def _json_lines(results: Any) -> str:
    import json

    from attentune.results import without_nan

    return "".join(json.dumps(without_nan(one.to_dict()), ensure_ascii=False) + "\n" for one in results)


def _put(parsed: Any, text: str) -> None:
    from attentune.io.files import write_text

    if parsed.output_file is None:
        sys.stdout.write(text)
    else:
        write_text(parsed.output_file, text)


def _done(parsed: Any, rows: int) -> int:
    if parsed.output_file is not None:
        print(f"{rows} text{'' if rows == 1 else 's'} written to {parsed.output_file}", file=sys.stderr)
    return 0


def _progress(total: int) -> Any:
    """Return a callback that prints progress lines to standard error, for 20 texts and more."""
    from attentune.cli.output import progress_lines

    report = progress_lines()
    return (lambda rows: report("explained", rows, total)) if total >= 20 else None
