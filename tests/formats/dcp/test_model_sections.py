"""DCPs whose models lie in sections of any name, as torch itself saved them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import zerotools
from tests.formats.copying import tensor_bytes
from tests.golden_files import JOB
from zerotools.cli.main import build
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest
from zerotools.formats.dcp.read import read as read_dcp
from zerotools.formats.dcp.training_state import training_of as training_of_dcp
from zerotools.io.distcp.metadata import read_metadata
from zerotools.ops.conversions import consolidate, convert, reshard
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget

GOLDEN = Path(__file__).parents[2] / "golden" / "torch-2.13.0-sections"
ROLES = {"step", "exp_avg", "exp_avg_sq"}


def expected(root: Path) -> dict[str, str]:
    """Digests of the model that is meant, from where and when it was trained."""
    digests: dict[str, str] = json.loads((root / "expected.json").read_text())
    return digests


def weights(checkpoint: Checkpoint) -> dict[str, str]:
    """Digests of what is exported."""
    return {
        key.name: hashlib.sha256(tensor_bytes(checkpoint, key)).hexdigest()
        for key in checkpoint.tensors
        if key.role == "param"
    }


def roles(checkpoint: Checkpoint) -> set[str]:
    return {key.role for key in checkpoint.tensors}


@pytest.mark.parametrize("name", ["app", "numbered"])
def test_every_weight_of_the_model_and_nothing_else_is_a_weight(name: str) -> None:
    checkpoint = read_dcp(GOLDEN / name)
    assert weights(checkpoint) == expected(GOLDEN)
    assert any("took the section" in note for note in checkpoint.origin.notes)
    assert roles(checkpoint) - {"state"} == {"param", *ROLES}


def test_the_groups_of_an_optimizer_below_a_section() -> None:
    (group,) = training_of_dcp(read_dcp(GOLDEN / "app")).groups
    assert group.options["lr"] == 0.125
    assert len(group.params) == 7


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.formats.dcp.sections_with_torch import layouts, save_all

    root = tmp_path_factory.mktemp("sections")
    save_all(root, layouts())
    return root


ONE = (
    "app", "numbered", "lightning", "lightning list", "state_dict and optimizer", "train_state",
    "three deep", "beside state", "flat", "flat beside state", "flat in one section",
    "flat optimizer", "written into keys", "bare", "scheduler with tensors", "called param", "ema",
    "ema state dict", "frozen teacher", "empty sections",
)  # fmt: skip
SEVERAL = {
    "gan": ("generator", "discriminator"),
    "gan without optimizers": ("generator", "discriminator"),
    "two models of a kind": ("student", "teacher"),
    "two with optimizers": ("model", "critic"),
    "backbone and head": ("head", "backbone"),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", ONE)
def test_the_one_model_is_found_whole_and_no_state_is_a_weight(saved: Path, name: str) -> None:
    checkpoint = read_dcp(saved / name)
    assert weights(checkpoint) == expected(saved)
    assert checkpoint.origin.question is None


@pytest.mark.torch
@pytest.mark.parametrize("name", SEVERAL)
def test_of_several_models_none_is_guessed(saved: Path, tmp_path: Path, name: str) -> None:
    wanted, other = SEVERAL[name]
    with pytest.raises(BadRequest, match=f"several models.*{other} .*; choose one with --section"):
        consolidate.prepare_export(saved / name, tmp_path / "out", consolidate.Options())
    with pytest.raises(BadRequest, match="several models"):
        convert.prepare_convert(saved / name, tmp_path / "out", "safetensors", {})
    with pytest.raises(BadRequest, match="several models"):
        zerotools.load_state_dict(saved / name, framework="numpy")
    assert f"{other}.net.0.weight" in zerotools.open(saved / name)
    for section in (wanted, other):
        checkpoint = read_dcp(saved / name, section=section)
        assert (weights(checkpoint) == expected(saved)) is (section == wanted)
        assert len(weights(checkpoint)) == len(expected(saved))


@pytest.mark.torch
def test_what_is_not_taken_is_said_and_can_be_taken(saved: Path) -> None:
    (note, *_) = read_dcp(saved / "ema").origin.notes
    assert "took the section model (10 tensors, 26 elements" in note
    assert "not taken: ema (10 tensors" in note
    assert "--section ema takes it instead" in note
    ema = read_dcp(saved / "ema", section="ema")
    assert weights(ema).keys() == expected(saved).keys()
    assert weights(ema) != expected(saved)
    assert roles(ema) == {"param", "state"}, "the moments are those of the model"
    (note, *_) = read_dcp(saved / "beside state").origin.notes
    assert note == "next to the weights there is state of the run: step, loss, rng"


@pytest.mark.torch
def test_each_of_two_models_has_the_state_of_its_own_optimizer(saved: Path) -> None:
    for name, count in (("generator", 3), ("discriminator", 4)):
        checkpoint = read_dcp(saved / "gan", section=name)
        shapes = {k.role: t.shape for k, t in checkpoint.tensors.items() if k.name == "net.0.bias"}
        assert shapes == {
            "param": (count,),
            "step": (),
            "exp_avg": (count,),
            "exp_avg_sq": (count,),
        }
        assert len(training_of_dcp(checkpoint).groups) == 1


@pytest.mark.torch
def test_numbers_become_names_where_shapes_prove_it(saved: Path) -> None:
    checkpoint = read_dcp(saved / "no buffers, numbered")
    assert {key.name for key in checkpoint.tensors if key.role == "exp_avg"} == {"weight", "bias"}
    (group,) = training_of_dcp(checkpoint).groups
    assert group.params == ("weight", "bias")
    assert "exp_avg" in roles(read_dcp(saved / "numbered"))


@pytest.mark.torch
def test_parts_that_one_optimizer_trains_are_one_model(saved: Path) -> None:
    names = ["encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias"]
    assert list(weights(read_dcp(saved / "parts"))) == names


@pytest.mark.torch
def test_odd_keys_and_runs_without_a_model(saved: Path, tmp_path: Path) -> None:
    assert list(weights(read_dcp(saved / "odd keys"))) == ["a/b.c d", "", "é.😀"]
    assert set(weights(read_dcp(saved / "keys that are not text"))) == {"2", "(3, 4)"}
    assert roles(read_dcp(saved / "run alone")) == {"state"}
    with pytest.raises(BadRequest, match="nothing to export"):
        consolidate.prepare_export(saved / "run alone", tmp_path / "out", consolidate.Options())


@pytest.mark.torch
@pytest.mark.parametrize("name", ["gan", "ema", "three deep", "flat beside state", "numbered"])
def test_resharding_keeps_every_section(saved: Path, tmp_path: Path, name: str) -> None:
    prepared = reshard.prepare_reshard(saved / name, tmp_path / "out", world_size=2)
    assert isinstance(prepared, Conversion)
    perform_conversion(prepared, budget=MemoryBudget(2**20, 1), overwrite=False, verify=True)
    old, new = read_dcp(saved / name), read_dcp(tmp_path / "out")
    assert new.tensors.keys() == old.tensors.keys()
    assert all(tensor_bytes(new, key) == tensor_bytes(old, key) for key in old.tensors)
    assert dict(new.state) == dict(old.state)
    paths = read_metadata(tmp_path / "out" / ".metadata").paths
    assert paths == read_metadata(saved / name / ".metadata").paths


@pytest.mark.torch
def test_a_section_is_chosen_on_the_command_line(saved: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(build(), arguments)
        return done.exit_code, done.output

    gan, out = str(saved / "gan"), str(tmp_path / "out")
    code, said = run("inspect", gan)
    assert code == 0
    assert "discriminator (10 tensors, 33 elements" in said.replace("\n", " ")
    code, said = run("consolidate", gan, out, "--section", "generator", "--dtype", "fp32")
    assert (code, "not taken: discriminator" in said) == (0, True)
    exported = zerotools.load_state_dict(out, framework="numpy")
    assert {n: hashlib.sha256(v.tobytes()).hexdigest() for n, v in exported.items()} == expected(
        saved
    )
    code, said = run("convert", gan, f"{out}-2", "--to", "dcp", "--section", "discriminator")
    assert code == 0, said
    assert "client" in said
    taken = read_dcp(Path(f"{out}-2"))
    assert roles(taken) == {"param", *ROLES}
    with pytest.raises(BadRequest, match="leave --section out"):
        read_dcp(JOB, section="model")
