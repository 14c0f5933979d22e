"""Each command on a run of each kind of task and model works, or refuses in one message before it uses the model."""

import csv
import random
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.nn.modules.module import register_module_forward_pre_hook

from attentune.cli.main import main
from helpers.glue_samples import write_hans
from helpers.samples import BAD, FILLER, GOOD

PAIRS = ("pair", "bi-encoder", "alignment")
# Flags of `train` by kind of run. `ensemble` ones are made by `auto`.
MULTI_LABEL, SCORE = "--task_type multi_label --label_separator ;", "--task_type regression"
TRAINED = {
    "classes": "--preset bert-mean",
    "ordered": "--preset bert-mean --task_type ordinal",
    "score": f"--preset bert-mean {SCORE}",
    "multi-label": f"--preset bert-mean {MULTI_LABEL}",
    "pair": "--preset bert-mean --text_pair_column other",
    "bi-encoder": "--preset bi-encoder-concat --text_pair_column other",
    "long": "--preset bert-mean --long_texts windows --stride 8",
    "long multi-label": f"--preset bert-mean --long_texts windows --stride 8 {MULTI_LABEL}",
    "lora": "--preset bert-mean --lora_rank 4",
    "ssa": "--preset ssa-hybrid",
    "ssa multi-label": f"--preset ssa-hybrid {MULTI_LABEL}",
    "ssa score": f"--preset ssa-hybrid {SCORE}",
    "sesame": "--preset sesame-weighted",
    "majority": "--preset majority",
    "tfidf": "--preset tfidf-linear",
    "tfidf multi-label": f"--preset tfidf-linear {MULTI_LABEL}",
    "tfidf score": f"--preset tfidf-linear {SCORE}",
    "frozen ordered": "--preset frozen-linear --task_type ordinal",
    "alignment": "--preset token-alignment --text_pair_column other",
}
AUTO = {"ensemble": "", "ensemble multi-label": MULTI_LABEL, "ensemble score": SCORE}
BASELINES = {kind for kind in TRAINED if kind.split()[0] in ("majority", "tfidf", "frozen", "alignment")}
# Kinds that the fast tier tries; the others are integration tests.
FAST = ("classes", "tfidf multi-label")
ONE_MODEL = {**dict.fromkeys(BASELINES, "expected the run folder of"), **dict.fromkeys(AUTO, "expected the run folder")}
NOT_CLASSES = dict.fromkeys((k for k in (*TRAINED, *AUTO) if "multi-label" in k or "score" in k), "predicts labels of")
NOT_INSIDE = dict.fromkeys((*BASELINES, *AUTO), "looks into one model")

# From a command to a part of the refusal by kind of run; on all other kinds it works. RUN, NEW, HANS, OUT, TEXT are
# filled in.
COMMANDS: dict[str, dict[str, str]] = {
    "evaluate RUN": dict.fromkeys(AUTO, "was trained on all rows"),
    "evaluate RUN --validation_file NEW": {},
    "predict RUN --input_file NEW": {},
    "predict RUN TEXT": {},
    "predict RUN --input_file NEW --output_file OUT/new.csv": {},
    "predict RUN --input_file NEW --explain": {
        **dict.fromkeys((k for k in TRAINED if not k.startswith("ssa")), "--fit"), **ONE_MODEL,
    },
    "explain RUN TEXT": {},
    "explain RUN TEXT --method leave-one-out --level token": dict.fromkeys((*BASELINES, *AUTO), "level: got token"),
    "explain RUN TEXT --method random,shap --samples 20 --format json": {},
    "explain RUN TEXT --method lime --samples 20 --output_file OUT/why.html": {},
    "explain RUN TEXT --method integrated-gradients --steps 3": NOT_INSIDE,
    "explain RUN TEXT --method attention": NOT_INSIDE,
    "calibrate RUN": {**ONE_MODEL, **dict.fromkeys(("score", "ssa score"), "needs classes")},
    "export RUN --output_dir OUT/onnx": {
        **ONE_MODEL, **dict.fromkeys(("long", "long multi-label"), "long texts in windows"),
    },
    "export RUN --output_dir OUT/hub --format transformers": ONE_MODEL,
    "params RUN": ONE_MODEL,
    "explain RUN --fit --max_samples 24 --copies 2": {**ONE_MODEL, "bi-encoder": "encodes the texts of a pair apart"},
    "submit RUN --output_file OUT/s.zip": dict.fromkeys((*TRAINED, *AUTO), "expected a task of GLUE"),
    "evaluate RUN --suite hans --data HANS": {
        **dict.fromkeys((*TRAINED, *AUTO), "exactly one that is called entailment"), **dict.fromkeys(PAIRS, ""),
    },
    "report RUN --output_file OUT/report.html": {},
    "suggest RUN --input_file NEW --count 2": NOT_CLASSES,
}  # fmt: skip


def write_rows(path: Path, kind: str, rows: int, *, seed: int) -> None:
    """Write rows whose label the words good and bad decide."""
    draw = random.Random(seed)

    def text(good: bool) -> str:
        words = [
            *draw.choices(FILLER, k=draw.randint(2, 40 if "long" in kind else 11)),
            draw.choice(GOOD if good else BAD),
        ]
        draw.shuffle(words)
        return " ".join(words)

    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "label", "other"])
        for number in range(rows):
            good = draw.random() < 0.5
            label = "good" if good else "bad"
            if kind in PAIRS:
                label = "entailment" if good else "neutral"
            elif "ordered" in kind:
                label = str(draw.randint(1, 2) + 2 * good)
            elif "score" in kind:
                label = f"{good + draw.random():.2f}"
            elif "multi-label" in kind:
                label += draw.choice(("", ";music"))
            writer.writerow([number, text(good), label, text(draw.random() < 0.5)])


@pytest.fixture(scope="module")
def home(tiny, tmp_path_factory):
    """A folder in which runs are made when they are first asked for."""
    home = tmp_path_factory.mktemp("tasks")
    shutil.copytree(tiny("bert"), home / "encoder")
    write_hans(home / "hans.txt", 1)
    return home


def run_of(kind: str, home: Path) -> Path:
    """Return the folder of a run of this kind; train it if there is none yet."""
    folder = home / kind.replace(" ", "-")
    if folder.exists():
        return folder
    for split, rows, seed in (("train", 48, 1), ("dev", 16, 2), ("new", 9, 3)):
        write_rows(home / f"{folder.name}-{split}.csv", kind, rows, seed=seed)
    words = ["--model_name_or_path", str(home / "encoder"), "--max_length", "32", "--use_cpu", "true"]
    words += ["--text_column", "text", "--label_column", "label", "--output_dir", str(folder)]
    train, dev = (str(home / f"{folder.name}-{split}.csv") for split in ("train", "dev"))
    if kind in AUTO:
        words += ["--portfolio", "majority,tfidf-linear,frozen-linear", "--folds", "2", "--time_limit", "60s"]
        assert main(["auto", train, "--jobs", "1", *words, *AUTO[kind].split()]) == 0
        return folder
    words += ["--validation_file", dev, "--num_train_epochs", "1", "--baselines", "none", *TRAINED[kind].split()]
    assert main(["train", train, *words]) == 0
    return folder


def cells(commands: dict[str, dict[str, str]]) -> Iterator[Any]:
    """Each command on each kind of run: some kinds in the fast tier, exports in the slow one."""
    for words, refusals in commands.items():
        for kind in (*TRAINED, *AUTO):
            refusal = refusals.get(kind, "")
            marks: Any = () if kind in FAST else pytest.mark.integration
            if words.startswith("export") and not refusal:  # seconds each; tests/integrations has more
                marks = pytest.mark.slow
            yield pytest.param(words, kind, refusal, id=f"{words}-{kind}", marks=marks)


@pytest.mark.parametrize(("words", "kind", "refusal"), list(cells(COMMANDS)))
def test_a_command_on_a_kind_of_run(home, tmp_path, capsys, words, kind, refusal):
    check(home, tmp_path, capsys, words, kind, refusal)


def check(home, tmp_path, capsys, words, kind, refusal):
    """Run a command; it works, or refuses in one message before the model is used."""
    run = run_of(kind, home)
    if words.startswith(("explain RUN --fit", "calibrate")):  # these write into the run's folder
        run = Path(shutil.copytree(run, tmp_path / "copy"))
    out = tmp_path / "out"
    out.mkdir()
    pair = " --text_pair 'the film was awful'" if kind in PAIRS else ""
    filled = {"RUN": run, "NEW": home / f"{kind.replace(' ', '-')}-new.csv", "HANS": home / "hans.txt"}
    words = words.replace("TEXT", f"--text 'the film was lovely'{pair}")
    calls: list[Any] = []
    # Only where the command should not get so far: a graph cannot be traced through it.
    hook = register_module_forward_pre_hook(lambda module, inputs: calls.append(module)) if refusal else None
    capsys.readouterr()
    try:
        status = main([str(filled.get(word, word.replace("OUT", str(out)))) for word in shlex.split(words)])
    finally:
        if hook is not None:
            hook.remove()
    shown = capsys.readouterr()
    if not refusal:
        assert status == 0, shown.err
        assert shown.out or any(out.rglob("*")) or "written" in shown.err
        return
    messages = [line for line in shown.err.splitlines() if line.startswith("attentune: ")]
    assert (status, shown.out, len(messages)) == (2, "", 1), shown
    assert refusal in messages[0]
    assert not calls, "refused after the model was used"
    assert not list(out.iterdir())


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["ordered", "score", "multi-label", "pair", "tfidf"])
def test_parts_have_what_is_predicted_without_them(home, tmp_path, attentune, kind):
    run, new = run_of(kind, home), home / f"{kind}-new.csv"
    plain, _ = attentune.done("predict", run, "--input_file", new)
    into = ("--output_dir", tmp_path / "parts", "--format", "csv", "--keep_columns", "other")
    attentune.done("predict", run, "--input_file", new, *into)
    (part,) = (tmp_path / "parts").glob("part-*")
    found, expected, given = (
        list(csv.DictReader(text.splitlines())) for text in (part.read_text(), plain, new.read_text())
    )
    for one, other, row in zip(found, expected, given, strict=True):
        assert one.pop("other") == row["other"]
        assert one.keys() == other.keys()
        for name, value in other.items():
            if name.startswith("label"):
                assert one[name] == row["label"]
            elif name.startswith("p_") or (kind == "score" and name != "id"):
                assert float(one[name]) == pytest.approx(float(value), rel=1e-5, abs=1e-6)
            else:
                assert one[name] == value
