"""The flags of the released program and the settings that they correspond to."""

import ast
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config.parse import coerce, did_you_mean, parse_section
from attentune.config.schema import setting
from attentune.errors import CheckpointError, ConfigError

# The tasks of the released program, by their names in Attentune.
TASKS = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli")


@dataclass(frozen=True)
class OldFlag:
    name: str  # the name of the flag, without hyphens
    default: Any  # the default value in the released program
    here: str  # the dotted name of the setting that corresponds to the flag, or a description of its effect
    kind: type = str  # the type of the values
    fills: bool = False  # whether `here` is a setting to which the value of the flag is assigned unchanged


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
    OldFlag("aug_threshold", 0.1, "labels.options.aug_threshold", float),
    OldFlag("rm_threshold", 0.7, "labels.options.rm_threshold", float),
    OldFlag("aug_ratio_each", 0.2, "labels.options.aug_ratio_each", float),
    OldFlag("double_ori", False, "labels.options.double_ori", bool),
    OldFlag("use_saved", False, "model.name_or_path is --ckpt, imported first if it is the program's", bool),
    OldFlag("ckpt", "", "see --use_saved"),
    OldFlag("do_first_eval", False, "score --ckpt, write first_test.tsv, and do not train", bool),
    OldFlag("vocab_file", "./vocab.txt", "the tokenizer of --ckpt, if that has none; else the encoder's own is taken"),
    OldFlag("do_lower_case", True, "with --vocab_file; else the encoder's tokenizer knows", bool),
)
# Aliases of flags in the released RoBERTa program.
SAME = {"model_name_or_path": "bert_model", "warmup_rate": "warmup_proportion"}
# Accepted with a message, but ignored: they do not affect results.
IGNORED_FLAGS = {
    "cache_dir": "set HF_HOME",
    "ckpt_cache_dir": "nothing is downloaded for a checkpoint",
    "do_train": "always done, but for --do_first_eval",
    "do_eval": "always done",
    "do_test": "done where there is a test file",
    "num_show": "see attentune label",
    "local_rank": "several processes: attentune train under torchrun",
    "loss_scale": "the loss scale of fp16 is automatic",
    "config_name": "the encoder's own is taken",
    "tokenizer_name": "the encoder's own is taken",
    "do_compare": "see attentune compare",
    "server_ip": "no remote debugger is supported",
    "server_port": "no remote debugger is supported",
}


@dataclass(frozen=True)
class ReleasedOptions:
    """The settings of the label generator `released`: `labels.options`."""

    aug_ratio_each: float = setting(
        0.2, "how much the share of labelled samples rises each epoch, while it stays below 1", minimum=0, maximum=1
    )
    aug_threshold: float = setting(0.1, "the probability that a token starts a masked span", minimum=0, maximum=1)
    rm_threshold: float = setting(
        0.7, "a draw above it masks 3 tokens, one between 2 x this - 1 and it 2, else 1", minimum=0, maximum=1
    )
    double_ori: bool = setting(False, "add all original rows to the samples of each epoch but the first")


def released_options(options: Mapping[str, Any] | None) -> ReleasedOptions:
    """Check the value of `labels.options`."""
    problems: list[str] = []
    parsed = parse_section(ReleasedOptions, options or {}, "labels.options", problems)
    if problems:
        raise ConfigError(problems)
    return parsed


def read_flags(given: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    """Parse the values of all flags; flags that are not given get the defaults of the released program."""
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
    from attentune.data.builtin import load_spec

    try:
        task = load_spec(name).name
    except ConfigError:
        task = ""
    if task not in TASKS:
        raise ConfigError(
            f"--task_name: got {name!r}, expected one of the released program's tasks: CoLA, MNLI, MRPC, QNLI, QQP,"
            f" RTE, SST-2, STS-B, WNLI.{did_you_mean(name, TASKS)} For other"
            " data: attentune train --preset ssa-hybrid-released"
        )
    return task


def preset_of(values: Mapping[str, Any]) -> str:
    if values["only_bert"]:
        return "bert"
    return "ssa-co-released" if values["co_training"] else "ssa-hybrid-released"


def overrides_for(values: Mapping[str, Any], output_dir: str) -> dict[str, Any]:
    """Return the settings that correspond to the flags, by dotted name, as overrides of the preset from `preset_of`."""
    preset = preset_of(values)
    overrides = {flag.here: values[flag.name] for flag in FLAGS if flag.fills}
    parts = values["gradient_accumulation_steps"]
    overrides |= {
        "training.output_dir": output_dir,
        "training.num_train_epochs": float(int(values["num_train_epochs"])),
        "training.per_device_train_batch_size": values["train_batch_size"] // max(1, parts),
        # The released program keeps the epoch with the best dev score, and logs the loss of each step.
        "training.load_best_model_at_end": True,
        "training.metric_for_best_model": _chosen_by(known_task(values["task_name"])),
        "training.logging_steps": 1,
    }
    if values["fp16"]:
        overrides["training.precision"] = "fp16"
    if preset == "bert":
        return overrides
    options = {field.name: values[field.name] for field in dataclasses.fields(ReleasedOptions)}
    released_options(options)
    overrides |= {
        "labels.options": options,
        "model.token_gate.share_weights": values["share_weight"],
        "objective.alpha": round(1.0 - values["aug_loss_weight"], 10),
    }
    if preset == "ssa-hybrid-released":
        overrides["model.token_gate.beta"] = values["cls_weight"]
        overrides["model.token_gate.attention_threshold"] = values["attention_threshold"]
    return overrides


def _chosen_by(task: str) -> str:
    """Return the metric that selects the best epoch in the released program: accuracy if the task has it."""
    from attentune.data.builtin import load_spec

    metrics = load_spec(task).metrics
    return "accuracy" if "accuracy" in metrics else metrics[0]


_MAX_BYTES = 1 << 20


def recorded_flags(checkpoint: Path) -> dict[str, Any]:
    """Read the flags that the released program recorded in a result file.

    For a checkpoint folder dev_0.66 the file is dev_results_0.66.txt in the parent folder; a single dev_results_*.txt
    in the checkpoint folder itself takes precedence.
    """
    folder = checkpoint.resolve()
    files = sorted(folder.glob("dev_results_*.txt"))
    file = folder.parent / f"dev_results_{folder.name.removeprefix('dev_')}.txt"
    if len(files) == 1:
        file = files[0]
    elif files and not file.is_file():
        raise CheckpointError(
            f"{folder}: holds {len(files)} result files ({', '.join(path.name for path in files[:3])}), expected one"
            " with the flags of the run. Move the others to another folder."
        )
    try:
        if file.stat().st_size > _MAX_BYTES:
            return {}
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    text = next((line.removeprefix("args = ") for line in lines if line.startswith("args = ")), "")
    return _namespace(text)


def _namespace(text: str) -> dict[str, Any]:
    """Parse text such as `Namespace(a=1, b='x')` without running it; values that are not literals are omitted."""
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    if not isinstance(call, ast.Call):
        return {}
    values = {}
    for keyword in call.keywords:
        if keyword.arg is not None and isinstance(keyword.value, ast.Constant):
            values[keyword.arg] = keyword.value.value
    return values
