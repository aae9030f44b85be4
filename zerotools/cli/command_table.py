"""Every command, in the order of the help page. The help page is made from this table only."""

from __future__ import annotations

from typing import NamedTuple

CHECKPOINTS = "Checkpoints"
JOBS = "Jobs"
MACHINE = "Machine"
SECTIONS = (CHECKPOINTS, JOBS, MACHINE)


class CommandEntry(NamedTuple):
    """A command: the module that defines its `command`, its section of the help page, and one line
    of help.

    `is_local` is True if it shows this machine, even when it also connects to the daemon.
    `json_version` is the number in the schema of its JSON, `zerotools.COMMAND/1`.
    """

    module: str
    section: str
    help: str
    is_local: bool = False
    json_version: int = 1


class OldName(NamedTuple):
    """An old name of a command: its module, and the command to type instead."""

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
    "gather": CommandEntry(
        "zerotools.cli.commands.gather",
        CHECKPOINTS,
        "Collect shards from several nodes.",
    ),
    "init": CommandEntry(
        "zerotools.cli.commands.init",
        JOBS,
        "Ask a few questions, and write a job file that fits.",
        is_local=True,
    ),
    "estimate": CommandEntry(
        "zerotools.cli.commands.estimate",
        JOBS,
        "Predict the memory of a training.",
        is_local=True,
    ),
    "import": CommandEntry(
        "zerotools.cli.commands.importing",
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
        "zerotools.cli.commands.priority", JOBS, "Start a waiting job sooner or later."
    ),
    "hold": CommandEntry("zerotools.cli.commands.hold", JOBS, "Save and stop jobs, until release."),
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
        "zerotools.cli.commands.resume", "zerotools retry, and zerotools release for a held job"
    ),
}
"""Commands that work and are in no list."""
