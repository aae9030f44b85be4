"""Configs and job files of any shape: a job comes out, or a sentence; never a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.jobs.imports.combine_configs import Imported, JobFile, import_configs
from zerotools.jobs.imports.reading.import_report import report_lines
from zerotools.jobs.imports.reading.look_up_job_keys import job_keys, set_key
from zerotools.jobs.jobfile.parse import parse_job
from zerotools.jobs.launcher_keys.accelerate_keys import KNOWN
from zerotools.jobs.launcher_keys.deepspeed_keys import KEYS, SECTIONS
from zerotools.jobs.text.json_parser import parse_json
from zerotools.jobs.text.toml_writer import to_toml

SAID = ("auto", "none", "cpu", "nvme", "2", "5e8", "true", "NO", "DEEPSPEED", "FSDP", "AdamW")
TYPES = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "bf16", "fp16", "linear", "\x1b[2J", "")
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([*SAID, *TYPES, 0, 1, 2, 3, 4, 1e-4, -1, 2**63, 10**300, 1e308, -0.0])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)


def trees(keys: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Trees with some of the dotted `keys`, and now and then one that nobody knows."""
    named = st.sampled_from(sorted(keys)) | st.text(max_size=8)
    return st.dictionaries(named, ANYTHING, max_size=12).map(_nested)


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        set_key(tree, name, value)
    return tree


BASIS = {"model": {"path": "/m"}, "data": {"text": ["/t"]}, "train": {"steps": 9}}
JOBS = trees(job_keys()) | st.integers(1, 8).map(lambda batch: _with_batch(batch))


def _with_batch(batch: int) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(json.dumps(BASIS))
    tree["train"]["batch_size"] = batch
    return tree


def judge(imported: Imported, given_to: JobFile | None) -> None:
    """It is refused with words, or is a job that is read again as itself."""
    assert all(
        line.startswith("#") and line.isprintable() for line in report_lines(imported.findings)
    )
    json.dumps(imported.findings.to_json())
    if imported.problem is not None:
        assert isinstance(imported.problem, (BadRequest, Unsupported))
        assert str(imported.problem)
    elif given_to is not None:
        text = to_toml(imported.tree, imported.origins)
        assert parse_job(text, source="job.toml", base_dir=Path("/b")) == imported.spec


@given(trees([*KEYS, *SECTIONS]), JOBS, st.booleans())
def test_deepspeed(config: dict[str, Any], job: dict[str, Any], alone: bool) -> None:
    document = parse_json(json.dumps(config), source="ds.json")
    given_to = None if alone else JobFile(job, "job.toml", Path("/b"))
    judge(import_configs(given_to, deepspeed=document), given_to)


@given(trees(KNOWN), JOBS)
def test_accelerate(config: dict[str, Any], job: dict[str, Any]) -> None:
    document = parse_json(json.dumps(config), source="acc.json")
    given_to = JobFile(job, "job.toml", Path("/b"))
    empty = parse_json("{}", source="ds.json")
    judge(import_configs(given_to, accelerate=document, load=lambda _: empty), given_to)
