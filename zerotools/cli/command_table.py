"""All commands in the order of the help page, each with its help line, examples and synonyms.

The help page is made from this table alone, so it imports no command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

CHECKPOINTS = "Checkpoints"
JOBS = "Jobs"
MACHINE = "Machine"
SECTIONS = (CHECKPOINTS, JOBS, MACHINE)


class CommandEntry(NamedTuple):
    """One command: the module that defines it, its section of the help page, and one line of help.

    `is_local` is True if the command is about this machine, even if it also connects to the daemon.
    `json_version` is the number at the end of the schema of its JSON, such as 1 in
    `zerotools.cancel/1`.
    """

    module: str
    section: str
    help: str
    is_local: bool = False
    json_version: int = 1


class OldName(NamedTuple):
    """An old name of a command: the module that still implements it, and the command to type
    instead.
    """

    module: str
    now: str


COMMANDS: dict[str, CommandEntry] = {
    "inspect": CommandEntry(
        "zerotools.cli.commands.inspect", CHECKPOINTS, "Show the contents of a checkpoint."
    ),
    "diff": CommandEntry(
        "zerotools.cli.commands.diff", CHECKPOINTS, "Compare two checkpoints of any format."
    ),
    "consolidate": CommandEntry(
        "zerotools.cli.commands.consolidate",
        CHECKPOINTS,
        "Merge a checkpoint into 16-bit safetensors.",
    ),
    "reshard": CommandEntry(
        "zerotools.cli.commands.reshard",
        CHECKPOINTS,
        "Rewrite a checkpoint for another world size.",
    ),
    "convert": CommandEntry(
        "zerotools.cli.commands.convert", CHECKPOINTS, "Rewrite a checkpoint in another format."
    ),
    "maps": CommandEntry(
        "zerotools.cli.commands.maps",
        CHECKPOINTS,
        "Show how other programs arrange the same weights.",
    ),
    "verify": CommandEntry(
        "zerotools.cli.commands.verify", CHECKPOINTS, "Check whether a checkpoint is whole."
    ),
    "serve": CommandEntry(
        "zerotools.cli.commands.serve",
        CHECKPOINTS,
        "Serve a checkpoint as a model, over HTTP.",
    ),
    "salvage": CommandEntry(
        "zerotools.cli.commands.salvage",
        CHECKPOINTS,
        "Export the undamaged weights of a checkpoint.",
    ),
    "thin": CommandEntry(
        "zerotools.cli.commands.thin",
        CHECKPOINTS,
        "Drop the optimizer state of old checkpoints.",
        is_local=True,
    ),
    "delta": CommandEntry(
        "zerotools.cli.commands.delta",
        CHECKPOINTS,
        "Write the difference between two models.",
    ),
    "apply": CommandEntry(
        "zerotools.cli.commands.apply",
        CHECKPOINTS,
        "Apply deltas to a model.",
    ),
    "gather": CommandEntry(
        "zerotools.cli.commands.gather",
        CHECKPOINTS,
        "Collect shards from several nodes.",
    ),
    "init": CommandEntry(
        "zerotools.cli.commands.init",
        JOBS,
        "Write a job file that fits this machine.",
        is_local=True,
    ),
    "estimate": CommandEntry(
        "zerotools.cli.commands.estimate",
        JOBS,
        "Predict how much memory a training needs.",
        is_local=True,
    ),
    "import": CommandEntry(
        "zerotools.cli.commands.import_config",
        JOBS,
        "Make a job file from a config or a launch line.",
    ),
    "submit": CommandEntry(
        "zerotools.cli.commands.submit", JOBS, "Queue training jobs; follow one if you like."
    ),
    "queue": CommandEntry(
        "zerotools.cli.commands.queue", JOBS, "List the jobs, and why they wait."
    ),
    "show": CommandEntry(
        "zerotools.cli.commands.show", JOBS, "Show one job: attempts, memory, checkpoints."
    ),
    "explain": CommandEntry(
        "zerotools.cli.commands.explain", JOBS, "Show why a job waits, stopped or restarted."
    ),
    "shares": CommandEntry(
        "zerotools.cli.commands.shares", JOBS, "Show the GPU time of each user."
    ),
    "logs": CommandEntry("zerotools.cli.commands.logs", JOBS, "Print or follow the log of a job."),
    "cancel": CommandEntry(
        "zerotools.cli.commands.cancel", JOBS, "Stop jobs; a running job saves first."
    ),
    "priority": CommandEntry(
        "zerotools.cli.commands.priority", JOBS, "Change the priority of a waiting job."
    ),
    "hold": CommandEntry(
        "zerotools.cli.commands.hold", JOBS, "Save and stop jobs until they are released."
    ),
    "release": CommandEntry("zerotools.cli.commands.release", JOBS, "Let held jobs start."),
    "edit": CommandEntry("zerotools.cli.commands.edit", JOBS, "Change a job before it starts."),
    "retry": CommandEntry(
        "zerotools.cli.commands.retry", JOBS, "Continue a finished job, or restart it."
    ),
    "adopt": CommandEntry(
        "zerotools.cli.commands.adopt", JOBS, "Watch a training that you started by hand."
    ),
    "wait": CommandEntry("zerotools.cli.commands.wait", JOBS, "Wait until jobs have ended."),
    "clean": CommandEntry(
        "zerotools.cli.commands.clean", JOBS, "Remove records and logs of finished jobs."
    ),
    "backup": CommandEntry(
        "zerotools.cli.commands.backup", JOBS, "Copy the queue while it is in use."
    ),
    "restore": CommandEntry(
        "zerotools.cli.commands.restore", JOBS, "Restore the queue from a copy."
    ),
    "monitor": CommandEntry(
        "zerotools.cli.commands.monitor", MACHINE, "Watch GPU and host memory.", True
    ),
    "top": CommandEntry(
        "zerotools.cli.commands.top", MACHINE, "Watch GPUs, host and jobs on a full screen."
    ),
    "web": CommandEntry(
        "zerotools.cli.commands.web", MACHINE, "Print a link that shows the queue in a browser."
    ),
    "drain": CommandEntry(
        "zerotools.cli.commands.drain", MACHINE, "Start no more jobs; running jobs continue."
    ),
    "undrain": CommandEntry("zerotools.cli.commands.undrain", MACHINE, "Start jobs again."),
    "notify": CommandEntry(
        "zerotools.cli.commands.notify", MACHINE, "Test the destinations of notifications."
    ),
    "doctor": CommandEntry(
        "zerotools.cli.commands.doctor", MACHINE, "Find problems that could stop jobs.", True
    ),
    "chaos": CommandEntry(
        "zerotools.cli.commands.chaos",
        MACHINE,
        "Test the daemon with toy jobs and random faults.",
        True,
    ),
    "help": CommandEntry("zerotools.cli.commands.help", MACHINE, "Show a page of the manual."),
}

OLD_NAMES: dict[str, OldName] = {
    "pause": OldName("zerotools.cli.commands.hold", "zerotools hold"),
    "unpause": OldName("zerotools.cli.commands.release", "zerotools release"),
    "resume": OldName(
        "zerotools.cli.commands.resume", "zerotools retry (for a held job: zerotools release)"
    ),
}
"""Old commands that still work. The help page and completion do not list them."""


SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(("ps", "list", "ls", "jobs", "status", "squeue", "qstat"), "queue"),
    **dict.fromkeys(("kill", "stop", "rm", "remove", "delete", "scancel", "abort"), "cancel"),
    **dict.fromkeys(("merge", "export", "combine", "zero_to_fp32", "join"), "consolidate"),
    **dict.fromkeys(("run", "start", "train", "add", "launch", "sbatch", "enqueue"), "submit"),
    **dict.fromkeys(("log", "tail", "output"), "logs"),
    **dict.fromkeys(("info", "describe", "cat", "view"), "inspect"),
    **dict.fromkeys(("job", "plot"), "show"),
    **dict.fromkeys(("gpu", "gpus", "nvidia-smi", "smi", "memory", "watch"), "monitor"),
    **dict.fromkeys(("rescue", "repair", "recover", "fix", "mend"), "salvage"),
    **dict.fromkeys(("split", "repartition", "resize"), "reshard"),
    **dict.fromkeys(("transform", "ds_to_universal", "translate"), "convert"),
    **dict.fromkeys(("prune", "purge", "gc", "clear", "cleanup"), "clean"),
    **dict.fromkeys(("restart", "continue", "requeue", "again", "rerun", "resume"), "retry"),
    **dict.fromkeys(("stash", "suspend", "pause"), "hold"),
    **dict.fromkeys(("unhold", "unstash", "unsuspend", "unpause"), "release"),
    **dict.fromkeys(("nice", "renice"), "priority"),
    **dict.fromkeys(("migrate", "config"), "import"),
    **dict.fromkeys(("host", "http", "expose", "mount"), "serve"),
    **dict.fromkeys(("collect", "fetch", "pull", "scp", "rsync"), "gather"),
    **dict.fromkeys(("man", "manual", "docs", "doc", "topics"), "help"),
    **dict.fromkeys(("strip", "slim", "shrink", "drop"), "thin"),
}


def suggest_commands(word: str, known: Iterable[str]) -> list[str]:
    """Return at most two of the commands `known` that the user may have meant by the mistyped
    `word`, the likeliest first.

    If `word` is similar to no command, it is compared with commands of other programs. For example,
    `paus` is similar to `pause`, and zerotools has `hold` for this purpose.
    """
    names = list(known)
    other = SYNONYMS.get(word.lower())
    import difflib  # 1 ms at each start

    near = difflib.get_close_matches(word, names, n=2, cutoff=0.75 if other else 0.6)
    if not near and other is None:
        near = [SYNONYMS[each] for each in difflib.get_close_matches(word, SYNONYMS, 1, 0.8)]
    return ([other] if other in names and other not in near else []) + near[: 1 if other else 2]


EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "inspect": (
        "zerotools inspect output/checkpoint-2000",
        "zerotools inspect runs/tiny --tensors",
        "zerotools inspect zero3-run --tag global_step500 --json",
    ),
    "diff": (
        "zerotools diff zero3-run as-dcp",
        "zerotools diff zero3-run model --role param --tolerance cast",
        "zerotools diff run-a run-b --rename '^module\\.=' --tolerance abs=1e-6,rel=1e-3",
        "zerotools diff exported base-model --adapter adapter",
    ),
    "consolidate": (
        "zerotools consolidate output/checkpoint-2000 model",
        "zerotools consolidate zero3-run model --dtype bf16 --verify",
        "zerotools consolidate run.pt model --strip-prefix module.",
        "zerotools consolidate lora-run model --base llama-8b",
        "zerotools consolidate lora-run adapter --adapter-only",
        "zerotools consolidate zero3-run for-megatron --map-to megatron",
    ),
    "reshard": (
        "zerotools reshard runs/tiny for-three --world-size 3",
        "zerotools reshard zero2-run zero3-run --world-size 8 --stage 3",
    ),
    "convert": (
        "zerotools convert zero3-run as-dcp --to dcp",
        "zerotools convert runs/tiny universal --to universal --dry-run",
    ),
    "maps": (
        "zerotools maps list",
        "zerotools maps show llama --config model/config.json",
        "zerotools maps check llama zero3-run --config model/config.json",
    ),
    "verify": (
        "zerotools verify runs/tiny",
        "zerotools verify zero3-run --fast",
    ),
    "serve": (
        "zerotools serve runs/tiny",
        "zerotools serve zero3-run --dtype bf16 --listen 127.0.0.1:8080 --name tiny",
    ),
    "salvage": (
        "zerotools salvage zero3-run model --dry-run",
        "zerotools salvage zero3-run model --fill-from runs/tiny",
    ),
    "thin": (
        "zerotools thin zero3-run/global_step500",
        "zerotools thin output --keep-last 2 --drop-masters --yes",
        "zerotools thin output --older-than 30d --keep-every 1000 --yes",
    ),
    "delta": (
        "zerotools delta step-100 step-200 step-200.delta",
        "zerotools delta served-model zero3-run next.delta --dtype bf16",
    ),
    "apply": (
        "zerotools apply step-100 step-200.delta step-300.delta model-300",
        "zerotools apply --in-place served-model next.delta",
    ),
    "gather": (
        "zerotools gather node1:/local/run node2:/local/run whole",
        "zerotools gather /local/run node2:/local/run whole --tag global_step500 --dry-run",
        "zerotools gather ssh://ada@node1:2222/local/run node2:run whole --fast",
    ),
    "init": (
        "zerotools init",
        "zerotools init --yes --model runs/tiny --data corpus -o job.toml",
    ),
    "estimate": (
        "zerotools estimate 7B --gpus 8 --gpu-memory 80GiB --host-memory 512GiB",
        "zerotools estimate runs/tiny --gpus 2 --sequence-length 2048 --batch 4",
        "zerotools estimate job.toml --json",
        "zerotools estimate model --deepspeed ds_config.json --batch 2 --gpus 4",
    ),
    "import": (
        "zerotools import --deepspeed ds_config.json",
        "zerotools import base.toml --accelerate default_config.yaml -o job.toml",
        "zerotools import --launch run.sh -o job.toml",
    ),
    "submit": (
        "zerotools submit --follow job.toml",
        "zerotools submit job.toml --priority 5",
        "zerotools submit job.toml --sweep train.learning_rate=1e-4,3e-4 --sweep seed=1,2",
        "zerotools submit second.toml --after first --begin 22:30",
        "zerotools submit first.toml second.toml",
        "zerotools submit job.toml --deepspeed ds_config.json --dry-run",
    ),
    "queue": (
        "zerotools queue",
        "zerotools queue --all --limit 20",
        "zerotools queue --all --named tiny",
        "zerotools queue --mine",
    ),
    "show": (
        "zerotools show",
        "zerotools show 7 --plot",
        "zerotools show tiny wide --plot -o loss.png",
    ),
    "explain": ("zerotools explain", "zerotools explain 7 --json"),
    "shares": ("zerotools shares", "zerotools shares --json"),
    "logs": ("zerotools logs -f", "zerotools logs 7 --tail 50 --rank all"),
    "cancel": ("zerotools cancel 7", "zerotools cancel @7", "zerotools cancel tiny wide --wait"),
    "priority": ("zerotools priority tiny 5", "zerotools priority 7 -3"),
    "hold": ("zerotools hold 7", "zerotools hold @7 tiny --wait"),
    "release": ("zerotools release 7",),
    "edit": (
        "zerotools edit 7",
        "zerotools edit tiny --set train.steps=80 --unset time_limit",
        "zerotools edit tiny --begin 22:30",
    ),
    "retry": (
        "zerotools retry tiny",
        "zerotools retry 7 --from-start",
        "zerotools retry tiny --from-start --output-dir runs/tiny-again",
    ),
    "adopt": (
        "zerotools adopt 81234",
        "zerotools adopt 81234 --time-limit 12h --checkpoint-dir runs/tiny",
    ),
    "wait": ("zerotools wait 7 8", "zerotools wait tiny wide --any --timeout 2h"),
    "clean": (
        "zerotools clean --older-than 30d --dry-run",
        "zerotools clean --outputs 12",
    ),
    "backup": ("zerotools backup /backups/queue-friday.db",),
    "restore": (
        "zerotools restore /backups/queue-friday.db",
        "zerotools restore queue-friday.db --release",
    ),
    "monitor": (
        "zerotools monitor",
        "zerotools monitor --once --json",
        "zerotools monitor --history 6h",
        "zerotools monitor --peaks",
    ),
    "top": ("zerotools top", "zerotools top --interval 5"),
    "web": ("zerotools web", "zerotools web --open", "zerotools web --end"),
    "drain": ("zerotools drain", "zerotools drain --why 'new driver at 18:00'"),
    "undrain": ("zerotools undrain",),
    "notify": (
        "zerotools notify test",
        "zerotools notify test --place lab --kind failed",
    ),
    "doctor": ("zerotools doctor", "zerotools doctor --python /opt/train/bin/python"),
    "chaos": ("zerotools chaos", "zerotools chaos --minutes 10 --directory /data --seed 7"),
    "help": ("zerotools help", "zerotools help install", "zerotools help numa --json"),
}


def epilog(name: str, *, is_on_jobs: bool) -> str | None:
    """Return the last part of a command's help page, in click's markup; None if the command has no
    examples.

    The part contains the examples. For a command that changes jobs, it also describes the effect of
    the command on each kind of job.
    """
    lines = EXAMPLES.get(name)
    if lines is None:
        return None
    words = ""
    if is_on_jobs:
        from zerotools.jobs import states  # commands on checkpoints do not load zerotools.jobs

        words = f"\b\n{states.help_of(name)}\n\n" if name in states.VERBS else ""
    return words + "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
