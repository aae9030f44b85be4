"""Every command, in the order of the help page. The help page is made from this table only."""

from __future__ import annotations

from typing import NamedTuple

CHECKPOINTS = "Checkpoints"
JOBS = "Jobs"
MACHINE = "Machine"
SECTIONS = (CHECKPOINTS, JOBS, MACHINE)


class CommandEntry(NamedTuple):
    """A command: the module whose `command` it is, its section of the help page, one line.

    `is_local`: what it shows is of this machine, though it asks the daemon, too. `json_version`:
    the number in the schema of its JSON, `zerotools.COMMAND/1`.
    """

    module: str
    section: str
    help: str
    is_local: bool = False
    json_version: int = 1


COMMANDS: dict[str, CommandEntry] = {
    "inspect": CommandEntry(
        "zerotools.cli.commands.inspect", CHECKPOINTS, "Show what a checkpoint holds."
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
        "Let others read a checkpoint as a model, over HTTP.",
    ),
    "salvage": CommandEntry(
        "zerotools.cli.commands.salvage",
        CHECKPOINTS,
        "Export what is whole of a damaged checkpoint.",
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
        "Bring shards that lie on several nodes together.",
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
        "Predict the memory of a training, and say what fits.",
        is_local=True,
    ),
    "import": CommandEntry(
        "zerotools.cli.commands.importing",
        JOBS,
        "Make a job file from a config or a launch line.",
    ),
    "submit": CommandEntry(
        "zerotools.cli.commands.submit", JOBS, "Queue training jobs, and follow one if asked."
    ),
    "queue": CommandEntry(
        "zerotools.cli.commands.queue", JOBS, "List the jobs, and what they wait for."
    ),
    "show": CommandEntry(
        "zerotools.cli.commands.show", JOBS, "Show one job: attempts, memory, checkpoints."
    ),
    "explain": CommandEntry(
        "zerotools.cli.commands.explain", JOBS, "Say why a job waits, stopped or was tried again."
    ),
    "shares": CommandEntry(
        "zerotools.cli.commands.shares", JOBS, "Show what users have used of the GPUs."
    ),
    "logs": CommandEntry("zerotools.cli.commands.logs", JOBS, "Print or follow what a job wrote."),
    "cancel": CommandEntry(
        "zerotools.cli.commands.cancel", JOBS, "Stop jobs; one that trains saves first."
    ),
    "priority": CommandEntry(
        "zerotools.cli.commands.priority", JOBS, "Let a job that waits start sooner or later."
    ),
    "hold": CommandEntry("zerotools.cli.commands.hold", JOBS, "Keep jobs that wait from starting."),
    "release": CommandEntry(
        "zerotools.cli.commands.release", JOBS, "Let jobs that are on hold start."
    ),
    "pause": CommandEntry(
        "zerotools.cli.commands.pause", JOBS, "Let jobs save, and give their GPUs back for now."
    ),
    "unpause": CommandEntry("zerotools.cli.commands.unpause", JOBS, "Let paused jobs go on."),
    "resume": CommandEntry("zerotools.cli.commands.resume", JOBS, "Resume a job that was stopped."),
    "edit": CommandEntry(
        "zerotools.cli.commands.edit", JOBS, "Change the job file of a job that has not started."
    ),
    "retry": CommandEntry(
        "zerotools.cli.commands.retry", JOBS, "Run a job that is over again, from the start."
    ),
    "adopt": CommandEntry(
        "zerotools.cli.commands.adopt", JOBS, "Watch a training that was started by hand."
    ),
    "wait": CommandEntry("zerotools.cli.commands.wait", JOBS, "Wait until jobs have ended."),
    "clean": CommandEntry(
        "zerotools.cli.commands.clean", JOBS, "Remove records and logs of jobs that have ended."
    ),
    "backup": CommandEntry(
        "zerotools.cli.commands.backup", JOBS, "Copy the queue while it is in use."
    ),
    "restore": CommandEntry(
        "zerotools.cli.commands.restore", JOBS, "Put a copy of the queue back."
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
        "zerotools.cli.commands.drain", MACHINE, "Start no jobs any more; what runs goes on."
    ),
    "undrain": CommandEntry("zerotools.cli.commands.undrain", MACHINE, "Start jobs again."),
    "doctor": CommandEntry(
        "zerotools.cli.commands.doctor", MACHINE, "Find what could stop jobs, and what to do.", True
    ),
    "chaos": CommandEntry(
        "zerotools.cli.commands.chaos",
        MACHINE,
        "Make trouble for toy jobs, and see what holds.",
        True,
    ),
    "help": CommandEntry("zerotools.cli.commands.help", MACHINE, "Show a page of the manual."),
}
