"""What is read of toy.json, and what is refused."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.formats.copying import tensor_bytes
from tests.formats.toy.file_names import METADATA
from tests.formats.toy.made import EXAMPLE, TABLE, example
from zerotools import formats
from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Key
from zerotools.core.errors import BadFile, Incomplete, Unsupported, ZerotoolsError
from zerotools.core.training_state import LossScale, ParamGroup, Scalar, TrainingState
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.conversions.convert import prepare_convert
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.completeness import check_completeness
from zerotools.ops.inspection.inspect import inspect

W = Key("w", "param")


def convert(path: Path) -> None:
    conversion = prepare_convert(path, path.with_name("out"), "torch", {}, table=TABLE)
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(workers=1), overwrite=False)


def test_a_checkpoint_written_by_hand(tmp_path: Path) -> None:
    path = example(tmp_path / "a")
    found = formats.read(path, table=TABLE)
    assert found.tensors[W].chunks == [
        Chunk(Box((0, 0), (1, 4)), "rank-0.bin", 0),
        Chunk(Box((1, 0), (2, 4)), "rank-1.bin", 8),
    ]
    assert tensor_bytes(found, W) == bytes(range(48))
    assert (found.origin.world_size, found.origin.step) == (2, 3)
    assert found.origin.precision == dtypes.FLOAT16
    assert found.aliases == {"tied": "w"}
    assert found.files["rank-1.bin"] == 40
    assert {path / name for name in found.files} == {*found.stamps}
    assert not found.problems
    assert formats.training_of(found, TABLE) == TrainingState(
        groups=(ParamGroup(("w",), {"lr": 0.1, "betas": (0.9, 0.95)}),),
        scalars={Key("w", "step"): Scalar(3.0, dtypes.FLOAT32)},
        precision=dtypes.FLOAT16,
        optimizer="AdamW",
        steps=3,
        loss_scaler=LossScale(64.0, dynamic=True),
        client={"epoch": 1},
    )


def test_the_shipped_table_has_no_toy(tmp_path: Path) -> None:
    path = example(tmp_path / "a")
    assert formats.detect(path, table=TABLE).format == "toy"
    with pytest.raises(BadFile, match=r"rank-0\.bin .* not a file of torch.save"):
        formats.read_any(path)


def test_the_message_that_nothing_is_there_has_the_signs_of_the_table(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"is not a checkpoint: it has no .* or toy\.json"):
        formats.detect(tmp_path, table=TABLE)
    with pytest.raises(BadFile) as caught:
        formats.detect(tmp_path)
    assert METADATA not in str(caught.value)


def test_a_missing_file_of_a_rank_is_shown_and_nothing_is_made_of_it(tmp_path: Path) -> None:
    path = example(tmp_path / "a")
    (path / "rank-1.bin").unlink()
    found = inspect(formats.read(path, table=TABLE), TABLE)
    assert found.missing == ("rank-1.bin",)
    assert found.incomplete == (W,)
    problem = check_completeness(path, TABLE).problem
    assert problem is not None
    assert f"{path / 'rank-1.bin'} is missing" in problem
    with pytest.raises(Incomplete, match=r"8 of 12 elements are in no file.*rank-1\.bin is missin"):
        convert(path)


def test_a_short_file_of_a_rank_is_shown_and_nothing_is_made_of_it(tmp_path: Path) -> None:
    path = example(tmp_path / "a")
    (path / "rank-1.bin").write_bytes(bytes(39))
    found = inspect(formats.read(path, table=TABLE), TABLE)
    assert found.incomplete == (W,)
    assert check_completeness(path, TABLE).problem == found.problems[0].message
    with pytest.raises(
        Incomplete, match=r"rank-1\.bin is truncated: w .* ends at byte 40, but the file has 39"
    ):
        convert(path)


def test_a_file_that_changes_after_it_was_read_is_refused(tmp_path: Path) -> None:
    path = example(tmp_path / "a")
    conversion = prepare_convert(path, tmp_path / "out", "torch", {}, table=TABLE)
    assert isinstance(conversion, Conversion)
    (path / "rank-0.bin").write_bytes(bytes(17))
    with pytest.raises(BadFile, match="changed while it was read"):
        perform_conversion(conversion, budget=MemoryBudget(workers=1), overwrite=False)


def test_what_is_named_in_place_of_a_file_is_never_opened(tmp_path: Path) -> None:
    document = deepcopy(EXAMPLE)
    document["tensors"][0]["blocks"][0]["file"] = "../secret"
    path = example(tmp_path / "a", document)
    with pytest.raises(BadFile, match=r"is in '\.\./secret', which is no file of the 2 ranks"):
        formats.read(path, table=TABLE)


LIES: dict[str, tuple[str, Any, type[ZerotoolsError], str]] = {
    # where, what stands there, and what is said of it
    "another version": ("toy", 2, Unsupported, "is of version 2"),
    "no ranks": ("world_size", 0, BadFile, "says that there were 0 ranks"),
    "ranks without end": ("world_size", 2**40, BadFile, "says that there were 1099511627776"),
    "half a rank": ("world_size", 1.5, BadFile, "has no count 'world_size'"),
    "an unknown type": ("tensors.0.dtype", "float5", Unsupported, "element type 'float5'"),
    "no type": ("tensors.0.dtype", None, BadFile, "has no text 'dtype'"),
    "a negative shape": ("tensors.0.shape", [-3, 4], BadFile, "that are not counts"),
    "a shape of one dimension": ("tensors.0.shape", [12], BadFile, "is not of 1 dimensions"),
    "a block of text": ("tensors.0.blocks.1", "rank-1.bin", BadFile, "is not an object"),
    "an offset that is true": ("tensors.0.blocks.1.offset", True, BadFile, "no count 'offset'"),
    "a tensor twice": ("tensors", EXAMPLE["tensors"] * 2, BadFile, "lists a tensor twice"),
    "a tied name of nothing": ("aliases.tied", 1, BadFile, "has no text 'tied'"),
    "no run": ("run", [], BadFile, "'run' of the file is not an object"),
    "an unknown precision": ("run.precision", "float5", Unsupported, "element type 'float5'"),
    "steps of text": ("run.steps", "3", BadFile, "has no count 'steps'"),
}
LIES_OF_THE_RUN: dict[str, tuple[str, Any, type[ZerotoolsError], str]] = {
    "a group without names": ("run.groups.0.params", [1], BadFile, "that are not text"),
    "options that are a list": ("run.groups.0.options", [], BadFile, "no dict 'options'"),
    "options of no kind": ("run.groups.0.options", {"set": []}, BadFile, "an object of set"),
    "a key that has no hash": ("run.client", {"dict": [[[], 1]]}, BadFile, "not a key and a value"),
    "a number of text": ("scalars.0.value", "3", BadFile, "has no number 'value'"),
    "a scale of text": ("run.loss_scaler.scale", "64", BadFile, "has no number 'scale'"),
}


def lying(root: Path, place: str, value: Any) -> Path:
    document: Any = deepcopy(EXAMPLE)
    *parents, last = (int(part) if part.isdigit() else part for part in place.split("."))
    inner = document
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    return example(root, document)


@pytest.mark.parametrize(("place", "value", "error", "said"), LIES.values(), ids=LIES.keys())
def test_metadata_that_lies(
    tmp_path: Path, place: str, value: Any, error: type[ZerotoolsError], said: str
) -> None:
    path = lying(tmp_path / "a", place, value)
    with pytest.raises(error, match=said) as caught:
        formats.read(path, table=TABLE)
    assert str(path / METADATA) in str(caught.value)


@pytest.mark.parametrize(
    ("place", "value", "error", "said"), LIES_OF_THE_RUN.values(), ids=LIES_OF_THE_RUN.keys()
)
def test_a_run_that_lies(
    tmp_path: Path, place: str, value: Any, error: type[ZerotoolsError], said: str
) -> None:
    path = lying(tmp_path / "a", place, value)
    found = formats.read(path, table=TABLE)
    with pytest.raises(error, match=said) as caught:
        formats.training_of(found, TABLE)
    assert str(path / METADATA) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"toy": 1', "\0", "9" * 10_000])
def test_what_is_no_metadata(tmp_path: Path, text: str) -> None:
    path = example(tmp_path / "a")
    (path / METADATA).write_text(text)
    with pytest.raises(BadFile, match=r"toy\.json"):
        formats.read(path, table=TABLE)


OPTIONAL = ("precision", "optimizer", "steps", "loss_scaler")
NEEDED = [name for name in (*EXAMPLE, *EXAMPLE["run"]) if name not in OPTIONAL]


@pytest.mark.parametrize("name", NEEDED)
def test_a_member_that_is_missing(tmp_path: Path, name: str) -> None:
    document = deepcopy(EXAMPLE)
    del (document if name in document else document["run"])[name]
    path = example(tmp_path / "a", document)
    with pytest.raises(BadFile, match=f"'{name}'|has in 'client'") as caught:
        formats.training_of(formats.read(path, table=TABLE), TABLE)
    assert str(path / METADATA) in str(caught.value)
