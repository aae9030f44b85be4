"""Ranks that keep to processors and memory, by what the kernel says of them; where it does not let
them, they run all the same."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.started import run
from tests.daemon.bound_program import told
from tests.daemon.made_attempts import finish, make_attempt, supervise
from zerotools.sensors.numa import memory_policy
from zerotoolsd.supervisor import entry
from zerotoolsd.supervisor.durable_files import read_json
from zerotoolsd.supervisor.set_numa_binding import RankBinding, keep_to, kept_of

HERE = sorted(os.sched_getaffinity(0))
PROGRAM = Path(__file__).parents[1] / "bound_program.py"
DENIED = Path(__file__).parents[1] / "denied_calls.py"
SCHED_SETAFFINITY, SET_MEMPOLICY = 203, 238
"""Of x86-64."""
ONE_CPU = RankBinding(str(HERE[-1]), (0,))


@pytest.fixture(autouse=True)
def has_policies() -> None:
    """Also in a kernel without NUMA, and in Docker, ranks run; here it is seen that they keep to
    what they are given."""
    try:
        memory_policy()
    except OSError as error:
        pytest.skip(f"memory policies cannot be asked for here: {error.strerror}")


def in_child(do: Callable[[], Any]) -> Any:
    """What `do` returns in a process of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, json.dumps(do()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def an_attempt(run_dir: Path, *bindings: RankBinding) -> Path:
    program = (sys.executable, "-I", "-S", str(PROGRAM))
    size = len(bindings) or 1
    keys: dict[str, Any] = {"own_program": True, "world_size": size, "bindings": bindings}
    return make_attempt(run_dir, "", argv=program, **keys)


def test_a_rank_its_threads_and_what_it_starts_keep_to_it(tmp_path: Path) -> None:
    attempt = an_attempt(tmp_path / "run", ONE_CPU, RankBinding(why="nobody knows"))
    record = finish(attempt, supervise(attempt))
    assert record["outcome"] == "finished", (attempt / "rank-0.log").read_text()
    bound, free = (json.loads((attempt / f"rank-{rank}.log").read_text()) for rank in (0, 1))
    assert bound.pop("new memory") == "prefer:0"
    assert bound.keys() == {"itself", "thread", "fork", "program"}
    for found in bound.values():
        assert found == {"cpus": [HERE[-1]], "mode": "preferred", "nodes": [0]}
    assert free["itself"] == {"cpus": HERE, "mode": "default", "nodes": []}
    binding = {"cpus": ONE_CPU.cpus, "nodes": [0], "why": None}
    assert record["ranks"][0]["binding"] == binding
    run_json = read_json(attempt / "run.json")
    assert run_json is not None
    lines = run_json["ranks"]
    assert lines[0]["binding"] == binding
    assert lines[1]["binding"] == {"cpus": "", "nodes": [], "why": "nobody knows"}


def test_without_a_binding_nothing_is_said_of_one(tmp_path: Path) -> None:
    attempt = an_attempt(tmp_path / "run")
    record = finish(attempt, supervise(attempt))
    assert "binding" not in record["ranks"][0]
    assert json.loads((attempt / "rank-0.log").read_text())["itself"] == told()


def test_several_nodes_are_preferred_together() -> None:
    def preferred() -> list[Any]:
        said = keep_to(RankBinding(str(HERE[0]), (0, 1)))
        return [said.decode(), told()["mode"]]

    # A kernel before 5.15 prefers one alone: then memory comes from where the rank runs.
    assert in_child(preferred) in (["", "preferred many"], ["m22;", "default"])


@pytest.mark.parametrize(
    ("binding", "said"),
    [
        (RankBinding(), b""),
        (RankBinding(why="nobody knows"), b""),
        (RankBinding("60000-60003"), b"f0;"),
        (RankBinding(str(HERE[0]), (1023,)), b"m22;"),
        (RankBinding(str(HERE[0]), (60000,)), b"m22;"),
        (RankBinding(str(HERE[0]), (2**60,)), b"m22;"),
        (RankBinding(str(HERE[0]), (-1,)), b"m22;"),
    ],
)
def test_what_is_not_there_is_said_and_changes_nothing_else(
    binding: RankBinding, said: bytes
) -> None:
    def kept() -> list[Any]:
        return [keep_to(binding).decode(), told()]

    found, now = in_child(kept)
    assert found == said.decode()
    assert (now["mode"], now["nodes"]) == ("default", [])
    assert now["cpus"] == ([HERE[0]] if b"m" in said else HERE)


def test_a_control_group_that_leaves_few_of_the_processors_is_heeded() -> None:
    def kept() -> list[Any]:
        os.sched_setaffinity(0, {HERE[0]})
        few = keep_to(RankBinding(f"{HERE[0]},60000-60002"))
        half = keep_to(RankBinding(f"{HERE[0]},60000"))
        return [few.decode(), half.decode(), told()["cpus"]]

    assert in_child(kept) == ["f1;", "", [HERE[0]]]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
@pytest.mark.parametrize(
    ("number", "said", "cpus"),
    [
        (SET_MEMPOLICY, "its memory node cannot be preferred: Operation not permitted", [HERE[-1]]),
        (SCHED_SETAFFINITY, "its processors cannot be set: Operation not permitted", HERE),
    ],
)
def test_a_container_that_forbids_it_runs_the_rank_and_says_so(
    tmp_path: Path, number: int, said: str, cpus: list[int]
) -> None:
    attempt = an_attempt(tmp_path / "run", ONE_CPU)
    command = (sys.executable, "-I", "-S", str(entry.__file__), str(attempt))
    denied = (sys.executable, str(DENIED), str(number), *command)
    done = run(denied, capture_output=True, text=True, check=False, timeout=60)
    record = read_json(attempt / "exit.json")
    assert record is not None, done.stderr
    assert record["outcome"] == "finished"
    kept = {"cpus": "" if cpus == HERE else ONE_CPU.cpus, "nodes": [], "why": said}
    assert record["ranks"][0]["binding"] == kept
    found = json.loads((attempt / "rank-0.log").read_text())["itself"]
    assert found == {"cpus": cpus, "mode": "default", "nodes": []}
    assert f"rank 0 is not bound as planned: {said}" in done.stdout


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (b"dp", ONE_CPU),
        (b"dm1;p", RankBinding(ONE_CPU.cpus, (), "its memory node cannot be preferred: {1}")),
        (b"dc22;p", RankBinding("", (), "its processors cannot be set: {22}")),
        (b"df3;", RankBinding(why="only 3 of its processors may be used by its control group")),
    ],
)
def test_what_is_kept_is_what_was_not_refused(said: bytes, kept: RankBinding) -> None:
    why = kept.why and kept.why.replace("{1}", os.strerror(1)).replace("{22}", os.strerror(22))
    assert kept_of(ONE_CPU, said) == kept._replace(why=why)


@pytest.mark.parametrize(
    "tree", [3, "0-3", {}, {"cpus": "0", "nodes": 1, "why": None}, {"cpus": 1, "nodes": []}]
)
def test_what_is_no_binding_is_refused_by_its_own_error(tree: object) -> None:
    with pytest.raises(ValueError, match="does not describe the processors"):
        RankBinding.from_json(tree)


def test_it_comes_back_from_json() -> None:
    for binding in (ONE_CPU, RankBinding(), RankBinding(why="so")):
        assert RankBinding.from_json(json.loads(json.dumps(binding.to_json()))) == binding
