"""Each command of the lab on a run of each kind of task and model works, or refuses before it uses the model."""

import pytest

from cli.test_kinds_of_tasks import ONE_MODEL, TRAINED, cells, check, home

__all__ = ["home"]
COMMANDS: dict[str, dict[str, str]] = {
    "label RUN": {
        **dict.fromkeys(TRAINED, "token"), **ONE_MODEL, **dict.fromkeys(("ssa", "ssa multi-label", "ssa score"), ""),
    },
    "layers RUN": {**dict.fromkeys(TRAINED, "was trained without squeeze"), **ONE_MODEL, "sesame": ""},
    "faithfulness RUN --max_samples 2 --method gradient --beam 0": {
        **dict.fromkeys((k for k in TRAINED if "score" in k), "predicts a score"),
        **dict.fromkeys((k for k in TRAINED if "multi-label" in k), "several labels at once"),
        **ONE_MODEL,
    },
    "stress RUN": {},
}  # fmt: skip


@pytest.mark.parametrize(("words", "kind", "refusal"), list(cells(COMMANDS)))
def test_a_command_on_a_kind_of_run(home, tmp_path, capsys, words, kind, refusal):
    check(home, tmp_path, capsys, words, kind, refusal)
