"""Tables of a faithfulness report; methods with signed and unsigned scores are listed separately, best first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attentune.cli.output import table
from attentune.explain.faithfulness import RANDOM_BASELINE, FaithfulnessReport, MethodScore
from attentune.stats.estimate import Interval


def report_tables(
    report: FaithfulnessReport,
    *,
    synthetic: Sequence[Any] | None = None,
    sanity: Any = None,
    cost: Sequence[Any] | None = None,
) -> str:
    """Format the whole report."""
    parts = [_head(report)]
    for erasure in dict.fromkeys(score.erasure for score in report.scores):
        parts.append(
            f"erased by {erasure}\n\n" + _scores([score for score in report.scores if score.erasure == erasure])
        )
    parts.append(_costs(report))
    if synthetic:
        parts.append(_synthetic(synthetic))
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
    limits = next((score.naopc_rows for score in scores if score.naopc_rows), 0)
    header = ["method", "comprehensiveness", "difference", "sufficiency"]
    header += [f"NAOPC compr. ({limits} short texts)", "NAOPC suff."] if limits else []
    lines: list[list[str]] = []
    for title, signed in (("signed", True), ("unsigned", False)):
        group = [score for score in scores if score.signed == signed and score.method != RANDOM_BASELINE]
        if group:
            lines.append([f"({title})", *("" for _ in header[1:])])
        lines += [_line(score, bool(limits)) for score in _best_first(group)]
    lines += [["(baseline)", *("" for _ in header[1:])]]
    lines += [_line(score, bool(limits)) for score in scores if score.method == RANDOM_BASELINE]
    return table(header, lines)


def _best_first(scores: Sequence[MethodScore]) -> list[MethodScore]:
    return sorted(scores, key=lambda score: -score.comprehensiveness.value)


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
    lines = [(cost.method, f"{cost.passes:,.1f}", f"{cost.seconds:.3g}") for cost in report.costs]
    return table(("method", "passes per text", "seconds per text"), lines, right=(1, 2))


def _synthetic(synthetic: Sequence[Any]) -> str:
    header = ("kind", "method", "top-1 hit", "precision at k", "mean rank", "best possible", "shortcut top-1")
    lines = []
    for kind in dict.fromkeys(score.kind for score in synthetic):
        of_kind = sorted((score for score in synthetic if score.kind == kind), key=lambda score: -score.first.value)
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
                for score in of_kind
                if score.signed == signed
            ]
    return "ground-truth words, in correctly predicted texts\n\n" + table(header, lines, right=(5, 6))


def _repeats(sanity: Any) -> str:
    header = ("method", "repeated", "single vs. batch", "fp32 vs. bf16")
    lines = [
        (
            repeat.method,
            format_interval(repeat.again),
            format_interval(repeat.alone),
            "no bf16" if repeat.precision is None else format_interval(repeat.precision),
        )
        for repeat in sanity.repeats
    ]
    return f"repeatability (Kendall's tau), {sanity.rows} texts\n\n" + table(header, lines)


def _shuffles(sanity: Any) -> str:
    parts = list(dict.fromkeys(shuffle.part for shuffle in sanity.shuffles))
    methods = list(dict.fromkeys(shuffle.method for shuffle in sanity.shuffles))
    taus = {(shuffle.method, shuffle.part): shuffle for shuffle in sanity.shuffles}
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
        (f"{line.texts} x {line.tokens}", line.method, *("",) * 3, "too long", "", "")
        if line.median_s is None
        else (
            f"{line.texts} x {line.tokens}",
            line.method,
            f"{line.forward_calls:,}",
            f"{line.backward_calls:,}",
            f"{line.passes:,}",
            f"{line.median_s:.4g}",
            f"{line.p95_s:.4g}",
            f"{line.times_plain:.4g}",
        )
        for line in cost
    ]
    return "cost, compared with prediction alone\n\n" + table(header, lines, right=range(2, 8))
