"""Nodes that train one job, each with ranks and a run directory of its own."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA, job, run
from tests.daemon.trainer.nodes import Run, finished, steps
from tests.daemon.waiting import wait_for
from zerotools.runs import find_job_checkpoints
from zerotoolsd.trainer.rank.rank_errors import EXIT_BAD_JOB, EXIT_NOT_READY, EXIT_STOPPED

pytestmark = pytest.mark.torch
STEPS = 6


def test_two_nodes_train_what_one_machine_does(tmp_path: Path, text: Path) -> None:
    both = Run(tmp_path / "two", text, train=steps(STEPS), checkpoint={"every": 3})
    nodes = [both.start(1), both.start(0)]
    assert finished(nodes) == [[0, 0], [0, 0]], nodes[1].log()
    one = run(
        tmp_path / "one",
        job(text, ranks=4, train=steps(STEPS), zero={"stage": 3, "shard_size": 2}),
    )
    for node in nodes:  # each daemon sees the whole run
        assert node.losses() == one.losses()
        assert [each["step"] for each in node.events("checkpoint")] == [3, 6]
    assert "2 nodes have met" in nodes[1].log()
    lines = (tmp_path / "two" / "out" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, STEPS + 1))
    last = find_job_checkpoints.verify_checkpoint_files(tmp_path / "two" / "out" / "step-00000006")
    assert (last.world_size, last.step) == (4, STEPS)
    # A node that went before it had told its end has nobody to wait for.
    late = both.start(1)
    assert late.finish() == [0, 0]
    assert "all steps are done already" in late.log()


def test_where_one_node_stops_the_other_saves_and_waits(tmp_path: Path, text: Path) -> None:
    both = Run(tmp_path, text, ranks=1, train=steps(100_000), checkpoint={"every": 90_000})
    first, second = both.start(0), both.start(1)
    second.mailbox.wait_for("step")
    (second.run_dir / "stop").write_text("pause")
    assert finished([first, second]) == [[EXIT_NOT_READY], [EXIT_STOPPED]]
    (told,) = first.events("error")
    saved = first.events("checkpoint")[-1]["step"]
    assert told["kind"] == "not_ready"
    assert told["message"] == (
        f"node 1 was stopped at step {saved} (pause), and has saved a checkpoint; this node waits "
        "until that node continues"
    )
    changes = {"train": steps(saved + 2)}
    nodes = [both.start(node, **changes) for node in (0, 1)]
    assert finished(nodes) == [[0], [0]]
    assert [min(node.losses()) for node in nodes] == [saved + 1, saved + 1]


def test_a_node_that_is_killed_leaves_the_other_without_a_peer(tmp_path: Path, text: Path) -> None:
    both = Run(tmp_path, text, ranks=1, train=steps(100_000))
    first, second = both.start(0), both.start(1)
    first.mailbox.wait_for("step")
    second.end()
    assert first.finish() == [1]
    (told,) = first.events("error")
    assert "onnection" in told["message"]
    # Asked to stop while it waits for the other, a node ends as one that has nothing to save.
    again = both.start(0)
    wait_for(lambda: "waits for the other nodes" in again.log(), "it to wait")
    (again.run_dir / "stop").write_text("cancel")
    assert again.finish() == [EXIT_STOPPED]


def _other_text(directory: Path, _: Path) -> dict[str, Any]:
    other = directory / "other.txt"
    other.write_text("Not what node 0 has. " * 200)
    return {"data": {"text": [str(other)], "sequence_length": 32}}


def _changed_text(directory: Path, text: Path) -> dict[str, Any]:
    other = directory / text.name
    other.write_text(text.read_text().replace("1", "2"))
    return {"data": {"text": [str(other)], "sequence_length": 32}}


def _other_model(*_: Path) -> dict[str, Any]:
    config = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return {"model": {"config": config}}


def _other_tables(*_: Path) -> dict[str, Any]:
    return {"checkpoint": {"every": 2}, "data": {"sequence_length": 16}}


def _no_model(directory: Path, _: Path) -> dict[str, Any]:
    return {"model": {"path": str(directory / "nowhere")}}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_other_tables, "has a different job than node 0 ({host}): checkpoint, data differ"),
        pytest.param(_other_text, "data.text: node 0 has 1 file with ", marks=pytest.mark.full),
        (_changed_text, "data.text (0: verses.txt) differs between node 1 and node 0"),
        # As of other tables.
        pytest.param(
            _other_model,
            "has a different job than node 0 ({host}): model differ",
            marks=pytest.mark.full,
        ),
    ],
)
def test_nodes_with_other_data_or_another_model_are_told(
    tmp_path: Path, text: Path, make: Callable[[Path, Path], dict[str, Any]], why: str
) -> None:
    both = Run(tmp_path, text, ranks=1)
    nodes = [both.start(0), both.start(1, **make(tmp_path, text))]
    assert finished(nodes) == [[EXIT_BAD_JOB], [EXIT_BAD_JOB]]
    for node in nodes:
        assert why.format(host=socket.gethostname()) in node.events("error")[0]["message"]


def _config_file(directory: Path, name: str, **changes: Any) -> dict[str, Any]:
    path = directory / f"{name}.json"
    path.write_text(json.dumps({**TINY_LLAMA, **changes}))
    return {"model": {"config": str(path)}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"hidden_act": "relu"},
            "the model of node 1 has a different config than the model of",
        ),
        ({"hidden_size": 64}, "[model]: node 1 has a different model than node 0: "),
        ({"model_type": "nothing"}, "node 1: "),
    ],
)
def test_what_is_wrong_on_one_node_ends_the_job_on_both(
    tmp_path: Path, text: Path, changes: dict[str, Any], why: str
) -> None:
    both = Run(tmp_path, text, ranks=1, **_config_file(tmp_path, "config"))
    nodes = [both.start(0), both.start(1, **_config_file(tmp_path, "other", **changes))]
    assert finished(nodes) == [[EXIT_BAD_JOB], [EXIT_BAD_JOB]], nodes[0].log()
    assert why in nodes[0].events("error")[0]["message"]


def test_epochs_that_are_over_are_not_waited_for(tmp_path: Path, text: Path) -> None:
    both = Run(tmp_path, text, ranks=1, train={"steps": None, "epochs": 0.05})
    assert finished([both.start(0), both.start(1)]) == [[0], [0]]
    assert both.start(1).finish() == [0]
