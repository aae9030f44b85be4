"""Keys and the jobs that were stored before they existed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from zerotools.jobs.binding.declaration import key, keys_of, means_none, with_stored_defaults


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A table of a table."""

    way: str | None = key(
        "New, and another way by default.",
        default="new",
        stored_default="old",
        allowed=("new", "old"),
    )
    plain: int = key("Older than all jobs.", default=3)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Keys of every kind."""

    needed: int = key("Without a default.")
    unset: int | None = key("No value by default.", default=None)
    bound: int | None = key("No bound before it existed.", default=128, stored_default=None)
    chosen: int | None = key("Off for new jobs, on for old.", default=None, stored_default=7)
    inner: Inner = key("A table.", factory=Inner)


def test_a_table_of_an_older_job_has_what_held_before_its_keys_existed() -> None:
    was = with_stored_defaults(Table(needed=1))
    assert was == Table(needed=1, bound=None, chosen=7, inner=Inner(way="old"))


@pytest.mark.parametrize(
    ("name", "written"),
    [("needed", False), ("unset", False), ("bound", True), ("chosen", True), ("inner", False)],
)
def test_no_value_is_written_where_leaving_it_out_means_another(name: str, written: Any) -> None:
    items = {item.name: item for item in keys_of(Table)}
    assert means_none(items[name]) is written
