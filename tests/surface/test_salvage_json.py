"""docs/reference/salvage-json.md says what `zerotools salvage --json` prints, key by key."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner

from tests.golden_files import DEEPSPEED
from tests.ops.verification.damage import copy
from zerotools.cli.commands.salvage import command
from zerotools.ops.salvage.prepare_salvage import SCHEMA

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/salvage-json.md"


def test_the_page_has_the_keys_that_are_printed(tmp_path: Path) -> None:
    sound = DEEPSPEED / "z3-bf16-w2" / "checkpoint"
    path = copy(sound, tmp_path)
    next(path.rglob("*rank_1_*optim_states.pt")).unlink()
    arguments = [str(path), str(tmp_path / "out"), "--fill-from", str(sound), "--json"]
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    printed = json.loads(done.stdout)
    text = PAGE.read_text()
    assert f"`{SCHEMA}`" in text
    sections = re.split(r"^## `(.*)`$", text, flags=re.MULTILINE)
    parts = {"": sections[0], **dict(zip(sections[1::2], sections[2::2], strict=True))}
    documented = {
        name: re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) for name, part in parts.items()
    }
    assert [*printed] == documented.pop("")
    for name, keys in documented.items():
        for found in printed[name][:1]:
            assert [*found] == keys, name
    assert printed["holes"]
    assert printed["filled"]
