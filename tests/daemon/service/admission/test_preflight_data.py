"""What is wrong with a job's files is said before the job is accepted, in one sentence each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.service.admission.preflight_files import check_files

GOOD = json.dumps({"prompt": "a", "response": "b"}) + "\n"
Make = Callable[[str, str | bytes], str]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a file below the test's directory; its path."""

    def write(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


def check(data: dict[str, Any], **changes: Any) -> None:
    model = changes.pop("model", {"config": {"model_type": "llama"}})
    job = {"device": "cpu", "model": model, "data": data, "train": {"steps": 1, "batch_size": 1}}
    check_files(job_from_dict({**job, **changes}, source="job.toml"))


def refusal(data: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(BadRequest) as info:
        check(data, **changes)
    return str(info.value)


def test_good_examples_pass(make: Make, tmp_path: Path) -> None:
    make("tok/tokenizer.json", "{}")
    data = {"examples": [make("a.json", GOOD)], "tokenizer": str(tmp_path / "tok")}
    check(data)
    check(data, eval={"files": [make("b.json", f"[{GOOD}]")]})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (GOOD + "{oops", "a.json, line 2: is not JSON"),
        (
            GOOD + '{"question": "a"}',
            'line 2: has no column "prompt" (data.prompt_column); it',
        ),
        (GOOD.encode() + b'{"prompt": "\xff"}', "a.json, line 2: is not UTF-8"),
        ("", "a.json: contains no data"),
        ("\n\n", "a.json: contains no example with text in"),
        ("[]", "a.json: contains no example with text in"),
        ('{"prompt": "", "response": "b"}', 'no example with text in "prompt" and "response"'),
    ],
)
def test_examples_are_looked_at(
    make: Make, tmp_path: Path, content: str | bytes, sentence: str
) -> None:
    make("tok/tokenizer.json", "{}")
    path, good = make("a.json", content), make("good.json", GOOD)
    tokenizer = str(tmp_path / "tok")
    assert sentence in refusal({"examples": [path], "tokenizer": tokenizer})
    held = refusal({"examples": [good], "tokenizer": tokenizer}, eval={"files": [path]})
    assert sentence in held


def test_only_the_first_lines_are_read(make: Make, tmp_path: Path) -> None:
    make("tok/tokenizer.json", "{}")
    late = make("late.json", GOOD * 5000 + "{oops")
    check({"examples": [late], "tokenizer": str(tmp_path / "tok")})


def test_every_problem_is_listed(make: Make, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    message = refusal(
        {"examples": [str(tmp_path / "no-*.json")], "tokenizer": str(tmp_path / "empty")},
        model={"path": str(tmp_path / "none")},
        eval={"files": [make("a.json", "3")]},
    )
    assert f"model.path = {tmp_path}/none: no such directory" in message
    assert f"data.tokenizer = {tmp_path}/empty: contains no tokenizer" in message
    assert f"data.examples = {tmp_path}/no-*.json: no file matches" in message
    assert "a.json, line 1: is a number, not an object" in message


def test_token_files_are_looked_at(make: Make, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3, "f4"))
    assert "holds values of type '<f4'" in refusal({"tokens": [str(tmp_path / "a.npy")]})
    odd = make("a.bin", b"123")
    assert "3 bytes, but needs a multiple of 2" in refusal(
        {"tokens": [odd], "token_type": "uint16"}
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("pipe", "is a pipe or a device, not a file"),
        ("tok", "is a directory; name the files in it, such as {path}/*"),
        ("link.json", "is a link to gone.json, which does not exist"),
        ("[1].json", None),
    ],
)
def test_what_is_no_file_is_refused_and_not_waited_for(
    tmp_path: Path, make: Make, name: str, sentence: str | None
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.json").symlink_to("gone.json")
    make("tok/tokenizer.json", "{}")
    make("[1].json", GOOD)
    path = tmp_path / name
    data = {"examples": [str(path)], "tokenizer": str(tmp_path / "tok")}
    if sentence is None:
        check(data)
    else:
        assert f"data.examples = {path}: {sentence.format(path=path)}" in refusal(data)


def test_the_beginning_of_text_is_decoded(make: Make) -> None:
    cut = "é".encode() * 1_000_000  # a character lies across the end of what is looked at
    check({"text": [make("cut.txt", b"a" + cut)]})
    latin = make("latin.txt", b"fine\ncaf\xe9\n")
    assert refusal({"text": [latin]}) == (
        f"{latin}, line 2: is not UTF-8: byte 8 of the file is 0xe9 (invalid continuation byte); "
        "convert the file, or leave it out"
    )
