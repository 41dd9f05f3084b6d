"""Everything a session cannot compute from its own state comes in through here.

    inputs      turns, acts on memory, settings at opening: what people want
    model       its completions and judgements, its counts of tokens, what its KV tier holds and
                has seen
    embedder    vectors of queries that are not stored with a segment, what sounds standing to it
    tools       what the functions of the application returned
    clocks      the deadlines of reviews, summaries and tools (stamps of rows are read in the
                archive, once a commit)
    chance      the key of the fence around foreign text
    others      what other sessions of the user, imports and consolidation changed

Which ids the store gives out depends on all its users: it is seen where rows are written
(`Archive.observer`). No seam is needed for anything else: policies, scores, indexes, facts that
patterns find, what memory tools do and layouts follow from these.

`replay` says what of it cannot be played.

This class lets everything through, one input at a time; a recorder writes it down, a replay gives
it back. It decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentmem.fence import Fence
from agentmem.models.base import ChatModel, Embedder
from agentmem.storage.rows import StoredSegment
from agentmem.turnstile import Turnstile


class Outside:
    """What is not recorded: the outside itself."""

    def __init__(self) -> None:
        self.turnstile = Turnstile()
        """Lets one turn or act through after the other."""
        self.fence = Fence()
        """Around foreign text in prompts; what is fenced cannot know its key."""
        self.follow: Callable[[], object] = lambda: None
        """Lets window and model forget what was forgotten elsewhere."""
        self.reload: Callable[[], None] = lambda: None
        """Goes on as if the session was opened now."""

    @contextmanager
    def opening(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """A session is being opened with these settings, plain JSON."""
        with self.turnstile.enter("it is being opened"):
            yield

    @contextmanager
    def turn(self, key: str | None, *, given: bool) -> Iterator[None]:
        """A turn is being played.

        Args:
            key: what the caller calls it.
            given: the reply is known already.

        Raises:
            SessionBusy: another turn or act is not at its end.
        """
        with self.turnstile.enter("it is answering a turn"):
            yield

    def turn_is(self, number: int, text: str, *, stored: bool) -> None:
        """The turn that is being played has this number and text.

        Args:
            stored: the text is one segment's, and so its vector is stored with it.
        """

    def left(self, num_events: int, *, at_word: bool) -> None:
        """Whoever read the turn's events walked away after so many, tokens not counted.

        Args:
            at_word: after a token that followed them.
        """

    @contextmanager
    def act(self, action: str, arguments: Sequence[Any]) -> Iterator[None]:
        """Somebody acts on memory; what a model does by its tools is part of a turn.

        Raises:
            SessionBusy: a turn or another act is not at its end.
        """
        if self.turnstile.is_inside:
            yield
            return
        with self.turnstile.enter(f"somebody acts on its memory ({action})"):
            yield

    def look_again(self) -> None:
        """In the middle of an input it was seen that others had changed something first."""

    def unread(self, find: Callable[[], list[StoredSegment]]) -> list[StoredSegment]:
        """What is read for facts now: it depends on what others have read."""
        return find()

    def model(self, model: ChatModel) -> ChatModel:
        """The model as the session sees it."""
        return model

    def embedder(self, embedder: Embedder) -> Embedder:
        """The embedder as the session sees it."""
        return embedder

    def query(self, text: str, embed: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
        """The vector of a text that is looked for, shape (dim,)."""
        return embed()

    def standing(self, find: Callable[[], list[str]]) -> list[str]:
        """The sentences that by their meaning are to hold from now on, given how they are found."""
        return find()

    def tools(self, functions: Sequence[Callable[..., Any]]) -> Sequence[Callable[..., Any]]:
        """The application's functions as the session sees them; asked for before the opening."""
        return functions

    def monotonic(self) -> float:
        """Seconds, for deadlines."""
        return time.monotonic()
