"""`attentune export`: write a run for serving."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attentune.cli.best import add_best_flag, use_best
from attentune.cli.flags import Parser
from attentune.errors import ConfigError

if TYPE_CHECKING:
    from attentune.integrations.onnx.export import Export

_EXAMPLES = """examples:
  attentune export runs/cola --format onnx --output_dir served/cola
  attentune export runs/cola --output_dir served/cola --quantize int8     (also writes a smaller graph)
  attentune export runs/cola --format transformers --output_dir served/hub"""


_SENTENCES = ("sentence-transformers", "setfit")


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune export",
        usage="attentune export RUN --output_dir DIR [flags]",
        description="Export a saved run to a folder that works without PyTorch, or without Attentune, and check it.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    add_best_flag(made, with_task=True)
    made.add_argument("--output_dir", metavar="DIR", help="the folder to write: new or empty")
    made.add_argument(
        "--format",
        default="onnx",
        help="onnx, transformers, sentence-transformers (the encoder of single texts) or setfit (with a linear"
        " classifier) (default: onnx)",
    )
    made.add_argument(
        "--code",
        metavar="FORM",
        help="transformers: stock (a class of transformers), remote (with the model code, loaded with"
        " trust_remote_code), or auto: stock where it gives the run's logits and predictions (default: auto)",
    )
    made.add_argument("--opset", type=int, metavar="N", help="ONNX operator set version (default: chosen by PyTorch)")
    made.add_argument("--quantize", metavar="int8", help="also write a graph with 8-bit weights: int8")
    made.add_argument(
        "--check_rows", type=int, default=200, metavar="N", help="validation rows to check the export on (default: 200)"
    )
    return made


def run(arguments: Sequence[str]) -> int:
    """Export; return the exit status."""
    parsed, problems = parser().parse(arguments)
    if parsed.output_dir is None:
        problems.append("--output_dir: is missing; name a new folder: --output_dir served/my-run")
    if parsed.format in ("transformers", *_SENTENCES) and (parsed.quantize is not None or parsed.opset is not None):
        problems.append(f"--quantize and --opset: go with --format onnx; leave them out for {parsed.format}.")
    if parsed.format != "transformers" and parsed.code is not None:
        problems.append("--code: goes with --format transformers; leave it out for other formats.")
    if problems:
        raise ConfigError(problems)
    use_best(parsed)
    if parsed.format == "transformers":
        return _for_transformers(parsed.run, parsed.output_dir, parsed.code or "auto")
    if parsed.format in _SENTENCES:
        return _for_sentences(parsed.run, parsed.output_dir, parsed.format)

    from attentune.integrations.onnx.export import export_run

    export = export_run(
        parsed.run,
        parsed.output_dir,
        output_format=parsed.format,
        opset=parsed.opset,
        quantize=parsed.quantize,
        check_rows=parsed.check_rows,
        say=lambda text: print(text, file=sys.stderr),
    )
    print("\n".join(_lines(export)))
    return 0


def _for_transformers(run: str, output_dir: str, code: str) -> int:
    from attentune.integrations.hub.export import export_for_transformers

    made = export_for_transformers(run, output_dir, code=code, say=lambda text: print(text, file=sys.stderr))
    if made.class_name is not None:
        print(f"{made.folder}: loads as {made.class_name} of transformers, without trust_remote_code")
    else:
        print(f"{made.folder}: loads with trust_remote_code=True; {len(made.files)} files of code")
    print(
        f"max difference from the run, loaded without Attentune: {made.max_difference:.1e} ({made.rows} synthetic rows)"
    )
    if made.reason is not None:
        print(f"{'note' if made.class_name is not None else 'why not a class of transformers'}: {made.reason}")
    if made.own_pipeline:
        print(
            "predictions are not the argmax of the logits: the folder has a pipeline that predicts like the run, which"
            " needs trust_remote_code=True even if Attentune is installed; the model alone returns logits"
        )
    return 0


def _for_sentences(run: str, output_dir: str, output_format: str) -> int:
    from attentune.integrations.hub.sentences import export_for_sentences

    made = export_for_sentences(
        run, output_dir, output_format=output_format, say=lambda text: print(text, file=sys.stderr)
    )
    pooled = "mean of the tokens" if made.pooling == "mean" else "first token"
    loads = "SentenceTransformer" if made.labels is None else "SetFitModel, and as SentenceTransformer"
    print(f"{made.folder}: loads as {loads}; vectors of {made.width} values, {pooled}")
    print(
        f"max difference from the run in float32, loaded without Attentune: {made.max_difference:.1e} ({made.texts}"
        " synthetic texts)"
    )
    if made.scale is not None and made.offset is not None:
        print(f"the run's score of a pair: {made.scale:.6g} x {made.similarity} {made.offset:+.6g} (in export.json)")
    if made.note is not None:
        print(f"note: {made.note}")
    return 0


def _lines(export: Export) -> list[str]:
    from attentune.cli.output import number, table

    lines = [
        f"{export.folder}: ONNX, opset {export.opset}; inputs {', '.join(export.inputs)}; outputs"
        f" {', '.join(export.outputs)}",
        f"max difference from PyTorch: {export.max_difference:.1e} ({export.rows} rows, {export.checked_on})",
    ]
    if export.note is not None:
        lines.append(export.note)
    if export.int8_agreement is not None:
        lines.append(f"int8, {export.int8_meaning}: {number(export.int8_agreement)}")
    rows = [
        (file, f"{(export.folder / file).stat().st_size / 1e6:.1f}", *map(number, metrics.values()))
        for file, metrics in export.scores.items()
    ]
    if rows:
        header = ("file", "MB", *next(iter(export.scores.values())))
        lines.append(table(header, rows, right=range(1, len(header))))
    return lines
