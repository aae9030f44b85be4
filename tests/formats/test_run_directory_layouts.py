"""One run directory of each program, by the names that its writer gives."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from zerotools.formats import detect
from zerotools.formats.match_run_directory import run_at
from zerotools.formats.run_directory_layouts import PROGRAMS
from zerotools.io.files.directory_entries import names_in

VERL = ("model_world_size_1_rank_0.pt", "extra_state_world_size_1_rank_0.pt", "fsdp_config.json")
DCP = (".metadata", "__0_0.distcp")
TAG = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt")
TRAINER = ("model.safetensors", "trainer_state.json", "training_args.bin")
NEMO = "checkpoints/llama--val_loss=1.20-step={}-consumed_samples=8.0"


def below(place: str, names: Iterable[str]) -> list[str]:
    return [f"{place}/{name}" for name in names]


RUNS = {
    "verl": (
        "verl",
        [
            *below("global_step_4/actor", VERL),
            *below("global_step_10/actor", VERL),
            "global_step_10/data.pt",
        ],
        "global_step_10/actor",
        "torchfile",
    ),
    "verl-sft": (
        "verl",
        [*below("global_step_3", VERL), "global_step_3/huggingface/config.json"],
        "global_step_3",
        "torchfile",
    ),
    "verl-megatron-1": (
        "verl",
        [
            "global_step_3/actor/dist_ckpt/.metadata",
            "global_step_3/actor/dist_ckpt/common.pt",
            "global_step_3/actor/huggingface/config.json",
        ],
        "global_step_3/actor/dist_ckpt",
        "megatron",
    ),
    "verl-megatron-2": (
        "verl",
        [
            "global_step_3/actor/model/dist_ckpt/.metadata",
            "global_step_3/actor/model/dist_ckpt/common.pt",
            "global_step_3/actor/optimizer/dist_ckpt/.metadata",
            "global_step_3/actor/transformer_config.json",
        ],
        "global_step_3/actor/model/dist_ckpt",
        "megatron",
    ),
    "verl-megatron-bridge": (
        "verl",
        [
            "global_step_3/actor/model/huggingface/model.safetensors",
            "global_step_3/actor/optimizer/dist_ckpt/.metadata",
        ],
        "global_step_3/actor/model/huggingface",
        "safetensors",
    ),
    "nemo-rl-dtensor": (
        "NeMo-RL",
        [
            *below("step_8/policy/weights", DCP),
            *below("step_8/policy/optimizer", DCP),
            "step_8/policy/tokenizer/tokenizer.json",
            "step_8/training_info.json",
            "step_8/config.yaml",
            "tmp_step_12/training_info.json",
        ],
        "step_8/policy/weights",
        "dcp",
    ),
    "nemo-rl-megatron": (
        "NeMo-RL",
        [
            "step_8/policy/weights/iter_0000000/.metadata",
            "step_8/policy/weights/iter_0000000/common.pt",
            "step_8/training_info.json",
        ],
        "step_8/policy/weights/iter_0000000",
        "megatron",
    ),
    "nemo-rl-automodel": (
        "NeMo-RL",
        [
            "step_8/policy/weights/model/model-00001-of-00001.safetensors",
            *below("step_8/policy/optimizer/optim", DCP),
            "step_8/training_info.json",
        ],
        "step_8/policy/weights/model",
        "safetensors",
    ),
    "prime-rl": (
        "prime-rl",
        [
            *below("checkpoints/step_20/trainer", DCP),
            "checkpoints/step_20/orchestrator/progress.pt",
            *below("checkpoints/step_5/trainer", DCP),
            "weights/step_20/model.safetensors",
            "logs/trainer.log",
        ],
        "checkpoints/step_20/trainer",
        "dcp",
    ),
    "openrlhf-deepspeed": (
        "OpenRLHF",
        [
            *below("_actor/global_step20", TAG),
            *below("_actor/global_step5", TAG),
            *below("_critic/global_step20", TAG),
            "_actor/latest=global_step20",
            "_critic/latest=global_step20",
        ],
        "_actor/global_step20",
        "deepspeed",
    ),
    "openrlhf-fsdp2": (
        "OpenRLHF",
        [*below("_actor/global_step20", DCP), "_actor/latest=global_step20"],
        "_actor/global_step20",
        "dcp",
    ),
    "openrlhf-sft": (
        "OpenRLHF",
        [
            *below("best_global_step5", (*TAG, "metric.json")),
            *below("global_step20", (*TAG, "metric.json")),
            *below("global_step20_hf", ("model.safetensors", "config.json")),
            "latest=global_step20",
        ],
        "",
        "deepspeed",
    ),
    "openrlhf-sft-by-its-output": (
        "OpenRLHF",
        [
            *below("checkpoints_sft/global_step20", (*TAG, "metric.json")),
            "checkpoints_sft/latest=global_step20",
        ],
        "checkpoints_sft/global_step20",
        "deepspeed",
    ),
    "openrlhf-ppo-by-its-output": (
        "OpenRLHF",
        [
            *below("checkpoints_ppo_ray/_actor/global_step20", TAG),
            *below("checkpoints_ppo_ray/_critic/global_step20", TAG),
            "checkpoints_ppo_ray/_actor/latest=global_step20",
        ],
        "checkpoints_ppo_ray/_actor/global_step20",
        "deepspeed",
    ),
    "openrlhf-models-alone": (
        "OpenRLHF",
        [
            *below("global_step5_hf", ("model.safetensors", "config.json")),
            *below("global_step20_hf", ("model.safetensors", "config.json")),
        ],
        "global_step20_hf",
        "safetensors",
    ),
    "slime-fsdp": (
        "slime",
        [
            *below("iter_0000020", (*DCP, "meta.json", "rng.pt")),
            "latest_checkpointed_iteration.txt=20",
            "rollout/global_dataset_state_dict_19.pt",
        ],
        "iter_0000020",
        "dcp",
    ),
    "slime-megatron": (
        "slime",
        [
            *below("iter_0000020", (*DCP, "common.pt", "metadata.json")),
            "latest_checkpointed_iteration.txt=20",
            "rollout/global_dataset_state_dict_19.pt",
        ],
        "iter_0000020",
        "megatron",
    ),
    "nemo": (
        "NeMo",
        [
            f"{NEMO.format(9)}/weights/common.pt",
            f"{NEMO.format(9)}/weights/.metadata",
            f"{NEMO.format(9)}/context/model.yaml",
            f"{NEMO.format(19)}-last/weights/common.pt",
            f"{NEMO.format(19)}-last/weights/.metadata",
            f"{NEMO.format(19)}-last/context/model.yaml",
            f"{NEMO.format(29)}/weights/common.pt",
            f"{NEMO.format(29)}/weights/.metadata",
            f"{NEMO.format(29)}/context/model.yaml",
            f"{NEMO.format(29)}-unfinished",
            "cmd-args.log",
        ],
        f"{NEMO.format(19)}-last/weights",
        "megatron",
    ),
    "ms-swift": (
        "ms-swift",
        [
            *below("v0-20260101-120000/checkpoint-20", (*TRAINER, "args.json")),
            "v0-20260101-120000/args.json",
            "v0-20260101-120000/logging.jsonl",
        ],
        "v0-20260101-120000/checkpoint-20",
        "safetensors",
    ),
    "llama-factory": (
        "LLaMA-Factory",
        [*below("checkpoint-20", TRAINER), "trainer_log.jsonl", "train_results.json"],
        "checkpoint-20",
        "safetensors",
    ),
    "trainer-deepspeed": (
        "the Trainer of transformers",
        [
            *below("checkpoint-20/global_step20", TAG),
            "checkpoint-20/latest=global_step20",
            "checkpoint-20/trainer_state.json",
        ],
        "checkpoint-20",
        "deepspeed",
    ),
    "accelerate": (
        "accelerate",
        [
            "checkpoints/checkpoint_3/pytorch_model_fsdp_0/.metadata",
            "checkpoints/checkpoint_3/random_states_0.pkl",
        ],
        "checkpoints/checkpoint_3",
        "dcp",
    ),
    "lightning": (
        "Lightning",
        [
            "lightning_logs/version_0/checkpoints/epoch=0-step=20.ckpt",
            "lightning_logs/version_0/checkpoints/epoch=0-step=4.ckpt",
            "lightning_logs/version_0/hparams.yaml",
        ],
        "lightning_logs/version_0/checkpoints/epoch=0-step=20.ckpt",
        "torchfile",
    ),
    "lightning-deepspeed": (
        "Lightning",
        [
            *below("checkpoints/epoch=0-step=20.ckpt/checkpoint", TAG),
            "checkpoints/epoch=0-step=20.ckpt/latest=checkpoint",
            *below("checkpoints/last.ckpt/checkpoint", TAG),
            "checkpoints/last.ckpt/latest=checkpoint",
        ],
        "checkpoints/last.ckpt",
        "deepspeed",
    ),
    "lightning-fsdp": (
        "Lightning",
        [*below("checkpoints/epoch=1-step=8.ckpt", (*DCP, "meta.pt"))],
        "checkpoints/epoch=1-step=8.ckpt",
        "dcp",
    ),
}


def make_run(root: Path, names: Iterable[str]) -> Path:
    """Empty files; `NAME=TEXT` has a text, where NAME is that of a tracker."""
    for name in names:
        file, text = name, ""
        if name.rpartition("/")[2].startswith("latest"):
            file, _, text = name.partition("=")
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(("program", "names", "taken", "form"), RUNS.values(), ids=RUNS)
def test_its_newest_finished_checkpoint_is_taken(
    tmp_path: Path, program: str, names: list[str], taken: str, form: str
) -> None:
    found = detect(make_run(tmp_path, names))
    assert (found.path, found.format) == (tmp_path / taken, form)
    run = run_at(tmp_path, names_in(tmp_path))
    assert run is not None
    assert run.layout.program == program


def test_every_program_has_a_case() -> None:
    assert {layout.program for layout in PROGRAMS} == {case[0] for case in RUNS.values()}


@pytest.mark.parametrize(("program", "names", "taken", "form"), RUNS.values(), ids=RUNS)
def test_a_directory_between_the_run_and_the_data_means_the_same(
    tmp_path: Path, program: str, names: list[str], taken: str, form: str
) -> None:
    """Such as `step_10` of NeMo-RL, whose data lie in `policy/weights/model`."""
    found = make_run(tmp_path, names) / taken
    run = run_at(tmp_path, names_in(tmp_path))
    assert run is not None
    entries = [tmp_path / entry.name for entry in run.entries]
    for path in found.parents:
        if any(path.is_relative_to(entry) for entry in entries):
            assert (detect(path).path, detect(path).format) == (found, form)
