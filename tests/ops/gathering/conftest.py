from __future__ import annotations

from pathlib import Path

import pytest

from tests.io.ssh.double import SshDouble


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshDouble:
    return SshDouble(tmp_path, monkeypatch)
