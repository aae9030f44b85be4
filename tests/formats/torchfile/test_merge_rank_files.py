"""One file per rank: DTensors and ShardedTensors, put together from what the pickles say."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.formats.elements import assert_true, elements
from tests.formats.torchfile.saving import Saved, mesh_of, replicate, shard, strided
from tests.golden_files import TORCH
from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Key, Opaque
from zerotools.core.errors import BadFile, BadRequest, Unsupported, ZerotoolsError
from zerotools.ops.inspection.inspect import inspect

VERL, FSDP1 = TORCH / "fsdp2-verl-w3", TORCH / "fsdp1-sharded-bin-w2"
W = np.arange(7 * 4, dtype=np.float32).reshape(7, 4)
Make = Callable[[Saved, int], Any]


def ranks(
    root: Path, count: int, make: Make, name: str = "model_world_size_{w}_rank_{r}.pt"
) -> Path:
    """One file per rank with what `make(file, rank)` gives."""
    root.mkdir(exist_ok=True)
    for rank in range(count):
        made = Saved()
        made.write(root / name.format(w=count, r=rank), make(made, rank))
    return root


@pytest.mark.parametrize("case", [VERL, FSDP1], ids=lambda case: case.name)
def test_goldens(case: Path) -> None:
    checkpoint = formats.read(case / "checkpoint")
    assert_true(checkpoint, case / "truth.safetensors")
    assert inspect(checkpoint).problems == ()
    assert checkpoint.origin.world_size == int(case.name[-1])


def test_any_rank_s_file_means_all_of_them() -> None:
    found = formats.read(VERL / "checkpoint" / "model_world_size_3_rank_1.pt")
    assert_true(found, VERL / "truth.safetensors")


def test_the_model_and_tokenizer_that_verl_keeps_beside_are_companions(tmp_path: Path) -> None:
    copy = tmp_path / "actor"
    shutil.copytree(VERL / "checkpoint", copy)
    (copy / "huggingface").mkdir()
    (copy / "huggingface" / "config.json").write_text("{}")
    assert set(formats.read(copy).model_sidecars) == {"config.json"}


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_missing_rank_is_a_problem_and_a_hole(tmp_path: Path, lost: int) -> None:
    copy = tmp_path / "c"
    shutil.copytree(VERL / "checkpoint", copy)
    (copy / f"model_world_size_3_rank_{lost}.pt").unlink()
    found = inspect(formats.read(copy))
    said = [problem.message for problem in found.problems]
    assert f"model_world_size_3_rank_{lost}.pt is missing; the run had 3 ranks" in said[0]
    assert any("embed.weight is incomplete" in message for message in said)


def test_of_a_million_missing_ranks_a_thousand_are_named(tmp_path: Path) -> None:
    def make(file: Saved, rank: int) -> Any:
        return {"w": file.sharded(W, [0, 0], W.shape, rank, 2**31 - 1)}

    said = formats.read(ranks(tmp_path / "c", 1, make, "pytorch_model_rank{r}.bin")).problems
    assert len(said) == 1001
    assert "lacks the files of 2147483646 of 2147483647 ranks" in said[-1].message


def test_a_file_under_another_rank_s_name(tmp_path: Path) -> None:
    copy = tmp_path / "c"
    shutil.copytree(VERL / "checkpoint", copy)
    shutil.copy(copy / "model_world_size_3_rank_0.pt", copy / "model_world_size_3_rank_1.pt")
    said = [problem.message for problem in inspect(formats.read(copy)).problems]
    assert "model_world_size_3_rank_1.pt was saved by rank 0, according to its tensors" in said[0]
    assert any("is incomplete" in message for message in said)


def test_leftovers_of_another_run(tmp_path: Path) -> None:
    copy = tmp_path / "c"
    shutil.copytree(VERL / "checkpoint", copy)
    shutil.copy(copy / "model_world_size_3_rank_0.pt", copy / "model_world_size_2_rank_0.pt")
    assert formats.read(copy).origin.world_size == 3  # fsdp_config.json says it
    (copy / "fsdp_config.json").unlink()
    with pytest.raises(BadRequest, match=r"several models: .*size_2_rank_0\.pt, .*size_3_rank_0"):
        formats.read(copy)


def _dtensor(
    values: Any, placements: Sequence[Opaque], sizes: tuple[int, ...], cut: Callable[..., Any]
) -> Make:
    def make(file: Saved, rank: int) -> Any:
        place = tuple(int(p) for p in np.unravel_index(rank, sizes))
        mesh = mesh_of(sizes, place, rank)
        return {"w": file.dtensor(cut(*place), values.shape, placements, mesh)}

    return make


def _piece(values: Any, parts: int, index: int, axis: int) -> Any:
    """What torch.chunk gives: ceil(n / parts) each, until none are left."""
    width = -(-values.shape[axis] // parts)
    return values.take(range(width * index, min(width * (index + 1), values.shape[axis])), axis)


LAYOUTS: dict[str, tuple[Sequence[Opaque], tuple[int, ...], Callable[..., Any]]] = {
    "one dimension": ([shard(0)], (3,), lambda i: _piece(W, 3, i, 0)),
    "more ranks than rows": ([shard(0)], (9,), lambda i: _piece(W, 9, i, 0)),
    "along columns": ([shard(-1)], (3,), lambda i: _piece(W, 3, i, 1)),
    "replicas": ([replicate()], (2,), lambda i: W),
    "hybrid": ([replicate(), shard(0)], (2, 3), lambda _, i: _piece(W, 3, i, 0)),
    "both dimensions": (
        [shard(0), shard(1)], (2, 2), lambda i, j: _piece(_piece(W, 2, i, 0), 2, j, 1)
    ),
    "one dimension twice": (
        [shard(0), shard(0)], (2, 2), lambda i, j: _piece(_piece(W, 2, i, 0), 2, j, 0)
    ),
    "after another dimension of the mesh": (
        [strided(0, 3), shard(0)], (2, 3), lambda i, j: _piece(_piece(W, 3, j, 0), 2, i, 0)
    ),
    "after the last of three": (
        [strided(0, 2), strided(0, 2), shard(0)], (2, 3, 2),
        lambda i, j, k: _piece(_piece(_piece(W, 2, k, 0), 2, i, 0), 3, j, 0)
    ),
    "a mesh dimension of one rank": ([shard(0), shard(1)], (1, 2), lambda _, j: _piece(W, 2, j, 1)),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_meshes_and_placements(tmp_path: Path, layout: str) -> None:
    placements, sizes, cut = LAYOUTS[layout]
    count = int(np.prod(sizes))
    found = formats.read(ranks(tmp_path / "c", count, _dtensor(W, placements, sizes, cut)))
    assert elements(found, Key("w", "param")).tolist() == W.tolist()
    assert inspect(found).problems == ()
    assert found.origin.world_size == count


def test_a_mesh_as_torch_saved_it_before_2_9(tmp_path: Path) -> None:
    def make(file: Saved, rank: int) -> Any:
        mesh = {
            "mesh": file.tensor(np.arange(2, dtype=np.int32)),
            "_flatten_mesh_list": (0, 1),
            "_coordinate_on_dim": [rank],
        }
        return {"w": file.dtensor(_piece(W, 2, rank, 0), W.shape, [shard(0)], mesh)}

    found = formats.read(ranks(tmp_path / "c", 2, make))
    assert elements(found, Key("w", "param")).tolist() == W.tolist()


def test_tied_weights_are_one(tmp_path: Path) -> None:
    def make(file: Saved, rank: int) -> Any:
        tied = file.dtensor(
            _piece(W, 2, rank, 0), W.shape, [shard(0)], mesh_of((2,), (rank,), rank)
        )
        return {"a": tied, "b": tied}

    found = formats.read(ranks(tmp_path / "c", 2, make))
    assert (list(found.tensors), found.aliases) == ([Key("a", "param")], {"b": "a"})


def test_whole_tensors_beside_sharded_ones_are_copies_of_one(tmp_path: Path) -> None:
    def make(file: Saved, rank: int) -> Any:
        sharded = file.sharded(W[3 * rank : 3 + 4 * rank], [3 * rank, 0], W.shape, rank, 2)
        return {"w": sharded, "seen": file.tensor(np.array([1, 2, 3]))}

    found = formats.read(ranks(tmp_path / "c", 2, make, "pytorch_model_fsdp_0_rank{r}.bin"))
    assert elements(found, Key("w", "param")).tolist() == W.tolist()
    assert [chunk.box.shape for chunk in found.tensors[Key("seen", "param")].chunks] == [(3,), (3,)]
    assert elements(found, Key("seen", "param")).tolist() == [1, 2, 3]


def test_the_number_of_ranks_is_in_the_pickle_where_the_name_lacks_it(tmp_path: Path) -> None:
    def make(file: Saved, rank: int) -> Any:
        return {"w": file.sharded(W[rank : rank + 1], [rank, 0], W.shape, rank, 7)}

    root = ranks(tmp_path / "c", 7, make, "pytorch_model_rank{r}.bin")
    assert inspect(formats.read(root)).problems == ()
    (root / "pytorch_model_rank6.bin").unlink()
    said = [problem.message for problem in inspect(formats.read(root)).problems]
    assert "pytorch_model_rank6.bin is missing; the run had 7 ranks" in said[0]


def test_files_of_an_earlier_run_of_more_ranks_are_left_aside(tmp_path: Path) -> None:
    def make(count: int) -> Make:
        def one(file: Saved, rank: int) -> Any:
            begin = -(-7 // count) * rank
            values = (W + count)[begin : begin + -(-7 // count)]
            return {"w": file.sharded(values, [begin, 0], W.shape, rank, count)}

        return one

    root = ranks(tmp_path / "c", 4, make(4), "pytorch_model_rank{r}.bin")
    ranks(root, 2, make(2), "pytorch_model_rank{r}.bin")
    found = formats.read(root)
    assert elements(found, Key("w", "param")).tolist() == (W + 2).tolist()
    said = [problem.message for problem in inspect(found).problems]
    assert len(said) == 2
    assert "pytorch_model_rank2.bin belongs to a run of more than 2 ranks" in said[0]


def _one(placement: Opaque, values: Any = W, **mesh: Any) -> Make:
    def make(file: Saved, rank: int) -> Any:
        made = mesh_of((2,), (rank,), rank) | mesh
        return {"w": file.dtensor(values, W.shape, [placement], made)}

    return make


def _flat(file: Saved, rank: int) -> Any:
    flat = file.sharded(np.zeros(8, np.float32), [8 * rank], (16,), rank, 2)
    return {"layer._flat_param": flat, "layer.w": file.tensor(W)}


def _disagreeing(file: Saved, rank: int) -> Any:
    shape = (7 + rank, 4)
    return {"w": file.sharded(W[:2], [0, 0], shape, rank, 2)}


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (
            _one(strided(0, 3)),
            Unsupported,
            "placement _StridedShard with split factor 3.*save with DCP",
        ),
        (_one(shard(0, "_StridedShard")), BadFile, "has the split factor None"),
        (
            _one(Opaque("p", "Partial")),
            Unsupported,
            ("placement Partial: its ranks hold partial sums"),
        ),
        (_one(shard(2)), BadFile, "is split along dimension 2"),
        (_one(shard(0)), BadFile, r"local tensor of shape \(7, 4\), but its mesh \(2,\) gives"),
        (_one(replicate(), _coordinate_on_dim=(5,)), BadFile, "has coordinate 5"),
        (_one(replicate(), _coordinate_on_dim=None), BadFile, "outside of its mesh"),
        (_one(replicate(), _coordinate_on_dim=(0, 0)), BadFile, "1 placements, 2 coordinates"),
        (lambda file, _: {"w": file.tensor(W)}, Unsupported, "each rank has a copy or a part"),
        (_flat, Unsupported, "flat parameters .LOCAL_STATE_DICT.*SHARDED_STATE_DICT"),
        (_disagreeing, BadFile, r"as float32 of shape \(7, 4\), ShardedTensor, but .*\(8, 4\)"),
        (
            lambda file, r: {"w": file.sharded(W, [5, 0], W.shape, r, 2)},
            BadFile,
            "is outside its tensor",
        ),
    ],
)
def test_what_cannot_be_placed(
    tmp_path: Path, make: Make, error: type[ZerotoolsError], said: str
) -> None:
    with pytest.raises(error, match=said):
        formats.read(ranks(tmp_path / "c", 2, make))


def test_one_plain_file_of_several_is_read_alone(tmp_path: Path) -> None:
    root = ranks(tmp_path / "c", 2, lambda file, rank: {"w": file.tensor(W + rank)})
    found: Checkpoint = formats.read(root / "model_world_size_2_rank_1.pt")
    assert elements(found, Key("w", "param")).tolist() == (W + 1).tolist()


def test_a_file_of_another_step_is_a_problem(tmp_path: Path) -> None:
    def make(file: Saved, rank: int) -> Any:
        mesh = mesh_of((3,), (rank,), rank)
        piece = file.dtensor(_piece(W, 3, rank, 0), W.shape, [shard(0)], mesh)
        step = file.tensor(np.array(1 if rank == 1 else 2, dtype=np.float32))
        optimizer = {"state": {"w": {"step": step}}, "param_groups": [{"params": ["w"]}]}
        return {"model": {"w": piece}, "optimizer": optimizer}

    (problem,) = formats.read(ranks(tmp_path / "c", 3, make)).problems
    assert "rank_1.pt is from step 1, but other files are from step 2" in problem.message
    assert problem.prevents_output


def test_a_file_of_other_names_is_a_problem(tmp_path: Path) -> None:
    """Where a rank has nothing of a tensor, no hole tells that its file does not know it."""

    def make(count: int, stale: dict[int, tuple[str, ...]]) -> Make:
        def made(saved: Saved, rank: int) -> Any:
            found = {}
            for name in stale.get(rank, ("w", "small")):
                values = W if name == "w" else W[:1]
                piece = partial(_piece, values, count, axis=0)
                found |= {name: _dtensor(values, [shard(0)], (count,), piece)(saved, rank)["w"]}
            return found

        return made

    assert not formats.read(ranks(tmp_path / "sound", 3, make(3, {}))).problems
    for number, names in enumerate([("w",), ("w", "small", "old")]):
        found = formats.read(ranks(tmp_path / f"stale{number}", 3, make(3, {2: names})))
        (problem,) = found.problems
        assert (problem.file, problem.prevents_output) == ("model_world_size_3_rank_2.pt", True)
        said = "lacks 1 tensors (small)" if not number else "alone has 1 tensors (old)"
        assert said in problem.message
    pipeline = make(4, {0: ("w",), 1: ("w",), 2: ("small",), 3: ("small",)})
    assert not formats.read(ranks(tmp_path / "stages", 4, pipeline)).problems
