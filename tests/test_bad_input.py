"""Whatever is handed in: one line that says what is wrong, its exit code, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile import EXIT_CODE, HOSTILE, TINY, tiny_state
from PIL import Image
from program import BERT, VIT, Ran, process, program, quiet_surroundings

FACTORIES = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, after=lambda y: y):
        super().__init__()
        self.a, self.b, self.after = nn.Linear(5, 6), nn.Linear(6, 3), after
    def forward(self, x):
        return self.after(self.b(torch.relu(self.a(x))))

def sound():
    return Net()
def constant():
    return Net(lambda y: y * 0)
def detached():
    return Net(lambda y: y.detach())
def saturated():
    return Net(lambda y: y * 1e6)
def restless():
    return Net(lambda y: y + torch.randn_like(y))
def infinite():
    return Net(lambda y: y / 0)
def failing():
    return Net(lambda y: 1 / 0)
def talkative():
    return Net(lambda y: {"answer": y})
def nothing():
    return None
"""


@pytest.fixture(scope="module", autouse=True)
def surroundings() -> Iterator[None]:
    with quiet_surroundings():
        yield


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of checkpoints and data sets, sound ones and bad ones."""
    folder = tmp_path_factory.mktemp("given")
    rng = np.random.default_rng(0)
    state = tiny_state()
    torch.save({"arch": TINY, "state_dict": state}, folder / "sound.pt")
    short = {n: t[:-1] if n == "conv1.6.weight" else t for n, t in state.items()}
    torch.save({"arch": TINY, "state_dict": short}, folder / "short.pt")
    nan = {n: t * float("nan") if t.is_floating_point() else t for n, t in state.items()}
    torch.save({"arch": TINY, "state_dict": nan}, folder / "nan.pt")

    pixels = rng.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    for name, labels in (
        ("three", [0, 1, 2, 0, 1, 2]),
        ("seven", [0, 1, 2, 0, 1, 7]),
        ("minus", [0, 1, 2, 0, 1, -1]),
    ):
        np.savez(folder / f"{name}.npz", x=pixels, y=np.array(labels))
    np.savez(folder / "ragged.npz", x=pixels, y=np.arange(5) % 3)
    np.savez(folder / "objects.npz", x=np.array([{"a": 1}, None]), y=np.arange(2))

    for label in "012":
        (folder / "photos" / label).mkdir(parents=True)
        for number in range(3):
            image = Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8))
            image.save(folder / "photos" / label / f"{number}.png")
    cut = folder / "photos" / "1" / "1.png"
    cut.write_bytes(cut.read_bytes()[:200])
    (folder / "empty").mkdir()

    (folder / "mine.py").write_text(FACTORIES)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = {"a": torch.nn.Linear(5, 6), "b": torch.nn.Linear(6, 3)}
        named = torch.nn.ModuleDict(layers).state_dict()
    torch.save(named, folder / "mine.pt")
    for width in (5, 7):
        x = rng.normal(size=(12, width)).astype(np.float32)
        np.savez(folder / f"rows{width}.npz", x=x, y=np.arange(12) % 3)
    return folder


def refused(ran: Ran, code: int, folder: Path) -> str:
    """Checks the form of a refusal and returns its error line.

    Args:
        ran: Was asked to write ``out.json`` and ``out.svg`` into `folder`.
        code: The exit code it must have.
        folder: Where nothing may be.
    """
    assert ran.code == code, ran.err or ran.out
    assert ran.out == ""
    first, *hint = ran.err.splitlines()
    assert first.startswith("clcurv: error: ")
    assert len(first) > len("clcurv: error: ") + 10
    assert len(hint) <= 1
    assert all(line.startswith("hint: ") and len(line) > 8 for line in hint)
    assert "Traceback" not in ran.err
    assert "a fault of clcurv" not in ran.err
    assert "\x1b" not in ran.err
    assert list(folder.glob("out.*")) == []
    assert list(folder.glob("*.tmp")) == []
    return first


def outputs(folder: Path) -> tuple[object, ...]:
    return ("-q", "-o", folder / "out.json", "--plot", folder / "out.svg")


# --- checkpoints ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_checkpoints(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    path = HOSTILE[name](tmp_path / "in")
    before = {p: p.stat().st_mtime_ns for p in sorted((tmp_path / "in").rglob("*"))}
    ran = program("kappa", path, "--data", VIT[2], *outputs(tmp_path / "out"))
    line = refused(ran, EXIT_CODE[name], tmp_path / "out")
    assert name == "nan_weights" or path.name[:50] in line  # which file
    assert {p: p.stat().st_mtime_ns for p in sorted((tmp_path / "in").rglob("*"))} == before
    assert not list(tmp_path.rglob("canary"))


@pytest.mark.parametrize("name", ["pickle_payload", "remote_code", "truncated_zip"])
def test_hostile_checkpoints_as_processes(name: str, tmp_path: Path) -> None:
    path = HOSTILE[name](tmp_path)
    ran = process("kappa", path, *outputs(tmp_path), folder=tmp_path)
    refused(ran, EXIT_CODE[name], tmp_path)
    assert not list(tmp_path.rglob("canary"))


def test_a_name_that_would_act_on_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "no\x1b[31m\n[/red]$x.pt"
    line = refused(program("kappa", path, *outputs(tmp_path)), 3, tmp_path)
    assert "[/red]$x.pt" in line
    torch.save({"\x1b[2J\nlayer": torch.zeros(3, 4), "b": torch.zeros(3)}, tmp_path / "names.pt")
    refused(program("kappa", tmp_path / "names.pt", *outputs(tmp_path)), 3, tmp_path)


# --- models, data and options that do not go together -----------------------------------------

Words = Callable[[Path], tuple[object, ...]]


def sound(*words: object) -> Words:
    """A good checkpoint; words that end in an odd data set are looked up in the folder."""
    return lambda folder: (folder / "sound.pt", *words)


def mine(factory: str, data: str = "rows5.npz") -> Words:
    return lambda folder: (
        *(folder / "mine.pt", "--arch", f"{folder / 'mine.py'}:{factory}", "--trust-code"),
        *("--data", folder / data),
    )


def with_data(name: str, *words: object) -> Words:
    return lambda folder: (folder / "sound.pt", "--data", folder / name, *words)


CASES: dict[str, tuple[Words, int, str]] = {
    # architecture
    "wrong arch": (
        lambda _: (VIT[0], "--arch", "resnet18"),
        3,
        r"does not fit timm:resnet18: .*lacks: conv1\.weight",
    ),
    "arch of other widths": (sound("--arch", "resnet18"), 3, r"shapes differ: bn1\.weight is \[32"),
    "misspelt arch": (sound("--arch", "resnet1l8"), 3, "timm has no model 'resnet1l8'.*resnet18"),
    "arch of torchvision": (
        sound("--arch", "torchvision:resnt18"),
        3,
        "torchvision has no classifier 'resnt18'.*resnet18",
    ),
    "foreign code": (sound("--arch", "mine:sound"), 3, "code from outside.*--trust-code"),
    "no such module": (
        sound("--arch", "nowhere.at_all:make", "--trust-code"),
        3,
        "nowhere.at_all cannot be imported",
    ),
    "no such factory": (sound("--arch", "torch.nn:make"), 3, "torch.nn has no function.*'make'"),
    "no module made": (mine("nothing"), 3, "nothing"),
    "shape mismatch": (
        lambda folder: (folder / "short.pt",),
        3,
        r"conv1\.6\.weight is \[31, 16, 3, 3\] in the checkpoint and \[32, 16, 3, 3\]",
    ),
    "all weights NaN": (lambda folder: (folder / "nan.pt",), 4, "not finite.*conv1.0.weight"),
    "no such key": (sound("--key", "ema"), 3, "no weights under 'ema'.*state_dict"),
    "order without arch": (sound("--match-by-order"), 2, "--match-by-order needs --arch"),
    # data
    "more classes than the head": (
        lambda folder: (folder / "sound.pt", *VIT[1:]),
        3,
        "label '9' lies outside the classes of a head with 3 classes",
    ),
    "label outside the head": (with_data("seven.npz"), 3, r"label '7' lies outside.*\(1 of 6"),
    "label below 0": (with_data("minus.npz"), 3, "label '-1' lies outside.*unlabelled"),
    "fewer labels than inputs": (with_data("ragged.npz"), 3, "'x' has 6 rows, 'y' has 5"),
    "pickled array": (with_data("objects.npz"), 3, "pickled Python objects"),
    "image cut short": (
        with_data("photos"),
        3,
        r"photos/1/1\.png: the image does not decode .*--skip-bad",
    ),
    "empty data folder": (with_data("empty"), 3, "the folder holds no images and no tables"),
    "no such data": (with_data("nowhere"), 3, "nowhere: no such file or folder"),
    "no text column": (
        lambda _: (*BERT, "--text-column", "sentence"),
        3,
        r"no column 'sentence' \(there are: text, label\)",
    ),
    "no label column": (
        lambda _: (*BERT, "--label-column", "intent"),
        3,
        r"no column 'intent' \(there are: text, label\)",
    ),
    "no such split": (lambda _: (*BERT, "--split", "dev"), 3, "has no split 'dev'"),
    "text for an image model": (
        lambda folder: (folder / "sound.pt", *BERT[1:]),
        3,
        "which column holds the image cannot be told",
    ),
    "images for a text model": (
        lambda folder: (BERT[0], "--data", folder / "three.npz"),
        3,
        "token ids must be whole numbers in one row per sample",
    ),
    "rows of another width": (
        mine("sound", "rows7.npz"),
        3,
        r"the model cannot be run on the data \(RuntimeError: mat1 and mat2",
    ),
    "bad new task": (
        lambda folder: (folder / "sound.pt", "--data", folder / "three.npz", "--new-data", VIT[2]),
        3,
        "label '9' lies outside",
    ),
    # loss
    "constant loss": (mine("constant"), 4, "the loss is constant around these weights"),
    "saturated loss": (mine("saturated"), 4, "the loss is constant around these weights"),
    "detached loss": (mine("detached"), 4, "does not depend on any of the parameters"),
    "random loss": (mine("restless"), 4, "the loss is not deterministic"),
    "infinite loss": (mine("infinite"), 4, "the loss is not finite on sample 0"),
    "forward that fails": (mine("failing"), 3, r"\(ZeroDivisionError: division by zero\)"),
    "output without logits": (mine("talkative"), 3, "the model returns dict"),
    "token loss of an image model": (
        with_data("three.npz", "--loss", "next-token"),
        2,
        "--loss next-token does not suit timm:test_resnet.*cross-entropy or mse",
    ),
    "masked loss of a classifier": (
        lambda _: (*BERT, "--loss", "masked-lm"),
        2,
        "--loss masked-lm does not suit hf:BertForSequenceClassification",
    ),
    "probe of a model with a head": (
        with_data("three.npz", "--head", "linear-probe"),
        2,
        "has a classification head already",
    ),
    "probe without data": (sound("--head", "linear-probe"), 3, "fitted on data.*--data"),
    # options
    "layers that match nothing": (
        with_data("three.npz", "--layers", "nothing_here"),
        2,
        "--layers 'nothing_here' matches no parameter",
    ),
    "layers that do not compile": (
        with_data("three.npz", "--layers", "blocks.("),
        2,
        "neither block, module, tensor nor a regular expression",
    ),
    "device of another kind": (sound("--device", "potato"), 2, "no such device.*--device cpu"),
    "device without values": (sound("--device", "meta"), 2, "no such device"),
    "literal schedule": (sound("--schedule", "literal"), 2, "loses 4 to 14 %.*--force"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_go_together(case: str, given: Path, tmp_path: Path) -> None:
    words, code, said = CASES[case]
    ran = program("kappa", *words(given), *outputs(tmp_path))
    refused(ran, code, tmp_path)
    assert re.search(said, ran.err, re.DOTALL), ran.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_on_a_machine_without(given: Path, tmp_path: Path) -> None:
    ran = program("kappa", given / "sound.pt", "--device", "cuda", *outputs(tmp_path))
    assert "--device cuda: " in refused(ran, 2, tmp_path)
    assert "hint: --device cpu" in ran.err


def test_a_refusal_as_a_process(given: Path, tmp_path: Path) -> None:
    words = ("kappa", given / "sound.pt", "--data", given / "seven.npz", *outputs(tmp_path))
    refused(process(*words, folder=tmp_path), 3, tmp_path)


def test_bad_images_can_be_left_out(given: Path) -> None:
    cheap = ("--layers", r"layer4|fc", "--no-lambda-min", "--max-steps", 2, "-q")
    ran = program("kappa", given / "sound.pt", "--data", given / "photos", "--skip-bad", *cheap)
    assert ran.code == 0, ran.err
    data = ran.report["data"]
    assert (data["n_samples"], data["available"]) == (8, 9)
    (skipped,) = data["skipped"]
    assert "1.png: the image does not decode" in skipped


def test_a_folder_that_does_not_exist(given: Path, tmp_path: Path) -> None:
    target = tmp_path / "missing" / "out.json"
    ran = program("kappa", given / "sound.pt", "--data", given / "three.npz", "-q", "-o", target)
    assert "its folder does not exist" in refused(ran, 2, tmp_path)
    assert not target.parent.exists()


def test_a_full_disk_costs_the_file_but_not_the_result(given: Path) -> None:
    cheap = ("--layers", "fc", "--no-lambda-min", "--max-steps", 2, "-q", "-o", "/dev/full")
    ran = program("kappa", given / "sound.pt", "--data", given / "three.npz", *cheap)
    assert ran.code == 5
    assert re.fullmatch(
        r"clcurv: error: cannot write '/dev/full': No space left on device\nhint: .*\n", ran.err
    )
    assert json.loads(ran.out)["groups"][0]["name"] == "fc"
