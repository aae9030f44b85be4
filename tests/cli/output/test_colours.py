from __future__ import annotations

import io

import pytest

from tests.golden_files import JOB
from zerotools.cli.main import build, run
from zerotools.cli.output.colours import AUTO, CHOICES, colour_choice, paint


def test_the_choice_of_a_user_counts_for_one_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_coloured(*options: str) -> bool:
        assert run(build(), [*options, "inspect", str(JOB)]) == 0
        return "\x1b[32mCOMPLETE" in capsys.readouterr().out

    found = {choice: is_coloured("--color", choice) for choice in CHOICES}
    assert found == {"auto": False, "always": True, "never": False}
    assert not is_coloured()
    monkeypatch.setenv("NO_COLOR", "1")
    assert is_coloured("--color", "always")


def test_a_choice_ends_with_its_block() -> None:
    with colour_choice("always"):
        assert paint("text", "bad", io.StringIO()) == "\x1b[31mtext\x1b[0m"
        with colour_choice(AUTO):
            assert paint("text", "bad", io.StringIO()) == "text"
    assert paint("text", "bad", io.StringIO()) == "text"
