"""Errors in a job file name the line, and show the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import parse_job
from zerotools.jobs.jobfile.positions import excerpt, line_of

JOB = """\
# a comment
device = "cpu"

[data]
text = [
    "a.txt",
    # steps = 1
]

[train]
batch_size = 4
stepps = 3
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("device", 2),
        ("data", 4),
        ("data.text", 5),
        ("train.stepps", 12),
        ("train.steps", None),
        ("device.x", None),
    ],
)
def test_the_line_of_a_key(key: str, line: int | None) -> None:
    assert line_of(JOB, key) == line


def test_keys_in_strings_and_inline_tables_do_not_mislead() -> None:
    text = 'a = """\nb = 1\n"""\nc = { b = 2, d = 3 }\n"b" = 4\n'
    assert (line_of(text, "b"), line_of(text, "c.d")) == (5, 4)


def refusal(text: str) -> str:
    with pytest.raises(BadRequest) as caught:
        parse_job(text, source="job.toml", base_dir=Path("/"))
    return str(caught.value)


def test_a_wrong_key_is_named_with_its_line() -> None:
    model = '[model.config]\nmodel_type = "llama"\n'
    wrong = JOB.replace("stepps = 3", "steps = 3\nlr = 1") + model
    said = "train.lr: unknown key; did you mean train.learning_rate?"
    assert refusal(wrong) == f"job.toml:13: {said}"
    both = wrong.replace('"cpu"', '"gpu"')
    lines = refusal(both).splitlines()
    assert lines[0] == "job.toml: 2 problems:"
    assert lines[1].startswith("  line 2: device = ")
    assert lines[2].startswith("  line 13: train.lr: unknown key")


def test_json_job_files_have_lines_too() -> None:
    said = refusal('{\n  "device": "cpu",\n  "train": {"batch_size": 1,\n   "stepps": 2}\n}')
    assert "line 4: train.stepps: unknown key" in said or said.startswith("job.toml:4:")


@pytest.mark.parametrize(
    ("text", "place", "caret"),
    [
        ("learning rate = 1", "1:10", "  1 | learning rate = 1\n    |          ^"),
        ("a = 1\nb = [", "2:6", "  2 | b = [\n    |      ^"),
        ('{"a": 1,\n\t"b" 2}', "2:6", '  2 |     "b" 2}\n    |         ^'),
    ],
)
def test_what_cannot_be_read_is_shown(text: str, place: str, caret: str) -> None:
    said = refusal(text)
    assert said.startswith(f"job.toml:{place}: is not valid ")
    assert said.endswith(caret)


def test_an_excerpt_of_an_empty_file() -> None:
    assert excerpt("", 1, 1) == "  1 | \n    | ^"
