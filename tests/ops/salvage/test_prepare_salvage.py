"""Each kind of checkpoint with each kind of damage: what is lost is said box by box, what is
exported is bit for bit what an export of the sound checkpoint has, and --fill-from restores it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.golden_files import DEEPSPEED, JOB, TORCH
from tests.ops.exports import model, noise, weights_of
from tests.ops.verification.damage import copy, flip
from zerotools import formats
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile, BadRequest
from zerotools.ops.salvage.prepare_salvage import to_json
from zerotools.ops.salvage.salvage_plan import RECORD

from .damaged import (
    KINDS,
    consolidated,
    damaged_file,
    is_equal,
    largest,
    lost_in,
    marks_of,
    record_around,
    salvage,
)

CUT = ("dcp", "rank files", "universal", "zero3")
ALIKE = ("tensor parallel", "zero1", "zero3 first")
"""Kinds whose other damages are tried in `scripts/judge` alone."""


def check(path: Path, sound: Path, tmp_path: Path, lost: tuple[Path, int, int]) -> None:
    """`path` is `sound`, of which bytes [begin, end) of a file are lost."""
    checkpoint: Checkpoint = formats.read(sound)
    file, begin, end = lost
    root = path / checkpoint.root.relative_to(sound)
    expected = lost_in(checkpoint, file.relative_to(root).as_posix(), begin, end)
    found, weights = salvage(path, tmp_path / "left")
    marks = {key: each for key, each in marks_of(found).items() if key.role != "step"}
    expected = {key: each for key, each in expected.items() if key.role != "step"}  # has copies
    assert marks.keys() == expected.keys()
    assert all((marks[key] == expected[key]).all() for key in marks)
    wanted = consolidated(sound)
    assert all(is_equal(array, wanted[name]) for name, array in weights.items())
    assert not (found.left_out.keys() & weights.keys())
    assert found.left_out.keys() | weights.keys() == wanted.keys() | found.left_out.keys()
    assert found.is_complete == (weights.keys() == wanted.keys() and not found.unnamed)
    filled, again = salvage(path, tmp_path / "filled", sound)
    assert filled.is_complete
    assert again.keys() == wanted.keys()
    assert all(is_equal(array, wanted[name]) for name, array in again.items())


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_file_that_is_deleted(kind: str, tmp_path: Path) -> None:
    path = copy(KINDS[kind][0], tmp_path)
    file = damaged_file(path, kind)
    size = file.stat().st_size
    file.unlink()
    check(path, KINDS[kind][0], tmp_path, (file, 0, size))


# Each kind of file; zero1, tensor parallel and first ranks have other files, but of the same kinds.
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.full if kind in ALIKE else ()) for kind in sorted(KINDS)],
)
def test_a_bit_that_is_flipped(kind: str, tmp_path: Path) -> None:
    path = copy(KINDS[kind][0], tmp_path)
    file = damaged_file(path, kind)
    at = largest(path, file)
    begin, end = record_around(path, file, at)
    flip(file, at + 1)
    check(path, KINDS[kind][0], tmp_path, (file, begin, end))


# The file is read as one that is deleted from there on: one kind of each format.
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in CUT else pytest.mark.full) for kind in sorted(KINDS)],
)
def test_a_file_that_is_cut_short_behind_its_largest_record(kind: str, tmp_path: Path) -> None:
    path = copy(KINDS[kind][0], tmp_path)
    file = damaged_file(path, kind)
    at = largest(path, file)
    begin, _ = record_around(path, file, at)
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.truncate(at + 2)
    check(path, KINDS[kind][0], tmp_path, (file, begin, size))


def test_a_sound_checkpoint_is_exported_as_consolidate_does(tmp_path: Path) -> None:
    path, _ = KINDS["zero3"]
    found, weights = salvage(path, tmp_path / "out")
    assert found.examined.is_whole
    assert found.is_complete
    wanted = consolidated(path)
    assert weights.keys() == wanted.keys()
    assert all(is_equal(array, wanted[name]) for name, array in weights.items())


def test_weights_whose_masters_are_lost_are_whole(tmp_path: Path) -> None:
    path = copy(DEEPSPEED / "z2-bf16-w3" / "checkpoint", tmp_path)
    for file in path.rglob("*optim_states.pt"):
        file.unlink()
    found, weights = salvage(path, tmp_path / "out")
    assert found.is_complete
    assert {part.source for _, part in found.filled} == {"its own 16-bit weights"}
    assert not found.rounded
    wanted = consolidated(KINDS["zero2"][0])
    assert all(is_equal(weights[name], array) for name, array in wanted.items())
    wider, _ = salvage(path, tmp_path / "wider", dtype="fp32")
    assert not wider.is_complete
    assert {*wider.rounded} == {key.name for key, _ in found.filled}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A model in three files, each of a matrix and a vector."""
    arrays = {
        f"{n}.{w}": noise(*s, seed=n) for n in range(3) for w, s in (("w", (8, 4)), ("b", (4,)))
    }
    source = model(tmp_path / "source", arrays)
    salvage(source, tmp_path / "shards", dtype="fp32", max_shard_bytes=150)
    (tmp_path / "shards.zerotools.json").rename(tmp_path / "manifest")
    return tmp_path / "shards"


def test_shards_of_a_model_that_are_lost_or_cut_short(shards: Path, tmp_path: Path) -> None:
    wanted = weights_of(shards)
    first, second, third = sorted(shards.glob("*.safetensors"))
    second.unlink()
    data = third.read_bytes()
    third.write_bytes(data[:-19])  # of a matrix that ends the file, four elements and three bytes
    found, weights = salvage(shards, tmp_path / "left", dtype="fp32")
    whole = {name for name in wanted if name.startswith(("0.", "2.b"))}
    assert weights.keys() == whole
    assert all(is_equal(weights[name], wanted[name]) for name in weights)
    assert set(found.left_out) == wanted.keys() - whole
    index = "model.safetensors.index.json"
    assert found.examined.unchecked == (index, first.name, third.name)
    (holes,) = found.examined.holes.values()
    assert holes.ranges == ((27, 32),)
    assert holes.boxes == (Box((6, 3), (1, 1)), Box((7, 0), (1, 4)))
    filled, again = salvage(shards, tmp_path / "filled", tmp_path / "source", dtype="fp32")
    assert filled.is_complete
    assert all(is_equal(again[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("is_job", [False, True])
def test_metadata_without_a_checksum_is_named_unless_a_manifest_has_it(
    is_job: bool, tmp_path: Path
) -> None:
    """A bit that flips in a name there makes it another tensor."""
    path = copy(JOB if is_job else TORCH / "fsdp2-dcp-w3" / "checkpoint", tmp_path)
    names = {file.relative_to(path).as_posix() for file in path.rglob(".metadata")}
    found, _ = salvage(path, tmp_path / "left")
    assert found.is_complete
    assert set(found.examined.unchecked) == (set() if is_job else names)
    if is_job:
        flip(next(path.rglob(".metadata")), 40)
        found, _ = salvage(path, tmp_path / "damaged")
        assert "its bytes have changed" in found.examined.damage[0].message
        assert not found.examined.is_whole


def test_a_manifest_tells_what_no_checksum_does(shards: Path, tmp_path: Path) -> None:
    wanted = weights_of(shards)
    (tmp_path / "manifest").rename(tmp_path / "shards.zerotools.json")
    _, second, third = sorted(shards.glob("*.safetensors"))
    flip(second, second.stat().st_size - 3)  # in a matrix
    flip(third, 20)  # in the header, which is no longer what it was
    found, weights = salvage(shards, tmp_path / "left", dtype="fp32")
    assert weights.keys() == {name for name in wanted if name in ("0.w", "0.b", "1.b")}
    assert all(is_equal(weights[name], wanted[name]) for name in weights)
    (holes,) = found.examined.holes.values()
    assert holes.why == (
        "has other values than those that the manifest next to the checkpoint records"
    )
    assert found.examined.unchecked == ()


def test_a_lost_shard_without_an_index_may_have_held_anything(shards: Path, tmp_path: Path) -> None:
    wanted = weights_of(shards)
    next(shards.glob("*.index.json")).unlink()
    lost = sorted(shards.glob("*.safetensors"))[1]
    lost.unlink()
    found, weights = salvage(shards, tmp_path / "left", dtype="fp32")
    assert found.unnamed == (lost.name,)
    assert not found.is_complete
    assert weights.keys() < wanted.keys()
    filled, again = salvage(shards, tmp_path / "filled", tmp_path / "source", dtype="fp32")
    assert filled.is_complete
    assert again.keys() == wanted.keys()


def test_boxes_of_another_type_are_cast_on_their_way(tmp_path: Path) -> None:
    """Masters in fp32, of which a rank's part is filled from weights in bf16."""
    sound, _ = KINDS["zero3"]
    wanted = consolidated(sound)
    path = copy(sound, tmp_path)
    damaged_file(path, "zero3").unlink()
    salvage(sound, tmp_path / "base")
    for dtype in ("bf16", "fp32"):
        found, weights = salvage(path, tmp_path / dtype, tmp_path / "base", dtype=dtype)
        assert {part.dtype.name for _, part in found.filled} == {"bfloat16"}
        masters = salvage(sound, tmp_path / f"sound-{dtype}", dtype=dtype)[1]
        for key, marks in lost_in_rank(sound).items():
            expected = np.where(marks, wanted[key].astype(weights[key].dtype), masters[key])
            assert is_equal(weights[key], expected), key


def lost_in_rank(sound: Path) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    checkpoint = formats.read(sound)
    file = damaged_file(sound, "zero3")
    marks = lost_in(checkpoint, file.relative_to(checkpoint.root).as_posix(), 0, 2**40)
    return {key.name: each for key, each in marks.items() if key.role == "param"}


def test_the_output_has_a_record_of_every_box_that_is_filled(tmp_path: Path) -> None:
    sound, _ = KINDS["zero3"]
    path = copy(sound, tmp_path)
    damaged_file(path, "zero3").unlink()
    found, _ = salvage(path, tmp_path / "out", sound)
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    assert record == to_json(found)
    assert record["fill_from"] == {"path": str(sound), "format": "deepspeed", "step": 2}
    assert record["step"] == 2
    marks = lost_in_rank(sound)
    assert {each["name"] for each in record["filled"]} == marks.keys()
    for each in record["filled"]:
        assert each["source"] == str(sound)
        assert each["elements"] == marks[each["name"]].sum()


def test_another_model_is_refused(tmp_path: Path) -> None:
    path = copy(KINDS["zero3"][0], tmp_path)
    damaged_file(path, "zero3").unlink()
    other = model(tmp_path / "other", {"layer.weight": noise(3, 5)})
    with pytest.raises(BadRequest, match=r"layer.weight is \[13, 7\] in .* and \[3, 5\] in"):
        salvage(path, tmp_path / "out", other)
    stranger = model(tmp_path / "stranger", {"x.weight": noise(3, 5)})
    with pytest.raises(BadRequest, match="they are of different models"):
        salvage(path, tmp_path / "out", stranger)
    assert not (tmp_path / "out").exists()


def test_what_the_other_lacks_is_left_out_by_name(tmp_path: Path) -> None:
    sound, _ = KINDS["zero3"]
    path = copy(sound, tmp_path)
    damaged_file(path, "zero3").unlink()
    salvage(sound, tmp_path / "part", exclude=["layer.*"])
    found, weights = salvage(path, tmp_path / "out", tmp_path / "part")
    assert {"layer.weight", "layer.bias"} == found.left_out.keys()
    assert weights.keys() == consolidated(sound).keys() - found.left_out.keys()


def test_files_of_two_saves_are_refused(tmp_path: Path) -> None:
    path = copy(DEEPSPEED / "z3-bf16-w2" / "checkpoint", tmp_path)
    other = DEEPSPEED / "z3-bf16-w2-before-first-step" / "checkpoint"
    (file,) = path.rglob("*rank_1_*optim_states.pt")
    (stale,) = other.rglob("*rank_1_*optim_states.pt")
    file.write_bytes(stale.read_bytes())
    with pytest.raises(BadFile, match="move the wrong ones elsewhere"):
        salvage(path, tmp_path / "out")


def test_a_damaged_other_gives_what_is_sound_of_it(tmp_path: Path) -> None:
    sound, _ = KINDS["zero3"]
    path = copy(sound, tmp_path)
    damaged_file(path, "zero3").unlink()
    (tmp_path / "older").mkdir()
    older = copy(sound, tmp_path / "older")
    damaged_file(older, "zero3").unlink()
    found, weights = salvage(path, tmp_path / "out", older)
    wanted = consolidated(sound)
    assert all(is_equal(array, wanted[name]) for name, array in weights.items())
    assert not found.is_complete


def test_nothing_is_written_where_nothing_is_whole(tmp_path: Path) -> None:
    path = copy(DEEPSPEED / "z3-fp32-w2" / "checkpoint", tmp_path)
    next(path.rglob("*rank_1_*optim_states.pt")).unlink()
    found, _ = salvage(path, tmp_path / "out", include=["layer.*"])
    assert found.conversion is None
    assert found.left_out.keys() == {"layer.weight", "layer.bias"}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("case", ["z1-bf16-w4", "z2-bf16-w3", "bf16-optimizer-w2", "z2-fp32-w2"])
def test_names_and_shapes_that_are_lost_are_taken_from_another_checkpoint_of_the_run(
    case: str, tmp_path: Path
) -> None:
    sound = DEEPSPEED / case / "checkpoint"
    path = copy(sound, tmp_path)
    model_file = next(path.rglob("mp_rank_00_model_states.pt"))
    with model_file.open("r+b") as opened:
        opened.truncate(100)
    for damage in ("cut short", "missing"):
        if damage == "missing":
            model_file.unlink()
        with pytest.raises(
            BadFile, match="only this file has the names and shapes of the parameters"
        ):
            salvage(path, tmp_path / "left")
        found, weights = salvage(path, tmp_path / damage, sound)
        wanted = consolidated(sound)
        assert found.is_complete
        assert weights.keys() == wanted.keys()
        assert all(is_equal(array, wanted[name]) for name, array in weights.items())
        # masters are the checkpoint's own
        trained = {key.name for key in found.examined.sound if key.role == "exp_avg"}
        assert trained
        assert not trained & {key.name for key, _ in found.filled}
        (tmp_path / f"{damage}.zerotools.json").unlink()


def test_names_and_shapes_of_another_model_do_not_stand_in(tmp_path: Path) -> None:
    path = copy(DEEPSPEED / "z2-bf16-w3" / "checkpoint", tmp_path)
    next(path.rglob("mp_rank_00_model_states.pt")).unlink()
    other = DEEPSPEED / "hf-trainer-z2-bf16-w2" / "checkpoint"
    with pytest.raises(BadFile, match="copy or download it again"):
        salvage(path, tmp_path / "left", other)


@pytest.fixture
def damaged_job(tmp_path: Path) -> Path:
    """A job's checkpoint without the file of its second rank."""
    path = copy(JOB, tmp_path)
    (path / "dcp" / "__1_0.distcp").unlink()
    return path


@pytest.mark.parametrize("lost", ["MANIFEST.json", "job.json", None])
def test_a_job_whose_record_is_lost_too(
    damaged_job: Path, lost: str | None, tmp_path: Path
) -> None:
    if lost is not None:
        (damaged_job / lost).write_text("{")
    found, weights = salvage(damaged_job, tmp_path / "left")
    assert not found.is_complete
    wanted = consolidated(JOB)
    assert weights.keys() < wanted.keys()
    assert all(is_equal(array, wanted[name]) for name, array in weights.items())
    filled, again = salvage(damaged_job, tmp_path / "filled", JOB)
    assert filled.is_complete
    assert {name for name in wanted if not is_equal(again[name], wanted[name])} == set()


def test_a_job_that_was_moved_without_its_manifest(damaged_job: Path, tmp_path: Path) -> None:
    (damaged_job / "MANIFEST.json").unlink()
    with pytest.raises(BadFile, match="the save was not finished"):
        formats.read(damaged_job)
    filled, again = salvage(damaged_job, tmp_path / "filled", JOB)
    assert filled.is_complete
    wanted = consolidated(JOB)
    assert all(is_equal(again[name], wanted[name]) for name in wanted)


@pytest.mark.torch
def test_from_pretrained_loads_what_was_filled_from_a_model(
    damaged_job: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    salvage(JOB, tmp_path / "base", dtype="fp32")
    found, _ = salvage(damaged_job, tmp_path / "filled", tmp_path / "base", dtype="fp32")
    assert found.is_complete
    assert any(found.filled)
    wanted, loaded = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict()
        for name in ("base", "filled")
    )
    assert loaded.keys() == wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in loaded.items())


@pytest.mark.parametrize("damage", ["cut short", "made to fill the memory"])
def test_a_damaged_config_is_not_copied(tmp_path: Path, damage: str) -> None:
    path = copy(JOB, tmp_path)
    config = path / "config.json"
    whole = config.read_bytes()
    config.write_bytes(
        whole[:30] if damage == "cut short" else b'{"a":[' + b"[]," * 2**20 + b"[]]}"
    )
    found, weights = salvage(path, tmp_path / "left")
    assert weights
    assert not (tmp_path / "left" / "config.json").exists()
    assert any("config.json is not copied: it is damaged" in note for note in found.notes)
    salvage(JOB, tmp_path / "base")
    salvage(path, tmp_path / "filled", tmp_path / "base")
    assert (tmp_path / "filled" / "config.json").exists()
