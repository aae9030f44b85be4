"""The options of launchers, and how many words follow each option as its value.

Sources: launcher/runner.py of DeepSpeed 0.19, distributed/run.py of torch 2.13, commands/launch.py
of accelerate 1.15, and Python's help.
"""

from __future__ import annotations

from collections.abc import Mapping

SEVERAL_MACHINES = (
    "the import makes a job for one machine; set it to 1, count only the processes of one "
    "machine, and add [rendezvous] with address and nodes to the job file"
)
"""The message for launcher options that need several machines. They are not imported."""

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
"""Launcher -> option without its dashes -> number of words after the option that are its value.

An option of accelerate that is not listed has one word.
"""

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
"""Options that determine how processes find each other and where their output goes.

No key of a job depends on them.
"""

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
"""Options that choose the GPUs and the number of ranks. Keys of the job replace them."""

PLACING_VARIABLES = frozenset(
    (
        "ACCELERATE_TORCH_DEVICE",
        *(f"PET_{name.upper()}" for name in PLACING),
        *("PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH"),
    )
)
"""Environment variables that change how torchrun and accelerate start ranks.

Some of these changes cannot be undone by an option.
"""

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
"""Option of `accelerate launch` -> the value of `distributed_type` in its YAML."""

ACCELERATE_NAMES: Mapping[str, str] = {"cpu": "use_cpu"}
"""Option of `accelerate launch` -> key of its YAML, for options with another name there.

Options with the prefixes `dynamo_` and `fsdp_` are keys of sections.
"""

MODULES: Mapping[str, str] = {
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
"""MODULE in `python -m MODULE` -> the launcher that this module is."""
KEYWORDS = frozenset(("do", "then", "else", "!", "{"))
"""Shell keywords that may stand before a command."""
SHELLS = frozenset(("bash", "sh", "zsh", "dash"))
WRAPPERS = frozenset(
    [
        "nohup",
        "time",
        "exec",
        "env",
        "sudo",
        "srun",
        "sbatch",
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
"""Programs that may stand before a launcher without changing its options, such as nohup."""
CONTAINERS = frozenset(
    (
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
"""Programs that start a command in a container."""
RUNNERS = CONTAINERS | frozenset(
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
    )
)
"""Programs as in `WRAPPERS`, but with two words, such as `uv run`."""
STARTED_BY: Mapping[str, str] = {
    **dict.fromkeys(
        ("srun", "sbatch"),
        "the daemon starts the ranks on this machine; for Slurm, see zerotools submit --slurm",
    ),
    **dict.fromkeys(
        map(" ".join, CONTAINERS),
        "the job runs outside the container, where paths may differ",
    ),
    **dict.fromkeys(
        ("conda run", "mamba run", "micromamba run"),
        "set python of the job file to the interpreter of that environment",
    ),
}
"""Program that starts a launcher -> the remark about this program in the report."""
_OF_DOCKER = r"--env(?:=|$)|-[Pdiqt]*e=?"
VARIABLE_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("docker", "podman", "nvidia-docker"), _OF_DOCKER),
    **dict.fromkeys(("apptainer", "singularity"), r"--env(?:=|$)"),
    **dict.fromkeys(("srun", "sbatch"), r"--export(?:=|$)"),
}
"""Program -> a pattern of its option that sets environment variables. What follows the match in
the same word is the value; if nothing follows, the next word is.
"""
ONE_VARIABLE = frozenset(("docker", "podman", "nvidia-docker"))
"""Programs that set one variable for each option. Others separate several by commas."""
VARIABLES_FIRST = frozenset(("env", "sudo", "time"))
"""Programs that take environment variables such as `A=1` in front of the command."""
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
"""Program that starts its ranks itself, such as axolotl -> those of its commands that train."""
PROGRAM_MODULES: Mapping[str, str] = {
    "axolotl.cli.train": "axolotl",
    "llamafactory.cli": "llamafactory-cli",
    "llamafactory.launcher": "llamafactory-cli",
}
"""MODULE in `python -m MODULE` -> the program in `CONSOLE_PROGRAMS` that this module belongs to."""
CONSOLE_MODULES: Mapping[str, tuple[str, str]] = {
    "llamafactory-cli": ("torchrun", "llamafactory.launcher"),
    "axolotl": ("accelerate", "axolotl.cli.train"),
    "swift": ("torchrun", "swift.cli.sft"),
    "xtuner": ("torchrun", "xtuner.tools.train"),
    "litgpt": ("plain", "litgpt"),
}
"""Program in `CONSOLE_PROGRAMS` -> the launcher that starts its ranks, and the module that each
rank runs.
"""
ONE_RANK = frozenset(("swift", "xtuner", "litgpt"))
"""Programs in `CONSOLE_PROGRAMS` that start only one rank by default."""
RANKS_BY = "NPROC_PER_NODE"
"""The environment variable that sets the number of ranks for programs in `CONSOLE_PROGRAMS`."""
