"""A cast from or to quantised weights that dies goes on, on a disk and in a store, and makes the
same bytes as one that was never interrupted."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from harness.started import Started
from harness.stores.faults import FaultProxy
from harness.stores.gcs import client_env
from harness.stores.trouble import EndHere
from tests.golden_files import GOLDEN
from tests.io.stores.far import far, put_directory, served
from tests.ops.quantised.killed_cast import budget_of, cast
from zerotools.io.output.journal import NAME
from zerotools.io.output.output_marker import MARKER
from zerotools.io.output.staging import partial_of
from zerotools.io.output.store_write_record import WRITING
from zerotools.ops.execution.execute import WriteReport
from zerotools.ops.write_output import write_output

CASTS = {
    "fp8-block": ("transformers-5.23.0/fp8-blocks", "bf16"),
    "mxfp4": ("transformers-5.23.0/mxfp4-experts", "bf16"),
    "mxfp8": ("transformers-5.23.0/mxfp8", "fp32"),
    "nvfp4": ("compressed-tensors-0.20.0/nvfp4", "fp16"),
    "float-quantized": ("compressed-tensors-0.20.0/float-channel", "bf16"),
    "nf4": ("bitsandbytes-0.50.2/nf4", "bf16"),
    "nf4 of nf4": ("bitsandbytes-0.50.2/nf4-double", "bf16"),
    "int8": ("bitsandbytes-0.50.2/int8", "bf16"),
    "to fp8-block": ("plain", "fp8-block"),
    "to mxfp8": ("plain", "mxfp8"),
    "as it is": ("transformers-5.23.0/fp8-blocks", "auto"),
}
"""What is read, and the type that is asked for."""


def _some(always: set[str]) -> list[Any]:
    """All cases, of which the others take too long for every run."""
    return [pytest.param(each, marks=() if each in always else pytest.mark.full) for each in CASTS]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Eight matrices in bf16, two of which blocks do not divide, and a norm."""
    random = np.random.default_rng(5)
    shapes = {f"model.layers.{n}.mlp.up_proj.weight": (256, 128) for n in range(6)}
    shapes |= {"model.layers.6.mlp.up_proj.weight": (96, 128), "model.norm.weight": (128,)}
    shapes |= {"model.layers.7.mlp.up_proj.weight": (32, 31)}
    tensors = {
        name: random.standard_normal(shape).astype(ml_dtypes.bfloat16)
        for name, shape in shapes.items()
    }
    directory = tmp_path / "plain"
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    return directory


def source_of(case: str, plain: Path) -> Path:
    found = CASTS[case][0]
    return plain if found == "plain" else GOLDEN / found / "model"


def perform(source: object, out: object, dtype: str, *, resume: bool = False) -> WriteReport:
    conversion = cast(str(source), str(out), dtype)
    return write_output(
        conversion, budget=budget_of(conversion), overwrite=False, resume=resume, verify=resume
    )


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != MARKER}


def dies(*words: object, env: dict[str, str] | None = None) -> Started:
    command = [sys.executable, "-m", "tests.ops.quantised.killed_cast", *map(str, words)]
    return Started(command, env={**os.environ, **(env or {})})


@pytest.mark.parametrize("case", _some({"fp8-block", "mxfp4", "nf4 of nf4", "to mxfp8"}))
def test_a_killed_cast_goes_on_and_makes_the_same_bytes(
    case: str, plain: Path, tmp_path: Path
) -> None:
    source, dtype = source_of(case, plain), CASTS[case][1]
    whole, out = tmp_path / "whole", tmp_path / "out"
    done = perform(source, whole, dtype)
    assert dies(source, out, dtype, done.bytes_written - 1).wait() == -signal.SIGKILL
    assert not out.exists()
    # Where nothing takes time to flush, the last file may be noted as complete before the kill.
    notes = partial_of(out) / NAME
    if all(f'"{name}"' in notes.read_text() for name in contents(whole)):
        notes.write_text("".join(notes.read_text().splitlines(keepends=True)[:-1]))
    report = perform(source, out, dtype, resume=True)
    assert len(report.resumed) < len(contents(whole))
    has_shards = any(name.startswith("model-0") for name in contents(whole))
    assert (report.bytes_written < done.bytes_written) == has_shards
    assert contents(out) == contents(whole)
    assert report.losses == done.losses


@pytest.mark.parametrize("case", _some({"fp8-block", "to fp8-block"}))
def test_a_cast_in_a_store_that_is_killed_goes_on(
    case: str, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, dtype = source_of(case, plain), CASTS[case][1]
    perform(source, tmp_path / "whole", dtype)
    with served(monkeypatch) as store, FaultProxy(store.url) as proxy:
        put_directory(store, source, "in")
        here = "gs://checkpoints"
        process = dies(f"{here}/in", f"{here}/out", dtype, 0, env=client_env(proxy.url))
        proxy.add(EndHere(process.kill, after=True), kind="put", first=3, times=1)
        assert process.wait() != 0
        assert MARKER not in "".join(store.sizes("out/"))
        perform(far("in"), far("out"), dtype, resume=True)
        names = [name for name in store.sizes("out/") if not name.endswith((MARKER, WRITING))]
        found = {name.removeprefix("out/"): store.get(name) for name in names}
    assert found == contents(tmp_path / "whole")
