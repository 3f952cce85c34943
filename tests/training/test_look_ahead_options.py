from __future__ import annotations

import json
from pathlib import Path

import pytest

from clcurv.errors import DataError, UsageError
from clcurv.training.options import LookAheadOptions, load_look_ahead_options


def read(tmp_path, text, **more):
    path = tmp_path / "training.yaml"
    path.write_text(text)
    return load_look_ahead_options(path, **more)


def test_yaml_and_json_give_the_same(tmp_path):
    wanted = LookAheadOptions(optimizer="sgd", lr=1e-2, epochs=4, batch_size=8, momentum=0.5)
    # YAML 1.1 reads 1e-2 as a word
    text = "optimizer: sgd\nlr: 1e-2\nepochs: 4\nbatch_size: 8\nmomentum: 0.5\n"
    assert read(tmp_path, text) == wanted
    held = {"optimizer": "sgd", "lr": 0.01, "epochs": 4, "batch_size": 8, "momentum": 0.5}
    assert read(tmp_path, json.dumps(held)) == wanted


def test_what_the_file_leaves_out_comes_from_the_defaults(tmp_path):
    mine = LookAheadOptions(epochs=7, grad_clip=2.0, patience=5)
    assert read(tmp_path, "lr: 0.5", defaults=mine) == LookAheadOptions(
        lr=0.5, epochs=7, grad_clip=2.0, patience=5
    )
    assert read(tmp_path, "patience: null\ngrad_clip: 0\n", defaults=mine) == LookAheadOptions(
        epochs=7, grad_clip=None, patience=None
    )


def test_other_peoples_names(tmp_path):
    text = (
        "learning_rate: 5.0e-5\nnum_train_epochs: 3.0\nper_device_train_batch_size: 16\n"
        "optim: adamw_torch\nmax_grad_norm: 1.0\n"
    )
    assert read(tmp_path, text) == LookAheadOptions(lr=5e-5, epochs=3, batch_size=16, grad_clip=1.0)


def test_a_section_of_a_larger_config(tmp_path):
    text = "model: vit\nlr: 7\nlook_ahead:\n  lr: 0.1\n  opt: sgd\n"
    assert read(tmp_path, text) == LookAheadOptions(lr=0.1, optimizer="sgd")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("epoch: 3", "unknown key 'epoch'", "did you mean epochs?"),
        ("data_dir: x", "unknown key 'data_dir'", "section look_ahead"),
        ("lr: fast", "lr: Input should be a valid number", None),
        ("epochs: yes", "epochs: true and false mean nothing", None),
        ("epochs: 1.5", "epochs: Input should be a valid integer", None),
        ("lr: null", "lr has no value", None),
        ("lr: 1\nlearning_rate: 2", "both mean lr", None),
        ("look_ahead: 3", "look_ahead is no mapping", None),
        ("[1, 2]", "no mapping of options", "lr: 1e-4"),
        ("a: [", "not valid YAML", None),
        ("!!python/object/apply:os.getcwd []", "not valid YAML", None),
        ("\x1b[31m: 1", "not valid YAML", None),
    ],
)
def test_bad_files(tmp_path, text, message, hint):
    with pytest.raises(DataError, match=message.replace("[", r"\[")) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
    if hint:
        assert hint in caught.value.hint


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        load_look_ahead_options(tmp_path / "no.yaml")
    with pytest.raises(DataError, match="cannot be read"):
        load_look_ahead_options(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(DataError, match="not a text file"):
        load_look_ahead_options(tmp_path / "b.yaml")


@pytest.mark.parametrize(
    "option",
    [
        {"lr": 0.0}, {"lr": float("nan")}, {"lr": float("inf")}, {"epochs": 0},
        {"batch_size": 0}, {"weight_decay": -1.0}, {"momentum": 1.0}, {"patience": 0},
        {"validation": 1.0}, {"seed": -1}, {"grad_clip": -1.0}, {"optimizer": "lion"},
    ],
)  # fmt: skip
def test_values_out_of_range(option, tmp_path):
    name = next(iter(option))
    with pytest.raises(UsageError, match=name):
        LookAheadOptions(**option)
    with pytest.raises(UsageError, match=rf"training.yaml: .*{name}"):
        read(tmp_path, json.dumps(option).replace("NaN", ".nan").replace("Infinity", ".inf"))


def test_reading_options_needs_no_torch():
    import subprocess
    import sys

    code = "import sys, clcurv.training.options; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
def test_a_file_without_an_end():
    with pytest.raises(DataError, match="too large"):
        load_look_ahead_options("/dev/zero")
