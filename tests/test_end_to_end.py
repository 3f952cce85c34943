"""`clcurv kappa` from checkpoint to schedule, on networks really trained and on tiny ones."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from program import (
    BERT,
    RESNET,
    SAMPLES,
    VIT,
    Ran,
    command,
    environment,
    process,
    program,
    quiet_surroundings,
)
from schemacheck import violations
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional

import clcurv
from clcurv.errors import InputError, NumericalError
from clcurv.report.reader import load_document

CHECKPOINTS = {"digits_resnet": (RESNET, 10), "digits_vit": (VIT, 10), "intent_bert": (BERT, 12)}
# The upper end of a network only: a graph that starts there is short.
CHEAP = ("--samples", 10, "-q", "--no-lambda-min", "--layers", r"blocks\.[45]|^norm|head")
HEAD_ONLY = ("--samples", 10, "-q", "--no-lambda-min", "--layers", r"^norm|head")


@pytest.fixture(scope="module", autouse=True)
def surroundings() -> Iterator[None]:
    with quiet_surroundings():
        yield


# --- the sample checkpoints -------------------------------------------------------------------


@dataclass(frozen=True)
class Full:
    """One sample checkpoint, measured through the command line."""

    name: str
    ran: Ran
    folder: Path

    def model(self) -> nn.Module:
        """The network as its own library loads it."""
        if self.name == "intent_bert":
            return transformers.AutoModelForSequenceClassification.from_pretrained(
                SAMPLES / self.name
            )
        if self.name == "digits_resnet":
            return timm.create_model(f"local-dir:{SAMPLES / self.name}", pretrained=True)
        return load_vit()


def load_vit() -> nn.Module:
    """The ViT by timm's own means."""
    saved = torch.load(SAMPLES / "digits_vit.pt", weights_only=True)
    told = {name: saved["args"][name] for name in ("num_classes", "in_chans")}
    model = timm.create_model(saved["arch"], **told, **saved["args"]["model_kwargs"])
    model.load_state_dict(saved["state_dict"])
    return model.eval()


@pytest.fixture(scope="module", params=list(CHECKPOINTS))
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Full:
    words, samples = CHECKPOINTS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    files = ("-o", folder / "kappa.json", "--plot", folder / "kappa.svg")
    ran = program("kappa", *words, "--samples", samples, "--tol", 0.05, "-q", *files)
    return Full(request.param, ran, folder)


def test_report_of_a_sample_checkpoint(full: Full) -> None:
    assert (full.ran.code, full.ran.err) == (0, "")
    report = full.ran.report
    assert violations(report, json.loads(program("schema", "schedule").out)) == []
    assert report["complete"] is True
    assert report["data"]["n_samples"] == CHECKPOINTS[full.name][1]
    assert report["data"]["accuracy"] >= 0.8  # trained to 95 % and more
    assert report["data"]["mean_loss"] < 0.7
    groups = report["groups"]
    assert {g["status"] for g in groups} == {"ok"}
    assert all(g["converged"] and g["s"] > 0 and g["error_bound"] <= 0.05 for g in groups)
    assert [g["is_head"] for g in groups] == [False] * (len(groups) - 1) + [True]
    body = [g["s"] for g in groups[:-1]]
    assert report["kappa"]["value"] == pytest.approx(max(body) / min(body))


def test_files_of_a_sample_checkpoint(full: Full) -> None:
    assert json.loads((full.folder / "kappa.json").read_text()) == full.ran.report
    assert "<svg" in (full.folder / "kappa.svg").read_text()
    assert {path.name for path in full.folder.iterdir()} == {"kappa.json", "kappa.svg"}


def test_schedule_of_a_sample_checkpoint_covers_the_model(full: Full) -> None:
    schedule = clcurv.load_schedule(full.folder / "kappa.json")
    model = full.model()
    match = schedule.match(model)
    assert (match.unmatched_model, match.unmatched_document, match.resized) == ((), (), ())
    groups = schedule.param_groups(model, lr=0.1)
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in model.parameters())
    torch.optim.SGD(groups)
    weights = [(g.numel, g.lambda_) for g in schedule.document.groups if not g.is_head]
    mean = sum(n * value for n, value in weights) / sum(n for n, _ in weights)
    assert mean == pytest.approx(1.0)


def test_table_on_a_terminal() -> None:
    ran = program("kappa", *VIT, *CHEAP, terminal=True)
    assert (ran.code, ran.err) == (0, "")
    shown = re.sub(r"\x1b\[[\d;]*m", "", ran.out)
    assert "{" not in shown
    for word in ("timm:vit_", "blocks.4", "head (head)", "lr_scale", "κ", "direction"):
        assert word in shown, word


@pytest.fixture(scope="module")
def cheap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on the last layers of the ViT, for comparisons."""
    path = tmp_path_factory.mktemp("cheap") / "kappa.json"
    assert program("kappa", *VIT, *CHEAP, "-o", path).code == 0
    return path


@pytest.mark.parametrize(
    ("words", "code", "outcomes"),
    [
        (("--fail-on", "kappa>1e9"), 0, ["pass"]),
        (("--fail-on", "kappa>1", "--fail-on", "kappa>1e9"), 10, ["fail", "pass"]),
        (("--fail-on", "kappa>{kappa}"), 11, ["inconclusive"]),
        (("--baseline", "{file}", "--fail-on-regression", "10%"), 0, ["pass", "pass"]),
    ],
)
def test_gates(cheap: Path, words: tuple[str, ...], code: int, outcomes: list[str]) -> None:
    kappa = load_document(cheap).kappa.value
    told = [word.format(kappa=kappa, file=cheap) for word in words]
    ran = program("kappa", *VIT, *CHEAP, *told)
    assert ran.code == code, ran.err
    assert [gate["outcome"] for gate in ran.report["verdict"]["gates"]] == outcomes


def test_generated_data_decides_nothing_unless_allowed(cheap: Path, tmp_path: Path) -> None:
    words = ("kappa", VIT[0], *HEAD_ONLY, "--include-head", "--fail-on", "kappa>1e9")
    ran = program(*words, "-o", tmp_path / "a.json")
    assert ran.code == 11
    assert json.loads((tmp_path / "a.json").read_text()) == ran.report
    data = ran.report["data"]
    assert (data["source"], data["label_source"], data["path"]) == ("generated", "model", None)
    assert ran.report["kappa"]["value"] > 1
    again = program(*words, "--allow-generated")
    assert again.code == 0
    assert again.report["data"]["digest"] == data["digest"]


def test_new_task_gives_the_measured_regret() -> None:
    ran = program("kappa", *VIT, *CHEAP, "--new-data", SAMPLES / "digits_rotated.npz")
    assert ran.code == 0, ran.err
    schedule = ran.report["schedule"]
    assert 0 < schedule["regret_measured"] <= schedule["regret_bound"] < 1


def test_pyhessian_agrees() -> None:
    ran = program("kappa", *VIT, *HEAD_ONLY, "--cross-check")
    assert ran.code == 0, ran.err
    checks = ran.report["cross_check"]
    assert {check["name"] for check in checks} == {"norm", "head"}
    assert all(abs(check["relative_difference"]) <= 0.02 for check in checks)
    assert not any("cross-check" in warning for warning in ran.report["warnings"])


def sensitivities(ran: Ran) -> dict[str, float]:
    assert ran.code == 0, ran.err
    return {group["name"]: group["s"] for group in ran.report["groups"]}


@pytest.fixture(scope="module")
def hessian(cheap: Path) -> dict[str, float]:
    return {g.name: g.s for g in load_document(cheap).groups if g.s is not None}


@pytest.mark.parametrize("operator", ["ggn", "fisher", "empirical-fisher"])
def test_operators(hessian: dict[str, float], operator: str) -> None:
    ran = program("kappa", *VIT, *CHEAP, "--operator", operator)
    found = sensitivities(ran)
    assert ran.report["estimator"]["operator"] == operator
    assert found.keys() == hessian.keys()
    assert all(s > 0 for s in found.values())
    if operator == "empirical-fisher":
        # Another matrix: it has the squared residuals where the others have the probabilities.
        assert found["head"] != pytest.approx(hessian["head"], rel=1e-3)
    else:
        # Equal where the logits are linear in the parameters, different below.
        assert found["head"] == pytest.approx(hessian["head"], rel=1e-3)
        assert found["blocks.4"] != pytest.approx(hessian["blocks.4"], rel=1e-3)


def test_float64(hessian: dict[str, float]) -> None:
    ran = program("kappa", *VIT, *CHEAP, "--dtype", "float64")
    assert sensitivities(ran) == pytest.approx(hessian, rel=1e-4)
    assert ran.report["estimator"]["dtype"] == "float64"


# --- the Python interface ---------------------------------------------------------------------


def held_out(count: int) -> tuple[Tensor, Tensor]:
    """The first digits as the ViT takes them: grey, 0 to 1."""
    with np.load(SAMPLES / "digits_held_out.npz") as arrays:
        x, y = arrays["x"][:count], arrays["y"][:count]
    images = torch.from_numpy(np.asarray(x, dtype=np.float32))
    images = images / 255 if x.dtype == np.uint8 else images
    return images.reshape(count, 1, *images.shape[-2:]), torch.from_numpy(y).long()


def head_hessian(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Of the mean cross-entropy by weight and bias of a linear head, in closed form.

    Mean over samples of (diag(p) − ppᵀ) ⊗ hhᵀ with h the head's input and a 1.
    """
    with torch.no_grad():
        h = model.forward_head(model.forward_features(x), pre_logits=True).double()
        p = model(x).double().softmax(dim=1)
    h = torch.cat([h, torch.ones(len(h), 1).double()], dim=1)
    inner = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    blocks = torch.einsum("nij,nk,nl->ikjl", inner, h, h) / len(y)
    side = p.shape[1] * h.shape[1]
    return blocks.reshape(side, side)


def test_live_module_with_tensors() -> None:
    model = load_vit().train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith("blocks.0"))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x, y = held_out(20)
    report = clcurv.kappa(
        model, data=(x, y), samples=20, layers=r"^norm|head", include_head=True, tol=1e-3
    )
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
    assert frozen
    assert all(name.startswith("blocks.0") for name in frozen)

    model.eval()
    with torch.no_grad():
        logits = model(x)
    assert report.result.mean_loss == pytest.approx(float(functional.cross_entropy(logits, y)))
    assert report.result.accuracy == pytest.approx(float((logits.argmax(1) == y).float().mean()))
    assert report.document.data.source == "given"
    values = torch.linalg.eigvalsh(head_hessian(model, x, y))
    (head,) = (layer for layer in report.result.layers if layer.is_head)
    assert head.s == pytest.approx(float(values[-1]), rel=1e-3)
    schedule = clcurv.load_schedule(report.document)
    assert schedule.param_groups(model, lr=1.0)


def certain(scale: float, dtype: str) -> Any:
    """A linear classifier whose logits are `scale` for the right class and 0 for two others."""
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.copy_(scale * torch.eye(3))
        model.bias.zero_()
    y = torch.arange(12) % 3
    data = (torch.eye(3)[y], y)
    return clcurv.kappa(model, data=data, layers="tensor", dtype=dtype, include_head=True)


def test_curvature_of_a_network_certain_of_everything() -> None:
    for margin in (15.0, 20.0):
        with pytest.raises(NumericalError, match=r"^the mean loss \S+ is so small .* certain of"):
            certain(margin, "float32")
    report = certain(20.0, "float64")
    assert not any("rounding" in warning for warning in report.document.warnings)
    rest = float(np.exp(-20.0))  # each other class, against the right one
    p = torch.tensor([1.0, rest, rest], dtype=torch.float64) / (1 + 2 * rest)
    # The weight's block falls apart into one of diag(p) - ppᵀ for each input feature.
    expected = float(torch.linalg.eigvalsh(torch.diag(p) - torch.outer(p, p))[-1]) / 3
    assert report.result.layers[0].s == pytest.approx(expected, rel=1e-2)
    near = certain(13.0, "float32")
    assert any("rounding in float32 may change s by" in w for w in near.document.warnings)


# --- language models --------------------------------------------------------------------------

TEXTS = ("the cat sat on the mat", "a dog ran", "the red dog sat", "a blue cat", "the mat", "dog")


def text_file(folder: Path) -> Path:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def tiny_gpt2(folder: Path) -> tuple[nn.Module, Any]:
    """A random two-block GPT-2 over single bytes, saved with its tokenizer, and both."""
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    end = "<|endoftext|>"
    inner = Tokenizer(models.BPE(vocab=letters | {end: len(letters)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=end, eos_token=end, model_max_length=32
    )
    tokenizer.save_pretrained(folder)
    config = transformers.GPT2Config(
        vocab_size=257, n_positions=32, n_embd=16, n_layer=2, n_head=2,
        bos_token_id=256, eos_token_id=256,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder)
    return model, tokenizer


def test_causal_language_model(tmp_path: Path) -> None:
    folder = tmp_path / "gpt2"
    model, tokenizer = tiny_gpt2(folder)
    words = ("--data", text_file(tmp_path), "--samples", len(TEXTS), "--max-steps", 20, "-q")
    ran = program("kappa", folder, *words, "--tol", 1e-3, "--layers", r"h\.\d|ln_f|wte|wpe")
    assert ran.code == 0, ran.err
    report = ran.report
    assert (report["model"]["task"], report["estimator"]["loss"]) == ("causal-lm", "next-token")
    assert any("near chance" in warning for warning in report["warnings"])  # it knows nothing
    (tied,) = (g for g in report["groups"] if g["tied_names"])
    assert (tied["param_names"], tied["tied_names"]) == (
        ["transformer.wte.weight"],
        ["lm_head.weight"],
    )

    # The library's own loss on the library's own tokens; padding is scored by neither.
    tokenizer.pad_token = tokenizer.eos_token
    batch = tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    assert report["data"]["n_terms"] == int((labels[:, 1:] != -100).sum())
    norm = model.transformer.ln_f
    model.double()

    def loss(weight: Tensor, bias: Tensor) -> Tensor:
        named = {"transformer.ln_f.weight": weight, "transformer.ln_f.bias": bias}
        return torch.func.functional_call(
            model, named, kwargs={**batch, "labels": labels}
        ).loss  # fmt: skip

    point = (norm.weight.detach(), norm.bias.detach())
    assert report["data"]["mean_loss"] == pytest.approx(loss(*point).item(), rel=1e-5)
    blocks = torch.autograd.functional.hessian(loss, point)
    dense = torch.cat([torch.cat(row, dim=1) for row in blocks])
    assert sensitivities(ran)["ln_f"] == pytest.approx(
        float(torch.linalg.eigvalsh(dense)[-1]), rel=2e-3
    )


@pytest.fixture(scope="module")
def masked_language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-block BERT with the tokenizer of the sample."""
    folder = tmp_path_factory.mktemp("masked")
    tokenizer = transformers.AutoTokenizer.from_pretrained(SAMPLES / "intent_bert")
    tokenizer.save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=32, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertForMaskedLM(config).eval().save_pretrained(folder)
    return folder


def test_masked_language_model(masked_language_model: Path) -> None:
    words = (masked_language_model, *BERT[1:], "--samples", 12, "-q", "--max-steps", 8)
    ran = program("kappa", *words, "--no-lambda-min")
    assert ran.code == 0, ran.err
    report = ran.report
    assert (report["model"]["task"], report["estimator"]["loss"]) == ("masked-lm", "masked-lm")
    assert 12 <= report["data"]["n_terms"] < 60  # some 15 % of the words
    vocabulary = report["model"]["num_classes"]
    assert report["data"]["mean_loss"] == pytest.approx(np.log(vocabulary), rel=0.02)
    assert [g["name"] for g in report["groups"]] == [
        "bert.embeddings",
        "bert.encoder.layer.0",
        "bert.encoder.layer.1",
        "cls.predictions",
    ]
    assert all(g["s"] > 0 for g in report["groups"])


@pytest.mark.parametrize(
    ("how", "name", "members"),
    [
        ("module", "bert.encoder.layer.1.attention.self.query", 2),
        ("tensor", "bert.encoder.layer.1.attention.self.query.weight", 1),
        (r"layer\.(\d)", "1", 16),
    ],
)
def test_layers(masked_language_model: Path, how: str, name: str, members: int) -> None:
    words = (masked_language_model, *BERT[1:], "--samples", 4, "-q", "--max-steps", 1)
    ran = program("kappa", *words, "--layers", how, "--no-lambda-min", "--tol", 0.5)
    assert ran.code == 0, ran.err
    (group,) = (g for g in ran.report["groups"] if g["name"] == name)
    assert len(group["param_names"]) == members
    model = transformers.BertForMaskedLM.from_pretrained(masked_language_model)
    every = {n for n, _ in model.named_parameters()}
    listed = [n for g in ran.report["groups"] for n in g["param_names"]]
    assert len(listed) == len(set(listed))
    lost = {n for n in every if not re.search(how, n)} if "layer" in how else set()
    assert set(listed) == every - lost
    assert any("in no layer" in warning for warning in ran.report["warnings"]) == bool(lost)


# --- an architecture to be guessed ------------------------------------------------------------


@pytest.fixture(scope="module")
def anonymous(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A training file that does not name its model, whose tensors fit two, and labelled data."""
    folder = tmp_path_factory.mktemp("anonymous")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = timm.create_model("test_efficientnet_gn", num_classes=4).eval()
        images = (torch.rand(16, 4, 4, 3) * 255).byte().repeat_interleave(40, 1)
        images = images.repeat_interleave(40, 2)
    config = timm.data.resolve_model_data_config(model)
    mean, std = (torch.tensor(config[key])[:, None, None] for key in ("mean", "std"))
    pixels = (images.permute(0, 3, 1, 2) / 255 - mean) / std
    with torch.no_grad():
        # A sharp head that is certain of the labels: its own answers, spread over all classes.
        logits = model(pixels)
        model.classifier.weight *= 20 / logits.std(0)[:, None]
        model.classifier.bias -= model(pixels).mean(0)
        labels = model(pixels).argmax(1)
    assert len(labels.unique()) > 2
    np.savez(folder / "data.npz", x=images.numpy(), y=labels.numpy())
    saved = {"epoch": 3, "state_dict": model.state_dict(), "optimizer": {}, "metric": 91.5}
    torch.save(saved, folder / "last.pth.tar")
    return folder / "last.pth.tar", folder / "data.npz"


def test_the_lower_loss_decides_between_siblings(anonymous: tuple[Path, Path]) -> None:
    checkpoint, data = anonymous
    words = ("--samples", 16, "-q", "--no-lambda-min", "--layers", "conv_head|classifier")
    ran = program("kappa", checkpoint, "--data", data, *words)
    assert ran.code == 0, ran.err
    model = ran.report["model"]
    assert (model["arch"], model["arch_source"]) == ("timm:test_efficientnet_gn", "loss")
    assert model["candidates"] == ["timm:test_efficientnet_ln"]
    assert ran.report["data"]["accuracy"] == 1.0
    assert any("test_efficientnet_ln" in note for note in model["notes"])


def test_siblings_are_listed_where_nothing_decides(anonymous: tuple[Path, Path]) -> None:
    ran = program("kappa", anonymous[0], "-q")
    assert (ran.code, ran.out) == (3, "")
    assert "test_efficientnet_gn, test_efficientnet_ln" in ran.err


# --- interruptions ----------------------------------------------------------------------------


def refuses_the_partial(path: Path) -> None:
    document = load_document(path)
    assert document.complete is False
    assert any("partial" in warning for warning in document.warnings)
    with pytest.raises(InputError, match=r"^the report is partial: the run .* was interrupted$"):
        clcurv.load_schedule(path)


def test_interrupted_library_call_carries_the_partial_report(tmp_path: Path) -> None:
    stages: list[str] = []

    def stop(stage: str, done: int, total: int) -> None:
        stages.append(stage)
        if stages.count("all data") == 2:
            raise KeyboardInterrupt

    x, y = held_out(20)
    with pytest.raises(KeyboardInterrupt) as caught:
        clcurv.kappa(load_vit(), data=(x, y), layers=r"blocks\.5|head", progress=stop, tol=1e-6)
    document = caught.value.document
    assert [g.name for g in document.groups] == ["blocks.5", "head"]
    assert all(0 < g.steps < 10 and not g.converged for g in document.groups)
    assert document.complete is False


def test_ctrl_c_writes_the_partial_report(tmp_path: Path) -> None:
    words = ("--samples", 40, "--tol", 1e-6, "-o", tmp_path / "a.json", "--fail-on", "kappa>1")
    started = subprocess.Popen(
        command("kappa", *VIT, *words),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    seen = []
    for line in started.stderr:
        seen.append(line)
        if "all data" in line:
            break
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=300)
    assert started.returncode == 130, (seen, err)
    assert "clcurv: error: interrupted\nhint: the report is partial\n" in err
    assert "Traceback" not in err
    saved = json.loads((tmp_path / "a.json").read_text())
    assert json.loads(out) == saved
    assert saved["verdict"] is None
    refuses_the_partial(tmp_path / "a.json")
    shown = program("show", tmp_path / "a.json", "--fail-on", "kappa>1", "-q")
    assert shown.code == 11
    assert shown.report["verdict"]["gates"][0]["outcome"] == "inconclusive"


# --- as processes -----------------------------------------------------------------------------


def test_process_with_a_pipe(tmp_path: Path) -> None:
    ran = process("kappa", *VIT, *HEAD_ONLY, "-o", "a.json", folder=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert json.loads((tmp_path / "a.json").read_text()) == ran.report
    assert ran.report["command"].startswith("clcurv kappa ")
    again = program("kappa", *VIT, *HEAD_ONLY)
    assert sensitivities(again) == pytest.approx(sensitivities(ran), rel=1e-6)


def test_process_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    started = subprocess.Popen(
        command("kappa", *VIT, *HEAD_ONLY[:2], *HEAD_ONLY[3:]),
        cwd=tmp_path,
        env=environment(TERM="xterm-256color"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux: the other end is gone
            break
        if not part:
            break
        shown += part
    os.close(ours)
    text = shown.decode()
    assert started.wait(30) == 0, text
    assert "lr_scale" in text
    assert '"schema"' not in text
    assert "Warning" not in text
