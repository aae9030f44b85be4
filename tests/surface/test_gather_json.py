"""docs/reference/gather-json.md says what `zerotools gather --json` prints, key by key."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.golden_files import DEEPSPEED
from tests.io.ssh.double import SshDouble
from tests.ops.gathering.nodes import split
from zerotools.cli.commands.gather import command
from zerotools.ops.gathering.gather_files import SCHEMA

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/gather-json.md"
OF_A_DRY_RUN = 10
"""Keys that it has before the last ones."""


def test_the_page_has_the_keys_that_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SshDouble(tmp_path, monkeypatch)
    shares = {"n1": ("*_rank_[02]_*", "latest"), "n2": ("*_rank_3_*", "latest")}
    sources = split(DEEPSPEED / "z3-bf16-w4" / "checkpoint", tmp_path, shares)
    arguments = [*sources, str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(command, arguments)
    printed = json.loads(done.stdout)
    dry = json.loads(CliRunner().invoke(command, [*arguments, "--dry-run"]).stdout)
    text = PAGE.read_text()
    assert f"`{SCHEMA}`" in text
    sections = re.split(r"^## `(.*)`$", text, flags=re.MULTILINE)
    parts = {"": sections[0], **dict(zip(sections[1::2], sections[2::2], strict=True))}
    documented = {
        name: re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) for name, part in parts.items()
    }
    keys = documented.pop("")
    assert [*printed] == keys
    assert [*dry] == [*keys[:OF_A_DRY_RUN], "dry_run"]
    assert [*printed["sources"][0]] == documented.pop("sources")
    assert [*printed["sources"][0]["fetch"][0]] == documented.pop("fetch")
    assert [*printed["missing"][0]] == documented.pop("missing")
    assert documented == {}
    assert printed["may_lack"]
    assert (printed["made"], printed["whole"]) == (False, False)
