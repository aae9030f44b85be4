"""Megatron's checkpoints are known for what they are, wherever they are named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from zerotools import formats
from zerotools.cli.main import build
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile, Unsupported
from zerotools.ops.conversions import convert, reshard
from zerotools.ops.conversions.conversion import Conversion, refuse_blocked
from zerotools.ops.inspection.inspect import inspect, to_json

pytestmark = pytest.mark.torch
DIST, RANKS = "dist/iter_0000100", "legacy/iter_0000100"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.formats.megatron.layouts import as_mcore, legacy, run, torch_dist

    root = tmp_path_factory.mktemp("megatron")
    torch_dist(root / DIST, 100)
    torch_dist(root / "dist" / "iter_0000090", 90, masters="fp32_param")
    as_mcore(root / "dist" / "iter_0000090")
    run(root / "dist", "100\n")
    torch_dist(root / "released" / "release", 0)
    run(root / "released", "release")
    legacy(root / RANKS, 100)
    run(root / "legacy", "100")
    return root


WHERE = {
    "dist": ("dist", "torch_dist", 100),
    "an iteration": (DIST, "torch_dist", 100),
    "MCoreMetadata": ("dist/iter_0000090", "torch_dist", 90),
    "release": ("released", "torch_dist", 0),
    "release itself": ("released/release", "torch_dist", 0),
    "legacy": ("legacy", "legacy rank files", 100),
    "legacy iteration": (RANKS, "legacy rank files", 100),
    "one rank": (f"{RANKS}/mp_rank_00_000", "legacy rank files", 100),
    "one file": (f"{RANKS}/mp_rank_00_000/model_optim_rng.pt", "legacy rank files", 100),
    "one optimizer": (f"{RANKS}/mp_rank_01_001/distrib_optim.pt", "legacy rank files", 100),
}


@pytest.mark.parametrize(("where", "kind", "iteration"), WHERE.values(), ids=WHERE)
def test_it_is_found_wherever_it_is_named(
    made: Path, where: str, kind: str, iteration: int
) -> None:
    done = CliRunner().invoke(build(), ["inspect", str(made / where)])
    assert done.exit_code == 0, done.output
    assert f"Megatron {kind}" in done.output
    assert formats.read(made / where).origin.step == iteration


def _roles(checkpoint: Checkpoint) -> dict[str, tuple[int, tuple[str, ...]]]:
    return {role.role: (role.tensors, role.dtypes) for role in inspect(checkpoint).roles}


@pytest.mark.parametrize("where", [DIST, "dist/iter_0000090"])
def test_the_masters_are_masters_and_the_weights_their_copies(made: Path, where: str) -> None:
    checkpoint = formats.read_any(made / where)
    assert _roles(checkpoint) == {
        "param": (13, ("float32",)),
        "param16": (13, ("bfloat16",)),
        "exp_avg": (13, ("float32",)),
        "exp_avg_sq": (13, ("float32",)),
    }
    assert not inspect(checkpoint).problems
    assert to_json(inspect(checkpoint))["format"] == "megatron"


def test_the_files_of_all_ranks_are_shown_as_one_checkpoint(made: Path) -> None:
    checkpoint = formats.read_any(made / RANKS / "mp_rank_00_000")
    assert checkpoint.origin.path == made / RANKS
    assert checkpoint.origin.world_size == 4
    assert len(checkpoint.files) == 8
    roles = _roles(checkpoint)
    assert roles["param16"] == (2, ("bfloat16",))
    assert roles["exp_avg"] == (2, ("float32",))
    assert "saved with TP 2, PP 2" in checkpoint.origin.notes


def test_what_is_missing_is_a_problem(made: Path, tmp_path: Path) -> None:
    ranks = Path(shutil.copytree(made / RANKS, tmp_path / "iter_0000100"))
    shutil.rmtree(ranks / "mp_rank_01_001")
    problems = [problem.message for problem in formats.read_any(ranks).problems]
    lost = ranks / "mp_rank_01_001" / "model_optim_rng.pt"
    assert problems == [
        f"{lost} is missing: with TP 2 x PP 2 there are 4 ranks; copy or download it again"
    ]
    with pytest.raises(BadFile, match="mp_rank_01_001"):
        refuse_blocked(formats.read(ranks))
    dist = Path(shutil.copytree(made / DIST, tmp_path / "iter_0000101"))
    (dist / "metadata.json").unlink()
    said = "\n".join(problem.message for problem in formats.read_any(dist).problems)
    assert "the save was not finished" in said
    assert "is of iteration 100, but its directory is of iteration 101" in said
    (dist / "common.pt").write_bytes(b"PK")
    assert any("common.pt" in problem.message for problem in formats.read_any(dist).problems)


def test_a_run_without_its_tracker_and_one_that_names_nothing(made: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(made / "dist", tmp_path / "run"))
    (run / "latest_checkpointed_iteration.txt").unlink()
    assert (
        formats.read_any(run).origin.notes[0] == "took iter_0000100, the newest, of 2 checkpoints"
    )
    (run / "latest_checkpointed_iteration.txt").write_text("120")
    with pytest.raises(BadFile, match=r"names 'iter_0000120'.*take iter_0000090 or iter_0000100"):
        formats.read_any(run)
    (run / "latest_checkpointed_iteration.txt").write_text("release")
    with pytest.raises(BadFile, match=r"names 'release', which is nothing there"):
        formats.read_any(run)


def test_other_forms_are_recognised_by_metadata_json_or_by_the_run(
    made: Path, tmp_path: Path
) -> None:
    zarr = tmp_path / "iter_0000010"
    zarr.mkdir()
    shutil.copy(made / DIST / "common.pt", zarr)
    (zarr / "metadata.json").write_text('{"sharded_backend": "zarr"}')
    assert formats.read_any(zarr).origin.title == "Megatron zarr"
    run = Path(shutil.copytree(made / "dist", tmp_path / "run"))
    for name in ("common.pt", "metadata.json"):
        (run / "iter_0000100" / name).unlink()
    with pytest.raises(Unsupported, match="Megatron torch_dcp or fsdp_dtensor of iteration 100"):
        formats.read(run)
    (zarr / "metadata.json").write_text("{")
    with pytest.raises(BadFile, match=r"metadata\.json is not JSON"):
        formats.read_any(zarr)


def test_attributes_that_a_dcp_has_beside_torchs_own_are_listed(made: Path, tmp_path: Path) -> None:
    from tests.formats.megatron.layouts import as_mcore

    plain = Path(shutil.copytree(made / "released" / "release", tmp_path / "plain"))
    lost = Path(shutil.copytree(made / "dist" / "iter_0000090", tmp_path / "lost"))
    for path in (plain, lost):
        for name in ("common.pt", "metadata.json"):
            (path / name).unlink()
    as_mcore(plain, "my_data", "Metadata")
    with pytest.raises(
        Unsupported, match=r"Megatron torch_dist checkpoint, but lacks its common.pt"
    ):
        formats.read(lost)
    resharded = reshard.prepare_reshard(plain, tmp_path / "out", world_size=2)
    assert isinstance(resharded, Conversion)
    assert [dropped.what for dropped in resharded.target.dropped] == ["my_data"]
    for to in ("safetensors", "torch"):
        converted = convert.prepare_convert(plain, tmp_path / "out", to, {})
        assert isinstance(converted, Conversion)
        assert "my_data" in [dropped.what for dropped in converted.target.dropped]
