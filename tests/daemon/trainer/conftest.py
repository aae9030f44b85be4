from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SENTENCES = 400


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file with something to learn."""
    path = tmp_path_factory.mktemp("text") / "verses.txt"
    lines = (f"{number} sheep, {number * 7 % 13} of them black.\n" for number in range(SENTENCES))
    path.write_text("".join(lines), "utf-8")
    return path


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    end_group()


@pytest.fixture
def threadless() -> Iterator[None]:
    """A process group of this process whose collectives hand back what they were given, in the
    thread that asks: for tests of what memory is held when. A thread of gloo lets go of a buffer
    some time after it has told that it is reduced, when it next gets Python's lock."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def reduced(output: torch.Tensor, input: torch.Tensor, **_: Any) -> None:
        output.copy_(input)

    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    # FSDP2 of torch 2.8 asks it of one rank, too, and that of the fake group does nothing.
    theirs, dist.reduce_scatter_tensor = dist.reduce_scatter_tensor, reduced
    yield
    dist.reduce_scatter_tensor = theirs
    end_group()


def end_group() -> None:
    """End the group of all ranks. DTensor remembers results with meshes, which may be of its
    groups."""
    import torch.distributed as dist
    from torch.distributed.tensor import debug

    dist.destroy_process_group()
    if hasattr(debug, "_clear_sharding_prop_cache"):  # before, results had the mesh of a call
        debug._clear_sharding_prop_cache()
