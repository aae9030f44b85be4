"""What launchers are told of processors is the job's `numa`."""

from __future__ import annotations

import pytest

from tests.jobs.imports.programs.told import key, of_line, rows
from zerotools.core.errors import BadRequest

TRAINER = "--output_dir out --model_name_or_path m --train_file a.txt"


@pytest.mark.parametrize(
    ("line", "numa"),
    [
        ("deepspeed --num_gpus 2 --bind_cores_to_rank x.py", "cores"),
        ("deepspeed --num_gpus 2 x.py", None),
        ("torchrun --nproc_per_node 2 --numa-binding=node x.py", "auto"),
        ("torchrun --nproc_per_node 2 --numa_binding socket x.py", "auto"),
        ("torchrun --nproc_per_node 2 --numa-binding exclusive x.py", "cores"),
        ("python -m torch.distributed.run --numa-binding=core-complex x.py", "cores"),
        ("accelerate launch --num_processes 2 --enable_cpu_affinity x.py", "auto"),
        ("ACCELERATE_CPU_AFFINITY=1 accelerate launch --num_processes 2 x.py", "auto"),
        ("ACCELERATE_CPU_AFFINITY=0 accelerate launch --num_processes 2 x.py", None),
    ],
)
def test_it_becomes_a_key_of_the_job(line: str, numa: str | None) -> None:
    assert key(of_line(f"{line} {TRAINER}"), "numa") == numa


def test_a_list_of_cores_is_listed_with_the_reason() -> None:
    imported = of_line(
        f"deepspeed --num_gpus 2 --bind_cores_to_rank --bind_core_list 0-7 x.py {TRAINER}"
    )
    assert key(imported, "numa") == "cores"
    assert "AllowedCPUs=" in rows(imported, "ignored")["--bind_core_list"]
    assert "near the GPU" in rows(imported, "mapped")["--bind_cores_to_rank"]


@pytest.mark.parametrize(
    ("value", "options", "why"),
    [
        ("0", "", 'numa = "off" the kernel'),
        ("1", "--numa-binding=exclusive", "--numa-binding chooses the nodes"),
    ],
)
def test_a_variable_that_asks_for_nothing_more_is_listed(
    value: str, options: str, why: str
) -> None:
    line = f"ACCELERATE_CPU_AFFINITY={value} torchrun --nproc_per_node 2 {options} x.py {TRAINER}"
    imported = of_line(line)
    assert key(imported, "numa") == ("cores" if options else None)
    assert why in rows(imported, "ignored")["ACCELERATE_CPU_AFFINITY"]


def test_a_way_that_torchrun_does_not_have_is_refused() -> None:
    imported = of_line(f"torchrun --nproc_per_node 2 --numa-binding=all x.py {TRAINER}")
    assert isinstance(imported.problem, BadRequest)
    assert str(imported.problem) == (
        'run.sh --numa-binding = "all": must be one of "node", "socket", "exclusive", '
        '"core-complex"'
    )


def test_an_option_of_another_launcher_is_unknown() -> None:
    line = f"deepspeed --num_gpus 2 --numa_binding node x.py {TRAINER}"
    imported = of_line(line)
    assert key(imported, "numa") is None
    assert "deepspeed has no such option" in rows(imported, "unknown")["--numa_binding"]


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nproc_per_node 2 --virtual-local-rank x.py",
        "torchrun --nproc_per_node 2 --shutdown-timeout 30 --signals-to-handle SIGTERM x.py",
        "torchrun --nproc_per_node 2 --duplicate-stdout-filters a x.py",
        "deepspeed --num_gpus 2 -q x.py",
    ],
)
def test_options_of_newer_launchers_are_known(line: str) -> None:
    imported = of_line(f"{line} {TRAINER}")
    assert key(imported, "gpus") == 2
    assert rows(imported, "unknown") == {}
