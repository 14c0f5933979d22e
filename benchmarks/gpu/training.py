"""Training speed and memory: Attentune against transformers' Trainer, and what SSA's token labels cost.

Only the epochs after the first are timed: the first also pays for CUDA's start, the choice of kernels and compilation.
An epoch's time includes the making of its batches and of its token labels, but no scoring and no checkpoint.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.utils import is_flash_attn_2_available

from attentune.models.precision import has_fast_bf16
from attentune.models.saving import quiet
from attentune.nn.compiled.memory import forget_peak_memory, peak_memory_bytes
from attentune.training.callbacks import ProgressDisplay, TrainingCallback, TrainingState
from attentune.training.run import train
from benchmarks.common import interleaved, lines_of
from benchmarks.gpu.workload import Part, Workload, no_tf32, synchronize, with_attention
from benchmarks.speed.contenders import AT_BEST, QUIET, SCHEDULE, examples_of

FLASH = "flash_attention_2"
# Accelerate compiles the model of a training program that finds this variable, Attentune's too; Attentune has no flag.
_COMPILE = "ACCELERATE_DYNAMO_BACKEND"
_LEFT_OUT = "left out"
_COLUMNS = ("tokens_per_second", "ratio", "epoch_seconds", "first_epoch_seconds", "peak_memory_mib")


@dataclass(frozen=True)
class Contender:
    """What is timed."""

    preset: str | None  # Attentune's preset; None for transformers' Trainer
    precision: str  # "fp32" (without TF32) or "bf16"
    attention: str = "sdpa"  # an attention implementation of transformers
    is_compiled: bool = False  # whether the model is compiled by `torch.compile`
    workers: int = 0  # processes that make the Trainer's batches; 0 for its own
    generator: str | None = None  # the token-label generator, if not the preset's

    @property
    def name(self) -> str:
        words = ["Trainer" if self.preset is None else f"attentune {self.preset}", self.precision, self.attention]
        words += ["compiled"] if self.is_compiled else []
        words += [f"{self.workers} workers"] if self.workers else []
        return ", ".join(words + ([] if self.generator is None else [f"{self.generator} labels"]))


def contenders(work: Workload) -> list[Contender]:
    """Return what `training` times; on a CPU little, and nothing that takes minutes to compile."""
    made = []
    for precision in ("fp32", "bf16"):
        for attention in ("eager", "sdpa", FLASH):
            if attention == FLASH and precision == "fp32":
                continue  # it computes in half precision only
            made += [Contender(preset, precision, attention) for preset in (None, "bert")]
        made += [Contender(preset, precision, is_compiled=True) for preset in (None, "bert")]
        made.append(Contender("ssa-hybrid", precision))
    made.append(Contender(None, "bf16", workers=2))
    made = [one for one in made if work.compiled or not one.is_compiled]
    if work.contenders is not None:
        made = [one for one in made if any(word in one.name for word in work.contenders)]
        return made if work.is_measurement else [one for one in made if not one.is_compiled]
    small = [one for one in made if not (one.is_compiled or one.workers or one.attention == FLASH)]
    return made if work.is_measurement else [one for one in small if one.precision == "fp32"]


class EpochClock(TrainingCallback):
    """Notes when epochs begin and end; a callback of Attentune's loop, and through `peer` of the Trainer's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.began: list[float] = []
        self.ended: list[float] = []

    def on_epoch_begin(self, state: TrainingState) -> None:
        synchronize(self._device)
        self.began.append(time.perf_counter())

    def on_epoch_end(self, state: TrainingState) -> None:
        synchronize(self._device)
        self.ended.append(time.perf_counter())

    def peer(self) -> TrainerCallback:
        """Return a callback of the Trainer that notes times here."""
        clock = self

        class Peer(TrainerCallback):
            def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
                clock.on_epoch_begin(state)

            def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
                clock.on_epoch_end(state)

        return Peer()

    @property
    def first_s(self) -> float:
        """The seconds of the first epoch."""
        return self.ended[0] - self.began[0]

    @property
    def epoch_s(self) -> float:
        """The mean seconds of the others, with what is done between them."""
        return (self.ended[-1] - self.ended[0]) / (len(self.ended) - 1)


def timed_run(work: Workload, contender: Contender, texts: str, encoder: Path) -> dict[str, Any]:
    """Train once; return seconds of an epoch, of the first one and for an epoch's labels, and the peak memory."""
    clock = EpochClock(work.device)
    forget_peak_memory()
    torch._dynamo.reset()
    no_tf32()
    with tempfile.TemporaryDirectory(dir=work.folder) as folder:
        run = _train_peer if contender.preset is None else _train_ours
        labels_s = run(work, contender, texts, encoder, Path(folder), clock)
    return {
        "epoch_seconds": clock.epoch_s,
        "first_epoch_seconds": clock.first_s,
        "label_seconds": labels_s / (work.epochs - 1),
        "peak_memory_bytes": peak_memory_bytes(work.device),
    }


def _train_ours(
    work: Workload, contender: Contender, texts: str, encoder: Path, folder: Path, clock: EpochClock
) -> float:
    """Train with Attentune; return the seconds for token labels."""
    if contender.attention != "sdpa":
        encoder = with_attention(work, encoder, contender.attention)
    changes = {} if contender.generator is None else {"labels__generator": contender.generator}
    config = work.config(
        texts, encoder, folder, preset=contender.preset, training__precision=contender.precision, **changes
    )
    if contender.is_compiled:
        os.environ[_COMPILE] = "inductor"
    try:
        result = train(config, display=ProgressDisplay(quiet=True), callbacks=[clock], with_baselines=False)
    finally:
        os.environ.pop(_COMPILE, None)
    return float(result.train.get("label_seconds", 0.0))


def _train_peer(
    work: Workload, contender: Contender, texts: str, encoder: Path, folder: Path, clock: EpochClock
) -> float:
    """Train with transformers' Trainer at its best: batches by length, fused AdamW, no check of losses for NaN."""
    config = work.config(texts, encoder, folder)
    examples, tokenizer, _ = examples_of(config)
    with quiet():  # the new weights of the classifier
        model = AutoModelForSequenceClassification.from_pretrained(
            encoder, num_labels=2, attn_implementation=contender.attention
        )
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=work.batch_size,
        num_train_epochs=work.epochs,
        learning_rate=config.training.learning_rate,
        bf16=contender.precision == "bf16",
        torch_compile=contender.is_compiled,
        dataloader_num_workers=contender.workers,
        dataloader_persistent_workers=contender.workers > 0,
        logging_nan_inf_filter=False,  # it waits for the GPU in each step
        use_cpu=work.device.type == "cpu",
        **SCHEDULE,
        **AT_BEST,
        **QUIET,
    )
    multiple = 8 if contender.precision == "bf16" else None  # for tensor cores
    peer = Trainer(
        model,
        arguments,
        train_dataset=examples["train"],
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple),
        callbacks=[clock.peer()],
    )
    peer.remove_callback(PrinterCallback)
    peer.train()
    return 0.0


def unavailable(work: Workload, contender: Contender) -> str | None:
    """Return why a contender cannot run here; None if it can."""
    if contender.attention == FLASH and not is_flash_attn_2_available():
        return "the package flash_attn is not installed"
    if contender.precision == "bf16" and work.is_measurement and not has_fast_bf16(work.device):
        return "this GPU does not multiply bf16"
    return None


def alternating_runs(
    work: Workload, found: Sequence[Contender], texts: str, encoder: Path
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Run all contenders once in each repeat; return the runs, and what failed.

    What is compiled runs once, as compilation takes most of its time.
    """
    by_name = {one.name: one for one in found}

    def run(name: str) -> dict[str, Any]:
        reason = unavailable(work, by_name[name])
        if reason is not None:
            return {"reason": f"{_LEFT_OUT}: {reason}"}
        try:
            return timed_run(work, by_name[name], texts, encoder)
        except Exception as error:
            return {"reason": f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"}

    runs = interleaved(run, by_name, work.repeats, once=[one.name for one in found if one.is_compiled])
    reasons = {name: own[0]["reason"] for name, own in runs.items() if "reason" in own[0]}
    return runs, [f"{name}: {reason}" for name, reason in reasons.items() if not reason.startswith(_LEFT_OUT)]


def summary(
    runs: Mapping[str, list[dict[str, Any]]], found: Sequence[Contender], tokens: int
) -> dict[str, dict[str, Any]]:
    """Return the medians of each contender, with `ratio`: its speed against the fastest Trainer of its precision."""
    timed = [one for one in found if "reason" not in runs[one.name][0]]
    epoch_s = {one.name: statistics.median(run["epoch_seconds"] for run in runs[one.name]) for one in timed}
    made: dict[str, dict[str, Any]] = {}
    for one in found:
        own = runs[one.name]
        if one not in timed:
            made[one.name] = own[0]
            continue
        peers = [epoch_s[peer.name] for peer in timed if peer.preset is None and peer.precision == one.precision]
        made[one.name] = {
            "tokens_per_second": round(tokens / epoch_s[one.name]),
            "ratio": round(min(peers) / epoch_s[one.name], 3) if peers else None,
            "epoch_seconds": round(epoch_s[one.name], 3),
            "first_epoch_seconds": round(statistics.median(run["first_epoch_seconds"] for run in own), 3),
            "peak_memory_mib": round(statistics.median(run["peak_memory_bytes"] for run in own) / 2**20),
        }
    return made


def training(work: Workload) -> Iterator[Part]:
    """Time all contenders for each encoder and each kind of texts."""
    for encoder_name, encoder in work.encoders.items():
        for texts in work.texts:
            found = contenders(work)
            runs, problems = alternating_runs(work, found, texts, encoder)
            tokens = examples_of(work.config(texts, encoder, work.folder / "unused"))[2]
            made = summary(runs, found, tokens)
            facts = {
                "rows": work.rows,
                "tokens": tokens,
                "batch_size": work.batch_size,
                "contenders": made,
                "runs": runs,
            }
            yield Part(f"training, {encoder_name}, {texts}", facts, lines_of(made, _COLUMNS), problems)


def labels(work: Workload) -> list[Part]:
    """Time an epoch of SSA by generator, against one of `bert`; the Trainer is not needed for it."""
    precision = "bf16" if has_fast_bf16(work.device) and work.is_measurement else "fp32"
    found = [Contender("bert", precision)]
    found += [Contender("ssa-co", precision, generator=name) for name in ("flip", "released")]
    texts, encoder = work.texts[0], work.small_encoder
    runs, problems = alternating_runs(work, found, texts, encoder)
    if problems:
        return [Part("labels", {"runs": runs}, [], problems)]

    def median(one: Contender, what: str) -> float:
        return statistics.median(run[what] for run in runs[one.name])

    plain_s = median(found[0], "epoch_seconds")
    made = {
        one.name: {
            "epoch_seconds": round(median(one, "epoch_seconds"), 3),
            "time_against_bert": round(median(one, "epoch_seconds") / plain_s, 3),
            "labels_share_of_bert": round(median(one, "label_seconds") / plain_s, 3),
            "peak_memory_mib": round(median(one, "peak_memory_bytes") / 2**20),
        }
        for one in found
    }
    columns = ("epoch_seconds", "time_against_bert", "labels_share_of_bert", "peak_memory_mib")
    return [Part(f"labels, {texts}", {"methods": made, "runs": runs}, lines_of(made, columns))]
