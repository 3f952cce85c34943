from __future__ import annotations

import sys
import types

import pytest
import safetensors.torch
import torch
from torch import nn

from clcurv.errors import CorruptFileError, MismatchError, NotWeightsError, UsageError
from clcurv.training import ImportancePenalty, load_schedule
from clcurv.training.multipliers import save_multipliers


def drawn(model, seed=1):
    g = torch.Generator().manual_seed(seed)
    return {n: torch.rand(p.shape, generator=g) for n, p in model.named_parameters()}


@torch.no_grad()
def shake(model, seed=2):
    g = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.add_(torch.randn(p.shape, generator=g), alpha=0.1)


def by_hand(alpha, start, model, lambda_):
    total = 0.0
    for name, p in model.named_parameters():
        moved = p.detach().double() - start[name].detach().double()
        total += float((alpha[name].double() * moved**2).sum())
    return lambda_ / 2 * total


def test_value_and_gradient_by_hand(net):
    alpha, start = drawn(net), {n: p.detach().clone() for n, p in net.named_parameters()}
    penalty = ImportancePenalty(net, alpha, lambda_=3.0)
    assert float(penalty.penalty().detach()) == 0.0
    shake(net)
    expected = by_hand(alpha, start, net, 3.0)
    assert penalty.value() == pytest.approx(expected, rel=1e-6)
    assert float(penalty.penalty().detach()) == pytest.approx(expected, rel=1e-5)
    penalty.penalty().backward()
    by_graph = {n: p.grad.clone() for n, p in net.named_parameters()}
    for n, p in net.named_parameters():
        torch.testing.assert_close(p.grad, 3.0 * alpha[n] * (p.detach() - start[n]))
        p.grad = None
    penalty.add_gradient_()
    for n, p in net.named_parameters():
        torch.testing.assert_close(p.grad, by_graph[n])
    penalty.add_gradient_()
    torch.testing.assert_close(net.stem.weight.grad, 2 * by_graph["stem.weight"])


def test_it_keeps_a_copy_of_what_it_was_given(net):
    alpha = drawn(net)
    penalty = ImportancePenalty(net, alpha)
    shake(net)
    before = penalty.value()
    for value in alpha.values():
        value.zero_()
    assert penalty.value() == before > 0


def test_lambda_may_change_and_zero_is_nothing(net):
    penalty = ImportancePenalty(net, drawn(net), lambda_=1.0)
    shake(net)
    once = penalty.value()
    penalty.lambda_ = 2.5
    assert penalty.value() == pytest.approx(2.5 * once)
    penalty.lambda_ = 0.0
    penalty.add_gradient_()
    assert net.stem.weight.grad is None
    with pytest.raises(UsageError, match="at least 0"):
        ImportancePenalty(net, drawn(net), lambda_=-1.0)


def test_new_rows_of_a_head_are_free(net):
    alpha, start = drawn(net), {n: p.detach().clone() for n, p in net.named_parameters()}
    head = nn.Linear(4, 5)
    with torch.no_grad():
        head.weight[:3], head.bias[:3] = net.head.weight, net.head.bias
    net.head = head
    penalty = ImportancePenalty(net, alpha, lambda_=2.0)
    assert penalty.grown == ("head.weight", "head.bias")
    shake(net)
    old = by_hand(
        {"head.weight": alpha["head.weight"], "head.bias": alpha["head.bias"]},
        start,
        types.SimpleNamespace(
            named_parameters=lambda: [
                ("head.weight", net.head.weight[:3]), ("head.bias", net.head.bias[:3]),
            ]
        ),
        2.0,
    )  # fmt: skip
    only = ImportancePenalty(
        net, {n: a for n, a in alpha.items() if n.startswith("head")}, lambda_=2.0, reference=start
    )
    assert only.value() == pytest.approx(old, rel=1e-5)
    penalty.add_gradient_()
    assert torch.count_nonzero(net.head.weight.grad[3:]) == 0
    assert torch.count_nonzero(net.head.weight.grad[:3]) == 12
    assert torch.count_nonzero(net.head.bias.grad[3:]) == 0


def test_zero_multipliers_of_classes_still_to_come_do_no_harm(net):
    alpha = drawn(net)
    wider = {**alpha, "head.weight": torch.cat([alpha["head.weight"], torch.zeros(2, 4)])}
    penalty, same = ImportancePenalty(net, wider), ImportancePenalty(net, alpha)
    shake(net)
    assert penalty.value() == same.value() > 0


def test_another_shape_is_another_model(net):
    alpha = drawn(net)
    with pytest.raises(MismatchError, match=r"multipliers of stem.weight have shape \(4, 5\)"):
        ImportancePenalty(net, {**alpha, "stem.weight": torch.ones(4, 5)})
    with pytest.raises(MismatchError, match=r"shape \(9, 4\)"):  # more rows than there are
        ImportancePenalty(net, {**alpha, "head.weight": torch.ones(9, 4)})
    with pytest.raises(MismatchError, match="of another model"):
        ImportancePenalty(net, {"a.weight": torch.ones(2), "stem.weight": torch.ones(4, 4), "b": 1})
    with pytest.raises(UsageError, match="no multipliers"):
        ImportancePenalty(net, {})


def test_a_few_names_without_partner_are_told(net):
    alpha = {**drawn(net), "old_head.weight": torch.ones(2, 2)}
    with pytest.warns(UserWarning, match="1 of 27 tensors .*'old_head.weight'.*not held"):
        penalty = ImportancePenalty(net, alpha)
    assert penalty.unmatched == ("old_head.weight",)
    assert len(penalty.names) == 26


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda m: nn.ModuleDict({"_orig_mod": m})])
def test_one_prefix_may_differ(net, wrap):
    alpha = drawn(net)
    penalty = ImportancePenalty(net, alpha)
    around = ImportancePenalty(wrap(net), alpha)
    inside = ImportancePenalty(net, {f"model.{n}": a for n, a in alpha.items()})
    shake(net)
    assert around.value() == inside.value() == penalty.value() > 0


def test_tied_weights_count_once():
    model = nn.ModuleDict({"embed": nn.Embedding(5, 4), "out": nn.Linear(4, 5, bias=False)})
    model["out"].weight = model["embed"].weight
    alpha = {"embed.weight": torch.ones(5, 4), "out.weight": torch.ones(5, 4)}
    penalty = ImportancePenalty(model, alpha, lambda_=2.0)
    with torch.no_grad():
        model["embed"].weight += 1
    assert penalty.value() == pytest.approx(20.0)


def test_frozen_parameters_get_no_gradient(net):
    net.stem.requires_grad_(False)
    penalty = ImportancePenalty(net, drawn(net))
    shake(net)
    penalty.add_gradient_()
    assert net.stem.weight.grad is None
    assert net.head.weight.grad is not None


def test_half_precision_parameters_are_compared_in_float32(net):
    net.bfloat16()
    alpha = {n: torch.ones(p.shape) for n, p in net.named_parameters()}
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(1.0)
    penalty = ImportancePenalty(net, alpha, lambda_=1.0)
    with torch.no_grad():
        net.stem.weight.fill_(1.0078125)  # the next bfloat16 number
    assert penalty.value() == pytest.approx(0.5 * 16 * 2.0**-14, rel=1e-6)
    penalty.add_gradient_()
    assert net.stem.weight.grad.dtype == torch.bfloat16
    assert float(net.stem.weight.grad[0, 0]) == 2.0**-7


def test_schedule_multiplies_by_the_layers_lambda(net, report):
    alpha, start = drawn(net), {n: p.detach().clone() for n, p in net.named_parameters()}
    schedule = load_schedule(report)
    penalty = ImportancePenalty(net, alpha, lambda_=1.5, schedule=report)
    same = ImportancePenalty(net, alpha, lambda_=1.5, schedule=schedule)
    shake(net)
    expected = sum(
        g.lambda_ * by_hand({n: alpha[n] for n in g.param_names}, start, _only(net, g), 1.5)
        for g in report.groups
    )
    assert penalty.value() == pytest.approx(expected, rel=1e-5)
    assert same.value() == penalty.value()
    assert len({g.lambda_ for g in report.groups}) > 5


def _only(net, group):
    chosen = [(n, p) for n, p in net.named_parameters() if n in group.param_names]
    return types.SimpleNamespace(named_parameters=lambda: chosen)


def test_reference_from_a_checkpoint_a_model_or_a_mapping(net, tmp_path):
    import copy

    alpha, start = drawn(net), copy.deepcopy(net)
    torch.save(
        {"model": {f"module.{n}": t for n, t in net.state_dict().items()}}, tmp_path / "a.pt"
    )
    safetensors.torch.save_file(net.state_dict(), tmp_path / "a.safetensors")
    shake(net)
    expected = by_hand(alpha, dict(start.named_parameters()), net, 1.0)
    for reference in (
        tmp_path / "a.pt",
        str(tmp_path / "a.safetensors"),
        start,
        start.state_dict(),
    ):
        penalty = ImportancePenalty(net, alpha, reference=reference)
        assert penalty.value() == pytest.approx(expected, rel=1e-5)
    with pytest.raises(MismatchError, match="the reference has no"):
        ImportancePenalty(net, alpha, reference={"stem.weight": start.stem.weight})


def test_ewc_and_mas_are_special_cases():
    """One linear unit: the closed forms of both papers."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    old = torch.randn(20, 3, dtype=torch.float64)
    start = model.weight.detach().clone()
    # Fisher of a unit with Gaussian noise: mean x²; MAS: mean |∂(w·x)²/∂w| = mean |2 (w·x) x|
    fisher = {"weight": old.square().mean(0, keepdim=True)}
    omega = {"weight": (2 * (old @ start.T) * old).abs().mean(0, keepdim=True)}
    ewc = ImportancePenalty.ewc(model, fisher, lambda_=0.7)
    mas = ImportancePenalty.mas(model, omega, lambda_=0.7)
    with torch.no_grad():
        model.weight += torch.tensor([[1.0, -2.0, 0.5]])
    move = torch.tensor([1.0, 4.0, 0.25], dtype=torch.float64)
    assert ewc.value() == pytest.approx(0.35 * float((fisher["weight"][0] * move).sum()))
    assert mas.value() == pytest.approx(0.7 * float((omega["weight"][0] * move).sum()))
    mas.add_gradient_()
    expected = 2 * 0.7 * omega["weight"] * (model.weight.detach() - start)
    torch.testing.assert_close(model.weight.grad, expected)


def test_minimum_of_task_and_penalty_is_the_closed_form():
    """Least squares held by EWC's penalty: (A + λF) w = b + λF w*."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 3, dtype=torch.float64), torch.randn(40, 1, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    start = model.weight.detach().clone()
    fisher = torch.tensor([[0.1, 2.0, 30.0]], dtype=torch.float64)
    penalty = ImportancePenalty.ewc(model, {"weight": fisher}, lambda_=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(500):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        penalty.add_gradient_()
        optimizer.step()
    a, b = 2 * x.T @ x / 40, 2 * x.T @ y / 40
    hold = 0.5 * fisher.diag_embed()[0]
    expected = torch.linalg.solve(a + hold, b + hold @ start.T)
    torch.testing.assert_close(model.weight.detach(), expected.T)


def test_from_file(net, tmp_path):
    path, alpha = tmp_path / "m.safetensors", drawn(net)
    save_multipliers(path, alpha, lambda_=4.0)
    penalty = ImportancePenalty.from_file(net, path)
    other = ImportancePenalty.from_file(net, path, lambda_=1.0)
    assert penalty.lambda_ == 4.0
    assert repr(penalty) == "ImportancePenalty(lambda_=4, 26 tensors)"
    shake(net)
    assert penalty.value() == pytest.approx(4 * other.value()) != 0
    save_multipliers(path, alpha)
    with pytest.raises(UsageError, match="no weight of the penalty"):
        ImportancePenalty.from_file(net, path)


def test_a_schedule_is_not_applied_twice(net, report, tmp_path):
    save_multipliers(tmp_path / "m", drawn(net), lambda_=1.0, about={"schedule": "geometric"})
    ImportancePenalty.from_file(net, tmp_path / "m")
    with pytest.raises(UsageError, match="already in them"):
        ImportancePenalty.from_file(net, tmp_path / "m", schedule=report)


def test_attach_adds_it_before_every_step(net):
    alpha, start = drawn(net), net.stem.weight.detach().clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    handle = ImportancePenalty(net, alpha, lambda_=2.0).attach(optimizer)
    shake(net)
    now = net.stem.weight.detach().clone()
    optimizer.step()
    pulled = now - 0.1 * 2.0 * alpha["stem.weight"] * (now - start)
    torch.testing.assert_close(net.stem.weight.detach(), pulled)
    handle.remove()
    optimizer.zero_grad()
    optimizer.step()
    torch.testing.assert_close(net.stem.weight.detach(), pulled)


def test_attach_refuses_what_it_cannot_do(net):
    import copy

    penalty = ImportancePenalty(net, drawn(net))
    other = torch.optim.SGD(copy.deepcopy(net).parameters(), lr=0.1)
    with pytest.raises(UsageError, match="trains none of the parameters"):
        penalty.attach(other)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    penalty.attach(optimizer)
    with pytest.raises(UsageError, match="closure"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(UsageError, match="closure"):
        optimizer.step(closure=lambda: 0.0)


def test_a_gradient_scaler_does_not_scale_it(net):
    alpha = drawn(net)
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    penalty = ImportancePenalty(net, alpha, lambda_=2.0)
    penalty.attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    shake(net)
    loss = nn.functional.cross_entropy(net(x), y)
    both = torch.autograd.grad(loss + penalty.penalty(), list(net.parameters()), retain_graph=True)
    expected = [p.detach() - 0.1 * g for p, g in zip(net.parameters(), both, strict=True)]
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    for p, value in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(p.detach(), value)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_hf_trainer(tmp_path, accumulate):
    """The Trainer against a plain loop; all rows are equal, so that their order is none."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    def build():
        torch.manual_seed(0)
        return BertForSequenceClassification(
            BertConfig(
                vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                intermediate_size=8, max_position_embeddings=8, num_labels=2,
                hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            )
        )  # fmt: skip

    row = {"input_ids": torch.arange(6), "labels": torch.tensor(1)}
    model, plain = build(), build()
    alpha = drawn(model)
    penalty = ImportancePenalty(model, alpha, lambda_=20.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            str(tmp_path), max_steps=4, per_device_train_batch_size=2, report_to=[],
            lr_scheduler_type="constant", use_cpu=True, save_strategy="no", max_grad_norm=0.0,
            logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
            gradient_accumulation_steps=accumulate,
        ),
        train_dataset=[row] * 16,
        optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
        callbacks=[penalty.callback()],
        compute_loss_func=lambda out, y, num_items_in_batch: (
            nn.functional.cross_entropy(out["logits"], y, reduction="sum") / num_items_in_batch
        ),
    )  # fmt: skip
    trainer.train()

    start = {n: p.detach().clone() for n, p in plain.named_parameters()}
    step = torch.optim.SGD(plain.parameters(), lr=0.05)
    for _ in range(4):
        step.zero_grad()
        loss = plain(input_ids=row["input_ids"][None], labels=row["labels"][None]).loss
        hold = sum(
            10.0 * (alpha[n] * (p - start[n]).square()).sum() for n, p in plain.named_parameters()
        )
        (loss + hold).backward()
        step.step()
    for (name, p), q in zip(plain.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.detach(), p.detach(), rtol=1e-4, atol=1e-6, msg=name)
    assert penalty.value() > 0
    assert not optimizer._optimizer_step_pre_hooks


class LightningStandIn:
    """The hook as `lightning.pytorch.Callback` (2.x) has it."""

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        """Called before ``optimizer.step()``."""


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning(net, monkeypatch, package):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    penalty = ImportancePenalty(net, drawn(net), lambda_=2.0)
    with pytest.raises(UsageError, match="Lightning is not installed"):
        penalty.lightning_callback()
    parent = types.ModuleType(package.split(".")[0])
    child = types.ModuleType(package)
    child.Callback = LightningStandIn
    monkeypatch.setitem(sys.modules, parent.__name__, parent)
    monkeypatch.setitem(sys.modules, package, child)
    callback = penalty.lightning_callback()
    assert isinstance(callback, LightningStandIn)
    shake(net)
    callback.on_before_optimizer_step(trainer=None, pl_module=None, optimizer=None)
    expected = torch.autograd.grad(penalty.penalty(), net.stem.weight)[0]
    torch.testing.assert_close(net.stem.weight.grad, expected)


def test_sparse_gradients_are_refused():
    model = nn.Embedding(5, 4, sparse=True)
    penalty = ImportancePenalty(model, {"weight": torch.ones(5, 4)})
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(UsageError, match="sparse"):
        penalty.add_gradient_()


def test_files_of_another_kind(net, tmp_path):
    safetensors.torch.save_file(net.state_dict(), tmp_path / "weights.safetensors")
    with pytest.raises(NotWeightsError, match="no multipliers"):
        ImportancePenalty.from_file(net, tmp_path / "weights.safetensors")
    (tmp_path / "cut").write_bytes((tmp_path / "weights.safetensors").read_bytes()[:-40])
    with pytest.raises(CorruptFileError):
        ImportancePenalty.from_file(net, tmp_path / "cut")
