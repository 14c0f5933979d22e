"""`attentune faithfulness`: measure the faithfulness of explanations."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attentune.cli.early_checks import check_named
from attentune.cli.flags import (
    ROW_SETTINGS,
    Parser,
    add_config_flags,
    add_precision_flag,
    config_from,
    names_in,
    overrides_of,
    whole_number,
)
from attentune.explain.explanation import check_method_names

SUMMARY = "measure the faithfulness of explanations"
_EXAMPLES = """examples:
  attentune faithfulness runs/reviews --max_samples 200        (on the validation rows of its training)
  attentune faithfulness runs/sst2 --task sst2 --data_dir glue_data --methods ssa,gradient,leave-one-out
  attentune faithfulness runs/planted --demo                   (do methods find the words known to decide?)
  attentune faithfulness runs/sst2 --sanity --cost --output_dir why

comprehensiveness: the mean drop of the predicted class's probability when the 1, 5, 10, 20 and 50 % of the tokens with
the highest scores are erased; higher is better. sufficiency: the mean drop when all other tokens are erased; lower is
better. NAOPC: the same, normalised between the worst (0) and the best (1) possible order."""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune faithfulness",
        usage="attentune faithfulness RUN [flags]",
        description="Measure the faithfulness of explanations: how predictions change when the words that they point at"
        " are erased.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    made.add_argument("--methods", help="comma-separated, or all (default: all supported ones but lime, shap)")
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
    made.add_argument("--cost", action="store_true", help="measure passes and seconds by text length and batch size")
    add_precision_flag(made)
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    made.add_argument("--output_dir", help="write report.json and rationale files for ERASER's scorer to this folder")
    add_config_flags(made, only=ROW_SETTINGS)
    return made


def run(arguments: Sequence[str]) -> int:
    """Measure; return the exit status."""
    parsed, problems = parser().parse(arguments)
    numbers = _numbers(parsed, problems)
    data_overrides = overrides_of(parsed, [])
    if parsed.demo and data_overrides:
        problems.append(f"--demo: uses synthetic reviews; leave out {', '.join(sorted(data_overrides))}.")
    config = config_from(parsed, problems)
    check_named(parsed)
    if parsed.methods != "all":
        check_method_names(names_in(parsed.methods))

    from attentune.explain.faithfulness import measure_faithfulness
    from attentune.inference.predictor import Predictor

    saved = Predictor.load(parsed.run, config.data.task).single_model("faithfulness")
    rows, truths = _rows(parsed, saved, config.data if data_overrides else None, numbers)
    result = measure_faithfulness(
        saved,
        rows,
        methods=_all_methods(saved) if parsed.methods == "all" else _listed(parsed.methods),
        measures=_measures(parsed, numbers),
        precision=parsed.precision,
        progress=_log,
    )
    synthetic = None
    if truths is not None:
        from attentune_lab.faithfulness.synthetic import score_synthetic

        truths = [truths[row] for row in result.kept]
        synthetic = score_synthetic(result, truths, result.report.seed)
    _show(parsed, result, truths, {"synthetic": synthetic, **_more(parsed, saved, result, numbers)})
    return 0


def _numbers(parsed: Any, problems: list[str]) -> dict[str, int]:
    """Return the integer flags that were given, by name."""
    least = {"seed": 0, "beam": 0}
    names = ("max_samples", "draws", "beam", "beam_tokens", "seed", "samples", "steps")
    numbers = {
        name: whole_number(f"--{name}", getattr(parsed, name), problems, minimum=least.get(name, 1)) for name in names
    }
    return {name: value for name, value in numbers.items() if value is not None}


def _all_methods(saved: Any) -> tuple[str, ...]:
    """Return the names of all methods that work on a run."""
    from attentune.explain.methods import METHODS, works_on

    has_head = saved.attribution_head is not None
    return tuple(name for name, method in METHODS.items() if works_on(method, saved.model, has_head=has_head))


def _listed(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(dict.fromkeys(names_in(text)))


def _measures(parsed: Any, numbers: dict[str, int]) -> Any:
    from attentune.explain.faithfulness import Measures
    from attentune.explain.scorer import Settings

    given: dict[str, Any] = {name: numbers[name] for name in ("seed", "samples", "steps") if name in numbers}
    settings = Settings(**given)
    changed: dict[str, Any] = {name: numbers[name] for name in ("draws", "beam", "beam_tokens") if name in numbers}
    erasures = _listed(parsed.erasures)
    if erasures is not None:
        changed["erasures"] = erasures
    return Measures(settings=settings, **changed)


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


def _more(parsed: Any, saved: Any, result: Any, numbers: dict[str, int]) -> dict[str, Any]:
    """Return the results of `--sanity` and `--cost`."""
    options: dict[str, Any] = {
        "methods": tuple(result.ranked),
        "settings": _measures(parsed, numbers).settings,
        "precision": parsed.precision,
        "progress": _log,
    }
    more: dict[str, Any] = {}
    if parsed.sanity:
        from attentune_lab.faithfulness.sanity import check_sanity

        more["sanity"] = check_sanity(saved, result.rows, **options)
    if parsed.cost:
        from attentune_lab.faithfulness.cost import measure_cost

        more["cost"] = measure_cost(saved, result.rows, **options)
    return more


def _show(parsed: Any, result: Any, truths: Any, more: dict[str, Any]) -> None:
    from attentune.results import to_json, versions

    more = {name: part for name, part in more.items() if part is not None}
    report = dataclasses.asdict(result.report)
    # In reports the synthetic ground truth is called "planted", an earlier name.
    report |= {"planted" if name == "synthetic" else name: _plain(part) for name, part in more.items()}
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
        from attentune_lab.commands.faithfulness_tables import report_tables

        print(report_tables(result.report, **more), end="")


def _plain(part: Any) -> Any:
    if isinstance(part, list):
        return [dataclasses.asdict(line) for line in part]
    return dataclasses.asdict(part)


def _log(what: str) -> None:
    print(f"{what} ...", file=sys.stderr)
