"""`zerotools help`."""

from __future__ import annotations

import json

import pytest

from zerotools.cli.main import build, run


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(build(), ["help", *arguments]) == 0
    return capsys.readouterr().out


def test_the_pages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "  numa " in said(capsys)
    assert "numa" in said(capsys, "--list").splitlines()
    listed = json.loads(said(capsys, "--json"))["topics"]
    assert {"topic": "first-job", "kind": "tutorial", "title": "Your first job"} in listed
    assert max(map(len, said(capsys).splitlines())) <= 80


def test_a_page_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "install").startswith("Install\n=======\n")
    page = json.loads(said(capsys, "install", "--json"))["page"]
    assert page["text"].startswith("# Install\n")
    assert (page["topic"], page["kind"]) == ("install", "how-to")


def test_a_command_is_a_topic_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "inspect").startswith("Usage: zerotools inspect [OPTIONS] PATH")
    assert json.loads(said(capsys, "inspect", "--json"))["page"]["kind"] == "command"


def test_an_unknown_topic_is_a_bad_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build(), ["help", "trouble-shoting"]) == 2
    assert "did you mean troubleshooting" in capsys.readouterr().err
