"""Data files that lie, are damaged, or would exhaust the machine: one line, and nothing else."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datamakers import image_folder, image_model, picture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clcurv.errors import ClcurvError, DataError, UnsafeFileError
from clcurv.inputs.dataset import load_samples
from clcurv.inputs.tablecheck import check_table


def npy(shape: tuple[int, ...], content: bytes, dtype: str = "<f4") -> bytes:
    """An .npy file with a header of one's own choice."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


def npz(folder: Path, members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(folder / "a.npz", "w", how) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return folder / "a.npz"


def zip_bomb(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as stream:
            stream.write(npy((300 << 20,), b"", "|u1"))
            for _ in range(300):
                stream.write(bytes(1 << 20))
        archive.writestr("y.npy", npy((300 << 20,), b"", "|u1"))
    return folder / "a.npz"


def huge_claim(folder: Path) -> Path:
    return npz(folder, {"x": npy((1 << 40, 8), b""), "y": npy((4,), bytes(16), "<i4")})


def many_dimensions(folder: Path) -> Path:
    return npz(folder, {"x": npy((0,) * 30 + (1 << 62,), b"abc"), "y": npy((4,), bytes(16))})


def negative_shape(folder: Path) -> Path:
    return npz(folder, {"x": npy((-1, -4), bytes(16)), "y": npy((4,), bytes(16), "<i4")})


def two_of_a_name(folder: Path) -> Path:
    path = npz(folder, {name: npy((4,), bytes(16), "<i4") for name in "xy"})
    path.write_bytes(path.read_bytes().replace(b"y.npy", b"x.npy"))
    return path


def png_bomb(folder: Path) -> Path:
    """60 kilobytes that decode to 40000 x 40000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(1 << 20)) for _ in range(60)) + packer.flush()
    header = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )
    image_folder(folder / "photos", {"a": 2, "b": 2})
    (folder / "photos" / "a" / "0.png").write_bytes(bomb)
    return folder / "photos"


def text_bomb(folder: Path) -> Path:
    """A compressed comment of 200 megabytes in a small image."""
    from PIL import PngImagePlugin

    image_folder(folder / "photos", {"a": 2, "b": 2})
    info = PngImagePlugin.PngInfo()
    info.add_text("comment", "a" * (200 << 20), zip=True)
    picture(0).save(folder / "photos" / "a" / "0.png", pnginfo=info)
    return folder / "photos"


def named_pipe(folder: Path) -> Path:
    image_folder(folder / "photos", {"a": 2, "b": 2})
    (folder / "photos" / "a" / "0.png").unlink()
    os.mkfifo(folder / "photos" / "a" / "0.png")
    return folder / "photos"


def linked_device(folder: Path) -> Path:
    image_folder(folder / "photos", {"a": 2, "b": 2})
    (folder / "photos" / "a" / "0.png").unlink()
    (folder / "photos" / "a" / "0.png").symlink_to("/dev/zero")
    return folder / "photos"


def deep_json(folder: Path) -> Path:
    """Deep enough to crash the process in the parser that `datasets` uses."""
    row = '{"image": "a", "label": 0, "x": ' + "[" * 20_000 + "]" * 20_000 + "}\n"
    (folder / "a.jsonl").write_text(row)
    return folder / "a.jsonl"


def repeated_rows(folder: Path) -> Path:
    """Some kilobytes of parquet that become two million rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 2_000_000
    index = pa.array(np.zeros(rows, np.int32))
    image = pa.DictionaryArray.from_arrays(index, pa.array(["a.png"]))
    table = pa.table({"image": image, "label": pa.array(np.zeros(rows, np.int64))})
    pq.write_table(table, folder / "a.parquet")
    return folder / "a.parquet"


def device(folder: Path) -> Path:
    return Path("/dev/zero")


def fits_named_jpg(folder: Path) -> Path:
    image_folder(folder / "photos", {"a": 2, "b": 2})
    card = b"SIMPLE  =                    T" + b" " * 50
    (folder / "photos" / "a" / "0.jpg").write_bytes(card * 36 + bytes(2880))
    return folder / "photos"


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "zip bomb": (zip_bomb, "zip bomb"),
    "huge claim": (huge_claim, "header claims 35184372088832 bytes .* holds 0"),
    "many dimensions": (
        many_dimensions,
        r"claims 0 bytes \(shape 0 × 0 × 0 × 0 × 0 × 0 × \.\.\.\)",
    ),
    "negative shape": (negative_shape, "header claims"),
    "two of a name": (two_of_a_name, "two arrays of one name"),
    "png bomb": (png_bomb, r"a/0\.png: a decompression bomb"),
    "text bomb": (text_bomb, r"a/0\.png: the image does not decode \(Decompressed data too large"),
    "named pipe": (named_pipe, r"a/0\.png: the image cannot be read \(a device, pipe"),
    "linked device": (linked_device, r"a/0\.png: the image cannot be read \(a device, pipe"),
    "deep json": (deep_json, r"a\.jsonl: nested more than 256 levels deep"),
    "repeated rows": (repeated_rows, "bytes that claim 2000000 rows"),
    "device": (device, "a device or pipe, not a file"),
    "fits named jpg": (fits_named_jpg, r"a/0\.jpg: the image does not decode \(none of JPEG"),
}
# Builds nothing, may take half a gigabyte more than it has, and says what reading cost.
CHILD = """
import resource, sys
from clcurv.errors import ClcurvError
from clcurv.inputs.dataset import load_samples
from datamakers import image_model
model = image_model()
good, *bad = sys.argv[1:]
load_samples(good, model)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (512 << 20),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in bad:
    try:
        load_samples(path, model)
    except ClcurvError as error:
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(error.exit_code, grown >> 10, error, sep="|")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The bad file of a case, built once."""

    @cache
    def build(case: str) -> Path:
        return BAD[case][0](tmp_path_factory.mktemp("bad"))

    return build


@pytest.mark.parametrize("case", BAD)
def test_bad_data_in_one_line(made: Callable[[str], Path], case: str) -> None:
    with pytest.raises(ClcurvError, match=BAD[case][1]) as caught:
        load_samples(made(case), image_model())
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_bad_data_cost_no_memory(tmp_path: Path, made: Callable[[str], Path]) -> None:
    """In a process that may take half a gigabyte more than it has, and is measured."""
    good = image_folder(tmp_path / "good", {"a": 2, "b": 2})
    cases = ("zip bomb", "huge claim", "png bomb", "text bomb", "linked device")
    bad = [made(case) for case in cases]
    paths = os.pathsep.join(filter(None, (str(Path.cwd()), str(Path.cwd() / "tests"))))
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(good), *map(str, bad)],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == len(cases)
    for line, case in zip(lines, cases, strict=True):
        code, megabytes, said = line.split("|", 2)
        assert code == "3"
        assert int(megabytes) < 256, (case, megabytes)
        assert re.search(BAD[case][1], said)


@pytest.mark.parametrize(
    "text",
    ["[" * 5000, ":] " * 5000 + "[ " * 5000, '\\" [ {' * 5000],
    ids=["open", "both", "quote"],
)
def test_brackets_in_texts_are_no_depth(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": text, "label": i}) for i in (0, 1)))
    check_table(path, "json")
    hidden = json.dumps({"text": "]" * 5000, "x": 0}).replace("0", "[" * 300 + "]" * 300)
    path.write_text(hidden)
    with pytest.raises(DataError, match="nested"):
        check_table(path, "json")


def test_broken_images_are_counted_named_and_left_out(made: Callable[[str], Path]) -> None:
    folder = made("png bomb")
    with pytest.raises(DataError, match=r"0\.png: a decompression bomb .*\(1 of the 4 drawn"):
        load_samples(folder, image_model())
    sample = load_samples(folder, image_model(), skip_bad=True)
    assert len(sample) == 3
    assert "a/0.png: a decompression bomb" in sample.skipped[0]
    assert sample.warnings[0].startswith("1 samples could not be used and were left out: ")


def test_a_password(tmp_path: Path) -> None:
    path = npz(tmp_path, {"x": npy((4,), bytes(16)), "y": npy((4,), bytes(16), "<i4")})
    content = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = 0
        while (start := content.find(mark, start)) >= 0:
            content[start + flags] |= 1
            start += 4
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npy cannot be read .*password"):
        load_samples(path, image_model(modality="array"))


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "canary"),)

    np.savez(tmp_path / "a.npz", x=np.array([Payload(), None]), y=np.array([0, 1]))
    with pytest.raises(UnsafeFileError, match="pickled Python objects"):
        load_samples(tmp_path / "a.npz", image_model())
    assert not (tmp_path / "canary").exists()


# --- damage ---------------------------------------------------------------------------------


def valid(folder: Path, form: str) -> Path:
    """A small sound data set for a model of 2 classes."""
    rng = np.random.default_rng(0)
    path = folder / f"sound.{form}"
    x = rng.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    if form == "npz":
        np.savez_compressed(path, x=x, y=np.arange(6) % 2)
    elif form == "stored.npz":
        np.savez(path, x=x, y=np.arange(6) % 2)
    else:
        for i in range(4):
            picture(i).save(folder / f"{i}.png")
        rows = [{"image": f"{i}.png", "label": i % 2} for i in range(4)]
        if form == "csv":
            lines = [f"{row['image']},{row['label']}" for row in rows]
            path.write_text("\n".join(["image,label", *lines]))
        elif form == "jsonl":
            path.write_text("\n".join(map(json.dumps, rows)))
        else:
            datasets.Dataset.from_list(rows).to_parquet(str(path))
    return path


@pytest.mark.parametrize("form", ["npz", "stored.npz", "csv", "jsonl", "parquet"])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_damaged_files_are_refused_or_whole(tmp_path: Path, form: str, data: st.DataObject) -> None:
    """Flips, cuts and noise: one of our errors, or a sample of as many rows as there were."""
    path = tmp_path / f"sound.{form}"
    content = bytearray((path if path.exists() else valid(tmp_path, form)).read_bytes())
    damage = data.draw(st.sampled_from(["flip", "cut", "noise"]))
    place = data.draw(st.integers(0, len(content) - 1))
    if damage == "flip":
        content[place] ^= data.draw(st.integers(1, 255))
    elif damage == "cut":
        del content[place:]
    else:
        content[place : place + 16] = data.draw(st.binary(min_size=1, max_size=32))
    (tmp_path / f"damaged.{form}").write_bytes(content)
    refused, sample = None, None
    try:
        sample = load_samples(tmp_path / f"damaged.{form}", image_model())
    except ClcurvError as error:
        refused = str(error)
    if refused is not None:
        assert "\n" not in refused
    elif form.endswith("npz"):
        assert sample is not None
        assert len(sample) == 6


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    with pytest.raises(ClcurvError) as caught:
        load_samples(path, image_model())
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"])
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_damaged_images(form: str, data: st.DataObject) -> None:
    from clcurv.inputs.preprocess import open_image

    buffer = io.BytesIO()
    picture(0).save(buffer, form)
    content = bytearray(buffer.getvalue())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        del content[place:]
    refused = None
    try:
        image = open_image(bytes(content), "a")
    except DataError as error:
        refused = str(error)
    assert image.width > 0 if refused is None else "\n" not in refused


def undecodable(folder: Path, form: str, column: str) -> Path:
    """Four rows of image and label; the third cell of one column is not UTF-8."""
    (folder / "data").mkdir()
    for i in range(4):
        picture(i).save(folder / "data" / f"{i}.png")
    cells = {"image": [b"0.png", b"1.png", b"2.png", b"3.png"], "label": [b"0", b"1", b"0", b"1"]}
    cells[column][2] = b"\xb2" + cells[column][2]
    if form == "jsonl":
        rows = zip(cells["image"], cells["label"], strict=True)
        path = folder / "data" / "rows.jsonl"
        path.write_bytes(b"\n".join(b'{"image": "%s", "label": "%s"}' % row for row in rows))
        return path
    strings = {
        name: pa.array(column, pa.binary()).view(pa.string()) for name, column in cells.items()
    }
    table = pa.table(strings)
    if form == "parquet":
        pq.write_table(table, folder / "data" / "rows.parquet")
    elif form == "arrow":
        with (
            pa.OSFile(str(folder / "data" / "rows.arrow"), "wb") as file,
            pa.ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table)
    else:
        datasets.Dataset(table).save_to_disk(str(folder / "data" / "saved"))
        for i in range(4):
            picture(i).save(folder / "data" / "saved" / f"{i}.png")
        return folder / "data" / "saved"
    return folder / "data" / f"rows.{form}"


@pytest.mark.parametrize("column", ["image", "label"])
@pytest.mark.parametrize("form", ["jsonl", "parquet", "arrow", "saved"])
def test_a_cell_that_is_not_utf_8_is_a_bad_row(tmp_path: Path, form: str, column: str) -> None:
    path = undecodable(tmp_path, form, column)
    # Of these four, `datasets` looks only at arrow files while it loads.
    said = "(?i)utf-?8.* index 2" if form == "arrow" else "row 2 cannot be read: 'utf-8' codec"
    with pytest.raises(DataError, match=said) as caught:
        load_samples(path, image_model())
    assert "\n" not in str(caught.value)
    if column == "image" and form != "arrow":
        kept = load_samples(path, image_model(), skip_bad=True)
        assert len(kept) == 3
        assert "row 2" in kept.skipped[0]


def test_a_stream_that_breaks_is_refused() -> None:
    def rows() -> Iterator[dict[str, object]]:
        yield {"image": np.zeros((8, 8, 3), np.uint8), "label": 0}
        raise KeyError("the\nshard")

    stream = datasets.IterableDataset.from_generator(rows)
    with pytest.raises(DataError, match="the given data set cannot be read") as caught:
        load_samples(stream, image_model())
    assert "\n" not in str(caught.value)
