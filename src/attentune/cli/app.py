"""`attentune app`: serve the web page."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attentune.cli.best import add_best_flag, use_best
from attentune.cli.early_checks import check_named
from attentune.cli.flags import Parser, add_precision_flag, names_in, whole_number
from attentune.errors import ConfigError

_EXAMPLES = """examples:
  attentune app runs/mine
  attentune app runs/mine --compare_with runs/other
  attentune app runs/mine --port 8080 --max_characters 200000
  attentune app runs/mine --host 0.0.0.0 --allowed_hosts lab-3.example.org     (anyone who can reach it can use it)

By default the page is served on this machine only (see --host). It stores nothing and contacts no other host."""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune app",
        usage="attentune app RUN [flags]",
        description="Serve a web page that predicts and explains texts with a saved run.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    add_best_flag(made, with_task=True)
    made.add_argument("--compare_with", metavar="RUN", help="a second run, shown next to the first")
    made.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    made.add_argument("--port", default="7860", help="the port (default: 7860; 0: any free port)")
    made.add_argument(
        "--allowed_hosts", metavar="NAMES", help="further host names that browsers may use, comma-separated"
    )
    made.add_argument("--max_characters", default="100000", help="maximum length of a text (default: 100000)")
    made.add_argument("--max_upload_mb", default="10", help="maximum size of an uploaded file (default: 10)")
    made.add_argument("--max_rows", default="10000", help="maximum number of rows of a file (default: 10000)")
    add_precision_flag(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Serve until Ctrl-C; return the exit status."""
    parsed, problems = parser().parse(arguments)
    names = ("port", "max_characters", "max_upload_mb", "max_rows")
    numbers = {
        name: whole_number(f"--{name}", getattr(parsed, name), problems, minimum=0 if name == "port" else 1) or 0
        for name in names
    }
    if numbers["port"] > 65535:
        problems.append(f"--port: got {numbers['port']}, expected a number from 0 to 65535.")
    if importlib.util.find_spec("gradio") is None:
        problems.append("app: needs Gradio, which is not installed; run: pip install 'attentune[app]'")
    if problems:
        raise ConfigError(problems)
    use_best(parsed)
    check_named(parsed)

    from attentune.app.server import serve
    from attentune.cli.report import write_page
    from attentune.serving.server import bound_socket

    with bound_socket(parsed.host, numbers["port"]) as listener:
        service = _service(parsed, numbers)
        own_name = [] if parsed.host in ("0.0.0.0", "::", "") else [parsed.host]
        others = names_in(parsed.allowed_hosts)
        title = f"Attentune: {' and '.join(name for name, _ in service.runs)}"
        folders = [str(saved.folder) for _, saved in service.runs]
        serve(
            service,
            listener,
            hosts=[*own_name, *others],
            title=title,
            build_report=lambda file: write_page(folders, file),
            ready=lambda url: _announce(url, parsed.host),
        )
    return 0


def _service(parsed: Any, numbers: dict[str, int]) -> Any:
    from attentune.app.limits import RequestLimits
    from attentune.app.service import ExplanationService
    from attentune.inference.predictor import Predictor

    folders = [parsed.run, *([parsed.compare_with] if parsed.compare_with is not None else [])]
    names = [Path(folder).resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = folders
    limits = RequestLimits(numbers["max_characters"], numbers["max_upload_mb"] * 2**20, numbers["max_rows"])
    runs = [(name, Predictor.load(folder)) for name, folder in zip(names, folders, strict=True)]
    return ExplanationService(runs, limits=limits, precision=parsed.precision)


def _announce(url: str, host: str) -> None:
    print(f"The page is at {url} (stop it with Ctrl-C).", file=sys.stderr)
    if host not in ("127.0.0.1", "localhost", "::1"):
        print(f"It listens on {host or 'all addresses'}: anyone who can reach it can use it.", file=sys.stderr)
    sys.stderr.flush()
