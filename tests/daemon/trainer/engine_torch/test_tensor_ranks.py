"""Ranks that compute with one layer's weights together train as one rank does.

A mesh is written as tensor x sequence ranks: where it has both, ranks with the same part of a layer
compute a stretch of the sequences each. Losses are one rank's within the order of summation, and a
resumed run ends bit for bit where an uninterrupted one does. Weights and optimizer state arrive
whole on every other mesh, and in every command.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA
from tests.daemon.trainer.kills import killable, survive
from tests.daemon.trainer.meshes import check_commands, check_memory
from tests.daemon.trainer.several import Runs, run_all
from tests.daemon.trainer.torch_releases import needs_tensor_ranks
from tests.matrices import FULL
from zerotools.runs import find_job_checkpoints

pytestmark = [
    pytest.mark.torch,
    pytest.mark.dear(40, "ranks of several meshes, resumed"),
    needs_tensor_ranks,
]
# The head's 129 rows of two tensor ranks, and the MLP's 33, are cut unevenly once more; three and
# four tensor ranks divide all but the head of the latter, which stays whole.
MODEL: dict[str, Any] = {**TINY_LLAMA, "vocab_size": 258, "intermediate_size": 66}
if not FULL:
    MODEL["num_hidden_layers"] = 1
if FULL:
    heads = {"num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 4}
    MODEL |= {"hidden_size": 48, "intermediate_size": 60, **heads}


@dataclass(frozen=True)
class Mesh:
    """How many ranks compute with one layer, and, for each part of it, one sequence."""

    tensor: int
    sequence: int = 1

    def __str__(self) -> str:
        return f"{self.tensor}x{self.sequence}"


ONE = Mesh(1)
MESHES = {4: (Mesh(2), Mesh(2, 2))}
if FULL:
    MESHES = {2: (Mesh(2),), 4: (Mesh(2, 2), Mesh(2), Mesh(4)), 3: (Mesh(3),)}
"""By the number of ranks. Each goes on from the last one before it."""
CONTINUED = [mesh for meshes in MESHES.values() for mesh in (meshes if FULL else meshes[-1:])]
"""Those that are resumed, and that go on from another mesh."""
TOLERANCE = 2e-6
STEPS, SAVED = 2, 1
ASKED = ("begins", "evaluates")
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"train": {"micro_batch_size": 3, "activation_checkpointing": True}}
}
# What is cut, exchanged and saved is the same in each of these.
if FULL:
    VARIANTS |= {
        "bf16": {
            "train": {"precision": "bf16", "micro_batch_size": 3, "activation_checkpointing": True}
        },
        "one-pass": {},
        "qk-norm": {"model": {"config": {**MODEL, "model_type": "qwen3"}}},
        "gathered": {"model": {"config": {**MODEL, "model_type": "olmo2"}}},
        "bias": {"model": {"config": {**MODEL, "model_type": "qwen2"}}},
        "tied": {"model": {"config": {**MODEL, "tie_word_embeddings": True}}},
        "stage-2": {"zero": {"stage": 2}},
        "local": {"train": {"micro_batch_size": 2, "accumulate": "local"}},
        "dropout": {"model": {"config": {**MODEL, "model_type": "phi", "resid_pdrop": 0.3}}},
        "clipped": {"train": {"max_grad_norm": 0.5}},
        "chunked": {"train": {"chunked_loss": "on"}},
        "sgd": {"train": {"optimizer": "sgd", "momentum": 0.9}},
        "adam": {"train": {"optimizer": "adam"}},
        "masters": {"train": {"precision": "bf16"}, "offload": {"optimizer": "cpu"}},
        "on-host": {"offload": {"params": "cpu"}},
        "asynchronous": {"checkpoint": {"asynchronous": True}},
        "elastic": {"elastic": True},
        "adapters": {"lora": {"rank": 4, "target_modules": ["q_proj", "o_proj", "lm_head"]}},
        "adapters-bf16": {
            "train": {"precision": "bf16"},
            "lora": {"rank": 3, "target_modules": ["v_proj", "up_proj", "down_proj"]},
        },
    }


def tree(variant: str, mesh: Mesh, **changes: Any) -> dict[str, Any]:
    """A job of two steps."""
    found, together = VARIANTS[variant], mesh.tensor * mesh.sequence
    sizes = {"ranks": {"min": together, "max": 2 * together}} if "elastic" in found else {}
    return {
        **sizes,
        "model": found.get("model", {"config": MODEL}),
        # Adam makes steps of one size of gradients that are all but zero, whatever their sign: the
        # less of that, the more steps are alike.
        "train": {"steps": STEPS, "learning_rate": 1e-3, **found.get("train", {})},
        "zero": {
            "stage": 3,
            **found.get("zero", {}),
            "tensor_ranks": mesh.tensor,
            "sequence_ranks": mesh.sequence,
        },
        "offload": found.get("offload", {}),
        "lora": found.get("lora", {}),
        "checkpoint": {"every": SAVED, **found.get("checkpoint", {})},
        **changes,
    }


Meshes = dict[int, Runs]
"""The runs of a variant by the number of ranks; 0: of one rank that goes on from the last mesh, in
the full matrix: else a command reads the checkpoint of that mesh whole."""


def mesh_jobs(variant: str, directory: Path, ranks: int, before: Path) -> dict[str, dict[str, Any]]:
    """Of each mesh a run; of `CONTINUED` one that goes on from its first step, and one that goes
    on from a step of another mesh, which is `before`."""
    jobs: dict[str, dict[str, Any]] = {}
    for mesh in MESHES[ranks]:
        source = directory / "out" / str(mesh) / "out" / find_job_checkpoints.directory_name(SAVED)
        jobs[f"{mesh}"] = tree(variant, mesh)
        if mesh not in CONTINUED:
            continue
        jobs[f"{mesh}-resumed"] = tree(variant, mesh, resume_from=str(source))
        jobs[f"{mesh}-moved"] = tree(variant, mesh, resume_from=str(before))
    return jobs


def run_meshes(variant: str, root: Path, text: Path) -> Meshes:
    """One rank, then each mesh, which goes on from the one before it, and one rank again."""
    found = {1: run_all(root / "1", text, 1, {"1": tree(variant, ONE)}, ends=False, asked=ASKED)}
    before = found[1].checkpoint("1", SAVED)
    for ranks, meshes in MESHES.items():
        directory = root / str(ranks)
        jobs = mesh_jobs(variant, directory, ranks, before)
        found[ranks] = run_all(directory, text, ranks, jobs, ends=False, asked=ASKED)
        before = found[ranks].checkpoint(str(meshes[-1]), SAVED)
    if FULL:
        back = {"1": tree(variant, ONE, resume_from=str(before))}
        found[0] = run_all(root / "back", text, 1, back, ends=False, asked=ASKED)
    return found


@pytest.fixture(scope="module")
def by_variant(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[str, Meshes]:
    """All of them."""
    root = tmp_path_factory.mktemp("meshes")
    return {variant: run_meshes(variant, root / variant, text) for variant in VARIANTS}


CASES = [
    (ranks, mesh, variant)
    for ranks, meshes in MESHES.items()
    for mesh in meshes
    for variant in VARIANTS
]
FURTHER = [case for case in CASES if case[1] in CONTINUED]


def tolerance(variant: str) -> float:
    """Of 16 bits, what one rank and another order of summation come to."""
    return 2e-3 if VARIANTS[variant].get("train", {}).get("precision") == "bf16" else TOLERANCE


@pytest.mark.parametrize(("ranks", "mesh", "variant"), CASES, ids=str)
def test_losses_and_gradient_norms_are_those_of_one_rank(
    by_variant: dict[str, Meshes], ranks: int, mesh: Mesh, variant: str
) -> None:
    runs, one, name = by_variant[variant][ranks], by_variant[variant][1], str(mesh)
    if variant == "dropout" and mesh.tensor != ranks:
        return  # each share has random numbers of its own
    wanted = pytest.approx(one.losses("1"), rel=tolerance(variant))
    assert runs.losses(name) == wanted
    norms = pytest.approx(one.of("1", "grad_norm"), rel=10 * tolerance(variant))
    assert runs.of(name, "grad_norm") == norms
    evaluated = pytest.approx(one.report["1"]["evaluated"], rel=tolerance(variant))
    assert runs.report[name]["evaluated"] == evaluated


@pytest.mark.parametrize(("ranks", "mesh", "variant"), CASES, ids=str)
def test_every_rank_begins_with_its_part_of_the_same_weights(
    by_variant: dict[str, Meshes], ranks: int, mesh: Mesh, variant: str
) -> None:
    begun = by_variant[variant][ranks].report[str(mesh)]["begun"]
    assert begun == by_variant[variant][1].report["1"]["begun"]


@pytest.mark.parametrize(("ranks", "mesh", "variant"), FURTHER, ids=str)
def test_a_resumed_run_ends_bit_for_bit_where_an_uninterrupted_one_does(
    by_variant: dict[str, Meshes], ranks: int, mesh: Mesh, variant: str
) -> None:
    runs, name = by_variant[variant][ranks], str(mesh)
    assert runs.losses(f"{name}-resumed") == runs.losses(name)[SAVED:]
    assert runs.ended(f"{name}-resumed") == runs.ended(name)


@pytest.mark.parametrize(("ranks", "mesh", "variant"), FURTHER, ids=str)
def test_the_state_of_another_mesh_arrives_whole(
    by_variant: dict[str, Meshes], ranks: int, mesh: Mesh, variant: str
) -> None:
    order = [1, *MESHES]
    source = order[order.index(ranks) - 1]
    last = str(MESHES[source][-1]) if source in MESHES else "1"
    moved = by_variant[variant][ranks]
    if source != 1:
        begun = by_variant[variant][source].report[f"{last}-resumed"]["begun"]
        assert moved.report[f"{mesh}-moved"]["begun"] == begun
    if variant != "dropout":
        wanted = by_variant[variant][source].losses(last)[SAVED:]
        found = moved.losses(f"{mesh}-moved")
        assert found == pytest.approx(wanted, rel=10 * tolerance(variant))


@pytest.mark.full
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_one_rank_goes_on_from_a_mesh_and_finds_the_same_bits(
    by_variant: dict[str, Meshes], variant: str
) -> None:
    ranks = list(MESHES)[-1]
    name = f"{MESHES[ranks][-1]}-resumed"
    resumed, back = by_variant[variant][ranks], by_variant[variant][0]
    assert back.report["1"]["begun"] == resumed.report[name]["begun"]
    if variant != "dropout":
        wanted = pytest.approx(resumed.losses(name), rel=10 * tolerance(variant))
        assert back.losses("1") == wanted


@pytest.mark.parametrize(("ranks", "mesh", "variant"), CASES, ids=str)
def test_all_gradients_are_those_of_one_rank(
    by_variant: dict[str, Meshes], ranks: int, mesh: Mesh, variant: str
) -> None:
    import torch

    from tests.daemon.trainer.tensors import load

    if variant == "dropout" or tolerance(variant) > TOLERANCE:
        return  # Adam's first moments of two steps differ by what 16 bits round
    found = load(by_variant[variant][ranks].checkpoint(str(mesh), SAVED))
    wanted = load(by_variant[variant][1].checkpoint("1", SAVED))
    assert found.keys() == wanted.keys()
    moments = [name for name in wanted if name.endswith(("exp_avg", "momentum_buffer"))]
    assert moments
    for name in moments:
        largest = wanted[name].abs().max()
        if largest == 0:  # lora_A has no gradient while lora_B is 0
            assert "lora_A" in name
            assert not found[name].any(), name
            continue
        error = (found[name] - wanted[name]).abs().max() / largest
        assert torch.isfinite(error), name
        assert error < 1e-4, name


@pytest.mark.parametrize(("ranks", "mesh", "variant"), CASES, ids=str)
def test_each_rank_holds_what_was_predicted(
    by_variant: dict[str, Meshes], ranks: int, mesh: Mesh, variant: str
) -> None:
    check_memory(by_variant[variant][ranks], str(mesh))


@pytest.mark.parametrize(("ranks", "mesh", "variant"), CASES if FULL else FURTHER, ids=str)
def test_every_command_reads_a_checkpoint_of_a_mesh(
    by_variant: dict[str, Meshes], tmp_path: Path, ranks: int, mesh: Mesh, variant: str
) -> None:
    saved = by_variant[variant][ranks].checkpoint(str(mesh), SAVED)
    check_commands(saved, ranks, tmp_path)


@pytest.mark.full
def test_a_killed_run_ends_bit_for_bit_where_another_does(tmp_path: Path, text: Path) -> None:
    job_of_mesh = killable(text, ranks=4, stage=3, steps=16)
    job_of_mesh["zero"] = {"stage": 3, "tensor_ranks": 2}
    assert len(survive(tmp_path, job_of_mesh, kills=2, seed=3)) > 1
