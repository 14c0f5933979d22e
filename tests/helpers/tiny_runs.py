"""Builds untrained runs: in memory, with predictions that differ between texts, saved, and saved ensembles of them."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attentune.config import Config, DataConfig, HeadConfig, to_yaml
from attentune.config.schema import TokenGateConfig
from attentune.data.dataset import LabelSpace, TextRows
from attentune.inference.ensemble import save_ensemble
from attentune.inference.fusion import Fusion
from attentune.inference.predictor import ModelPredictor, predict_rows
from attentune.models.saving import outputs_of, save_model
from attentune.nn.attribution_head import AttributionHead
from helpers.tiny_models import build, rows_of

KINDS = ("classification", "pair", "bi-encoder", "regression", "ordinal")  # the third: two texts, encoded separately
# Includes a word of several subwords, punctuation, a single word, an empty text and a long text.
TEXTS = (
    "The actors seem unwatchable, and the plot never moves!",
    "Yes",
    "",
    "Nobody plays the guitar at 7:45.",
    "Birds are singing outside my window, and the train leaves although nobody knows why; it is cold in the house.",
)
SPACES = {
    "classification": LabelSpace("classification", ("bad", "good")),
    "pair": LabelSpace("classification", ("no", "maybe", "yes")),
    "bi-encoder": LabelSpace("classification", ("no", "maybe", "yes")),
    "regression": LabelSpace("regression"),
    "ordinal": LabelSpace("ordinal", ("low", "middle", "high"), "expected-value"),
}
ON_CPU = replace(Config(), training=replace(Config().training, precision="fp32", use_cpu=True))


def rows_for(kind: str, count: int = len(TEXTS)) -> TextRows:
    """Return the first `count` of `TEXTS` as rows, or pairs of them."""
    texts = TEXTS[:count]
    return rows_of(texts, [TEXTS[-1 - place] for place in range(count)] if kind in ("pair", "bi-encoder") else None)


def tiny_run(
    folder: Path,
    kind: str = "classification",
    *,
    gate: bool = True,
    max_length: int = 64,
    with_head: bool = False,
    **model: Any,
) -> ModelPredictor:
    """Build a run on the checkpoint in `folder`; its logits have mean 0 and standard deviation 1 over `TEXTS`.

    `with_head` gives it an attribution head with random weights; a bi-encoder can have none.
    """
    options: dict[str, Any] = {"head": HeadConfig(kind="mean", combine="concat")} | model
    if gate:
        options["token_gate"] = TokenGateConfig(kind="ssa")
    if kind == "bi-encoder":
        options["pair_encoding"] = "bi-encoder"
    built, tokenizer = build(
        folder, label_space=SPACES[kind], is_pair=kind in ("pair", "bi-encoder"), max_length=max_length, **options
    )
    run = ModelPredictor(Path("runs/tiny"), ON_CPU, SPACES[kind], built, tokenizer)
    spread(built, predict_rows(run, rows_for(kind)))
    built.encoder.set_attn_implementation("sdpa")  # the state after loading; predicting has changed it
    if with_head and kind != "bi-encoder":
        run.__dict__["attribution_head"] = random_head(run)
    return run


@torch.no_grad()
def spread(model: Any, logits_NC: np.ndarray, *, mean: float = 0.0) -> None:
    """Rescale the classifier to logits of this mean and a standard deviation of 1."""
    mean_C, scale = torch.from_numpy(logits_NC.mean(axis=0)), 1.0 / float(logits_NC.std(axis=0).mean())
    linear = getattr(model.classifier, "linear", model.classifier)
    linear.weight.mul_(scale)
    linear.bias.sub_(mean_C).mul_(scale).add_(mean)


def random_head(run: ModelPredictor) -> AttributionHead:
    """Make an attribution head for a run with random weights, also where a new one has zeros."""
    encoder = run.model.encoder.config
    layers = sorted({0, encoder.num_hidden_layers // 2, encoder.num_hidden_layers})
    with torch.random.fork_rng():
        torch.manual_seed(5)
        outputs = outputs_of(run.label_space)
        head = AttributionHead(hidden_size=encoder.hidden_size, layers=layers, width=12, outputs=outputs, longest=20)
        for tensor in (*head.parameters(), head.nothing_MO):
            torch.nn.init.normal_(tensor, std=0.5)
    return head.eval()


def hooks_of(model: Any) -> int:
    """Count the hooks of a model, except those that transformers leaves behind after it has returned attention."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [hook for module in model.modules() for kind in kinds for hook in getattr(module, kind).values()]
    return sum(getattr(hook, "__module__", "") != "transformers.utils.output_capturing" for hook in hooks)


# Saved runs and ensembles

MEMBERS = {"bert": 2, "roberta": 1}  # encoders, and runs of each


def write_run_config(
    folder: Path, model: dict[str, Any] | None = None, *, data: DataConfig | None = None, **training: Any
) -> None:
    config = replace(ON_CPU, data=data or ON_CPU.data, model=replace(ON_CPU.model, **(model or {})))
    config = replace(config, training=replace(config.training, **training))
    (folder / "config.yaml").write_text(to_yaml(config))


def saved_model(
    folder: Path, encoder: Path, space: LabelSpace, *, is_pair: bool = False, seed: int = 1, **model: Any
) -> Path:
    folder.mkdir(parents=True)
    built, tokenizer = build(encoder, label_space=space, is_pair=is_pair, max_length=64, seed=seed, **model)
    save_model(built, tokenizer, folder)
    write_run_config(folder)
    return folder


def saved_members(
    folder: Path, tiny: Callable[[str], Path], space: LabelSpace, *, is_pair: bool, members: dict[str, int]
) -> dict[str, Sequence[Path]]:
    return {
        name: [
            saved_model(folder / f"members/{name}/fold-{k}", tiny(name), space, is_pair=is_pair, seed=10 * k)
            for k in range(1, runs + 1)
        ]
        for name, runs in members.items()
    }


def saved_ensemble(
    folder: Path,
    tiny: Callable[[str], Path],
    kind: str = "classification",
    *,
    data: DataConfig | None = None,
    members: dict[str, int] | None = None,
    space: LabelSpace | None = None,
) -> Path:
    """Save an ensemble with the weights 0.75 and 0.25 as a run folder; `kind` as in `helpers.tiny_runs`."""
    space, is_pair, folder = space or SPACES[kind], kind == "pair", Path(folder)
    names = members or MEMBERS
    runs = saved_members(folder, tiny, space, is_pair=is_pair, members=names)
    weights = dict(zip(names, (0.75, 0.25), strict=False))
    save_ensemble(folder, runs, Fusion.weighted("weights", weights, space.task_type), space, is_pair)
    write_run_config(folder, data=data)
    return folder


# Runs to export, and the code of the documentation on export

PAGE = Path(__file__).resolve().parents[2] / "docs" / "exporting.md"


def save_run(checkpoint: Path, folder: Path, **options: Any) -> Path:
    """Save a model from `tiny_models.build`, without the settings of a run; return its folder."""
    model, tokenizer = build(checkpoint, **options)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.startswith("encoder."):
                weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model, tokenizer, folder)
    return folder


def blocks() -> list[str]:
    """Return the Python blocks of the page from the one with onnxruntime on, in order."""
    found = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return found[next(place for place, text in enumerate(found) if "onnxruntime" in text) :]


def without_torch(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process that cannot import PyTorch, transformers or Attentune."""
    barred = "import sys\nfor name in ('torch', 'transformers', 'attentune'):\n    sys.modules[name] = None\n"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", barred + script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
