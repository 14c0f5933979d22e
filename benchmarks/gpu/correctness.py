"""Whether every preset computes on a GPU what it computes on the CPU, in float32 with the same weights and rows.

A preset is run twice, on the CPU and on the device, on single texts and on pairs, as far as it takes them: logits of
the validation rows, then two epochs of Attentune's own loop without dropout, of whose steps losses and gradients are
compared, and the token labels made before the second epoch. The learning rate is so small that the weights stay what
they were; those of the CPU are copied to the device first. TF32 is off. Baselines, which are fitted rather than trained
and may encode in bf16, are compared by the probabilities of their predictions.

Without a GPU, transformers' plain attention stands for the device: it rounds otherwise than Attentune's on the CPU.
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attentune.config import Config, preset_names
from attentune.errors import ConfigError
from attentune.training.callbacks import ProgressDisplay, TrainingCallback, TrainingState
from attentune.training.optimizer import bare_optimizer
from attentune.training.run import epochs, train
from attentune.training.trainer import Trainer
from benchmarks.common import built_trainer, table
from benchmarks.gpu.workload import Part, Workload, no_tf32

ROWS = 24
SINGLE, PAIRS = "check-single", "check-pair"
# Logits may differ by this much, plus this share of the largest; losses by this share.
LOGIT_TOLERANCE, LOSS_TOLERANCE = 1e-4, 1e-4
# A parameter's gradient may differ by this share of its norm, plus that share of the norm of all gradients.
GRADIENT_SHARE, WHOLE_SHARE = 1e-3, 1e-5
# Probabilities of baselines, whose encoder may compute in bf16.
BASELINE_TOLERANCE = 0.02
_RATE = 1e-12


@dataclass
class Observed(TrainingCallback):
    """What a run computed."""

    components: Trainer
    logits: np.ndarray | None = None  # (N, C) of the validation rows
    losses: list[float] = field(default_factory=list)  # of each step
    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)  # of each step, by parameter, on the CPU
    labels: list[np.ndarray] = field(default_factory=list)  # the token labels of each epoch that has some

    def on_epoch_begin(self, state: TrainingState) -> None:
        plan = self.components.planner.plan
        if plan is not None and plan.token_labels is not None:
            self.labels.append(plan.token_labels.values)

    def on_step_end(self, state: TrainingState, logs: Any) -> None:
        self.losses.append(logs["loss"])

    def before_step(self, *_: Any) -> None:
        """Keep the gradients; a hook of the optimiser."""
        named = self.components.model.named_parameters()
        self.gradients.append({name: p.grad.detach().float().cpu() for name, p in named if p.grad is not None})

    def run(self) -> None:
        """Predict the validation rows and train."""
        task = self.components
        with task.embeddings.whole(1.0):
            self.logits = task.evaluator.predict("validation")
        handle = bare_optimizer(task.optimizer).register_step_pre_hook(self.before_step)
        task.callbacks = [self]
        for _ in epochs(task):
            pass
        handle.remove()


def write_rows(work: Workload) -> None:
    """Write rows of single texts and of pairs, whose label is whether both texts have one label."""
    for split in ("train", "validation"):
        lines = [json.loads(line) for line in work.file("sentences", split).read_text(encoding="utf-8").splitlines()]
        lines = lines[: ROWS if work.is_measurement else 8]
        others = lines[1:] + lines[:1]
        pairs = [
            {"text": one["text"], "other": two["text"], "label": ("different", "same")[one["label"] == two["label"]]}
            for one, two in zip(lines, others, strict=True)
        ]
        for name, rows in ((SINGLE, lines), (PAIRS, pairs)):
            work.file(name, split).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def config_of(work: Workload, preset: str, rows: str, *, use_cpu: bool) -> Config:
    """Return the settings of a preset's run on these rows: all of them in one batch, without dropout."""
    pairs = {"data__text_pair_column": "other", "data__text_column": "text"} if rows == PAIRS else {}
    return work.config(
        rows,
        work.small_encoder,
        work.folder / f"{preset}-{rows}-{'cpu' if use_cpu else 'device'}",
        preset=preset,
        model__dropout=0,
        model__head__dropout=0,
        training__learning_rate=_RATE,
        training__encoder_learning_rate=_RATE,
        training__num_train_epochs=2,
        training__per_device_train_batch_size=ROWS,
        training__max_grad_norm=0,
        training__use_cpu=use_cpu,
        **pairs,
    )


def build(config: Config) -> Trainer:
    components: Trainer = built_trainer(config)
    components.start_classifier()
    return components


def observed_on(work: Workload, preset: str, rows: str) -> tuple[Observed, Observed]:
    """Run a preset on the CPU and on the device, from the CPU's weights."""
    expected = build(config_of(work, preset, rows, use_cpu=True))
    weights = {name: value.clone() for name, value in expected.model.state_dict().items()}
    on_cpu = Observed(expected)
    on_cpu.run()
    found = build(config_of(work, preset, rows, use_cpu=work.device.type == "cpu"))
    if found.accelerator.device.type != work.device.type:
        raise RuntimeError(f"ran on {found.accelerator.device}, expected {work.device}")
    found.model.load_state_dict(weights)
    if not work.is_measurement:
        found.model.encoder.set_attn_implementation("eager")
    on_device = Observed(found)
    on_device.run()
    return on_cpu, on_device


@dataclass(frozen=True)
class Difference:
    """How far a preset's run on the device is from that on the CPU."""

    logits: float  # the largest difference
    loss: float = 0.0  # the largest difference of a step's loss, as a share of it
    gradient: float = 0.0  # the largest difference of a parameter's gradient, as a multiple of what is allowed
    parameter: str = ""  # the parameter of that gradient
    labelled: int = 0  # the number of token labels compared
    problems: tuple[str, ...] = ()  # what is outside the tolerance


def difference(expected: Observed, found: Observed) -> Difference:
    """Compare two runs of a preset."""
    problems = []
    assert expected.logits is not None
    assert found.logits is not None
    logits = float(np.abs(expected.logits - found.logits).max())
    if not logits <= LOGIT_TOLERANCE * (1 + float(np.abs(expected.logits).max())):
        problems.append(f"logits differ by {logits:.2g}")
    counts = [len(one.losses) for one in (expected, found)]
    if counts[0] != counts[1] or counts[0] < 2:
        problems.append(f"{counts[1]} steps, expected {counts[0]}, at least 2")
    loss = max(abs(one - two) / max(abs(one), 1e-3) for one, two in zip(expected.losses, found.losses, strict=False))
    if not loss <= LOSS_TOLERANCE:
        problems.append(f"losses differ by {loss:.2g} of themselves")
    worst, parameter = max(
        (gradient_difference(one, two) for one, two in zip(expected.gradients, found.gradients, strict=False)),
        default=(float("inf"), "no step has gradients"),
    )
    if not worst <= 1:
        problems.append(f"the gradient of {parameter} differs by {worst:.2g} times the tolerance")
    same = len(expected.labels) == len(found.labels) and all(
        np.array_equal(one, two) for one, two in zip(expected.labels, found.labels, strict=True)
    )
    if not same:
        problems.append("token labels differ")
    labelled = sum(int((values >= 0).sum()) for values in expected.labels)
    return Difference(logits, loss, worst, parameter, labelled, tuple(problems))


def gradient_difference(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> tuple[float, str]:
    """Return the largest difference of a parameter's gradient, as a multiple of what is allowed, and the parameter."""
    if expected.keys() != found.keys():
        return float("inf"), ", ".join(sorted(expected.keys() ^ found.keys())[:3])
    whole = float(torch.stack([gradient.norm() for gradient in expected.values()]).norm())
    return max(
        (
            float((found[name] - gradient).norm()) / (GRADIENT_SHARE * float(gradient.norm()) + WHOLE_SHARE * whole),
            name,
        )
        for name, gradient in expected.items()
    )


def baseline_difference(work: Workload, preset: str, rows: str) -> Difference:
    """Fit a baseline on the CPU and on the device; compare the probabilities of its predictions."""
    found = []
    for use_cpu in (True, work.device.type == "cpu"):
        config = config_of(work, preset, rows, use_cpu=use_cpu)
        train(config, display=ProgressDisplay(quiet=True), with_baselines=False)
        found.append(probabilities(Path(str(config.training.output_dir)) / "predictions_validation.csv"))
    apart = float(np.abs(found[0] - found[1]).max())
    problems = () if apart <= BASELINE_TOLERANCE else (f"probabilities differ by {apart:.2g}",)
    return Difference(apart, problems=problems)


def probabilities(file: Path) -> np.ndarray:
    """Read (N, C) probabilities from a file of predictions."""
    with file.open(encoding="utf-8", newline="") as sheet:
        lines = list(csv.DictReader(sheet))
    columns = [name for name in lines[0] if name.startswith("p_")]
    return np.array([[float(line[name]) for name in columns] for line in lines])


def checked(work: Workload, preset: str) -> dict[str, Difference]:
    """Compare a preset on each kind of rows that it takes."""
    found = {}
    for rows in (SINGLE, PAIRS):
        try:
            if config_of(work, preset, rows, use_cpu=True).baseline is not None:
                found[rows] = baseline_difference(work, preset, rows)
            else:
                found[rows] = difference(*observed_on(work, preset, rows))
        except ConfigError as error:
            if rows == PAIRS:
                raise
            found[rows] = Difference(0.0, parameter=f"takes no single texts: {error}")
        except Exception as error:
            found[rows] = Difference(float("nan"), problems=(f"{type(error).__name__}: {error}",))
    return found


def presets(work: Workload) -> list[Part]:
    """Check every preset."""
    no_tf32()
    write_rows(work)
    made: dict[str, Any] = {}
    lines: list[Sequence[str]] = []
    problems = []
    for preset in work.presets or preset_names():
        for rows, one in checked(work, preset).items():
            values = (f"{one.logits:.1e}", f"{one.loss:.1e}", f"{one.gradient:.1e}", one.parameter, str(one.labelled))
            lines.append([preset, rows.removeprefix("check-"), *values, "no" if one.problems else "yes"])
            made[f"{preset}, {rows}"] = asdict(one)
            problems += [f"{preset}, {rows}: {problem}" for problem in one.problems]
    tolerances = {
        "logits": LOGIT_TOLERANCE,
        "losses": LOSS_TOLERANCE,
        "gradients": [GRADIENT_SHARE, WHOLE_SHARE],
        "baselines": BASELINE_TOLERANCE,
    }
    header = ("preset", "rows", "logits", "loss", "gradient / allowed", "of parameter", "token labels", "equal")
    # Some presets are a record of their own, beside which others stand.
    name = "presets" if work.presets is None else f"presets, {', '.join(work.presets)}"
    return [Part(name, {"differences": made, "tolerances": tolerances}, table(header, lines), problems)]
