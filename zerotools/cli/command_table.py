"""Every command, in the order of the help page. The help page is drawn from this table alone."""

from __future__ import annotations

from typing import NamedTuple

CHECKPOINTS = "Checkpoints"
JOBS = "Jobs"
MACHINE = "Machine"
SECTIONS = (CHECKPOINTS, JOBS, MACHINE)


class Entry(NamedTuple):
    """A command: the module whose `command` it is, its section of the help page, one line."""

    module: str
    section: str
    help: str


COMMANDS: dict[str, Entry] = {
    "inspect": Entry(
        "zerotools.cli.commands.inspect", CHECKPOINTS, "Show what a checkpoint holds."
    ),
    "consolidate": Entry(
        "zerotools.cli.commands.consolidate",
        CHECKPOINTS,
        "Merge a checkpoint into 16-bit safetensors.",
    ),
    "reshard": Entry(
        "zerotools.cli.commands.reshard",
        CHECKPOINTS,
        "Rewrite a checkpoint for another world size.",
    ),
    "convert": Entry(
        "zerotools.cli.commands.convert", CHECKPOINTS, "Rewrite a checkpoint in another format."
    ),
    "import": Entry(
        "zerotools.cli.commands.importing",
        JOBS,
        "Make a job file of a DeepSpeed or accelerate config.",
    ),
    "submit": Entry(
        "zerotools.cli.commands.submit", JOBS, "Queue training jobs, and follow one if asked."
    ),
    "queue": Entry("zerotools.cli.commands.queue", JOBS, "List the jobs, and what they wait for."),
    "show": Entry(
        "zerotools.cli.commands.show", JOBS, "Show one job: attempts, memory, checkpoints."
    ),
    "logs": Entry("zerotools.cli.commands.logs", JOBS, "Print or follow what a job wrote."),
    "cancel": Entry("zerotools.cli.commands.cancel", JOBS, "Stop jobs; a running one saves first."),
    "resume": Entry("zerotools.cli.commands.resume", JOBS, "Go on with a job that was stopped."),
    "clean": Entry(
        "zerotools.cli.commands.clean", JOBS, "Remove records and logs of jobs that are over."
    ),
    "monitor": Entry("zerotools.cli.commands.monitor", MACHINE, "Watch GPU and host memory."),
}
