"""Measure what heads that are fitted on the first N texts of a task explain on 300 others: RUN N,N,... DROPOUT,..."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from attentune.explain import fast_shap as fs
from attentune.explain.explainer import Explainer
from attentune.inference.predictor import Predictor
from attentune.inference.scoring import evaluating
from attentune.models.cpu_layers import attention_by

run, sizes, dropouts = Path(sys.argv[1]), [int(n) for n in sys.argv[2].split(",")], sys.argv[3].split(",")
saved = Predictor.load(run)
data = replace(saved.config.data, max_train_samples=max(sizes))
texts = replace(saved, config=replace(saved.config, data=data)).data(None, ("train",)).splits["train"]
others = saved.data(None, ("validation",)).splits["validation"]
others = others.take(range(min(300, len(others))))
observed = []
for rows in (texts, others):
    scorer = Explainer(saved, rows).scorer
    with attention_by(saved.model), evaluating(saved.model):
        places = fs._readable_rows(scorer, 0)
        longest = max(len(scorer.features.non_special_positions(row)) for row in range(len(rows)))
        head = fs._new_head(scorer, max(longest, 512), 0)
        observed.append(fs._observed(scorer, places, head.layers, 8, 0, lambda *told: None))
seen, unseen = observed
fs._FEW_TEXTS = sys.maxsize
for wanted in sizes:
    size = min(wanted, len(seen.ordinary))
    fitted = np.arange(size - min(max(round(0.1 * size), 30), size // 3))  # the rest is held out by `explain --fit`
    scale = seen.rise_NKO[fitted].reshape(-1, seen.rise_NKO.shape[-1]).std(axis=0) + 1e-6
    for dropout in dropouts:
        fs._DROPOUT = float(dropout)
        head = fs._new_head(scorer, max(longest, 512), 0)
        fs._train(head, seen, fitted, scale, 0, lambda *told: None)
        with torch.no_grad():
            head.output.weight.mul_(torch.from_numpy(scale)[:, None])
            head.output.bias.mul_(torch.from_numpy(scale))
        share = fs._explained_variance(head.eval(), unseen, np.arange(len(unseen.ordinary)))
        record = {"run": run.name, "texts": size, "dropout": float(dropout), "explained_variance": round(share, 3)}
        print(json.dumps(record), flush=True)
