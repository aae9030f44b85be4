"""The probe process against a real shared library, healthy, failing and hanging."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.daemon.waiting import wait_for
from tests.sensors.conftest import compiled
from tests.sensors.double import Double
from zerotools.sensors.run_nvml_probe import FIRST_ANSWER_SECONDS, NvmlProbe
from zerotools.sensors.snapshot import GpuProcess
from zerotools.sensors.xids import describe, is_fault

MIB = 2**20
HEALTHY = ("gpu GPU-a 81920 2048 0", "gpu GPU-b 81920 512 0", "hold 0 4242 2000")


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_two_healthy_gpus(double: Double) -> None:
    double.says(*HEALTHY, "draw 0 4242 1500", "draw 0 7 3", "hold 1 8 -1", "cc 1 7 5")
    reading = double.probe().read()
    assert reading.error is None
    assert reading.age_seconds == 0
    first, second = reading.gpus
    assert (first.index, first.uuid, first.name) == (0, "GPU-a", "Double 9000")
    assert first.memory_total_bytes == 81920 * MIB
    assert first.memory_used_bytes == 2048 * MIB
    assert first.memory_reserved_bytes == 100 * MIB
    assert first.memory_free_bytes == (81920 - 2048 - 100) * MIB
    assert (first.utilization_percent, first.temperature_celsius) == (93, 61)
    assert first.processes == (GpuProcess(7, 3 * MIB, graphics=True), GpuProcess(4242, 2000 * MIB))
    assert second.processes == (GpuProcess(8, None),)
    assert (first.compute_capability, second.compute_capability) == ((9, 0), (7, 5))
    assert first.power_watts is None
    assert first.missing == {"power_watts": "NVML: Not Supported"}


def test_clocks_and_what_slows_them_down_and_what_is_near(double: Double) -> None:
    double.says(*HEALTHY, "slow 0 45", "ecc 0 7 2", "near 0 ff00f0 1", "slow 1 1")
    first, second = double.probe().read().gpus
    assert (first.sm_clock_mhz, first.sm_clock_max_mhz, first.memory_clock_mhz) == (
        1755,
        1980,
        2619,
    )
    assert first.throttle_reasons == ("power limit", "temperature (hardware)")
    assert second.throttle_reasons == ()
    assert (first.ecc_corrected_errors, first.ecc_uncorrected_errors) == (7, 2)
    assert (second.ecc_corrected_errors, second.ecc_uncorrected_errors) == (0, 0)
    assert (first.cpu_affinity, first.numa_node) == ("4-7,16-23", 1)
    assert (second.cpu_affinity, second.numa_node) == ("0", 0)
    assert (first.power_watts, first.power_limit_watts) == (None, 700.0)


def test_what_a_gpu_is_called_and_how_it_runs(double: Double) -> None:
    double.says("gpu GPU-a 81920 600 0", "runs 0 98 71 688 1410", "name 0 NVIDIA H100 80GB HBM3")
    (gpu,) = double.probe().read().gpus
    assert gpu.name == "NVIDIA H100 80GB HBM3"
    assert (gpu.utilization_percent, gpu.temperature_celsius) == (98, 71)
    assert (gpu.power_watts, gpu.sm_clock_mhz, gpu.missing) == (688.0, 1410, {})


def test_a_probe_that_was_begun_is_the_one_that_answers(double: Double) -> None:
    double.says(*HEALTHY)
    before = psutil.Process().children()
    probe = double.probe()
    probe.begin()
    (child,) = set(psutil.Process().children()) - set(before)
    probe.begin()
    assert len(probe.read().gpus) == 2
    assert set(psutil.Process().children()) - set(before) == {child}
    absent = NvmlProbe(command=("/nowhere/python",))
    absent.begin()
    assert "did not start" in str(absent.read().error)
    absent.begin()  # it waits before it is tried again
    assert absent.read().error


def test_the_same_probe_sees_changes(double: Double) -> None:
    double.says(*HEALTHY)
    probe = double.probe()
    assert len(probe.read().gpus) == 2
    double.says("gpu GPU-a 81920 9000 0")
    (gpu,) = probe.read().gpus
    assert gpu.memory_used_bytes == 9000 * MIB


def test_xids_are_reported_as_events_where_the_kernels_log_cannot_be_read(double: Double) -> None:
    double.says(*HEALTHY)
    probe = double.probe()
    assert [gpu.xids for gpu in probe.read().gpus] == [(), ()]
    double.says(*HEALTHY, "xid 1 79", "xid 1 31")
    assert [[xid.code for xid in gpu.xids] for gpu in probe.read().gpus] == [[], [79, 31]]
    assert [xid.code for xid in probe.read().gpus[1].xids] == [79, 31]


def test_a_gpu_that_refuses_events_or_is_lost_silences_none(double: Double) -> None:
    double.says(*HEALTHY, "deaf 0")
    probe = double.probe()
    assert [gpu.xids for gpu in probe.read().gpus] == [(), ()]
    lost = "gpu GPU-b 81920 512 15"  # NVML_ERROR_GPU_IS_LOST: it does not tell its UUID either
    double.says(HEALTHY[0], lost, "deaf 0", "xid 0 31", "xid 1 79")
    assert probe.read().gpus[1].error == "NVML: GPU is lost"
    double.says(*HEALTHY, "deaf 0", "xid 0 31", "xid 1 79")
    assert [[xid.code for xid in gpu.xids] for gpu in probe.read().gpus] == [[], [79]]


def test_a_driver_that_asks_for_no_recovery_any_more_reports_no_fault(double: Double) -> None:
    said = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from"
    double.kernel_log.write_text(
        f"4,901,7500000,-;{said} 0x0 (None) to 0x1 (GPU Reset Required)\n"
        f"4,902,8000000,-;{said} 0x1 (GPU Reset Required) to 0x0 (None)\n"
    )
    double.says(*HEALTHY)
    first, _ = double.probe().read().gpus
    assert [(xid.code, xid.clock) for xid in first.xids] == [(154, 7.5)]
    assert not is_fault(63)  # a row that is remapped at the next reset
    assert describe(63) == "XID 63 (row of memory remapped at the next reset)"


def test_xids_of_the_kernels_log_have_their_time_and_their_gpu(double: Double) -> None:
    double.kernel_log.write_text(
        "6,900,5000000,-;usb 1-1: new device\n"
        "4,901,7500000,-;NVRM: Xid (PCI:0000:3c:00): 79, pid=4711, GPU has fallen off the bus.\n"
        " SUBSYSTEM=pci\n"
        "4,902,8000000,-;NVRM: Xid (PCI:0001:3c:00): 13, of another domain\n"
    )
    double.says(*HEALTHY, "xid 0 31")
    first, second = double.probe().read().gpus
    assert [(xid.code, xid.clock) for xid in second.xids] == [(79, 7.5)]
    assert first.xids == ()


def test_a_driver_without_the_second_memory_call(double: Double) -> None:
    double.says("v1", *HEALTHY)
    first = double.probe().read().gpus[0]
    assert first.memory_used_bytes == 2048 * MIB
    assert first.memory_reserved_bytes is None
    assert first.error is None


@pytest.mark.parametrize("lists", [0, 1, 2])
def test_an_older_driver_lacks_functions(tmp_path: Path, lists: int) -> None:
    machine = Double(compiled(tmp_path, lists), tmp_path)
    more = ("draw 0 7 3", "hold 1 8 -1", "hold 0 4243 1", "slow 0 20")
    machine.says(*HEALTHY, *more)
    with closing(machine.probe()) as probe:
        reading = probe.read()
    assert reading.error is None
    first, second = reading.gpus
    assert (first.error, first.uuid, first.name) == (None, "GPU-a", "Double 9000")
    assert (first.memory_used_bytes, first.memory_reserved_bytes) == (2048 * MIB, None)
    if lists == 0:
        assert (first.processes, first.unmeasured) == (
            (),
            "the driver does not report its processes (NVML: Function Not Found)",
        )
        return
    assert first.unmeasured is None
    assert [process.pid for process in first.processes] == [7, 4242, 4243]
    assert first.processes[1] == GpuProcess(4242, 2000 * MIB)
    assert second.processes == (GpuProcess(8, None),)
    newer = ("compute_capability", "numa_node") if lists < 2 else ()
    lacking = dict.fromkeys(newer, "NVML: Function Not Found")
    assert first.throttle_reasons == ("temperature",)
    assert first.missing == {"power_watts": "NVML: Not Supported", **lacking}


def test_an_error_on_one_gpu_leaves_the_other(double: Double) -> None:
    double.says("gpu GPU-a 81920 0 0", "gpu GPU-b 81920 0 15")
    reading = double.probe().read()
    assert reading.error is None
    assert reading.gpus[0].error is None
    assert reading.gpus[1].error == "NVML: GPU is lost"
    assert reading.gpus[1].memory_free_bytes is None


def test_what_a_driver_never_tells_is_said_and_is_no_failure(double: Double) -> None:
    double.says(*HEALTHY, "nomem 0", "nolist 1")
    reading = double.probe().read()
    integrated, virtual = reading.gpus
    assert reading.error is None
    assert (integrated.error, virtual.error) == (None, None)
    assert integrated.unmeasured == "the driver does not report its memory (NVML: Not Supported)"
    assert integrated.memory_used_bytes is None
    assert integrated.processes == (GpuProcess(4242, 2000 * MIB),)
    assert integrated.utilization_percent == 93
    assert virtual.unmeasured == "the driver does not report its processes (NVML: Not Supported)"
    assert virtual.memory_used_bytes == 512 * MIB
    double.says(*HEALTHY, "v1", "nomem 0", "nolist 0")
    assert double.probe().read().gpus[0].unmeasured == (
        "the driver does not report its memory (NVML: Not Supported) and its processes "
        "(NVML: Not Supported)"
    )


def test_a_gpu_in_mig_mode_is_named_with_its_instances(double: Double) -> None:
    double.says(*HEALTHY, "mig 0 MIG-77", "mig 1 -")
    first, second = double.probe().read().gpus
    assert first.mig_instances == ("MIG-77 (Double 9000 MIG 1g)",)
    assert first.error == (
        "it is divided into MIG instances (MIG-77 (Double 9000 MIG 1g)), which zerotools "
        "does not use; to undo this, type: nvidia-smi -i 0 -mig 0"
    )
    assert second.mig_instances == ()
    assert "(none exists yet)" in str(second.error)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("init 9", "no NVML: the NVIDIA driver is not loaded"),
        ("init 18", "no NVML: the NVIDIA driver and its library differ in version"),
        ("count 999", "no NVML: Unknown Error"),
        ("count 15", "no NVML: GPU is lost"),
    ],
)
def test_an_error_of_the_whole_is_said_and_recovers(double: Double, state: str, said: str) -> None:
    double.says(state, *HEALTHY)
    probe = double.probe()
    reading = probe.read()
    assert reading.error is not None
    assert reading.error.startswith(said)
    assert (reading.gpus, reading.age_seconds) == ((), None)
    double.says(*HEALTHY)
    assert len(probe.read().gpus) == 2


def test_library_absent(tmp_path: Path) -> None:
    probe = NvmlProbe(environment=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)})
    reading = probe.read()
    probe.close()
    if reading.error is None:
        pytest.skip("this machine has NVML")
    assert reading.error == (
        "no NVML: libnvidia-ml.so.1 was not found (it comes with the NVIDIA driver)"
    )


def test_library_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library", encoding="utf-8")
    probe = NvmlProbe(environment=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)})
    error = probe.read().error
    probe.close()
    assert error is not None
    assert error.startswith("no NVML: libnvidia-ml.so.1 could not be loaded (")


def test_a_hang_is_given_up_and_the_last_gpus_are_marked_old(double: Double) -> None:
    clock = Clock()
    double.says(*HEALTHY)
    probe = double.probe(deadline_seconds=0.1, clock=clock)
    assert probe.read().error is None
    double.says("hang", *HEALTHY)
    clock.now += 5
    reading = probe.read()
    assert reading.error == "NVML did not answer within 0.1 s"
    assert (reading.age_seconds, reading.is_silent) == (5, True)
    assert [gpu.uuid for gpu in reading.gpus] == ["GPU-a", "GPU-b"]

    double.says(*HEALTHY)
    assert probe.read().error is not None, "no new child before the backoff has passed"
    assert probe.read().is_silent
    clock.now += 1
    recovered = probe.read()
    assert (recovered.error, recovered.age_seconds, recovered.is_silent) == (None, 0, False)


def test_the_first_answer_is_waited_for_over_several_readings(double: Double) -> None:
    """Eight GPUs without persistence mode take half a minute, and would begin anew."""
    clock = Clock()
    double.says("starting", *HEALTHY)
    probe = double.probe(start_seconds=0.1, deadline_seconds=0.1, clock=clock)
    first = probe.read()
    assert first.error == "NVML did not answer within 0.2 s since it was started"
    assert (first.gpus, first.is_silent) == ((), True)
    clock.now += 60
    assert probe.read().is_silent
    double.says(*HEALTHY)
    readings = (probe.read() for _ in range(1000))
    found = next(reading for reading in readings if reading.error is None)
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-a", "GPU-b"]
    assert len(double.started) == 1


def test_a_first_answer_that_never_comes_is_given_up(double: Double) -> None:
    clock = Clock()
    double.says("hang", *HEALTHY)
    probe = double.probe(start_seconds=0.1, deadline_seconds=0.1, clock=clock)
    probe.begin()
    child = psutil.Process(double.started[-1])
    assert probe.read().is_silent
    assert child.is_running()
    clock.now += FIRST_ANSWER_SECONDS
    assert probe.read().error == "NVML did not answer within 0.1 s"
    wait_for(lambda: has_ended(child), "the end of the probe")


def has_ended(process: psutil.Process) -> bool:
    """Return whether the process has ended, also if nothing has waited for it yet."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


class Unkillable(subprocess.Popen[bytes]):
    """A child that sleeps in the driver: SIGKILL stays pending."""

    def kill(self) -> None:
        pass


def test_a_child_that_cannot_be_ended_is_abandoned_until_it_has(double: Double) -> None:
    double.says(*HEALTHY)
    started: list[Unkillable] = []

    class Recorded(Unkillable):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            started.append(self)

    probe = NvmlProbe(
        environment=double.environment, popen=Recorded, start_seconds=10.0, deadline_seconds=0.1
    )
    assert probe.read().error is None
    double.says("hang", *HEALTHY)
    assert probe.read().error == "NVML did not answer within 0.1 s"
    for _ in range(3):
        error = probe.read().error
        assert error is not None
        assert error.startswith(f"NVML hangs: probe process {started[0].pid} cannot be ended")
    assert len(started) == 1, "a second one would hang as well"
    os.kill(started[0].pid, signal.SIGKILL)
    started[0].wait(10)
    assert not (probe.read().error or "").startswith("NVML hangs")


def test_a_crash_of_the_library_is_the_childs_alone(double: Double) -> None:
    clock = Clock()
    double.says("crash", *HEALTHY)
    probe = double.probe(clock=clock)
    assert probe.read().error == "no NVML: the probe process ended (status -6)"
    clock.now += 1
    assert probe.read().error == "no NVML: the probe process ended (status -6)"
    double.says(*HEALTHY)
    clock.now += 1.5
    assert probe.read().error is not None, "the second wait is twice the first"
    clock.now += 0.5
    assert probe.read().error is None


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("input(); print('[]')", "no NVML: the answer of the probe is not valid"),
        (
            'input(); print(\'{"gpus": [{"uuid": 1}], "error": null}\')',
            "no NVML: the answer of the probe",
        ),
        ("pass", "no NVML: the probe process ended (status "),
        ("while True: print('x' * 65536, end='')", "no NVML: the answer of the probe is too long"),
    ],
)
def test_a_broken_probe_is_an_error_not_an_exception(script: str, said: str) -> None:
    probe = NvmlProbe(command=[sys.executable, "-c", script], deadline_seconds=10)
    error = probe.read().error
    probe.close()
    assert error is not None
    assert error.startswith(said)


def test_a_probe_that_ended_before_it_was_asked_is_an_error_too() -> None:
    class Over(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.wait()

    probe = NvmlProbe(command=[sys.executable, "-c", "pass"], popen=Over)
    assert probe.read().error == "no NVML: the probe process ended (status 0)"
    probe.close()


def test_a_probe_that_cannot_start() -> None:
    probe = NvmlProbe(command=["/no/such/python"])
    error = probe.read().error
    assert error is not None
    assert error.startswith("no NVML: the probe did not start (")
