from __future__ import annotations

import subprocess
import sys

import pytest

from tests.io.stores.far import far, served
from zerotools.core.errors import BadRequest
from zerotools.io.files.optional_packages import REQUIREMENTS, install_command
from zerotools.io.stores.store_of_path import place_of

ABSENT = """
import sys
sys.modules["obstore"] = sys.modules["huggingface_hub"] = None
from zerotools.core.errors import BadRequest
from zerotools.io.stores.parse_url import path_of
for _ in range(2):
    try:
        path_of(sys.argv[1]).exists()
    except BadRequest as error:
        print(error)
"""
LOCAL = """
import sys
from zerotools.cli.main import main
sys.argv = ["zerotools", "inspect", "nothing"]
try:
    main()
except SystemExit:
    pass
print([name for name in sys.modules if name in ("obstore", "huggingface_hub")])
"""


@pytest.mark.parametrize(
    ("url", "library"),
    [("s3://b/x", "obstore"), ("http://h/x", "obstore"), ("hf://o/m", "huggingface_hub")],
)
def test_what_is_not_installed_is_named(url: str, library: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ABSENT, url], capture_output=True, text=True, check=True
    )
    said = f"reading object stores needs {library}, which is not installed; run "
    assert done.stdout.count(said) == 2
    assert done.stdout.count(install_command(REQUIREMENTS[library])) == 2


def test_a_path_of_this_machine_imports_no_library_of_stores() -> None:
    done = subprocess.run([sys.executable, "-c", LOCAL], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_a_store_is_opened_once_for_each_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(monkeypatch) as store:
        store.put("a", b"1")
        first = place_of("gs", ("checkpoints", "a"))
        assert first.store is place_of("gs", ("checkpoints", "b")).store
        assert far("a").is_file()
    with served(monkeypatch):
        assert first.store is not place_of("gs", ("checkpoints", "a")).store
        assert not far("a").is_file()


def test_without_credentials_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SKIP_SIGNATURE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(BadRequest, match="no credentials were found; set AWS_ACCESS_KEY_ID"):
        place_of("s3", ("bucket", "a"))
