from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED, TORCH
from zerotools.ops.conversions import reshard
from zerotools.ops.conversions.conversion import Conversion, perform
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.serving.byte_source import ByteSource
from zerotools.ops.uploading.file_stream import file_stream

CASES = {
    "records of one file": DEEPSPEED / "z2-bf16-w2" / "checkpoint",
    "archives one behind another": TORCH / "fsdp2-dcp-w3" / "checkpoint",
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("held", [0, 300, 5000, 2**30])
def test_the_stream_is_the_file_that_is_written(tmp_path: Path, case: str, held: int) -> None:
    conversion = reshard.prepare(CASES[case], tmp_path / "out", world_size=4)
    assert isinstance(conversion, Conversion)
    perform(conversion, budget=MemoryBudget(), overwrite=False)
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
