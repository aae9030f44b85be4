"""docs/reference/verify-json.md says what `zerotools verify --json` prints, key by key."""

from __future__ import annotations

import re
from pathlib import Path

from tests.golden_files import TORCH
from zerotools.core.checkpoint import Key
from zerotools.io.numeric.compare_values import ValueCounts
from zerotools.ops.verification.verification_result import (
    SCHEMA,
    Check,
    Comparison,
    Finding,
    Verification,
    to_json,
)
from zerotools.ops.verification.verify import prepare_verify

OF_THE_COMMAND = ("dry_run", "next", "manifest", "seconds", "bytes_to_read", "files")
PAGE = Path(__file__).resolve().parents[2] / "docs/reference/verify-json.md"


def test_the_page_has_the_keys_that_are_printed() -> None:
    given = prepare_verify(TORCH / "fsdp2-hf-sharded-w2" / "checkpoint")
    key = Key("w", "param")
    found = Verification(
        given.checkpoint,
        given.files,
        (Finding(Check.MEANING, "wrong", tensor=key),),
        {"a": "no checksums"},
        {key: ValueCounts(1, 2)},
        comparison=Comparison(PAGE),
    )
    text = PAGE.read_text()
    assert f"`{SCHEMA}`" in text
    sections = re.split(r"^## `(.*)`$", text, flags=re.MULTILINE)
    parts = {"": sections[0], **dict(zip(sections[1::2], sections[2::2], strict=True))}
    documented = {
        name: re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) for name, part in parts.items()
    }
    printed = to_json(found)
    assert [*printed, *OF_THE_COMMAND] == documented.pop("")
    assert {name: list(_first(printed[name])) for name in documented} == documented


def _first(value: dict[str, object] | list[dict[str, object]]) -> dict[str, object]:
    return value[0] if isinstance(value, list) else value
