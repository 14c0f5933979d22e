"""What is known of explanations' truth, as tables: methods with a sign and without one apart, the best first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attentune.cli.output import table
from attentune.explain.faithfulness.ordering import RANDOM_BASELINE
from attentune.explain.faithfulness.results import FaithfulnessReport, MethodScore
from attentune.stats.bootstrap import Interval


def report_tables(
    report: FaithfulnessReport,
    *,
    planted: Sequence[Any] | None = None,
    sanity: Any = None,
    cost: Sequence[Any] | None = None,
) -> str:
    """The whole report."""
    parts = [_head(report)]
    for erasure in dict.fromkeys(score.erasure for score in report.scores):
        parts.append(f"erased by {erasure}\n\n" + _scores([own for own in report.scores if own.erasure == erasure]))
    parts.append(_costs(report))
    if planted:
        parts.append(_planted(planted))
    if sanity is not None:
        parts += [_repeats(sanity), _shuffles(sanity)]
    if cost:
        parts.append(_timed(cost))
    return "\n\n".join(parts) + "\n"


def _head(report: FaithfulnessReport) -> str:
    told = f"{report.rows} texts"
    if report.left_out:
        told += f" ({report.left_out} without a word were left out)"
    if report.accuracy is not None:
        told += f", accuracy {report.accuracy:.3f}"
    first = report.scores[0].method
    return (
        f"{told}; 95 % intervals over resamples of the texts.\n"
        "comprehensiveness: high is good; sufficiency: low is good; NAOPC: 0 the worst order, 1 the best.\n"
        f"difference: comprehensiveness minus that of {first}, text by text. {RANDOM_BASELINE}: the floor,"
        f" {report.draws} draws."
    )


def _scores(scores: Sequence[MethodScore]) -> str:
    limits = next((own.naopc_rows for own in scores if own.naopc_rows), 0)
    header = ["method", "comprehensiveness", "difference", "sufficiency"]
    header += [f"NAOPC compr. ({limits} short texts)", "NAOPC suff."] if limits else []
    lines: list[list[str]] = []
    for title, signed in (("with a sign", True), ("without a sign", False)):
        own = [score for score in scores if score.signed == signed and score.method != RANDOM_BASELINE]
        if own:
            lines.append([f"({title})", *("" for _ in header[1:])])
        lines += [_line(score, bool(limits)) for score in _best_first(own)]
    lines += [["(floor)", *("" for _ in header[1:])]]
    lines += [_line(score, bool(limits)) for score in scores if score.method == RANDOM_BASELINE]
    return table(header, lines)


def _best_first(scores: Sequence[MethodScore]) -> list[MethodScore]:
    return sorted(scores, key=lambda own: -own.comprehensiveness.value)


def _line(score: MethodScore, with_limits: bool) -> list[str]:
    columns = [score.method, shown(score.comprehensiveness), shown(score.difference), shown(score.sufficiency)]
    return columns + ([shown(score.naopc_comprehensiveness), shown(score.naopc_sufficiency)] if with_limits else [])


def shown(interval: Interval | None) -> str:
    """A number with its interval; nothing where there is none."""
    if interval is None:
        return ""
    if interval.value != interval.value:
        return "undefined"
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _costs(report: FaithfulnessReport) -> str:
    lines = [(own.method, f"{own.passes:,.1f}", f"{own.seconds:.3g}") for own in report.costs]
    return table(("method", "passes a text", "seconds a text"), lines, right=(1, 2))


def _planted(planted: Sequence[Any]) -> str:
    header = ("kind", "method", "found first", "precision at k", "mean rank", "at best", "shortcut first")
    lines = []
    for kind in dict.fromkeys(own.kind for own in planted):
        own = sorted((score for score in planted if score.kind == kind), key=lambda score: -score.first.value)
        for signed in (True, False):
            lines += [
                (
                    f"{kind} ({score.rows})",
                    f"{score.method}{' (signed)' if signed else ''}",
                    shown(score.first),
                    shown(score.precision),
                    shown(score.mean_rank),
                    f"{score.best_rank:.2f}",
                    f"{score.shortcut_first:.3f}",
                )
                for score in own
                if score.signed == signed
            ]
    return "words known to decide, in the texts that the run gets right\n\n" + table(header, lines, right=(5, 6))


def _repeats(sanity: Any) -> str:
    header = ("method", "asked again", "alone and in a batch", "fp32 and bf16")
    lines = [
        (
            own.method,
            shown(own.again),
            shown(own.alone),
            "no bf16 here" if own.precision is None else shown(own.precision),
        )
        for own in sanity.repeats
    ]
    return f"do scores repeat? Kendall's tau, {sanity.rows} texts\n\n" + table(header, lines)


def _shuffles(sanity: Any) -> str:
    parts = list(dict.fromkeys(own.part for own in sanity.shuffles))
    methods = list(dict.fromkeys(own.method for own in sanity.shuffles))
    taus = {(own.method, own.part): own for own in sanity.shuffles}
    lines = []
    for part in parts:
        cells = [taus[method, part] for method in methods]
        lines.append((part, *(f"{cell.tau.value:.2f} ({cell.rho.value:.2f})" for cell in cells)))
    title = (
        "do they depend on the model? Kendall's tau (Spearman's rho) with the scores of a model whose weights are\n"
        "shuffled from the head down to here; near 0 is right, near 1 says that the model does not matter\n\n"
    )
    return title + table(("shuffled down to", *methods), lines)


def _timed(cost: Sequence[Any]) -> str:
    header = ("texts x tokens", "method", "calls forward", "back", "passes", "median s", "p95 s", "times predict")
    lines = [
        (f"{own.texts} x {own.tokens}", own.method, *("",) * 3, "too long", "", "")
        if own.median_s is None
        else (
            f"{own.texts} x {own.tokens}",
            own.method,
            f"{own.forward_calls:,}",
            f"{own.backward_calls:,}",
            f"{own.passes:,}",
            f"{own.median_s:.4g}",
            f"{own.p95_s:.4g}",
            f"{own.times_plain:.4g}",
        )
        for own in cost
    ]
    return "what scores cost, beside predicting alone\n\n" + table(header, lines, right=range(2, 8))
