"""The options of launchers, and the number of words that follow each option.

DeepSpeed 0.19 launcher/runner.py, torch 2.13 distributed/run.py, accelerate 1.15
commands/launch.py, Python's own.
"""

from __future__ import annotations

from collections.abc import Mapping

SEVERAL_MACHINES = (
    "this makes the job of one machine; set it to 1 with the processes of one, and give the job "
    "file [rendezvous] with address and nodes"
)
"""The reason why a launcher's options for several machines are not imported."""

_DEEPSPEED = (
    "hostfile include exclude num_nodes min_elastic_nodes max_elastic_nodes num_gpus "
    "num_accelerators master_port master_addr node_rank launcher launcher_args ssh_port "
    "enable_each_rank_log autotuning bind_core_list venv_script log_level"
)
_DEEPSPEED_FLAGS = (
    "module no_python no_local_rank bind_cores_to_rank force_multi save_pid elastic_training "
    "no_ssh no_ssh_check user_args quiet"
)
_TORCHRUN = (
    "nproc_per_node nnodes node_rank master_addr master_port local_addr rdzv_backend "
    "rdzv_endpoint rdzv_id rdzv_conf max_restarts monitor_interval start_method role log_dir "
    "redirects tee local_ranks_filter event_log_handler logs_specs numa_binding "
    "duplicate_stdout_filters duplicate_stderr_filters signals_to_handle shutdown_timeout"
)
_TORCHRUN_FLAGS = "standalone module no_python run_path use_env virtual_local_rank"
_ACCELERATE_FLAGS = (
    "cpu multi_gpu tpu ipex use_mps_device use_xpu use_deepspeed use_fsdp use_megatron_lm "
    "use_parallelism_config quiet module no_python same_network debug enable_cpu_affinity "
    "dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation tpu_use_cluster "
    "tpu_use_sudo main_process_only"
)

WORDS_AFTER: Mapping[str, Mapping[str, int]] = {
    "deepspeed": {
        **dict.fromkeys(_DEEPSPEED.split(), 1),
        **dict.fromkeys(_DEEPSPEED_FLAGS.split(), 0),
    },
    "torchrun": {
        **dict.fromkeys(_TORCHRUN.split(), 1),
        **dict.fromkeys(_TORCHRUN_FLAGS.split(), 0),
    },
    "accelerate": dict.fromkeys(_ACCELERATE_FLAGS.split(), 0),
    "python": {
        "m": 0,
        "X": 1,
        "W": 1,
        **dict.fromkeys(
            ["u", "O", "OO", "B", "E", "s", "S", "I", "P", "v", "x", "b", "d", "i", "q"], 0
        ),
    },
}
"""Launcher -> option without its dashes -> number of words after it. Every other option of
accelerate has one word."""

MEETING = frozenset(
    (
        "hostfile",
        "launcher_args",
        "launcher",
        "log_dir",
        "log_level",
        "local_addr",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "master_addr",
        "master_port",
        "max_restarts",
        "monitor_interval",
        "node_rank",
        "rdzv_backend",
        "rdzv_conf",
        "rdzv_endpoint",
        "rdzv_id",
        "redirects",
        "role",
        "ssh_port",
        "tee",
        "venv_script",
    )
)
"""Options for the rendezvous and the output of processes. No key of a job depends on their
values."""

PLACING = frozenset(
    (
        "gpu_ids",
        "machine_rank",
        "main_process_ip",
        "master_addr",
        "nnodes",
        "node_rank",
        "nproc_per_node",
        "num_machines",
        "num_processes",
        "rdzv_backend",
        "rdzv_endpoint",
        "rdzv_id",
        "standalone",
        "world_info",
    )
)
"""Options for the GPUs and the number of ranks, which keys of the job replace."""

PLACING_VARIABLES = frozenset(
    (
        "ACCELERATE_TORCH_DEVICE",
        *(f"PET_{name.upper()}" for name in PLACING),
        *("PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH"),
    )
)
"""Environment variables that change how torchrun and accelerate start ranks. No option can undo
some of these changes."""

SHORT: Mapping[str, Mapping[str, str]] = {
    "deepspeed": {"H": "hostfile", "i": "include", "e": "exclude", "q": "quiet"},
    "torchrun": {"m": "module", "r": "redirects", "t": "tee"},
    "accelerate": {"m": "module", "q": "quiet"},
    "python": {},
}

ACCELERATE_KINDS: Mapping[str, str] = {
    "use_deepspeed": "DEEPSPEED",
    "use_fsdp": "FSDP",
    "use_megatron_lm": "MEGATRON_LM",
    "multi_gpu": "MULTI_GPU",
    "tpu": "XLA",
}
"""Flag of `accelerate launch` -> the `distributed_type` of its YAML."""

ACCELERATE_NAMES: Mapping[str, str] = {"cpu": "use_cpu"}
"""Option of `accelerate launch` -> key of its YAML, if the names differ. The keys after `dynamo_`
and `fsdp_` are in tables."""

MODULES: Mapping[str, str] = {
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
"""MODULE of `python -m MODULE` -> the launcher that it is."""
KEYWORDS = frozenset(("do", "then", "else", "!", "{"))
"""Keywords of the shell that may precede a command."""
SHELLS = frozenset(("bash", "sh", "zsh", "dash"))
WRAPPERS = frozenset(
    [
        "nohup",
        "time",
        "exec",
        "env",
        "sudo",
        "srun",
        "nice",
        "ionice",
        "command",
        "unbuffer",
        "stdbuf",
        "timeout",
        "numactl",
        "taskset",
        "setsid",
        "script",
        "nsys",
    ]
)
"""Programs that start a launcher and do not change its options."""
RUNNERS = frozenset(
    (
        ("uv", "run"),
        ("poetry", "run"),
        ("pipenv", "run"),
        ("pdm", "run"),
        ("hatch", "run"),
        ("pixi", "run"),
        ("rye", "run"),
        ("conda", "run"),
        ("mamba", "run"),
        ("micromamba", "run"),
        ("docker", "run"),
        ("docker", "exec"),
        ("podman", "run"),
        ("podman", "exec"),
        ("nvidia-docker", "run"),
        ("singularity", "exec"),
        ("apptainer", "exec"),
        ("kubectl", "exec"),
    )
)
"""Wrappers of two words."""
STARTED_BY: Mapping[str, str] = {
    "srun": "the daemon starts the ranks on this machine; for Slurm, see zerotools submit --slurm",
    **dict.fromkeys(
        (
            "docker run",
            "docker exec",
            "podman run",
            "podman exec",
            "nvidia-docker run",
            "singularity exec",
            "apptainer exec",
            "kubectl exec",
        ),
        "the job runs outside of the container: paths in it may be others here",
    ),
    **dict.fromkeys(
        ("conda run", "mamba run", "micromamba run"),
        "set python of the job file to the interpreter of that environment",
    ),
}
"""Program that starts a launcher -> a remark in the report."""
CONSOLE_PROGRAMS: Mapping[str, frozenset[str]] = {
    "llamafactory-cli": frozenset(("train",)),
    "axolotl": frozenset(("train",)),
    "swift": frozenset(("sft", "pt", "rlhf", "dpo")),
    "trl": frozenset(("sft", "dpo", "kto", "grpo", "orpo", "cpo", "reward", "rloo")),
    "xtuner": frozenset(("train",)),
    "litgpt": frozenset(
        (
            "finetune",
            "finetune_full",
            "finetune_lora",
            "finetune_adapter",
            "finetune_adapter_v2",
            "pretrain",
        )
    ),
}
"""Console program that starts its ranks itself -> its commands that train."""
PROGRAM_MODULES: Mapping[str, str] = {
    "axolotl.cli.train": "axolotl",
    "llamafactory.cli": "llamafactory-cli",
    "llamafactory.launcher": "llamafactory-cli",
}
"""MODULE of `python -m MODULE` -> the console program that it belongs to."""
CONSOLE_MODULES: Mapping[str, tuple[str, str]] = {
    "llamafactory-cli": ("torchrun", "llamafactory.launcher"),
    "axolotl": ("accelerate", "axolotl.cli.train"),
    "swift": ("torchrun", "swift.cli.sft"),
    "xtuner": ("torchrun", "xtuner.tools.train"),
    "litgpt": ("plain", "litgpt"),
}
"""Console program -> the launcher of its ranks, and the module that the ranks run."""
ONE_RANK = frozenset(("swift", "xtuner", "litgpt"))
"""Console programs that start one rank by default."""
RANKS_BY = "NPROC_PER_NODE"
"""The environment variable with the number of ranks of console programs."""
