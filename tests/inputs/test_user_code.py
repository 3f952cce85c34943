"""Functions named on the command line, and the data and batches that they make."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from clcurv.errors import ArchitectureError, DataError, UnsafeFileError, UsageError
from clcurv.inputs.given import given_source
from clcurv.inputs.user_code import code_version, import_code, is_code, raised_at, refuse_untrusted
from clcurv.inputs.user_data import live_data


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.b:c", True),
        ("dir/file.py:make", True),
        ("resnet18", False),
        ("permuted:10", False),
        ("C:data", False),
        (":c", False),
        ("a.b:", False),
        ("a.b:c.d", False),
    ],
)
def test_form(name: str, expected: bool) -> None:
    assert is_code(name) is expected


def test_nothing_runs_without_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("open('canary', 'w').close()\ndef f(): pass\n")
    monkeypatch.chdir(tmp_path)
    for name in ("mine.py:f", "mine:f", str(tmp_path / "mine.py:f")):
        with pytest.raises(UnsafeFileError, match="outside the installed packages") as caught:
            import_code(name, trust_code=False)
        assert "--trust-code" in str(caught.value.hint)
    assert not (tmp_path / "canary").exists()
    assert import_code("mine.py:f", trust_code=True)() is None
    assert (tmp_path / "canary").exists()


def test_installed_code_needs_no_trust() -> None:
    assert import_code("math:sqrt", trust_code=False)(4) == 2
    found = import_code("torch.nn.functional:cross_entropy", trust_code=False)
    assert found is torch.nn.functional.cross_entropy


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def other(): pass", "has no function or class 'f'"),
        ("f = 3", "has no function or class 'f'"),
        ("import nowhere_at_all", "ModuleNotFoundError"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(7)", "SystemExit"),
        ("1/0", "ZeroDivisionError"),
    ],
)
def test_code_that_cannot_be_used(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    before = set(sys.modules)
    with pytest.raises(ArchitectureError, match=says) as caught:
        import_code(f"{tmp_path}/mine.py:f", trust_code=True)
    assert "\n" not in str(caught.value)
    if "no function" not in says:
        assert not {n for n in set(sys.modules) - before if "clcurv_user" in n}


def test_a_file_is_one_module_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class K: pass\ndef f(): return K\n")
    first = import_code(f"{path}:f", trust_code=True)
    assert first() is import_code(f"{path}:K", trust_code=True)
    mark = code_version(first)
    path.write_text("class K: pass\ndef f(): return 5\n")
    assert import_code(f"{path}:f", trust_code=True)() == 5
    assert mark != code_version(import_code(f"{path}:f", trust_code=True))


def rows(data: Any) -> Any:
    source = given_source(
        data, n=100, split=None, columns=None, modality="array", needs_labels=True
    )
    return torch.stack([source.read(i) for i in range(source.length)]), list(source.labels or ())


X, Y = torch.arange(12.0).reshape(6, 2), torch.arange(6)


def batches(batch: Any) -> Any:
    return batch["u"] * 2, batch["v"]


def collate(items: Any) -> Any:
    return torch.stack([item[0] for item in items]) * 2, torch.stack([i[1] for i in items])


def test_batch_functions() -> None:
    loader = [{"u": X[:4], "v": Y[:4]}, {"u": X[4:], "v": Y[4:]}]
    for data, function in (
        (loader, batches),
        (iter(loader), batches),
        (TensorDataset(X, Y), collate),
        (DataLoader(TensorDataset(X, Y), batch_size=4, collate_fn=list), collate),
    ):
        x, y = rows(live_data(data, batch_fn=function))
        assert torch.equal(x, 2 * X)
        assert y == Y.tolist()


def test_data_of_a_function(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def data(): return torch.arange(12.).reshape(6, 2), torch.arange(6)\n"
        "def bad(): return 1/0\n"
        "def path(): return 'x.csv'\n"
        "def needs(a): return a\n"
        "def batch(b): return b\n"
    )
    x, y = rows(live_data(f"{tmp_path}/mine.py:data", trust_code=True))
    assert torch.equal(x, X)
    assert y == Y.tolist()
    for name, says in (("bad", "ZeroDivision"), ("path", "not data"), ("needs", "TypeError")):
        with pytest.raises(DataError, match=says):
            live_data(f"{tmp_path}/mine.py:{name}", trust_code=True)
    with pytest.raises(UnsafeFileError):
        live_data(f"{tmp_path}/mine.py:data")
    with pytest.raises(UsageError, match="is a path"):
        live_data(tmp_path / "x.csv", batch_fn=f"{tmp_path}/mine.py:batch", trust_code=True)
    with pytest.raises(DataError, match="returned a dict for batch 0"):
        rows(live_data([{"u": X}], batch_fn=f"{tmp_path}/mine.py:batch", trust_code=True))
    with pytest.raises(DataError, match="on batch 0 failed"):
        rows(live_data([X], batch_fn=lambda b: b["u"]))


def test_a_path_with_a_colon_stays_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd:name").mkdir()
    assert live_data("odd:name") == "odd:name"


def test_the_line_that_failed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import json\n\n\ndef f():\n    return inner()\n\n\n"
                    "def inner():\n    return json.loads('{')\n")  # fmt: skip
    with pytest.raises(DataError) as caught:
        live_data(f"{path}:f", trust_code=True)
    assert caught.value.hint == f"{path}, line 9"
    assert raised_at(ValueError("no traceback"), rows) is None
    assert raised_at(ValueError(), len) is None


def test_code_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "odd.py:name").mkdir()
    fine = [None, 3, "resnet18", "timm:resnet18", "hf:BertModel", "math:sqrt", tmp_path]
    refuse_untrusted([*fine, str(tmp_path / "odd.py:name")], trust_code=False)
    refuse_untrusted(["mine.py:f"], trust_code=True)
    for name in ("mine.py:f", "mine:f", "a/b.py:f"):
        with pytest.raises(UnsafeFileError, match="outside the installed"):
            refuse_untrusted([*fine, name], trust_code=False)
