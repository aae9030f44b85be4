"""Signals that wake the supervisor's loop. The loop then checks the state itself."""

from __future__ import annotations

import signal
import socket


class SignalWaker:
    """`socket` is readable after a SIGCHLD or SIGTERM; `asked` is True after a SIGTERM."""

    def __init__(self) -> None:
        self.asked = False
        self.socket, self._waker = socket.socketpair()
        self.socket.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, *_: object) -> None:
        self.asked = True

    def clear(self) -> None:
        """Read the received bytes, so that the next signal wakes the loop again."""
        while True:
            try:
                self.socket.recv(4096)
            except BlockingIOError:
                return

    def close(self) -> None:
        """Stop waking the loop."""
        signal.set_wakeup_fd(-1)
