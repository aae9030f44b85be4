"""Golden checkpoints, laid out for other numbers of ranks and read again: the same bytes."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents, describe
from tests.golden_files import DEEPSPEED, GOLDEN
from tests.matrices import FULL
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats import read, training_of
from zerotools.formats.deepspeed.partitioning.kept_for_writer import native_of
from zerotools.formats.deepspeed.writing.lay_out_resharded import lay_out
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tree_tensors import as_tensor

REFUSED = ("universal", "pipeline", "tensor-parallel", "experts", "autoep", "z0-")
CASES = sorted(
    path.parent
    for path in DEEPSPEED.glob("*/truth.json")
    if not path.parent.name.startswith(REFUSED) and "elastic" not in path.parent.name
)
RANKS = range(1, 6) if FULL else (1, 3, 5)


def ranks_of(case: Path) -> Sequence[int]:
    """Numbers of ranks for which a case is laid out: one of `RANKS`, and all in the full matrix.

    That padding and cuts are right at any number is also a property test of the layout.
    """
    return RANKS if FULL else (RANKS[CASES.index(case) % len(RANKS)],)


def named(path: Path) -> str:
    return path.name


def reshard(source: Checkpoint, out: Path, ranks: int) -> Checkpoint:
    return read(write(source, lay_out(source, out, world_size=ranks)))


@pytest.mark.parametrize("case", CASES, ids=named)
def test_every_tensor_arrives_at_any_number_of_ranks(case: Path, tmp_path: Path) -> None:
    source = read(case / "checkpoint")
    for ranks in ranks_of(case):
        found = reshard(source, tmp_path / str(ranks), ranks)
        assert contents(found) == contents(source)
        assert found.origin.world_size == ranks
        assert found.aliases == source.aliases
        assert not found.problems
        ours, theirs = training_of(found), training_of(source)
        assert (ours.lr_scheduler, ours.samples) == (theirs.lr_scheduler, theirs.samples)
    assert_checksums(tmp_path)


def assert_checksums(directory: Path) -> None:
    """Every record of the files of states in `directory` has the right checksum."""
    files = list(directory.rglob("*_states.pt"))
    assert files
    for file in files:
        with zipfile.ZipFile(file) as archive:
            assert archive.testzip() is None, file


@pytest.mark.parametrize("case", CASES, ids=named)
def test_there_and_back_is_what_deepspeed_wrote(case: Path, tmp_path: Path) -> None:
    """Every partition, number and list of the files at N is DeepSpeed's own, padding included."""
    source = read(case / "checkpoint")
    ranks = source.origin.world_size or 1
    there = reshard(source, tmp_path / "there", ranks + 1)
    back = reshard(there, tmp_path / "back", ranks)
    for file in source.files:
        if not case.name.endswith(("leftovers", "nvme")):  # swap files become ordinary ones
            assert described(back, file) == described(source, file), file


def described(checkpoint: Checkpoint, name: str) -> Any:
    file = TorchFile.open(checkpoint.root, name)
    if is_round_robin(file.tree):
        # DeepSpeed's own are of the order without round robin; ours are of the real one.
        file.tree.get("optimizer_state_dict", {}).pop("param_slice_mappings", None)
    without_padding(file.tree)
    return describe(file)


def without_padding(tree: Any) -> None:
    """Stage 3 saves uninitialised memory as padding of its masters: their shapes are compared."""
    state = tree.get("optimizer_state_dict", {})
    if "fp32_flat_groups" in state:
        state["fp32_flat_groups"] = [as_tensor(value).shape for value in state["fp32_flat_groups"]]
    fragments = tree.get("frozen_param_fragments")
    if fragments and tree["ds_config"]["zero_optimization"]["stage"] == 3:
        tree["frozen_param_fragments"] = {name: part.shape for name, part in fragments.items()}


def is_round_robin(tree: Any) -> bool:
    zero = tree.get("ds_config", {}).get("zero_optimization", {})
    return bool(zero.get("round_robin_gradients"))


def test_a_sub_group_that_is_split_counts_its_steps_apart(tmp_path: Path) -> None:
    """One tensor for two parts would be counted up twice at every step."""
    source = read(DEEPSPEED / "z3-fp32-w2-sub-groups" / "checkpoint")
    joined = reshard(source, tmp_path / "five", 5)
    split = reshard(joined, tmp_path / "one", 1)
    assert [len(step_storages(each)) for each in (source, joined, split)] == [4, 3, 4]
    assert len(set(step_storages(split))) == 4


def step_storages(checkpoint: Checkpoint) -> list[str]:
    file = next(file for file in checkpoint.files if "rank_0_mp_rank_00_optim" in file)
    tree = TorchFile.open(checkpoint.root, file).tree
    states = tree["optimizer_state_dict"]["optimizer_state_dict"]["state"].values()
    return [state["step"].storage.key for state in states]


@pytest.mark.parametrize("limit", [1, 47, 10**9])
def test_sub_groups_that_the_configuration_does_not_explain_are_refused(
    tmp_path: Path, limit: int
) -> None:
    source = read(DEEPSPEED / "z3-fp32-w2-sub-groups" / "checkpoint")
    column = source.native.mp_shards[0]
    column.model.fields.tree["ds_config"]["zero_optimization"]["sub_group_size"] = limit
    with pytest.raises(Unsupported, match=f"sub_group_size = {limit}, but the sub-groups"):
        lay_out(source, tmp_path / "out", world_size=3)


def test_shards_over_a_part_of_the_ranks_are_refused(tmp_path: Path) -> None:
    source = read(DEEPSPEED / "z3-fp32-w2" / "checkpoint")
    source.native.mp_shards[0].model.fields.tree["dp_world_size"] = 4
    with pytest.raises(Unsupported, match="its optimizer files are from a run of 2"):
        lay_out(source, tmp_path / "out", world_size=3)


def test_what_lies_around_the_tag_comes_along(tmp_path: Path) -> None:
    saved = DEEPSPEED / "hf-trainer-z2-bf16-w2" / "checkpoint" / "checkpoint-2"
    target = lay_out(read(saved), tmp_path / "out", world_size=3)
    out = write(read(saved), target)
    kept = {"latest", "trainer_state.json", "config.json", "scheduler.pt", "model.safetensors"}
    assert kept <= {path.name for path in out.iterdir()}
    for name in kept:
        assert (out / name).read_bytes() == (saved / name).read_bytes()
    assert not list(out.glob("rng_state_*.pth"))
    assert "rng_state_0.pth, rng_state_1.pth hold the random number state" in target.notes[0]


def test_latest_names_the_tag_that_was_taken(tmp_path: Path) -> None:
    source = read(DEEPSPEED / "z2-bf16-w2-tags" / "checkpoint", tag="global_step1")
    out = write(source, lay_out(source, tmp_path / "out", world_size=3))
    assert (out / "latest").read_text() == "global_step1"
    assert sorted(path.name for path in out.glob("[!.]*")) == ["global_step1", "latest"]


def test_a_tag_directory_alone_takes_nothing_of_its_neighbours(tmp_path: Path) -> None:
    tag = tmp_path / "moved"
    shutil.copytree(DEEPSPEED / "z2-fp32-w2" / "checkpoint" / "global_step2", tag)
    (tmp_path / "unrelated.txt").write_text("x")
    source = read(tag)
    out = write(source, lay_out(source, tmp_path / "out", world_size=1))
    assert sorted(path.name for path in out.glob("[!.]*")) == ["latest", "moved"]


def test_mics_is_laid_out_over_all_ranks(tmp_path: Path) -> None:
    source = read(GOLDEN / "deepspeed-0.18.9" / "mics-z3-bf16-w4" / "checkpoint")
    target = lay_out(source, tmp_path / "out", world_size=4)
    assert any("leave mics_shard_size out" in note for note in target.notes)
    found = read(write(source, target))
    assert found.origin.world_size == 4
    assert contents(found) == contents(source)
    assert "mics_shard_size" not in (training_of(found).ds_config or {})["zero_optimization"]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (1, "1 x 4 x 1 ranks ="),
        (2, "1 x 2 x 2 ranks ="),
        (3, "with 3 ranks it cannot stay the same"),
    ],
)
def test_the_batch_that_stays_the_same(ranks: int, said: str, tmp_path: Path) -> None:
    source = read(DEEPSPEED / "z3-bf16-w4" / "checkpoint")
    notes = lay_out(source, tmp_path / "out", world_size=ranks).notes
    assert any(said in note for note in notes)


def test_what_cannot_be_laid_out_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="is of stage 0: each rank has everything, and"):
        lay_out(read(DEEPSPEED / "z0-bf16-w2" / "checkpoint"), tmp_path / "out", world_size=3)
    source = read(DEEPSPEED / "z0-fp16-w1" / "checkpoint")
    shards = native_of(source).mp_shards
    shards.append(shards[0])
    with pytest.raises(Unsupported, match=r"2 model-parallel ranks .*has numbers.*--weights-only"):
        lay_out(source, tmp_path / "out", world_size=2)
    with pytest.raises(Unsupported, match="pass --stage 1"):  # the state is in the model file, too
        lay_out(
            read(DEEPSPEED / "pipeline-z0-bf16-w2" / "checkpoint"), tmp_path / "out", world_size=4
        )
    with pytest.raises(BadRequest, match=r"--world-size is 0, .* at least 1 rank"):
        lay_out(read(DEEPSPEED / "z2-fp32-w2" / "checkpoint"), tmp_path / "out", world_size=0)
