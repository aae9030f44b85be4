"""Makes the command of a user's program, under the launcher that the job names."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from zerotools.jobs.jobfile_tables.script import AdoptedProcess
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.supervisor.attempt_plan import PORT

FINDER_ENTRY = Path(__file__).parents[1] / "children" / "checkpoint_finder" / "entry.py"
ADOPTED_ENTRY = Path(__file__).parents[1] / "children" / "pid_watcher" / "entry.py"
LAST_SECONDS = 5.0
LAST_PART = 0.3
"""Fraction of the grace period that is reserved for the end of processes after SIGKILL. It is
at most `LAST_SECONDS`.
"""
IMPORTABLE = "importable"
"""Name of the directory in a run directory from which a program can import zerotools, and no
other package.
"""


def command_of(spec: JobSpec, gpu_uuids: Sequence[str]) -> tuple[str, ...]:
    """Return the command that the supervisor starts: for a job with a launcher, the command of the
    launcher; otherwise the command of a rank.
    """
    script, python = spec.script, spec.python or sys.executable
    if script.launcher == "plain":
        own = _is_python(script.command[0])
        return (python, *script.command) if own else script.command
    start = _LAUNCHERS[script.launcher](spec, gpu_uuids)
    return (python, *start, *script.launcher_options, *_program(spec))


def _is_python(word: str) -> bool:
    return word.endswith(".py") or word == "-m"


def _program(spec: JobSpec) -> Iterator[str]:
    first, *arguments = spec.script.command
    if first == "-m":
        yield "-m" if spec.script.launcher == "torchrun" else "--module"
    else:
        if not _is_python(first):
            yield "--no-python" if spec.script.launcher == "torchrun" else "--no_python"
        yield first
    yield from arguments


def _torchrun(spec: JobSpec, gpu_uuids: Sequence[str]) -> tuple[str, ...]:
    ranks = ("--nproc-per-node", str(spec.world_size))
    if (place := spec.rendezvous.host_and_port) is not None:
        nodes = ("--nnodes", str(spec.rendezvous.nodes), *("--node-rank", str(_node(spec))))
        address = ("--master-addr", place[0], "--master-port", str(place[1]))
        return ("-m", "torch.distributed.run", *nodes, *address, *ranks)
    return ("-m", "torch.distributed.run", "--standalone", *ranks)


def _accelerate(spec: JobSpec, gpu_uuids: Sequence[str]) -> tuple[str, ...]:
    """Return accelerate's command with options for all settings, so that accelerate reads none of
    them from default_config.yaml.

    The user's default_config.yaml may name the GPUs of another job, the address of another machine,
    or a launcher over ssh.
    """
    machines = ("--num_machines", str(spec.rendezvous.nodes))
    ranks = (*machines, "--num_processes", str(spec.all_ranks), "--gpu_ids", "all")
    cpu = ("--cpu",) if spec.device == "cpu" else ()
    host, port, node = "127.0.0.1", PORT, "0"  # its own port is the same for every job
    if (place := spec.rendezvous.host_and_port) is not None:
        host, port, node = place[0], str(place[1]), str(_node(spec))
    address = ("--main_process_ip", host, "--main_process_port", port, "--machine_rank", node)
    here = ("--deepspeed_multinode_launcher", "standard")
    return ("-m", "accelerate.commands.launch", *cpu, *ranks, *address, *here)


def _node(spec: JobSpec) -> int:
    return spec.rendezvous.node_rank


def _deepspeed(spec: JobSpec, gpu_uuids: Sequence[str]) -> tuple[str, ...]:
    """Return the command that `deepspeed` itself would start on this machine.

    The program `deepspeed` itself is not used, because it drops CUDA_VISIBLE_DEVICES and cannot
    read UUIDs of GPUs in it.
    """
    slots: Sequence[str | int] = gpu_uuids or range(spec.world_size)
    world = base64.urlsafe_b64encode(json.dumps({"localhost": list(slots)}).encode()).decode()
    address = ("--master_addr", "127.0.0.1", "--master_port", PORT)
    return ("-u", "-m", "deepspeed.launcher.launch", f"--world_info={world}", *address)


_LAUNCHERS = {"torchrun": _torchrun, "accelerate": _accelerate, "deepspeed": _deepspeed}


def watching_command(process: AdoptedProcess, grace_seconds: float) -> tuple[str, ...]:
    """Return the command that watches `process`, which a user started by hand."""
    kill_after = grace_seconds - min(LAST_SECONDS, grace_seconds * LAST_PART)
    identity = (str(process.pid), str(process.start_ticks), process.boot_id)
    # Not affected by the job's PYTHONPATH, which is for its own programs.
    return (sys.executable, "-E", "-P", str(ADOPTED_ENTRY), *identity, f"{kill_after:g}")


def finder_command(settings: Path) -> tuple[str, ...]:
    """Return the command of the checkpoint finder. `settings` is the file with its input."""
    return (sys.executable, "-P", str(FINDER_ENTRY), str(settings))


def make_importable(run_dir: Path, package: Path) -> Path:
    """Make a directory in `run_dir` that contains only the package zerotools, for PYTHONPATH.
    Return the directory. Raises OSError.
    """
    directory = run_dir / IMPORTABLE
    directory.mkdir(exist_ok=True, mode=0o700)
    link = directory / package.name
    if link.is_symlink() and link.readlink() != package:  # of a daemon that was installed elsewhere
        link.unlink()
    if not link.is_symlink():
        link.symlink_to(package)
    return directory
