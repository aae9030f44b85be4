"""Megatron's checkpoints are known for what they are, wherever they are named."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.formats.megatron.golden import cases, read_case, read_digests, run_of, truth_of
from tests.golden_files import GOLDEN
from tests.io.torchzip.archives import zip_bytes
from zerotools import formats
from zerotools.cli.main import build
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadFile, Unsupported
from zerotools.ops.conversions import consolidate, convert, reshard
from zerotools.ops.conversions.conversion import Conversion, prove_coverage, refuse_blocked
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


BUCKETS = "megatron-core-0.16.1/dense-tp2-dp2-buckets"
PLAIN = "megatron-core-0.16.1/tied-pp2-plain"
MLA = "megatron-core-0.16.1/mla-tp2-ep2"
DENSE = "megatron-core-0.16.1/dense-tp2-pp2"
NAMED = [case for case in cases() if not re.search("/legacy|fsdp", case)]


@pytest.mark.parametrize("case", NAMED)
def test_it_is_what_the_live_program_held(case: str) -> None:
    checkpoint = read_case(case)
    assert read_digests(checkpoint) == truth_of(case)
    found = inspect(checkpoint)
    step = json.loads((GOLDEN / case / "truth.json").read_text())["iteration"]
    assert (found.problems, found.incomplete, found.step) == ((), (), step)


def test_of_flat_buckets_that_nothing_proves_the_weights_are_read_alone(tmp_path: Path) -> None:
    """Without arguments nothing says how ranks shared the weights."""
    run = Path(shutil.copytree(run_of(BUCKETS), tmp_path / "run"))
    common = {"common/data.pkl": pickle.dumps({"iteration": 10}, 2), "common/version": b"3\n"}
    (run / "iter_0000010" / "common.pt").write_bytes(zip_bytes(common))
    checkpoint = formats.read(run)
    truth = truth_of(BUCKETS)
    weights = {Key(k.name, "param"): d for k, d in truth.items() if k.role == "param16"}
    assert read_digests(checkpoint) == weights
    done = convert.prepare_convert(run, tmp_path / "out", "dcp", {"world_size": 2})
    assert isinstance(done, Conversion)
    dropped = {each.what: each.why for each in done.target.dropped}
    assert "flat buffers in the order" in dropped["optimizer state"]
    assert any("left out" in note for note in inspect(checkpoint).notes)


def test_flat_state_of_which_nothing_tells_the_shape_is_left_out(tmp_path: Path) -> None:
    case = "megatron-core-0.12.3/dense-tp2-model-space"
    run = Path(shutil.copytree(run_of(case), tmp_path / "run"))
    metadata = run / "iter_0000010" / ".metadata"
    whole = metadata.read_bytes()
    assert whole.count(b"mcore_data") == 1
    metadata.write_bytes(whole.replace(b"mcore_data", b"other_data"))
    checkpoint = formats.read(run)
    weights = {Key(k.name, "param"): d for k, d in truth_of(case).items() if k.role == "param16"}
    assert read_digests(checkpoint) == weights
    assert any("does not have the shape of its weight." in note for note in checkpoint.origin.notes)


def test_a_tied_output_layer_is_an_alias() -> None:
    checkpoint = read_case(PLAIN)
    assert checkpoint.aliases == {"output_layer.weight": "embedding.word_embeddings.weight"}


def test_what_is_said_of_the_run() -> None:
    origin = read_case(MLA).origin
    assert (origin.title, origin.step, origin.world_size) == ("Megatron torch_dist", 10, 4)
    assert str(origin.precision) == "bfloat16"
    assert "saved with TP 2, PP 1, EP 2, ETP 1, DP 2" in origin.notes
    assert any("3 layers" in note and "latent attention" in note for note in origin.notes)
    assert any("37 extra states" in note for note in origin.notes)
    assert "each layer has separate keys" in origin.notes
    stacked = "layers are stacked in the files; here each layer has its own tensor"
    assert stacked in read_case(DENSE).origin.notes
    halves = "each layer has separate keys, and each half of a gated layer"
    assert halves in read_case("megatron-core-0.16.1/singleton-tp2").origin.notes


def test_a_lost_file_is_named_and_its_layers_are_holes(tmp_path: Path) -> None:
    run = Path(shutil.copytree(run_of(DENSE), tmp_path / "run"))
    lost = run / "iter_0000010" / "__2_0.distcp"
    lost.unlink()
    found = inspect(formats.read(run))
    assert found.missing == ("__2_0.distcp",)
    lost_names = {key.name for key in found.incomplete}
    assert "decoder.layers.1.mlp.linear_fc1.weight" in lost_names
    assert not any(".layers.0." in name for name in lost_names)
    export = consolidate.prepare_export(run, tmp_path / "out", consolidate.Options())
    with pytest.raises(BadFile, match=r"__2_0\.distcp is missing"):
        prove_coverage(export)


def test_unfinished_saves(tmp_path: Path) -> None:
    run = Path(shutil.copytree(run_of(DENSE), tmp_path / "run"))
    directory = run / "iter_0000010"
    named = directory / "metadata.json"
    said = named.read_bytes()
    named.unlink()
    assert any("was not finished" in each.message for each in inspect(formats.read(run)).problems)
    (directory / ".metadata").unlink()
    with pytest.raises(BadFile, match=r"'iter_0000010', which is no finished checkpoint"):
        formats.read(run)
    named.write_bytes(said)
    with pytest.raises(BadFile, match=r"has no \.metadata: the save was not finished"):
        formats.read(run)


def test_half_of_a_gated_layer_is_refused(tmp_path: Path) -> None:
    from zerotools.formats.megatron.unstack_tensors import join_halves

    tensors = dict(read_case(DENSE).tensors)
    key = Key("decoder.layers.0.mlp.linear_fc1.weight", "param")
    alone = {Key(key.name + "_w", "param"): tensors[key]}
    with pytest.raises(BadFile, match=r"has .*weight_w, but not .*weight_v"):
        join_halves(tmp_path, alone)
