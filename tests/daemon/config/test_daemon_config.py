"""zerotoolsd.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotools.sensors.cgroup_allowance import usable_cores
from zerotoolsd.config.daemon_config import Config, load_config


def test_without_a_file_everything_has_a_default() -> None:
    assert load_config(None) == Config()
    assert load_config(None).limits.cpu_ranks == usable_cores()


def test_keys_of_a_file_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "zerotoolsd.toml"
    path.write_text("[limits]\ncpu_ranks = 2\n[stop]\ngrace_seconds = 5\n")
    config = load_config(path)
    assert (config.limits.cpu_ranks, config.stop.grace_seconds) == (2, 5.0)


def test_users_are_all_or_a_list(tmp_path: Path) -> None:
    path = tmp_path / "zerotoolsd.toml"
    path.write_text('[users]\nallow = ["anna", "@gpu", 1007]\n')
    assert load_config(path).users.allow == ("anna", "@gpu", 1007)
    path.write_text('[users]\nallow = "all"\n')
    assert load_config(path).users.allow == "all"
    assert load_config(None).users.allow is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[limits]\ncpu_rank = 2", "limits.cpu_rank: unknown key; did you mean limits.cpu_ranks?"),
        ("[limits]\ncpu_ranks = -1", "limits.cpu_ranks = -1: must be at least 0"),
        ("[stop]\ngrace_seconds = 'x'", 'stop.grace_seconds = "x": must be a number'),
        ("a = ", "is not valid TOML"),
        (
            "[priority.classes]\nanna = [5, -5]",
            "priority.classes.anna = [5, -5]: must be the lowest and the highest priority, such as "
            "[-10, 5]",
        ),
        ('[priority.classes]\n"@a" = [0, 11]', "must be a whole number from -10 to 10"),
        (
            "[users]\nallow = 'anna'",
            'users.allow = "anna": must be "all" or a list, such as ["anna"]',
        ),
        (
            "[users]\nallow = ['@']",
            'users.allow: "@" is not a user or a group; name a user, or a group as @',
        ),
        ("[users]\nallow = [-1]", "users.allow: -1 is not a uid"),
        ("[users]\nallow = [true]", "users.allow"),
    ],
)
def test_a_bad_file_is_refused_by_its_key(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "zerotoolsd.toml"
    path.write_text(text)
    with pytest.raises(BadRequest) as info:
        load_config(path)
    assert str(info.value).startswith(str(path))
    assert sentence in str(info.value)


def test_gpus_are_named_by_index_uuid_and_model(tmp_path: Path) -> None:
    path = tmp_path / "zerotoolsd.toml"
    path.write_text('[gpus]\nexclude = [0, "NVIDIA T400"]\nprefer = ["GPU-8c1d", 3]\n')
    found = load_config(path).gpus
    assert (found.exclude, found.prefer) == ((0, "NVIDIA T400"), ("GPU-8c1d", 3))
    for entry in ("-1", '""', '" "'):
        path.write_text(f"[gpus]\nprefer = [{entry}]\n")
        with pytest.raises(BadRequest, match=r"gpus\.prefer: .* names no GPU"):
            load_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"x\.toml cannot be read: No such file"):
        load_config(tmp_path / "x.toml")
