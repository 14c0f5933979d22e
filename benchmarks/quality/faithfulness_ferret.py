"""Does ferret find the same comprehensiveness and sufficiency for the same scores, rows and model?

    python -m venv ENV && ENV/bin/pip install -c requirements/constraints.txt torch ferret-xai==0.4.2 'pyarrow<20'
    python -m benchmarks.quality.faithfulness_ferret RUN --ferret_python ENV/bin/python --task sst2 --data_dir FOLDER

RUN is a run of single texts that a class of transformers can hold (such as one of preset bert): it is exported, and
scored by ferret in its own environment, which needs other versions. Both compute in float32.

ferret's definitions differ from ours (docs/faithfulness.md). They are aligned here: ferret is given the numbers of
tokens that ours erases, one at a time, and scores without negative ones. What remains is that ferret decodes the erased
tokens to a text, and reads that. The record says how often this gives the same tokens, and compares those texts apart.
ferret's figures at its defaults are recorded too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from attentune.attribution.base import Settings
from attentune.config import DataConfig
from attentune.data.splits import stratified_sample
from attentune.explain.faithfulness.erasure import SHARES, top_counts
from attentune.explain.faithfulness.measure import FaithfulnessResult, Measures, mean_interval, measure_faithfulness
from attentune.inference.predictor import Predictor
from attentune.integrations.hub.export import export_for_transformers
from benchmarks.common import RESULTS, command_of, named_data_dir, table, write_record

METHODS, ERASURES, MEASURES = (
    ("leave-one-out", "integrated-gradients"),
    ("delete", "mask"),
    ("comprehensiveness", "sufficiency"),
)


def ferret_results(python: str, model: Path, result: FaithfulnessResult) -> dict[str, Any]:
    """Score the same rows and scores with ferret."""
    features, rows = result.explainer.scorer.features, []
    for row, text in enumerate(result.rows.texts):
        by_method = {name: result.ranked[name].attributions[row] for name in METHODS}
        assert not features.special[features.row(row)][1:-1].any()
        rows.append(
            {
                "text": text,
                "target": by_method[METHODS[0]].target,
                "scores": {name: found.scores.tolist() for name, found in by_method.items()},
                "counts": top_counts(len(features.non_special_positions(row))),
            }
        )
    task = {"model": str(model), "methods": METHODS, "rows": rows}
    side = Path(__file__).with_name("ferret_side.py")
    done = subprocess.run([python, side], input=json.dumps(task), stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def compare(result: FaithfulnessResult, peer: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    """Compare both, paired by text: all texts, and those that ferret reads as the same tokens."""
    lines = []
    for method in METHODS:
        found = peer["results"][method]
        for erasure in ERASURES:
            drops = result.probability_drops[method, erasure]
            for measure in MEASURES:
                ours_N = getattr(drops, measure).mean(axis=1)
                theirs_N = np.array([np.mean(one[erasure][measure]) for one in found])
                is_same_N = np.array([one[erasure]["same_tokens"][measure] for one in found])
                apart_N = np.abs(ours_N - theirs_N)[is_same_N]
                lines.append(
                    {
                        "method": method,
                        "erasure": erasure,
                        "measure": measure,
                        "ours": mean_interval(ours_N, seed),
                        "ferret": mean_interval(theirs_N, seed),
                        "difference": mean_interval(ours_N - theirs_N, seed),
                        "same_tokens": int(is_same_N.sum()),
                        "largest_difference_of_same_tokens": float(apart_N.max()) if len(apart_N) else None,
                        "correlation": float(np.corrcoef(ours_N, theirs_N)[0, 1]),
                    }
                )
    return lines


def tables(lines: list[dict[str, Any]]) -> list[str]:
    """Return the table of docs/faithfulness.md."""

    def text(interval: Any) -> str:
        return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"

    rows = [
        (
            f"`{line['method']}`, {line['erasure']}, {line['measure']}",
            *(text(line[name]) for name in ("ours", "ferret", "difference")),
            str(line["same_tokens"]),
            "" if line["same_tokens"] == 0 else f"{line['largest_difference_of_same_tokens']:.0e}",
        )
        for line in lines
    ]
    return table(("", "ours", "ferret", "difference", "texts with the same tokens", "largest difference there"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--ferret_python", required=True, help="the Python of an environment with ferret-xai")
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--data_dir", default=str(named_data_dir() / "glue_data"))
    parser.add_argument("--max_samples", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20, help="of integrated gradients")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    saved = Predictor.load(given.run).single_model("faithfulness")
    data = saved.data(DataConfig(task=given.task, data_dir=given.data_dir), ("validation",))
    rows = data.splits["validation"]
    rows = rows.take(stratified_sample(rows.labels, given.max_samples, given.seed, "faithfulness"))
    settings = Settings(seed=given.seed, steps=given.steps)
    measures = Measures(erasures=ERASURES, settings=settings, beam=0)
    result = measure_faithfulness(
        saved,
        rows,
        methods=METHODS,
        measures=measures,
        precision="fp32",
        progress=lambda what: print(what, file=sys.stderr),
    )
    with tempfile.TemporaryDirectory() as place:
        export = export_for_transformers(saved, Path(place) / "model", code="stock")
        peer = ferret_results(given.ferret_python, export.folder, result)
    lines = compare(result, peer, given.seed)
    defaults = {
        method: {
            measure: mean_interval(np.array([one["defaults"][measure] for one in peer["results"][method]]), given.seed)
            for measure in MEASURES
        }
        for method in METHODS
    }
    record = {
        "command": command_of(
            "benchmarks.quality.faithfulness_ferret",
            ["RUN", "--task", given.task, "--max_samples", str(given.max_samples), "--steps", str(given.steps)],
        ),
        "rows": len(result.rows),
        "accuracy": result.report.accuracy,
        "shares": SHARES,
        "logits_of_the_export": export.max_difference,
        "lines": [{name: _plain(value) for name, value in line.items()} for line in lines],
        "ferret_at_its_defaults": {
            method: {measure: _plain(interval) for measure, interval in own.items()} for method, own in defaults.items()
        },
        "peer": peer["versions"],
    }
    write_record(RESULTS / "faithfulness" / f"ferret-{given.task}.json", record)
    print("\n".join(tables(lines)))


def _plain(value: Any) -> Any:
    return (
        {name: round(getattr(value, name), 5) for name in ("value", "low", "high")} if hasattr(value, "low") else value
    )


if __name__ == "__main__":
    main()
