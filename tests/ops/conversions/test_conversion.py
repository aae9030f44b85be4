"""Conversions in parts are byte for byte what one run writes, whatever happens to the parts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.golden_files import DEEPSPEED, JOB
from tests.ops import killed_part
from tests.ops.exports import model, noise
from tests.ops.killed_export import SHARD_BYTES, SMALLEST
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.target import FilePlan
from zerotools.io.numeric.dtype_casts import LostValues
from zerotools.io.output.journal import NAME
from zerotools.io.output.output_marker import MARKER
from zerotools.io.output.staging import partial_of
from zerotools.ops.conversions import consolidate, reshard
from zerotools.ops.conversions.consolidate import Options
from zerotools.ops.conversions.conversion import (
    Conversion,
    perform_conversion,
    perform_part,
    prove_part,
    refuse_overflow,
)
from zerotools.ops.execution import execute_part
from zerotools.ops.execution.divide_output import PartPlan
from zerotools.ops.execution.execute import WriteReport
from zerotools.ops.execution.execute_part import PartReport
from zerotools.ops.execution.output_part import OutputPart

OPTIONS = Options(max_shard_bytes=SHARD_BYTES)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Four tensors, one to a file of the export; the first has a NaN."""
    tensors = {f"layers.{n}.weight": noise(256, 512, seed=n) for n in range(4)}
    tensors["layers.0.weight"][3, 3] = np.nan
    return model(tmp_path / "in", tensors, config__json="{}")


def part_of(
    conversion: Conversion | object, index: int, of: int, *, overwrite: bool = False
) -> PartReport:
    assert isinstance(conversion, Conversion)
    return perform_part(
        conversion, planned(conversion, index, of), budget=SMALLEST, overwrite=overwrite
    )


def planned(conversion: Conversion, index: int, of: int) -> PartPlan:
    return prove_part(conversion, OutputPart(index, of), alignment=64)[1]


def files_of(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != MARKER
    }


@pytest.mark.parametrize("of", [1, 3, 7])
@pytest.mark.parametrize(
    "checkpoint", [DEEPSPEED / "z2-bf16-w2" / "checkpoint", JOB], ids=["deepspeed", "job"]
)
def test_a_reshard_is_what_one_run_writes(checkpoint: Path, of: int, tmp_path: Path) -> None:
    """Archives with checksums, of which several parts write one, and a manifest of all files."""
    whole = reshard.prepare_reshard(checkpoint, tmp_path / "whole", world_size=3)
    assert isinstance(whole, Conversion)
    perform_conversion(whole, budget=SMALLEST, overwrite=False)
    for index in range(of, 0, -1):
        conversion = reshard.prepare_reshard(checkpoint, tmp_path / "out", world_size=3)
        report = part_of(conversion, index, of)
    assert not report.missing
    cut = [name for share in planned(whole, 1, of).shares for name in share]
    if of > 1 and checkpoint != JOB:  # whose tensors do not lie on multiples of their elements
        assert len(cut) > len(set(cut)), "no file was cut"
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert not partial_of(tmp_path / "out").exists()


def test_what_is_lost_is_told_by_the_last_part(source: Path, tmp_path: Path) -> None:
    first, last = (
        part_of(consolidate.prepare_export(source, tmp_path / "out", OPTIONS), index, 2)
        for index in (1, 2)
    )
    assert (first.missing, last.missing) == ((2,), ())
    assert [lost.nans for lost in last.losses.values()] == [1]
    again = part_of(consolidate.prepare_export(source, tmp_path / "out", OPTIONS), 1, 2)
    assert (again.missing, again.bytes_written) == ((), 0), "done, and said to be"


def test_a_part_that_was_killed_goes_on_and_the_others_stay(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    part_of(consolidate.prepare_export(source, out, OPTIONS), 2, 2)
    command = [sys.executable, killed_part.__file__, source, out, "1", "2"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert not out.exists()
    report = part_of(consolidate.prepare_export(source, out, OPTIONS), 1, 2)
    assert report.resumed
    assert not report.missing
    perform_conversion(
        consolidate.prepare_export(source, tmp_path / "whole", OPTIONS),
        budget=SMALLEST,
        overwrite=False,
    )
    assert files_of(out) == files_of(tmp_path / "whole")


def test_a_kill_while_the_output_gets_its_name_is_ended_by_any_part(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def killed(self: object) -> None:
        raise KeyboardInterrupt

    part_of(consolidate.prepare_export(source, out, OPTIONS), 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr("zerotools.io.output.staging.Staging.commit", killed)
        with pytest.raises(KeyboardInterrupt):
            part_of(consolidate.prepare_export(source, out, OPTIONS), 2, 2)
    assert (partial_of(out) / MARKER).exists()
    assert not part_of(consolidate.prepare_export(source, out, OPTIONS), 1, 2).missing
    assert out.is_dir()


def test_a_kill_after_that_leaves_journals_which_any_run_removes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def killed(directory: Path) -> None:
        raise KeyboardInterrupt

    def left() -> list[Path]:
        return sorted(out.glob(f"{NAME}*"))

    for again in (False, True):
        part_of(consolidate.prepare_export(source, out, OPTIONS), 1, 2, overwrite=again)
        with monkeypatch.context() as patch:
            patch.setattr(execute_part, "remove_journals", killed)
            with pytest.raises(KeyboardInterrupt):
                part_of(consolidate.prepare_export(source, out, OPTIONS), 2, 2, overwrite=again)
        assert len(left()) == 3
        if again:  # nothing of it is another's file: another run may replace it
            fp32 = Options(max_shard_bytes=SHARD_BYTES, dtype="fp32")
            whole = consolidate.prepare_export(source, out, fp32)
            perform_conversion(whole, budget=SMALLEST, overwrite=True)
        else:
            assert not part_of(consolidate.prepare_export(source, out, OPTIONS), 1, 2).missing
        assert not left()
        shutil.rmtree(out)


@pytest.mark.parametrize("last_line", [b"", b'{"file": "cut sho'])
def test_what_a_run_without_parts_left_gets_into_no_output(
    source: Path, tmp_path: Path, last_line: bytes
) -> None:
    """Its journal is kept as it is, however long, and its files are no part's."""
    partial = partial_of(tmp_path / "out")
    partial.mkdir()
    line = b'{"file": "stray.safetensors", "noted": []}\n'
    journal = b'{"schema": "zerotools.journal/1", "identity": {}}\n' + line * 2**16 + last_line
    (partial / NAME).write_bytes(journal)
    (partial / "stray.safetensors").write_bytes(b"x")
    for left in (NAME, MARKER):
        with pytest.raises(BadRequest, match="holds files of a run without --part"):
            part_of(consolidate.prepare_export(source, tmp_path / "out", OPTIONS), 1, 2)
        assert (partial / left).read_bytes() == journal
        (partial / left).rename(partial / MARKER)  # now as of an output that was being replaced


def test_a_directory_that_is_gone_is_no_output(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    part_of(consolidate.prepare_export(source, out, OPTIONS), 1, 2)
    conversion = consolidate.prepare_export(source, out, OPTIONS)
    with pytest.raises(BadRequest, match="was moved or removed while it was written"):
        perform_part(
            conversion,
            planned(conversion, 2, 2),
            budget=SMALLEST,
            overwrite=False,
            check=lambda _: shutil.rmtree(partial_of(out)),
        )
    assert not out.exists()


def test_no_part_writes_outside_of_the_output(source: Path, tmp_path: Path) -> None:
    conversion = consolidate.prepare_export(source, tmp_path / "out", OPTIONS)
    files = {**conversion.target.files, "../astray": FilePlan(3)}
    with pytest.raises(BadFile, match=r"the output file '\.\./astray' would be outside of"):
        part_of(replace(conversion, target=replace(conversion.target, files=files)), 1, 1)
    assert not (tmp_path / "astray").exists()


def test_what_does_not_fit_together_is_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    part_of(consolidate.prepare_export(source, out, OPTIONS), 1, 2)
    with pytest.raises(BadRequest, match="begun in 2 parts, but this run is one of 3"):
        part_of(consolidate.prepare_export(source, out, OPTIONS), 2, 3)
    other = Options(max_shard_bytes=SHARD_BYTES, dtype="fp32")
    with pytest.raises(BadRequest, match="had other options and layout; remove"):
        part_of(consolidate.prepare_export(source, out, other), 2, 2)
    for resume in (False, True):
        with pytest.raises(BadRequest, match="is being written in 2 parts; run the missing"):
            perform_conversion(
                consolidate.prepare_export(source, out, OPTIONS),
                budget=SMALLEST,
                overwrite=False,
                resume=resume,
            )
    assert (partial_of(out) / f"{NAME}.1").exists(), "it stays"
    (source / "model.safetensors").touch()
    with pytest.raises(BadRequest, match="had other source files"):
        part_of(consolidate.prepare_export(source, out, OPTIONS), 2, 2)


def test_an_output_that_exists_is_replaced_at_the_end_alone(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fp32 = consolidate.prepare_export(
        source, out, Options(max_shard_bytes=SHARD_BYTES, dtype="fp32")
    )
    perform_conversion(fp32, budget=SMALLEST, overwrite=False)
    before = files_of(out)
    with pytest.raises(BadRequest, match="pass --overwrite"):
        part_of(consolidate.prepare_export(source, out, OPTIONS), 1, 2)
    part_of(consolidate.prepare_export(source, out, OPTIONS), 1, 2, overwrite=True)
    assert files_of(out) == before
    part_of(consolidate.prepare_export(source, out, OPTIONS), 2, 2, overwrite=True)
    assert files_of(out) != before
    with pytest.raises(BadRequest, match="pass --overwrite"):
        part_of(fp32, 1, 2)


def test_an_overflow_keeps_the_output_from_its_name(tmp_path: Path) -> None:
    tensors = {"a": np.full((4, 4), 1e9, np.float32), "b": noise(64, 64, seed=1)}
    source = model(tmp_path / "in", tensors, config__json="{}")
    options = Options(dtype="fp16")

    def run(index: int) -> PartReport:
        conversion = consolidate.prepare_export(source, tmp_path / "out", options)
        return perform_part(
            conversion,
            planned(conversion, index, 2),
            budget=SMALLEST,
            overwrite=False,
            check=refuse_overflow,
        )

    assert run(2).missing == (1,)
    for index in (1, 2, 1):  # the part that has it, and whichever would end the output
        with pytest.raises(BadRequest, match="too large for their new dtype"):
            run(index)
    assert not (tmp_path / "out").exists()


def test_overflow_names_the_tensor_and_the_largest_value() -> None:
    report = WriteReport(losses={Key("w", "param"): LostValues(overflowed=3, largest=1e6)})
    with pytest.raises(
        BadRequest,
        match=r"values of 1 tensor are too large for .*w has 3 such values, the largest 1e\+06",
    ):
        refuse_overflow(report)
    refuse_overflow(WriteReport(losses={Key("w", "param"): LostValues(nans=1)}))
