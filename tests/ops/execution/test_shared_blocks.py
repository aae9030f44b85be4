"""On a real file system with reflinks, an output takes no space for the blocks that it shares."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import zerotools
from tests.cli.command_process import zerotools as command
from tests.reflink_disks import mounted_xfs


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_xfs(tmp_path) as place:
        if place is None:
            pytest.skip("XFS cannot be made or mounted here (root, mkfs.xfs and a loop device)")
        yield place


def used(disk: Path) -> int:
    os.sync()
    return shutil.disk_usage(disk).used


def test_records_at_the_same_place_in_a_block_take_no_space(disk: Path) -> None:
    numbers = np.random.default_rng(0)
    weights = {f"{n}.weight": numbers.random((2048, 2048), np.float32) for n in range(3)}
    (disk / "model").mkdir()
    save_file(weights, disk / "model" / "model.safetensors")
    zerotools.convert(disk / "model", disk / "dcp", to="dcp")
    before = used(disk)
    done = command("reshard", disk / "dcp", disk / "other", "--world-size", "2")
    nbytes = sum(each.nbytes for each in weights.values())
    assert used(disk) - before < nbytes / 10
    note = " MiB were not copied: the output shares their blocks with the source"
    assert note in done.stdout + done.stderr
    assert zerotools.diff(disk / "dcp", disk / "other").is_equal
