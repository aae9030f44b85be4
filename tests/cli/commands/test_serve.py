from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.started import Started
from tests.golden_files import DEEPSPEED
from tests.ops.serving.test_byte_source import written
from zerotools.cli.commands.serve import command
from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError

ZERO3 = DEEPSPEED / "z3-bf16-w2" / "checkpoint"


def begun(*arguments: str) -> Started:
    program = [sys.executable, "-m", "zerotools", "serve", str(ZERO3), *arguments]
    return Started(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    files = written(ZERO3, tmp_path / "out")
    process = begun("--json")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()
    told = json.loads(line)
    page = (Path(__file__).parents[3] / "docs/reference/serve-json.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(told)
    assert f"`{told['schema']}`" in page
    authorization = {"Authorization": f"Bearer {told['token']}"}
    for each in told["files"]:
        asked = urllib.request.Request(f"{told['url']}/{each['name']}", headers=authorization)
        with urllib.request.urlopen(asked) as reply:
            assert reply.read() == files[each["name"]]
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    process.end()
    assert not list(ZERO3.parent.glob(".*served*"))


@pytest.mark.parametrize(
    ("arguments", "kind", "why"),
    [
        ([str(ZERO3), "--listen", "here"], BadRequest, "is not HOST:PORT"),
        ([str(ZERO3), "--listen", "127.0.0.1:70000"], BadRequest, "is not HOST:PORT"),
        ([str(ZERO3), "--listen", "192.0.2.1:8080"], BadRequest, "choose another address"),
        ([str(ZERO3), "--name", "A_B"], BadRequest, "because it is the name of a bucket"),
        (["nowhere"], BadRequest, "does not exist"),
        ([__file__], BadFile, ""),
    ],
)
def test_what_cannot_be_served(arguments: list[str], kind: type[ZerotoolsError], why: str) -> None:
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert isinstance(done.exception, ZerotoolsError)
    assert why in str(done.exception)
    assert kind is not BadRequest or isinstance(done.exception, BadRequest)
