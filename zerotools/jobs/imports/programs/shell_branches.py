"""The branches of `if`, `case` and loops that contain a position of a shell script."""

from __future__ import annotations

_BEGIN = frozenset(("if", "case", "for", "while", "until", "select"))
_END = frozenset(("fi", "esac", "done"))
_TAKEN, _SKIPPED = 0, -1
"""The branch numbers of a branch that certainly runs, and of a branch that certainly does not run,
because the condition is known. Other branches have numbers above 0.
"""


class Branches:
    """The branches that contain a position, the outermost branch first. Each branch has the number
    of its current arm, such as 0 for `then` and 1 for `else`.
    """

    def __init__(self) -> None:
        self._open: list[tuple[int, int]] = []
        self._started = 0

    @property
    def is_open(self) -> bool:
        """True inside of a branch."""
        return bool(self._open)

    @property
    def is_skipped(self) -> bool:
        """True inside of a branch that certainly does not run."""
        return any(number == _SKIPPED for number, _ in self._open)

    @property
    def within(self) -> tuple[tuple[int, int], ...]:
        """The open branches, without the branches that certainly run."""
        return tuple(branch for branch in self._open if branch[0] != _TAKEN)

    def enter_and_leave(self, word: str) -> None:
        """Read the first word of a command, which may begin or end a branch (such as `if`, `else`
        and `fi`).
        """
        if word in _BEGIN:
            self._started += 1
            self._open.append((self._started, 0))
        elif word in _END and self._open:
            self._open.pop()
        elif word in ("else", "elif"):
            self.next_arm()

    def next_arm(self) -> None:
        """Begin the next arm of the innermost branch."""
        if not self._open:
            return
        number, arm = self._open.pop()
        if number in (_TAKEN, _SKIPPED):
            self._open.append((_SKIPPED if number == _TAKEN else _TAKEN, arm + 1))
        else:
            self._open.append((number, arm + 1))

    def choose(self, *, is_first: bool | None) -> None:
        """Record the condition of the innermost `if`. `is_first` is true if its first arm runs,
        false if another arm runs, and None if this is not known.
        """
        if self._open and is_first is not None:
            self._open[-1] = (_TAKEN if is_first else _SKIPPED, 0)
