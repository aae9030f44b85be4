from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotoolsd.http.api.bearer_tokens import CREDENTIAL, read_tokens, tokens_path

ANNA, BERT = "a" * 32, "b" * 40


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_bytes(text.encode("latin-1"))
    path.chmod(mode)
    return path


def test_each_token_is_of_one_uid(tmp_path: Path) -> None:
    tokens = read_tokens(written(tmp_path / "t", f"# who\n1000 {ANNA}\n\n1001\t{BERT}  # Bert\n"))
    assert tokens.uid_of(f"Bearer {ANNA}") == 1000
    assert tokens.uid_of(f"bearer  {BERT}") == 1001
    for wrong in (
        None,
        "",
        ANNA,
        "Bearer",
        "Bearer ",
        f"Bearer {ANNA}x",
        f"Basic {ANNA}",
        "Bearer é",
    ):
        assert tokens.uid_of(wrong) is None


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (f"0 {ANNA}", 0o644, "has mode 0644, so that others can read it; chmod 600"),
        (f"0 {ANNA}", 0o640, "has mode 0640"),
        ("0 short", 0o600, "line 1: the token has 5 characters; make a longer one"),
        (f"root {ANNA}", 0o600, "line 1: must be a uid and a token"),
        (f"-1 {ANNA}", 0o600, "line 1: must be a uid and a token"),
        (f"4294967296 {ANNA}", 0o600, "line 1: must be a uid and a token"),
        (f"4294967295 {ANNA}", 0o600, "line 1: must be a uid and a token"),
        (ANNA, 0o600, "line 1: must be a uid and a token"),
        (f"1 {ANNA}\n2 {ANNA}", 0o600, "line 2: another uid has the same token"),
        ("# nobody\n", 0o600, "has no tokens"),
        ("1 é" + ANNA, 0o600, "must be ASCII"),
    ],
)
def test_a_file_that_is_not_safe_is_refused(tmp_path: Path, text: str, mode: int, why: str) -> None:
    path = written(tmp_path / "tokens", text, mode)
    with pytest.raises(BadRequest) as refused:
        read_tokens(path)
    assert why in str(refused.value)
    assert str(path) in str(refused.value)
    assert ANNA not in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens", f"0 {ANNA}")
    os.chown(path, 1234, -1)
    with pytest.raises(BadRequest, match="belongs to uid 1234"):
        read_tokens(path)


def test_where_they_are(tmp_path: Path) -> None:
    assert tokens_path("/a/file", {"CREDENTIALS_DIRECTORY": "/run"}) == Path("/a/file")
    assert tokens_path(None, {"CREDENTIALS_DIRECTORY": "/run"}) == Path("/run") / CREDENTIAL
    with pytest.raises(BadRequest, match=r"name a file in api\.tokens"):
        tokens_path(None, {})
    with pytest.raises(BadRequest, match="No such file"):
        read_tokens(tmp_path / "none")
    with pytest.raises(BadRequest, match=r"directory|regular"):
        read_tokens(tmp_path)
