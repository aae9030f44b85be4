from __future__ import annotations

import pytest

from tests.io.stores.far import far, troubled


def test_files_of_one_kind_are_asked_for_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    with troubled(monkeypatch) as (store, proxy):
        for number in range(60):
            store.put(f"run/rank_{number:02}.pt", bytes([number]) * 200_000)
        store.put("run/config.json", b"{}")
        paths = sorted(far("run").glob("*.pt"))
        assert far("run/config.json").open_source().read(2, 0) == b"{}"
        proxy.reset()
        for number, path in enumerate(paths):
            source = path.open_source()  # type: ignore[attr-defined]
            assert source.read(100, 0) == bytes([number]) * 100
            assert source.read(100, 199_900) == bytes([number]) * 100
        # One of each file (its ends are near one another), but two of the first two.
        assert proxy.counts == {"range": len(paths) + 2}


def test_one_that_cannot_be_had_is_told_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from zerotools.core.errors import BadFile

    with troubled(monkeypatch) as (store, _):
        for number in range(4):
            store.put(f"run/rank_{number}.pt", b"x" * 1000)
        paths = sorted(far("run").glob("*.pt"))
        del store.objects["checkpoints"]["run/rank_3.pt"]
        for path in paths[:3]:
            assert path.open_source().read(1, 0) == b"x"  # type: ignore[attr-defined]
        with pytest.raises(BadFile, match=r"rank_3\.pt changed while it was read: it is gone"):
            paths[3].open_source().read(1, 0)  # type: ignore[attr-defined]
