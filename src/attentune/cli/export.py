"""`attentune export`: write a run for serving."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attentune.cli.early_checks import add_best_flag, check_named, use_best
from attentune.cli.flags import Parser
from attentune.config.parse import did_you_mean
from attentune.errors import ConfigError
from attentune.io.files import check_new_folder

if TYPE_CHECKING:
    from attentune.integrations.onnx.export import Export

_EXAMPLES = """examples:
  attentune export runs/cola --format onnx --output_dir served/cola
  attentune export runs/cola --output_dir served/cola --quantize int8     (also writes a smaller graph)
  attentune export runs/cola --format transformers --output_dir served/hub
  attentune export runs/cola --format transformers --push_to_hub me/cola --private"""


_SENTENCES = ("sentence-transformers", "setfit")
_FORMATS = ("onnx", "transformers", *_SENTENCES)
# What other tools call these formats, and others that are made of one.
_OTHER_FORMATS = {
    **dict.fromkeys(("hf", "huggingface", "pytorch", "torch", "safetensors"), " Did you mean 'transformers'?"),
    **dict.fromkeys(("transformers.js", "transformersjs", "js"), " transformers.js loads the folder of 'onnx'."),
    **dict.fromkeys(("openvino", "tensorrt"), " It reads the graph of 'onnx'."),
    **dict.fromkeys(("sentence_transformers", "sbert", "st"), " Did you mean 'sentence-transformers'?"),
}


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune export",
        usage="attentune export RUN (--output_dir DIR | --push_to_hub NAME/REPO) [flags]",
        description="Export a saved run to a folder, or to the Hugging Face hub, that works without PyTorch, or without"
        " Attentune, and check it.",
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
    made.add_argument(
        "--push_to_hub",
        metavar="NAME/REPO",
        help="also upload the folder to this repository of the Hugging Face hub; --output_dir may then be left out",
    )
    made.add_argument("--private", action="store_true", help="with --push_to_hub: a new repository is private")
    made.add_argument(
        "--include_predictions",
        action="store_true",
        help="with --push_to_hub: upload the run's predictions_*.csv too, which have the ids and labels of its rows",
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
    if parsed.output_dir is None and parsed.push_to_hub is None:
        problems.append("--output_dir: is missing; name a new folder: --output_dir served/my-run")
    if parsed.format not in _FORMATS:
        near = _OTHER_FORMATS.get(parsed.format.lower()) or did_you_mean(parsed.format, _FORMATS)
        problems.append(
            f"--format: got {parsed.format!r}, expected {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}.{near}"
        )
    if parsed.quantize not in (None, "int8"):
        problems.append(f"--quantize: got {parsed.quantize!r}, expected int8.")
    if parsed.format in ("transformers", *_SENTENCES) and (parsed.quantize is not None or parsed.opset is not None):
        problems.append(f"--quantize and --opset: go with --format onnx; leave them out for {parsed.format}.")
    if parsed.format != "transformers" and parsed.code is not None:
        problems.append("--code: goes with --format transformers; leave it out for other formats.")
    for flag in ("private", "include_predictions"):
        if getattr(parsed, flag) and parsed.push_to_hub is None:
            problems.append(f"--{flag}: goes with --push_to_hub NAME/REPO; leave it out, or name a repository.")
    if problems:
        raise ConfigError(problems)
    if parsed.push_to_hub is not None:
        from attentune.integrations.hub.publish import check_push, copy_predictions, push_folder

        check_push(parsed.push_to_hub)
    use_best(parsed)
    check_named(parsed)
    if parsed.output_dir is not None:
        check_new_folder(Path(parsed.output_dir))
    if parsed.push_to_hub is None:
        _export(parsed, parsed.output_dir)
        return 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(parsed.output_dir or Path(place) / parsed.push_to_hub.split("/")[-1])
        _export(parsed, folder)
        if parsed.include_predictions:
            copy_predictions(Path(parsed.run), folder)
        _say(f"uploading it to {parsed.push_to_hub}")
        address, files = push_folder(folder, parsed.push_to_hub, private=True if parsed.private else None)
    print(f"{address}: {len(files)} files uploaded: {', '.join(files)}")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _export(parsed: argparse.Namespace, output_dir: str | Path) -> None:
    """Write the folder and print the result of its check."""
    if parsed.format == "transformers":
        _for_transformers(parsed.run, output_dir, parsed.code or "auto")
        return
    if parsed.format in _SENTENCES:
        _for_sentences(parsed.run, output_dir, parsed.format)
        return

    from attentune.integrations.onnx.export import export_run

    export = export_run(
        parsed.run,
        output_dir,
        output_format=parsed.format,
        opset=parsed.opset,
        quantize=parsed.quantize,
        check_rows=parsed.check_rows,
        say=_say,
    )
    print("\n".join(_lines(export)))


def _for_transformers(run: str, output_dir: str | Path, code: str) -> None:
    from attentune.integrations.hub.export import export_for_transformers

    made = export_for_transformers(run, output_dir, code=code, say=_say)
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


def _for_sentences(run: str, output_dir: str | Path, output_format: str) -> None:
    from attentune.integrations.hub.sentences import export_for_sentences

    made = export_for_sentences(run, output_dir, output_format=output_format, say=_say)
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
