"""Deltas in an object store, and models that are made in one, equal those on a disk."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zerotools
from harness.started import Started
from harness.stores.faults import FaultProxy
from harness.stores.gcs import client_env
from harness.stores.trouble import EndHere
from tests.io.stores.far import far, put_directory, served
from tests.matrices import FULL
from tests.ops.delta.pairs import files_of, loaded, stepped, weights, write_model
from zerotools import formats
from zerotools.formats.format import UnfinishedCheckpoint
from zerotools.io.output.output_marker import MARKER
from zerotools.io.output.store_write_record import WRITING
from zerotools.ops.conversions.quantised_export import AUTO
from zerotools.ops.delta.apply_delta import AppliedFiles
from zerotools.ops.delta.delta_chain import DeltaChain, opened_deltas
from zerotools.ops.delta.models_of_delta import model_of
from zerotools.ops.execution.tile_workers import MemoryBudget

OUT = "gs://checkpoints/out"


def large(seed: int = 0) -> dict[str, Any]:
    """Tensors of a model of several blocks."""
    return {**weights(seed), **{f"w{n}": weights(seed + n)["a.weight"] for n in range(1, 5)}}


def moved(tensors: dict[str, Any]) -> dict[str, Any]:
    """The same tensors after a step."""
    found = stepped(tensors, 0.02)
    return {**found, "w3": stepped({**tensors, "a.weight": tensors["w3"]}, 0.5)["a.weight"]}


@pytest.fixture
def chain(tmp_path: Path) -> tuple[Path, list[Path]]:
    """A model, and two deltas in order: the second model has three files and a tokenizer that both
    have."""
    words = json.dumps({"words": "x" * 100_000})
    steps = [large()]
    steps += [moved(steps[0])]
    steps += [stepped(steps[1], 0.3, 4)]
    models = [write_model(tmp_path / f"m{n}", each, files=n + 1) for n, each in enumerate(steps)]
    for each in models:
        (each / "tokenizer.json").write_text(words)
    deltas = [tmp_path / "0.delta", tmp_path / "1.delta"]
    for n, delta in enumerate(deltas):
        zerotools.delta(models[n], models[n + 1], delta)
    return models[0], deltas


def objects(store: Any) -> dict[str, bytes]:
    names = [name for name in store.sizes("out/") if not name.endswith(MARKER)]
    return {name.removeprefix("out/"): store.get(name) for name in names}


def test_a_store_takes_what_a_disk_does(
    chain: tuple[Path, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, deltas = chain
    near = zerotools.apply(a, deltas, tmp_path / "out")
    with served(monkeypatch) as store:
        there = put_directory(store, a, "in/model")
        for delta in deltas:
            store.put(f"in/{delta.name}", delta.read_bytes())
        found = zerotools.apply(there, [f"gs://checkpoints/in/{d.name}" for d in deltas], OUT)
        assert objects(store) == files_of(tmp_path / "out")
        assert (found.bytes_written, found.files) == (near.bytes_written, near.files)
        marker = json.loads(store.get(f"out/{MARKER}"))
        assert (marker["command"], {*marker["files"]}) == ("apply", {*objects(store)})
        assert store.uploads() == []
        assert zerotools.diff(OUT, tmp_path / "out").is_equal
        for overwrite in (False, True):
            with pytest.raises(zerotools.BadRequest, match=r"out holds \d objects"):
                zerotools.apply(a, deltas, OUT, overwrite=overwrite)


def test_what_another_program_wrote_meanwhile_is_seen(
    chain: tuple[Path, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, deltas = chain
    url = "gs://checkpoints/in/next.delta"
    with served(monkeypatch) as store:
        there = put_directory(store, a, "in/model")
        with pytest.raises(zerotools.BadRequest, match=r"next\.delta does not exist"):
            zerotools.apply(there, url, tmp_path / "0")
        for n, delta in enumerate(deltas):
            store.put("in/next.delta", delta.read_bytes())
            zerotools.apply(there, url, tmp_path / str(n))
            there = put_directory(store, tmp_path / str(n), "in/model")


def test_memory_does_not_grow_with_the_size_of_a_file(tmp_path: Path) -> None:
    peaks = []
    for name, rows in (("warm", 4), ("few", 4), ("many", 16)):  # the first makes tables that stay
        root = tmp_path / name
        root.mkdir()
        tensors = {f"w{n}": np.arange(1 << 20, dtype=np.uint32) for n in range(rows)}
        step = {key: each + (each % 64 == 0) for key, each in tensors.items()}
        a, b = write_model(root / "a", tensors), write_model(root / "b", step)
        zerotools.delta(a, b, root / "d", workers=1)
        size = (b / "model.safetensors").stat().st_size
        tracemalloc.start()
        try:
            with opened_deltas([root / "d"]) as files:
                chain = DeltaChain(model_of(a, AUTO)[0], files, MemoryBudget(64 << 20, 1))
                with chain:
                    read = AppliedFiles(chain, 1).read("model.safetensors", 0, size)
                    assert sum(map(len, read)) == size
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[2] < peaks[1] + (16 << 20), peaks  # four blocks in flight, of 48 MiB more


def test_any_range_of_a_file_is_read(chain: tuple[Path, list[Path]], tmp_path: Path) -> None:
    a, deltas = chain
    zerotools.apply(a, deltas, tmp_path / "out")
    with opened_deltas(deltas) as files:
        made = DeltaChain(model_of(a, AUTO)[0], files, MemoryBudget())
        with made:
            source = AppliedFiles(made, 2)
            for name, data in files_of(tmp_path / "out").items():
                for begin, end in ((0, len(data)), (7, 9), (len(data) // 2, len(data)), (5, 5)):
                    found = b"".join(source.read(name, begin, end))
                    assert found == data[begin:end], (name, begin, end)


@pytest.mark.parametrize(
    ("kind", "first", "after"),
    [
        ("put", 3, False),
        ("delete", 1, False),
        *([("put", 1, True), ("put", 5, True)] if FULL else []),
    ],
)
def test_a_killed_run_leaves_a_whole_model_or_none(
    kind: str,
    first: int,
    after: bool,
    chain: tuple[Path, list[Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, deltas = chain
    zerotools.apply(a, deltas, tmp_path / "out")
    command = [sys.executable, "-m", "zerotools", "apply", str(a), *map(str, deltas), OUT]
    with served(monkeypatch) as store, FaultProxy(store.url) as proxy:
        running: list[Started] = []
        proxy.add(EndHere(lambda: running[0].kill(), after=after), kind=kind, first=first, times=1)
        env = {**os.environ, **client_env(proxy.url)}
        running.append(
            Started(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        assert running[0].wait() != 0
        if f"out/{MARKER}" in store.sizes():
            formats.read(far("out"))
        else:
            with pytest.raises(UnfinishedCheckpoint, match="is not complete"):
                formats.read(far("out"))
            with pytest.raises(zerotools.BadRequest, match="with --resume, or start over"):
                zerotools.apply(a, deltas, OUT)
            with pytest.raises(zerotools.BadRequest, match="had other deltas; pass --overwrite"):
                zerotools.apply(a, deltas[:1], OUT, resume=True)
            notes = zerotools.apply(a, deltas, OUT, resume=True).notes
            assert "unfinished parts of objects from an earlier run" in notes[0]
        found = objects(store)
        found.pop(WRITING, None)
        assert found == files_of(tmp_path / "out")


def test_another_model_or_a_damaged_delta_leaves_no_object(
    chain: tuple[Path, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, deltas = chain
    other = write_model(a.with_name("other"), {**large(), "w4": large(7)["w4"]})
    with served(monkeypatch) as store:
        with pytest.raises(zerotools.BadRequest, match="another tokenizer"):
            zerotools.apply(other, deltas, OUT)
        (other / "tokenizer.json").write_bytes((a / "tokenizer.json").read_bytes())
        with pytest.raises(zerotools.BadRequest, match="was made from another model than"):
            zerotools.apply(other, deltas, OUT)
        whole = deltas[1].read_bytes()
        with pytest.raises(zerotools.BadFile, match="is truncated: its end is missing"):
            zerotools.apply(a, [deltas[0], io.BytesIO(whole[:-9])], OUT)
        with pytest.raises(zerotools.BadFile, match="changed"):
            zerotools.apply(a, deltas, OUT, progress=lambda _: os.utime(deltas[1], (1, 1)))
        assert store.sizes() == {}
        assert store.uploads() == []


def test_what_a_store_cannot_do_is_refused_before_any_work(
    chain: tuple[Path, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, deltas = chain
    with served(monkeypatch) as store:
        there = put_directory(store, a, "in/model")
        before = store.sizes()
        with pytest.raises(zerotools.BadRequest, match="cannot replace a directory in one"):
            zerotools.apply(there, deltas)
        with pytest.raises(zerotools.Unsupported, match="cannot write parts of one file; leave"):
            zerotools.apply(a, deltas, OUT, part="1/2")
        with pytest.raises(zerotools.BadRequest, match="is inside the checkpoint"):
            zerotools.apply(there, deltas, f"{there}/made")
        with pytest.raises(zerotools.BadRequest, match="needs at least 67108864"):
            zerotools.apply(a, deltas, OUT, max_memory="16MiB", workers=1)
        with pytest.raises(zerotools.Unsupported, match="is read-only"):
            zerotools.apply(a, deltas, "hf://team/model")
        assert store.sizes() == before


def test_a_delta_may_be_an_object_of_a_store(
    pair: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, delta = pair
    place = "gs://checkpoints/deltas/ab.delta"
    with served(monkeypatch) as store:
        with pytest.raises(zerotools.BadRequest, match=r"ab\.delta does not exist"):
            zerotools.apply(a, place, tmp_path / "made")
        zerotools.delta(a, b, place)
        assert store.get("deltas/ab.delta") == delta.read_bytes()
        zerotools.apply(a, place, tmp_path / "made")
        assert loaded(tmp_path / "made") == loaded(b)
        with pytest.raises(zerotools.BadRequest, match="exists; choose another output"):
            zerotools.delta(a, b, place)
        with pytest.raises(zerotools.BadRequest, match="deltas is a directory; name an object"):
            zerotools.delta(a, b, "gs://checkpoints/deltas", overwrite=True)
        store.put("deltas/notes.txt", b"mine")
        with pytest.raises(zerotools.BadRequest, match="is not a delta, so --overwrite"):
            zerotools.delta(a, b, "gs://checkpoints/deltas/notes.txt", overwrite=True)
        monkeypatch.setattr("zerotools.ops.delta.make_delta._PART_BYTES", 5 << 20)
        noise = np.random.default_rng(0).integers(0, 256, 12 << 20).astype(np.uint8)
        c = write_model(tmp_path / "c", {**weights(), "noise": noise})
        assert zerotools.delta(b, c, place, overwrite=True).delta_bytes > 12 << 20
        back = io.BytesIO(store.get("deltas/ab.delta"))
    zerotools.apply(b, back, tmp_path / "back")
    assert loaded(tmp_path / "back") == loaded(c)


def test_a_failed_delta_writes_no_object(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = pair

    def touch(_: object) -> None:
        os.utime(a / "model.safetensors", (1, 1))

    with served(monkeypatch) as store:
        with pytest.raises(zerotools.BadFile, match="changed"):
            zerotools.delta(a, b, "gs://checkpoints/d", progress=touch)
        assert not store.sizes("")
