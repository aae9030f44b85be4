"""Random operations on a real daemon, several at once, while processes are killed.

    python -m harness.faults.interleavings [--minutes M] [--seed N] [--steps N]

After each step, `harness.invariants` and `harness.faults.rules` check the state directory and the
jobs. At the end of a round the kills stop, and all jobs must end. Each round has a new daemon and
the next seed. With the `--seed` of a failed round, the same operations are done again. How they
overlap depends on the machine, so several tries may be needed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from harness.faults import operations
from harness.faults.daemons import Place, make_tensors
from harness.faults.operations import ARRAY, SUBMIT, Operation, job_of
from harness.faults.rules import Rules
from harness.forked import Forked, close_servers
from harness.invariants import broken, failed
from harness.left_groups import remove_groups
from harness.patience import Deadline
from harness.soak.trouble import GPUS, nvml_environment, nvml_library
from zerotools.core.errors import DaemonUnreachable, ZerotoolsError
from zerotools.jobs.chaos.own_processes import LiveAttempt, live_attempts, signal_own
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.states import HELD, ON_HOLD, PAUSED, STATES, TERMINAL

STEPS = 40
END_SECONDS = 60.0
HELD_SECONDS = 2.0
MOST_OPEN = 20
MEMORY = Path("/dev/shm")


class Round:
    """One round: a new daemon, and random operations on it."""

    def __init__(self, path: Path, tensors: Path, library: Path | None, seed: int) -> None:
        self.seed = seed
        self.place = Place(path, tensors, operations.CONFIG)
        self._nvml = path / "nvml"
        self._nvml.write_text("\n".join(GPUS))
        self._library = library
        self.rules = Rules(self.place.state, path / "stamps")
        self.jobs: list[int] = []
        """The numbers of acknowledged jobs."""
        self.removed: set[int] = set()
        """The numbers of jobs that a client asked to remove."""
        self.keys: dict[int, Operation] = {}
        """For each submitted job, the operation that submitted it."""
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._unsure: list[Operation] = []
        self._lock = threading.RLock()
        self._states: dict[int, str] = {}
        """The states of all jobs before the step began, the newest job first."""
        self._of_arrays: set[int] = set()
        self.daemon = self._start()

    def _known(self) -> dict[int, str]:
        deadline = Deadline(20)
        while not deadline.has_passed():
            with suppress(ZerotoolsError):
                found = self.place.client.jobs(limit=1000)
                self._of_arrays = {job["id"] for job in found if job["array"] is not None}
                return {job["id"]: job["state"] for job in found}
            self.keep_up()
            time.sleep(0.02)
        self.wrong.append("the daemon does not answer")
        return {}

    def _start(self) -> Forked:
        return self.place.daemon(env=nvml_environment(self._library, self._nvml))

    def keep_up(self) -> bool:
        """Start the daemon again if it was killed."""
        with self._lock:
            if not self.daemon.is_running():
                if self.daemon.returncode not in (0, -signal.SIGKILL, -signal.SIGTERM):
                    self.wrong.append(f"the daemon ended with {self.daemon.returncode}")
                self.daemon = self._start()
        return True

    def step(self, together: list[Operation]) -> None:
        """Begin the operations `together`, wait for them, and check the rules."""
        self._states = self._known()
        with ThreadPoolExecutor(len(together)) as pool:
            list(pool.map(self._one, together))
        self.keep_up()
        unsure, self._unsure = self._unsure, []
        for operation in unsure:
            self._asked(operation)
        self.look()

    def look(self) -> None:
        """Check the rules, and record errors in `wrong`."""
        with suppress(sqlite3.OperationalError):  # the queue is made just now
            self.wrong += broken(self.place.state, {*self.jobs} - self.removed)
            self.wrong += self.rules.broken(self.removed)

    def _one(self, operation: Operation) -> None:
        time.sleep(operation.delay)
        if operation.name in operations.KILLS:
            with suppress(OSError, ChildProcessError):
                self._kill(operation)
                self.done[operation.name] += 1
        else:
            self._asked(operation)

    def _asked(self, operation: Operation) -> None:
        try:
            self._ask(operation)
            self.done[operation.name] += 1
        except DaemonUnreachable:
            if operation.name in operations.SUBMITS:
                self._unsure.append(operation)  # a client sends it again until it is answered
        except ZerotoolsError as error:
            self.done[f"{operation.name}, refused"] += 1
            if error.status is not None and error.status >= 500 and error.status != 503:
                self.wrong.append(f"{operation}: {error}")

    def _target(self, operation: Operation) -> int:
        """Return a job for the operation: usually a job in a suitable state, otherwise any job."""
        meant = operations.MEANT.get(operation.name, STATES)
        fitting = [job for job, state in self._states.items() if state in meant]
        if operation.name == "array":
            fitting = [job for job in fitting if job in self._of_arrays]
        if operation.one_of((True, False, False, False), 11):
            fitting = []
        fitting = fitting or [*self._states]
        return fitting[operation.job % len(fitting)]

    def _ask(self, operation: Operation) -> None:
        client, one_of = self.place.client, operation.one_of
        if operation.name in (SUBMIT, ARRAY):
            self._submit(operation)
            return
        if not self._states:
            return
        job = self._target(operation)
        match operation.name:
            case operations.AGAIN:
                self._submit_again(job)
            case "hold":
                client.hold(job, lose_steps=one_of((True, False)))
            case "release" | "pause" | "unpause" | "resume" | "cancel":
                getattr(client, operation.name)(job)
            case "retry":
                self._acknowledge([client.retry(job, from_start=one_of((True, False)))])
            case "priority":
                client.set_priority(job, one_of(range(-3, 8)))
            case "edit":
                wanted = [{"set": {"time_limit": 30}}, {"set": {"env.MORE": "x"}}, {"begin": 0}]
                client.edit(job, one_of(wanted))
            case "array":
                wish = one_of(operations.ARRAY_WISHES)
                if wish == "retry":
                    how = one_of(({}, {"from_start": False}))
                    self._acknowledge(client.of_array(job, how, "/retry")["jobs"])
                else:
                    more = {"priority": one_of(range(-3, 8))} if wish == "priority" else {}
                    client.of_array(job, {"do": wish, **more})
            case "clean":
                jobs = [job, *one_of([[], list(self._states)[:2]])]
                with self._lock:
                    self.removed |= {*jobs}
                client.clean({"jobs": jobs, "outputs": one_of((True, False))})
            case "drain":
                client.drain("a drill")
            case "undrain":
                client.undrain()
            case _:
                client.jobs(limit=1000)
                client.explain(job)
                client.events()

    def _submit(self, operation: Operation) -> None:
        wanted, key = job_of(self.place, operation), f"key-{operation.number}"
        spec, terms = job_from_dict(wanted.tree, source="job"), dict(wanted.terms)
        if "begin" in terms:
            terms["begin"] = time.time() + terms["begin"]
        if "after" in terms and self._states:
            job = self._target(operation)
            terms["after"] = [{"job": job, "condition": each} for each in terms["after"]]
        else:
            terms.pop("after", None)
        if operation.name == ARRAY:
            count = operation.one_of((2, 3, 4), 10)
            found = self.place.client.submit_array(
                spec, {}, count, idempotency_key=key, terms=terms
            )
        else:
            found = [self.place.client.submit(spec, idempotency_key=key, terms=terms)]
        self._acknowledge(found, operation)

    def _submit_again(self, job: int) -> None:
        operation = self.keys.get(job)
        if operation is None:
            return
        spec = job_from_dict(job_of(self.place, operation).tree, source="job")
        key = f"key-{operation.number}"
        found = self.place.client.submit(spec, idempotency_key=key)
        if found["id"] != job and job not in self.removed:
            self.wrong.append(f"{operation} was sent again, and is job {found['id']} and {job}")
        self._acknowledge([found], operation)

    def _acknowledge(self, found: list[dict[str, Any]], operation: Operation | None = None) -> None:
        with self._lock:
            for each in found:
                if each["id"] not in self.jobs:
                    self.jobs.append(each["id"])
                if operation is not None and operation.name == SUBMIT:
                    self.keys[each["id"]] = operation

    def _kill(self, operation: Operation) -> None:
        what = operation.name
        if what == "SIGTERM of the daemon":
            self.daemon.terminate()
            return
        if what in ("SIGKILL of the daemon", "SIGKILL of daemon and supervisor"):
            self.daemon.kill()
        roles = [role for role in ("supervisor", "keeper", "rank") if role in what]
        if not roles:
            return
        live = list(live_attempts(self.place.state, self.place.path))
        if not live:
            raise ChildProcessError("nothing runs")
        chosen: LiveAttempt = operation.one_of(live)
        numbers = (signal.SIGSTOP, signal.SIGKILL)  # stopped first: all die in one moment
        if what.startswith("SIGSTOP"):
            numbers = (signal.SIGSTOP, signal.SIGCONT)
        for number in numbers:
            for role in roles:
                signal_own(chosen.pid_of(role), number, self.place.path)
            if what.startswith("SIGSTOP") and number == signal.SIGSTOP:
                time.sleep(operation.one_of((0.1, 0.3, 0.7)))

    def settle(self) -> None:
        """Let all jobs end, and then check the state directory."""
        deadline, held = Deadline(END_SECONDS), dict[int, float]()
        while True:
            self.keep_up()
            try:
                left = self._go_on(held)
            except DaemonUnreachable as error:
                left = {0: str(error)}
            self.look()
            if not left or self.wrong:
                break
            if deadline.has_passed():
                self.wrong.append(f"jobs are stuck: {left}")
                break
            time.sleep(0.1)
        self.wrong += [f"job {job} failed: {why}" for job, why in failed(self.place.state).items()]
        self.wrong += self._left()

    def _go_on(self, held: dict[int, float]) -> dict[int, str]:
        client, left = self.place.client, dict[int, str]()
        if client.health().get("drain"):
            client.undrain()
        for job in client.jobs(limit=1000):
            number, state = job["id"], job["state"]
            if state in TERMINAL:
                continue
            left[number] = f"{state}: {job['reason']}"
            with suppress(DaemonUnreachable):
                try:
                    if state in (ON_HOLD, PAUSED):
                        client.release(number)
                    elif state == HELD:
                        since = held.setdefault(number, time.monotonic())
                        if time.monotonic() - since > HELD_SECONDS:
                            client.release(number)
                            held.pop(number)
                except ZerotoolsError:
                    with suppress(ZerotoolsError):  # it has changed, or can never start
                        client.cancel(number) if state == ON_HOLD else None
        return left

    def _left(self) -> Iterator[str]:
        with closing(sqlite3.connect(self.place.state / "zerotools.db")) as queue:
            leases = list(queue.execute("SELECT gpu_uuid, job_id, attempt FROM lease"))
            rows = list(queue.execute("SELECT id, name, state FROM job"))
        yield from (f"all jobs have ended, but {lease} is leased" for lease in leases)
        for job, name, state in rows:
            trained = self.place.path / f"{name}.lines"
            if state == "succeeded" and trained.exists() and "done" not in self.place.lines(name):
                yield f"job {job} succeeded, but its lines have no end: {self.place.lines(name)}"
        if "Traceback" in self.place.log:
            yield f"the daemon's log has a traceback: {self.place.log}"

    def close(self) -> None:
        """Stop the daemon."""
        self.daemon.terminate()
        self.daemon.wait(30)


def live_round(path: Path, tensors: Path, library: Path | None, seed: int, steps: int) -> Round:
    """Run a round of at most `steps` steps, and return it.

    The round ends early after a step that breaks a rule.
    """
    one = Round(path, tensors, library, seed)
    try:
        for number, together in enumerate(islice(operations.steps(seed), steps), 1):
            one.step(together)
            if one.wrong:
                what = "; ".join(map(str, together))
                one.wrong = [f"seed {seed}, step {number} ({what}): {each}" for each in one.wrong]
                return one
        one.settle()
        one.wrong = [f"seed {seed}, at the end: {each}" for each in one.wrong]
        return one
    finally:
        one.close()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 1 if a rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="run rounds for this many minutes"
    )
    parser.add_argument("--seed", type=int, help="the seed of the first round")
    parser.add_argument("--steps", type=int, default=STEPS, help="number of steps in a round")
    parser.add_argument("--keep", type=Path, help="directory for the files of failed rounds")
    options = parser.parse_args(arguments)
    seed = int.from_bytes(os.urandom(3), "big") if options.seed is None else options.seed
    try:
        with tempfile.TemporaryDirectory(
            prefix="zerotools-", dir=MEMORY if MEMORY.is_dir() else None
        ) as directory:
            return _rounds(Path(directory), seed, options)
    finally:
        close_servers()


def _rounds(directory: Path, seed: int, options: argparse.Namespace) -> int:
    tensors, library = make_tensors(directory), nvml_library(directory)
    began, rounds, bad, total = time.monotonic(), 0, 0, Counter[str]()
    while not rounds or time.monotonic() - began < 60 * options.minutes:
        path = directory / f"round-{rounds}"
        one = live_round(path, tensors, library, seed + rounds, options.steps)
        rounds += 1
        bad += bool(one.wrong)
        total += one.done
        asked = sum(one.done.values())
        print(f"seed {one.seed}: {len(one.jobs)} jobs, {asked} operations", flush=True)
        for sentence in one.wrong:
            print(sentence, file=sys.stderr, flush=True)
        if one.wrong and options.keep:
            sockets = shutil.ignore_patterns("*.sock")
            shutil.copytree(path, options.keep / f"seed-{one.seed}", True, sockets)
        remove_groups(path)
    print("\n".join(f"{count:5} {name}" for name, count in sorted(total.items())))
    print(
        f"{rounds} rounds in {time.monotonic() - began:.0f} s from seed {seed}: "
        f"{sum(total.values())} operations, {bad} rounds in which a rule was broken"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
