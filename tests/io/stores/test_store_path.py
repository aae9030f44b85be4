from __future__ import annotations

import io
import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.io.stores.far import far, served
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.files.optional_packages import REQUIREMENTS, install_command
from zerotools.io.stores.store_path import place_of


def test_the_words_of_a_path_are_those_of_any() -> None:
    path = far("a/b.pt")
    assert (path.name, path.suffix, path.stem) == ("b.pt", ".pt", "b")
    assert path.parent / "c" == far("a/c")
    assert path.with_name("d") == far("a/d")
    assert path.relative_to(far("a")).as_posix() == "b.pt"
    assert path.is_relative_to(far("a"))
    assert not path.is_relative_to(Path("a"))
    assert path.absolute() is path.resolve()
    assert path.is_absolute()
    assert f"{path}" == "gs://checkpoints/a/b.pt"
    assert pickle.loads(pickle.dumps(path)) == path
    assert {path: 1}[far("a/b.pt")] == 1
    assert sorted([far("b"), far("a")]) == [far("a"), far("b")]


SYSTEM: list[Callable[[Path], object]] = [
    os.fspath,
    os.stat,
    os.path.exists,
    os.path.lexists,
    os.listdir,
    lambda path: list(os.walk(path)),
    io.FileIO,
    lambda path: os.open(path, os.O_RDONLY),
    shutil.disk_usage,
    lambda path: shutil.copy(path, "x"),
    lambda path: path.open(),
    lambda path: path.mkdir(),
    lambda path: path.unlink(),
    lambda path: path.read_bytes(),
    lambda path: path.write_text("x"),
    lambda path: path.rename("x"),
    lambda path: list(path.rglob("*")),
    bytes,
]


@pytest.mark.parametrize("ask", SYSTEM, ids=range(len(SYSTEM)))
def test_the_system_is_never_asked(ask: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="gs://checkpoints/a is in an object store"):
        ask(far("a"))


def test_no_file_of_this_machine_is_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gs:" / "checkpoints").mkdir(parents=True)
    (tmp_path / "gs:" / "checkpoints" / "a").write_text("wrong")
    mistaken = Path(far("a"))
    assert not mistaken.exists()
    with pytest.raises(ValueError, match="null"):
        mistaken.read_text()


def test_what_a_directory_is_asked_is_answered_from_listings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served(monkeypatch) as store:
        for name in ("run/a.pt", "run/zero/p/b.pt", "run/zero/q/b.pt", "running/c"):
            store.put(name, name.encode())
        run = far("run")
        assert run.exists()
        assert run.is_dir()
        assert not run.is_file()
        assert sorted(each.name for each in run.iterdir()) == ["a.pt", "zero"]
        assert [each.name for each in run.glob("*.pt")] == ["a.pt"]
        below = run.glob("**/*.pt")
        assert [p.relative_to(run).as_posix() for p in below] == [
            "a.pt",
            "zero/p/b.pt",
            "zero/q/b.pt",
        ]
        status = (run / "a.pt").stat()
        assert stat.S_ISREG(status.st_mode)
        assert status.st_size == 8
        assert stat.S_ISDIR((run / "zero").stat().st_mode)
        assert not (run / "x").exists()
        assert not (run / "a.pt" / "x").exists()
        with pytest.raises(FileNotFoundError):
            (run / "x").stat()
        assert far("running/c").is_file()  # and not a part of `run`
        assert far("run/a.pt").open_source().read(100, 0) == b"run/a.pt"
        before = (run / "a.pt").stat()
        store.put("run/a.pt", b"12345678")
        assert (run / "a.pt").stat() == before  # what was known stays so
        run.forget()
        assert (run / "a.pt").stat() != before  # although it has as many bytes


def test_above_all_stores_there_is_nothing() -> None:
    from zerotools.io.stores.parse_url import path_of

    for path in (path_of("s3://bucket"), path_of("hf://team/model")):
        around = path.parent
        for each in (around, around / "huggingface", around / "latest"):
            assert not each.exists()
            assert not each.is_dir()
            with pytest.raises(FileNotFoundError):
                each.stat()
            assert list(each.iterdir()) == []
    owner = path_of("s3://bucket/a").parent.parent
    assert not owner.exists()
    assert not owner.is_dir()
    with pytest.raises(FileNotFoundError):
        owner.stat()


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
