"""Families of requests that name others: a chat's parent, the requests that one waits for."""

from __future__ import annotations


class Families:
    """Names joined to their parents. Parents that are never described and circles of parents do no harm."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def root(self, name: str) -> str:
        """The end of the chain of parents: the same for all members of a family."""
        end = name
        while end in self._parents:
            end = self._parents[end]
        while name != end:
            self._parents[name], name = end, self._parents[name]
        return end

    def join(self, child: str, parent: str) -> bool:
        """Put `child` and its family below `parent`'s root; False where they are one family already."""
        below, above = self.root(child), self.root(parent)
        if below == above:
            return False
        self._parents[below] = above
        return True
