"""Which control group is ours to divide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon.supervisor.cgroups.trees import OWN, FakeTree
from zerotoolsd.supervisor.cgroups import delegation
from zerotoolsd.supervisor.cgroups.delegation import NotDelegated

USER = "/user.slice/user-1.slice/user@1.service"
JOB = "zerotools.slice/zerotools-job-7-1-3f9c01aa.service"


def find(tree: FakeTree) -> Path:
    return delegation.find(tree.root, tree.mark).directory.relative_to(tree.mount)


@pytest.mark.parametrize(
    ("own", "options", "found"),
    [
        (OWN, {}, OWN[1:]),
        (f"{USER}/{JOB}", {"marked": (USER,)}, f"{USER}/{JOB}"[1:]),
        (f"{USER}/{JOB}/ranks", {"marked": (USER,)}, f"{USER}/{JOB}"[1:]),
        (f"{OWN}/daemon", {}, OWN[1:]),  # DelegateSubgroup=daemon
        ("/", {"systemd": False}, "."),  # a container
        ("/a/b", {"systemd": False}, "a/b"),
        ("/a/b", {"systemd": False, "top": "/a"}, "b"),  # seen from inside of a namespace
    ],
)
def test_a_group_that_is_ours_is_found(
    tmp_path: Path, own: str, options: dict[str, Any], found: str
) -> None:
    assert find(FakeTree(tmp_path, own, **options)) == Path(found)


@pytest.mark.parametrize(
    ("own", "options", "why"),
    [
        (
            OWN,
            {"marked": ()},
            "systemd has not delegated the control group /system.slice",
        ),
        # It is the user's systemd to which that one above was given.
        (f"{USER}/app.slice/x.service", {"marked": (USER,)}, "systemd has not delegated"),
        ("/", {"marked": ()}, "systemd has not delegated the control group /"),
        ("/x", {"top": "/a", "systemd": False}, "the control group /x is outside"),
        ("/../x", {"systemd": False}, "the control group /../x is outside"),
    ],
)
def test_one_that_is_not_is_left_alone(
    tmp_path: Path, own: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(NotDelegated) as error:
        find(FakeTree(tmp_path, own, **options))
    assert str(error.value).startswith(why)


def test_a_machine_without_version_2_has_none(tmp_path: Path) -> None:
    with pytest.raises(NotDelegated, match="version 2 are not mounted"):
        delegation.find(tmp_path)
    tree = FakeTree(tmp_path)
    (tree.root / "proc/self/cgroup").write_text("9:memory:/x\n")
    with pytest.raises(NotDelegated, match="the kernel lists no control group"):
        find(tree)
