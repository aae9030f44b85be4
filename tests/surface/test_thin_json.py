"""docs/reference/thin-json.md says what `zerotools thin --json` prints, key by key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.ops.thinning.made import copy_of
from zerotools.cli.commands.thin import command
from zerotools.ops.thinning.carry_out_thinning import SCHEMA

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/thin-json.md"
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "list": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def printed(*arguments: object) -> Any:
    given = [*map(str, arguments), "--json"]
    return json.loads(CliRunner().invoke(command, given, standalone_mode=False).stdout)


def check(found: dict[str, Any], keys: dict[str, str]) -> None:
    assert list(found) == list(keys)
    for key, value in found.items():
        allowed = tuple(each for word in keys[key].split(" or ") for each in TYPES[word])
        assert isinstance(value, allowed), (key, value)


def test_the_page_has_the_keys_that_are_printed_and_their_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEROTOOLS_SOCKET", str(tmp_path / "nobody.sock"))
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path)
    text = PAGE.read_text()
    assert f"`{SCHEMA}`" in text
    whole, below = text.split("\n## `checkpoints`\n")
    row = re.compile(r"^\| `(\w+)` \| ([\w ]+) \|", re.MULTILINE)
    met = set()
    for arguments in ((path,), (path, tmp_path / "none", "--yes"), (path, "--keep-last", "1")):
        tree = printed(*arguments)
        refused = [each["message"] for each in tree["checkpoints"] if each["message"]]
        assert [each["detail"] for each in tree.pop("errors", ())] == refused
        check(tree, dict(row.findall(whole)))
        for each in tree["checkpoints"]:
            check(each, dict(row.findall(below)))
            met.add(each["status"])
        for stays in tree["stays"]:
            assert list(stays) == ["path", "why"]
            met.add("stays")
    assert met == {"planned", "thinned", "refused", "stays"}
    assert printed(path)["checkpoints"][0]["status"] == "nothing"
