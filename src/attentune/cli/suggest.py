"""`attentune suggest`: which texts to label next."""

import sys
from collections.abc import Sequence

from attentune.cli.flags import config_from, parser_of
from attentune.cli.inputs import check_columns, check_named, output_ending, read_file_rows

_HELP = """
attentune suggest RUN --input_file FILE [flags]

Choose the texts of a file whose labels would probably help a saved run most.

RUN  a run folder or checkpoint
--input_file FILE  a file of texts: .csv .tsv .json .jsonl .parquet ..., or - for standard input
--count N  how many texts (default: 50)
--format csv|json  CSV, or one JSON object a line (csv if not given)
--output_file FILE  write to this file, .csv .tsv or .jsonl (default: standard output)

examples:
  attentune suggest runs/mine --input_file unlabelled.csv --count 50 --output_file next.csv

Texts whose two most probable classes are nearly equally probable are chosen first, for a person to label.
The output has an empty column label to fill in; append text and label to the rows that you train on, under their names
there (row, id, prediction, probability and margin are for the person who labels)."""
_COLUMNS = ("text_column", "text_pair_column", "id_column")
_DATA = tuple(f"data.{name}" for name in (*_COLUMNS, "delimiter", "encoding", "sheet", "file_format", "header"))

parser = parser_of("suggest", _HELP, _DATA)


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    if parsed.input_file is None:
        problems.append("--input_file: is missing; name the file of texts to choose from.")
    output_ending(parsed, (".csv", ".tsv", ".jsonl"), problems)
    data = config_from(parsed, problems).data
    check_named(parsed)
    check_columns(parsed.input_file, data)

    from attentune.inference.predictor import Predictor
    from attentune.labels.label_check import check_ending, rows_text, write_rows
    from attentune.labels.suggest import suggest_texts

    if parsed.output_file is not None:
        check_ending(parsed.output_file)
    saved = Predictor.load(parsed.run)
    rows = read_file_rows(parsed.input_file, data, saved)
    chosen = suggest_texts(saved, rows, count=parsed.count)
    lines = []
    for one in chosen:
        pair = {} if one.pair is None else {"text_pair": one.pair}
        facts = {name: getattr(one, name) for name in ("prediction", "probability", "margin")}
        lines.append({"row": one.row, "id": one.id, "text": one.text, **pair, "label": "", **facts})
    names = list(lines[0]) if lines else []
    if parsed.output_file is not None:
        write_rows(parsed.output_file, names, lines)
        print(f"{len(lines)} texts to label written to {parsed.output_file}", file=sys.stderr)
    else:
        sys.stdout.write(rows_text(names, lines, ".jsonl" if parsed.format == "json" else ".csv"))
    return 0
