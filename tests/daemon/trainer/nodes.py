"""A job of two nodes, each with ranks and a run directory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.launching import Attempt, job, start
from harness.ports import free_port


class Run:
    """A job of two nodes, whose attempts are numbered."""

    def __init__(self, directory: Path, text: Path, **changes: Any) -> None:
        self.directory, self.text, self.changes = directory, text, changes
        self.attempts: list[int] = [0, 0]
        self.port = free_port()

    def job(self, node: int, **changes: Any) -> dict[str, Any]:
        meeting = {
            "address": f"127.0.0.1:{self.port}",
            "nodes": 2,
            "node_rank": node,
            "timeout": 120,
        }
        wanted = {"output_dir": str(self.directory / "out"), "rendezvous": meeting}
        return job(self.text, **{"ranks": 2, **wanted, **self.changes, **changes})

    def start(self, node: int, **changes: Any) -> Attempt:
        self.attempts[node] += 1
        name = f"node-{node}-{self.attempts[node]}"
        return start(self.directory / name, self.job(node, **changes), token=name)


def steps(count: int, **more: Any) -> dict[str, Any]:
    return {"steps": count, **more}


def finished(nodes: Sequence[Attempt]) -> list[list[int]]:
    return [node.finish() for node in nodes]
