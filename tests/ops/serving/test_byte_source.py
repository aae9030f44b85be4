"""What is made of ranges is what consolidate writes, byte for byte."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.golden_files import DEEPSPEED, JOB, TORCH, every_checkpoint
from tests.matrices import FULL
from tests.ops.serving.served import SMALL, conversion_of
from tests.ops.verification.damage import copy
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.serving.byte_source import AHEAD, ByteSource

CASES = {
    "zero 3": DEEPSPEED / "z3-bf16-w2" / "checkpoint",
    "tensor parallel": DEEPSPEED / "tensor-parallel-z1-bf16-w4" / "checkpoint",
    "dcp": TORCH / "fsdp2-torchtitan-w2" / "checkpoint" / "step-4",
    "job": JOB,
}


def written(path: Path, out: Path, **options: object) -> dict[str, bytes]:
    perform_conversion(conversion_of(path, out, **options), budget=SMALL, overwrite=False)
    return {
        each.relative_to(out).as_posix(): each.read_bytes()
        for each in out.rglob("*")
        if each.is_file() and not each.name.startswith(".zerotools")
    }


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_every_range_is_that_of_the_written_file(tmp_path: Path, case: str, dtype: str) -> None:
    options: dict[str, object] = {"dtype": dtype, "max_shard_bytes": 5000}
    files = written(CASES[case], tmp_path / "out", **options)
    draw = random.Random(1)
    with ByteSource(conversion_of(CASES[case], **options), SMALL) as source:
        for name, data in files.items():
            assert b"".join(source.read(name, 0, len(data))) == data
            edges = {0, 1, 7, 8, 9, len(data) - 1, len(data)}
            edges |= {draw.randrange(len(data)) for _ in range(12)}
            for begin in edges:
                for end in edges:
                    if begin < end:
                        assert b"".join(source.read(name, begin, end)) == data[begin:end]
    assert set(files) == set(conversion_of(CASES[case], **options).target.files)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_elements_are_those_of_the_written_file(tmp_path: Path, case: str, dtype: str) -> None:
    options: dict[str, object] = {"dtype": dtype, "max_shard_bytes": 5000}
    files = written(CASES[case], tmp_path / "out", **options)
    with ByteSource(conversion_of(CASES[case], **options), SMALL) as source:
        for tensor in source._target.checkpoint.tensors.values():
            (chunk,), size = tensor.chunks, tensor.dtype.itemsize
            for first, last in {(0, tensor.numel), (1, tensor.numel), (0, tensor.numel // 2)}:
                begin, end = chunk.offset + first * size, chunk.offset + last * size
                buffer = bytearray(max(0, end - begin))
                source.read_elements(chunk.file, begin, memoryview(buffer))
                assert buffer == files[chunk.file][begin:end]


def test_a_caller_that_reads_elements_waits_for_no_other() -> None:
    conversion = conversion_of(JOB)
    tensor = next(iter(conversion.target.checkpoint.tensors.values()))
    (chunk,) = tensor.chunks
    with ByteSource(conversion, SMALL) as source:
        source.read_elements(chunk.file, chunk.offset, memoryview(bytearray(tensor.nbytes)))
        assert not [each for each in threading.enumerate() if each.name.startswith("tile")]


def test_every_golden_checkpoint_can_be_served(tmp_path: Path) -> None:
    """Every third of those of each program, and all in the full matrix."""
    count, step = 0, 1 if FULL else 3
    for number, path in enumerate(every_checkpoint()[::step]):
        try:
            # transformers would be asked about each config, in a process of seconds
            conversion = conversion_of(path, check_names=False)
            files = written(path, tmp_path / str(number), check_names=False)
        except (BadFile, BadRequest, Unsupported, OSError):
            continue  # what consolidate refuses is not served
        with ByteSource(conversion, SMALL) as source:
            for name, data in files.items():
                assert b"".join(source.read(name, 0, len(data))) == data, (path, name)
        count += 1
    assert count > 30 // step


def test_a_source_that_changes_is_refused(tmp_path: Path) -> None:
    path = copy(CASES["zero 3"], tmp_path)
    conversion = conversion_of(path)
    with ByteSource(conversion, SMALL) as source:
        (name,) = conversion.target.files
        size = conversion.target.files[name].size
        assert len(b"".join(source.read(name, 0, size))) == size
        file = next(path.rglob("*rank_0*optim_states.pt"))
        file.write_bytes(file.read_bytes() + b"x")
        with pytest.raises(BadFile, match="changed"):
            source.check()
    with pytest.raises(BadFile, match="changed"), ByteSource(conversion, SMALL):
        pass


def test_what_does_not_fit_in_the_type_is_not_sent(tmp_path: Path) -> None:
    save_file({"w": np.full(8, 1e9, np.float32)}, tmp_path / "model.safetensors")
    conversion = conversion_of(tmp_path / "model.safetensors", dtype="fp16")
    (name,) = conversion.target.files
    size = conversion.target.files[name].size
    with ByteSource(conversion, SMALL) as source:
        assert len(b"".join(source.read(name, 0, 8))) == 8  # of the header
        with pytest.raises(BadRequest, match=r"w: 8 values up to 1e\+09 are too large for float16"):
            b"".join(source.read(name, 0, size))
    with ByteSource(conversion, SMALL, strict=False) as source:
        assert len(b"".join(source.read(name, 0, size))) == size


def test_a_format_with_checksums_is_refused() -> None:
    with (
        pytest.raises(BadRequest, match="serve the model in safetensors"),
        ByteSource(conversion_of(CASES["zero 3"], format="torch"), SMALL),
    ):
        pass


def test_few_tiles_are_made_ahead_of_one_that_is_not_taken(tmp_path: Path) -> None:
    tiles = 64
    save_file(
        {"w": np.zeros(tiles * SMALL.tile_bytes // 4, np.float32)}, tmp_path / "model.safetensors"
    )
    conversion = conversion_of(tmp_path / "model.safetensors", dtype="fp32")
    (name,) = conversion.target.files
    size = conversion.target.files[name].size
    with ByteSource(conversion, SMALL) as source:
        made = 0
        fill = source._fill

        def counted(tile: object, note: object) -> bytes:
            nonlocal made
            made += 1
            return fill(tile, note)  # type: ignore[arg-type]

        source._fill = counted  # type: ignore[method-assign]
        reading = source.read(name, 0, size)
        for _ in range(3):
            next(reading)
        assert made <= 3 + AHEAD
        reading.close()  # as somebody who goes away; all buffers are given back
        assert len(b"".join(source.read(name, 0, size))) == size
