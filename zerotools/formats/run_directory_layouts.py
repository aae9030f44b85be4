"""Descriptions of the run directories of all known programs; the more common programs come first.

Sources (the code that writes the directory):

verl           verl/utils/checkpoint/fsdp_checkpoint_manager.py, verl/trainer/ppo/ray_trainer.py
NeMo-RL        nemo_rl/utils/checkpoint.py
prime-rl       src/prime_rl/trainer/ckpt.py
OpenRLHF       openrlhf/utils/deepspeed/deepspeed.py, openrlhf/utils/fsdp/checkpoint.py,
               openrlhf/trainer/ppo_trainer.py, openrlhf/trainer/sft_trainer.py
slime          slime/backends/fsdp_utils/checkpoint.py, slime/rollout/data_source.py
NeMo           nemo/lightning/pytorch/callbacks/model_checkpoint.py, nemo/lightning/ckpt_utils.py
ms-swift       swift/llm/argument/base_args, swift/trainers/mixin.py
LLaMA-Factory  src/llamafactory/train/callbacks.py
the Trainer    transformers/trainer.py
accelerate     accelerate/checkpointing.py, accelerate/accelerator.py
Lightning      lightning/pytorch/callbacks/model_checkpoint.py
"""

from __future__ import annotations

from dataclasses import dataclass

HERE = ""
"""The value of a place that means the run's directory itself."""


@dataclass(frozen=True, slots=True)
class Tracker:
    """A file that names the checkpoint that the program continues from.

    `name` is the pattern of this checkpoint's name, in which `{}` stands for the content of the
    file.
    """

    file: str
    name: str = "{}"


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The structure of the run directories that the training program `program` writes.

    A directory belongs to the program if one of its newest checkpoints contains a file that matches
    `holds`, and the directory itself contains a file that matches `next_to_checkpoints`. A pattern
    that is None is not checked.

    Attributes:
        numbered: the pattern of checkpoint names. Its groups `step` and `last` show which
            checkpoint is newer.
        files: True if checkpoints are files, False if they are directories.
        places: the directories that may contain the checkpoints, relative to the run's directory.
            Each part of a path is a pattern. The first directory with a checkpoint is used.
        models: the models that a checkpoint may contain. The first one is read.
        inside: the relative paths at which a checkpoint may hold the model. The first path that
            zerotools can read is used.
        written_last: a file that a finished checkpoint contains.
        unfinished_suffix: until a checkpoint is finished, a file with its name and this suffix is
            next to it.
        wraps_models: True if tensor names begin with the name of the attribute that holds the
            model.
    """

    program: str
    numbered: str
    files: bool = False
    places: tuple[str, ...] = (HERE,)
    models: tuple[str, ...] = (HERE,)
    inside: tuple[str, ...] = (HERE,)
    holds: str | None = None
    next_to_checkpoints: str | None = None
    tracker: Tracker | None = None
    written_last: str | None = None
    unfinished_suffix: str | None = None
    wraps_models: bool = False


_TRAINER_STATE = "trainer_state.json"
_GLOBAL_STEP_N = r"(best.*?)?global_step(?P<step>\d+)"
_CHECKPOINT_N = r"checkpoint-(?P<step>\d+)"
_LATEST_ITERATION = "latest_checkpointed_iteration.txt"
_SWIFT_VERSION = r"v\d+-\d{8}-\d{6}"

PROGRAMS: tuple[RunLayout, ...] = (
    RunLayout(
        "verl",
        r"global_step_(?P<step>\d+)",
        models=("actor", "critic", HERE),
        inside=(HERE, "model/dist_ckpt", "dist_ckpt", "model/huggingface", "huggingface"),
        holds=r"actor|critic|huggingface|fsdp_config\.json|model_world_size_\d+_.*",
        tracker=Tracker(_LATEST_ITERATION, "global_step_{}"),
    ),
    RunLayout(
        "NeMo-RL",
        r"step_(?P<step>\d+)",
        models=("policy", "value"),
        inside=("weights/model", "weights"),
        holds=r"training_info\.json",
    ),
    RunLayout(
        "prime-rl",
        r"step_(?P<step>\d+)",
        places=("checkpoints", HERE),
        models=("trainer",),
        holds=r"trainer",
    ),
    RunLayout(
        "OpenRLHF",
        _GLOBAL_STEP_N,
        places=("_actor", "_critic", r"checkpoints_\w+/_actor", r"checkpoints_\w+/_critic"),
        tracker=Tracker("latest"),
    ),
    RunLayout(
        "OpenRLHF",
        _GLOBAL_STEP_N,
        places=(HERE, r"checkpoints_\w+"),
        holds=r"metric\.json",
        tracker=Tracker("latest"),
    ),
    RunLayout(
        "OpenRLHF",
        rf"{_GLOBAL_STEP_N}_hf",
        places=(HERE, r"checkpoints_\w+"),
    ),
    RunLayout(
        "slime",
        r"iter_(?P<step>\d{7,})",
        holds=r"meta\.json",
        tracker=Tracker(_LATEST_ITERATION, "iter_{:0>7}"),
    ),
    RunLayout(
        "slime",
        r"iter_(?P<step>\d{7,})",
        next_to_checkpoints=r"rollout",
        tracker=Tracker(_LATEST_ITERATION, "iter_{:0>7}"),
    ),
    RunLayout(
        "NeMo",
        r"(?!.*-unfinished).*?(step=(?P<step>\d+).*?(?P<last>-last)?|-last)",
        places=(HERE, "checkpoints", r"\d{4}-\d\d-\d\d_[\d-]+/checkpoints"),
        inside=("weights",),
        holds=r"context",
        unfinished_suffix="-unfinished",
    ),
    RunLayout(
        "ms-swift",
        _CHECKPOINT_N,
        places=(HERE, _SWIFT_VERSION),
        holds=r"args\.json",
        written_last=_TRAINER_STATE,
    ),
    RunLayout(
        "LLaMA-Factory",
        _CHECKPOINT_N,
        holds=_TRAINER_STATE,
        next_to_checkpoints=r"trainer_log\.jsonl|llamaboard_config\.yaml",
        written_last=_TRAINER_STATE,
    ),
    RunLayout(
        "the Trainer of transformers",
        _CHECKPOINT_N,
        holds=_TRAINER_STATE,
        written_last=_TRAINER_STATE,
    ),
    RunLayout(
        "accelerate",
        r"(checkpoint|step|epoch)_(?P<step>\d+)",
        places=("checkpoints", HERE),
        holds=r"random_states_\d+\.pkl",
    ),
    RunLayout(
        "Lightning",
        r"(?P<last>last)(-v\d+)?\.ckpt|.*step=(?P<step>\d+).*\.ckpt|.*epoch=\d.*\.ckpt",
        files=True,
        places=(
            HERE,
            "checkpoints",
            r"version_\d+/checkpoints",
            r".*_logs/version_\d+/checkpoints",
        ),
        wraps_models=True,
    ),
)
