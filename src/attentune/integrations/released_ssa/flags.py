"""The released program's flags, and what each is here."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config.parse import coerce
from attentune.data.builtin import load_spec
from attentune.errors import ConfigError

# The tasks that the program knows, by their names here.
TASKS = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli")


@dataclass(frozen=True)
class OldFlag:
    """A flag of the released program.

    Attributes:
        name: as it is typed, without hyphens.
        default: the program's own.
        here: the setting that it fills, by dotted name, or in words what it does.
        kind: the type of its values.
        fills: whether `here` is a setting that takes the flag's value as it is.
    """

    name: str
    default: Any
    here: str
    kind: type = str
    fills: bool = False


FLAGS = (
    OldFlag("data_dir", "./glue_data/", "data.data_dir", fills=True),
    OldFlag("task_name", "RTE", "data.task", fills=True),
    OldFlag("output_dir", "./results", "results in OUTPUT_DIR/TASK_NAME, the run in its folder run"),
    OldFlag("bert_model", "bert-base-uncased", "model.name_or_path", fills=True),
    OldFlag("num_train_epochs", 3.0, "training.num_train_epochs, its whole part", float),
    OldFlag("train_batch_size", 32, "training.per_device_train_batch_size, after division by the next", int),
    OldFlag("gradient_accumulation_steps", 1, "training.gradient_accumulation_steps", int, fills=True),
    OldFlag("eval_batch_size", 32, "training.per_device_eval_batch_size", int, fills=True),
    OldFlag("learning_rate", 2e-5, "training.learning_rate", float, fills=True),
    OldFlag("warmup_proportion", 0.1, "training.warmup_ratio", float, fills=True),
    OldFlag("weight_decay", 0.01, "training.weight_decay", float, fills=True),
    OldFlag("adam_epsilon", 1e-8, "training.adam_epsilon", float, fills=True),
    OldFlag("max_seq_length", 128, "data.max_length", int, fills=True),
    OldFlag("seed", 42, "training.seed", int, fills=True),
    OldFlag("no_cuda", False, "training.use_cpu", bool, fills=True),
    OldFlag("fp16", False, "training.precision fp16", bool),
    OldFlag("only_bert", False, "preset bert", bool),
    OldFlag("co_training", False, "preset ssa-co-released", bool),
    OldFlag("cls_weight", 0.5, "model.token_gate.beta", float),
    OldFlag("attention_threshold", 0.3, "model.token_gate.attention_threshold", float),
    OldFlag("share_weight", True, "model.token_gate.share_weights", bool),
    OldFlag("aug_loss_weight", 0.3, "objective.alpha, which is 1 minus it", float),
    OldFlag("aug_threshold", 0.1, "labels.aug_threshold", float),
    OldFlag("rm_threshold", 0.7, "labels.rm_threshold", float),
    OldFlag("aug_ratio_each", 0.2, "labels.aug_ratio_each", float),
    OldFlag("double_ori", False, "labels.double_ori", bool),
    OldFlag("use_saved", False, "model.name_or_path is --ckpt, imported first if it is the program's", bool),
    OldFlag("ckpt", "", "see --use_saved"),
    OldFlag("do_first_eval", False, "score --ckpt, write first_test.tsv, and do not train", bool),
    OldFlag("vocab_file", "./vocab.txt", "the tokenizer of --ckpt, if that has none; else the encoder's own is taken"),
    OldFlag("do_lower_case", True, "with --vocab_file; else the encoder's tokenizer knows", bool),
)
# The RoBERTa program's names for the same, and its own for the warm-up.
SAME = {"model_name_or_path": "bert_model", "warmup_rate": "warmup_proportion"}
# Taken, said and passed over: they have no bearing on results here.
PASSED_OVER = {
    "cache_dir": "set HF_HOME",
    "ckpt_cache_dir": "nothing is downloaded for a checkpoint",
    "do_train": "always done, but for --do_first_eval",
    "do_eval": "always done",
    "do_test": "done where there is a test file",
    "num_show": "see attentune label",
    "local_rank": "several processes: attentune train under torchrun",
    "loss_scale": "fp16 scales by itself",
    "config_name": "the encoder's own is taken",
    "tokenizer_name": "the encoder's own is taken",
    "do_compare": "see attentune compare",
    "server_ip": "no debugger is waited for",
    "server_port": "no debugger is waited for",
}


def read_flags(given: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    """Every flag's value, the program's default where it is not given; what cannot be read is added to `problems`.

    Args:
        given: texts by the flag's name, those of `SAME` included.
        problems: gets one sentence for each value that cannot be used.
    """
    texts = {**given, **{name: given[other] for other, name in SAME.items() if other in given}}
    values: dict[str, Any] = {}
    for flag in FLAGS:
        values[flag.name] = flag.default
        if flag.name in texts:
            try:
                values[flag.name] = coerce(texts[flag.name], flag.kind)
            except ValueError as error:
                problems.append(f"--{flag.name}: got {texts[flag.name]!r}, expected {error}")
    if values["only_bert"] and values["co_training"]:
        problems.append("--only_bert and --co_training: choose one; the first trains without SSA.")
    if (values["use_saved"] or values["do_first_eval"]) and not values["ckpt"]:
        which = "--use_saved" if values["use_saved"] else "--do_first_eval"
        problems.append(f"{which}: needs the folder of a saved model: --ckpt results/RTE/dev_0.66")
    if values["gradient_accumulation_steps"] > values["train_batch_size"]:
        problems.append("--gradient_accumulation_steps: is above --train_batch_size, which it divides.")
    return values


def known_task(name: str) -> str:
    """The task's name here.

    Raises:
        ConfigError: it is none of those that the program knows.
    """
    try:
        task = load_spec(name).name
    except ConfigError:
        task = ""
    if task not in TASKS:
        raise ConfigError(
            f"--task_name: got {name!r}, expected one of the released program's tasks: CoLA, MNLI, MRPC, QNLI, QQP,"
            " RTE, SST-2, STS-B, WNLI. For other data: attentune train --preset ssa-hybrid-released"
        )
    return task


def preset_of(values: Mapping[str, Any]) -> str:
    """The preset that the flags ask for."""
    if values["only_bert"]:
        return "bert"
    return "ssa-co-released" if values["co_training"] else "ssa-hybrid-released"


def overrides_for(values: Mapping[str, Any], output_dir: str) -> dict[str, Any]:
    """The settings that the flags stand for, by dotted name, to go on top of `preset_of`.

    Args:
        values: from `read_flags`.
        output_dir: the run folder.
    """
    preset = preset_of(values)
    overrides = {flag.here: values[flag.name] for flag in FLAGS if flag.fills}
    parts = values["gradient_accumulation_steps"]
    overrides |= {
        "training.output_dir": output_dir,
        "training.num_train_epochs": float(int(values["num_train_epochs"])),
        "training.per_device_train_batch_size": values["train_batch_size"] // max(1, parts),
        # The program keeps the epoch that scored best, and logs each step's loss.
        "training.load_best_model_at_end": True,
        "training.metric_for_best_model": _chosen_by(known_task(values["task_name"])),
        "training.logging_steps": 1,
    }
    if values["fp16"]:
        overrides["training.precision"] = "fp16"
    if preset == "bert":
        return overrides
    overrides |= {
        "model.token_gate.share_weights": values["share_weight"],
        "objective.alpha": round(1.0 - values["aug_loss_weight"], 10),
        **{
            f"labels.{name}": values[name] for name in ("aug_threshold", "rm_threshold", "aug_ratio_each", "double_ori")
        },
    }
    if preset == "ssa-hybrid-released":
        overrides["model.token_gate.beta"] = values["cls_weight"]
        overrides["model.token_gate.attention_threshold"] = values["attention_threshold"]
    return overrides


def _chosen_by(task: str) -> str:
    """What tells the best epoch; the program takes accuracy on the tasks that have F1 too."""
    metrics = load_spec(task).metrics
    return "accuracy" if "accuracy" in metrics else metrics[0]


_MAX_BYTES = 1 << 20


def recorded_flags(checkpoint: Path) -> dict[str, Any]:
    """Flags by name, from the file that the program wrote beside a checkpoint; empty where there is none to be read.

    The checkpoint dev_0.66 has its file dev_results_0.66.txt beside it; a file in the checkpoint's own folder goes
    before that.
    """
    folder = checkpoint.resolve()
    own = sorted(folder.glob("dev_results_*.txt"))
    beside = folder.parent / f"dev_results_{folder.name.removeprefix('dev_')}.txt"
    file = own[0] if len(own) == 1 else beside
    try:
        if file.stat().st_size > _MAX_BYTES:
            return {}
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    text = next((line.removeprefix("args = ") for line in lines if line.startswith("args = ")), "")
    return _namespace(text)


def _namespace(text: str) -> dict[str, Any]:
    """What `Namespace(a=1, b='x')` holds; nothing is run, and what is no plain value is left out."""
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    if not isinstance(call, ast.Call):
        return {}
    found = {}
    for keyword in call.keywords:
        if keyword.arg is not None and isinstance(keyword.value, ast.Constant):
            found[keyword.arg] = keyword.value.value
    return found
