"""Interrupted exports: what they leave, and how the next run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.golden_files import JOB
from tests.matrices import FULL
from tests.ops import killed_export
from tests.ops.exports import model, noise
from tests.ops.killed_export import SHARD_BYTES, SMALLEST
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.output.journal import NAME
from zerotools.io.output.output_marker import MARKER
from zerotools.io.output.staging import partial_of
from zerotools.ops.conversions import consolidate, reshard
from zerotools.ops.conversions.consolidate import Options
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.execute import WriteReport

OPTIONS = Options(max_shard_bytes=SHARD_BYTES)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Eight tensors, one to a file of the export; the first has a NaN."""
    tensors = {f"layers.{n}.weight": noise(256, 512, seed=n) for n in range(8)}
    tensors["layers.0.weight"][3, 3] = np.nan
    return model(tmp_path / "in", tensors, config__json="{}")


def kill(source: Path, out: Path, complete: int) -> None:
    """An export that dies when `complete` of its files are."""
    command = [sys.executable, killed_export.__file__, source, out, str(complete)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False
    )
    assert done.returncode == -signal.SIGKILL


def run(source: Path, out: Path, *, resume: bool, options: Options = OPTIONS) -> WriteReport:
    conversion = consolidate.prepare_export(source, out, options)
    return perform_conversion(
        conversion, budget=SMALLEST, overwrite=False, resume=resume, verify=resume
    )


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != MARKER}


def stamps(directory: Path) -> dict[str, tuple[int, int]]:
    found = {path.name: path.stat() for path in directory.iterdir()}
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in found.items()}


@pytest.mark.parametrize("complete", [3, 6, 9] if FULL else [6])
def test_a_killed_export_goes_on_where_it_was(source: Path, tmp_path: Path, complete: int) -> None:
    whole = run(source, tmp_path / "whole", resume=False)
    kill(source, tmp_path / "out", complete)
    assert not (tmp_path / "out").exists()
    before = stamps(partial_of(tmp_path / "out"))
    report = run(source, tmp_path / "out", resume=True)
    assert len(report.resumed) >= complete
    assert report.bytes_written == whole.bytes_written - sum(
        2 * 256 * 512 for file in report.resumed if file.endswith(".safetensors")
    )
    assert report.losses == whole.losses
    assert report.losses[Key("layers.0.weight", "param")].nans == 1
    after = stamps(tmp_path / "out")
    assert [name for name in report.resumed if after[name] != before[name]] == []
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in",
        "out",
        "out.zerotools.json",
        "whole",
    ]


def test_without_resume_the_next_run_starts_over(source: Path, tmp_path: Path) -> None:
    kill(source, tmp_path / "out", 4)
    report = run(source, tmp_path / "out", resume=False)
    assert report.resumed == ()
    assert report.bytes_written == 8 * 2 * 256 * 512
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_nothing_to_resume_is_a_whole_run(source: Path, tmp_path: Path) -> None:
    assert run(source, tmp_path / "out", resume=True).resumed == ()
    assert NAME not in contents(tmp_path / "out")


def test_a_complete_file_that_was_lost_is_written_again(source: Path, tmp_path: Path) -> None:
    kill(source, tmp_path / "out", 5)
    partial = partial_of(tmp_path / "out")
    lost = sorted(partial.glob("model-0000*.safetensors"))[0]
    lost.unlink()
    (partial / "stray").write_text("x")
    assert lost.name not in run(source, tmp_path / "out", resume=True).resumed
    run(source, tmp_path / "whole", resume=False)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_another_source_or_request_is_refused_and_nothing_is_lost(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    kill(source, out, 4)
    before = contents(partial_of(out))
    with pytest.raises(BadRequest, match="had other options and layout; leave --resume"):
        run(source, out, resume=True, options=Options(dtype="fp32", max_shard_bytes=SHARD_BYTES))
    os.utime(source / "model.safetensors", ns=(1, 1))
    with pytest.raises(BadRequest, match="had other source files; leave --resume out"):
        run(source, out, resume=True)
    assert contents(partial_of(out)) == before


def interrupt(conversion: Conversion, error: type[BaseException]) -> None:
    """Raise `error` in the middle of the conversion."""
    seen = []

    def on_bytes(count: int) -> None:
        seen.append(count)
        if len(seen) == 7:
            raise error

    with pytest.raises(error):
        perform_conversion(conversion, budget=SMALLEST, overwrite=False, on_bytes=on_bytes)


def test_an_interrupt_keeps_what_an_error_removes(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    interrupt(consolidate.prepare_export(source, out, OPTIONS), KeyboardInterrupt)
    assert (partial_of(out) / NAME).exists()
    assert run(source, out, resume=True).resumed != ()
    interrupt(consolidate.prepare_export(source, tmp_path / "second", OPTIONS), BadFile)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "out.zerotools.json"]


def test_a_reshard_goes_on_too(tmp_path: Path) -> None:
    def prepare(out: Path) -> Conversion:
        prepared = reshard.prepare_reshard(JOB, out, world_size=3)
        assert isinstance(prepared, Conversion)
        return prepared

    interrupt(prepare(tmp_path / "out"), KeyboardInterrupt)
    conversion = prepare(tmp_path / "out")
    report = perform_conversion(
        conversion, budget=SMALLEST, overwrite=False, resume=True, verify=True
    )
    assert report.resumed != ()
    perform_conversion(prepare(tmp_path / "whole"), budget=SMALLEST, overwrite=False)
    for name in ("MANIFEST.json", "dcp/.metadata", "dcp/__2_0.distcp"):
        whole = (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "out" / name).read_bytes() == whole
    assert not (tmp_path / "out" / NAME).exists()
