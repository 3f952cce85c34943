from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from torch import nn

from clcurv.errors import InputError, MismatchError, UsageError
from clcurv.report.document import to_json, write_json
from clcurv.training.schedule import load_schedule


def lr_of(optimizer, parameter):
    """The rate that really applies to a parameter."""
    found = [g["lr"] for g in optimizer.param_groups if any(p is parameter for p in g["params"])]
    assert len(found) == 1
    return found[0]


def scale(report, name):
    return next(g.lr_scale for g in report.groups if name in g.param_names)


def test_load_from_everything(report, tmp_path, monkeypatch):
    write_json(report, tmp_path / "s.json")
    raw = (tmp_path / "s.json").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
    for source in (tmp_path / "s.json", str(tmp_path / "s.json"), "-", json.loads(raw), report):
        assert load_schedule(source).document == report
    assert load_schedule(io.StringIO(raw.decode())).document == report
    with pytest.raises(InputError, match="schema"):
        load_schedule({"schema": "other"})


def test_an_interrupted_run_gives_no_schedule(report):
    with pytest.raises(InputError, match="partial: the run that wrote it was interrupted"):
        load_schedule(report.model_copy(update={"complete": False}))


def test_groups_are_named_disjoint_covering_and_ordered(report, net):
    groups = load_schedule(report).param_groups(net, lr=0.1, weight_decay=1e-4)
    names = [g["name"] for g in groups]
    assert len(set(names)) == len(names)
    ids = [id(p) for g in groups for p in g["params"]]
    assert sorted(ids) == sorted(id(p) for p in net.parameters())
    assert all(g["params"] for g in groups)
    assert [n for n in names if "no_decay" not in n] == [
        "stem", *(f"blocks.{i}" for i in range(11)), "head"
    ]  # fmt: skip
    assert not any("lr_scale" in g for g in groups)


def test_rates_by_hand(report, net):
    # s falls by .8 over 12 layers: 0.8^11 = 1/11.6, limited to a range of 10, so the ratio of
    # neighbouring lr_scales is 10^(1/11); equal sizes: mean of 10^(i/11), i = 0..11, is 1
    raw = np.array([10 ** (i / 11) for i in range(12)])
    expected = raw / raw.mean()
    groups = load_schedule(report).param_groups(net, lr=0.5)
    assert [g["lr"] for g in groups] == pytest.approx([*(0.5 * expected), 0.5])
    assert [g["name"] for g in groups][-1] == "head"


def test_weight_decay_is_split_at_consumption(report, net):
    schedule = load_schedule(report)
    groups = {g["name"]: g for g in schedule.param_groups(net, lr=0.1, weight_decay=0.05)}
    assert groups["blocks.3"]["weight_decay"] == 0.05
    assert groups["blocks.3.no_decay"]["weight_decay"] == 0.0
    assert groups["blocks.3"]["params"][0] is net.blocks[3].weight
    assert groups["blocks.3.no_decay"]["params"][0] is net.blocks[3].bias
    assert groups["blocks.3"]["lr"] == groups["blocks.3.no_decay"]["lr"]
    plain = schedule.param_groups(net, lr=0.1)
    assert not any("weight_decay" in g for g in plain)
    named = schedule.param_groups(net, lr=0.1, weight_decay=0.05, no_decay=["blocks.3.weight"])
    assert next(g for g in named if g["name"] == "blocks.3.no_decay")["params"] == [
        net.blocks[3].weight
    ]
    every = schedule.param_groups(net, lr=0.1, weight_decay=0.05, no_decay=lambda n, p: True)
    assert all(g["weight_decay"] == 0.0 for g in every)
    net.no_weight_decay = lambda: {"stem.weight"}
    own = {g["name"]: g for g in schedule.param_groups(net, lr=0.1, weight_decay=0.05)}
    assert len(own["stem.no_decay"]["params"]) == 2


def test_frozen_parameters_are_left_out(report, net):
    net.stem.requires_grad_(False)
    net.blocks[10].weight.requires_grad_(False)
    groups = load_schedule(report).param_groups(net, lr=0.1)
    assert "stem" not in [g["name"] for g in groups]
    assert len(next(g for g in groups if g["name"] == "blocks.10")["params"]) == 1
    net.requires_grad_(False)
    with pytest.raises(UsageError, match="frozen"):
        load_schedule(report).param_groups(net, lr=0.1)


def test_new_head_falls_into_the_default_group(report, net):
    del net.head
    net.classifier = nn.Linear(4, 7)
    schedule = load_schedule(report)
    groups = schedule.param_groups(net, lr=0.1, weight_decay=1e-2, head_lr=1.0)
    assert [g["name"] for g in groups][-2:] == ["default", "default.no_decay"]
    assert groups[-1]["lr"] == groups[-2]["lr"] == 1.0
    match = schedule.match(net)
    assert match.unmatched_model == ("classifier.weight", "classifier.bias")
    assert match.unmatched_document == ()
    assert match.fraction == 1.0
    told = str(match)
    assert told.startswith(f"{len(match.matched)} of {len(match.matched) + 2} parameters take")
    assert "100.0 % of the report's backbone" in told
    assert told.endswith("defaults for: classifier.weight, classifier.bias")


def test_a_resized_head_keeps_its_group_and_is_told(report, net):
    net.head = nn.Linear(4, 50)
    assert load_schedule(report).match(net).resized == ("head",)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda m: nn.ModuleDict({"_orig_mod": m})])
def test_wrapped_models(report, net, wrap):
    plain = load_schedule(report).param_groups(net, lr=0.1)
    wrapped = load_schedule(report).param_groups(wrap(net), lr=0.1)
    assert [(g["name"], g["lr"], len(g["params"])) for g in wrapped] == [
        (g["name"], g["lr"], len(g["params"])) for g in plain
    ]


def test_block_one_never_takes_block_ten(report, net):
    groups = {g["name"]: g for g in load_schedule(report).param_groups(net, lr=0.1)}
    assert {id(p) for p in groups["blocks.1"]["params"]} == {
        id(p) for p in net.blocks[1].parameters()
    }
    assert {id(p) for p in groups["blocks.10"]["params"]} == {
        id(p) for p in net.blocks[10].parameters()
    }


@pytest.mark.parametrize("tied_names", [("embed.weight",), ()])
def test_tied_weights_once_under_either_name(make_report, tied_names):
    model = nn.ModuleDict({"embed": nn.Embedding(5, 4), "body": nn.Linear(4, 4)})
    model["out"] = nn.Linear(4, 5, bias=False)
    model["out"].weight = model["embed"].weight
    report = make_report(model, ["embed", "body"], head=())
    first = report.groups[0].model_copy(
        update={"param_names": ("out.weight",), "tied_names": tied_names}
    )
    report = report.model_copy(update={"groups": (first, *report.groups[1:])})
    groups = load_schedule(report).param_groups(model, lr=0.1)
    assert [len(g["params"]) for g in groups] == [1, 2]
    assert groups[0]["name"] == "embed"
    if tied_names:
        assert load_schedule(report).lambda_of("embed.weight") == first.lambda_


def test_another_model_is_refused(report):
    other = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(MismatchError, match="backbone parameters"):
        load_schedule(report).param_groups(other, lr=0.1)
    assert load_schedule(report).match(other).fraction < 0.5


@pytest.mark.parametrize(
    "options", [{"lr": -1.0}, {"lr": float("nan")}, {"head_lr": 0.1}, {"lr": 1, "weight_decay": -1}]
)
def test_bad_rates(report, net, options):
    with pytest.raises(UsageError):
        load_schedule(report).param_groups(net, **options)


def test_scaled_importance_is_the_weighted_penalty(report, net):
    torch.manual_seed(1)
    schedule = load_schedule(report)
    importance = {n: torch.rand_like(p) for n, p in net.named_parameters()}
    kept = {n: v.clone() for n, v in importance.items()}
    moved = {n: torch.randn_like(p) for n, p in net.named_parameters()}
    scaled = schedule.scale_importance(importance)
    penalty = sum((0.5 * scaled[n] * moved[n] ** 2).sum() for n in moved)
    by_group = sum(
        group.lambda_ * 0.5 * sum((importance[n] * moved[n] ** 2).sum() for n in group.param_names)
        for group in report.groups
    )
    assert float(penalty) == pytest.approx(float(by_group), rel=1e-6)
    assert all(torch.equal(importance[n], kept[n]) for n in kept)


def test_importance_may_cover_a_part_and_have_a_prefix(report, net):
    schedule = load_schedule(report)
    weights = {f"module.{n}": np.ones(p.shape) for n, p in net.named_parameters() if p.ndim > 1}
    weights["module.new_head.weight"] = np.ones(3)
    scaled = schedule.scale_importance(weights)
    assert scaled["module.blocks.10.weight"][0, 0] == schedule.lambda_of("blocks.10.weight")
    assert scaled["module.new_head.weight"][0] == report.defaults.lambda_
    with pytest.raises(MismatchError):
        schedule.scale_importance({"x": np.ones(2), "y": np.ones(2)})


def test_lambda_by_name(report):
    schedule = load_schedule(report)
    assert schedule.lambda_of("blocks.0.bias") == report.groups[1].lambda_
    assert schedule.lambda_of("no.such") == report.defaults.lambda_
    assert schedule.lr_scale_of("blocks.0.bias") == report.groups[1].lr_scale
    assert "timm:vit" in repr(schedule)
    json.loads(to_json(schedule.document))


def steps(model, optimizer, n=3, after=lambda i: None):
    for i in range(n):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,))).backward()
        optimizer.step()
        after(i)


def test_plain_torch(report, net):
    optimizer = torch.optim.SGD(
        load_schedule(report).param_groups(net, lr=0.1, weight_decay=1e-4), momentum=0.9
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    steps(net, optimizer, after=lambda i: scheduler.step())
    for name, parameter in net.named_parameters():
        assert lr_of(optimizer, parameter) == pytest.approx(0.1 * scale(report, name) * 0.5**3)


def test_step_size_follows_the_scale(report, net):
    optimizer = torch.optim.SGD(load_schedule(report).param_groups(net, lr=0.1))
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    nn.functional.cross_entropy(net(torch.randn(8, 4)), torch.randint(0, 3, (8,))).backward()
    optimizer.step()
    for name, parameter in net.named_parameters():
        moved = before[name] - parameter.detach()
        torch.testing.assert_close(moved, 0.1 * scale(report, name) * parameter.grad)


def test_timm(make_report):
    import timm
    from timm.optim import create_optimizer_v2
    from timm.scheduler import create_scheduler_v2

    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=8, depth=4, num_heads=2,
        num_classes=3,
    )  # fmt: skip
    report = make_report(
        model, ["cls_token", "patch_embed", *(f"blocks.{i}" for i in range(4)), "norm"]
    )
    groups = load_schedule(report).param_groups(model, weight_decay=0.05)
    assert all("lr_scale" in g and "lr" not in g for g in groups)
    assert groups[-1]["name"] == "default.no_decay"  # pos_embed, which the report left out
    optimizer = create_optimizer_v2(groups, opt="sgd", lr=0.2, momentum=0.9)
    scheduler, _ = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=4, warmup_epochs=0, min_lr=0.0
    )
    cosine = [0.2, 0.1 * (1 + np.cos(np.pi / 4)), 0.1, 0.1 * (1 - np.cos(np.pi / 4))]
    for epoch in range(3):
        for name, parameter in model.named_parameters():
            known = name != "pos_embed"  # left out of the report: the default group
            expected = cosine[epoch] * (scale(report, name) if known else 1.0)
            assert lr_of(optimizer, parameter) == pytest.approx(expected), name
        optimizer.zero_grad()
        model(torch.randn(4, 3, 16, 16)).logsumexp(1).sum().backward()
        optimizer.step()
        scheduler.step(epoch + 1)
    no_decay = {id(p) for g in optimizer.param_groups for p in g["params"] if not g["weight_decay"]}
    assert id(model.pos_embed) in no_decay  # by the model's own list, though it has three axes
    assert id(model.blocks[0].mlp.fc1.weight) not in no_decay


def test_hf_trainer(make_report, tmp_path):
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=3, num_attention_heads=2,
            intermediate_size=8, max_position_embeddings=8, num_labels=2,
        )
    )  # fmt: skip
    layers = ["bert.embeddings", *(f"bert.encoder.layer.{i}" for i in range(3)), "bert.pooler"]
    report = make_report(model, layers, head=("classifier",))
    optimizer = torch.optim.AdamW(
        load_schedule(report).param_groups(model, lr=1e-3, weight_decay=0.01)
    )
    data = [
        {"input_ids": torch.randint(0, 20, (6,)), "labels": torch.tensor(i % 2)} for i in range(16)
    ]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            str(tmp_path), max_steps=3, per_device_train_batch_size=4, report_to=[],
            lr_scheduler_type="linear", learning_rate=123.0, use_cpu=True, save_strategy="no",
            logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        ),
        train_dataset=data,
        optimizers=(optimizer, None),
    )  # fmt: skip
    rates = []

    from transformers import TrainerCallback

    class Record(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            rates.append({n: lr_of(optimizer, p) for n, p in model.named_parameters()})

    trainer.add_callback(Record())
    trainer.train()
    # linear to 0 over 3 steps; recorded after the scheduler moved on
    for step, seen in enumerate(rates[:2]):
        for name, rate in seen.items():
            assert rate == pytest.approx(1e-3 * scale(report, name) * (1 - (step + 1) / 3)), name
    assert len(rates) == 3
