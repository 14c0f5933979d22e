"""`attentune COMMAND ...`: the table of commands; dispatch to one, and turn errors into messages and exit statuses.

Exit status: 0 success; 1 internal error; 2 user error (one message, no traceback); 3 `train --strict` only: the model
has not learnt more than a baseline; 130 interrupted by Ctrl-C.
"""

import gc
import importlib
import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from attentune import __version__
from attentune.config.parse import did_you_mean
from attentune.errors import AttentuneError, ConfigError
from attentune.execution.executor import limit_threads
from attentune.nn.compiled.native import origin
from attentune.plugins import command_module, command_names
from attentune.results import commit

# The commands by the groups of the help; each has a module of its name in this folder.
GROUPS: dict[str, dict[str, str]] = {
    "make a model": {
        "train": "fine-tune an encoder, evaluate it and save it; --adapt: adapt it to texts without labels",
        "auto": "find and train the best model for your rows within a time limit",
        "search": "search hyperparameters on a task, and write the best settings as a configuration",
        "compare": "train presets on tasks with several seeds and test their differences; or compare runs",
    },
    "use it": {
        "predict": "predict texts with a saved run",
        "evaluate": "evaluate a saved run on labelled texts, or on HANS (--suite hans)",
        "explain": "score how much each word contributed to a prediction; --fit: in the pass that predicts",
        "calibrate": "fit a temperature and decision thresholds of a finished run on held-out rows",
        "serve": "serve a web page and a JSON API that predict and explain texts",
        "export": "export a saved run as ONNX, or for transformers",
        "report": "report comparisons and runs: tables, verdicts and figures as HTML, Markdown or LaTeX",
    },
    "your data": {
        "doctor": "check a dataset for problems before training",
        "suggest": "choose the texts of a file whose labels would help a saved run most",
        "init": "write a commented configuration for a file of rows",
    },
    "look things up": {
        "list": "list the built-in tasks, the presets (methods), known encoders or the settings",
        "params": "count the parameters of a run or preset, by component",
        "submit": "write a zip of GLUE test predictions for the GLUE leaderboard",
        "demo": "train methods on real sentences of two domains and score them on a third",
    },
}
COMMANDS = tuple(name for group in GROUPS.values() for name in group)
_USAGE = f"""attentune {__version__}: fine-tune text encoders that attend to what matters.

usage: attentune COMMAND [flags]      attentune COMMAND --help lists the flags of a command

{{commands}}

first steps:
  attentune demo
  attentune doctor my.csv
  attentune train my.csv --label stars --output_dir runs/first
  attentune predict runs/first --text "what is this?"
"""


_LESS_MEMORY = (
    "out of memory. Use a smaller --max_length, or smaller batches: --per_device_train_batch_size 8"
    " --gradient_accumulation_steps 4 trains as batches of 32 do. The allocation:"
)


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except AttentuneError as error:
        lines = error.problems if isinstance(error, ConfigError) else (str(error),)
        for line in lines:
            print(f"attentune: {_printable(line)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("attentune: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error):
            allocation, *_ = str(error).splitlines() or ["not named by Python."]
            print(f"attentune: {_LESS_MEMORY} {_printable(allocation)}", file=sys.stderr)
            return 2
        import traceback

        traceback.print_exc()
        print("attentune: internal error; please report it with the lines above.", file=sys.stderr)
        return 1


def _printable(text: str) -> str:
    """Escape control characters: messages may quote files, and a terminal must not interpret them."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else ascii(sign)[1:-1] for sign in text)


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["help"] and words[1:2] and not words[1].startswith("-"):
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] in ("--version", "-V", "version"):
        print(f"{__version__} (commit {commit() or 'unknown'}; layers in C: {origin()})")
        return 0
    limit_threads()
    command = words[0]
    if command in COMMANDS:
        module = importlib.import_module(f"attentune.cli.{command}")
    elif command in command_names():
        module = command_module(command)
    else:
        known = (*COMMANDS, *command_names())
        meant = did_you_mean(command, known)
        if command.startswith("-"):
            meant = " The command comes first, then its flags, as in `attentune train FILE --lr 2e-5`."
        elif Path(command).is_file():
            meant = f" Did you mean `attentune train {shlex.quote(command)}`?"
        raise ConfigError(f"{command!r}: unknown command.{meant} Known: {', '.join(known)}.")
    try:
        return module.run(words[1:])
    except SystemExit as end:  # argparse's --help
        return int(end.code or 0)


def _usage() -> str:
    others = {name: command_module(name).SUMMARY for name in command_names()}
    groups = GROUPS | ({"from other packages": others} if others else {})
    width = max(map(len, (*COMMANDS, *others))) + 2
    tables = (
        f"{group}:\n" + "\n".join(f"  {name:<{width}}{summary}" for name, summary in commands.items())
        for group, commands in groups.items()
    )
    return _USAGE.format(commands="\n\n".join(tables))


def run() -> None:
    """Run the console script."""
    for stream in (sys.stdout, sys.stderr):
        # The code page of a Windows console may lack characters of a text.
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="backslashreplace")
    status = main()
    # At its end the interpreter would search all objects for cycles: with PyTorch 1.6 s, without 0.25 s.
    gc.freeze()
    sys.exit(status)


if __name__ == "__main__":
    run()
