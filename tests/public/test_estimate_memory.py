"""estimate from Python: flat, and with the numbers of the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import zerotools
from zerotools.cli.main import build
from zerotools.core.errors import BadRequest
from zerotools.public import estimate_memory
from zerotools.public.command_options.declare_and_bind_options import bind_options
from zerotools.public.estimate_memory import MachineOptions, given_machine
from zerotools.sensors.snapshot import Gpu, GpuProcess, Host, Snapshot


def test_the_choice_is_flat_and_that_of_the_command() -> None:
    found = zerotools.estimate(
        "7B", sequence_length=2048, gpus=8, gpu_memory="80GiB", host_memory="512GiB"
    )
    words = ["estimate", "7B", "--gpus", "8", "--gpu-memory", "80GiB", "--host-memory", "512GiB"]
    words += ["--sequence-length", "2048", "--json"]
    told = json.loads(CliRunner().invoke(build(), words, standalone_mode=False).stdout)
    assert json.loads(json.dumps(found.to_json())) == told
    chosen = told["choice"]
    assert (found.stage, found.offload) == (chosen["stage"], chosen["offload"])
    assert (found.peak_bytes, found.host_bytes) == (chosen["peak_bytes"], chosen["host_bytes"])
    assert found.largest_sequence_length == told["largest_sequence"]
    assert (found.fits, found.parameters) == (True, 7_000_000_000)
    assert [row.peak_bytes for row in found.rows] == [row["peak_bytes"] for row in told["rows"]]
    assert len(repr(found)) < 500


def test_where_nothing_fits_there_is_no_choice() -> None:
    found = zerotools.estimate("70B", gpus=1, gpu_memory="8GiB", host_memory="9GiB", stage=3)
    assert (found.fits, found.stage, found.peak_bytes) == (False, None, None)
    assert found.reason.startswith("nothing fits")
    assert {row.stage for row in found.rows} == {3}
    with pytest.raises(zerotools.BadRequest, match="check the unit"):
        zerotools.estimate("7B", gpus=1, gpu_memory="80TiB", host_memory="1GiB")


JOB = """
ranks = 2
device = "cpu"
[model.config]
model_type = "llama"
vocab_size = 256
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 4
[data]
text = ["*.txt"]
sequence_length = 128
[train]
steps = 2
batch_size = 2
"""


def test_a_job_file_says_how_it_is_trained(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    (tmp_path / "a.txt").write_text("text")
    found = zerotools.estimate(path, host_memory="8GiB")
    words = ["estimate", str(path), "--host-memory", "8GiB", "--json"]
    told = json.loads(CliRunner().invoke(build(), words, standalone_mode=False).stdout)
    assert json.loads(json.dumps(found.to_json())) == told
    assert not found.machine.on_gpu
    assert found.asked is not None
    assert found.asked.peak_bytes == told["asked"]["peak_bytes"]
    with pytest.raises(
        zerotools.BadRequest, match=r"--batch: .* already has this value; change it"
    ):
        zerotools.estimate(path, host_memory="8GiB", batch=2)
    path.write_text(JOB.replace('ranks = 2\ndevice = "cpu"', "gpus = 2"))
    assert zerotools.estimate(path, gpu_memory="8GiB", host_memory="8GiB").machine.on_gpu
    path.write_text(JOB + '[deepspeed]\nconfig = "ds.json"\n')
    with pytest.raises(zerotools.Unsupported, match="which only the command line imports"):
        zerotools.estimate(path, host_memory="8GiB")


GIB = 1 << 30


def machine(**given: Any) -> Any:
    return given_machine(bind_options(MachineOptions, given)).machine()


def two_cards() -> Snapshot:
    """A machine with two cards, a desktop on the first of them, and a job on the second."""
    desktop = GpuProcess(1, 2 * GIB, graphics=True)
    gpus = (
        Gpu(0, memory_total_bytes=24 * GIB, processes=(desktop,)),
        Gpu(1, memory_total_bytes=24 * GIB, processes=(GpuProcess(2, 20 * GIB),)),
    )
    host = Host(64 * GIB, 0, 0, 0, 0, 1, (0.0, 0.0, 0.0))
    return Snapshot(taken_at=0.0, host=host, gpus=gpus)


@pytest.mark.parametrize("given", [{}, {"gpus": "this machine"}], ids=str)
def test_what_a_desktop_holds_is_not_there(given: dict[str, Any]) -> None:
    """Jobs end, and a desktop does not."""
    found = given_machine(bind_options(MachineOptions, given)).machine(look=two_cards)
    assert (found.gpus, found.gpu_memory, found.host_memory) == (2, 22 * GIB, 64 * GIB)
    assert "without 2.0 GiB that a desktop uses" in found.notes[1]


def test_a_bare_number_of_ram_is_in_gigabytes() -> None:
    assert machine(gpus="4x24", ram="128").host_memory == 128 * 10**9
    assert machine(gpus="4x24", ram=128).host_memory == 128 * 10**9
    assert machine(gpus="4x24", ram="128GiB").host_memory == 128 * GIB
    assert machine(gpus="4x24", host_memory="1MiB").host_memory == 1 << 20


def test_what_is_said_twice_is_refused() -> None:
    with pytest.raises(BadRequest, match="leave one of them out"):
        machine(ram=1, host_memory="1GiB")
    with pytest.raises(BadRequest, match="leave --gpu-memory out, or give --gpus 4"):
        machine(gpus="4x24", gpu_memory="24GiB", ram=1)
    with pytest.raises(BadRequest, match=r"--ram is .* check the unit"):
        machine(gpus="4x24", ram="900TiB")
    assert estimate_memory.ASSUMED_GPU == 80 * GIB
