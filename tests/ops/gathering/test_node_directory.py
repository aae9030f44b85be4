from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotools.io.ssh.ssh_command_line import SshHost
from zerotools.ops.gathering.node_directory import NodeSource, parse_source


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("n1:/a/b/", NodeSource("n1:/a/b", SshHost("n1"), "/a/b")),
        ("ada@n1:runs", NodeSource("ada@n1:runs", SshHost("n1", "ada"), "runs")),
        ("n1:~/runs", NodeSource("n1:runs", SshHost("n1"), "runs")),
        ("n1:/a:b c'\n", NodeSource("n1:/a:b c'\n", SshHost("n1"), "/a:b c'\n")),
        ("n1:/", NodeSource("n1:/", SshHost("n1"), "/")),
        ("[fe80::1]:/a", NodeSource("fe80::1:/a", SshHost("fe80::1"), "/a")),
        ("ssh://n1/a%20b", NodeSource("n1:/a b", SshHost("n1"), "/a b")),
        (
            "ssh://ada@n1:22/a",
            NodeSource("ssh://ada@n1:22/a", SshHost("n1", "ada", 22), "/a"),
        ),
        (
            "ssh://n1:22/~/runs",
            NodeSource("ssh://n1:22/~/runs", SshHost("n1", port=22), "runs"),
        ),
        ("/a/b", NodeSource("/a/b", None, "/a/b")),
        ("/a:b", NodeSource("/a:b", None, "/a:b")),
    ],
)
def test_a_source(text: str, source: NodeSource) -> None:
    assert parse_source(text) == source


def test_a_path_of_this_node_is_the_same_from_everywhere() -> None:
    assert parse_source("./a:b").directory == str(Path.cwd() / "a:b")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n1:", "it names no directory"),
        ("n1:~", "it names no directory"),
        ("ssh://n1", "it names no directory"),
        (":/a", "the host is missing"),
        ("@n1:/a", "the user is missing"),
        ("-oProxyCommand=id:/a", "a host cannot begin with -"),
        ("ssh://-oProxyCommand=id/a", "a host cannot begin with -"),
        ("n1;id:/a", "the host has a character"),
        ("ssh://ada:secret@n1/a", "a password cannot be given"),
        ("ssh://n1/a%00b", "the path has a NUL"),
        ("s3://bucket/run", "s3://...: shards are gathered from nodes, by ssh"),
        ("https://ada:secret@host/run", "https://...: shards are gathered"),
    ],
)
def test_what_is_no_source(text: str, why: str) -> None:
    with pytest.raises(BadRequest, match="write HOST:PATH, ssh://USER@HOST:PORT/PATH, or") as error:
        parse_source(text)
    assert why in str(error.value)
    assert "secret" not in str(error.value)
