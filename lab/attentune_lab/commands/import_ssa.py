"""`attentune import-ssa`: convert a checkpoint of the released SSA program."""

import sys
from collections.abc import Sequence

from attentune.cli.flags import Parser
from attentune.config.parse import coerce
from attentune.errors import ConfigError

SUMMARY = "convert a checkpoint of the released SSA program to a run folder"
_EXAMPLES = """examples:
  attentune import-ssa results/RTE/dev_0.6606 --output_dir runs/rte --data_dir glue_data
  attentune import-ssa ssa_ckpt_base/RTE/ssa_base --task_name RTE --cls_weight 0.5 --tokenizer bert-base-uncased \\
      --output_dir runs/rte

Settings that the weights do not show are read from dev_results_*.txt next to the checkpoint, or given here."""
_TYPES = {"task_name": str, "cls_weight": float, "attention_threshold": float, "max_seq_length": int}


def parser() -> Parser:
    made = Parser(
        prog="attentune import-ssa",
        usage="attentune import-ssa DIR --output_dir RUN [flags]",
        description="Convert a checkpoint of the program released by SSA's authors to a run folder.",
        epilog=_EXAMPLES,
    )
    made.add_argument("checkpoint", metavar="DIR", help="the checkpoint folder, with pytorch_model.bin and config.json")
    made.add_argument("--output_dir", metavar="RUN", help="the run folder to write: new or empty")
    made.add_argument("--task_name", metavar="TASK", help="the task it was trained on: RTE, CoLA, ...")
    made.add_argument("--data_dir", metavar="DIR", help="the folder of the GLUE files, for attentune evaluate")
    made.add_argument(
        "--tokenizer", metavar="NAME", help="folder, hub name or vocab.txt of the tokenizer (default: DIR)"
    )
    made.add_argument("--cased", action="store_true", help="with a vocab.txt: do not lowercase texts")
    made.add_argument("--cls_weight", metavar="X", help="the weight of [CLS] in training")
    made.add_argument("--attention_threshold", metavar="X", help="the attention threshold in training")
    made.add_argument("--max_seq_length", metavar="N", help="maximum length of a text or pair in tokens")
    return made


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    flags = {}
    for name, kind in _TYPES.items():
        if getattr(parsed, name) is not None:
            try:
                flags[name] = coerce(getattr(parsed, name), kind)
            except ValueError as error:
                problems.append(f"--{name}: got {getattr(parsed, name)!r}, expected {error}")
    if parsed.output_dir is None:
        problems.append("--output_dir: is missing; name a new folder: --output_dir runs/rte")
    if problems:
        raise ConfigError(problems)

    from attentune_lab.released_ssa.convert import import_ssa

    made = import_ssa(
        parsed.checkpoint,
        parsed.output_dir,
        flags=flags,
        data_dir=parsed.data_dir,
        tokenizer=parsed.tokenizer,
        lower_case=not parsed.cased,
        say=lambda text: print(text, file=sys.stderr),
    )
    print(f"{made.folder}: preset {made.preset}, task {made.task}")
    return 0
