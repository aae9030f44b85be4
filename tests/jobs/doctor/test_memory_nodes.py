"""What is said of memory nodes."""

from __future__ import annotations

import errno
from collections.abc import Callable

from tests.sensors.numa_machines import EIGHT, a_topology, dual_socket
from zerotools.jobs.doctor.finding import DoctorFinding
from zerotools.jobs.doctor.memory_nodes import look_at_memory_nodes
from zerotools.sensors.numa import NumaTopology


def look(
    topology: NumaTopology, policy: Callable[[], object] = lambda: None, *, told: bool = False
) -> list[DoctorFinding]:
    def here(*, cores: bool = False) -> NumaTopology:
        return a_topology("0-63") if told else topology

    return list(look_at_memory_nodes(EIGHT, topology.to_json() if told else None, here, policy))


def test_of_one_node_nothing_is_said() -> None:
    assert look(a_topology("0-63")) == []
    assert look(NumaTopology()) == []


def test_each_node_has_its_processors_its_memory_and_its_gpus() -> None:
    (found,) = look(dual_socket())
    assert (found.level, found.what) == ("ok", "memory nodes")
    assert found.found == (
        "node 0 has 32 of 32 processors, 256 GiB, GPUs 0-3; "
        "node 1 has 32 of 32 processors, 256 GiB, GPUs 4-7"
    )


def test_what_the_daemon_may_use_counts_not_what_the_command_may() -> None:
    found = look(dual_socket("0-7"), told=True)
    assert found[0].found.startswith("node 0 has 8 of 32 processors, 256 GiB; node 1 has 0 of 32")
    warnings = [each for each in found if each.level == "warning"]
    assert [each.what for each in warnings] == ["GPU 4", "GPU 5", "GPU 6", "GPU 7"]
    assert "none of the processors near GPU 4 (16-31,48-63) may be used here" in warnings[0].found
    assert "AllowedCPUs=" in str(warnings[0].do)


def test_words_of_a_newer_daemon_are_not_believed_half() -> None:
    def here(*, cores: bool = False) -> NumaTopology:
        return dual_socket()

    (found,) = look_at_memory_nodes(EIGHT, {"sockets": []}, here, lambda: None)
    assert found.level == "ok"


def test_a_container_that_forbids_policies_is_told_how_to_allow_them() -> None:
    def forbidden() -> object:
        raise PermissionError(errno.EPERM, "x")

    _, found = look(dual_socket(), forbidden)
    assert found.found == "none can be preferred: Operation not permitted"
    assert "--cap-add SYS_NICE" in str(found.do)

    def absent() -> object:
        raise OSError(errno.ENOSYS, "x")

    _, found = look(dual_socket(), absent)
    assert "SYS_NICE" not in str(found.do)
