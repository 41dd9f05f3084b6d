"""Every error agentmem raises on purpose.

    AgentmemError
    ├── InvalidInput          a value the caller passed is wrong (also a ValueError)
    │   ├── BudgetTooSmall    the budget cannot hold what must always be in the window
    │   └── SegmentNotFound   no such segment for this user
    ├── ConfigError           a setting or settings file is wrong
    ├── MissingExtra          an optional package is not installed
    ├── BudgetExceeded        a forward would have passed the budget (an invariant of ours)
    ├── UndoBlocked           a decision can no longer be undone within the budget
    ├── ReplayDiverged        a replayed session asked for something else than was recorded
    ├── ModelError
    │   ├── ModelNotFound     no such model, or its files are missing
    │   ├── ModelCorrupt      the model's files are damaged
    │   ├── ModelUnavailable  the endpoint does not answer, or answered with an error
    │   ├── DeviceFull        the model's device has no memory left
    │   └── Unsupported       the model or format cannot do what was asked
    └── StoreError
        ├── StoreLocked       another process holds the write lock
        ├── SessionBusy       another sender holds the session
        ├── Overtaken         another session changed the same thing first
        ├── StoreCorrupt      a file of the store is damaged
        ├── SchemaNewer       the store was written by a newer agentmem
        ├── StoreReadOnly     the store cannot be written
        └── StoreFull         the disk is full

`exit_code` is what the command line exits with. A message says what was wrong, the value, and what
would be right.
"""


class AgentmemError(Exception):
    """Base of every error agentmem raises on purpose."""

    exit_code = 1

    @property
    def code(self) -> str:
        """The name programs match on: the class's name."""
        return type(self).__name__


class InvalidInput(AgentmemError, ValueError):
    """A value the caller passed is wrong."""

    exit_code = 2


class BudgetTooSmall(InvalidInput):
    """The budget cannot hold system prompt, tools, reserve and two turns."""

    exit_code = 3


class SegmentNotFound(InvalidInput, LookupError):
    """No such segment for this user."""


class ConfigError(AgentmemError):
    """A setting or a settings file is wrong."""

    exit_code = 3


class MissingExtra(AgentmemError):
    """An optional package is not installed; the message names the command that installs it."""

    exit_code = 3


class BudgetExceeded(AgentmemError):
    """A forward would have passed the budget: an invariant of ours was about to break."""


class UndoBlocked(AgentmemError):
    """A decision can no longer be undone within the budget.

    Attributes:
        tokens_over: tokens by which the former window exceeds the budget.
    """

    def __init__(self, message: str, *, tokens_over: int = 0) -> None:
        super().__init__(message)
        self.tokens_over = tokens_over


class ReplayDiverged(AgentmemError):
    """A replayed session asked for something else than was recorded.

    Attributes:
        turn: number of the turn in which it did.
        call: which of the turn's records was to be played, from 1.
        recorded: what the log has there: a record's kind and, of a request, its hash.
        replayed: what was asked for instead.
    """

    def __init__(
        self, message: str, *, turn: int = 0, call: int = 0, recorded: str = "", replayed: str = ""
    ) -> None:
        super().__init__(message)
        self.turn = turn
        self.call = call
        self.recorded = recorded
        self.replayed = replayed


class ModelError(AgentmemError):
    """The model cannot be used."""

    exit_code = 4


class ModelNotFound(ModelError):
    """No such model, or its files are missing."""


class ModelCorrupt(ModelError):
    """The model's files are damaged."""


class ModelUnavailable(ModelError):
    """The endpoint does not answer, or answered with an error."""


class DeviceFull(ModelError):
    """The model's device has no memory left, after all that could be moved away was."""


class Unsupported(ModelError):
    """The model, machine or format cannot do what was asked."""


class StoreError(AgentmemError):
    """The store cannot be used."""

    exit_code = 5


class StoreLocked(StoreError):
    """Another process holds the store's write lock."""


class SessionBusy(StoreError):
    """Another sender holds the session."""


class Overtaken(StoreError):
    """Another session changed the same thing first: nothing was stored."""


class StoreCorrupt(StoreError):
    """A file of the store is damaged."""


class SchemaNewer(StoreError):
    """The store was written by a newer agentmem."""


class StoreReadOnly(StoreError):
    """The store cannot be written."""


class StoreFull(StoreError):
    """The disk is full."""
