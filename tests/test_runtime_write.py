from __future__ import annotations

import errno
import os

import pytest

from clcurv.errors import ResourceError, UsageError
from clcurv.runtime import atomic_write


def test_writes_and_replaces_keeping_the_mode(tmp_path):
    path = tmp_path / "a.json"
    atomic_write(path, b"one")
    os.chmod(path, 0o640)
    atomic_write(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["a.json"]


def test_follows_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    atomic_write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_full_disk_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError, match="No space left"):
        atomic_write(path, b"new" * 1000)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_interrupt_leaves_no_rest(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        atomic_write(tmp_path / "a", b"x")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["no/such/folder.json", ".", "a\x00b"])
def test_impossible_paths_are_usage_errors(tmp_path, name):
    with pytest.raises(UsageError, match="cannot write"):
        atomic_write(tmp_path / name, b"x")


def test_special_files_are_written_directly():
    atomic_write("/dev/null", b"x")


def test_a_pipe_behind_dev_fd_is_written_to():
    """Bash's ``-o >(gzip > report.gz)``, and ``-o /dev/stdout`` in a pipeline."""
    reading, writing = os.pipe()
    try:
        atomic_write(f"/dev/fd/{writing}", b"x")
        assert os.read(reading, 9) == b"x"
    finally:
        os.close(reading)
        os.close(writing)
