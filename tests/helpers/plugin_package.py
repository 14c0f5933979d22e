"""A package with one part of each kind, and broken ones, that is installed by its metadata alone."""

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from attentune import plugins
from helpers.doc_blocks import ROOT

NAME = "attentune-extra"
_MODULE = '''
import numpy as np
import torch
from torch import nn

from attentune.metrics.metrics import Metric
from attentune.nn.blur import GaussianBlur
from attentune.nn.losses import RowLosses
from attentune.nn.heads import ImportanceGate
from attentune.token_labels.base import LabelGenerator
from attentune.token_labels.plan import EpochPlan


class MaxHead(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.dense = nn.Linear(options.hidden_size, options.hidden_size)

    def forward(self, hidden_BTD, mask_BT, ordinary_BT):
        return self.dense(hidden_BTD.masked_fill(~mask_BT[..., None], -1e4).amax(dim=1).to(self.dense.weight.dtype))


class DifferenceHead(nn.Module):
    """For bi-encoders: [CLS] minus that of the partner."""

    needs_pairs = True

    def __init__(self, options):
        super().__init__()

    def forward(self, hidden_NTD, mask_NT, ordinary_NT):
        first_ND = hidden_NTD[:, 0]
        half = len(first_ND) // 2
        return first_ND - 0.5 * torch.cat([first_ND[half:], first_ND[:half]])


class FirstAndLast(nn.Module):
    minimum_layers = 2

    def __init__(self, *, num_layers, hidden_size):
        super().__init__()
        self.share = nn.Parameter(torch.zeros(()))

    def forward(self, layers, mask_BT):
        share = torch.sigmoid(self.share)
        return share * layers[0] + (1 - share) * layers[-1]


def soft_gate(**options):
    return ImportanceGate(**{**options, "threshold": 0.0})


class WideBlur(GaussianBlur):
    def __init__(self, **options):
        super().__init__(**{**options, "sigma": 2 * options["sigma"]})


def squared(logits_BC, labels, *, class_weights_C=None, label_smoothing=0.0):
    target = labels.float()[:, None] if logits_BC.shape[1] == 1 else nn.functional.one_hot(labels, logits_BC.shape[1])
    loss_B = ((logits_BC.float() - target) ** 2).mean(dim=1)
    return RowLosses(loss_B, loss_B.new_ones(loss_B.shape))


squared.task_types = ("classification", "regression")
cube = Metric(
    "cubed_error", lambda labels, given: float(np.mean(np.abs(labels - given) ** 3)), False, needs="an order"
)
recall_of_no = Metric(
    "recall_of_no", lambda labels, given: float(np.mean(given[labels == 0] == 0)), needs="two classes"
)


class Shuffled(LabelGenerator):
    """Every row once, two of them twice."""

    @property
    def samples_per_epoch(self):
        return len(self.source.features) + 2

    def plan(self, epoch):
        count = len(self.source.features)
        twice = np.random.default_rng((self.source.seed, epoch)).permutation(count)[:2]
        return EpochPlan(np.concatenate([np.arange(count), twice]))


class PaddedHead(MaxHead):
    def forward(self, hidden_BTD, mask_BT, ordinary_BT):
        return self.dense(hidden_BTD.mean(dim=1).to(self.dense.weight.dtype))


class IdleHead(MaxHead):
    def forward(self, hidden_BTD, mask_BT, ordinary_BT):
        return hidden_BTD[:, 0]


class RandomHead(MaxHead):
    def forward(self, hidden_BTD, mask_BT, ordinary_BT):
        drawn = torch.rand(()) if mask_BT.shape[0] > 1 else 0.0
        return super().forward(hidden_BTD, mask_BT, ordinary_BT) + 1e-5 * drawn


class ConstantHead(MaxHead):
    def forward(self, hidden_BTD, mask_BT, ordinary_BT):
        return self.dense(torch.ones_like(hidden_BTD[:, 0])) + 0.0 * hidden_BTD[:, 0]


class ForgetfulHead(MaxHead):
    def __init__(self, options):
        super().__init__(options)
        self.scale = 1.0

    def forward(self, hidden_BTD, mask_BT, ordinary_BT):
        self.scale = 2.0 if self.training else self.scale
        return self.scale * super().forward(hidden_BTD, mask_BT, ordinary_BT)


def mean_loss(logits_BC, labels, *, class_weights_C=None, label_smoothing=0.0):
    rows = squared(logits_BC, labels)
    return RowLosses(rows.loss_B.mean(), rows.weight_B.sum())


mean_loss.task_types = ("regression",)
turned = Metric("turned_error", lambda labels, given: float(np.mean(np.abs(labels - given))), needs="an order")


class Careless(Shuffled):
    def plan(self, epoch):
        count = len(self.source.features)
        return EpochPlan(np.concatenate([np.arange(count), np.random.default_rng().permutation(count)[:2]]))
'''
PARTS = {
    "attentune.heads": {"max": "MaxHead", "difference": "DifferenceHead"},
    "attentune.layer_mixes": {"first-and-last": "FirstAndLast"},
    "attentune.token_gates": {"soft": "soft_gate"},
    "attentune.blurs": {"wide": "WideBlur"},
    "attentune.losses": {"squared": "squared"},
    "attentune.metrics": {"cubed_error": "cube", "recall_of_no": "recall_of_no"},
    "attentune.label_generators": {"shuffled": "Shuffled"},
}
BROKEN = {
    "attentune.heads": {
        "padded": "PaddedHead",
        "idle": "IdleHead",
        "random": "RandomHead",
        "constant": "ConstantHead",
        "forgetful": "ForgetfulHead",
        "absent": "NoSuchHead",
    },
    "attentune.losses": {"mean": "mean_loss"},
    "attentune.metrics": {"turned": "turned"},
    "attentune.label_generators": {"careless": "Careless"},
}


def install(site: Path, module: str, name: str, code: str, points: Mapping[str, Mapping[str, str]]) -> Path:
    """Write a module and the metadata of its distribution, as pip leaves them; return the folder for `sys.path`."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{module}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, parts in points.items():
        lines += [f"[{group}]", *(f"{one} = {target}" for one, target in parts.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site


def write_package(folder: Path, *, name: str = NAME, parts: dict[str, dict[str, str]] = PARTS) -> Path:
    """Install a package with these parts; return the folder for `sys.path`."""
    module = name.replace("-", "_")
    points = {group: {one: f"{module}:{target}" for one, target in own.items()} for group, own in parts.items()}
    return install(folder, module, name, _MODULE, points)


def forget() -> None:
    """Look for installed packages anew."""
    from attentune.metrics.metrics import METRICS

    plugins.plugin_names.cache_clear()
    plugins._entry_points.cache_clear()
    METRICS.__dict__.pop("_all", None)
    for module in [module for module in sys.modules if module.startswith("attentune_")]:
        del sys.modules[module]


EXAMPLE = ROOT / "examples/layer_attention"


def write_example(site: Path) -> Path:
    """Write what `pip install` makes of examples/layer_attention, without an index; return the folder."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    code = (EXAMPLE / "layer_attention.py").read_text()
    return install(site, "layer_attention", project["name"], code, project["entry-points"])
