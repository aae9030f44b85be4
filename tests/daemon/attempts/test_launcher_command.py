"""Programs under torchrun, accelerate and deepspeed: the command, the ranks, and their end."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import Daemon
from tests.daemon.made_attempts import is_alive
from tests.daemon.waiting import wait_for
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.attempts.launcher_command import command_of
from zerotoolsd.supervisor.attempt_plan import PORT

PROGRAM = Path(__file__).with_name("ranked_program.py")
START_SECONDS = 90.0


def job(command: list[str], launcher: str, directory: str = "/work", **changes: Any) -> JobSpec:
    script = {"command": command, "launcher": launcher, "directory": directory}
    options = changes.pop("options", None)
    if options:
        script["launcher_options"] = options
    tree = {"engine": "script", "python": sys.executable, "script": script, **changes}
    return job_from_dict(tree, source="job")


def test_plain_runs_programs_and_python_files() -> None:
    assert command_of(job(["bash", "run.sh"], "plain"), []) == ("bash", "run.sh")
    assert command_of(job(["t.py", "-x"], "plain"), []) == (sys.executable, "t.py", "-x")
    assert command_of(job(["-m", "pkg.t"], "plain"), []) == (sys.executable, "-m", "pkg.t")


@pytest.mark.parametrize(
    ("command", "launcher", "tail"),
    [
        (["t.py", "-x"], "torchrun", ["--opt", "t.py", "-x"]),
        (["-m", "pkg.t"], "torchrun", ["--opt", "-m", "pkg.t"]),
        (["./train"], "torchrun", ["--opt", "--no-python", "./train"]),
        (["-m", "pkg.t"], "accelerate", ["--opt", "--module", "pkg.t"]),
        (["./train"], "deepspeed", ["--opt", "--no_python", "./train"]),
    ],
)
def test_launchers_are_told_what_is_a_script(
    command: list[str], launcher: str, tail: list[str]
) -> None:
    found = command_of(job(command, launcher, gpus=2, options=["--opt"]), ["GPU-a", "GPU-b"])
    assert list(found)[-len(tail) :] == tail
    assert found[0] == sys.executable


def test_launchers_are_told_how_many_ranks_and_on_which_gpus() -> None:
    gpus = ["GPU-a", "GPU-b"]
    torchrun = command_of(job(["t.py"], "torchrun", gpus=2), gpus)
    assert torchrun[torchrun.index("--nproc-per-node") + 1] == "2"
    accelerate = command_of(job(["t.py"], "accelerate", gpus=2), gpus)
    assert accelerate[accelerate.index("--num_processes") + 1] == "2"
    assert accelerate[accelerate.index("--main_process_port") + 1] == PORT
    deepspeed = command_of(job(["t.py"], "deepspeed", gpus=2), gpus)
    world = next(word for word in deepspeed if word.startswith("--world_info="))
    assert json.loads(base64.urlsafe_b64decode(world.partition("=")[2])) == {"localhost": gpus}


def test_launchers_are_told_where_the_nodes_meet() -> None:
    meeting = {"address": "10.0.0.1:29500", "nodes": 4, "node_rank": 3}
    torchrun = command_of(job(["t.py"], "torchrun", gpus=2, rendezvous=meeting), [])
    options = [
        "--nnodes",
        "4",
        "--node-rank",
        "3",
        "--master-addr",
        "10.0.0.1",
        "--master-port",
        "29500",
    ]
    assert set(options) <= set(torchrun)
    assert "--standalone" not in torchrun
    accelerate = command_of(job(["t.py"], "accelerate", gpus=2, rendezvous=meeting), [])
    told = dict(pairwise(accelerate))
    assert told["--num_machines"] == "4"
    assert told["--machine_rank"] == "3"
    assert told["--num_processes"] == "8"
    assert (told["--main_process_ip"], told["--main_process_port"]) == ("10.0.0.1", "29500")


ACCELERATE_CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config: {deepspeed_multinode_launcher: pdsh, deepspeed_hostfile: /hosts, zero_stage: 3}
gpu_ids: 0,1
num_processes: 8
num_machines: 2
machine_rank: 1
main_process_ip: 10.9.9.9
main_process_port: 29500
use_cpu: false
"""
AS_ACCELERATE_TAKES_IT = """
import json, sys
from accelerate.commands import launch
from accelerate.utils import launch as variables
arguments, _, _ = launch._validate_launch_command(launch.launch_command_parser().parse_args())
_, env = variables.prepare_simple_launcher_cmd_env(arguments)
multi = variables.prepare_multi_gpu_env(arguments)
names = ("CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT")
given = "num_processes", "num_machines", "deepspeed_multinode_launcher", "zero_stage"
print(json.dumps([{name: env.get(name) for name in names}, multi.get("CUDA_VISIBLE_DEVICES"),
                  {name: getattr(arguments, name) for name in given}]))
"""


@pytest.mark.torch
@pytest.mark.dear(10, "accelerate's own parser, which imports torch")
def test_accelerate_s_default_config_chooses_no_gpus_and_no_machines(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    config = tmp_path / ".cache" / "huggingface" / "accelerate" / "default_config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(ACCELERATE_CONFIG)
    command = command_of(job(["t.py"], "accelerate", gpus=2), ["GPU-a", "GPU-b"])
    words = [word.replace(PORT, "45678") for word in command[3:]]
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    whole = [sys.executable, "-c", AS_ACCELERATE_TAKES_IT, *words]
    said = subprocess.run(whole, env=env, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    simple, multi, taken = json.loads(said.stdout.splitlines()[-1])
    assert simple == {
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "45678",
    }
    assert multi == "GPU-a,GPU-b"
    assert taken == {
        "num_processes": 2,
        "num_machines": 1,
        "deepspeed_multinode_launcher": "standard",
        "zero_stage": 3,  # how it trains stays the user's choice
    }


def start(daemon: Daemon, tmp_path: Path, mode: str, **changes: Any) -> Path:
    shutil.copy(PROGRAM, tmp_path / "train.py")
    ranks = changes.pop("ranks", 2)
    launcher = changes.pop("launcher", "torchrun")
    spec = job(["train.py", mode], launcher, str(tmp_path), device="cpu", ranks=ranks, **changes)
    daemon.client.submit(spec)
    return tmp_path


def said(directory: Path, rank: int) -> dict[str, Any]:
    path = directory / f"rank-{rank}"
    wait_for(lambda: path.exists() and path.read_text(), f"rank {rank}", START_SECONDS)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.torch
@pytest.mark.dear(20, "a launcher, which imports torch")
@pytest.mark.parametrize(
    "mode",
    # The ranks that meet over gloo import torch, too; whether they do is no matter of the launcher.
    [
        "asks",
        pytest.param("asks over gloo", marks=pytest.mark.full),
        pytest.param("does not ask", marks=pytest.mark.full),
    ],
)
def test_cancel_ends_torchrun_and_all_its_ranks(daemon: Daemon, tmp_path: Path, mode: str) -> None:
    """torchrun starts each rank in a session of its own, and leaves them running when killed."""
    daemon.start()
    directory = start(daemon, tmp_path, mode.replace(" ", "-"))
    ranks = [said(directory, rank) for rank in (0, 1)]
    assert [rank["world_size"] for rank in ranks] == [2, 2]
    pids = [*daemon.pids(), *(rank["pid"] for rank in ranks)]
    assert len(pids) == 4  # the supervisor, torchrun, and two ranks
    daemon.client.cancel(1)
    ended = daemon.wait_for_end(1)
    assert ended["state"] == "cancelled"
    assert not any(is_alive(pid) for pid in pids)
    if mode != "does not ask":
        assert ended["reason"].endswith("saved at step 7 and stopped"), ended["reason"]
        assert ended["latest_checkpoint"]["path"] == str(directory / "last.pt")
        assert ended["progress"]["loss"] == 2.0
    else:
        assert ended["reason"].endswith("after a request to stop"), ended["reason"]


@pytest.mark.torch
@pytest.mark.dear(20, "a launcher and its ranks, each of which imports torch")
@pytest.mark.deepspeed
@pytest.mark.parametrize(
    ("launcher", "ranks"),
    # What accelerate is told is read by its own parser in a test above.
    [("deepspeed", 2), pytest.param("accelerate", 1, marks=pytest.mark.full)],
)
def test_other_launchers_run_to_their_end(
    daemon: Daemon, tmp_path: Path, launcher: str, ranks: int
) -> None:
    daemon.start()
    (tmp_path / ".deepspeed_env").write_text("WORLD_SIZE=7\nCUDA_VISIBLE_DEVICES=5\n")
    (tmp_path / "hostfile").write_text("elsewhere slots=8\n")
    home = {"HOME": str(tmp_path), "DLTS_HOSTFILE": str(tmp_path / "hostfile")}
    directory = start(daemon, tmp_path, "once", launcher=launcher, ranks=ranks, env=home)
    found = said(directory, ranks - 1)
    assert found["world_size"] == ranks
    ended = daemon.wait_for_state(1, "succeeded", "failed", "waiting_retry")
    log = (daemon.run_dir() / "rank-0.log").read_text()
    assert ended["state"] == "succeeded", log
    assert ended["latest_checkpoint"]["step"] == 7
