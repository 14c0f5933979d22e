"""`attentune demo`: the main job on real sentences."""

import shlex
from collections.abc import Sequence

from attentune.cli.flags import QUIET, check, parser_of
from attentune.cli.output import stopped, table

_HELP = f"""
attentune demo [flags]

Trains several methods on 1,600 real sentences, half about products and half about restaurants, and
scores them on 400 other ones and on 1,000 sentences about films, a domain without training sentences. Prints a
leaderboard, explains a prediction and writes a report. After an interruption, the same command resumes.

--output_dir DIR  where data and runs go (runs/demo if not given)
--model_name_or_path NAME  the encoder (default: embedded)
--quick  a small one in runs/demo-quick: 400 sentences, 50 updates, 30 seconds of auto
{QUIET}

examples:
  attentune demo
  attentune demo --quick

The sentences: Kotzias et al., From Group to Individual Labels Using Deep Features, KDD 2015; UCI Machine Learning
Repository; licence CC BY 4.0."""

parser = parser_of("demo", _HELP)


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    check(problems)

    from attentune.cli.explain import print_explanations
    from attentune.demo.leaderboard import NOTES, cells
    from attentune.demo.run import QUICK, run_demo
    from attentune.runs.compare import ComparisonStopped

    folder = parsed.output_dir or ("runs/demo-quick" if parsed.quick else "runs/demo")
    size = QUICK if parsed.quick else {}
    try:
        result = run_demo(folder, encoder=parsed.model_name_or_path, quiet=parsed.quiet, **size)
    except (ComparisonStopped, KeyboardInterrupt) as stop:
        return stopped(str(stop) or "stopped; what is finished is kept.", "demo", arguments)
    header, rows = cells(result.runs)
    print("Which model is best for these texts?", *result.answer, "", sep="\n")
    print(table(header, rows, right=range(1, len(header))))
    print("", *([result.auto] if result.auto else []), *NOTES, sep="\n")
    print(f"\nWhy {result.explained.method} predicts what it does:\n")
    print_explanations([[result.explanation]])
    print(f"Report: {result.report}")
    predict = shlex.join(["attentune", "predict", str(result.explained.folder), "--text", "The story was not dull."])
    own = "attentune auto --train_file YOURS.csv --text_column text --label_column label --output_dir runs/mine"
    print(f"Next: {predict}", f"Your own file: {own}", sep="\n")
    return 0
