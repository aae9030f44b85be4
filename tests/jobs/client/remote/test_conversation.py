from __future__ import annotations

import pytest

from zerotools.jobs.client.remote.conversation import is_complete, read_answer

SAID = (
    b"Last login: today\nmark\n/home/ada\x001000\x002\x00/run/a b.sock\x00/var/c.sock\x00"
    b"PATH=/bin\x00ODD\x00TWO=1\nmark=2\x00mark\n"
)


def test_what_stands_between_the_marks() -> None:
    answer = read_answer(SAID, "mark")
    assert answer.home == "/home/ada"
    assert answer.uid == 1000
    assert answer.sockets == ("/run/a b.sock", "/var/c.sock")
    assert answer.environment == {"PATH": "/bin", "TWO": "1\nmark=2"}


def test_it_is_complete_at_its_second_mark() -> None:
    assert is_complete(SAID, "mark")
    assert not any(is_complete(SAID[:n], "mark") for n in range(len(SAID)))


@pytest.mark.parametrize("body", [b"", b"/home/ada\0x\0", b"/home/ada\0", b"no zero"])
def test_another_answer_is_refused(body: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        read_answer(b"mark\n" + body + b"mark\n", "mark")
