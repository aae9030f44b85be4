"""What is read of the tables of benchmarks."""

from __future__ import annotations

from pathlib import Path

from harness.gpu.figures import copied, of_largest, of_steps, table_of

SAID = """torch 2.13.0; load 0.1 at the start

| engine | ours | tokens/s | bare | tokens/s | ours / bare |
|---|---|---|---|---|---|
| torch, stage 2 | 100 ms | 20,000 (40.0%) | 98 ms | 20,400 (41.0%) | 1.020 |

| stage, offload | engine torch | bare FSDP2 | engine torch / the fastest other |
|---|---|---|---|
| 2, none | 20,000 | 20,400 | 0.98 |
| 2, cpu | 9,000 | | 1.41 |
"""
LARGEST = """| engine | stage | offload | predicted, at most | limited by | trains (3 steps) |
|---|---|---|---|---|---|
| torch | 2 | none | 0.41B | device | 0.39B |
"""


def test_the_rows_of_a_table_are_found_by_its_first_column() -> None:
    assert table_of(SAID, "stage, offload")[0] == ["2, none", "20,000", "20,400", "0.98"]
    assert table_of(SAID, "nothing") == []


def test_a_loop_that_is_slower_than_the_others_fails() -> None:
    found = of_steps(SAID)
    assert found.ok
    assert found.words == "stage 2, none: 20,000 tokens/s, 0.98; stage 2, cpu: 9,000 tokens/s, 1.41"
    assert not of_steps(SAID.replace("0.98 |", "0.72 |")).ok


def test_a_case_that_failed_and_a_table_that_is_missing_fail() -> None:
    assert not of_steps(SAID + "| torch, stage 3 | not measured: status 1 | | | | |\n").ok
    assert not of_steps("no tables").ok


def test_the_largest_model_is_one_that_has_trained() -> None:
    assert of_largest(LARGEST).ok
    assert not of_largest(LARGEST.replace("0.39B", "none")).ok
    assert not of_largest(LARGEST.replace("0.39B", "not measured: status 1")).ok


def test_each_command_writes_what_is_timed(tmp_path: Path) -> None:
    found = copied("tiny", tmp_path)
    assert list(found) == ["cp", "consolidate", "reshard"]
    sizes = {name: size for name, (_, size) in found.items()}
    assert 0 < sizes["consolidate"] < sizes["cp"] <= sizes["reshard"]
