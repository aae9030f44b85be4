"""The way of a command through the files is counted, and what is imported is not."""

from benchmarks.measuring import ROOT
from benchmarks.ways.follow import consolidate, key


def test_a_command_is_followed_to_the_bytes_that_it_writes() -> None:
    way = consolidate(ROOT)
    assert way.files[0] == "zerotools/cli/main.py"
    assert "zerotools/ops/execution/write.py" in way.files
    assert "zerotools/cli/commands/convert.py" not in way.files
    assert len(way.files) == len(set(way.files))
    assert way.returns


def test_files_that_name_a_key_are_found() -> None:
    assert "zerotools/jobs/tables/offload.py" in key(ROOT).files
