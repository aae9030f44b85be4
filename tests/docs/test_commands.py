"""Commands and job files of the pages that are done word for word can be typed and read.

`test_tutorials.py` does what they say in `scripts/judge`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.docs.tutorials import ROOT, blocks
from zerotools.cli.main import build
from zerotools.jobs.jobfile.parse import parse_job

PAGES = (*sorted((ROOT / "docs/tutorial").glob("*.md")), ROOT / "docs/how-to/pipeline.md")
ENDS = {"|", ">", "&&", "||", ";", "&"}


def typed(page: Path) -> Iterator[list[str]]:
    """The words of each command `zerotools ...` in the shell blocks of a page."""
    for block in blocks(page.read_text("utf-8")):
        if block.language != "sh":
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = list(lexer)
            if words[:1] == ["zerotools"]:
                end = next((n for n, word in enumerate(words) if word in ENDS), len(words))
                yield words[1:end]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_can_be_typed(page: Path) -> None:
    group = build()
    commands = list(typed(page))
    assert commands
    for name, *arguments in commands:
        command = group.get_command(click.Context(group), name)
        assert command is not None, name
        command.make_context(name, arguments)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "--deepspeed" not in page.read_text("utf-8")],
    ids=lambda page: page.stem,
)
def test_job_files_can_be_read(page: Path, tmp_path: Path) -> None:
    """Those that a config of DeepSpeed's completes are not read."""
    for block in blocks(page.read_text("utf-8")):
        if block.language == "toml" and "variant" not in block.info:  # which has two lines of one
            parse_job(block.text, source=block.info.get("file", "job.toml"), base_dir=tmp_path)
