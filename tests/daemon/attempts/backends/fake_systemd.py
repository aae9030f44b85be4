"""A `systemd-run` that behaves as it is told, for what the daemon makes of its answers."""

from __future__ import annotations

from pathlib import Path

from zerotoolsd.attempts.backends.choose_systemd_or_child import LaunchBackend

_PROGRAM = r"""#!/bin/sh
here=${0%/*}
echo "$@" >> "$here/calls"
mode=$(cat "$here/mode")
case $mode in
    refuse) echo "Failed to start transient service unit: Access denied" >&2; exit 1;;
    hang) exec sleep 5;;
esac
while [ "$1" != -- ]; do case $1 in --unit=*) unit=${1#*=};; esac; shift; done
shift
if ! mkdir "$here/$unit" 2>/dev/null; then
    echo "Failed to start transient service unit: Unit $unit was already loaded." >&2
    exit 1
fi
for run_dir; do :; done
if [ "$mode" = die ]; then
    rmdir "$here/$unit"
    echo "no room for exit.json" >> "$run_dir/supervisor.log"
    echo "Job for $unit failed because the control process exited with error code." >&2
    exit 1
fi
setsid "$@" </dev/null >>"$run_dir/supervisor.log" 2>&1 &
case $mode in
    start-and-refuse) echo "Failed to get properties: Connection reset by peer" >&2; exit 1;;
    start-and-hang) exec sleep 5;;
esac
until [ -e "$run_dir/run.json" ]; do sleep 0.01; done
"""


class FakeSystemd:
    """A `systemd-run` in `directory`. Its mode may be changed at any time:

    `start`: the supervisor runs. `refuse`: no. `hang`: no answer. `die`: the supervisor ends at
    once. `start-and-refuse`, `start-and-hang`: it runs, and the answer is lost.
    """

    def __init__(self, directory: Path, mode: str = "start") -> None:
        directory.mkdir()
        self._directory = directory
        self.program = directory / "systemd-run"
        self.program.write_text(_PROGRAM)
        self.program.chmod(0o700)
        (directory / "calls").touch()
        self.set_mode(mode)

    def set_mode(self, mode: str) -> None:
        """What it does from now on."""
        (self._directory / "mode").write_text(mode)

    def way(self, *, may_be_child: bool = False, seconds: float = 20.0) -> LaunchBackend:
        """Supervisors are started by it."""
        return LaunchBackend(
            program=str(self.program),
            why="started by systemd",
            seconds=seconds,
            may_be_child=may_be_child,
        )

    @property
    def calls(self) -> list[str]:
        """What it was asked, each in one line."""
        return (self._directory / "calls").read_text().splitlines()
