"""Which checkpoint meets which task, and in which order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from clcurv.errors import InputError, UsageError
from clcurv.inputs.stream import order_checkpoints, pair_checkpoints

TWELVE = [f"ckpt/task-{k}.pt" for k in range(1, 13)]


def test_ten_comes_after_two_whatever_the_shell_says() -> None:
    assert pair_checkpoints(sorted(TWELVE), 12) == TWELVE
    mixed = list(TWELVE)
    random.Random(0).shuffle(mixed)
    assert pair_checkpoints(mixed, 12) == TWELVE


def test_one_meets_all_and_one_more_is_after_the_stream() -> None:
    assert pair_checkpoints(["a.pt"], 3) == ["a.pt"] * 3
    assert pair_checkpoints(TWELVE, 11) == TWELVE[:11]
    assert pair_checkpoints(["a.pt"], 1) == ["a.pt"]


@pytest.mark.parametrize("n_tasks", [2, 10, 13, 24])
def test_another_number_is_refused(n_tasks: int) -> None:
    with pytest.raises(UsageError, match=f"12 checkpoints .* for a stream of {n_tasks} tasks") as e:
        pair_checkpoints(TWELVE, n_tasks)
    assert str(n_tasks) in str(e.value.hint)


@pytest.mark.parametrize(
    "names",
    [
        ["init.pt", "task-1.pt", "task-10.pt", "task-2.pt"],
        ["init.pt", "Task-1.pt", "Task-10.pt", "Task-2.pt"],  # a locale that ignores case
        ["task-1-a3f.pt", "task-10-0bc.pt", "task-2-9de.pt"],  # no two differ only in numbers
    ],
)
def test_what_a_shell_expanded_is_put_in_natural_order(names: list[str]) -> None:
    expected = [*names[:-2], names[-1], names[-2]]
    assert order_checkpoints(names) == expected


def test_an_order_that_was_chosen_is_kept() -> None:
    names = ["init.pt", "after-1.pt", "after-2.pt", "after-10.pt"]
    assert order_checkpoints(names) == names


def test_patterns_no_shell_expanded(tmp_path: Path) -> None:
    for k in (1, 2, 10):
        (tmp_path / f"task-{k}.pt").touch()
    (tmp_path / "odd[1].pt").touch()
    found = order_checkpoints([str(tmp_path / "task-*.pt")])
    assert [Path(p).name for p in found] == ["task-1.pt", "task-2.pt", "task-10.pt"]
    assert order_checkpoints([str(tmp_path / "odd[1].pt")]) == [str(tmp_path / "odd[1].pt")]
    with pytest.raises(InputError, match="no file matches"):
        order_checkpoints([str(tmp_path / "*.ckpt")])
    with pytest.raises(UsageError, match="no checkpoint"):
        order_checkpoints([])
