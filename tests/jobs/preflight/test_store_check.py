"""A job is asked for what its stores say with what it will have, before it is queued."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.stores.gcs import GcsServer
from tests.io.stores.far import served
from tests.jobs.jobfile.test_parse import parsed
from tests.ops.mirroring.made import BUDGET, mirror, place, save
from zerotools.core.errors import BadRequest
from zerotools.jobs.preflight.store_check import check_stores
from zerotools.ops.mirroring.send_copy import send_copy

TRAIN = {"steps": 10, "batch_size": 8}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with served(monkeypatch) as store:
        yield store


def refusal(store: GcsServer, **changes: Any) -> str:
    spec = parsed(env=dict(store.env), **changes)
    with pytest.raises(BadRequest) as error:
        check_stores([spec], writes=False, here={})
    return str(error.value)


def test_a_place_that_can_be_written_is_left_as_it_was(store: GcsServer) -> None:
    spec = parsed(env=dict(store.env), checkpoint={"upload_to": str(place())})
    check_stores([spec], writes=True, here={})
    assert store.sizes() == {}


def test_what_is_wrong_is_said_before_the_job_is_queued(store: GcsServer, tmp_path: Path) -> None:
    mirror(tmp_path).fetch(None)
    path = save(tmp_path, 4)
    send_copy(path, place() / path.name, budget=BUDGET)
    here = {"upload_to": str(place())}
    assert "holds checkpoints of another run" in refusal(store, checkpoint=here)
    assert "is not a directory" in refusal(store, resume_from=f"{place()}/none")
    said = refusal(store, resume_from=str(place()), train={**TRAIN, "optimizer": "sgd"})
    assert 'was trained with "adamw"; use "adamw"' in said
    said = refusal(store, resume_from=str(place()), train={**TRAIN, "steps": 3})
    assert "set a number above 4" in said


def test_of_several_jobs_each_is_asked_for(store: GcsServer, tmp_path: Path) -> None:
    mirror(tmp_path).fetch(None)
    taken, free = ({"upload_to": str(where)} for where in (place(), place().parent / "free"))
    jobs = [parsed(env=dict(store.env), checkpoint=each) for each in (free, taken)]
    with pytest.raises(BadRequest, match=r"job 2 of 2: .* another run"):
        check_stores(jobs, writes=True, here={})


def test_a_bucket_that_is_spelled_wrongly_is_named(store: GcsServer) -> None:
    said = refusal(store, checkpoint={"upload_to": "gs://chekpoints/run"})
    assert said.startswith("gs://chekpoints does not exist")


def test_variables_that_the_job_does_not_get_are_named() -> None:
    pytest.importorskip("obstore")
    spec = parsed(checkpoint={"upload_to": "s3://b/run"}, env={"AWS_EC2_METADATA_DISABLED": "true"})
    here = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "hush", "EDITOR": "vi"}
    with pytest.raises(BadRequest) as error:
        check_stores([spec], writes=False, here=here)
    said = str(error.value)
    assert "no credentials were found" in said
    assert said.endswith("pass --env AWS_ACCESS_KEY_ID --env AWS_SECRET_ACCESS_KEY")
    assert "hush" not in said
