"""Tables of a faithfulness report; methods with signed and unsigned scores are listed separately, best first."""

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
    """Format the whole report."""
    parts = [_head(report)]
    for erasure in dict.fromkeys(score.erasure for score in report.scores):
        parts.append(f"erased by {erasure}\n\n" + _scores([own for own in report.scores if own.erasure == erasure]))
    parts.append(_costs(report))
    if planted:
        parts.append(_synthetic(planted))
    if sanity is not None:
        parts += [_repeats(sanity), _shuffles(sanity)]
    if cost:
        parts.append(_timed(cost))
    return "\n\n".join(parts) + "\n"


def _head(report: FaithfulnessReport) -> str:
    texts = f"{report.rows} texts"
    if report.left_out:
        texts += f" ({report.left_out} without words left out)"
    if report.accuracy is not None:
        texts += f", accuracy {report.accuracy:.3f}"
    first = report.scores[0].method
    return (
        f"{texts}; 95 % bootstrap intervals over the texts.\n"
        "comprehensiveness: higher is better; sufficiency: lower is better; NAOPC: 0 worst order, 1 best.\n"
        f"difference: comprehensiveness minus that of {first}, paired by text. {RANDOM_BASELINE}: the baseline,"
        f" {report.draws} random orders."
    )


def _scores(scores: Sequence[MethodScore]) -> str:
    limits = next((own.naopc_rows for own in scores if own.naopc_rows), 0)
    header = ["method", "comprehensiveness", "difference", "sufficiency"]
    header += [f"NAOPC compr. ({limits} short texts)", "NAOPC suff."] if limits else []
    lines: list[list[str]] = []
    for title, signed in (("signed", True), ("unsigned", False)):
        own = [score for score in scores if score.signed == signed and score.method != RANDOM_BASELINE]
        if own:
            lines.append([f"({title})", *("" for _ in header[1:])])
        lines += [_line(score, bool(limits)) for score in _best_first(own)]
    lines += [["(baseline)", *("" for _ in header[1:])]]
    lines += [_line(score, bool(limits)) for score in scores if score.method == RANDOM_BASELINE]
    return table(header, lines)


def _best_first(scores: Sequence[MethodScore]) -> list[MethodScore]:
    return sorted(scores, key=lambda own: -own.comprehensiveness.value)


def _line(score: MethodScore, with_limits: bool) -> list[str]:
    columns = [
        score.method,
        format_interval(score.comprehensiveness),
        format_interval(score.difference),
        format_interval(score.sufficiency),
    ]
    return columns + (
        [format_interval(score.naopc_comprehensiveness), format_interval(score.naopc_sufficiency)]
        if with_limits
        else []
    )


def format_interval(interval: Interval | None) -> str:
    """Format a value with its interval; an empty string for None."""
    if interval is None:
        return ""
    if interval.value != interval.value:
        return "undefined"
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _costs(report: FaithfulnessReport) -> str:
    lines = [(own.method, f"{own.passes:,.1f}", f"{own.seconds:.3g}") for own in report.costs]
    return table(("method", "passes per text", "seconds per text"), lines, right=(1, 2))


def _synthetic(planted: Sequence[Any]) -> str:
    header = ("kind", "method", "top-1 hit", "precision at k", "mean rank", "best possible", "shortcut top-1")
    lines = []
    for kind in dict.fromkeys(own.kind for own in planted):
        own = sorted((score for score in planted if score.kind == kind), key=lambda score: -score.first.value)
        for signed in (True, False):
            lines += [
                (
                    f"{kind} ({score.rows})",
                    f"{score.method}{' (signed)' if signed else ''}",
                    format_interval(score.first),
                    format_interval(score.precision),
                    format_interval(score.mean_rank),
                    f"{score.best_rank:.2f}",
                    f"{score.shortcut_first:.3f}",
                )
                for score in own
                if score.signed == signed
            ]
    return "ground-truth words, in correctly predicted texts\n\n" + table(header, lines, right=(5, 6))


def _repeats(sanity: Any) -> str:
    header = ("method", "repeated", "single vs. batch", "fp32 vs. bf16")
    lines = [
        (
            own.method,
            format_interval(own.again),
            format_interval(own.alone),
            "no bf16" if own.precision is None else format_interval(own.precision),
        )
        for own in sanity.repeats
    ]
    return f"repeatability (Kendall's tau), {sanity.rows} texts\n\n" + table(header, lines)


def _shuffles(sanity: Any) -> str:
    parts = list(dict.fromkeys(own.part for own in sanity.shuffles))
    methods = list(dict.fromkeys(own.method for own in sanity.shuffles))
    taus = {(own.method, own.part): own for own in sanity.shuffles}
    lines = []
    for part in parts:
        cells = [taus[method, part] for method in methods]
        lines.append((part, *(f"{cell.tau.value:.2f} ({cell.rho.value:.2f})" for cell in cells)))
    title = (
        "dependence on the weights: Kendall's tau (Spearman's rho) with the scores of a model whose weights are\n"
        "shuffled from the head down to this layer; expected near 0, near 1 means that the weights do not matter\n\n"
    )
    return title + table(("shuffled to", *methods), lines)


def _timed(cost: Sequence[Any]) -> str:
    header = ("texts x tokens", "method", "forward", "backward", "passes", "median s", "p95 s", "x predict")
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
    return "cost, compared with prediction alone\n\n" + table(header, lines, right=range(2, 8))
