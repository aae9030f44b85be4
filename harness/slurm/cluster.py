"""A private Slurm cluster on loopback: one controller, and a slurmd for each node.

It needs root, and Debian's packages slurmctld, slurmd, slurm-client and munge (22.05 and later):

    apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge

It has no database, so there is no `sacct`. It uses no control groups, so it works in containers.
Each node has two simulated GPUs, which are terminals. The cluster uses only its own directory and
ports.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from harness.patience import Deadline
from harness.ports import free_port
from harness.started import Started, run

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "sinfo")
START_SECONDS = 60.0
STOP_SECONDS = 5.0
_NODE_MEMORY_MIB = 2000
_NODE_CPUS = 4


def why_not() -> str | None:
    """Return the reason why no cluster can be started here; None if one can be started."""
    if os.geteuid() != 0:
        return "a private Slurm cluster needs root"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    return f"Slurm is not installed: {', '.join(lacking)}" if lacking else None


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class SlurmCluster:
    """A cluster with the nodes n1, n2, and so on.

    It is a context manager: at the end, all its processes are killed.
    """

    def __init__(self, directory: Path, nodes: int = 3) -> None:
        self.directory, self.nodes = directory, nodes
        self.conf = directory / "slurm.conf"
        self._ports = [free_port() for _ in range(nodes + 1)]
        self._processes: dict[str, Started] = {}

    @property
    def env(self) -> dict[str, str]:
        """The environment variables for a client of the cluster."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        here = f"{Path(sys.executable).parent}:{_PATH}"
        return {**kept, "PATH": here, "SLURM_CONF": str(self.conf)}

    def __enter__(self) -> SlurmCluster:
        for name in ("munge", "run", "state", "log", *(f"spool-n{n}" for n in self._numbers())):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / "munge").chmod(0o700)
        key = self.directory / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        self.conf.write_text(self._configuration())
        (self.directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.directory / "gres.conf").write_text("AutoDetect=off\nName=gpu File=/dev/tty[1-2]\n")
        try:
            self._start()
        except BaseException:  # raised again
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, subprocess.SubprocessError):
            self.run(["scancel", "--user=root"], timeout=15)
            deadline = Deadline(STOP_SECONDS)
            while not deadline.has_passed() and self.run(["squeue", "-h"]).stdout.strip():
                time.sleep(0.2)
        for process in reversed(self._processes.values()):
            process.end()
        self._end_steps()

    def _end_steps(self) -> None:
        """Kill the processes of job steps and of jobs, which do not end with Slurm's daemons."""
        wanted = f"SLURM_CONF={self.conf}"
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if wanted in path.read_text("utf-8", "replace").split("\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)

    def mend(self) -> None:
        """Do what an administrator does after a crash: resume drained nodes, release held jobs."""
        drained = self.run(["sinfo", "-h", "-N", "-t", "drain,down", "-o", "%N"]).stdout.split()
        for name in set(drained):
            self.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"])
        held = self.run(["squeue", "-h", "-t", "PENDING", "-o", "%i %r"]).stdout.splitlines()
        for line in held:
            number, _, reason = line.partition(" ")
            if "held" in reason.lower():
                self.run(["scontrol", "release", number])

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run a client, such as `srun`, and wait until it has ended."""
        given: Mapping[str, Any] = {"timeout": 120, "capture_output": True, "text": True, **options}
        return run(command, env=self.env, **given)

    def _numbers(self) -> range:
        return range(1, self.nodes + 1)

    def _start(self) -> None:
        place, munge = self.directory, self.directory / "munge"
        self._begin(
            "munged",
            *("--foreground", "--force", f"--key-file={munge / 'key'}"),
            *(f"--socket={place / 'run' / 'munge'}", f"--pid-file={munge / 'pid'}"),
            *(f"--log-file={place / 'log' / 'munged.log'}", f"--seed-file={munge / 'seed'}"),
        )
        self._wait_for((place / "run" / "munge").exists, "munged")
        self._begin("slurmctld", "-D", "-i")
        for number in self._numbers():
            self._begin("slurmd", "-D", "-N", f"n{number}", name=f"n{number}")
        self._wait_for(self._all_idle, "the nodes")

    def kill(self, name: str) -> None:
        """Send SIGKILL to the controller `slurmctld`, or to the slurmd of a node, such as `n1`.

        The processes of jobs on the node continue.
        """
        process = self._processes[name]
        os.kill(process.pid, signal.SIGKILL)
        process.wait(20)

    def kill_node(self, name: str) -> None:
        """Send SIGKILL to all processes of a node, to simulate a power failure.

        First, the processes are killed that would report to Slurm how jobs have ended.
        """
        for process in psutil.process_iter(["name"]):
            if process.info["name"] == "slurmstepd" and self._is_of(process.pid, name):
                process.kill()
        self.kill(name)
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                words = path.read_text("utf-8", "replace").split("\0")
                if f"SLURMD_NODENAME={name}" in words and f"SLURM_CONF={self.conf}" in words:
                    os.kill(int(path.parent.name), signal.SIGKILL)

    def _is_of(self, pid: int, name: str) -> bool:
        """Return whether the slurmstepd with the pid `pid` belongs to the node `name`.

        Such a process has the log file of the node's slurmd open.
        """
        log = str(self.directory / "log" / f"slurmd-{name}.log")
        with suppress(OSError):
            links = (os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir())  # noqa: PTH115
            return log in links
        return False

    def start_again(self, name: str) -> None:
        """Start a killed daemon again, as a service manager does. It answers only some time
        later.
        """
        if name == "slurmctld":  # without -i, which would pass over its state
            self._begin("slurmctld", "-D")
        else:
            self._begin("slurmd", "-D", "-N", name, name=name)

    def answers(self) -> bool:
        """Return whether the controller answers."""
        said: str = self.run(["scontrol", "ping"], timeout=30).stdout
        return "is UP" in said

    def _begin(self, program: str, *arguments: str, name: str | None = None) -> None:
        with (self.directory / "log" / f"{program}.out").open("ab") as log:
            process = Started(
                [shutil.which(program, path=_PATH) or program, *arguments],
                kept=True,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes[name or program] = process

    def _all_idle(self) -> bool:
        found = self.run(["sinfo", "-h", "-N", "-p", "main", "-o", "%T"], timeout=10)
        told: str = found.stdout
        return told.split() == ["idle"] * self.nodes

    def _wait_for(self, there: Any, what: str) -> None:
        deadline = Deadline(START_SECONDS)
        while not there():
            if deadline.has_passed():
                logs = sorted((self.directory / "log").iterdir())
                said = "\n".join(each.read_text("utf-8", "replace")[-1500:] for each in logs)
                raise AssertionError(f"{what} of the Slurm cluster did not come:\n{said}")
            time.sleep(0.1)

    def _configuration(self) -> str:
        host, place = socket.gethostname().partition(".")[0], self.directory
        first, *others = self._ports
        nodes = "\n".join(
            f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={_NODE_CPUS} RealMemory={_NODE_MEMORY_MIB} Gres=gpu:2 State=UNKNOWN"
            for number, port in zip(self._numbers(), others, strict=True)
        )
        return f"""
ClusterName=zerotools
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={first}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place / "run" / "munge"}
CredType=cred/munge
StateSaveLocation={place / "state"}
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
SlurmctldLogFile={place / "log" / "slurmctld.log"}
SlurmdLogFile={place}/log/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=5
MessageTimeout=3
SlurmdTimeout=30
BatchStartTimeout=10
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=3
PartitionName=urgent Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF
"""
