"""How should `attentune auto` choose among fusions, and is it better to have folds or more members?

    python -m benchmarks.quality.fusion_choice run uci:1 --folder ../fusion [--folds 5] [--portfolio bert-mean]
    python -m benchmarks.quality.fusion_choice table results/auto/development.npz

`run` runs `auto` for 300 seconds (`--seconds`) on one draw of a development task, with OMP_NUM_THREADS threads, and
adds what each member predicts out of fold and for other rows to FOLDER/development.npz. `table` prints, for each run,
what each kind of fusion scores on the other rows, and what choices by the score and by the loss of out-of-fold
predictions deliver.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from attentune.data.dataset import LabelSpace
from attentune.experiments.auto import fusion as fusions
from attentune.experiments.auto.portfolio import all_members
from attentune.inference.fusion import FUSION_KINDS
from attentune.metrics.metrics import choose_metric, predictions_of
from benchmarks.common import table
from benchmarks.quality.campaign import BASELINES, Cell, draw_of
from benchmarks.quality.campaign_tables import METRICS

SCORED_ROWS = 1500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("item", help="TASK:DRAW, or the file")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--folds", type=int)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--portfolio", help="fine-tuned members, beside the baselines")
    given = parser.parse_args()
    if given.what == "table":
        print("\n".join(rules_table(dict(np.load(given.item)))))
    else:
        run(given)
    return 0


def run(given: argparse.Namespace) -> None:
    from attentune.config import load_config
    from attentune.experiments.auto.delivery import Delivery
    from attentune.experiments.auto.driver import auto
    from attentune.inference.predictor import Predictor, predict_rows

    task, draw = given.item.split(":")
    data, scored, _ = draw_of(Cell("1000", task, int(draw), "auto"), draws=5)
    rows = scored["dev"].take(range(min(SCORED_ROWS, len(scored["dev"]))))
    names = None
    if given.portfolio:
        names = [name for name in BASELINES if data.is_pair or name != "cosine"] + given.portfolio.split(",")
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


def rules_table(arrays: dict[str, np.ndarray]) -> list[str]:
    lines, order = [], [member.name for member in all_members()]
    for how in dict.fromkeys(name.rsplit("/", 1)[0] for name in arrays):
        mine = {name.rsplit("/", 1)[1]: values for name, values in arrays.items() if name.startswith(f"{how}/")}
        names = [name for name in order if f"oof {name}" in mine]
        oof = {name: mine[f"oof {name}"].astype(np.float64) for name in names}
        there = np.flatnonzero(np.isfinite(oof[names[0]]).all(axis=1))
        labels, scored_labels = mine["labels"][there], mine["scored labels"]
        space = LabelSpace("classification", tuple(map(str, range(int(labels.max()) + 1))))
        task = how.partition(",")[0]
        metric = choose_metric(None, (METRICS.get(task, "accuracy"),), space)
        problem = fusions._Problem(
            {name: values[there] for name, values in oof.items()}, labels, mine["folds"][there], space, metric, 1, 1.0
        ).with_folds()
        fused = {kind: fusions._cross_fit(kind, problem) for kind in FUSION_KINDS}
        losses = {kind: fusions._calibrated_losses(values, problem) for kind, values in fused.items()}
        predictions = [predictions_of(values, space) for values in fused.values()]
        by_score = FUSION_KINDS[fusions.choose_simplest(metric, labels, predictions)[0]]
        by_loss = fusions._choose_kind(fused, losses, problem)
        scores = {}
        for kind in FUSION_KINDS:
            fusion = fusions._fit(kind, problem)
            logits = fusion.apply({name: mine[f"scored {name}"].astype(np.float64) for name in fusion.members})
            scores[kind] = metric.score(scored_labels, predictions_of(logits, space))
        cells = [f"{scores[kind]:.3f}" for kind in FUSION_KINDS]
        chosen = [f"{scores[kind]:.3f} ({kind})" for kind in (by_score, by_loss)]
        lines.append([how, str(len(there)), str(len(names)), *cells, *chosen])
    return table(["run", "rows", "members", *FUSION_KINDS, "chosen by score", "chosen by loss"], lines)


if __name__ == "__main__":
    sys.exit(main())
