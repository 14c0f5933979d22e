"""`attentune export`: write a run for serving."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attentune.cli.flags import check, parser_of
from attentune.cli.inputs import check_named, tell
from attentune.cli.output import number, table
from attentune.io.files import check_new_folder

if TYPE_CHECKING:
    from attentune.integrations.onnx import Export

_HELP = """
attentune export RUN --output_dir DIR [flags]

Export a saved run to a folder that works without PyTorch, or without Attentune, and check it.

RUN  a run folder or checkpoint
--output_dir DIR  the folder to write: new or empty
--format onnx|transformers  onnx or transformers (default: onnx)
--code auto|stock|remote  transformers: stock (a class of transformers), remote (with the model code, loaded with
    trust_remote_code), or auto: stock where it gives the run's logits and predictions (auto if not given)
--quantize int8  also write a graph with 8-bit weights: int8

examples:
  attentune export runs/cola --format onnx --output_dir served/cola
  attentune export runs/cola --output_dir served/cola --quantize int8     (also writes a smaller graph)
  attentune export runs/cola --format transformers --output_dir served/hub"""

parser = parser_of("export", _HELP)


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    _check_flags(parsed, problems)
    check(problems)
    check_named(parsed)
    check_new_folder(Path(parsed.output_dir))
    print("\n".join(_export(parsed)))
    tell([f"to share it on the Hugging Face hub: hf upload NAME/REPO {shlex.quote(parsed.output_dir)}"])
    return 0


def _check_flags(parsed: argparse.Namespace, problems: list[str]) -> None:
    if parsed.output_dir is None:
        problems.append("--output_dir: is missing; name a new folder: --output_dir served/my-run")
    if parsed.format == "transformers" and parsed.quantize is not None:
        problems.append("--quantize: goes with --format onnx; leave it out for transformers.")
    if parsed.format != "transformers" and parsed.code is not None:
        problems.append("--code: goes with --format transformers; leave it out for other formats.")


def _say(text: str) -> None:
    tell([text])


def _export(parsed: argparse.Namespace) -> Iterator[str]:
    """Write the folder; yield the lines that describe it, and its difference from the run."""
    if parsed.format == "transformers":
        from attentune.integrations.transformers import export_for_transformers

        made = export_for_transformers(parsed.run, parsed.output_dir, code=parsed.code or "auto", say=_say)
        is_stock = made.class_name is not None
        loads = f"loads as {made.class_name} of transformers, without trust_remote_code"
        yield f"{made.folder}: " + (
            loads if is_stock else f"loads with trust_remote_code=True; {len(made.files)} files of code"
        )
        yield (
            f"max difference from the run, loaded without Attentune: {made.max_difference:.1e} ({made.rows} synthetic"
            " rows)"
        )
        if made.reason is not None:
            yield f"{'note' if is_stock else 'why not a class of transformers'}: {made.reason}"
        if made.own_pipeline:
            yield (
                "the folder has a pipeline that predicts like the run, which transformers' own does not; it needs"
                " trust_remote_code=True even if Attentune is installed"
            )
    else:
        from attentune.integrations.onnx import export_run

        yield from _onnx_lines(export_run(parsed.run, parsed.output_dir, quantize=parsed.quantize, say=_say))
    if (Path(parsed.run) / "rejection.json").is_file():
        yield "note: the run rejects texts of no class; what was exported rejects none"


def _onnx_lines(export: Export) -> Iterator[str]:
    names = f"inputs {', '.join(export.inputs)}; outputs {', '.join(export.outputs)}"
    yield f"{export.folder}: ONNX, opset {export.opset}; {names}"
    yield f"max difference from PyTorch: {export.max_difference:.1e} ({export.rows} rows, {export.checked_on})"
    if export.note is not None:
        yield export.note
    if export.int8_agreement is not None:
        yield f"int8, {export.int8_meaning}: {number(export.int8_agreement)}"
    rows = [
        (file, f"{(export.folder / file).stat().st_size / 1e6:.1f}", *map(number, metrics.values()))
        for file, metrics in export.scores.items()
    ]
    if rows:
        header = ("file", "MB", *next(iter(export.scores.values())))
        yield table(header, rows, right=range(1, len(header)))
