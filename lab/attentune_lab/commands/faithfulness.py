"""`attentune faithfulness`: measure the faithfulness of explanations."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attentune.cli.flags import (
    PRECISION,
    ROW_SETTINGS,
    Parser,
    add_config_flags,
    config_from,
    names_in,
    number_from,
    overrides_of,
)
from attentune.cli.inputs import check_named
from attentune.cli.output import table
from attentune.explain.explanation import check_method_names

SUMMARY = "measure the faithfulness of explanations"
_EXAMPLES = """examples:
  attentune faithfulness runs/reviews --max_samples 200        (on the validation rows of its training)
  attentune faithfulness runs/sst2 --task sst2 --data_dir glue_data --method ssa,gradient,leave-one-out
  attentune faithfulness runs/planted --demo                   (do methods find the words known to decide?)
  attentune faithfulness runs/sst2 --sanity --output_dir why

comprehensiveness: the mean drop of the predicted class's probability when the 1, 5, 10, 20 and 50 % of the tokens with
the highest scores are erased; higher is better. sufficiency: the mean drop when all other tokens are erased; lower is
better. NAOPC: the same, normalised between the worst (0) and the best (1) possible order."""


def parser() -> Parser:
    made = Parser(
        prog="attentune faithfulness",
        usage="attentune faithfulness RUN [flags]",
        description="Measure the faithfulness of explanations: how predictions change when the words that they point at"
        " are erased.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    made.add_argument("--method", help="comma-separated, or all (default: all supported ones but lime, shap)")
    made.add_argument("--erasures", help="comma-separated: mask, delete, attention (default: all three)")
    made.add_argument("--max_samples", help="use a stratified sample of this many rows (default: all)")
    made.add_argument("--demo", action="store_true", help="use 200 synthetic reviews with known ground truth")
    made.add_argument("--split", help="split: validation, test or train; with --demo validation or challenge")
    made.add_argument("--draws", help="random orders averaged for the random baseline (default: 5)")
    made.add_argument("--beam", help="beam width of the search for NAOPC; 0: no NAOPC (default: 5)")
    made.add_argument("--beam_tokens", help="compute NAOPC for texts of at most this many tokens (default: 12)")
    made.add_argument("--seed", help="random seed of methods, ties, resamples and samples (default: 0)")
    made.add_argument("--samples", help="copies per text for lime (default: 5000) and shap (default: 500)")
    made.add_argument("--steps", help="steps of integrated-gradients (default: 50)")
    made.add_argument(
        "--sanity", action="store_true", help="sanity checks: are scores repeatable, and do they depend on the weights?"
    )
    made.add_lines(PRECISION)
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    made.add_argument("--output_dir", help="write report.json and rationale files for ERASER's scorer to this folder")
    add_config_flags(made, only=ROW_SETTINGS)
    return made


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    numbers = _numbers(parsed, problems)
    data_overrides = overrides_of(parsed, [])
    if parsed.demo and data_overrides:
        problems.append(f"--demo: uses synthetic reviews; leave out {', '.join(sorted(data_overrides))}.")
    config = config_from(parsed, problems)
    check_named(parsed)
    if parsed.method != "all":
        check_method_names(names_in(parsed.method))

    from attentune.inference.predictor import Predictor
    from attentune_lab.faithfulness.measure import measure_faithfulness, possible_methods

    saved = Predictor.load(parsed.run).single_model("faithfulness")
    rows, truths = _rows(parsed, saved, config.data if data_overrides else None, numbers)
    measures = _measures(parsed, numbers)
    options = {"precision": parsed.precision, "progress": lambda what: print(f"{what} ...", file=sys.stderr)}
    methods: tuple[str, ...] | None = None
    if parsed.method is not None:
        named = tuple(dict.fromkeys(names_in(parsed.method)))
        methods = possible_methods(saved, expensive=True) if named == ("all",) else named
    result = measure_faithfulness(saved, rows, methods=methods, measures=measures, **options)
    options |= {"methods": tuple(result.ranked), "settings": measures.settings}
    more: dict[str, Any] = {}
    if truths is not None:
        from attentune_lab.faithfulness.synthetic import score_synthetic

        truths = [truths[row] for row in result.kept]
        more["synthetic"] = score_synthetic(result, truths, result.report.seed)
    if parsed.sanity:
        from attentune_lab.faithfulness.sanity import check_sanity

        more["sanity"] = check_sanity(saved, result.rows, **options)
    _show(parsed, result, truths, more)
    return 0


def _numbers(parsed: Any, problems: list[str]) -> dict[str, int]:
    least = {"seed": 0, "beam": 0}
    names = ("max_samples", "draws", "beam", "beam_tokens", "seed", "samples", "steps")
    numbers = {
        name: number_from(f"--{name}", getattr(parsed, name), problems, minimum=least.get(name, 1)) for name in names
    }
    return {name: value for name, value in numbers.items() if value is not None}


def _measures(parsed: Any, numbers: dict[str, int]) -> Any:
    from attentune.explain.scorer import Settings
    from attentune_lab.faithfulness.measure import Measures

    def given(*names: str) -> dict[str, Any]:
        return {name: numbers[name] for name in names if name in numbers}

    changed = given("draws", "beam", "beam_tokens")
    if parsed.erasures is not None:
        changed["erasures"] = tuple(dict.fromkeys(names_in(parsed.erasures)))
    return Measures(settings=Settings(**given("seed", "samples", "steps")), **changed)


def _rows(parsed: Any, saved: Any, data: Any, numbers: dict[str, int]) -> tuple[Any, Any]:
    """Return the rows, and for synthetic rows their ground truth."""
    if parsed.demo:
        from attentune_lab.faithfulness.synthetic import synthetic_rows

        return synthetic_rows(saved, numbers.get("max_samples", 200), parsed.split or "challenge")

    from attentune.data.splits import stratified_sample

    rows = next(iter(saved.data(data, (parsed.split or "validation",)).splits.values()))
    size, seed = numbers.get("max_samples"), numbers.get("seed", 0)
    if size is None or size >= len(rows):
        return rows, None
    return rows.take(stratified_sample(rows.labels, size, seed, "faithfulness", num_rows=len(rows))), None


def _show(parsed: Any, result: Any, truths: Any, more: dict[str, Any]) -> None:
    from attentune.results import to_json, versions

    report = dataclasses.asdict(result.report)
    for name, part in more.items():
        plain = [dataclasses.asdict(line) for line in part] if isinstance(part, list) else dataclasses.asdict(part)
        # In reports the synthetic ground truth is called "planted", an earlier name.
        report["planted" if name == "synthetic" else name] = plain
    if parsed.output_dir is not None:
        from attentune.io.files import write_text
        from attentune_lab.faithfulness.eraser_records import write_records
        from attentune_lab.faithfulness.synthetic import evidence_of

        evidence = None if truths is None else evidence_of(result, truths)
        write_records(Path(parsed.output_dir) / "eraser", result, evidence)
        write_text(Path(parsed.output_dir) / "report.json", to_json(report | {"versions": versions()}))
        print(f"report and records written to {parsed.output_dir}", file=sys.stderr)
    if parsed.format == "json":
        print(to_json(report), end="")
    else:
        print("\n\n".join(_tables(result.report, **more)))


def _tables(report: Any, *, synthetic: Any = None, sanity: Any = None) -> list[str]:
    """Format the whole report; methods with signed and unsigned scores are listed separately, best first."""
    from attentune_lab.faithfulness.measure import RANDOM_BASELINE

    texts = f"{report.rows} texts"
    if report.left_out:
        texts += f" ({report.left_out} without words left out)"
    if report.accuracy is not None:
        texts += f", accuracy {report.accuracy:.3f}"
    parts = [
        f"{texts}; 95 % bootstrap intervals over the texts.\n"
        "comprehensiveness: higher is better; sufficiency: lower is better; NAOPC: 0 worst order, 1 best.\n"
        f"difference: comprehensiveness minus that of {report.scores[0].method}, paired by text. {RANDOM_BASELINE}:"
        f" the baseline, {report.draws} random orders."
    ]
    for erasure in dict.fromkeys(score.erasure for score in report.scores):
        scores = _scores([score for score in report.scores if score.erasure == erasure], RANDOM_BASELINE)
        parts.append(f"erased by {erasure}\n\n{scores}")
    lines = [(cost["method"], f"{cost['passes']:,.1f}", f"{cost['seconds']:.3g}") for cost in report.costs]
    parts.append(table(("method", "passes per text", "seconds per text"), lines, right=(1, 2)))
    if synthetic:
        parts.append(_synthetic(synthetic))
    if sanity is not None:
        parts += [_repeats(sanity), _shuffles(sanity)]
    return parts


def _scores(scores: list[Any], baseline: str) -> str:
    rows = next((score.naopc_rows for score in scores if score.naopc_rows), 0)
    columns = {
        "comprehensiveness": "comprehensiveness",
        "difference": "difference",
        "sufficiency": "sufficiency",
        **({f"NAOPC compr. ({rows} short texts)": "naopc_comprehensiveness", "NAOPC suff.": "naopc_sufficiency"}
           if rows else {}),
    }  # fmt: skip
    lines: list[list[str]] = []
    for title in ("signed", "unsigned", "baseline"):
        group = [
            score
            for score in scores
            if title == ("baseline" if score.method == baseline else "signed" if score.signed else "unsigned")
        ]
        if group:
            lines.append([f"({title})", *("" for _ in columns)])
        for score in sorted(group, key=lambda score: -score.comprehensiveness.value):
            lines.append([score.method, *(_interval(getattr(score, name)) for name in columns.values())])
    return table(("method", *columns), lines)


def _interval(interval: Any) -> str:
    """Format a value with its interval; an empty string for None."""
    if interval is None:
        return ""
    if interval.value != interval.value:
        return "undefined"
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _synthetic(synthetic: list[Any]) -> str:
    header = ("kind", "method", "top-1 hit", "precision at k", "mean rank", "best possible", "shortcut top-1")
    kinds = list(dict.fromkeys(score.kind for score in synthetic))
    lines = [
        (
            f"{score.kind} ({score.rows})",
            f"{score.method}{' (signed)' if score.signed else ''}",
            *map(_interval, (score.first, score.precision, score.mean_rank)),
            f"{score.best_rank:.2f}",
            f"{score.shortcut_first:.3f}",
        )
        for score in sorted(synthetic, key=lambda one: (kinds.index(one.kind), not one.signed, -one.first.value))
    ]
    return "ground-truth words, in correctly predicted texts\n\n" + table(header, lines, right=(5, 6))


def _repeats(sanity: Any) -> str:
    header = ("method", "repeated", "single vs. batch", "fp32 vs. bf16")
    lines = [
        (one.method, _interval(one.again), _interval(one.alone), _interval(one.precision) or "no bf16")
        for one in sanity.repeats
    ]
    return f"repeatability (Kendall's tau), {sanity.rows} texts\n\n" + table(header, lines)


def _shuffles(sanity: Any) -> str:
    by_part: dict[str, dict[str, str]] = {}
    for one in sanity.shuffles:
        by_part.setdefault(one.part, {})[one.method] = f"{one.tau.value:.2f} ({one.rho.value:.2f})"
    title = (
        "dependence on the weights: Kendall's tau (Spearman's rho) with the scores of a model whose weights are\n"
        "shuffled from the head down to this layer; expected near 0, near 1 means that the weights do not matter\n\n"
    )
    methods = next(iter(by_part.values()))
    return title + table(("shuffled to", *methods), [(part, *cells.values()) for part, cells in by_part.items()])
