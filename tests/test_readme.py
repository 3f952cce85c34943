"""What the README says is so: options, commands, exit codes, and code that runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer
from kappa_results import make_document, make_layer
from torch import nn

from clcurv import errors
from clcurv.cli.app import app
from clcurv.report import gate
from clcurv.report.document import write_json
from clcurv.report.gate import parse_gate
from clcurv.report.kappa_document import KappaDocument
from clcurv.report.registry import REPORTS, document_class

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# What the benchmark writes there has options of its own.
OWN = re.sub(r"<!-- ([\w-]*peers):begin -->.*?<!-- \1:end -->", "", README, flags=re.DOTALL)
PROGRAM = typer.main.get_command(app)


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.MULTILINE)[1]


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands():
    """Every `clcurv COMMAND ...` of the shell and YAML blocks, as its words."""
    found = []
    for block in blocks("sh", OWN) + blocks("yaml", OWN):
        for line in re.findall(rf"(?<![\w-])clcurv (?:{'|'.join(PROGRAM.commands)}) .*", block):
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
            lexer.whitespace_split = True
            words = list(lexer)
            end = next((i for i, w in enumerate(words) if set(w) <= set("|&;>")), len(words))
            found.append(words[1:end])
    return found


def options(command):
    flags = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
    return flags | {"--help"}


def test_every_option_in_the_readme_exists():
    every = [PROGRAM, *PROGRAM.commands.values()]
    every += [c for group in every[1:] for c in getattr(group, "commands", {}).values()]
    known = set().union(*(options(c) for c in every)) | {"--hypothesis-profile"}  # of pytest
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", OWN))
    assert len(named) > 20
    assert named - known == set()


def test_there_are_commands_of_every_kind():
    assert len(commands()) > 10
    assert {words[0] for words in commands()} == set(PROGRAM.commands)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_the_program_takes_every_command(words):
    name, *arguments = words
    with PROGRAM.commands[name].make_context(name, arguments) as context:
        for expression in context.params.get("fail_on") or ():
            assert any(is_gate(expression, kind) for kind in documents(name))


def documents(command):
    """The reports that a command may be about."""
    own = {"kappa": ["clcurv.schedule"], "spectrum": ["clcurv.spectrum"]}
    return [document_class(schema) for schema in own.get(command, REPORTS)]


def is_gate(expression, document):
    try:
        parse_gate(expression, document=document)
    except errors.UsageError:
        return False
    return True


@pytest.mark.parametrize(
    ("flag", "words"), re.findall(r"(--[a-z-]+) ([a-z-]+(?:\|[a-zA-Z-]+)+)", OWN)
)
def test_the_program_takes_the_choices_named_in_prose(flag, words):
    """`--operator ggn|fisher`: each word must be one that the option takes."""
    for word in words.split("|"):
        with PROGRAM.commands["kappa"].make_context("kappa", ["model.pt", flag, word]):
            pass


@pytest.mark.parametrize("ending", ["-m pytest", "clcurv kappa sample_checkpoints/"])
def test_both_marked_commands_can_be_taken_out(ending):
    """As .ci/run does, which runs them."""
    pattern = re.compile(rf"^python3\.11 -m venv .*{re.escape(ending)}.*", re.MULTILINE)
    assert README.count(ending) == 1
    (line,) = pattern.findall(README)
    environment, install, last = line.split(" && ")
    assert environment == "python3.11 -m venv .venv"
    assert install.startswith(".venv/bin/pip install ")
    assert last.startswith(".venv/bin/")
    named = [w for w in last.split() if w.startswith("sample_checkpoints/")]
    assert all((ROOT / path).exists() for path in named)


def test_exit_codes_are_those_of_the_errors():
    rows = re.findall(
        r"^\| ([\d, ]+) \| ([^|]+) \| ?(?:`(\w+)`)? ?\|$", section("In a pipeline"), re.M
    )
    table = {int(code): name for codes, _, name in rows for code in codes.split(",")}
    classes = [errors.ClcurvError, *errors.ClcurvError.__subclasses__()]
    assert {code: name for code, name in table.items() if name} == {
        c.exit_code: c.__name__ for c in classes
    }
    assert {code for code, name in table.items() if not name} == {
        0, gate.FAILED, gate.INCONCLUSIVE, 129, 130, 143
    }  # fmt: skip
    assert "failed" in next(text for codes, text, _ in rows if codes == str(gate.FAILED))


def test_the_fields_of_the_report_are_the_schemas():
    listed = section("The report").split("| field | holds |")[1]
    fields = {
        name
        for row in re.findall(r"^\| (`[^|]*) \|", listed, re.M)
        for name in re.findall(r"`(\w+)", row)
    }
    schema = KappaDocument.model_json_schema(mode="serialization")
    assert fields <= set(schema["properties"])
    assert set(schema["properties"]) - fields == {"tool", "created", "command"}
    group = re.search(r"`groups\[\]` \| (.*) \|", listed)[1]
    assert set(re.findall(r"`(\w+)`", group)) <= set(schema["$defs"]["Group"]["properties"])


class Net(nn.Module):
    """Three blocks and a head; takes a tensor, and what HF's Trainer passes."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 3)

    def forward(self, x, labels=None):
        x = self.stem(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        logits = self.head(x)
        if labels is None:
            return logits
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def report_on(model):
    modules = ["stem", "blocks.0", "blocks.1", "blocks.2", "head"]
    layers = [
        make_layer(
            name, depth, 0.5**depth, is_head=name == "head",
            param_names=(f"{name}.weight", f"{name}.bias"),
            numel=sum(p.numel() for p in model.get_submodule(name).parameters()),
        )
        for depth, name in enumerate(modules)
    ]  # fmt: skip
    document = make_document(layers=layers)
    assert document.schedule.mode == "geometric"  # a uniform one would prove nothing
    return document


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the reports that the README's code reads; the model they are of."""
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    model = Net()
    document = report_on(model)
    for name in ("vit.json", "bert.json"):
        write_json(document, name)
    return SimpleNamespace(model=model, scale={g.name: g.lr_scale for g in document.groups})


CONSUMERS = blocks("python", section("Using the schedule"))


def test_there_are_five_consumers_of_five_lines():
    assert len(CONSUMERS) == 5
    assert all(sum(map(bool, code.splitlines())) <= 5 for code in CONSUMERS)


def run(code, **names):
    import clcurv

    names = {"clcurv": clcurv, "torch": torch, **names}
    exec(compile(code, "README.md", "exec"), names)
    return SimpleNamespace(**names)


def consumer(mark):
    (code,) = [code for code in CONSUMERS if mark in code]
    return code


def rates(optimizer, model):
    """Layer -> the rate that applies to its weight."""
    rate = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    return {
        name.removesuffix(".weight"): rate[id(p)]
        for name, p in model.named_parameters()
        if name.endswith("weight")
    }


def test_torch_consumer(place):
    done = run(consumer("head_lr"), model=place.model)
    expected = {n: 1e-3 * s for n, s in place.scale.items()} | {"head": 1e-2}
    assert rates(done.optimizer, place.model) == pytest.approx(expected)


def test_trainer_consumer(place):
    from transformers import TrainingArguments

    data = [{"x": torch.randn(4), "labels": torch.tensor(i % 3)} for i in range(8)]
    args = TrainingArguments(
        "runs", max_steps=2, use_cpu=True, save_strategy="no", logging_strategy="no", report_to=[],
        disable_tqdm=True, dataloader_pin_memory=False, lr_scheduler_type="constant",
    )  # fmt: skip
    done = run(consumer("Trainer"), model=place.model, args=args, train_set=data)
    assert done.trainer.state.global_step == 2
    found = rates(done.trainer.optimizer, place.model)
    assert found == pytest.approx({n: 2e-5 * s for n, s in place.scale.items()})


def test_timm_consumer(place):
    done = run(consumer("create_optimizer_v2"), model=place.model)
    done.lr_scheduler.step(10)  # half of a cosine
    found = rates(done.optimizer, place.model)
    assert found == pytest.approx({n: 0.5e-3 * s for n, s in place.scale.items()})


def test_lightning_consumer(place):
    wrapped = nn.ModuleDict({"model": place.model})  # a LightningModule's usual prefix
    done = run(consumer("configure_optimizers"))
    (optimizer,), (scheduler,) = done.configure_optimizers(wrapped)
    assert isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
    found = rates(optimizer, place.model)
    assert found == pytest.approx({n: 1e-3 * s for n, s in place.scale.items()})


def test_importance_consumer(place):
    named = dict(place.model.named_parameters())
    done = run(
        consumer("scale_importance"),
        model=place.model,
        importance={n: torch.ones_like(p) for n, p in named.items()},
        old={n: p.detach() - float(n.startswith("stem")) for n, p in named.items()},
        loss=torch.zeros(()),
        strength=2.0,
    )
    stem = report_on(place.model).groups[0]  # all moved by 1, the others not at all
    assert done.loss.item() == pytest.approx(stem.lambda_ * stem.numel)


def test_l2er_consumer(place):
    (code,) = blocks("python", section("A stream of tasks"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    document = {
        "schema": "clcurv.l2er", "schema_version": "1.0",
        "tool": {"name": "clcurv", "version": "0"},
        "created": "2026-01-01T00:00:00Z", "command": None, "verdict": "collapsed", "evidence": "",
        "arch": "", "stream": "", "weight_decay": 1e-3, "er_lr": 1e-2, "er_every": 2,
        "er_layers": ["2"], "window": 20, "order": [], "lr": 0.1,
        "objective": {"lambda": 5e-4, "beta": 5e-2}, "derivation": "",
    }  # fmt: skip
    Path("l2er.json").write_text(json.dumps(document))
    loader = [(torch.randn(10, 6), torch.randint(3, (10,))) for _ in range(4)]
    names = {
        "model": model,
        "optimizer": optimizer,
        "loader": loader,
        "cross_entropy": nn.functional.cross_entropy,
    }
    exec(code, names)
    assert names["reg"].steps == 2


def test_penalty_consumer(place):
    from clcurv.training.multipliers import save_multipliers

    (code,) = blocks("python", section("Parameters the next task may change"))
    model = nn.Sequential(nn.Linear(4, 3))
    tensors = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    save_multipliers("alpha.safetensors", tensors, lambda_=2.0, about={})
    names = {
        "model": model,
        "x": torch.randn(5, 4),
        "y": torch.randint(3, (5,)),
        "cross_entropy": nn.functional.cross_entropy,
    }
    exec(code, names)
    assert float(names["penalty"].penalty().detach()) == 0.0
    with torch.no_grad():
        model[0].bias += 1
    assert float(names["penalty"].penalty().detach()) == pytest.approx(3.0)  # 2/2 · 3 · 1²


def test_python_api(place):
    (code,) = blocks("python", section("From Python"))
    x = torch.randn(32, 4)
    place.model.train()
    done = run(code, model=place.model, x=x, y=torch.arange(32) % 3)
    names = [layer.name for layer in done.report.result.layers]
    assert (names[0], names[-1]) == ("stem", "head")
    assert len(done.optimizer_groups) == len(names)
    assert Path("kappa.json").stat().st_size > 0
    assert place.model.training
