"""A job file, in TOML or JSON: a job comes out that is read again as itself, or a sentence."""

from __future__ import annotations

import json
from pathlib import Path

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.jobfile.parse import (
    given_of,
    job_from_dict,
    job_from_tree,
    job_to_dict,
    read_tree,
)
from zerotools.jobs.text.toml_writer import to_toml


def check(data: bytes) -> None:
    """`data` is the text of the file."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    try:
        tree = read_tree(text, source="job.toml")
    except ZerotoolsError as error:
        assert str(error).startswith("job.toml")
        return
    try:
        spec = job_from_tree(tree, source="job.toml", base_dir=Path("/b"), text=text)
    except ZerotoolsError as error:
        assert str(error).startswith("job.toml")
        return
    for plain in (job_to_dict(spec), given_of(spec)):
        again = json.loads(json.dumps(plain))
        assert job_from_dict(again, source="again") == spec
    written = read_tree(to_toml(given_of(spec), {}), source="written")
    assert job_from_dict(written, source="written") == spec
