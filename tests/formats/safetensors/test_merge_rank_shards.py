"""One safetensors file per rank: torch's HuggingFaceStorageWriter, transformers, NeMo."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zerotools
from tests.formats.elements import assert_true, elements
from tests.formats.safetensors.files import entry, file_bytes
from tests.golden_files import TORCH
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, BadRequest
from zerotools.ops.inspection.inspect import inspect
from zerotools.ops.inspection.next_commands import next_commands

CASE = TORCH / "fsdp2-hf-sharded-w2"
NAMES = {np.dtype("float32"): "F32", np.dtype("int64"): "I64", np.dtype("bool"): "BOOL"}
W = np.arange(7 * 4, dtype=np.float32).reshape(7, 4)
Blocks = dict[str, tuple[list[int], Any]]


def write_shard(root: Path, number: int, blocks: Blocks, part: str = "00001-of-00001") -> Path:
    """The file of rank `number - 1`: each tensor with the place where it begins."""
    header: dict[str, Any] = {}
    data = b""
    for name, (_, values) in blocks.items():
        array = np.asarray(values)
        end = len(data) + array.nbytes
        header[name] = entry(NAMES[array.dtype], list(array.shape), len(data), end)
        data += array.tobytes()
    info = {name: {"saved_offsets": start} for name, (start, _) in blocks.items()}
    header["__metadata__"] = {"format": "pt", "DCP_SHARDING_INFO": json.dumps(info)}
    path = root / f"shard-{number:05d}-model-{part}.safetensors"
    path.write_bytes(file_bytes(header, data))
    return path


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A tensor of 7 rows over three ranks, and what only one rank has."""
    write_shard(tmp_path, 1, {"embed_tokens.weight": ([0, 0], W[:3]), "n": ([], np.array(9))})
    write_shard(tmp_path, 2, {"embed_tokens.weight": ([3, 0], W[3:6])})
    mask = np.array([True, False])
    write_shard(tmp_path, 3, {"embed_tokens.weight": ([6, 0], W[6:]), "mask": ([0], mask)})
    return tmp_path


def said(path: Path) -> list[str]:
    return [problem.message for problem in inspect(formats.read(path)).problems]


def test_a_golden() -> None:
    checkpoint = formats.read(CASE / "checkpoint")
    assert_true(checkpoint, CASE / "truth.safetensors")
    assert checkpoint.origin.world_size == 2
    assert inspect(checkpoint).problems == ()


def test_blocks_numbers_and_flags_are_put_together(three: Path) -> None:
    found = formats.read(three)
    assert elements(found, Key("embed_tokens.weight", "param")).tolist() == W.tolist()
    assert elements(found, Key("n", "param")).tolist() == 9
    assert elements(found, Key("mask", "param")).tolist() == [True, False]
    assert found.origin.notes[0] == "3 shards, according to the file names"
    assert (
        "do not store shapes: zerotools computes them from the ends of the last blocks, so it "
        "cannot detect"
    ) in found.origin.notes[1]
    assert said(three) == []


def test_a_shard_that_is_missing_from_the_middle(three: Path) -> None:
    (three / "shard-00002-model-00001-of-00001.safetensors").unlink()
    missing, hole = said(three)
    assert "shard-00002-model-00001-of-00001.safetensors is missing" in missing
    assert "12 of 28 elements are in no file, the first of them in [3:6, 0:4]" in hole


def test_a_missing_last_shard_is_known_from_what_lies_beside(three: Path) -> None:
    (three / "shard-00003-model-00001-of-00001.safetensors").unlink()
    assert said(three) == []
    (three / "config.json").write_text(json.dumps({"vocab_size": 7}))
    (problem,) = said(three)
    assert "ends at row 6, but should have 7 rows according to config.json" in problem
    (three / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 7}}))
    assert len(said(three)) == 1
    (three / "config.json").write_text(json.dumps({"vocab_size": 5}))
    assert said(three) == []
    (three / ".hf_metadata").mkdir()
    mapping = three / ".hf_metadata" / "fqn_to_file_index_mapping.json"
    mapping.write_text(json.dumps({"embed_tokens.weight": 1, "n": 1, "mask": 1}))
    (problem,) = said(three)
    assert "fqn_to_file_index_mapping.json lists mask, which no shard holds" in problem


def test_an_index_that_was_kept_says_how_large_the_model_is(three: Path) -> None:
    index = three / "model.safetensors.index.json"
    where = dict.fromkeys(("embed_tokens.weight", "n", "mask"), "model-00001-of-00001.safetensors")
    tree = {"metadata": {"total_size": 28 * 4 + 8 + 2}, "weight_map": where}
    index.write_text(json.dumps(tree))
    assert said(three) == []
    (three / "shard-00003-model-00001-of-00001.safetensors").unlink()
    listed, total = said(three)
    assert "lists mask, which no shard holds" in listed
    assert "gives 122 bytes of weights, but the shards hold 104" in total
    index.write_text(json.dumps({"metadata": {"total_parameters": 31}, "weight_map": {"n": "x"}}))
    assert "counts 31 elements, but the shards hold 25" in said(three)[0]


def test_what_was_consolidated_beside_them_is_taken_whole(three: Path) -> None:
    header = {"w": entry("F32", [7, 4], 0, 112)}
    (three / "model.safetensors").write_bytes(file_bytes(header, W.tobytes()))
    found = formats.read(three)
    assert list(found.tensors) == [Key("w", "param")]


def test_several_model_files_per_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_shard(tmp_path, rank + 1, {"a": ([4 * rank], W[0])}, "00001-of-00003")
        write_shard(tmp_path, rank + 1, {"b": ([4 * rank], W[1])}, "00003-of-00003")
    found = formats.read(tmp_path)
    assert elements(found, Key("b", "param")).tolist() == [*W[1], *W[1]]
    assert found.origin.world_size == 2
    (problem,) = said(tmp_path)
    assert "has no shard of model file 2 of 3" in problem


def test_the_config_in_nemo_s_folder_is_a_companion(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(CASE / "checkpoint", tmp_path / "epoch_0" / "model"))
    (copy / ".hf_metadata").mkdir()
    (copy / ".hf_metadata" / "config.json").write_text("{}")
    found = formats.read(copy.parent)
    assert set(found.model_sidecars) == {"config.json"}


def test_one_rank_s_file_alone(three: Path) -> None:
    with pytest.raises(BadRequest, match="one rank's part of a model; pass its directory"):
        formats.read(three / "shard-00001-model-00001-of-00001.safetensors")


@pytest.mark.parametrize("other", [np.zeros((3, 4), np.int64), np.zeros(4, np.float32)])
def test_files_that_disagree(three: Path, other: Any) -> None:
    write_shard(three, 2, {"embed_tokens.weight": ([3, 0][: other.ndim], other)})
    with pytest.raises(BadFile, match=r"has embed_tokens\.weight as float32 of 2 dimensions, but"):
        formats.read(three)


def test_blocks_that_overlap(three: Path) -> None:
    write_shard(three, 2, {"embed_tokens.weight": ([2, 0], W[2:6])})
    assert "overlaps" in said(three)[0]


def test_a_block_at_the_end_of_the_world_is_a_hole(three: Path) -> None:
    write_shard(three, 2, {"embed_tokens.weight": ([2**62, 0], W[3:6])})
    assert "embed_tokens.weight is incomplete" in said(three)[0]


LOST_W = np.arange(13 * 2, dtype=np.float32).reshape(13, 2)
V = np.arange(6, dtype=np.float32)
FIRST, SECOND = "00001-of-00002", "00002-of-00002"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """13 and 6 rows over three ranks, in two files of the model; `norm` is whole on every rank."""
    root = tmp_path / "run"
    root.mkdir()
    for rank in range(3):
        write_shard(root, rank + 1, {"w": ([5 * rank, 0], LOST_W[5 * rank :][:5])}, FIRST)
        pieces = {"v": ([2 * rank], V[2 * rank :][:2])}
        write_shard(root, rank + 1, pieces | ({"norm": ([0], V)} if rank == 1 else {}), SECOND)
    return root


def _lose(root: Path, shard: int, part: str) -> str:
    name = f"shard-{shard:05d}-model-{part}.safetensors"
    (root / name).unlink()
    return name


def test_all_files_are_there(saved: Path) -> None:
    found = formats.read(saved)
    assert inspect(found).problems == ()
    assert found.tensors[Key("w", "param")].shape == (13, 2)


@pytest.mark.parametrize(("part", "name"), [(FIRST, "w"), (SECOND, "v")])
def test_the_last_file_of_one_part(saved: Path, tmp_path: Path, part: str, name: str) -> None:
    lost = _lose(saved, 3, part)
    found = formats.read(saved)
    assert Key(name, "param") not in found.tensors
    first, second = found.problems
    assert first.message.endswith(f"{lost} is missing; other files of the model have 3 shards: "
                                  "copy or download the model again")  # fmt: skip
    assert (second.file, second.tensor, second.prevents_output) == (lost, name, True)
    with pytest.raises(BadFile, match=f"{lost} is missing"):
        zerotools.consolidate(saved, tmp_path / "out")
    (command,) = next_commands(inspect(found), saved)
    assert command.startswith("zerotools salvage ")
    done = zerotools.salvage(saved, tmp_path / "rest")
    assert name not in zerotools.open(done.destination)


def test_a_file_in_the_middle_leaves_a_hole_and_is_named(saved: Path) -> None:
    lost = _lose(saved, 2, SECOND)
    found = inspect(formats.read(saved))
    assert (found.missing, found.incomplete) == ((lost,), (Key("v", "param"),))


def test_a_file_that_may_never_have_been(tmp_path: Path) -> None:
    """What every rank has whole, one rank alone writes."""
    for rank in range(3):
        write_shard(tmp_path, rank + 1, {"w": ([5 * rank, 0], LOST_W[5 * rank :][:5])}, FIRST)
    write_shard(tmp_path, 2, {"norm": ([0], V)}, SECOND)
    found = formats.read(tmp_path)
    assert inspect(found).problems == ()
    (doubt,) = formats.format_of(found).doubts(found).values()
    assert "shard-00001-model-00002-of-00002.safetensors does not exist" in doubt


def test_replicas_of_a_smaller_mesh_are_no_loss(tmp_path: Path) -> None:
    """2 ranks have the pieces, and 2 the same ones, of which one is written."""
    for rank in range(4):
        place = 7 * (rank % 2)
        name, part = ("w", FIRST) if rank < 2 else ("x", SECOND)
        write_shard(tmp_path, rank + 1, {name: ([place, 0], LOST_W[place:][:7])}, part)
    assert inspect(formats.read(tmp_path)).problems == ()
