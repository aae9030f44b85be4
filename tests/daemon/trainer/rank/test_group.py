"""How ranks leave their group: together, but for one that fails."""

from __future__ import annotations

import pytest

from zerotoolsd.trainer.rank.settings import Rank

pytestmark = pytest.mark.torch


def test_a_rank_that_fails_does_not_wait_for_the_others_to_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch.distributed as dist

    from zerotoolsd.trainer.rank.group import joined

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    alone = Rank(index=0, local=0, world_size=1)
    with joined(alone, "cpu") as group:
        assert group.gathered("here") == ["here"]
    assert not dist.is_initialized()
    with pytest.raises(ZeroDivisionError), joined(alone, "cpu"):
        raise ZeroDivisionError
    try:
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()
