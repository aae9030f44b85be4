"""`zerotools web`, against a daemon that is a double."""

from __future__ import annotations

import stat
import tempfile
import webbrowser
from pathlib import Path

import pytest

from tests.daemon.http.api.fake_page import FakePage
from zerotools.cli.main import build, run
from zerotools.core.errors import Unsupported
from zerotools.jobs.client.daemon_client import DaemonClient

URL = FakePage.URL


@pytest.fixture(autouse=True)
def link(client: DaemonClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZEROTOOLS_SOCKET", str(client.socket))
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def invoke(*arguments: str) -> int:
    return run(build(), ["web", *arguments])


def test_it_prints_a_link(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke() == 0
    shown = capsys.readouterr()
    assert shown.out == f"{URL}\n"
    assert "The link works once, within 2 min" in shown.err


def test_the_link_is_no_argument_of_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: started.append(url) or True)
    assert invoke("--open") == 0
    (given,) = started
    assert given.startswith("file:///")
    page = Path(given.removeprefix("file://"))
    assert "secret" not in given
    assert f"url={URL}" in page.read_text()
    assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700


def test_a_directory_of_the_login_that_is_not_there_is_not_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor one that is another user's, as after su."""
    started: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: started.append(url) or True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert invoke("--open") == 0
    assert Path(started[0].removeprefix("file://")).parent.parent == tmp_path


def test_where_there_is_no_browser_the_link_is_printed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert invoke("--open") == Unsupported.exit_code
    shown = capsys.readouterr()
    assert shown.out == f"{URL}\n"
    assert "no browser could be started here" in shown.err
