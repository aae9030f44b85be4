"""What is laid out is what is read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.formats.copying import write
from tests.formats.elements import elements
from tests.formats.toy.format import ToyFormat
from tests.formats.toy.made import TABLE, example
from zerotools import formats
from zerotools.core import dtypes
from zerotools.core.boxes import prove_cover
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Opaque, Tensor
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.target import Target
from zerotools.core.training_state import LossScale, ParamGroup, Scalar, TrainingState
from zerotools.formats import table_of
from zerotools.formats.format import WriteOptions
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.conversions.convert import prepare_convert
from zerotools.ops.execution.tile_workers import MemoryBudget

EVERYTHING = TrainingState(
    groups=(ParamGroup(("a", "b"), {"lr": 0.1, "betas": (0.9, 0.95), "fused": None}),),
    scalars={Key("a", "step"): Scalar(3.0, dtypes.FLOAT32), Key("b", "step"): Scalar(3)},
    frozen=frozenset({"c"}),
    precision=dtypes.BFLOAT16,
    optimizer="AdamW",
    optimizer_wrapper="ZeRO",
    steps=3,
    skipped=1,
    samples=2**40,
    lr_scheduler={"last_epoch": 3, "milestones": [1, (2, b"\0")]},
    loss_scaler=LossScale(64.0, True, {"cur_iter": 5, "dtype": dtypes.FLOAT16}, "a.Scaler"),
    ds_config={"steps_per_print": float("inf")},
    client={"epoch": 1, "nothing": None},
    is_ordered=False,
    unnamed={"b": 1},
    buffers=frozenset({"b"}),
    knows_frozen=False,
)


@pytest.fixture
def source(tmp_path: Path) -> Checkpoint:
    """Tensors of no, one and three dimensions, an empty one, and a model's files."""
    root = tmp_path / "source"
    root.mkdir()
    tensors = {
        "a": np.arange(30, dtype="float32").reshape(5, 3, 2),
        "b": np.arange(2, dtype="int64"),
        "empty": np.zeros((0, 3), "float32"),
        "number": np.array(3.5, "float16"),
        "flags": np.array([True, False, True]),
    }
    save_file(tensors, root / "model.safetensors")
    (root / "config.json").write_text("{}")
    return formats.read(root)


def lay_out(source: Checkpoint, training: TrainingState, out: Path, world_size: int) -> Target:
    return ToyFormat().lay_out(source, training, out, WriteOptions(world_size=world_size))


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_every_row_is_in_the_file_of_one_rank(
    source: Checkpoint, tmp_path: Path, world_size: int
) -> None:
    out = write(source, lay_out(source, EVERYTHING, tmp_path / "out", world_size))
    found = formats.read(out, table=TABLE)
    assert found.tensors.keys() == source.tensors.keys()
    for key, tensor in found.tensors.items():
        assert prove_cover(tensor.shape, [chunk.box for chunk in tensor.chunks]) is None
        assert elements(found, key).tobytes() == elements(source, key).tobytes()
    most = max(tensor.shape[0] for tensor in found.tensors.values() if tensor.shape)
    assert len({*found.files} - {"toy.json"}) == world_size
    assert max(len(t.chunks) for t in found.tensors.values()) == min(world_size, most)
    assert {*found.model_sidecars} == {"config.json"}


def test_the_whole_run_comes_back(source: Checkpoint, tmp_path: Path) -> None:
    out = write(source, lay_out(source, EVERYTHING, tmp_path / "out", 2))
    found = formats.training_of(formats.read(out, table=TABLE), TABLE)
    assert found == EVERYTHING
    assert found.loss_scaler is not None
    assert found.loss_scaler.saved_as == "a.Scaler"


def test_no_run_at_all(source: Checkpoint, tmp_path: Path) -> None:
    out = write(source, lay_out(source, TrainingState(), tmp_path / "out", 1))
    assert formats.training_of(formats.read(out, table=TABLE), TABLE) == TrainingState()


def test_what_was_read_is_laid_out_with_equal_bytes(source: Checkpoint, tmp_path: Path) -> None:
    first = write(source, lay_out(source, EVERYTHING, tmp_path / "first", 3))
    read = formats.read(first, table=TABLE)
    training = formats.training_of(read, TABLE)
    second = write(read, lay_out(read, training, tmp_path / "second", 3))
    names = {"toy.json", "config.json", "rank-0.bin", "rank-1.bin", "rank-2.bin"}
    assert names <= {path.name for path in first.iterdir()}
    for name in names:
        assert (second / name).read_bytes() == (first / name).read_bytes(), name


def test_objects_of_classes_are_dropped_and_named(source: Checkpoint, tmp_path: Path) -> None:
    thing = Opaque("argparse", "Namespace")
    training = replace(EVERYTHING, client={"args": thing, "epoch": 1}, lr_scheduler=[thing])
    target = lay_out(source, training, tmp_path / "out", 2)
    assert [dropped.what for dropped in target.dropped] == ["client", "lr_scheduler"]
    assert "args, which is an object of Opaque" in target.dropped[0].why
    found = formats.training_of(formats.read(write(source, target), table=TABLE), TABLE)
    assert found == replace(EVERYTHING, client={"epoch": 1}, lr_scheduler=None)


def test_an_option_of_the_optimizer_that_is_an_object_is_refused(
    source: Checkpoint, tmp_path: Path
) -> None:
    training = TrainingState(groups=(ParamGroup(("a",), {"lr": Opaque("a", "Schedule")}),))
    with pytest.raises(Unsupported, match="an option of a param group that is an object"):
        lay_out(source, training, tmp_path / "out", 2)


class _WrongToy(ToyFormat):
    """Its reader finds another place than was laid out."""

    def lay_out(
        self,
        source: Checkpoint,
        training: TrainingState,
        destination: Path,
        options: WriteOptions,
    ) -> Target:
        target = super().lay_out(source, training, destination, options)
        tensors = {
            key: Tensor(tensor.dtype, tensor.shape, [*map(_moved, tensor.chunks)])
            for key, tensor in target.checkpoint.tensors.items()
        }
        plans = {
            name: replace(plan, size=plan.size + 4) if name.startswith("rank") else plan
            for name, plan in target.files.items()
        }
        return replace(target, checkpoint=replace(target.checkpoint, tensors=tensors), files=plans)


def _moved(chunk: Chunk) -> Chunk:
    return replace(chunk, offset=chunk.offset + 4)


@pytest.mark.parametrize("form", [ToyFormat(), _WrongToy()])
def test_verify_reads_the_output_by_the_reader_of_the_table(
    tmp_path: Path, form: ToyFormat
) -> None:
    table = table_of(form)
    out = tmp_path / "out"
    source = example(tmp_path / "a")
    conversion = prepare_convert(source, out, "toy", {"world_size": 2, "force": True}, table=table)
    assert isinstance(conversion, Conversion)
    if type(form) is ToyFormat:
        perform_conversion(conversion, budget=MemoryBudget(workers=1), overwrite=False, verify=True)
        assert formats.detect(out, table=table).format == "toy"
        return
    with pytest.raises(BadFile, match="was read back, but w and"):
        perform_conversion(conversion, budget=MemoryBudget(workers=1), overwrite=False, verify=True)
    assert not out.exists()
