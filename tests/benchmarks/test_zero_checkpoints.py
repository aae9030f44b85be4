"""Generated checkpoints are what they claim to be, to us and to DeepSpeed itself."""

import hashlib
import os
import zipfile
from math import prod
from pathlib import Path

import pytest

from benchmarks.contents import run, values
from benchmarks.zero_checkpoints import MODELS, TAG, generate, sub_groups
from harness import forked
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import BFLOAT16
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.inspect import inspect

from ..golden_files import digests

SHAPES = MODELS["tiny"].shapes()


def expected(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[str, tuple[int, ...], str]]:
    """What `digests` should find in an export to bf16."""
    found = {}
    for name, shape in shapes.items():
        parts = values([run(name, "param", 0, prod(shape))], BFLOAT16)
        data = b"".join(part.tobytes() for part in parts)
        found[name] = ("BF16", shape, hashlib.sha256(data).hexdigest())
    return found


def consolidated(path: Path, out: Path) -> Path:
    conversion: Conversion = prepare_export(path, out, Options(dtype="bf16"))
    perform_conversion(conversion, budget=MemoryBudget(workers=2), overwrite=False)
    return out / "model.safetensors"


@pytest.mark.parametrize(("stage", "ranks"), [(2, 1), (2, 5), (3, 1), (3, 4), (3, 50)])
def test_we_read_what_was_meant(stage: int, ranks: int, tmp_path: Path) -> None:
    generate(tmp_path / "in", SHAPES, stage=stage, ranks=ranks)
    inspection = inspect(formats.read(tmp_path / "in"))
    assert not inspection.problems
    origin = inspection.checkpoint.origin
    assert (origin.stage, origin.world_size, origin.step) == (stage, ranks, 100)
    assert digests(consolidated(tmp_path / "in", tmp_path / "out")) == expected(SHAPES)


def test_sub_groups_are_closed_at_the_limit() -> None:
    groups = sub_groups({"a": (30,), "b": (30,), "c": (5,)}, 2, limit=20)
    assert groups == [{"a": (30,), "b": (30,)}, {"c": (5,)}]


@pytest.mark.parametrize("stage", [2, 3])
def test_every_checksum_is_right(stage: int, tmp_path: Path) -> None:
    generate(tmp_path / "in", SHAPES, stage=stage, ranks=3)
    for path in (tmp_path / "in" / TAG).iterdir():
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None


@pytest.mark.parametrize("stage", [2, 3])
def test_sparse_files_have_the_same_metadata(stage: int, tmp_path: Path) -> None:
    generate(tmp_path / "whole", SHAPES, stage=stage, ranks=3)
    generate(tmp_path / "sparse", SHAPES, stage=stage, ranks=3, sparse=True)
    whole, sparse = formats.read(tmp_path / "whole"), formats.read(tmp_path / "sparse")
    assert whole.files == sparse.files
    assert list(whole.tensors) == list(sparse.tensors)
    key = Key("lm_head.weight", "exp_avg")
    assert list(whole.tensors[key].chunks) == list(sparse.tensors[key].chunks)


@pytest.mark.deepspeed
@pytest.mark.parametrize(("stage", "ranks"), [(2, 3), (3, 4)])
def test_deepspeed_reads_the_same_weights(stage: int, ranks: int, tmp_path: Path) -> None:
    generate(tmp_path / "in", SHAPES, stage=stage, ranks=ranks)
    places = [str(tmp_path / "in"), str(tmp_path / "out")]
    words = ["-m", "deepspeed.utils.zero_to_torch", *places, "--dtype", "bf16"]
    env = {**os.environ, "DS_ACCELERATOR": "cpu"}
    forked.output(forked.DEEPSPEED, [*words, "--safe_serialization"], env=env, timeout=120)
    assert digests(tmp_path / "out" / "model.safetensors") == expected(SHAPES)
