"""A node that answers `gather` with what leads out of the output, or what is no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.io.ssh.double import SshDouble
from tests.ops.gathering.nodes import content, gathered, made_node
from zerotools.core.errors import BadFile, BadRequest, HostUnreachable, ZerotoolsError

ANSWER = r"""#!/bin/sh
# What runs there instead of what it is given: the mark is the last word of its first line.
read -r first
mark=${first##* }
printf '%s\n' "$mark"
"""


def node_that_prints(ssh: SshDouble, tmp_path: Path, script: str) -> str:
    """A node whose shell says what it likes; `$mark` is what begins and ends an answer."""
    shell = tmp_path / "evil" / "sh"
    shell.parent.mkdir()
    shell.write_text(ANSWER + script + "\n")
    shell.chmod(0o755)
    ssh.has_programs("evil", [shell, *(Path("/bin") / each for each in ("head", "cat"))])
    return "evil:/run"


NAMES = ["../x", "a/../../x", "/tmp/x", "a//x", "./x", "a/./x", "", "a\\x", "..", "a/"]


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshDouble:
    return SshDouble(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_elsewhere(ssh: SshDouble, tmp_path: Path, name: str) -> None:
    quoted = name.replace("\\", "\\\\")
    source = node_that_prints(
        ssh,
        tmp_path,
        f"printf 'here\\0001\\000f 1 2 ok\\000f 3 4 {quoted}\\000end 0 %s' \"$mark\"",
    )
    good = made_node(tmp_path, "n1", {"s/a": b"a"})
    with pytest.raises(
        BadFile, match="may lie outside of the output, so this source is not used"
    ) as said:
        gathered([good, source], tmp_path / "work" / "out")
    assert repr(name) in str(said.value)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("script", "kind", "why"),
    [
        ("", BadRequest, "cannot be listed: the answer is not complete"),
        ("printf 'here\\0001\\000f 1 2 a\\000'", BadRequest, "cannot be listed"),
        ("printf 'here\\0001\\000f 1 2 a\\000end 0 other'", BadRequest, "cannot be listed"),
        (
            "printf 'here\\0001\\000f 1 2 a\\000f 1 2 a\\000end 0 %s' $mark",
            BadFile,
            "lists the file 'a' twice",
        ),
        ("printf 'here\\0001\\000f x 2 a\\000end 0 %s' $mark", BadFile, "an unreadable line"),
        ("printf 'here\\0001\\000f -1 2 a\\000end 0 %s' $mark", BadFile, "may lie outside"),
        ("printf 'here\\0001\\000f\\000end 0 %s' $mark", BadFile, "an unreadable line"),
        ("printf 'here\\0001\\000end 1 %s' $mark", BadRequest, "cannot be listed as a whole"),
        ("printf '%s' nonsense", BadRequest, "cannot be listed"),
    ],
)
def test_listings_that_are_none(
    ssh: SshDouble, tmp_path: Path, script: str, kind: type[ZerotoolsError], why: str
) -> None:
    source = node_that_prints(ssh, tmp_path, script)
    with pytest.raises(kind, match=why):
        gathered([source], tmp_path / "out")


def test_a_login_that_never_stops_printing(ssh: SshDouble, tmp_path: Path) -> None:
    shell = tmp_path / "evil" / "sh"
    shell.parent.mkdir()
    shell.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    shell.chmod(0o755)
    ssh.has_programs("evil", [shell, Path("/bin/cat")])
    with pytest.raises(HostUnreachable, match="evil prints too much at login"):
        gathered(["evil:/run"], tmp_path / "out")


def test_a_name_of_our_own_journal_is_not_taken(ssh: SshDouble, tmp_path: Path) -> None:
    names = {".zerotools-journal": b"{}", ".zerotools-journal.1": b"{}", "s/a": b"a"}
    source = made_node(tmp_path, "n1", names)
    out = tmp_path / "out"
    assert gathered([source], out, force=True).has_name
    assert content(out) == {"s/a": b"a"}


def test_a_link_in_the_unfinished_output_is_not_followed(ssh: SshDouble, tmp_path: Path) -> None:
    source = made_node(tmp_path, "n1", {"s/a": b"new", "b": b"new"})
    out = tmp_path / "out"
    assert not gathered([source], out).has_name
    partial, victim = tmp_path / "out.partial", tmp_path / "victim"
    (victim / "s").mkdir(parents=True)
    (victim / "s" / "a").write_text("old")
    (partial / "b").unlink()
    (partial / "b").symlink_to(victim / "s" / "a")
    (partial / "s" / "a").unlink()
    (partial / "s").rmdir()
    (partial / "s").symlink_to(victim / "s")
    assert gathered([source], out, force=True).has_name
    assert content(victim) == {"s/a": b"old"}  # as long as the one that was there
    assert content(out) == {"s/a": b"new", "b": b"new"}
    assert not (out / "s").is_symlink()
