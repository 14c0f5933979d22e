"""How should `attentune auto` choose among fusions, and is it better to have folds or more members?

    python -m benchmarks.quality.fusion_choice run uci:1 --folder ../fusion [--folds 5] [--portfolio bert-mean]
    python -m benchmarks.quality.fusion_choice table results/auto/development.npz
    python -m benchmarks.quality.fusion_choice thresholds results/auto/development.npz
    python -m benchmarks.quality.fusion_choice cut_points results/auto/development.npz
    python -m benchmarks.quality.fusion_choice methods results/auto/development.npz

`run` runs `auto` for 300 seconds (`--seconds`) on one draw of a development task, with OMP_NUM_THREADS threads, and
adds what each member predicts out of fold and for other rows to FOLDER/development.npz. `table` prints, for each run,
what each kind of fusion scores on the other rows, and what choices by the score and by the loss of out-of-fold
predictions deliver. `thresholds` does so for ways of deciding between two classes, over fusions of sets of members, and
`cut_points` for ordered classes, with 200 out-of-fold rows and with all.
`methods` compares what is delivered of all members with what is delivered without those of the papers' methods.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from scipy.special import softmax
from sklearn.metrics import log_loss

from attentune.automl import fusion as fusions
from attentune.automl import thresholds
from attentune.automl.portfolio import all_members
from attentune.automl.selection import paired_gain, utility
from attentune.automl.thresholds import fit_thresholds
from attentune.config.schema import BASELINE_NAMES
from attentune.data.dataset import LabelSpace
from attentune.inference.fusion import FUSION_KINDS, Fusion
from attentune.metrics.metrics import choose_metric, predictions_of, probabilities_of
from attentune.seeding import numpy_generator
from benchmarks.common import table
from benchmarks.quality.campaign import METHODS, Cell, draw_of
from benchmarks.quality.campaign_tables import METRICS

SCORED_ROWS = 1500
ORDERED_TASKS = ("sick-5",)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", *TABLES))
    parser.add_argument("item", help="TASK:DRAW, or the file")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--folds", type=int)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--portfolio", help="fine-tuned members, beside the baselines")
    given = parser.parse_args()
    if given.what in TABLES:
        print("\n".join(TABLES[given.what](dict(np.load(given.item)))))
    else:
        run(given)
    return 0


def run(given: argparse.Namespace) -> None:
    from attentune.automl.delivery import Delivery
    from attentune.automl.driver import auto
    from attentune.baselines.registry import baselines_for
    from attentune.config import load_config
    from attentune.inference.predictor import Predictor, predict_rows

    task, draw = given.item.split(":")
    data, scored, _ = draw_of(Cell("1000", task, int(draw), "auto"))
    rows = scored["dev"].take(range(min(SCORED_ROWS, len(scored["dev"]))))
    names = None
    if given.portfolio:
        names = [*baselines_for(data), *given.portfolio.split(",")]
    Delivery._remove_unused = lambda self, fused: None  # members that are not delivered are scored here too
    with tempfile.TemporaryDirectory() as place:
        settings = {"data.max_length": 128, "training.output_dir": f"{place}/auto", "training.seed": int(draw)}
        config = load_config(overrides=settings)
        auto(config, data=data, time_limit_s=given.seconds, folds=given.folds, portfolio=names, jobs=1)
        work = Path(place) / "auto" / "auto"
        found = {"labels": data.splits["train"].labels, "scored labels": rows.labels}
        found["folds"] = load_file(work / "folds.safetensors")["folds"]
        for file in sorted(work.glob("members/*/oof.safetensors")):
            models = [file.parent / "all"] if (file.parent / "all").is_dir() else sorted(file.parent.glob("fold-*"))
            logits = [predict_rows(Predictor.load(folder), rows) for folder in models]
            found[f"oof {file.parent.name}"] = load_file(file)["logits"].astype(np.float32)
            found[f"scored {file.parent.name}"] = _mean_of(logits)
    how = (
        f"{task}, draw {draw}, {'all members' if names is None else given.portfolio}, folds {given.folds or 'by time'}"
    )
    file = given.folder / "development.npz"
    kept = dict(np.load(file)) if file.is_file() else {}
    np.savez_compressed(file, **kept, **{f"{how}/{name}": values for name, values in found.items()})


def _mean_of(logits: list[np.ndarray]) -> np.ndarray:
    """Return the logits of the mean probabilities."""
    shares = [np.exp(one - one.max(axis=1, keepdims=True)) for one in logits]
    mean = np.mean([one / one.sum(axis=1, keepdims=True) for one in shares], axis=0)
    return np.log(np.maximum(mean, 1e-9)).astype(np.float32)


def _runs_of(arrays: dict[str, np.ndarray]) -> Iterator[tuple[str, dict[str, np.ndarray], list[str], np.ndarray]]:
    """Yield the name of each run, its arrays, its members from cheap to expensive, and its rows with predictions."""
    order = [member.name for member in all_members()]
    for how in dict.fromkeys(name.rsplit("/", 1)[0] for name in arrays):
        mine = {name.rsplit("/", 1)[1]: values for name, values in arrays.items() if name.startswith(f"{how}/")}
        names = [name for name in order if f"oof {name}" in mine]
        yield how, mine, names, np.flatnonzero(np.isfinite(mine[f"oof {names[0]}"]).all(axis=1))


def _problem(
    mine: dict[str, np.ndarray], names: Sequence[str], there: np.ndarray, metric: str | None, task: str
) -> fusions._Problem:
    labels = mine["labels"][there]
    kind = "ordinal" if task in ORDERED_TASKS else "classification"
    space = LabelSpace(kind, tuple(map(str, range(int(labels.max()) + 1))))
    chosen = choose_metric(metric, (METRICS.get(task, "accuracy"),), space)
    logits = {name: mine[f"oof {name}"].astype(np.float64)[there] for name in names}
    return fusions._Problem(logits, labels, mine["folds"][there], space, chosen, 1, 1.0).with_folds()


def _scored(mine: dict[str, np.ndarray], fusion: Fusion) -> np.ndarray:
    """Return the logits of the other rows."""
    return fusion.apply({name: mine[f"scored {name}"].astype(np.float64) for name in fusion.members})


def _choose_by_loss(problem: fusions._Problem) -> tuple[dict[str, np.ndarray], str]:
    """Return the cross-fitted logits of each kind of fusion, and the kind that `auto` delivers."""
    fused, losses = fusions._cross_fit_kinds(FUSION_KINDS, problem)
    return fused, fusions._choose_kind(fused, losses, problem)


def rules_table(arrays: dict[str, np.ndarray]) -> list[str]:
    lines = []
    for how, mine, names, there in _runs_of(arrays):
        problem = _problem(mine, names, there, None, how.partition(",")[0])
        labels, space, metric = problem.labels, problem.space, problem.metric
        fused, by_loss = _choose_by_loss(problem)
        predictions = [predictions_of(values, space) for values in fused.values()]
        by_score = FUSION_KINDS[fusions.choose_simplest(metric, labels, predictions)[0]]
        scores = {}
        for kind in FUSION_KINDS:
            logits = _scored(mine, fusions._fit(kind, problem))
            scores[kind] = metric.score(mine["scored labels"], predictions_of(logits, space))
        cells = [f"{scores[kind]:.3f}" for kind in FUSION_KINDS]
        chosen = [f"{scores[kind]:.3f} ({kind})" for kind in (by_score, by_loss)]
        lines.append([how, str(len(there)), str(len(names)), *cells, *chosen])
    return table(["run", "rows", "members", *FUSION_KINDS, "chosen by score", "chosen by loss"], lines)


def methods_table(arrays: dict[str, np.ndarray]) -> list[str]:
    """Compare the other rows' score and log-loss of what is delivered with and without the papers' methods."""
    lines = []
    for how, mine, names, there in _runs_of(arrays):
        plain = [name for name in names if name not in METHODS]
        if plain == names:
            continue
        found = []
        for members in (names, plain):
            problem = _problem(mine, members, there, None, how.partition(",")[0])
            logits_NC = _scored(mine, fusions._fit(_choose_by_loss(problem)[1], problem))
            score = problem.metric.score(mine["scored labels"], predictions_of(logits_NC, problem.space))
            found += [score, log_loss(mine["scored labels"], softmax(logits_NC, axis=1))]
        methods = ", ".join(name for name in names if name in METHODS)
        lines.append([how, methods, *(f"{found[place]:.3f}" for place in (0, 2, 1, 3))])
    return table(["run", "methods", "score with", "without", "log-loss with", "without"], lines)


def thresholds_table(arrays: dict[str, np.ndarray]) -> list[str]:
    """Compare decisions between two classes on the other rows: at 0.5, at the best threshold of the out-of-fold rows
    if that is a standard error ahead on other folds (the earlier rule), at today's, and at the best of these rows.

    Each value is a mean over fusions by weights of one, two, three or all members.
    """
    scores: dict[tuple[str, str, str], list[list[float]]] = {}
    for how, mine, names, there in _runs_of(arrays):
        task = how.partition(",")[0]
        if len(np.unique(mine["labels"])) != 2:
            continue
        metric_name = METRICS.get(task) if METRICS.get(task) == "matthews_correlation" else "f1"
        for members in [some for size in {1, 2, 3, len(names)} for some in itertools.combinations(names, size)]:
            problem = _problem(mine, members, there, metric_name, task)
            logits = _scored(mine, fusions._fit("weights", problem))
            found = _decisions(fusions._cross_fit("weights", problem)[0], logits, mine["scored labels"], problem)
            best = found[-1]
            kind = "fine-tuned" if any(name not in BASELINE_NAMES for name in members) else "baselines"
            level = "below 0.3" if best < 0.3 else "0.3 to 0.5" if best < 0.5 else "above 0.5"
            scores.setdefault((f"{task} ({problem.metric.name})", kind, level), []).append(found)
    lines = [[*key, str(len(all_of)), *(f"{v:.3f}" for v in np.mean(all_of, axis=0))] for key, all_of in scores.items()]
    names = ["sets", "0.5", "best out of fold, if clearly", "expected score", "best of these rows"]
    return table(["task", "members", "best score", *names], sorted(lines))


def _decisions(
    fused_NC: np.ndarray, scored_NC: np.ndarray, truth: np.ndarray, problem: fusions._Problem
) -> list[float]:
    """Return the scores of the other rows by four ways of deciding."""
    metric, space, labels, folds = problem.metric, problem.space, problem.labels, problem.folds
    odds_N, scored_N = fused_NC[:, 1] - fused_NC[:, 0], scored_NC[:, 1] - scored_NC[:, 0]

    def best(odds: np.ndarray, of: np.ndarray) -> float:
        steps = [0.0, *np.unique(np.quantile(odds, np.linspace(0.01, 0.99, 99)))]
        return steps[int(np.argmax([utility(metric, of, (odds >= step).astype(np.int64)) for step in steps]))]

    crossed = np.zeros(len(labels), dtype=np.int64)
    for fold in np.unique(folds):
        inside = folds == fold
        crossed[inside] = odds_N[inside] >= best(odds_N[~inside], labels[~inside])
    gain, error = paired_gain(metric, labels, (odds_N >= 0).astype(np.int64), crossed)
    earlier = best(odds_N, labels) if gain > error else 0.0
    now = fit_thresholds(fused_NC, labels, space, metric=metric, folds=folds).label_space
    steps = (0.0, earlier, None, best(scored_N, truth))
    decided = [
        predictions_of(scored_NC, now) if step is None else (scored_N >= step).astype(np.int64) for step in steps
    ]
    return [metric.score(truth, predictions) for predictions in decided]


def cut_points_table(arrays: dict[str, np.ndarray]) -> list[str]:
    """Compare decisions between ordered classes on the other rows.

    They are the most probable class, the cut points with the best score of the out-of-fold rows if that is a standard
    error ahead on other folds (the earlier rule), today's rule, the cut points with the best expected score, and the
    best of the scored rows.

    Each value is a mean over fusions by weights of one, two, three or all members; 200 rows are drawn ten times.
    """
    generator = numpy_generator("cut points")
    scores: dict[tuple[str, str, int], list[list[float]]] = {}
    for how, mine, names, there in _runs_of(arrays):
        task = how.partition(",")[0]
        if task not in ORDERED_TASKS:
            continue
        for members in [some for size in {1, 2, 3, len(names)} for some in itertools.combinations(names, size)]:
            problem = _problem(mine, members, there, None, task)
            fused = fusions._cross_fit("weights", problem)[0], _scored(mine, fusions._fit("weights", problem))
            for metric in ("accuracy", "f1_macro", "quadratic_weighted_kappa", "mean_absolute_error"):
                problem = replace(problem, metric=choose_metric(metric, (), problem.space))
                draws = [generator.choice(len(there), 200, replace=False) for _ in range(10)]
                for rows in (*draws, np.arange(len(there))):
                    found = _ordered_decisions(fused, mine["scored labels"], problem, rows)
                    scores.setdefault((task, metric, len(rows)), []).append(found)
    lines = [
        [task, metric, f"{rows:,}", *(f"{value:.3f}" for value in np.mean(found, axis=0))]
        for (task, metric, rows), found in scores.items()
    ]
    names = [
        "most probable class",
        "best out of fold, if clearly",
        "today's rule",
        "expected score",
        "best of these rows",
    ]
    return table(["task", "metric", "out-of-fold rows", *names], sorted(lines))


def _ordered_decisions(
    fused: tuple[np.ndarray, np.ndarray], truth: np.ndarray, problem: fusions._Problem, rows: np.ndarray
) -> list[float]:
    """Return the scores of the other rows by five ways of deciding, from some of the out-of-fold rows."""
    metric, space, labels, folds = problem.metric, problem.space, problem.labels[rows], np.arange(len(rows)) % 5
    logits_NC, scored_NC = fused[0][rows], fused[1]

    def best(values_NC: np.ndarray, of: np.ndarray) -> LabelSpace:
        means_N = probabilities_of(values_NC, space) @ np.arange(space.num_labels)
        return replace(space, thresholds=thresholds._cut_points(means_N, np.eye(space.num_labels)[of], metric))

    crossed = np.zeros(len(labels), dtype=np.int64)
    for fold in np.unique(folds):
        inside = folds == fold
        crossed[inside] = predictions_of(logits_NC[inside], best(logits_NC[~inside], labels[~inside]))
    gain, error = paired_gain(metric, labels, predictions_of(logits_NC, space), crossed)
    spaces = (
        space,
        best(logits_NC, labels) if gain > error else space,
        fit_thresholds(logits_NC, labels, space, metric=metric, folds=folds).label_space,
        replace(space, thresholds=thresholds.best_thresholds(logits_NC, labels, space, metric)),
        best(scored_NC, truth),
    )
    return [metric.score(truth, predictions_of(scored_NC, one)) for one in spaces]


TABLES = {
    "table": rules_table,
    "thresholds": thresholds_table,
    "cut_points": cut_points_table,
    "methods": methods_table,
}


if __name__ == "__main__":
    sys.exit(main())
