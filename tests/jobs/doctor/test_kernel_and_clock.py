"""What is said of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.jobs.doctor.finding import DoctorFinding
from zerotools.jobs.doctor.kernel_and_clock import BUILT, check_kernel, clock_is_synchronised

STALL = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def make_machine(root: Path, controllers: str = "cpu memory pids") -> Path:
    group = root / "sys/fs/cgroup/unit"
    for path, text in {
        root / "proc/pressure/memory": STALL,
        root / "proc/self/cgroup": "1:name=x:/\n0::/unit\n",
        root / "sys/fs/cgroup/cgroup.controllers": controllers,
        group / "cgroup.controllers": controllers,
        group / "cgroup.subtree_control": "",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def look(root: Path, now: float = BUILT + 1, *, synced: bool = True) -> dict[str, DoctorFinding]:
    found = check_kernel(root, lambda: now, lambda: synced, lambda: 65536)
    return {each.what: each for each in found}


def test_a_machine_on_which_all_is_well(tmp_path: Path) -> None:
    found = look(make_machine(tmp_path))
    assert {each.level for each in found.values()} == {"ok"}
    assert found["cgroups"].found == "/unit is delegated, with memory, pids"


@pytest.mark.parametrize(
    ("controllers", "said"),
    [("cpu", "/unit has no memory and no pids controller"), (None, "version 2 is not mounted")],
)
def test_cgroups_that_limit_nothing(tmp_path: Path, controllers: str | None, said: str) -> None:
    root = make_machine(tmp_path, controllers or "")
    if controllers is None:
        (root / "sys/fs/cgroup/cgroup.controllers").unlink()
    found = look(root)["cgroups"]
    assert (found.level, said in found.found) == ("warning", True)


@pytest.mark.parametrize(
    ("manager", "do"),
    [("/", "kernel's command line"), ("/user.slice/user-7.slice/user@7.service", "Delegate=yes")],
)
def test_cgroups_of_attempts_in_units_are_those_of_their_systemd(
    tmp_path: Path, manager: str, do: str
) -> None:
    def cgroups(controllers: str) -> DoctorFinding:
        make_machine(tmp_path, "")
        place = tmp_path / "sys/fs/cgroup" / manager.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.controllers").write_text(controllers)
        return next(check_kernel(tmp_path, manager=manager))

    assert cgroups("cpu memory pids").level == "ok"
    found = cgroups("cpu pids")
    assert found.found == "each attempt has a separate group, with no memory controller"
    assert do in str(found.do)


def test_a_kernel_without_pressure_a_wrong_clock_and_few_descriptors(tmp_path: Path) -> None:
    (make_machine(tmp_path) / "proc/pressure/memory").unlink()
    assert look(tmp_path)["pressure"].level == "warning"
    assert look(tmp_path, 86400.0)["clock"].level == "problem"
    assert look(tmp_path, synced=False)["clock"].found == "it is not synchronised"
    found = check_kernel(tmp_path, lambda: BUILT, lambda: None, lambda: 1024)
    assert "descriptors" in {each.what for each in found}


def test_the_kernel_is_asked_about_its_clock() -> None:
    assert clock_is_synchronised() in (True, False, None)
