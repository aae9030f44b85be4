"""The tensors that stand-in ranks save, made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import forked
from harness.faults import warm
from harness.faults.daemons import make_tensors


@pytest.fixture(scope="package")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """See `make_tensors`; the server that forks daemons ends with the last test here."""
    yield make_tensors(tmp_path_factory.mktemp("made"))
    forked.close_server(warm.MODULES)
