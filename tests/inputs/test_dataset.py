"""Data in every format people have -> the same frozen sample."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import skimage
import torch
from datamakers import bert, image_folder, image_model, picture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset, TensorDataset

from clcurv.errors import ClcurvError, DataError, MismatchError, UnsafeFileError, UsageError
from clcurv.inputs.dataset import Samples, load_samples
from clcurv.inputs.formats import open_source
from clcurv.inputs.loaded import LoadedModel

PHOTOS = Path(skimage.__file__).parent / "data"


@pytest.fixture(scope="module")
def bert_model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return bert("classification", tmp_path_factory.mktemp("bert"))


def write_texts(folder: Path, form: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"data.{form}"
    if form in ("csv", "tsv"):
        sep = "," if form == "csv" else "\t"
        lines = [sep.join(rows[0]), *(sep.join(str(v) for v in row.values()) for row in rows)]
        path.write_text("\n".join(lines))
    elif form == "json":
        path.write_text(json.dumps(rows))
    elif form == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    elif form == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(str(path))
    elif form == "saved":
        datasets.Dataset.from_list(rows).save_to_disk(str(path))
    elif form == "saved_dict":
        one = datasets.Dataset.from_list(rows)
        datasets.DatasetDict(test=one.select([0]), train=one).save_to_disk(str(path))
    elif form == "arrow":
        datasets.Dataset.from_list(rows).save_to_disk(str(folder / "made"))
        shutil.copy(folder / "made" / "data-00000-of-00001.arrow", path)
    elif form == "folder":
        path.mkdir()
        (path / "README.md").write_text("---\nconfigs: [{data_files: 'https://x.invalid/a'}]\n---")
        write_texts(path, "csv", rows).rename(path / "train.csv")
        write_texts(path, "csv", rows[:1]).rename(path / "test.csv")
    return path


ROWS = [{"text": f"the {w} sat", "label": i % 2} for i, w in enumerate(["cat", "dog"] * 5)]
FORMS = ["csv", "tsv", "json", "jsonl", "parquet", "arrow", "saved", "saved_dict", "folder"]


@pytest.mark.parametrize("mark", [",", ";", "|", "\t"])
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_what_separates_columns_is_seen_in_the_first_line(
    tmp_path: Path, bert_model: LoadedModel, mark: str, suffix: str, start: str
) -> None:
    """A spreadsheet's csv in half of Europe has semicolons; texts hold the other marks."""
    path = tmp_path / f"data.{suffix}"
    rows = [f'"the cat, the dog; the | and \t {i}"{mark}{i % 2}' for i in range(6)]
    path.write_text(start + "\n".join([f'"text"{mark}label', *rows]), "utf-8")
    plain = write_texts(tmp_path, "jsonl", [
        {"text": f"the cat, the dog; the | and \t {i}", "label": i % 2} for i in range(6)
    ])  # fmt: skip
    assert load_samples(path, bert_model).digest == load_samples(plain, bert_model).digest


# --- the sample ----------------------------------------------------------------------------


def test_splits_reassemble_to_the_whole() -> None:
    x, y = torch.randn(10, 3), torch.arange(10)
    for inputs in (x, {"x": x}):
        batches = Samples(inputs=inputs, targets=y).split(4)
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert torch.equal(torch.cat([batch.targets for batch in batches]), y)
        parts = [b.inputs if isinstance(b.inputs, torch.Tensor) else b.inputs["x"] for b in batches]
        assert torch.equal(torch.cat(parts), x)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.randoms())
def test_any_order_of_files_gives_the_same_sample(tmp_path: Path, random: Any) -> None:
    folder = image_folder(tmp_path / "images", {"a": 5, "b": 5})
    expected = load_samples(folder, image_model(), n=4, seed=3)
    real = os.scandir, os.listdir

    def shuffled(path: Any = ".") -> list[str]:
        names = real[1](path)
        random.shuffle(names)
        return names

    class Scan:
        def __init__(self, path: Any = ".") -> None:
            self.entries = list(real[0](path))
            random.shuffle(self.entries)
            self.iterator = iter(self.entries)

        def __enter__(self) -> Scan:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def __iter__(self) -> Scan:
            return self

        def __next__(self) -> os.DirEntry[str]:
            return next(self.iterator)

        def close(self) -> None:
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", Scan)
        patch.setattr(os, "listdir", shuffled)
        again = load_samples(folder, image_model(), n=4, seed=3)
    assert again.digest == expected.digest
    assert torch.equal(again.targets, expected.targets)


def test_the_seed_decides_the_draw_and_nothing_else(tmp_path: Path) -> None:
    folder = image_folder(tmp_path, {"a": 12, "b": 12})
    one, same, other = (load_samples(folder, image_model(), n=8, seed=s) for s in (0, 0, 1))
    assert one.digest == same.digest != other.digest
    assert one.class_counts == other.class_counts == {0: 4, 1: 4}
    assert one.available == 24


def test_classes_are_balanced_as_far_as_they_go(tmp_path: Path) -> None:
    folder = image_folder(tmp_path, {"a": 2, "b": 9, "c": 9})
    sample = load_samples(folder, image_model(3), n=11)
    assert sample.class_counts[0] == 2
    assert sorted(sample.class_counts.values()) == [2, 4, 5]


def test_only_what_is_drawn_is_decoded(tmp_path: Path) -> None:
    folder = image_folder(tmp_path, {"a": 3, "b": 3})
    drawn = load_samples(folder, image_model(), n=2, seed=5)
    kept = 0
    for path in sorted(folder.rglob("*.png")):
        content = path.read_bytes()
        path.write_bytes(b"broken")
        try:
            assert load_samples(folder, image_model(), n=2, seed=5).digest == drawn.digest
            kept += 1
        except DataError:
            pass
        path.write_bytes(content)
    assert kept == 4


# --- images --------------------------------------------------------------------------------


def test_photographs_in_wordnet_folders_get_their_imagenet_class(tmp_path: Path) -> None:
    for synset, photo in (("n02123045", "chelsea.png"), ("n07920052", "coffee.png")):
        (tmp_path / synset).mkdir()
        shutil.copy(PHOTOS / photo, tmp_path / synset)
    sample = load_samples(tmp_path, image_model(1000))
    assert sample.class_counts == {281: 1, 967: 1}  # tabby, espresso
    assert sample.inputs.shape == (2, 3, 16, 16)  # type: ignore[union-attr]
    assert any("2 WordNet ids" in note for note in sample.notes)


@pytest.mark.parametrize(("split", "expected"), [(None, 4), ("val", 2), ("valid", 2), ("test", 3)])
def test_folders_of_splits(tmp_path: Path, split: str | None, expected: int) -> None:
    for name, count in (("train", 2), ("valid", 1)):
        image_folder(tmp_path / name, {"a": count, "b": count})
    image_folder(tmp_path / "test", {"a": 1, "b": 2})
    assert load_samples(tmp_path, image_model(), split=split).available == expected


def test_linked_class_folders_and_nested_images(tmp_path: Path) -> None:
    real = image_folder(tmp_path / "real", {"a/deeper": 3, "b": 3})
    (tmp_path / "links").mkdir()
    for name in "ab":
        (tmp_path / "links" / name).symlink_to(real / name)
    (real / "a" / "loop").symlink_to(real / "a")
    assert load_samples(tmp_path / "links", image_model()).class_counts == {0: 3, 1: 3}


def test_a_link_back_is_no_class(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "data", {"a": 3, "b": 3})
    (folder / "again").symlink_to(".")
    (folder / "above").symlink_to("..")
    with open_source(
        folder, split=None, columns=None, modality="image", needs_labels=True
    ) as source:
        assert source.length == 6
        assert source.class_names == ("a", "b")


def test_metadata_tables_beside_images(tmp_path: Path) -> None:
    for number in range(4):
        picture(number).save(tmp_path / f"{number}.png")
    lines = [f"{number}.png,{number % 2}" for number in range(4)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label", *lines]))
    sample = load_samples(tmp_path, image_model())
    assert sample.class_counts == {0: 2, 1: 2}


def test_embedded_images_equal_the_folder(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images", {"a": 3, "b": 3})
    files = sorted(folder.rglob("*.png"))
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    )
    table = datasets.Dataset.from_dict(
        {"image": [str(f) for f in files], "label": [f.parent.name for f in files]}, features
    )
    table.to_parquet(str(tmp_path / "images.parquet"))
    expected = load_samples(folder, image_model(), n=4)
    assert load_samples(tmp_path / "images.parquet", image_model(), n=4).digest == expected.digest
    assert load_samples(table, image_model(), n=4).digest == expected.digest


def test_images_that_do_not_decode(tmp_path: Path) -> None:
    folder = image_folder(tmp_path, {"a": 6, "b": 6})
    (folder / "a" / "0.png").write_bytes(b"SIMPLE  =                    T / a FITS file")
    cut = (folder / "b" / "1.png").read_bytes()
    (folder / "b" / "1.png").write_bytes(cut[: len(cut) // 2])
    with pytest.raises(DataError, match=r"a/0.png.*\(2 of the 12 drawn") as caught:
        load_samples(folder, image_model())
    assert "--skip-bad" in (caught.value.hint or "")
    sample = load_samples(folder, image_model(), n=10, skip_bad=True)
    assert sample.class_counts == {0: 5, 1: 5}
    assert {Path(s.split(":")[0]).name for s in sample.skipped} == {"0.png", "1.png"}


# --- tables --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_every_table_format_gives_the_same_sample(
    tmp_path: Path, bert_model: LoadedModel, form: str
) -> None:
    sample = load_samples(write_texts(tmp_path, form, ROWS), bert_model, n=6)
    expected = load_samples(datasets.Dataset.from_list(ROWS), bert_model, n=6)
    assert sample.digest == expected.digest
    assert sample.class_counts == {0: 3, 1: 3}
    assert sample.format == {"saved": "arrow", "saved_dict": "arrow", "folder": "csv"}.get(
        form, form
    )


def test_names_with_glob_characters_are_only_names(tmp_path: Path, bert_model: LoadedModel) -> None:
    path = write_texts(tmp_path, "csv", ROWS).rename(tmp_path / "a[1]*?::x.csv")
    assert load_samples(path, bert_model).available == 10


def test_string_labels_and_pairs(tmp_path: Path, bert_model: LoadedModel) -> None:
    rows = [{"premise": "the cat", "hypothesis": "a dog", "label": k} for k in ("NA", "no", "no")]
    sample = load_samples(write_texts(tmp_path, "csv", rows), bert_model)
    assert sample.class_counts == {0: 1, 1: 2}
    assert isinstance(sample.inputs, dict)
    assert sample.inputs["token_type_ids"].max() == 1


def test_named_columns(tmp_path: Path, bert_model: LoadedModel) -> None:
    rows = [{"a": "the cat", "b": "a dog", "c": k} for k in (0, 1)]
    path = write_texts(tmp_path, "csv", rows)
    sample = load_samples(path, bert_model, columns={"text": "b", "label": "c"})
    assert isinstance(sample.inputs, dict)
    assert sample.inputs["input_ids"][0].tolist() == [2, 6, 8, 3]  # [CLS] a dog [SEP]
    with pytest.raises(DataError, match=r"no column 'z' \(there are: a, b, c\)"):
        load_samples(path, bert_model, columns={"text": "z", "label": "c"})
    with pytest.raises(DataError, match="no label column among a, b, c"):
        load_samples(path, bert_model)
    with pytest.raises(DataError, match="cannot be told among a, b, c"):
        load_samples(path, bert_model, columns={"label": "c"})


def test_missing_cells(tmp_path: Path, bert_model: LoadedModel) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\nthe cat,0\nthe dog,\n,1\na mat,1\n")
    with pytest.raises(DataError, match=r"row 1: no label \(1 of 4 rows\)"):
        load_samples(path, bert_model)
    sample = load_samples(path, bert_model, skip_bad=True)
    assert sample.class_counts == {0: 1, 1: 1}
    assert [s.split(": ", 1)[1] for s in sample.skipped] == [
        "row 1: no label",
        "row 2: the text is missing",
    ]


def test_stated_labels_are_matched_by_name(bert_model: LoadedModel) -> None:
    import dataclasses

    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    table = datasets.Dataset.from_dict({"text": ["a", "the", "cat"], "label": [0, 1, 1]}, features)
    reverse = dataclasses.replace(bert_model, id2label={0: "POS", 1: "NEG"})
    assert load_samples(table, reverse).class_counts == {0: 2, 1: 1}
    assert load_samples(table, bert_model).class_counts == {0: 1, 1: 2}


def test_saved_folders_cannot_point_outside(tmp_path: Path, bert_model: LoadedModel) -> None:
    path = write_texts(tmp_path, "saved", ROWS)
    state = json.loads((path / "state.json").read_text())
    state["_data_files"][0]["filename"] = "../../etc/passwd"
    (path / "state.json").write_text(json.dumps(state))
    with pytest.raises(UnsafeFileError, match="outside the folder"):
        load_samples(path, bert_model)


def test_tables_leave_nothing_behind_and_need_no_network(tmp_path: Path) -> None:
    """In a fresh process, with a home of its own and without sockets."""
    (tmp_path / "home").mkdir()
    for number in range(10):
        picture(number).save(tmp_path / f"{number}.png")
    lines = [f"{number}.png,{number % 2}" for number in range(10)]
    (tmp_path / "data.csv").write_text("\n".join(["image,label", *lines]))
    code = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise RuntimeError('network')\n"
        "socket.socket.connect = refuse\n"
        "from datamakers import image_model\n"
        "from clcurv.inputs.dataset import load_samples\n"
        "print(len(load_samples('data.csv', image_model(preprocess={}))))\n"
    )
    paths = os.pathsep.join([str(Path.cwd()), str(Path.cwd() / "tests")])
    home = str(tmp_path / "home")
    env = {"HOME": home, "TMPDIR": home, "PYTHONPATH": paths}
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "10"
    assert [p for p in (tmp_path / "home").rglob("*") if p.is_file()] == []


# --- arrays and objects in memory -----------------------------------------------------------


def test_npz_of_pixels_equals_the_folder(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images", {"0": 3, "1": 3})
    files = sorted(folder.rglob("*.png"))
    from PIL import Image

    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    labels = np.array([int(file.parent.name) for file in files])
    expected = load_samples(folder, image_model(), n=4)
    layouts = {
        "uint8": pixels,
        "first": np.moveaxis(pixels, -1, 1),
        "float": pixels / np.float32(255),
        "byte_float": pixels.astype(np.float32),
    }
    for name, x in layouts.items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=labels)
        sample = load_samples(tmp_path / f"{name}.npz", image_model(), n=4)
        assert torch.allclose(sample.inputs, expected.inputs, atol=1e-6), name  # type: ignore[arg-type]
        assert torch.equal(sample.targets, expected.targets)


def test_npz_names_and_lengths(tmp_path: Path) -> None:
    model = image_model(modality="array")
    path = tmp_path / "a.npz"
    np.savez(path, X_test=np.ones((4, 3, 5, 5)), y_test=np.array([0, 1, 0, 1]), other=np.ones(1))
    assert load_samples(path, model).inputs.shape == (4, 3, 5, 5)  # type: ignore[union-attr]
    named = {"array": "nothing"}
    with pytest.raises(DataError, match=r"no array 'nothing' \(there are: X_test, y_test, other\)"):
        load_samples(path, model, columns=named)
    np.savez(path, x=np.ones((4, 2)), y=np.array([0, 1, 0]))
    with pytest.raises(DataError, match="'x' has 4 rows, 'y' has 3"):
        load_samples(path, model)
    np.savez(path, a=np.ones((4, 2)))
    with pytest.raises(DataError, match=r"there are: a\)"):
        load_samples(path, model)
    np.savez(path, x=np.array([{}, {}], dtype=object), y=np.array([0, 1]))
    with pytest.raises(UnsafeFileError, match="pickled Python objects"):
        load_samples(path, model)


def test_objects_in_memory_all_give_the_same_sample() -> None:
    x, y = torch.randn(12, 3, 5, 5), torch.arange(12) % 2
    model = image_model(modality="array")
    whole = TensorDataset(x, y)
    forms: list[Any] = [
        (x, y),
        [x, y],
        {"x": x, "labels": y},
        whole,
        Subset(whole, range(12)),
        DataLoader(whole, batch_size=5),
        [(x[:7], y[:7]), (x[7:], y[7:])],
        ((x[i : i + 3], y[i : i + 3]) for i in range(0, 12, 3)),
        (x.numpy(), y.numpy()),
    ]
    digests = {load_samples(form, model, n=12).digest for form in forms}
    assert len(digests) == 1
    sample = load_samples((x, y), model)
    assert load_samples(sample, model) is sample
    assert sample.source == "given"


def test_endless_iterables_are_read_to_a_limit() -> None:
    def forever() -> Any:
        while True:
            yield torch.randn(4, 3, 5, 5), torch.tensor([0, 1, 0, 1])

    sample = load_samples(forever(), image_model(modality="array"), n=8)
    assert len(sample) == 8
    assert sample.available == 32 * 8
    assert any("the first 256 rows of a stream" in note for note in sample.notes)


def test_token_dicts_in_memory(bert_model: LoadedModel) -> None:
    ids = torch.randint(5, 10, (4, 6))
    batch = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.tensor([0, 1, 0, 1]),
    }
    sample = load_samples(batch, bert_model)
    assert isinstance(sample.inputs, dict)
    assert set(sample.inputs) == {"input_ids", "attention_mask"}
    assert sorted(map(tuple, sample.inputs["input_ids"].tolist())) == sorted(
        map(tuple, ids.tolist())
    )


# --- targets -------------------------------------------------------------------------------


def test_regression_and_squared_loss() -> None:
    x = torch.randn(6, 3, 5, 5)
    real = image_model(1, modality="array", task="regression")
    y = torch.linspace(-1, 1, 6)
    sample = load_samples((x, y), real)
    assert sample.targets.shape == (6, 1)
    assert sample.targets.dtype == torch.float32
    assert sorted(sample.targets.flatten().tolist()) == pytest.approx(y.tolist())
    classes = load_samples((x, torch.arange(6) % 3), image_model(3, modality="array"), loss="mse")
    assert classes.targets.sum(0).tolist() == [2, 2, 2]
    with pytest.raises(DataError, match="real numbers"):
        load_samples((x, y), image_model(2, modality="array"))
    with pytest.raises(MismatchError, match="2 values for a model with 1 output"):
        load_samples((x, torch.randn(6, 2)), real)


@pytest.mark.parametrize(("labels", "label"), [([0, 1, 7], "'7'"), ([0, -1, -1], "'-1'")])
def test_labels_outside_the_head_are_refused(labels: list[int], label: str) -> None:
    model = image_model(2, modality="array")
    with pytest.raises(MismatchError, match=f"label {label}"):
        load_samples((torch.randn(3, 3, 5, 5), torch.tensor(labels)), model)


def test_labels_are_never_renumbered() -> None:
    x = torch.randn(4, 3, 5, 5)
    sample = load_samples((x, torch.tensor([3, 9, 3, 9])), image_model(10, modality="array"))
    assert sample.class_counts == {3: 2, 9: 2}


# --- bad input -----------------------------------------------------------------------------


def content(name: str, payload: bytes) -> Any:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(payload)
        return folder / name

    return write


def zipped(member: str) -> Any:
    def write(folder: Path) -> Path:
        with zipfile.ZipFile(folder / "a.npz", "w") as archive:
            archive.writestr(member, b"x" * 50)
        return folder / "a.npz"

    return write


def flat(folder: Path) -> Path:
    picture(0).save(folder / "a.png")
    return folder


BAD: dict[str, tuple[Any, str]] = {
    "missing": (lambda folder: folder / "nothing", "no such file"),
    "empty folder": (lambda folder: folder, "no images and no tables"),
    "images without classes": (flat, "1 images but no labels"),
    "one sample": (lambda f: image_folder(f, {"a": 1}), "a single sample"),
    "empty class folders": (lambda f: image_folder(f, {"a": 0, "b": 0}), "no images"),
    "folder too high": (
        lambda f: image_folder(f, {"all/a": 1, "all/b": 1}),
        "holds folders",
    ),
    "more classes": (lambda f: image_folder(f, {"a": 1, "b": 1, "c": 1}), "3 classes"),
    "empty file": (content("a.csv", b""), "empty"),
    "lfs": (content("a.csv", b"version https://git-lfs.github.com/spec/v1\n"), "LFS pointer"),
    "html": (content("a.csv", b"<!DOCTYPE html><html>"), "HTML"),
    "gzip": (content("a.csv.gz", b"\x1f\x8b\x08\0"), "gzip"),
    "pickle": (content("a.npz", b"\x80\x04K\x01."), "pickle"),
    "npy": (content("a.npz", b"\x93NUMPY\x01\0"), r"single \.npy"),
    "binary": (content("a.csv", b"\x01\x02\0\0\0"), "binary"),
    "one image": (content("a.jpg", b"\xff\xd8\xff\xe0"), "single image"),
    "cut parquet": (content("a.parquet", b"PAR1" + b"\0" * 60), "cannot be read as parquet"),
    "cut json": (content("a.json", b'[{"image": "a"'), "cannot be read as json"),
    "cut zip": (content("a.npz", b"PK\x03\x04" + b"\0" * 60), "cannot be read"),
    "torch file": (zipped("archive/data.pkl"), "torch file"),
    "other zip": (zipped("a.txt"), "zip file"),
    "lying npy": (zipped("x.npy"), r"x\.npy: no \.npy array"),
    "header only": (content("a.csv", b"image,label\n"), "no rows|cannot be read"),
    "linked images": (content("a.csv", b"image,label\nhttp://x.invalid/a,0\nb,1\n"), "downloaded"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(ClcurvError, match=message) as caught:
        load_samples(make(tmp_path), image_model())
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


def test_an_npz_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((100, 100)), y=np.zeros(100, int))
    monkeypatch.setattr("clcurv.inputs.arrays._MAX_ARRAY_BYTES", 1000)
    with pytest.raises(UnsafeFileError, match="16 GiB"):
        load_samples(tmp_path / "a.npz", image_model())


def test_kinds_that_do_not_fit_the_model(tmp_path: Path, bert_model: LoadedModel) -> None:
    with pytest.raises(DataError, match=r"holds images, the model .* takes texts"):
        load_samples(image_folder(tmp_path, {"a": 2, "b": 2}), bert_model)
    with pytest.raises(DataError, match="holds texts"):
        load_samples((["a", "b"], [0, 1]), image_model())


def test_samples_asked_for() -> None:
    x, y = torch.randn(4, 3, 5, 5), torch.tensor([0, 1, 0, 1])
    model = image_model(modality="array")
    assert any("512 samples were asked for" in note for note in load_samples((x, y), model).notes)
    with pytest.raises(UsageError):
        load_samples((x, y), model, n=0)
