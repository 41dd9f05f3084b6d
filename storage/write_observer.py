"""Whoever is told of the changes of an archive. It knows no SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agentmem.storage.transaction import Transaction


class WriteObserver(Protocol):
    """Told of every change that is made through an archive, inside its transaction."""

    def begin(self, transaction: Transaction) -> None:
        """A change begins."""
        ...

    def end(self, transaction: Transaction) -> None:
        """A change is about to be committed: what is written now is committed with it."""
        ...

    def committed(self) -> None:
        """It was."""
        ...

    def failed(self, error: BaseException) -> None:
        """It was not: nothing of it is stored."""
        ...
