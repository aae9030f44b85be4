"""Arrays that TensorStore decodes are read like files, from a disk and from a store."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.stores.faults import FaultProxy
from harness.stores.gcs import GcsServer
from harness.stores.trouble import ACCESS_DENIED, Truncate
from tests.formats.orbax.made_items import SMALL_NODES, made_item
from tests.golden_files import GOLDEN
from tests.io.stores.far import far, put_directory, served, troubled
from tests.matrices import FULL
from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats.format import UnfinishedCheckpoint
from zerotools.formats.orbax import arrays_as_virtual_files
from zerotools.formats.orbax.arrays_as_virtual_files import ArrayPath, FarArrayPath
from zerotools.io.files.open_files import NeededRange, OpenFiles
from zerotools.io.files.open_source import RemotePath
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.conversions.convert import prepare_convert
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.verification.verify import carry_out_verify, prepare_verify
from zerotools.ops.write_output import write_output

pytest.importorskip("tensorstore")

ORBAX = GOLDEN / "orbax-0.12.8"
CASES = sorted(path for path in GOLDEN.glob("orbax-*/*") if path.is_dir())
SMALL = MemoryBudget(workers=2)
COUNT = 40 if FULL else 16
ROWS = {
    f"layers_{n}.kernel": np.full((9, 4), n, "f4") + np.arange(9)[:, None] for n in range(COUNT)
}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with served(monkeypatch, page_keys=1000) as store:
        yield store


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[GcsServer, FaultProxy]]:
    with troubled(monkeypatch) as both:
        yield both


def exported(source: Path, out: Path) -> None:
    done = consolidate.prepare_export(source, out, consolidate.Options())
    assert isinstance(done, Conversion)
    perform_conversion(done, budget=SMALL, overwrite=False, verify=True)


def values(checkpoint: Checkpoint) -> dict[Key, np.ndarray]:
    dtypes = {key: tensor.dtype for key, tensor in checkpoint.tensors.items()}
    return load_tensors(checkpoint, dtypes)


@pytest.mark.parametrize("case", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_golden_case_is_the_same_from_a_store(store: GcsServer, case: Path) -> None:
    checkpoint = formats.read(put_directory(store, case / "checkpoint", "run"))
    near = formats.read(case / "checkpoint")
    assert isinstance(checkpoint.root, FarArrayPath)
    assert checkpoint.tensors.keys() == near.tensors.keys()
    assert checkpoint.origin.step == near.origin.step
    loaded, wanted = values(checkpoint), values(near)
    assert all(np.array_equal(loaded[key], wanted[key]) for key in wanted)
    found = carry_out_verify(prepare_verify(checkpoint.root), budget=SMALL)
    assert (found.findings, len(found.checkpoint.tensors)) == ((), len(near.tensors))


@pytest.mark.parametrize(("zarr", "config"), [(3, None), (2, SMALL_NODES)], ids=["files", "ocdbt"])
def test_many_arrays_and_chunks_take_few_requests(
    behind: tuple[GcsServer, FaultProxy], tmp_path: Path, config: dict[str, int] | None, zarr: int
) -> None:
    store, proxy = behind
    near = made_item(tmp_path / "items", ROWS, rows=2, config=config, zarr=zarr)
    path = put_directory(store, near, "items")
    exported(path, tmp_path / "out")
    made = values(formats.read(tmp_path / "out"))
    assert all(np.array_equal(made[Key(name, "param")], array) for name, array in ROWS.items())
    if config is not None:  # else each chunk is an object
        # Fewer than chunks, each of which was read twice.
        assert proxy.counts["range"] < 5 * len(ROWS)


def test_an_output_in_aligned_files_is_written(tmp_path: Path) -> None:
    """Blocks cannot be shared with an array that is decoded: no file has its bytes."""
    array = {"w.kernel": np.arange(2**16, dtype="f4").reshape(2**8, 2**8)}
    near = made_item(tmp_path / "items", array, rows=64, config={})
    done = prepare_convert(near, tmp_path / "out", "orbax", {"no_check_names": True})
    assert isinstance(done, Conversion)
    perform_conversion(done, budget=SMALL, overwrite=False, verify=True)
    (found,) = values(formats.read(tmp_path / "out")).values()
    assert np.array_equal(found, array["w.kernel"])


def test_it_converts_from_one_prefix_to_another(store: GcsServer, tmp_path: Path) -> None:
    near = made_item(tmp_path / "items", ROWS, rows=4, config=SMALL_NODES)
    path = put_directory(store, near, "run/1/items")
    done = prepare_convert(path, far("out"), "orbax", {"no_check_names": True})
    assert isinstance(done, Conversion)
    write_output(done, budget=SMALL, overwrite=False, verify=True)
    made = values(formats.read(far("out")))
    assert all(np.array_equal(made[Key(name, "param")], array) for name, array in ROWS.items())


def test_chunks_are_decoded_once_whatever_threads_read(tmp_path: Path) -> None:
    array = np.arange(4000, dtype="f4").reshape(200, 20)
    root = ArrayPath(made_item(tmp_path / "items", {"w": array}, rows=3, config={}))
    found: list[bytes] = []

    def read(begin: int) -> None:
        with OpenFiles(root) as files:
            found.extend(files.read_ranges([NeededRange("w.zarr2", begin, begin + 8000)]))

    with OpenFiles(root) as files, files.source("w.zarr2") as source:
        threads = [
            threading.Thread(target=lambda at=at: found.append(source.read(8000, at)))
            for at in (0, 100, 8000, 4000) * 4
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    whole = array.tobytes()
    assert len(found) == 16
    assert {whole[at : at + 8000] for at in (0, 100, 8000, 4000)} == {*found}


def test_chunks_wait_until_the_memory_for_them_is_free() -> None:
    memory = arrays_as_virtual_files._DecodingMemory(100)
    inside, most = [0], [0]
    lock = threading.Lock()

    def take(count: int) -> None:
        with memory.taken(count):
            with lock:
                inside[0] += count
                most[0] = max(most[0], inside[0])
            with lock:
                inside[0] -= count

    threads = [threading.Thread(target=take, args=(count,)) for count in (60, 40, 30, 70) * 10]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert most[0] <= 100
    with memory.taken(1000):  # the only one
        pass


def test_a_full_disk_for_decoded_elements_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = made_item(tmp_path / "items", ROWS, rows=3, config=SMALL_NODES)

    truncate = os.ftruncate

    def full(descriptor: int, size: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.endswith("(deleted)"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        truncate(descriptor, size)

    monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(BadRequest, match=r"zarr2 \(\d+ bytes\) cannot be written to \S+: No space"):
        exported(near, tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["items"]


@pytest.mark.parametrize("config", [None, SMALL_NODES], ids=["files", "ocdbt"])
def test_names_with_signs_are_read_from_a_store(
    store: GcsServer, tmp_path: Path, config: dict[str, int] | None
) -> None:
    """Names of Haiku have slashes; one may end like a virtual file, or be a folder of another."""
    names = ("net/~/a b%2F.w", "net/~/a b%2F.w/x", "ö+?#.zarr2", "a.zarr3")
    arrays = {name: np.full((3, 2), n, "f4") for n, name in enumerate(names)}
    near = made_item(tmp_path / "items", arrays, rows=2, config=config)
    for path in (near, put_directory(store, near, "items")):
        found = values(formats.read(path))
        assert {key.name: each[0, 0] for key, each in found.items()} == {
            name: n for n, name in enumerate(names)
        }


# Damage, and what a store refuses.


def put_run(store: GcsServer, case: str = "ocdbt") -> RemotePath:
    return put_directory(store, ORBAX / case / "checkpoint", "run")


def names(store: GcsServer, part: str) -> list[str]:
    return [key for key in store.sizes("run/") if part in key]


def remove(store: GcsServer, key: str) -> None:
    data = {name: store.get(name) for name in store.sizes("run/") if name != key}
    assert len(data) < len(store.sizes("run/"))
    from obstore import delete

    from zerotools.io.stores.s3_gs_azure_http import open_bucket

    delete(open_bucket("gs", "checkpoints")._store, key)


def test_a_lost_node_in_a_store_is_one_sentence(store: GcsServer, tmp_path: Path) -> None:
    path = put_run(store)
    remove(store, next(key for key in names(store, "/items/d/")))
    with pytest.raises(BadFile, match=r"gs://\S+/items/d/\w+ is missing, but the OCDBT database"):
        exported(path, tmp_path / "out")
    assert not [*tmp_path.iterdir()]


def test_lost_elements_in_a_store_leave_no_output(store: GcsServer, tmp_path: Path) -> None:
    path = put_run(store)
    for key in names(store, "ocdbt.process_0/d/"):
        remove(store, key)
    with pytest.raises(BadFile, match=r"process_0/d/\w+ is missing, but the OCDBT database lists"):
        exported(path, tmp_path / "out")
    assert not [*tmp_path.iterdir()]
    found = carry_out_verify(prepare_verify(path), budget=SMALL)
    assert "is missing, but the OCDBT database" in found.findings[0].message


@pytest.mark.parametrize("length", [0, 5, 100])
def test_a_manifest_that_is_cut_off_in_a_store_is_refused(store: GcsServer, length: int) -> None:
    path, key = put_run(store), "run/1/items/manifest.ocdbt"
    store.put(key, store.get(key)[:length])
    with pytest.raises(BadFile, match=r"gs://\S+/manifest\.ocdbt is damaged: it "):
        formats.read(path)


def test_data_that_are_cut_off_in_a_store_are_refused(store: GcsServer, tmp_path: Path) -> None:
    path = put_run(store)
    for key in names(store, "ocdbt.process_0/d/"):
        store.put(key, store.get(key)[:20])
    with pytest.raises(BadFile, match=r"process_0/d/\w+ has \d+ bytes, but the OCDBT database nam"):
        exported(path, tmp_path / "out")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("place", ["run", "run/1", "run/1/items"])
def test_a_step_in_a_store_without_its_commit_is_refused(store: GcsServer, place: str) -> None:
    """As Orbax leaves a save in a store that was interrupted: under its final name."""
    put_run(store)
    for key in names(store, "commit_success.txt"):
        remove(store, key)
    key = "run/1/_CHECKPOINT_METADATA"
    tree = {**json.loads(store.get(key)), "commit_timestamp_nsecs": None}
    store.put(key, json.dumps(tree).encode())
    with pytest.raises(UnfinishedCheckpoint, match="_METADATA has no time of the commit, and"):
        formats.read(far(place))


def test_an_item_of_a_step_that_was_not_renamed_is_refused(tmp_path: Path) -> None:
    made_item(tmp_path / "5.orbax-checkpoint-tmp" / "items", ROWS, rows=9, config={})
    with pytest.raises(UnfinishedCheckpoint, match=r"the name of its directory has \.orbax-check"):
        formats.read(tmp_path / "5.orbax-checkpoint-tmp" / "items")


@pytest.mark.parametrize("kind", ["list", "range"])
def test_wrong_credentials_are_one_sentence(
    behind: tuple[GcsServer, FaultProxy], tmp_path: Path, kind: str
) -> None:
    store, proxy = behind
    path = put_run(store)
    proxy.add(ACCESS_DENIED, kind=kind)
    with pytest.raises(BadRequest, match=r"the store refuses it \(403 AccessDenied\)\. Ask"):
        exported(path, tmp_path / "out")
    assert not [*tmp_path.iterdir()]


def test_credentials_that_end_while_elements_are_read_leave_no_output(
    behind: tuple[GcsServer, FaultProxy], tmp_path: Path
) -> None:
    store, proxy = behind
    path = put_run(store)
    proxy.add(ACCESS_DENIED, kind="range", path="ocdbt.process_0/d")
    with pytest.raises(BadRequest, match=r"ocdbt\.process_0/d/\w+ cannot be read: the store refus"):
        exported(path, tmp_path / "out")
    assert not [*tmp_path.iterdir()]


def test_a_response_that_breaks_off_is_requested_again(
    behind: tuple[GcsServer, FaultProxy], tmp_path: Path
) -> None:
    store, proxy = behind
    path = put_run(store)
    proxy.add(Truncate(3), kind="range", times=2)
    assert len(values(formats.read(path))) == 39


@pytest.mark.parametrize("part", ["ocdbt.process_0/d/", "manifest.ocdbt", "_METADATA"])
def test_an_object_that_is_replaced_while_it_is_read_is_noticed(
    behind: tuple[GcsServer, FaultProxy], tmp_path: Path, part: str
) -> None:
    store, _ = behind
    path = put_run(store)
    done = consolidate.prepare_export(path, tmp_path / "out", consolidate.Options())
    assert isinstance(done, Conversion)
    for key in names(store, f"/items/{part}"):
        data = store.get(key)
        store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(BadFile, match=r"changed while it was read: .*; no output is kept"):
        perform_conversion(done, budget=SMALL, overwrite=False, verify=False)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("is_listed_again", [False, True])
def test_elements_of_two_generations_are_never_mixed(
    store: GcsServer, tmp_path: Path, is_listed_again: bool
) -> None:
    array = {"w": np.arange(4000, dtype="f4").reshape(200, 20)}
    near = made_item(tmp_path / "items", array, rows=3, config={"max_inline_value_bytes": 0})
    root = formats.read(put_directory(store, near, "items")).root
    with OpenFiles(root) as files:
        assert (
            files.read_ranges([NeededRange("w.zarr2", 0, 8000)])[0] == array["w"].tobytes()[:8000]
        )
        for key in store.sizes("items/d/"):
            store.put(key, bytes(len(store.get(key))))
        if is_listed_again:
            far("items").forget()
        with pytest.raises(BadFile, match=r"items/d/\w+ changed while it was read"):
            files.read_ranges([NeededRange("w.zarr2", 8000, 16000)])


def test_a_store_without_the_package_for_databases_names_it(
    store: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put_run(store)
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(BadRequest, match="needs zstandard, which is not installed; run"):
        formats.read(path)


def test_no_file_stays_open(tmp_path: Path) -> None:
    near = made_item(tmp_path / "items", ROWS, rows=3, config=SMALL_NODES)
    before = len([*Path("/proc/self/fd").iterdir()])
    exported(near, tmp_path / "out")
    assert len([*Path("/proc/self/fd").iterdir()]) == before
