"""Leave-one-out: what changes when one token is masked; exact, and as many passes as there are tokens."""

from __future__ import annotations

import numpy as np
import torch

from attentune.attribution.base import Probe, Scored, Settings
from attentune.attribution.target import target_value


def leave_one_out(probe: Probe, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> Scored:
    """f(text) - f(text with token i masked), f being `target_value`."""
    places = [probe.features.ordinary_positions(int(row)) for row in rows]
    copies = np.concatenate([rows, np.repeat(rows, [len(own) for own in places])])
    masked = [*(None for _ in rows), *(np.array([place]) for own in places for place in own)]
    logits_NC = probe.scores(copies, masked).logits_NC
    own_BC, masked_MC = logits_NC[: len(rows)], logits_NC[len(rows) :]
    target_B = torch.from_numpy(probe.targets(own_BC, wanted_B))
    owner_M = np.repeat(np.arange(len(rows)), [len(own) for own in places])
    before_B = target_value(torch.from_numpy(own_BC), target_B, probe.label_space).numpy()
    target_M = target_B[torch.from_numpy(owner_M)]
    after_M = target_value(torch.from_numpy(masked_MC), target_M, probe.label_space).numpy()
    scores = [np.zeros(length, dtype=np.float32) for length in probe.features.lengths[rows]]
    for owner, place, after in zip(owner_M, np.concatenate(places).astype(int), after_M, strict=True):
        scores[owner][place] = before_B[owner] - after
    return Scored(own_BC, scores)
