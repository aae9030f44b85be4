"""What is in several files and read from one is compared under --verify."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.formats.deepspeed.damaging import copied, problems_of
from tests.formats.deepspeed.reading.test_check_same_save import poke, refolded
from tests.golden_files import DEEPSPEED
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats import read
from zerotools.formats.deepspeed.reading.compare_copies import compare_copies
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tree_tensors import as_tensor
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget


def export(tag: Path, out: Path, *, verify: bool) -> None:
    conversion = consolidate.prepare_export(tag, out, consolidate.Options())
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=verify)


def refused(tag: Path, tmp_path: Path, why: str) -> None:
    export(tag, tmp_path / "plain", verify=False)
    with pytest.raises(BadFile, match=why):
        export(tag, tmp_path / "out", verify=True)
    assert not (tmp_path / "out").exists()


def test_golden_checkpoints_agree() -> None:
    sizes = {
        case: compare_copies(read(DEEPSPEED / case / "checkpoint"))
        for case in ("z3-bf16-w4", "pipeline-z1-fp32-w4", "z2-bf16-w2")
    }
    # Three other ranks' 43 bytes of buffers; 88 masters, twice as many moments, and the step; and
    # of two groups the steps of the other ranks (two stages have one other rank each).
    assert sizes == {
        "z3-bf16-w4": 3 * 43 + 3 * 2 * 4,
        "pipeline-z1-fp32-w4": 3 * 88 * 4 + 4 + 2 * 4,
        "z2-bf16-w2": 2 * 4,
    }


def test_buffers_of_another_rank(tmp_path: Path) -> None:
    tag = copied("z3-bf16-w4", tmp_path)
    path = tag / "zero_pp_rank_2_mp_rank_00_model_states.pt"
    file = TorchFile.open(tag, path.name)
    stored = as_tensor(file.tree["module"][file.tree["buffer_names"][0]])
    assert stored is not None
    raw = bytearray(path.read_bytes())
    raw[file.first_byte(stored)] ^= 1
    path.write_bytes(raw)
    refused(tag, tmp_path, r"zero_pp_rank_2_mp_rank_00_model_states\.pt: seen \(buffer\) differs")


def test_a_tied_layer_of_another_stage(tmp_path: Path) -> None:
    tag = copied("pipeline-z1-fp32-w4", tmp_path)
    path, value = tag / "zero_pp_rank_0_mp_rank_01_optim_states.pt", b"\0\0\xc8\x42"
    poke(path, "single_partition_of_fp32_groups", value)
    with pytest.raises(Unsupported, match=r"tied_modules\.embed\.weight is not equal to"):
        export(tag, tmp_path / "out", verify=True)
    poke(tag / "layer_04-model_states.pt", "weight", value)
    refused(tag, tmp_path, r"tied_modules\.embed\.weight differs from its copy")


def test_the_model_file_of_another_rank(tmp_path: Path) -> None:
    """At stage 3 nothing is read of it where nothing is frozen; the run's state may be in it."""
    tag = copied("z3-bf16-w4-tiny-group", tmp_path)
    one, other = (tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in (1, 2))
    one.write_bytes(other.read_bytes())
    refused(tag, tmp_path, "was saved as zero_pp_rank_2_.*it belongs to another rank")


def test_a_shard_twice_whose_archive_has_no_name_of_a_rank(tmp_path: Path) -> None:
    """As torch names it where it writes to an open file."""
    tag = copied("z3-bf16-w2", tmp_path)
    first, second = sorted(tag.glob("*optim_states.pt"))
    refolded(first, b"archive")
    second.write_bytes(first.read_bytes())
    assert any(f"has the same contents as {first.name}" in said for said in problems_of(tag))


@pytest.mark.parametrize("pattern", ["*optim_states.pt", "*model_states.pt"])
def test_a_file_twice_of_before_torch_1_6(tmp_path: Path, pattern: str) -> None:
    """It has no name and no checksums, and model files have partitions of frozen weights too."""
    tag = copied("z3-bf16-w2-legacy", tmp_path)
    assert problems_of(tag) == []
    first, second = sorted(tag.glob(pattern))
    second.write_bytes(first.read_bytes())
    assert any(f"has the same contents as {first.name}" in said for said in problems_of(tag))


def test_ranks_that_hold_equal_values_are_not_damage(tmp_path: Path) -> None:
    """Such as those of weights that all began as ones; the archive says whose it is."""
    tag = copied("z3-bf16-w2", tmp_path)
    first, second = sorted(tag.glob("*optim_states.pt"))
    second.write_bytes(first.read_bytes())
    refolded(second, second.stem.encode())
    assert problems_of(tag) == []


def test_a_tag_without_model_files_is_not_the_model_beside_it(tmp_path: Path) -> None:
    tag = copied("hf-trainer-z2-bf16-w2", tmp_path)  # checkpoint-2, with a model.safetensors
    (tag / "global_step2" / "mp_rank_00_model_states.pt").unlink()
    assert "its *_model_states.pt are missing" in problems_of(tag)[0]
