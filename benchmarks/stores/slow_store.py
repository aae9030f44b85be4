"""A store on loopback that waits before each answer, and the table of what is measured."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.measuring import Measurement
from harness.stores.faults import FaultProxy
from harness.stores.gcs import GcsServer, client_env
from harness.stores.trouble import Wait


def asked(doc: str | None) -> argparse.Namespace:
    """The command line: `gib`, `wait_ms` and `runs`."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--wait-ms", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=3)
    return parser.parse_args()


@contextmanager
def slow_store(given: argparse.Namespace) -> Iterator[tuple[Path, GcsServer, FaultProxy]]:
    """A directory to work in, the store itself, and what is in front of it for clients of this
    process and of those that it starts."""
    with TemporaryDirectory() as name, GcsServer() as store, FaultProxy(store.url) as proxy:
        os.environ.update(client_env(proxy.url))
        proxy.add(Wait(given.wait_ms / 1000))
        yield Path(name), store, proxy


def heading(what: str, given: argparse.Namespace) -> None:
    print(f"{what}, {given.wait_ms:g} ms before each answer")
    print("| what | seconds | CPU | peak memory | requests |\n|---|---|---|---|---|")


def row(what: str, runs: Sequence[Sequence[Measurement]], requests: int) -> None:
    """Of runs of one or several programs: medians of time, the largest memory."""
    seconds = median(sum(each.wall_seconds for each in run) for run in runs)
    cpu = median(sum(each.cpu_seconds for each in run) for run in runs)
    peak = max(each.peak_anonymous_bytes for run in runs for each in run) / 2**20
    print(f"| {what} | {seconds:.2f} | {cpu:.2f} | {peak:.0f} MiB | {requests} |", flush=True)
