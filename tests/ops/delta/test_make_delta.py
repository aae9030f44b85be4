"""Threads, memory and the standard output of `zerotools delta`."""

from __future__ import annotations

import errno
import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import zerotools
from harness.stores.trouble import LoseReply
from tests.io.stores.far import served, troubled
from tests.ops.delta.pairs import loaded, weights, write_model
from zerotools.core.errors import BadRequest
from zerotools.ops.delta.make_delta import block_workers, temporary_file, written_file
from zerotools.ops.execution.tile_workers import MemoryBudget


def test_blocks_of_all_threads_fit_into_the_memory() -> None:
    threads = [block_workers(MemoryBudget(n << 20, 8)) for n in (16, 100, 1024)]
    assert threads == [1, 2, 8]


def test_a_closed_standard_output_takes_no_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "__stdout__", None)
    with (
        pytest.raises(BadRequest, match="standard output is closed"),
        written_file(Path("-"), overwrite=False),
    ):
        raise AssertionError("it is refused before")


def test_a_full_disk_of_temporary_files_is_named() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        pytest.raises(OSError, match=r"No space left on device: '/\S+ \(TMPDIR\)'"),
        temporary_file(),
    ):
        raise full


@pytest.mark.parametrize("part_bytes", [16 << 20, 1000])
def test_an_object_that_appears_meanwhile_is_kept(
    part_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerotools.ops.delta.make_delta._PART_BYTES", part_bytes)
    a, b = write_model(tmp_path / "a", weights(0)), write_model(tmp_path / "b", weights(1))
    with served(monkeypatch) as store:
        with pytest.raises(BadRequest, match="d was created by another program during this run"):
            zerotools.delta(
                a, b, "gs://checkpoints/d", progress=lambda _: store.put("d", b"theirs")
            )
        assert store.get("d") == b"theirs"


@pytest.mark.parametrize(("kind", "part_bytes"), [("put", 16 << 20), ("complete", 5 << 20)])
def test_a_lost_reply_is_no_other_object(
    kind: str, part_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerotools.ops.delta.make_delta._PART_BYTES", part_bytes)
    shared = {"norm.weight": np.ones(64, np.float32)}
    noise = np.random.default_rng(0).integers(0, 256, 6 << 20, np.uint8)
    a = write_model(tmp_path / "a", shared)
    b = write_model(tmp_path / "b", {**shared, "noise": noise})
    with troubled(monkeypatch) as (store, proxy):
        proxy.add(LoseReply(), kind=kind, first=1, times=1)
        made = zerotools.delta(a, b, "gs://checkpoints/d").delta_bytes
        assert store.sizes() == {"d": made}


def test_memory_does_not_grow_with_the_files_and_the_tensors(tmp_path: Path) -> None:
    peaks = []
    for name, rows in (("warm", 2), ("few", 2), ("many", 14)):  # the first makes tables that stay
        root = tmp_path / name
        root.mkdir()
        tensors = {"w": np.arange(rows << 20, dtype=np.uint32)}
        a = write_model(root / "a", tensors)
        b = write_model(root / "b", {"w": tensors["w"] + (tensors["w"] % 64 == 0)})
        for path in (a, b):
            with (path / "tokenizer.model").open("wb") as file:
                file.truncate(rows << 22)
        tracemalloc.start()
        try:
            zerotools.delta(a, b, root / "d", workers=1, max_memory="16MiB")
            zerotools.apply(a, root / "d", root / "made", workers=1, max_memory="16MiB")
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert loaded(root / "made") == loaded(b)
    assert peaks[2] < peaks[1] + (12 << 20), peaks
    assert peaks[2] < 48 << 20, peaks
