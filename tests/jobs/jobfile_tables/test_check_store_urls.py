"""Places in stores that a job names: what is refused before any store is asked."""

from __future__ import annotations

import pytest

from tests.jobs.jobfile.test_parse import parsed
from zerotools.core.errors import BadRequest
from zerotools.jobs.job_arrays import members_of


def test_a_place_in_a_store_stays_as_it_is() -> None:
    spec = parsed(checkpoint={"upload_to": "s3://b/run"}, resume_from="hf://team/run")
    assert (spec.checkpoint.upload_to, spec.resume_from) == ("s3://b/run", "hf://team/run")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            "/disk/run",
            "checkpoint.upload_to: '/disk/run' is not a URL of a store that zerotools can write to",
        ),
        (
            "hf://team/run",
            "hf://team/run: hf:// is read-only here; give an address of s3://, gs://, az://",
        ),
        ("https://host/run", "https:// is read-only"),
        ("s3://bucket", "s3://bucket is a whole bucket; give a path in it"),
        ("s3://key:secret@bucket/run", "a s3:// URL has a name or a password"),
        ("s3://bucket/run?X-Amz-Signature=1", "a s3:// URL has a query"),
        ("ftp://host/run", "ftp:// is not a store that zerotools knows"),
        ("s3://bucket/../run", "has a part '..'"),
        ("s3://bucket/run/step-00000004", "is inside a checkpoint, and is removed with it"),
        ("s3://bucket/run/step-00000004/run", "is inside a checkpoint, and is removed with it"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused(given: str, why: str) -> None:
    with pytest.raises(BadRequest) as error:
        parsed(checkpoint={"upload_to": given})
    assert why in str(error.value)
    assert "secret" not in str(error.value)


def test_how_many_stay_is_said_of_uploads_alone() -> None:
    with pytest.raises(BadRequest, match="checkpoints are uploaded only with"):
        parsed(checkpoint={"upload_keep_last": 2})


def test_what_is_read_from_a_disk_is_no_url() -> None:
    with pytest.raises(BadRequest, match="output_dir: a job writes to a disk"):
        parsed(output_dir="s3://bucket/out")
    with pytest.raises(BadRequest, match="resume_from: a s3:// URL has a name or a password"):
        parsed(resume_from="s3://key:secret@bucket/run")


def test_each_job_of_an_array_has_a_place_of_its_own() -> None:
    tree = {"checkpoint": {"upload_to": "s3://b/run/"}, "train": {}}
    found = [m.tree["checkpoint"]["upload_to"] for m in members_of(tree, {"seed": [1, 2]}, None)]
    assert found == ["s3://b/run/0", "s3://b/run/1"]
