"""Shell completion, as docs/how-to/shell-completion.md says it is switched on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.started import run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "shell-completion.md"


def ask(instruction: str, **variables: str) -> str:
    environment = os.environ | {"_ZEROTOOLS_COMPLETE": instruction} | variables
    command = [sys.executable, "-m", "zerotools"]
    return run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("zerotools mon", ["monitor"]),
        ("zerotools s", ["serve", "salvage", "submit", "show", "shares"]),
        ("zerotools monitor --o", ["--once"]),
    ],
)
def test_words_are_completed(line: str, offered: list[str]) -> None:
    count = str(len(line.split()) - 1)
    answer = ask("bash_complete", COMP_WORDS=line, COMP_CWORD=count)
    assert [word.partition(",")[2] for word in answer.split()] == offered


@pytest.mark.parametrize("line", ["submit job", "import job", "inspect check", "convert a b"])
def test_files_are_completed_by_the_shell(line: str) -> None:
    """The answer `file` has the shell offer the files that it finds itself."""
    words = f"zerotools {line}"
    answer = ask("bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1))
    assert [word.partition(",")[0] for word in answer.split()] == ["file"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_script_and_its_lines_in_the_docs(shell: str) -> None:
    if shell != "bash":  # click runs bash to learn its version
        assert "zerotools" in ask(f"{shell}_source")
    assert f"_ZEROTOOLS_COMPLETE={shell}_source zerotools" in PAGE.read_text(encoding="utf-8")
