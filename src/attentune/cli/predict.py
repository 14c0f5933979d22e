"""`attentune predict`"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from attentune.cli.flags import Parser
from attentune.cli.text_rows import add_text_flags, check_text_flags, read_texts

_EXAMPLES = """examples:
  attentune predict runs/cola --text "The car honked its way down the road."
  attentune predict runs/rte --text "A cat sat." --text_pair "An animal sat."
  attentune predict runs/mine --input_file new.csv --output_file labelled.csv
  attentune predict runs/mine --input_file new.csv --explain     (of each word how important it is, from the same pass)
  attentune predict runs/cola --task cola --data_dir glue_data --split test --output_file cola-test.csv"""


def parser() -> Parser:
    """The flags of this verb."""
    made = Parser(
        prog="attentune predict",
        usage="attentune predict RUN (--text TEXT | --input_file FILE | --task TASK) [flags]",
        description="Label texts with a saved run: a CSV with id, label (if known), prediction and probabilities.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    made.add_argument("--output_file", help="where the CSV goes (standard output if not given)")
    made.add_argument("--precision", help="another precision than the run's: auto, fp32, bf16, fp16, int8 (on a CPU)")
    made.add_argument(
        "--explain",
        action="store_true",
        help="add a column with each word's importance as JSON, for runs that score tokens (ssa-hybrid, ...)",
    )
    add_text_flags(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Predict; the exit status is returned."""
    parsed, problems = parser().parse(arguments)
    data = check_text_flags("predict", parsed, problems)

    from attentune.evaluation.predictions import predictions_csv
    from attentune.evaluation.saved import SavedRun, predict_rows
    from attentune.files import write_text

    saved = SavedRun.load(parsed.run, data.task)
    rows = read_texts(parsed, data, saved)
    if parsed.explain:
        from attentune.explain.column import EXPLANATION, predict_explained

        logits, column = predict_explained(saved, rows, precision=parsed.precision)
        text = predictions_csv(rows, logits, saved.label_space, {EXPLANATION: column})
    else:
        text = predictions_csv(rows, predict_rows(saved, rows, precision=parsed.precision), saved.label_space)
    if parsed.output_file is None:
        sys.stdout.write(text)
    else:
        write_text(parsed.output_file, text)
        print(f"{len(rows)} predictions written to {parsed.output_file}", file=sys.stderr)
    return 0
