"""Output in a store is what is written to a disk, byte for byte, or is not there."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.started import Started
from harness.stores import azure, s3
from harness.stores.faults import FaultProxy
from harness.stores.gcs import client_env
from harness.stores.trouble import SLOW_DOWN, Call, EndHere, ForgetWrites, LoseReply, ResetAfter
from tests.golden_files import DEEPSPEED, JOB, TORCH
from tests.io.stores.far import far, put_directory, served, troubled
from tests.matrices import FULL
from tests.ops.store_output.sent import send
from zerotools import formats
from zerotools.core.errors import BadFile, BadRequest, Unsupported, ZerotoolsError
from zerotools.formats.format import UnfinishedCheckpoint
from zerotools.io.output.output_marker import MARKER
from zerotools.io.output.store_write_record import WRITING
from zerotools.io.output.write_to_store import ObjectExists
from zerotools.io.stores.parse_url import path_of
from zerotools.io.stores.store_path import put_object
from zerotools.ops.conversions import consolidate, reshard
from zerotools.ops.conversions.conversion import Conversion, perform_conversion, refuse_overflow
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.serving.byte_source import ByteSource
from zerotools.ops.store_output.convert_into_store import file_stream
from zerotools.ops.verification import verify
from zerotools.ops.write_output import check_write, write_output
from zerotools.runs.manifest import verify_manifest

ZERO = DEEPSPEED / "z2-bf16-w2" / "checkpoint"
SCHEMES = {"s3": (s3.S3Server, s3.why_not), "az": (azure.AzureServer, azure.why_not)}


def written(source: Path, out: Path) -> dict[str, bytes]:
    """What the same command writes to a disk."""
    send(str(source), str(out))
    return {
        each.relative_to(out).as_posix(): each.read_bytes()
        for each in out.rglob("*")
        if each.is_file() and each.name != MARKER
    }


def objects(store: Any, key: str) -> dict[str, bytes]:
    names = [name for name in store.sizes(f"{key}/") if not name.endswith(MARKER)]
    return {name[len(key) + 1 :]: store.get(name) for name in names}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_store_takes_and_gives_what_a_disk_does(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    server, why_not = SCHEMES[scheme]
    if (why := why_not()) is not None:
        pytest.skip(why)
    started: AbstractContextManager[Any] = server()
    with started as store:
        for name, value in store.env.items():
            monkeypatch.setenv(name, value)
        for each in JOB.rglob("*"):
            if each.is_file():
                store.put(f"in/step-3/{each.relative_to(JOB).as_posix()}", each.read_bytes())
        here = f"{scheme}://checkpoints"
        send(f"{here}/in/step-3", f"{here}/out", verify=True)
        assert objects(store, "out") == written(JOB, tmp_path / "out")
        assert verify_manifest(path_of(f"{here}/out")) == []
        assert store.uploads() == []
        given = verify.prepare_verify(path_of(f"{here}/out"))
        assert verify.carry_out_verify(given).is_whole
        for word in ("resume", "again"):
            with pytest.raises(BadRequest, match=r"holds \d+ objects"):
                send(f"{here}/in/step-3", f"{here}/out", resume=word == "resume")


def test_a_large_file_goes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    draw = np.random.default_rng(1)
    tensors = {f"w{n}": draw.standard_normal((700, 1001 + n), np.float32) for n in range(8)}
    save_file(tensors, tmp_path / "model.safetensors")
    with troubled(monkeypatch) as (store, proxy):
        proxy.add(LoseReply(), kind="complete", times=1)
        for to in ("near", "far"):
            out = tmp_path / "out" if to == "near" else far("out")
            options = consolidate.Options(dtype="fp32")
            conversion = consolidate.prepare_export(tmp_path / "model.safetensors", out, options)
            write_output(conversion, budget=MemoryBudget(64 * 2**20), overwrite=False, verify=True)
        near = (tmp_path / "out" / "model.safetensors").read_bytes()
        assert store.get("out/model.safetensors") == near
        assert proxy.counts["part"] == -(-len(near) // (5 * 2**20)) >= 4


def test_the_index_comes_after_the_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    with troubled(monkeypatch) as (store, proxy):
        for path in ("index.json", MARKER):
            proxy.add(Call(lambda: seen.append({*objects(store, "out")})), kind="put", path=path)
        options = consolidate.Options(dtype="bf16", max_shard_bytes=300)
        conversion = consolidate.prepare_export(ZERO, far("out"), options)
        write_output(conversion, budget=MemoryBudget(), overwrite=False)
    before, whole = seen
    assert len(whole) > 4
    assert before == {name for name in whole if not name.endswith("index.json")}


@pytest.mark.parametrize(
    ("kind", "first", "what"),
    [
        ("put", 2, SLOW_DOWN),
        ("put", 3, ResetAfter(0)),
        *(("put", number, LoseReply()) for number in ((1, 2, 7, 8) if FULL else (1, 7))),
        ("range", 2, SLOW_DOWN),
        ("list", 2, SLOW_DOWN),
        ("delete", 1, LoseReply()),
        ("head", 2, ResetAfter(0)),
    ],
)
def test_trouble_that_passes_changes_nothing(
    kind: str, first: int, what: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with troubled(monkeypatch) as (store, proxy):
        put_directory(store, ZERO, "in/checkpoint")
        proxy.add(what, kind=kind, first=first, times=1)
        send("gs://checkpoints/in/checkpoint", "gs://checkpoints/out")
        assert objects(store, "out") == written(ZERO, tmp_path / "out")


@pytest.mark.parametrize("large", [False, True])
def test_a_listing_that_lies_replaces_nothing(
    large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destination holds a model, and its listings say that nothing is there."""
    import numpy as np
    from safetensors.numpy import save_file

    source = tmp_path / "m.safetensors"
    save_file({"w": np.zeros((2**21 if large else 8,), np.float32)}, source)
    with troubled(monkeypatch) as (store, proxy):
        theirs = {"out/model.safetensors": b"a model of somebody", "out/config.json": b"{}"}
        for name, data in theirs.items():
            put_object(far(name), data)
        proxy.add(ForgetWrites(50), kind="list")
        conversion = consolidate.prepare_export(
            source, far("out"), consolidate.Options(dtype="fp32")
        )
        with pytest.raises(ObjectExists, match=r"out/model\.safetensors already exists"):
            write_output(conversion, budget=MemoryBudget(64 * 2**20), overwrite=False)
        assert {name: store.get(name) for name in store.sizes()} == theirs


def test_a_stale_listing_is_no_output_that_lacks_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with troubled(monkeypatch) as (store, proxy):
        put_directory(store, ZERO, "in/checkpoint")
        proxy.add(ForgetWrites(3), kind="list")
        try:
            send("gs://checkpoints/in/checkpoint", "gs://checkpoints/out", verify=True)
        except ZerotoolsError:
            return
        assert objects(store, "out") == written(ZERO, tmp_path / "out")


def test_a_source_that_changes_leaves_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    with troubled(monkeypatch) as (store, proxy):
        put_directory(store, ZERO, "in/checkpoint")
        name = next(each for each in store.sizes() if each.endswith("optim_states.pt"))
        data = store.get(name)
        proxy.add(Call(lambda: store.put(name, data[::-1])), kind="put", first=3, times=1)
        with pytest.raises(BadFile, match="changed while it was read"):
            send("gs://checkpoints/in/checkpoint", "gs://checkpoints/out")
        assert objects(store, "out") == {}


@dataclass
class Killed:
    """A run in a process of its own, which a server kills."""

    source: str
    out: str
    env: dict[str, str]
    process: list[Started] = field(default_factory=list)

    def run(self) -> int:
        command = [sys.executable, "-m", "tests.ops.store_output.sent", self.source, self.out]
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123
            self.process.append(
                Started(command, env={**os.environ, **self.env}, stdout=nothing, stderr=nothing)
            )
            return self.process[0].wait()

    def kill(self) -> None:
        self.process[0].kill()


# Of 80 requests or so; benchmarks.stores.kills takes all of them.
@pytest.mark.parametrize(
    ("kind", "first", "after"),
    [
        ("put", 4, False),
        ("delete", 1, False),
        *([("put", 1, True), ("put", 8, True)] if FULL else []),
    ],
)
def test_a_killed_run_leaves_a_whole_output_or_none(
    kind: str, first: int, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(monkeypatch) as store, FaultProxy(store.url) as proxy:
        put_directory(store, ZERO, "in/checkpoint")
        here = "gs://checkpoints"
        run = Killed(f"{here}/in/checkpoint", f"{here}/out", client_env(proxy.url))
        proxy.add(EndHere(run.kill, after=after), kind=kind, first=first, times=1)
        assert run.run() != 0
        whole = written(ZERO, tmp_path / "out")
        if MARKER in "".join(store.sizes("out/")):
            formats.read(far("out"))
        else:
            with pytest.raises(UnfinishedCheckpoint, match="is not complete"):
                formats.read(far("out"))
            part = next(name for name in store.sizes("out/") if not name.endswith("latest"))
            with pytest.raises(ZerotoolsError):
                formats.read(path_of(f"{here}/{part}"))
            send(run.source, run.out, resume=True)
        found = objects(store, "out")
        found.pop(WRITING, None)
        assert found == whole


def test_what_no_store_can_take_is_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = DEEPSPEED / "z1-fp32-w2-adapter" / "checkpoint"
    with served(monkeypatch) as store:
        conversion = consolidate.prepare_export(case, far("out"), consolidate.Options())
        if conversion.sums_bytes:
            with pytest.raises(Unsupported, match="merged on a disk"):
                check_write(conversion, overwrite=False)
        source = put_directory(store, ZERO, "in/checkpoint")
        inside = consolidate.prepare_export(source, source / "out", consolidate.Options())
        with pytest.raises(BadRequest, match="is inside the checkpoint"):
            check_write(inside, overwrite=False)
        with pytest.raises(BadRequest, match="--max-memory is"):
            write_output(
                consolidate.prepare_export(source, far("out"), consolidate.Options()),
                budget=MemoryBudget(2**20, workers=1),
                overwrite=False,
            )
        assert not [name for name in store.sizes() if name.startswith("out")]


def test_losses_are_counted_as_on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    values = {"w": np.array([1.0, 1e6, np.nan, np.inf], np.float32)}
    save_file(values, tmp_path / "model.safetensors")
    check: Callable[..., None] = refuse_overflow
    with served(monkeypatch) as store:
        said = []
        for out in (tmp_path / "out", far("out")):
            options = consolidate.Options(dtype="fp16")
            conversion = consolidate.prepare_export(tmp_path / "model.safetensors", out, options)
            with pytest.raises(BadRequest) as refusal:
                write_output(conversion, budget=MemoryBudget(), overwrite=False, check=check)
            report = write_output(conversion, budget=MemoryBudget(), overwrite=False)
            said.append((str(refusal.value), report.losses, report.bytes_written))
        assert said[0] == said[1]
        assert json.loads(store.get(f"out/{MARKER}"))["files"]["model.safetensors"]["size"]


CASES = {
    "records of one file": DEEPSPEED / "z2-bf16-w2" / "checkpoint",
    "archives one behind another": TORCH / "fsdp2-dcp-w3" / "checkpoint",
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("held", [0, 300, 5000, 2**30])
def test_the_stream_is_the_file_that_is_written(tmp_path: Path, case: str, held: int) -> None:
    conversion = reshard.prepare_reshard(CASES[case], tmp_path / "out", world_size=4)
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    told = 0

    def note(count: int, _: object) -> None:
        nonlocal told
        told += count

    files = conversion.target.files
    assert any(plan.checksums for plan in files.values())
    with ByteSource(conversion, MemoryBudget(), unsigned=True) as source:
        for name, plan in random.Random(1).sample(sorted(files.items()), len(files)):
            found = b"".join(file_stream(source, name, plan, held, note))
            assert found == (tmp_path / "out" / name).read_bytes(), name
    assert told == conversion.bytes_of_tensors
