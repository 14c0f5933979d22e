"""`attentune COMMAND ...`: finds the command, runs it, and turns what went wrong into a message and an exit status.

Exit status: 0 done; 1 a bug of ours; 2 a user's mistake (one message, no traceback); 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

from attentune import __version__
from attentune.config.parse import did_you_mean
from attentune.errors import AttentuneError, ConfigError

COMMANDS = {
    "train": "fine-tune an encoder, score it and save it",
    "compare": "train presets on tasks with several seeds side by side, and show how far they spread",
    "report": "write tables, verdicts and figures of comparisons and runs as a page, Markdown, LaTeX or CSV",
    "reproduce": "make a table or figure of the papers again, and set it beside theirs",
    "search": "look for good settings on a task, and write the best as a configuration",
    "evaluate": "score a saved run on labelled texts",
    "calibrate": "fit a temperature and thresholds of a finished run to rows it has not seen",
    "predict": "label texts with a saved run",
    "explain": "show how much each word of a text mattered to what a run says of it",
    "export": "write a saved run as ONNX, to serve it without PyTorch",
    "run-ssa": "take the flags of the released SSA program, and write its result files",
    "import-ssa": "write a checkpoint of the released SSA program as a run folder",
    "app": "serve a page on which texts are predicted and explained",
    "faithfulness": "find out whether explanations are true",
    "label": "show what a run was taught of each token, and how important it holds each to be",
    "layers": "show which encoder layers a run with squeeze-and-excitation listens to",
    "stress": "find out how far a score falls when texts are changed",
    "hans": "score runs of an entailment task on HANS, by heuristic",
    "submit": "zip the predictions of GLUE's test rows for the GLUE site",
    "doctor": "look for trouble in a data set before training on it",
    "tasks": "list the tasks that are known by name",
    "presets": "list the methods",
    "params": "count a run's or a preset's parameters, part by part",
    "demo": "train the presets on made-up reviews with planted shortcuts and show what each falls for",
}

_USAGE = f"""attentune {__version__}: fine-tune text encoders that attend to what matters.

usage: attentune COMMAND [flags]      attentune COMMAND --help tells all of a command's flags

commands:
{{commands}}

first steps:
  attentune demo
  attentune train --train_file my.csv --text_column text --label_column label --output_dir runs/first
  attentune predict runs/first --text "what is this?"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is returned."""
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
    except BrokenPipeError:  # the reader, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:
        import traceback

        traceback.print_exc()
        print("attentune: this is a bug of ours; please report it with the lines above.", file=sys.stderr)
        return 1


def _printable(text: str) -> str:
    """What is in files may be in messages; no terminal should obey it."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else ascii(sign)[1:-1] for sign in text)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        usage = _USAGE.format(commands="\n".join(f"  {command:<14}{text}" for command, text in COMMANDS.items()))
        print(usage, file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] == "--version":
        print(__version__)
        return 0
    command = words[0]
    if command not in COMMANDS:
        raise ConfigError(
            f"{command!r}: there is no such command.{did_you_mean(command, COMMANDS)} Known: {', '.join(COMMANDS)}."
        )
    try:
        return importlib.import_module(f"attentune.cli.{command.replace('-', '_')}").run(words[1:])
    except SystemExit as end:  # argparse's --help
        return int(end.code or 0)


def run() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        # The code page of a Windows console may lack a character of a text.
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())


if __name__ == "__main__":
    run()
