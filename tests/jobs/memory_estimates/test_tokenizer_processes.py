"""As many processes tokenise as cores, data and memory are enough for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA, job
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.memory_estimates.tokenizer_processes import (
    BYTES_FOR_EACH,
    MEMORY_FOR_EACH,
    MOST_PROCESSES,
    PROCESS_BYTES,
    count_for,
    memory_limit_of,
    tokenizing_bytes,
)


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(24))


def spec(folder: Path, **changes: Any) -> JobSpec:
    tree = job(folder / "*.txt", model={"config": TINY_LLAMA})
    tree["data"]["tokenizer"] = str(folder)
    for name, value in changes.items():
        tree[name] = {**tree.get(name, {}), **value}
    return job_from_dict(tree, source="job")


def of_size(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def test_cores_data_and_memory_bound_them() -> None:
    assert count_for(100 * BYTES_FOR_EACH) == MOST_PROCESSES
    assert count_for(3 * BYTES_FOR_EACH) == 3
    assert count_for(BYTES_FOR_EACH) == 0  # one more process is no faster than none
    assert count_for(100 * BYTES_FOR_EACH, 5 * MEMORY_FOR_EACH) == 5


def test_a_job_has_what_it_says_of_memory_or_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 20, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert memory_limit_of(spec(tmp_path)) == 4 << 30
    assert memory_limit_of(spec(tmp_path, memory={"host": "3GiB"})) == 3 << 30
    both = spec(tmp_path, memory={"host": "2GiB"}, limits={"memory": "3GiB"})
    assert memory_limit_of(both) == 2 << 30


def test_their_memory_follows_from_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", lambda _: 1 << 20)
    (tmp_path / "x.txt").symlink_to("/gone")
    assert tokenizing_bytes(spec(tmp_path)) == 0
    of_size(tmp_path / "a.txt", 2 * BYTES_FOR_EACH)
    of_size(tmp_path / "b.txt", BYTES_FOR_EACH)
    assert tokenizing_bytes(spec(tmp_path)) == 3 * PROCESS_BYTES
    of_size(tmp_path / "c.txt", 1 << 40)
    assert tokenizing_bytes(spec(tmp_path)) == MOST_PROCESSES * PROCESS_BYTES
    assert tokenizing_bytes(spec(tmp_path, data={"tokenizer": "bytes"})) == 0
