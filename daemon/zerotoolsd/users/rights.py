"""The rights of users: every request is an `Action`, and `Rights.decide` decides on it.

Administrators may do everything. The administrators are root, the daemon's user, and the users in
`[users] administrators`. A daemon of a single user has this user as its administrator; any other
user who reaches its socket only sees that jobs exist.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, unique

OVERFLOW_UID = 65534
"""The uid that the kernel reports for a user who is unknown in the daemon's user namespace."""

Allowed = str | tuple[str | int, ...] | None
"""The type of `[users] allow`: "all", or a list of names of users, of groups with an `@`, and of
uids. None: the key is not set, and all users are allowed.
"""


@unique
class Reach(Enum):
    """The jobs that an action reads or changes. The reach determines the users who may do the
    action.
    """

    NOBODY = "nobody"
    """The action concerns no jobs, or has the same result for all users: every user may do it."""
    USERS = "users"
    """The action makes jobs of the caller: every identified user may do it."""
    GLANCE = "glance"
    """Of other users' jobs, the action shows only that they exist and their use of the machine, and
    changes nothing.
    """
    OWN = "own"
    """The owner of the job may do it, and administrators."""


@unique
class Action(Enum):
    """A kind of request, with the words that describe it in a refusal, and with its `Reach`."""

    CHECK = "have jobs checked", Reach.USERS
    SUBMIT = "submit jobs", Reach.USERS
    ADOPT = "have a process watched", Reach.USERS
    OPEN_PAGE = "open the page for browsers", Reach.USERS
    LIST = "list it", Reach.GLANCE
    SHOW = "see all of it", Reach.GLANCE
    FOLLOW_EVENTS = "see why it changed", Reach.GLANCE
    SEE_MACHINE = "see the machine", Reach.GLANCE
    SEE_DAEMON = "see the daemon", Reach.NOBODY
    SEE_SHARES = "see what users have used", Reach.NOBODY
    EXPLAIN = "ask why it waits or ended", Reach.OWN
    SET_PRIORITY = "change its priority", Reach.OWN
    HOLD = "hold it", Reach.OWN
    PAUSE = "pause it", Reach.OWN
    UNPAUSE = "unpause it", Reach.OWN
    EDIT = "edit it", Reach.OWN
    CHANGE_ARRAY = "change its array", Reach.OWN
    RETRY = "run it again", Reach.OWN
    DRAIN = "drain the queue", Reach.OWN
    TEST_NOTICES = "test the notifications", Reach.OWN
    RELEASE = "release it", Reach.OWN
    SEE_METRICS = "see the metrics", Reach.NOBODY
    READ_LOGS = "read its logs", Reach.OWN
    READ_PROGRESS = "read its progress", Reach.OWN
    READ_RESULTS = "see its results", Reach.OWN
    READ_EXAMPLES = "see its examples", Reach.OWN
    CANCEL = "cancel it", Reach.OWN
    RESUME = "resume it", Reach.OWN
    CLEAN = "remove it", Reach.GLANCE

    def __init__(self, words: str, reach: Reach) -> None:
        self.words = words
        self.reach = reach


BEGINS = frozenset(
    {
        *(Action.CHECK, Action.SUBMIT, Action.ADOPT, Action.RESUME, Action.RETRY),
        Action.READ_EXAMPLES,
    }
)
"""Actions that run programs for the user. Only users in `[users] allow` may do them."""


@unique
class Access(Enum):
    """The decision on a request: allowed, masked or refused."""

    ALLOWED = "allowed"
    MASKED = "masked"
    """The response is cut down to the part that every user may see."""
    REFUSED = "refused"


@dataclass(frozen=True)
class Decision:
    """The decision on a request, with a sentence `why` for the user if it is refused; otherwise
    `why` is empty.
    """

    access: Access
    why: str = ""


@dataclass(frozen=True)
class Owner:
    """The owner of a job; `name` is None if unknown."""

    uid: int
    name: str | None = None


class Rights:
    """The rules on who may send which request to one daemon.

    `own` is the uid of the daemon. Entries of `administrators` are names, uids and, with an `@`
    before the name, groups.
    """

    def __init__(
        self,
        administrators: Collection[str | int] = (),
        own: int | None = None,
        allow: Allowed = None,
    ) -> None:
        self._own = os.geteuid() if own is None else own
        self._administrators = _Named(administrators)
        self._admitted = None if isinstance(allow, str | None) else _Named(allow)

    @property
    def name_people(self) -> bool:
        """Whether a rule contains the name of a user or group, so that the names of callers must be
        looked up.
        """
        return self._administrators.name_people or (
            self._admitted is not None and self._admitted.name_people
        )

    def is_administrator(self, caller: Caller) -> bool:
        """Return whether the caller is an administrator, who may act on all jobs like their
        owner.
        """
        if caller.uid in (0, self._own):
            return True
        if caller.uid == OVERFLOW_UID:
            return False
        return self._administrators.has(caller)

    def sees(self, caller: Caller, owner: int | None) -> bool:
        """Return whether the caller may see everything of a job that the user `owner` submitted
        (None: the owner is unknown).
        """
        return owner == caller.uid != OVERFLOW_UID or self.is_administrator(caller)

    def decide(
        self, caller: Caller, action: Action, owner: Owner | None = None, job_id: int | None = None
    ) -> Decision:
        """Decide whether `caller` may do `action` with the job `job_id` of `owner`.

        If `owner` is None, the action is not about one job. Then jobs of other users are masked in
        the response, or only administrators may do the action.
        """
        if self.is_administrator(caller) or action.reach is Reach.NOBODY:
            return Decision(Access.ALLOWED)
        if action in BEGINS and (why := self._why_not_user(caller)) is not None:
            return Decision(Access.REFUSED, why)
        if action.reach is Reach.USERS:
            return Decision(Access.ALLOWED)
        if owner is not None and self.sees(caller, owner.uid):
            return Decision(Access.ALLOWED)
        if action.reach is Reach.GLANCE:
            return Decision(Access.MASKED)
        if owner is None:
            return Decision(Access.REFUSED, f"only administrators may {action.words}")
        whose, who = user_text(owner.uid, owner.name), user_text(caller.uid, caller.name)
        job = "it" if job_id is None else f"job {job_id}"
        return Decision(
            Access.REFUSED,
            f"{job} belongs to {whose}, and you are {who}: only its owner and administrators may "
            f"{action.words}",
        )

    def _why_not_user(self, caller: Caller) -> str | None:
        """Return the reason why the daemon runs no jobs for this caller, who is not an
        administrator; None if it runs jobs for the caller.
        """
        if caller.uid == OVERFLOW_UID:
            return (
                f"you are uid {OVERFLOW_UID}, which the kernel shows for every user that this "
                "machine does not know, such as users of another user namespace: all their jobs "
                "would have one owner; connect from outside the namespace"
            )
        if self._admitted is None or self._admitted.has(caller):
            return None
        return (
            f"users.allow of the daemon's configuration does not name you, "
            f"{user_text(caller.uid, caller.name)}, nor a group of yours; ask the administrator of "
            "this machine"
        )


def _is_uid(text: str) -> bool:
    """Return whether the text has the form of a uid, which a table in `users.limits` may have as
    its name.
    """
    return text.isascii() and text.isdecimal() and len(text) <= 10


class _Named:
    """A list of users in the configuration: names, uids, and names of groups that begin with
    `@`.
    """

    def __init__(self, entries: Collection[str | int]) -> None:
        words = [each for each in entries if isinstance(each, str)]
        self._names = frozenset(each for each in words if not each.startswith("@"))
        numbers = (int(each) for each in self._names if _is_uid(each))
        self._uids = frozenset((*(each for each in entries if isinstance(each, int)), *numbers))
        self._groups = frozenset(each[1:] for each in words if each.startswith("@"))

    @property
    def name_people(self) -> bool:
        """Whether the list contains names, and not only uids."""
        return bool(self._names or self._groups)

    def has(self, caller: Caller) -> bool:
        named = caller.uid in self._uids or caller.name in self._names
        return named or not self._groups.isdisjoint(caller.groups)


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The user who sent a request, as identified by the kernel or a token.

    `name` and `groups` are empty if the names are unknown. In this case no rule with a name applies
    to the caller.
    """

    uid: int
    name: str | None = None
    groups: frozenset[str] = frozenset()


def user_text(uid: int, name: str | None) -> str:
    """Format a user for a message: `anna (uid 1000)`."""
    return f"uid {uid}" if name is None else f"{name} (uid {uid})"
