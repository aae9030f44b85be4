"""The how-to of the service, done word for word in a booted systemd, and jobs of that daemon."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.started import run
from tests.daemon.booted import MANAGER, Booted, booted, can_boot
from tests.daemon.waiting import wait_for
from tests.docs.tutorials import ROOT, blocks
from zerotools.core.errors import DaemonUnreachable
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.states import TERMINAL

PAGE = ROOT / "docs/how-to/install-as-a-service.md"
INSTALL, START, UPGRADE, CHILDREN, ACCOUNT = range(5)
"""The blocks of commands, in the order of the page."""
STATE = Path("var/lib/zerotools")
DROP_INS = "/etc/systemd/system/zerotoolsd.service.d"
PROGRAM = """
cat "$HOME/note"
printf 'int main(void) { return 7; }' >"$HOME/seven.c"
gcc -o "$HOME/seven" "$HOME/seven.c" && "$HOME/seven"
echo "seven: $?"
grep -h -E 'NoNewPrivs|CapBnd|Seccomp:' /proc/self/status
echo "cgroup: $(cat /proc/self/cgroup | grep ^0::)"
new=/usr/local/zerotools-was-here
echo "umask: $(umask)"
echo "writes: $(touch $new && rm $new && echo yes)"
if [ -n "$STRAY" ]; then
    setsid env -i sleep 1000 &
    echo "stray: $!"
fi
echo waiting
until [ -e "$HOME/$GO" ] || [ -e "$ZEROTOOLS_RUN_DIR/stop" ]; do sleep 0.02; done
"""


STATE_OF_JOBS = f"/{STATE}/jobs"
JOB_OF_ANNA = """
engine = "script"
device = "cpu"
output_dir = "/home/anna/output"
max_restarts = 5
[script]
directory = "/home/anna"
command = ["bash", "-c", '''
echo "uid: $(id -u)"
grep -h -E 'NoNewPrivs|CapBnd' /proc/self/status
echo "cgroup: $(cat /proc/self/cgroup | grep ^0::)"
cat /etc/shadow
setsid env -i sleep 1000 &
echo "stray: $!"
echo waiting
sleep 1000
''']
"""

OWN_SYSTEMD = """
[Service]
Type=notify
ExecStartPre=mkdir -p -m 0700 /run/user/0
ExecStart={manager} --user
Environment=XDG_RUNTIME_DIR=/run/user/0 HOME=/home/me
Delegate=yes
"""
"""What `user@.service` does for whoever logs in."""


def everybodys_python() -> str | None:
    """A Python that other users can run too, with our packages; None: there is none."""
    paths = (Path(sysconfig.get_path("purelib")), ROOT)
    if not all(p.stat().st_mode & 0o001 for path in paths for p in (path, *path.parents)):
        return None
    python = Path("/usr/bin/python3")
    wanted = f"import sys, venv; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    done = python.exists() and run([python, "-c", wanted], capture_output=True, timeout=20)
    return str(python) if done and done.returncode == 0 else None


class Machine:
    """A booted systemd with our service, and its client."""

    def __init__(self, systemd: Booted, python: str = sys.executable) -> None:
        self.systemd = systemd
        self.python = python
        self.state = systemd.root / STATE
        self.client = DaemonClient(self.state / "api.sock")
        self.home = systemd.root / "home/me"
        self.home.mkdir()
        (self.home / "note").write_text("from home\n")

    def follow(self, block: int) -> None:
        """Give the commands of a block of the page."""
        page = list(blocks(PAGE.read_text("utf-8")))
        text = [each.text for each in page if each.language == "bash"][block]
        for command in text.splitlines():
            if "venv" in command and "pip" not in command:
                self.systemd.run(f"{self.python} -m venv --without-pip /opt/zerotools")
            elif "pip install" in command:
                self._install()
            elif "doctor" in command:
                # Its status depends on the machine; to import torch would take seconds.
                said = self.systemd.run(f"{command} --python /bin/false", check=False)
                assert "are started by systemd, as configured, each attempt in its" in said
            else:
                self.systemd.run(command, directory=ROOT)

    def _install(self) -> None:
        """What pip would do: no test asks the network."""
        place = self.systemd.root / "opt/zerotools"
        packages = next(place.glob("lib/python*/site-packages"))
        paths = (ROOT, ROOT / "daemon", sysconfig.get_path("purelib"))
        (packages / "tree.pth").write_text("".join(f"{path}\n" for path in paths))
        programs = {"zerotoolsd": "zerotoolsd.__main__", "zerotools": "zerotools.cli.main"}
        for name, module in programs.items():
            start = f"import sys\nfrom {module} import main\nsys.exit(main())\n"
            text = f"#!/opt/zerotools/bin/python\n{start}"
            (place / "bin" / name).write_text(text)
            (place / "bin" / name).chmod(0o755)

    def pid(self) -> int | None:
        """The daemon's pid in its namespace, once it answers; whoever asks starts it."""
        with suppress(DaemonUnreachable):
            return int(self.client.health()["pid"])
        return None

    def other_pid(self, than: int | None) -> int:
        """The pid of the next daemon."""
        found = wait_for(lambda: (now := self.pid()) != than and now, "another daemon to answer")
        assert found
        return found

    def submit(self, **env: str) -> int:
        """A job that goes on once `go` is called with its id."""
        job: dict[str, Any] = {
            "engine": "script",
            "device": "cpu",
            "env": {"HOME": "/home/me", "API_KEY": "hidden-value", **env},
            "script": {"command": ["bash", "-c", PROGRAM], "directory": "/home/me"},
            "output_dir": "/home/me/output",
        }
        return int(self.client.submit(job_from_dict(job, source="job"))["id"])

    def log(self, job: int) -> str:
        """What the job wrote, once it waits."""
        path = self.state / f"jobs/{job}/attempt-1/rank-0.log"
        wait_for(lambda: path.exists() and "waiting" in path.read_text(), f"job {job} to wait")
        return path.read_text()

    def end(self, job: int) -> dict[str, Any]:
        """The job, once it is over."""
        wait_for(lambda: self.client.job(job)["state"] in TERMINAL, f"job {job} to end")
        return self.client.job(job)

    def units(self) -> list[str]:
        """The transient units of jobs that systemd knows."""
        said = self.systemd.run("systemctl list-units --all --plain --no-legend 'zerotools-job-*'")
        return re.findall(r"zerotools-job-\S+", said)


@pytest.mark.skipif(not can_boot(), reason="needs root, systemd, and namespaces to boot it in")
def test_the_how_to_of_the_service_works_and_jobs_live_as_it_says(tmp_path: Path) -> None:
    with booted(tmp_path / "log") as systemd:
        machine = Machine(systemd)
        machine.follow(INSTALL)
        machine.follow(START)
        _a_job_outlives_its_daemon(machine)
        _a_cancelled_job_leaves_nothing(machine)
        _what_a_killed_supervisor_leaves_ends_before_the_next_attempt(machine)
        _clients_start_the_daemon(machine)
        machine.follow(CHILDREN)
        _a_child_outlives_its_daemon_too(machine)
        _a_user_has_units_too(machine)


@pytest.mark.skipif(not can_boot(), reason="needs root, systemd, and namespaces to boot it in")
@pytest.mark.skipif(everybodys_python() is None, reason="needs a Python that all users can run")
def test_jobs_can_have_an_account_of_their_own(tmp_path: Path) -> None:
    with booted(tmp_path / "log") as systemd:
        machine = Machine(systemd, str(everybodys_python()))
        machine.follow(INSTALL)
        machine.follow(ACCOUNT)
        systemd.run("chown -R zerotools /home/me")
        machine.other_pid(None)
        job = machine.submit(GO="go")
        machine.log(job)
        (machine.home / "go").touch()
        assert machine.end(job)["state"] == "succeeded"
        assert systemd.run("stat -c %U /home/me/seven").strip() == "zerotools"


@pytest.mark.skipif(not can_boot(), reason="needs root, systemd, and namespaces to boot it in")
@pytest.mark.skipif(everybodys_python() is None, reason="needs a Python that all users can run")
def test_each_job_runs_as_its_user_in_a_unit_that_it_cannot_leave(tmp_path: Path) -> None:
    with booted(tmp_path / "log") as systemd:
        machine = Machine(systemd, str(everybodys_python()))
        machine.follow(INSTALL)
        drop_in = "/etc/systemd/system/zerotoolsd.socket.d"
        systemd.run(
            f"mkdir -p {drop_in} && cp systemd/drop-ins/shared-socket.conf {drop_in}",
            directory=ROOT,
        )
        systemd.run("useradd -M -N anna && install -d -o anna -m 0700 /home/anna")
        machine.follow(START)
        machine.other_pid(None)
        (systemd.root / "home/anna/job.toml").write_text(JOB_OF_ANNA)
        said = systemd.run(
            "runuser -u anna -- /opt/zerotools/bin/zerotools submit "
            "--socket /var/lib/zerotools/api.sock /home/anna/job.toml"
        )
        job = int(re.findall(r"job (\d+)", said)[0])
        said = machine.log(job)
        (unit,) = machine.units()
        uid = systemd.run("id -u anna").strip()
        assert f"uid: {uid}\n" in said
        assert f"/zerotools.slice/{unit}/zerotools-{job}-1-" in said  # delegated to the user
        assert "CapBnd:\t0000000000000000" in said
        assert "NoNewPrivs:\t1" in said
        assert "shadow: Permission denied" in said
        assert systemd.shows(unit, "User") == uid
        assert systemd.shows(unit, "OOMScoreAdjust") == "0"
        owners = systemd.run(f"stat -c %U {STATE_OF_JOBS}/{job}/attempt-1/*").split()
        assert set(owners) == {"anna"}
        stray = re.findall(r"stray: (\d+)", said)[0]
        run = json.loads((machine.state / f"jobs/{job}/attempt-1/run.json").read_text())
        systemd.run(f"kill -KILL {run['keeper']['pid']} {run['pid']}")
        second = machine.state / f"jobs/{job}/attempt-2/rank-0.log"
        # A stop during `cat` would end that alone: its shell goes on for the grace of the job.
        wait_for(lambda: second.exists() and "waiting" in second.read_text(), "the next attempt")
        assert not (systemd.root / f"proc/{stray}").exists()
        machine.client.cancel(job)
        assert machine.end(job)["state"] == "cancelled"
        wait_for(lambda: not machine.units(), "the unit to be removed")


def _a_job_outlives_its_daemon(machine: Machine) -> None:
    systemd, first = machine.systemd, machine.other_pid(None)
    job = machine.submit(GO="go-1")
    said = machine.log(job)
    assert "from home" in said
    assert "seven: 7" in said
    assert "writes: yes" in said
    assert "umask: 0022" in said  # as that of a login, not of the daemon's own files
    (unit,) = machine.units()
    assert unit.startswith(f"zerotools-job-{job}-1-")
    assert f"/zerotools.slice/{unit}/zerotools-{job}-1-" in said  # delegated to its supervisor
    assert "NoNewPrivs:\t1" in said
    assert "hidden-value" not in systemd.run(f"systemctl show {unit}")
    assert (systemd.shows(unit, "Delegate"), systemd.shows(unit, "KillMode")) == ("yes", "process")
    daemon = systemd.shows("zerotoolsd", "MainPID")
    bounds = systemd.run(f"grep CapBnd /proc/{daemon}/status").split()[1]
    assert int(bounds, 16).bit_count() == 9
    assert bounds not in said
    machine.follow(UPGRADE)
    second = machine.other_pid(first)
    systemd.run(f"kill -KILL {second}")
    machine.other_pid(second)
    assert machine.client.job(job)["state"] == "running"
    (machine.home / "go-1").touch()
    over = machine.end(job)
    assert (over["state"], len(over["attempts"])) == ("succeeded", 1)
    wait_for(lambda: not machine.units(), "the unit to be removed")


def _a_cancelled_job_leaves_nothing(machine: Machine) -> None:
    job = machine.submit(GO="never", STRAY="1")
    stray = re.findall(r"stray: (\d+)", machine.log(job))[0]
    assert (machine.systemd.root / f"proc/{stray}").exists()
    machine.client.cancel(job)
    assert machine.end(job)["state"] == "cancelled"
    assert not (machine.systemd.root / f"proc/{stray}").exists()
    wait_for(lambda: not machine.units(), "the unit to be removed")


def _what_a_killed_supervisor_leaves_ends_before_the_next_attempt(machine: Machine) -> None:
    job = machine.submit(GO="go-4", STRAY="1")
    stray = re.findall(r"stray: (\d+)", machine.log(job))[0]
    run = json.loads((machine.state / f"jobs/{job}/attempt-1/run.json").read_text())
    machine.systemd.run(f"kill -KILL {run['keeper']['pid']} {run['pid']}")
    second = machine.state / f"jobs/{job}/attempt-2/rank-0.log"
    wait_for(second.exists, "the next attempt")
    assert not (machine.systemd.root / f"proc/{stray}").exists()
    (machine.home / "go-4").touch()
    assert machine.end(job)["state"] == "succeeded"


def _clients_start_the_daemon(machine: Machine) -> None:
    before = machine.pid()
    machine.systemd.run("systemctl stop zerotoolsd")
    assert machine.systemd.shows("zerotoolsd", "ActiveState") == "inactive"
    machine.other_pid(before)
    assert machine.systemd.shows("zerotoolsd", "ActiveState") == "active"


def _a_child_outlives_its_daemon_too(machine: Machine) -> None:
    systemd, first = machine.systemd, machine.other_pid(None)
    job = machine.submit(GO="go-2")
    said = machine.log(job)
    assert f"/system.slice/zerotoolsd.service/zerotools-{job}-1-" in said
    assert "seven: 7" in said
    assert machine.units() == []
    systemd.run(f"kill -KILL {first}")
    machine.other_pid(first)
    (machine.home / "go-2").touch()
    over = machine.end(job)
    assert (over["state"], len(over["attempts"])) == ("succeeded", 1)


def _a_user_has_units_too(machine: Machine) -> None:
    systemd, home = machine.systemd, machine.home
    (systemd.root / "etc/systemd/system/own.service").write_text(
        OWN_SYSTEMD.format(manager=MANAGER)
    )
    units = home / ".config/systemd/user"
    (units / "zerotoolsd.service.d").mkdir(parents=True)
    # The tests are root's, whose own state directory is the machine's.
    place = "Environment=ZEROTOOLS_STATE_DIR=/home/me/state\nExecStart=\nExecStart=%h/zerotools/bin"
    (units / "zerotoolsd.service.d/place.conf").write_text(f"[Service]\n{place}/zerotoolsd\n")
    (home / "zerotools").symlink_to("/opt/zerotools")
    names = "systemd/user/zerotoolsd.service systemd/user/zerotoolsd.socket"
    systemd.run(f"cp {names} /home/me/.config/systemd/user/", directory=ROOT)
    systemd.run("systemctl daemon-reload && systemctl start own")
    own = "XDG_RUNTIME_DIR=/run/user/0 HOME=/home/me systemctl --user"
    systemd.run(f"{own} enable --now zerotoolsd.socket zerotoolsd")
    machine.state = home / "state"
    machine.client = DaemonClient(systemd.root / "run/user/0/zerotools/api.sock")
    first = machine.other_pid(None)
    assert machine.client.machine()["launch"]["by"] == "user-systemd"
    job = machine.submit(GO="go-3")
    assert re.search(
        rf"/zerotools\.slice/zerotools-job-{job}-1-\S+/zerotools-{job}-1-", machine.log(job)
    )
    systemd.run(f"{own} restart zerotoolsd")
    machine.other_pid(first)
    (home / "go-3").touch()
    over = machine.end(job)
    assert (over["state"], len(over["attempts"])) == ("succeeded", 1)
