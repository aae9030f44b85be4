"""The same commands for jobs under a real Slurm: submitted, followed, cancelled, gone on with."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.slurm.__main__ import Rounds
from harness.slurm.cluster import SlurmCluster, why_not
from tests.daemon.waiting import wait_for

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
SAVES = """
import signal, sys, time
signal.signal(15, lambda *_: (print("saved", flush=True), sys.exit(0)))
print("begun", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as found:
        yield found


class Cli:
    """The command line of a user of the cluster."""

    def __init__(self, cluster: SlurmCluster, directory: Path) -> None:
        self.directory, self._cluster = directory, cluster
        self._env = {
            **cluster.env,
            "ZEROTOOLS_SLURM_DIR": str(directory / "home"),
            "ZEROTOOLS_STATE_DIR": str(directory / "state"),
        }

    def run(self, *words: str, code: int = 0) -> str:
        """Standard output of a command that ends so."""
        from harness.started import run

        done = run(
            [sys.executable, "-m", "zerotools", *words],
            env=self._env,
            timeout=120,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        return str(done.stdout) if code == 0 else f"{done.stdout}{done.stderr}"

    def program(self, text: str, **slurm: Any) -> str:
        """Submit a job of one process that runs the Python program `text`; what it is called."""
        (self.directory / "program.py").write_text(text)
        tree = {
            "engine": "script",
            "device": "cpu",
            "python": sys.executable,
            "script": {"command": ["-u", "program.py"], "directory": str(self.directory)},
            "output_dir": str(self.directory / "out"),
            "max_restarts": 0,
            "slurm": {"options": ["--mem=200"], **slurm},
        }
        tree["script"]["command"] = [sys.executable, "program.py"]  # type: ignore[index]
        (self.directory / "job.json").write_text(json.dumps(tree))
        found = self.run("submit", "--slurm", "--json", str(self.directory / "job.json"))
        return str(json.loads(found)["jobs"][0]["id"])

    def show(self, name: str) -> dict[str, Any]:
        """The job as JSON."""
        return dict(json.loads(self.run("show", "--json", name))["jobs"][0])


@pytest.fixture
def cli(cluster: SlurmCluster, tmp_path: Path) -> Cli:
    return Cli(cluster, tmp_path)


def test_a_job_is_shown_read_cancelled_and_gone_on_with(cli: Cli) -> None:
    name = cli.program(SAVES)
    wait_for(lambda: "begun" in cli.run("logs", name), "the program")
    assert name in cli.run("queue")
    wait_for(lambda: "running" in cli.run("show", name), "the state")
    cli.run("cancel", "--wait", name)
    assert cli.run("logs", name) == "begun\nsaved\n"
    view = cli.show(name)
    assert (view["state"], view["slurm"]["attended"]) == ("cancelled", False)
    assert cli.run("queue").startswith("no job waits or runs")
    (cli.directory / "program.py").write_text("print('again')")
    again = cli.run("resume", name).split()[1]
    assert again != name
    assert f"job {again} (job) succeeded" in cli.run("wait", again)
    assert cli.run("logs", again) == "again\n"
    assert cli.run("logs", "--attempt", "1", name) == "begun\nsaved\n"


def test_a_job_that_fails_or_waits_for_one_that_failed(cli: Cli) -> None:
    name = cli.program("raise SystemExit(3)")
    (cli.directory / "second").mkdir()
    second = Cli(cli._cluster, cli.directory / "second")
    second._env["ZEROTOOLS_SLURM_DIR"] = cli._env["ZEROTOOLS_SLURM_DIR"]
    tree = json.loads((cli.directory / "job.json").read_text())
    tree["output_dir"] = str(second.directory / "out")
    (second.directory / "job.json").write_text(json.dumps(tree))
    words = ("submit", "--slurm", "--json", "--after", name, str(second.directory / "job.json"))
    after = json.loads(second.run(*words))["jobs"][0]["id"]
    assert "failed" in cli.run("wait", name, code=6)
    assert "cancelled" in second.run("wait", str(after), code=6)


def test_what_slurm_refuses_is_said_in_its_words_and_leaves_nothing(cli: Cli) -> None:
    tree = {"backend": "slurm", "slurm": {"partition": "nosuch"}, "engine": "script"}
    tree |= {"device": "cpu", "script": {"command": ["true"], "directory": str(cli.directory)}}
    (cli.directory / "job.json").write_text(json.dumps(tree))
    said = cli.run("submit", str(cli.directory / "job.json"), code=2)
    assert "nvalid partition" in said
    assert not list((cli.directory / "home").iterdir())


def test_training_is_queued_again_and_goes_on_on_another_number_of_nodes(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    attempts, losses = Rounds(cluster, tmp_path, steps=40).round("requeued", 10)
    assert attempts == 2
    assert sorted(losses) == list(range(1, 41))


def test_a_controller_that_is_away_says_nothing_of_a_job(cli: Cli, cluster: SlurmCluster) -> None:
    """The last one: a controller that was killed may take nodes for occupied."""
    name = cli.program(SAVES)
    wait_for(lambda: "begun" in cli.run("logs", name), "the program")
    cluster.kill("slurmctld")
    try:
        view = cli.show(name)
        assert view["state"] == "running"
        assert "does not answer" in view["reason"]
        cli.run("cancel", name)
        wait_for(lambda: "saved" in cli.run("logs", name), "the end of the program")
    finally:
        cluster.start_again("slurmctld")
        wait_for(cluster.answers, "the controller")
    wait_for(lambda: cli.show(name)["state"] == "cancelled", "the end of the job")
