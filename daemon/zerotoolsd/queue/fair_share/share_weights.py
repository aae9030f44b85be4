"""The shares of users in the GPUs, as set by the administrator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zerotoolsd.users.account import NAME_SERVICE, Account, SilentNames, UnknownAccount

EVERYBODY = "*"


class ShareWeights:
    """The weights of the configuration, by uid; each user is looked up once."""

    def __init__(
        self,
        weights: Mapping[str, float],
        find: Callable[[int], Account] = NAME_SERVICE.find,
        groups: Callable[[Account], frozenset[str]] = NAME_SERVICE.groups,
    ) -> None:
        self._weights = weights
        self._find, self._groups = find, groups
        self._known: dict[int, float] = {}

    def of(self, uid: int) -> float:
        """Return the user's entry, else the largest of their groups, else that of everybody.

        The latter is 1 if it is not set.
        """
        if uid in self._known:
            return self._known[uid]
        try:
            found = self._known[uid] = self._look_up(uid)
        except SilentNames:  # it is looked up again
            found = self._weights.get(EVERYBODY, 1.0)
        return found

    def _look_up(self, uid: int) -> float:
        everybody = self._weights.get(EVERYBODY, 1.0)
        if not set(self._weights) - {EVERYBODY}:
            return everybody
        names, groups = {str(uid)}, frozenset[str]()
        try:
            account = self._find(uid)
        except SilentNames:
            raise
        except UnknownAccount:  # it has the weight of everybody else
            pass
        else:
            names.add(account.name)
            groups = self._groups(account)
        own = [weight for name, weight in self._weights.items() if name in names]
        of_groups = [
            weight
            for name, weight in self._weights.items()
            if name.startswith("@") and name[1:] in groups
        ]
        return max(own or of_groups or [everybody])
