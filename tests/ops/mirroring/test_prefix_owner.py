"""Two runs never write to one place, and a run knows its own again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.stores.gcs import GcsServer
from harness.stores.trouble import Call, LoseReply
from tests.io.stores.far import served, troubled
from tests.ops.mirroring.made import mirror, place, save, send
from zerotools.core.errors import BadRequest
from zerotools.io.stores.store_path import remove_objects
from zerotools.ops.mirroring.prefix_owner import (
    CLAIM,
    SCHEMA,
    check_claim,
    claim_prefix,
    read_claim,
    refuse_lost,
)
from zerotools.runs.upload_records import uploaded_run


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with served(monkeypatch) as store:
        yield store


def test_a_place_is_the_first_run_s(store: GcsServer, tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    assert claim_prefix(place(), mine, "job 1", None)
    assert not claim_prefix(place(), mine, "job 1", None)
    assert check_claim(place(), mine, "job 7", None)  # its directory says so
    with pytest.raises(BadRequest, match=r"holds checkpoints of another run of .*/mine; name"):
        claim_prefix(place(), other, "job 2", None)
    assert uploaded_run(other) is None
    refuse_lost(place(), mine)


def test_a_new_job_in_an_emptied_directory_does_not_go_on_by_itself(
    store: GcsServer, tmp_path: Path
) -> None:
    output = mirror(tmp_path)
    output.fetch(None)
    path = save(tmp_path, 4)
    send(output)
    assert claim_prefix(place(), tmp_path, "job 2", None)
    shutil.rmtree(path)
    with pytest.raises(BadRequest, match="holds checkpoints of another run"):
        claim_prefix(place(), tmp_path, "job 3", None)
    assert claim_prefix(place(), tmp_path, "job 3", str(place()))


def test_of_a_directory_and_its_copy_one_writes(store: GcsServer, tmp_path: Path) -> None:
    mine, copy = tmp_path / "mine", tmp_path / "copy"
    claim_prefix(place(), mine, "job 1", None)
    save(mine, 4)
    shutil.copytree(mine, copy)
    with pytest.raises(BadRequest, match=r"holds checkpoints of another run of .*/mine"):
        claim_prefix(place(), copy, "job 2", str(copy))
    assert claim_prefix(place(), mine, "job 2", str(mine))
    refuse_lost(place(), mine)


def test_what_another_run_has_on_the_disk_is_not_that_of_the_place(
    store: GcsServer, tmp_path: Path
) -> None:
    """Else the run would go on from the other's, which is newer, and send that."""
    output = mirror(tmp_path / "mine")
    output.fetch(None)
    save(tmp_path / "mine", 4)
    send(output)
    other = tmp_path / "other"
    save(other, 6)
    with pytest.raises(BadRequest, match="/other: holds other checkpoints than gs:"):
        claim_prefix(place(), other, "job 2", str(place()))
    refuse_lost(place(), tmp_path / "mine")


def test_who_resumes_from_a_place_takes_it_over(store: GcsServer, tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    claim_prefix(place(), mine, "job 1", None)
    assert claim_prefix(place(), other, "job 2", f"{place()}/step-00000004")
    refuse_lost(place(), other)
    with pytest.raises(BadRequest, match=r"is now claimed by .*/other: this run stops"):
        refuse_lost(place(), mine)
    remove_objects([place() / CLAIM])
    with pytest.raises(BadRequest, match="is not claimed any more"):
        refuse_lost(place(), other)


def test_a_job_whose_disk_is_lost_has_its_place(store: GcsServer, tmp_path: Path) -> None:
    claim_prefix(place(), tmp_path / "disk", "job 1", None)
    before = read_claim(place())
    assert claim_prefix(place(), tmp_path / "new disk", "job 1", None)
    after = read_claim(place())
    assert before is not None
    assert after is not None
    assert before.run != after.run == uploaded_run(tmp_path / "new disk")


def test_checkpoints_that_nobody_claimed_are_somebody_s(store: GcsServer, tmp_path: Path) -> None:
    store.put("run/step-00000004/job.json", b"{}")
    with pytest.raises(BadRequest, match="holds checkpoints of another run; name another URL"):
        claim_prefix(place(), tmp_path, "job 1", None)
    assert claim_prefix(place(), tmp_path, "job 1", str(place()))


@pytest.mark.parametrize("data", [b"", b"[]", b'{"schema": "zerotools.run/2"}', b"\xff"])
def test_a_claim_that_cannot_be_read_is_nobody_s_to_take(
    data: bytes, store: GcsServer, tmp_path: Path
) -> None:
    store.put(f"run/{CLAIM}", data)
    with pytest.raises(BadRequest, match="name another URL"):
        claim_prefix(place(), tmp_path, "job 1", str(place()))


def test_a_claim_whose_answer_is_lost_is_known_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with troubled(monkeypatch) as (_, proxy):
        proxy.add(LoseReply(), kind="put", times=1)
        assert claim_prefix(place(), tmp_path, "job 1", None)
        refuse_lost(place(), tmp_path)
        assert proxy.counts["put"] > 1


def test_of_two_that_claim_at_once_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {"schema": SCHEMA, "run": "another", "job": "job 2", "where": "host:/out"}
    with troubled(monkeypatch) as (store, proxy):
        other = json.dumps(tree).encode()
        proxy.add(Call(lambda: store.put(f"run/{CLAIM}", other)), kind="put", times=1)
        with pytest.raises(BadRequest, match="another run claims gs://checkpoints/run now"):
            claim_prefix(place(), tmp_path, "job 1", None)
        assert uploaded_run(tmp_path) is None
        with pytest.raises(BadRequest, match="another run of host:/out"):
            claim_prefix(place(), tmp_path, "job 1", None)
