"""Jobs of real users, by a daemon of root: what each may do to the others, and what it comes to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.started import run
from tests.daemon.daemons import CONFIG, Daemon, daemon_in, make_job
from tests.daemon.made_attempts import is_alive
from tests.daemon.users.other_users import AS_ROOT, made_users, open_directory, open_interpreter
from tests.daemon.waiting import wait_for
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import given_of, job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.supervisor import attempt_cgroup
from zerotoolsd.supervisor.attempt_cgroup import NotDelegated, find_group
from zerotoolsd.supervisor.durable_files import read_json
from zerotoolsd.supervisor.procfs import all_pids, read_process
from zerotoolsd.supervisor.signal_process import is_of_uid
from zerotoolsd.users.account import Account

pytestmark = AS_ROOT
LOOKING = 1
"""Processes of a user that look at files for the daemon: they stay for a while."""
PROCESSES = 40
"""That one user may have at a time."""
SUBMIT = """
import json, sys
from pathlib import Path
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict
client = DaemonClient(Path(sys.argv[1]))
try:
    print(json.dumps(client.submit(job_from_dict(json.load(sys.stdin), source="job"))["id"]))
except ZerotoolsError as error:
    print(json.dumps(str(error)))
"""


def groups_can_be_made() -> bool:
    """Whether a daemon that is started here makes control groups."""
    try:
        attempt_cgroup.find_delegation()
    except NotDelegated:
        return False
    return os.geteuid() == 0


class Machine:
    """A daemon of root, and two users of it."""

    def __init__(self, daemon: Daemon, users: list[Account]) -> None:
        self.place = daemon.state.parent
        self.anna, self.bert = users
        self.daemon = daemon

    def home(self, user: Account) -> Path:
        """A directory that the user alone can enter."""
        home = self.place / user.name
        if not home.exists():
            home.mkdir(mode=0o700)
            os.chown(home, user.uid, user.gid)
        return home

    def as_user(self, user: Account, *command: Any, said: str | None = None) -> str:
        """What a program of the user's prints."""
        done = run(
            command,
            timeout=60,
            input=said,
            capture_output=True,
            text=True,
            user=user.uid,
            group=user.gid,
            extra_groups=[],
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def submit(self, user: Account, job: JobSpec) -> Any:
        """The number of the job, or why it was refused."""
        return self.submit_tree(user, given_of(job))

    def submit_tree(self, user: Account, job: Any) -> Any:
        """As `submit`, of a job as its file has it."""
        tree = json.dumps(job)
        socket = self.daemon.state / "api.sock"
        socket.chmod(0o666)
        return json.loads(self.as_user(user, self.daemon.python, "-c", SUBMIT, socket, said=tree))


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with open_directory() as place, made_users(2) as users:
        python = open_interpreter(place)
        config = CONFIG.replace("grace_seconds = 20.0", "grace_seconds = 1.0")
        config += f"[users]\nprocesses = {PROCESSES}\n"
        with daemon_in(place / "state", config) as daemon:
            daemon.python = python
            daemon.start()
            yield Machine(daemon, users)


def script(text: str, **keys: Any) -> JobSpec:
    """A job of a program in /bin/sh."""
    table = {"command": ["/bin/sh", "-c", text], "directory": "/", **keys}
    tree = {"name": "own", "device": "cpu", "ranks": 1, "engine": "script", "script": table}
    return job_from_dict(tree, source="job")


def test_a_job_is_its_users_from_end_to_end(machine: Machine) -> None:
    number = machine.submit(machine.anna, make_job("steps=2 save=2"))
    job = machine.daemon.wait_for_end(number)
    assert (job["state"], job["uid"]) == ("succeeded", machine.anna.uid), job
    run_dir = machine.daemon.run_dir(number)
    owners = {path.stat().st_uid for path in run_dir.rglob("*")}
    assert owners == {machine.anna.uid}
    assert (run_dir.stat().st_mode & 0o777, run_dir.stat().st_uid) == (0o700, machine.anna.uid)
    with pytest.raises(AssertionError, match="Permission denied"):
        machine.as_user(machine.bert, "/bin/ls", run_dir)
    cleaned = machine.daemon.client.clean({"jobs": [number], "outputs": True})
    assert [each["id"] for each in cleaned["jobs"]] == [number], cleaned
    assert not run_dir.parent.exists()


def test_a_program_has_the_rights_of_its_user_alone(machine: Machine) -> None:
    show = "cat /proc/self/status; id -u; umask; pwd; echo home=$HOME; cat /etc/shadow"
    number = machine.submit(machine.anna, script(show))
    machine.daemon.wait_for_end(number)
    said = (machine.daemon.run_dir(number) / "rank-0.log").read_text()
    uid = machine.anna.uid
    assert "NoNewPrivs:\t1" in said
    assert f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}" in said
    assert "CapEff:\t0000000000000000" in said
    assert "/etc/shadow: Permission denied" in said


@pytest.mark.parametrize(
    "key", ["output_dir", "resume_from", "script.directory", "python", "data.text", "link"]
)
def test_no_path_is_opened_that_the_submitter_may_not(machine: Machine, key: str) -> None:
    """Bert names what lies in anna's closed home, by a link of his own too."""
    secret = machine.home(machine.anna)
    (secret / "step-00000001").mkdir(exist_ok=True)
    (secret / "a.txt").write_text("anna's words\n" * 50)
    link = machine.home(machine.bert) / "link"
    if not link.is_symlink():
        link.symlink_to(secret)
        os.lchown(link, machine.bert.uid, machine.bert.gid)
    jobs = {
        "output_dir": make_job("exit=0", output_dir=str(secret / "out")),
        "resume_from": make_job("exit=0", resume_from=str(secret / "step-00000001")),
        "script.directory": script("true", directory=str(secret)),
        "python": make_job("exit=0", python=str(secret / "python")),
        "data.text": make_job("exit=0", data={"text": [str(secret / "a.txt")]}),
        "link": make_job("exit=0", output_dir=str(link / "out")),
    }
    said = machine.submit(machine.bert, jobs[key])
    if key == "python":  # of which the daemon of these tests asks nothing
        assert machine.daemon.wait_for_end(said)["uid"] == machine.bert.uid
        return
    assert isinstance(said, str), said
    assert "anna's words" not in said
    assert sorted(path.name for path in secret.iterdir()) == ["a.txt", "step-00000001"]


def test_a_forged_end_is_of_that_job_alone(machine: Machine) -> None:
    """Bert's rank names the daemon and anna's job where its own records are kept."""
    annas = machine.submit(machine.anna, make_job("hang"))
    machine.daemon.wait_for_state(annas, "running")
    victims = [*machine.daemon.pids(annas), machine.daemon.process.pid, 1]  # type: ignore[union-attr]
    lines = ",".join(
        f'{{"pid": {pid}, "start_ticks": {start_of(pid)}, "boot_id": "$boot"}}' for pid in victims
    )
    forge = (
        'boot=$(cat /proc/sys/kernel/random/boot_id); cd "$ZEROTOOLS_RUN_DIR"\n'
        f'echo "{{\\"token\\": \\"$ZEROTOOLS_TOKEN\\", \\"boot_id\\": \\"$boot\\", '
        f'\\"pid\\": {victims[0]}, \\"start_ticks\\": {start_of(victims[0])}}}" > run.json\n'
        "rm -f .exit.json.room; cat > exit.json <<END\n"
        '{"token": "$ZEROTOOLS_TOKEN", "outcome": "finished", "unkillable": ['
        f"{lines}]}}\nEND\nkill -9 $PPID; sleep 60"
    )
    berts = machine.submit(machine.bert, script(forge))
    job = machine.daemon.wait_for_end(berts)
    assert job["uid"] == machine.bert.uid
    assert all(Path(f"/proc/{pid}").exists() for pid in victims)
    assert machine.daemon.client.job(annas)["state"] == "running"
    assert not any(lease["held_by"] for lease in machine.daemon.client.machine()["leases"])
    machine.daemon.client.cancel(annas)
    machine.daemon.wait_for_end(annas)


def test_forged_steps_and_checkpoints_change_that_job_alone(machine: Machine) -> None:
    """Bert's rank says that it did more steps than there are, and saved in anna's directory."""
    out = machine.home(machine.anna) / "forged-out"
    annas = machine.submit(machine.anna, make_job("hang", output_dir=str(out)))
    machine.daemon.wait_for_state(annas, "running")
    before = machine.daemon.client.job(annas)
    end = {
        "token": "$ZEROTOOLS_TOKEN",
        "outcome": "stopped",
        "stop_reason": "yield",
        "steps_done": 10**30,
        "progress": {"step": 10**30},
        "checkpoint": {"step": 2**62, "path": str(out / "step-99999999")},
    }
    forge = (
        'cd "$ZEROTOOLS_RUN_DIR"; rm -f .exit.json.room progress.jsonl\n'
        f"cat > progress.jsonl <<END\n{json.dumps({'type': 'step', 'step': 10**30})}\nEND\n"
        f"cat > exit.json <<END\n{json.dumps(end)}\nEND\n"
        "keeper=$(cut -d' ' -f4 /proc/$PPID/stat); kill -9 $keeper $PPID"
    )
    berts = machine.submit(machine.bert, script(forge))
    wait_for(lambda: len(machine.daemon.client.job(berts)["attempts"]) > 1, "a second attempt")
    machine.daemon.client.cancel(berts)
    own = machine.daemon.wait_for_end(berts)
    assert own["attempts"][0]["state"] == "ended"
    assert [attempt["steps_done"] for attempt in own["attempts"]] == [0] * len(own["attempts"])
    assert [job["id"] for job in machine.daemon.client.jobs(limit=1000)][:2] == [berts, annas]
    after = machine.daemon.client.job(annas)
    kept = ("state", "reason", "latest_checkpoint", "output_dir")
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    assert [*machine.home(machine.anna).glob("forged-out/step-9*")] == []
    machine.daemon.client.cancel(annas)
    machine.daemon.wait_for_end(annas)


def start_of(pid: int) -> int:
    found = read_process(pid)
    assert found is not None
    return found.start_ticks


def test_a_logs_link_shows_nothing_of_others(machine: Machine) -> None:
    swap = (
        'cd "$ZEROTOOLS_RUN_DIR"; rm -f rank-0.log progress.jsonl; ln -s /etc/shadow rank-0.log; '
        "mkfifo progress.jsonl; ln -sf /etc/shadow heartbeats.json"
    )
    number = machine.submit(machine.bert, script(swap))
    machine.daemon.wait_for_end(number)
    view = machine.daemon.client.job(number)
    assert "root:" not in str(view)
    with pytest.raises(BadRequest, match=r"rank-0.log cannot be read: Too many levels"):
        machine.daemon.client.logs(number, rank=0)


def test_jobs_are_found_again_by_the_next_daemon(machine: Machine) -> None:
    number = machine.submit(machine.anna, make_job("release exit=0"))
    machine.daemon.wait_for_state(number, "running")
    machine.daemon.kill()
    machine.daemon.start()
    machine.daemon.wait_for_state(number, "running")
    (machine.daemon.run_dir(number) / "release").touch()
    assert machine.daemon.wait_for_end(number)["state"] == "succeeded"
    number = machine.submit(machine.bert, make_job("hang"))
    machine.daemon.wait_for_state(number, "running")
    pids = machine.daemon.pids(number)
    machine.daemon.client.cancel(number)
    assert machine.daemon.wait_for_end(number)["state"] == "cancelled"
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "all to end")


def test_a_fork_bomb_takes_nothing_from_others(machine: Machine) -> None:
    bomb = "i=0; while [ $i -lt 1000 ]; do sleep 300 & i=$((i + 1)); done; wait"
    berts = machine.submit(machine.bert, script(f"({bomb}) 2>&1; sleep 300"))
    wait_for(lambda: processes_of(machine.bert) >= PROCESSES - 1, "the limit to be reached")
    assert processes_of(machine.bert) <= PROCESSES
    annas = machine.submit(machine.anna, make_job("steps=1 save=1"))
    assert machine.daemon.wait_for_end(annas)["state"] == "succeeded"
    machine.daemon.client.cancel(berts)
    machine.daemon.wait_for_end(berts)
    wait_for(lambda: processes_of(machine.bert) <= LOOKING, "all of it to end")


def processes_of(user: Account) -> int:
    """How many processes the user has, threads not counted."""
    return sum(is_of_uid(pid, user.uid) for pid in all_pids())


@pytest.mark.skipif(not groups_can_be_made(), reason="needs control groups of version 2")
def test_nothing_leaves_the_group_that_root_has_made(machine: Machine) -> None:
    """It detaches itself, empties its environment, and kills supervisor and keeper."""
    leave = (
        'cd "$ZEROTOOLS_RUN_DIR"; grep ^0:: /proc/self/cgroup\n'
        "setsid env -i /bin/sleep 600 &\n"
        "own=$(grep ^0:: /proc/self/cgroup | cut -d: -f3)\n"
        'place=$(dirname "$(dirname "$(grep -l $$ $(find /sys/fs/cgroup -name cgroup.procs '
        '-path "*$own/*" 2>/dev/null))")")\n'
        'echo 0 > "$(dirname "$place")/cgroup.procs" && echo left\n'
        "keeper=$(cut -d' ' -f4 /proc/$PPID/stat)\n"
        "echo waiting; until [ -e go ]; do sleep 0.1; done; kill -9 $keeper $PPID; sleep 600"
    )
    number = machine.submit(machine.bert, script(leave))
    log = machine.daemon.run_dir(number) / "rank-0.log"
    wait_for(lambda: log.exists() and "waiting" in log.read_text(), "the job to wait")
    said = log.read_text()
    name = f"/zerotools-{number}-1-"
    assert said.count(name) >= 2, said  # that of root, and the supervisor's own in it
    assert "left" not in said.splitlines()
    own = read_json(machine.daemon.run_dir(number) / "run.json")
    assert own is not None
    (machine.daemon.run_dir(number) / "go").touch()
    wait_for(lambda: not is_alive(own["pid"]), "the supervisor to be killed")
    machine.daemon.client.cancel(number)
    job = machine.daemon.wait_for_end(number)
    assert "of its processes were ended" in str(job["attempts"][0]["cause"])
    wait_for(lambda: processes_of(machine.bert) <= LOOKING, "all of it to end")
    wait_for(lambda: find_group(token_of(machine, number)) is None, "its group to be removed")


def token_of(machine: Machine, number: int) -> str:
    record = read_json(machine.daemon.run_dir(number) / "attempt.json")
    assert record is not None
    return str(record["token"])
