"""Priority classes: the range of priorities that each user may give to jobs."""

from __future__ import annotations

import os
from collections.abc import Callable

from zerotools.core.errors import BadRequest
from zerotools.jobs.priority_range import LEAST_PRIORITY, MOST_PRIORITY, why_not_priority
from zerotoolsd.config.config_tables import PriorityConfig
from zerotoolsd.interface.api_types import Forbidden
from zerotoolsd.users.account import NAME_SERVICE, Account, UnknownAccount

EVERYBODY = "*"
ALL = LEAST_PRIORITY, MOST_PRIORITY


class PriorityClasses:
    """The priority classes in the configuration, keyed by uid. Root and the user of the daemon may
    use all priorities.

    `find` returns the account of a uid, and `groups` returns the groups of a user.
    """

    def __init__(
        self,
        config: PriorityConfig,
        find: Callable[[int], Account] = NAME_SERVICE.find,
        groups: Callable[[Account], frozenset[str]] = NAME_SERVICE.groups,
    ) -> None:
        self._classes = config.classes
        self._find, self._groups = find, groups

    def range_of(self, uid: int) -> tuple[int, int]:
        """Return the lowest and the highest priority that the user `uid` may give to a job."""
        if uid in (0, os.geteuid()) or not self._classes:
            return ALL
        names, groups = {str(uid)}, frozenset[str]()
        try:
            account = self._find(uid)
            names.add(account.name)
            groups = self._groups(account)
        except UnknownAccount:  # it has the class of everybody else
            pass
        own = [bounds for name, bounds in self._classes.items() if name in names]
        of_groups = [
            bounds
            for name, bounds in self._classes.items()
            if name.startswith("@") and name[1:] in groups
        ]
        found = own or of_groups or [self._classes.get(EVERYBODY, ALL)]
        return min(bounds[0] for bounds in found), max(bounds[1] for bounds in found)

    def priority_for(self, uid: int, wanted: int | None) -> int:
        """Return the priority of a new job of the user `uid`, who asks for the priority
        `wanted` (None: the default).

        Raises BadRequest if `wanted` is no valid priority, and Forbidden if it is outside of
        the user's class.
        """
        if wanted is not None and (why := why_not_priority(wanted)) is not None:
            raise BadRequest(f"priority = {wanted}: {why}")
        least, most = self.range_of(uid)
        if wanted is None:
            return min(max(0, least), most)
        if not least <= wanted <= most:
            raise Forbidden(
                f"priority = {wanted}: [priority.classes] of the daemon's configuration "
                f"allows {least} to {most} for jobs of uid {uid}; choose one of these, or ask "
                "the administrator"
            )
        return wanted
