"""An exclusive lock on a file, between threads and processes, which dies with its holder.

`flock` on a file of its own: never on the database, whose POSIX locks any `close()` would drop. The
kernel frees it the moment its last holder is gone, also after SIGKILL. A forked child closes its
copy of the descriptor and holds nothing.
"""

from __future__ import annotations

import fcntl
import os
import random
import threading
import time
import weakref
from pathlib import Path

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_open_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock:
    """An exclusive lock named by a file, which is made where it is missing and never removed.

    Not reentrant: a thread that holds it and asks again waits for itself. Ask `held_by_me` first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._thread_lock = threading.Lock()
        self._owner: int | None = None
        _open_locks.add(self)

    @property
    def held_by_me(self) -> bool:
        """Whether the calling thread holds the lock."""
        return self._owner == threading.get_ident()

    def acquire(self, seconds: float) -> bool:
        """Take the lock, waiting at most so many seconds; False where it did not come free.

        Raises:
            OSError: the file cannot be opened or made.
        """
        deadline = time.monotonic() + seconds
        if not self._thread_lock.acquire(timeout=max(0.0, seconds)):
            return False
        try:
            acquired = self._lock_file(deadline)
        except BaseException:
            self._thread_lock.release()
            raise
        if acquired:
            self._owner = threading.get_ident()
        else:
            self._thread_lock.release()
        return acquired

    def release(self) -> None:
        """Give the lock back; nothing happens where it is not held."""
        if self._owner is None:
            return  # a child forked while its parent held the lock holds nothing
        self._owner = None
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._thread_lock.release()

    def probe(self) -> None:
        """Make the lock's file if it is missing, without waiting for its holder.

        Raises:
            OSError: it cannot be made: so nothing beside it can be written.
        """
        if self._fd is None:
            self._fd = os.open(self.path, _FLAGS, 0o600)

    def close(self) -> None:
        """Close the file; a lock still held is given back."""
        self._owner = None
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def _lock_file(self, deadline: float) -> bool:
        pause = 0.0002
        while True:
            self.probe()
            assert self._fd is not None
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                # Jitter, so that waiters do not knock in step; short, so that the lock is not idle.
                time.sleep(pause * (0.5 + random.random()))
                pause = min(pause * 1.5, 0.005)
                continue
            if self._is_in_place():
                return True
            # Somebody removed the file: others lock a new one by now, so ours excludes nobody.
            self.close()

    def _is_in_place(self) -> bool:
        assert self._fd is not None
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(self._fd), there)

    def _after_fork_in_child(self) -> None:
        # Closing a copy does not unlock; LOCK_UN would, and for the parent too.
        self.close()
        self._thread_lock = threading.Lock()


def _reset_in_child() -> None:
    for lock in tuple(_open_locks):
        lock._after_fork_in_child()


os.register_at_fork(after_in_child=_reset_in_child)
