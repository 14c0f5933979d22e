"""Write results/first-runs/README.md from the records beside it.

python benchmarks/first_table.py
"""

from __future__ import annotations

import json

from places import RESULTS

FOLDER = RESULTS / "first-runs"
INTRODUCTION = """# First runs

One run of preset `bert` a task, seed 42, the embedded encoder (MiniLM, 22 million parameters), default settings but
for the epochs. Scores are of the last epoch's weights on the whole validation set; nothing was chosen on it. One run
says little about a method: seeds differ by a point or more. The data are cuts of the published sets (MRPC, QNLI,
QQP/Quora, STS-B and SICK were cut at random), so the scores do not compare with published ones.

`seconds` is the time in training steps on a shared two-core machine (Intel Xeon with AMX, bf16), both cores in use.

`attentune evaluate` on each saved run gave the same figures again, to the last digit. Epochs in between: the records.

CoLA is of the program whose attention multiplies by AMX tiles, the others of the one before, with layers in C too.
For texts of more than 16 tokens the same commands give other last digits now (CoLA: 0.324 before).

"""


def main() -> None:
    lines = ["| task | epochs | score | seconds | tokens/s | threads |", "|---|---|---|---|---|---|"]
    commands = []
    for file in sorted(FOLDER.glob("*.json")):
        record = json.loads(file.read_text())
        scores = "; ".join(
            f"{name} {value:.3f}"
            for part in record["scores"].values()
            for name, value in part.items()
            if value is not None
        )
        facts, epochs = record["train"], record["config"]["training"]["num_train_epochs"]
        cells = [file.stem, f"{epochs:g}", scores, f"{facts['seconds']:.0f}", f"{facts['tokens_per_second']:.0f}"]
        lines.append(f"| {' | '.join(cells)} | {record['threads']} |")
        commands.append(record["command"])
    text = INTRODUCTION + "\n".join(lines) + "\n\nThe commands, as in each record:\n\n```console\n"
    (FOLDER / "README.md").write_text(text + "\n".join(f"$ {command}" for command in commands) + "\n```\n")


if __name__ == "__main__":
    main()
