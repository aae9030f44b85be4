"""Causes faults of a daemon and its jobs, and ends them.

One random number generator chooses all faults, so the same seed gives the same faults in the same
order. Their effect depends on the machine.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, RLock

from harness.faults.daemons import Place
from harness.forked import Forked
from zerotools.jobs.chaos.own_processes import LiveAttempt, live_attempts, signal_own

GPUS = ("gpu GPU-a 81920 512 0", "gpu GPU-b 81920 512 0")
NVML_FAULTS = (("hang", *GPUS), ("crash", *GPUS), ("init 999",), ("gpu GPU-a 81920 0 15",))
DISK_BYTES = 96 << 20


class Machine:
    """The daemon, its disk and its GPUs, in which faults are caused."""

    def __init__(self, place: Place, seed: int, library: Path | None) -> None:
        self.place = place
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.restarts = 0
        self.lock = RLock()
        self.calm = Event()
        self._library = library
        self._nvml = place.path / "nvml"
        self._nvml.write_text("\n".join(GPUS))
        self.has_disk = mount(place.state)
        self.daemon = self._start()
        self._kinds: list[tuple[str, Callable[[], None]]] = [
            ("SIGKILL of the daemon", lambda: self.daemon.kill()),
            ("SIGKILL of a supervisor", lambda: self._kill("supervisor")),
            ("SIGKILL of a keeper", lambda: self._kill("keeper")),
            ("SIGKILL of a supervisor and its keeper", lambda: self._kill("supervisor", "keeper")),
            ("SIGKILL of a rank", lambda: self._kill("rank")),
            ("SIGKILL of daemon and supervisor", self._kill_both),
            ("SIGSTOP of a rank", lambda: self._pause("rank")),
            ("SIGSTOP of a supervisor", lambda: self._pause("supervisor")),
            ("SIGSTOP of the daemon", self._pause_daemon),
            ("no descriptors for the daemon", self._take_descriptors),
        ]
        if self.has_disk:
            self._kinds.append(("full disk", self._fill_disk))
        if library is not None:
            self._kinds.append(("NVML fails", self._spoil_nvml))

    def _start(self) -> Forked:
        return self.place.daemon(env=nvml_environment(self._library, self._nvml))

    def keep_up(self) -> bool:
        """Start the daemon again if it was killed, as systemd does."""
        with self.lock:
            if not self.daemon.is_running():
                self.restarts += 1
                self.daemon = self._start()
        return True

    def make_trouble(self, mean_seconds: float) -> None:
        """Cause one fault after another, about every `mean_seconds`, until `calm` is set."""
        while not self.calm.wait(self.random.expovariate(1 / mean_seconds)):
            name, act = self.random.choice(self._kinds)
            with suppress(OSError, ChildProcessError):
                act()
                self.done[name] += 1

    def _chosen(self) -> LiveAttempt:
        live = list(live_attempts(self.place.state, self.place.path))
        if not live:
            raise ChildProcessError("nothing runs")
        return self.random.choice(live)

    def _signal(self, pid: int, number: int) -> None:
        signal_own(pid, number, self.place.path)

    def _kill(self, *names: str) -> None:
        chosen = self._chosen()
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: both die in one moment
            for name in names:
                self._signal(chosen.pid_of(name), number)

    def _kill_both(self) -> None:
        self.daemon.kill()
        self._kill("supervisor")

    def _pause(self, name: str) -> None:
        pid = self._chosen().pid_of(name)
        self._signal(pid, signal.SIGSTOP)
        try:
            self.calm.wait(self.random.uniform(0.5, 4))
        finally:
            self._signal(pid, signal.SIGCONT)

    def _pause_daemon(self) -> None:
        daemon = self.daemon
        daemon.send_signal(signal.SIGSTOP)
        self.calm.wait(self.random.uniform(0.5, 4))
        daemon.send_signal(signal.SIGCONT)

    def _take_descriptors(self) -> None:
        pid = self.daemon.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + self.random.randrange(3), before[1]))
        self.calm.wait(self.random.uniform(0.5, 4))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

    def _fill_disk(self) -> None:
        ballast = self.place.state / "ballast"
        try:
            fd = os.open(ballast, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                with suppress(OSError):
                    while True:
                        os.write(fd, bytes(1 << 16))
                with suppress(OSError):
                    while True:
                        os.write(fd, bytes(512))
            finally:
                os.close(fd)
            self.calm.wait(self.random.uniform(0.5, 4))
        finally:
            ballast.unlink(missing_ok=True)

    def _spoil_nvml(self) -> None:
        self._say(self.random.choice(NVML_FAULTS))
        self.calm.wait(self.random.uniform(1, 6))
        self._say(GPUS)

    def _say(self, lines: tuple[str, ...]) -> None:
        staged = self._nvml.with_suffix(".new")
        staged.write_text("\n".join(lines))
        staged.rename(self._nvml)

    def close(self) -> None:
        """Stop the daemon, and unmount the disk."""
        self.daemon.terminate()
        self.daemon.wait(30)
        if self.has_disk:
            time.sleep(0.2)
            subprocess.run(["umount", "-l", str(self.place.state)], check=False)


def mount(path: Path) -> bool:
    """Mount a small disk at `path`. Return False if this process is not allowed to."""
    path.mkdir(mode=0o700, exist_ok=True)
    options = f"size={DISK_BYTES},mode=700"
    command = ["mount", "-t", "tmpfs", "-o", options, "zerotools-soak", str(path)]
    done = subprocess.run(command, check=False, capture_output=True)
    return done.returncode == 0


def nvml_environment(library: Path | None, state: Path) -> dict[str, str]:
    """Return the environment variables of a daemon that loads the `library` from `nvml_library`.

    The library reads its answers from the file `state`.
    """
    found = {} if library is None else {"LD_LIBRARY_PATH": str(library.parent)}
    return {"NVML_DOUBLE": str(state), **found}


def nvml_library(directory: Path) -> Path | None:
    """Compile a replacement of libnvidia-ml.so.1 that reads its answers from a file.

    Returns its path; None if no compiler is installed.
    """
    source = Path(__file__).parents[1] / "nvml_double.c"
    library = directory / "libnvidia-ml.so.1"
    command = ["gcc", "-shared", "-fPIC", "-o", str(library), str(source)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return library
