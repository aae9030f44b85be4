"""Trains a job on two machines. In each round, processes are killed, or the network fails.

    python -m harness.nodes [--moments 10] [--steps 240] [--only rank ...]

A machine is a daemon in its own network namespace. The two daemons train one job, with two ranks
each, over the link between the namespaces. Each round has one fault: SIGKILL of a rank, a
supervisor, a daemon or all processes of a machine, or some seconds without the link. There are ten
rounds for each fault, at ten moments of the run. After each round, these conditions must be true:
both jobs have succeeded, all losses are the same as in a run without a fault, the last checkpoint
is undamaged, and no process of the job is left.

Needs root and iproute2.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.forked import close_servers
from harness.launching import job
from harness.left_groups import remove_groups
from harness.nodes.machines import TARGETS, NodeMachine
from harness.nodes.namespaces import ADDRESSES, cut, join, two_namespaces
from zerotools.runs import find_job_checkpoints

PORT = 29500
CABLE = "cable"
CUT_SECONDS = 5.0
EVERY = 20


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--only", nargs="*", default=[*TARGETS, CABLE])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="zerotools-") as name, two_namespaces() as names:
        directory = Path(name)
        machines = [NodeMachine(node, each, directory) for node, each in enumerate(names)]
        try:
            for machine in machines:
                machine.start()
            return _Rounds(machines, directory, options.steps).all(options.only, options.moments)
        finally:
            for machine in machines:
                machine.end()
            remove_groups(directory)
            close_servers()


class _Rounds:
    def __init__(self, machines: list[NodeMachine], directory: Path, steps: int) -> None:
        self._machines, self._directory, self._steps = machines, directory, steps
        self._text = directory / "text.txt"
        self._text.write_text("".join(f"{n} sheep, {n * 7 % 13} black.\n" for n in range(400)))
        self._number = 0
        self._wanted: dict[int, float] = {}

    def all(self, targets: list[str], moments: int) -> int:
        began = time.monotonic()
        self._wanted = self._round(None, 0, 0)[1]
        print(f"undisturbed: {time.monotonic() - began:.1f} s, {self._steps} steps", flush=True)
        broken = 0
        for target in targets:
            attempts, seconds, wrong = [], [], []
            for moment in range(moments):
                began = time.monotonic()
                step = self._steps * moment // moments
                try:
                    count, losses = self._round(target, step, moment % 2)
                    wrong += self._check(losses)
                    attempts.append(count)
                except AssertionError as error:
                    wrong.append(str(error))
                seconds.append(time.monotonic() - began)
            broken += len(wrong)
            print(
                f"{target}: {moments - len(wrong)} of {moments} held, attempts {attempts}, "
                f"{min(seconds):.1f} to {max(seconds):.1f} s",
                flush=True,
            )
            for each in wrong:
                print(f"  {each}", flush=True)
        return 1 if broken else 0

    def _check(self, losses: dict[int, float]) -> list[str]:
        differing = [step for step in self._wanted if losses.get(step) != self._wanted[step]]
        return [f"{len(differing)} losses differ, the first at {differing[0]}"] if differing else []

    def _job(self, node: int) -> dict[str, Any]:
        meeting = {"address": f"{ADDRESSES[0]}:{PORT}", "nodes": 2, "node_rank": node}
        return job(
            self._text,
            ranks=2,
            train={"steps": self._steps},
            checkpoint={"every": EVERY},
            output_dir=str(self._directory / f"out-{self._number}"),
            rendezvous={**meeting, "timeout": "5m"},
        )

    def _round(self, target: str | None, step: int, which: int) -> tuple[int, dict[int, float]]:
        """Run one round. Return (the number of attempts on both machines, the losses)."""
        self._number += 1
        jobs = [machine.submit(self._job(machine.node)) for machine in self._machines]
        both = list(zip(self._machines, jobs, strict=True))
        victim, number = both[which]
        if target is not None:
            victim.wait_for(
                lambda: victim.step(number) >= max(1, step) or victim.ended(number), "step"
            )
            self._strike(target, victim, number)
        for machine, job_number in both:
            machine.wait_for(lambda m=machine, n=job_number: m.ended(n), "end")
        views = [machine.client.job(job_number) for machine, job_number in both]
        for view in views:
            assert view["state"] == "succeeded", f"job {view['id']}: {view['reason']}"
        find_job_checkpoints.verify_checkpoint_files(
            self._directory
            / f"out-{self._number}"
            / find_job_checkpoints.directory_name(self._steps)
        )
        for machine, job_number in both:
            machine.wait_for(lambda m=machine, n=job_number: not m.left(n), "end of its processes")
        losses = [machine.losses(job_number) for machine, job_number in both]
        merged = {**losses[1], **losses[0]}
        assert all(merged[step] == loss for each in losses for step, loss in each.items()), (
            "the machines report different losses"
        )
        return sum(len(view["attempts"]) for view in views), merged

    def _strike(self, target: str, victim: NodeMachine, job_number: int) -> None:
        if target == CABLE:
            cut(victim.name, node=victim.node)
            time.sleep(CUT_SECONDS)
            join(victim.name, node=victim.node)
            return
        if victim.ended(job_number):
            return
        victim.kill(target, job_number)
        if target in ("daemon", "machine"):
            victim.start()


if __name__ == "__main__":
    sys.exit(main())
