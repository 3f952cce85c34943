"""WebDataset tars: keys stop at the first dot, nothing is unpacked, nothing left out silently."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datamakers import bert, image_folder, image_model, picture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clcurv.errors import ClcurvError, DataError
from clcurv.inputs.dataset import load_samples
from clcurv.inputs.source import Source
from clcurv.inputs.stream import open_stream
from clcurv.inputs.webdataset import open_shards


def png(seed: int) -> bytes:
    buffer = io.BytesIO()
    picture(seed).save(buffer, "PNG")
    return buffer.getvalue()


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    """As `webdataset.TarWriter` does: the standard library's tar, members in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def samples(count: int, *, start: int = 0) -> list[tuple[str, bytes]]:
    return [
        member
        for i in range(start, start + count)
        for member in ((f"{i:04d}.png", png(i)), (f"{i:04d}.cls", str(i % 2).encode()))
    ]


def shards(path: Path, **asked: Any) -> Source:
    asked = {"split": None, "columns": None, "modality": "image", "needs_labels": True} | asked
    return open_shards(path, *asked.values())


def test_images_equal_the_folder(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images", {"0": 4, "1": 4})
    files = sorted(folder.rglob("*.png"))
    members = [
        member
        for i, file in enumerate(files)
        for member in (
            (f"./{i}.png", file.read_bytes()),
            (f"./{i}.cls", f"{file.parent.name}\n".encode()),
        )
    ]
    tar = write_tar(tmp_path / "a.tar", members)
    expected = load_samples(folder, image_model(), n=6)
    sample = load_samples(tar, image_model(), n=6)
    assert sample.digest == expected.digest
    assert (sample.format, sample.class_counts) == ("webdataset", {0: 3, 1: 3})
    assert any("png -> cls" in note for note in sample.notes)


def test_keys_stop_at_the_first_dot(tmp_path: Path) -> None:
    members = [
        ("train.v1/7.left.png", png(1)),
        ("train.v1/7.right.png", png(2)),
        ("train.v1/7.cls", b"1"),
        ("train.v1/7.1.png", png(3)),  # of sample 7, not of 7.1
        ("train.v1/8.left.png", png(4)),
        ("train.v1/8.cls", b"0"),
    ]
    tar = write_tar(tmp_path / "a.tar", members)
    with pytest.raises(DataError, match=r"cannot be told among 1\.png, cls, left\.png, right\.png"):
        shards(tar)
    source = shards(tar, columns={"image": "left.png"})
    assert source.length == 2
    assert [source.name(i) for i in (0, 1)] == [f"{tar}: train.v1/7", f"{tar}: train.v1/8"]
    assert source.read(0) == png(1)
    assert source.labels == [1, 0]
    with pytest.raises(DataError, match=r"train\.v1/8: there is no right\.png in the sample"):
        shards(tar, columns={"image": "right.png"}).read(1)


def test_shards_splits_and_mixed_suffixes(tmp_path: Path) -> None:
    for name, start in (("train-000000", 0), ("train-000001", 5), ("val-000000", 50)):
        write_tar(tmp_path / f"{name}.tar", samples(5, start=start))
    jpeg = io.BytesIO()
    picture(0).save(jpeg, "JPEG")
    mixed = [("x.jpg", jpeg.getvalue()), ("x.cls", b"1"), ("y.PNG", png(1)), ("y.cls", b"0")]
    write_tar(tmp_path / "test-000000.tar", mixed)
    sample = load_samples(tmp_path, image_model())
    assert sample.available == 10
    assert any("2 shards" in note for note in sample.notes)
    assert load_samples(tmp_path, image_model(), split="validation").available == 5
    assert load_samples(tmp_path, image_model(), split="test").class_counts == {0: 1, 1: 1}


def test_labels_and_texts_in_json(tmp_path: Path) -> None:
    rows = [{"premise": "the cat", "hypothesis": "a dog", "label": i % 2} for i in range(4)]
    members = [(f"{i}.json", json.dumps(row).encode()) for i, row in enumerate(rows)]
    model = bert("classification", tmp_path / "bert")
    sample = load_samples(write_tar(tmp_path / "a.tar", members), model)
    assert isinstance(sample.inputs, dict)
    assert sample.inputs["input_ids"][0].tolist() == [2, 5, 7, 3, 6, 8, 3]
    assert sample.class_counts == {0: 2, 1: 2}
    texts = [
        part
        for i in range(4)
        for part in ((f"{i}.txt", b"the cat\n"), (f"{i}.json", b'{"kind": "LABEL_1"}'))
    ]
    tar = write_tar(tmp_path / "b.tar", texts)
    source = shards(tar, columns={"label": "kind"}, modality="text")
    assert (source.read(0), source.labels) == ("the cat", ["LABEL_1"] * 4)
    with pytest.raises(DataError, match=r"no labels among json \(kind\), txt"):
        shards(tar, modality="text")
    with pytest.raises(DataError, match=r"no member or field 'colour'"):
        shards(tar, columns={"label": "colour"}, modality="text")


def test_arrays(tmp_path: Path) -> None:
    members = []
    for i in range(4):
        buffer = io.BytesIO()
        np.save(buffer, np.full((3, 5, 5), i, np.float32))
        members += [(f"{i}.npy", buffer.getvalue()), (f"{i}.cls", str(i % 2).encode())]
    tar = write_tar(tmp_path / "a.tar", members)
    sample = load_samples(tar, image_model(modality="array"))
    assert isinstance(sample.inputs, torch.Tensor)
    assert sorted(sample.inputs[:, 0, 0, 0].tolist()) == [0, 1, 2, 3]
    lie = members[0][1].replace(b"(3, 5, 5)", b"(9, 9, 9)")
    tar = write_tar(tmp_path / "b.tar", [("0.npy", lie), ("0.cls", b"0"), *members[2:]])
    with pytest.raises(DataError, match=r"b\.tar: 0: the header claims 2916 bytes"):
        load_samples(tar, image_model(modality="array"))


def test_broken_samples_are_named_and_can_be_left_out(tmp_path: Path) -> None:
    members = [(n, b"no image" if n == "0002.png" else c) for n, c in samples(8)]
    tar = write_tar(tmp_path / "a.tar", [*members, ("9.png", png(9))])
    with pytest.raises(DataError, match=r"a\.tar: 9: no label \(1 of 9 rows\)"):
        load_samples(tar, image_model())
    sample = load_samples(tar, image_model(), skip_bad=True)
    assert len(sample) == 7
    assert [s.split(": ")[1] for s in sample.skipped] == ["0002", "9"]


def test_what_is_no_sample_is_passed_over(tmp_path: Path) -> None:
    tar = tmp_path / "a.tar"
    with tarfile.open(tar, "w") as archive:
        for name in ("__meta__", "._0000.png", "README"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
        folder = tarfile.TarInfo("d.ir")
        folder.type = tarfile.DIRTYPE
        link = tarfile.TarInfo("0000.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(folder)
        archive.addfile(link)
        for name, content in samples(3):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    source = shards(tar)
    assert source.length == 3
    assert source.notes == ("columns: png -> cls",)


@pytest.mark.parametrize("behind", [512, 0, -1, -600, -2000])
def test_an_archive_without_its_end_is_refused(tmp_path: Path, behind: int) -> None:
    whole = write_tar(tmp_path / "a.tar", samples(8))
    with tarfile.open(whole) as archive:
        archive.getmembers()
        end = archive.offset  # of the last member; zeros follow
    (tmp_path / "cut.tar").write_bytes(whole.read_bytes()[: end + behind])
    if behind == 512:
        assert shards(tmp_path / "cut.tar").length == 8
        return
    with pytest.raises(DataError, match="damaged or cut short"):
        shards(tmp_path / "cut.tar")


def test_the_same_member_twice_is_refused(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", [("a.png", png(0)), ("a.cls", b"0"), ("a.cls", b"1")])
    with pytest.raises(DataError, match=r"a\.cls is in the archive twice"):
        shards(tar)


def test_tars_as_a_task_stream(tmp_path: Path) -> None:
    """What `stream resolve` writes down can be read again."""
    tar = write_tar(tmp_path / "a.tar", samples(8))
    resolved = open_stream("split:2", data=str(tar)).resolved()
    assert [task["n"] for task in resolved["tasks"]] == [4, 4]
    (tmp_path / "stream.json").write_text(json.dumps(resolved))
    stream = open_stream(str(tmp_path / "stream.json"))
    sample = stream.samples(1, image_model())
    assert (sample.format, sample.class_counts) == ("webdataset", {1: 4})


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 12 * 1024), st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_harmless(tmp_path: Path, place: int, flip: int) -> None:
    """No traceback; and what is read is a whole data set, never a silent part of one."""
    tar = tmp_path / "a.tar"
    if not tar.exists():
        write_tar(tar, samples(4))
    content = bytearray(tar.read_bytes())
    content[place % len(content)] ^= flip
    (tmp_path / "b.tar").write_bytes(content)
    refused = None
    try:
        sample = load_samples(tmp_path / "b.tar", image_model())
    except ClcurvError as error:
        refused = str(error)
    assert len(sample) == 4 if refused is None else "\n" not in refused
