"""Run a model over new tokens, in chunks, and never past a ceiling.

Every forward of the local engine passes through here: tokens in the cache and new ones together are
held against the budget and against what the model can attend to before anything is computed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from agentmem.errors import BudgetExceeded, InvalidInput
from agentmem.models.loading import LoadedModel
from agentmem.models.long_rope import switch_tokens
from agentmem.storage.kv_places import with_room

CHUNK_TOKENS = 256
"""New tokens of one forward: bounds its memory, and the time until a cancellation is heard."""


class Cancelled(BaseException):
    """`Options.cancelled` said so while the prompt was being read. Never leaves the engine."""


class Window(Protocol):
    """Tokens a model attends to, and the transformers cache that holds their KV."""

    @property
    def cache(self) -> Any:
        """What the model takes as `past_key_values`."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens in the cache."""
        ...

    @property
    def next_position(self) -> int:
        """Position of the next token to be forwarded."""
        ...

    def appended(self, token_ids: Sequence[int]) -> None:
        """Take note of ids that are now in the cache."""
        ...

    def recover(self) -> None:
        """Forget what an interrupted forward left behind in some layers."""
        ...

    def make_room(self) -> bool:
        """Hold less on the model's device, after it ran out of memory; False where nothing can."""
        ...


@runtime_checkable
class Restarts(Protocol):
    """A window of text, which can be read again."""

    def restart(self) -> list[int]:
        """Forget every token; their ids, to be read again."""
        ...


class Forward:
    """Forwards one model, for one conversation.

    Args:
        loaded: the model.
        chunk_tokens: new tokens of one forward at most.
        one_by_one: whether only the first forward into an empty window may have several.

    Attributes:
        peak_tokens: tokens the model ever attended to at once.
        num_forwards: forwards run.
        num_tokens: tokens computed.
    """

    def __init__(
        self, loaded: LoadedModel, *, chunk_tokens: int = CHUNK_TOKENS, one_by_one: bool = False
    ) -> None:
        if chunk_tokens < 1:
            raise InvalidInput(f"`chunk_tokens` must be positive: got {chunk_tokens}.")
        self._loaded = loaded
        self._chunk_tokens = chunk_tokens
        self._one_by_one = one_by_one
        self._switch_tokens = switch_tokens(loaded.model.config.get_text_config(decoder=True))
        parameters = inspect.signature(loaded.model.forward).parameters
        self._keeps_logits = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        # transformers 5.24 renamed it.
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self.peak_tokens = 0
        self.num_forwards = 0
        self.num_tokens = 0

    def room(self, num_held: int, max_tokens: int) -> int:
        """New tokens that still fit beside those in the cache."""
        ceilings = [limit for limit in (max_tokens, self._loaded.context_tokens) if limit]
        return min(ceilings) - num_held if ceilings else 1 << 62

    def check(self, num_held: int, num_new: int, max_tokens: int) -> None:
        """Refuse tokens that do not fit.

        Raises:
            BudgetExceeded: they pass `max_tokens`, or what the model can attend to.
        """
        if max_tokens and num_held + num_new > max_tokens:
            raise BudgetExceeded(
                f"{num_held} tokens in the window and {num_new} new ones are {num_held + num_new}: "
                f"more than the budget of {max_tokens}."
            )
        limit = self._loaded.context_tokens
        if limit and num_held + num_new > limit:
            raise BudgetExceeded(
                f"{num_held} tokens in the window and {num_new} new ones are {num_held + num_new}: "
                f"more than the {limit} that {self._loaded.name} can attend to."
            )

    def run(
        self,
        window: Window,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        cancelled: Callable[[], bool] | None = None,
    ) -> NDArray[np.float32]:
        """Append ids to a window.

        Returns:
            Logits after the last id: (vocab_size,), float32.

        Raises:
            BudgetExceeded: before anything is computed.
            Cancelled: between two chunks; those before stay in the window.
            DeviceFull: the device ran out of memory twice; the chunks before stay in the window.
        """
        self.check(window.num_tokens, len(token_ids), max_tokens)
        num_tokens = window.num_tokens + len(token_ids)
        must_pass = self._switch_tokens if num_tokens > self._switch_tokens else 0
        if 0 < window.num_tokens <= must_pass and isinstance(window, Restarts):
            token_ids = [*window.restart(), *token_ids]
        logits: NDArray[np.float32] | None = None
        start = 0
        while start < len(token_ids):
            if cancelled is not None and cancelled():
                raise Cancelled
            is_single = self._one_by_one and window.num_tokens > 0
            # A chunk that ended before the switch would have the other frequencies.
            most = max(self._chunk_tokens, 0 if window.num_tokens else must_pass + 1)
            end = start + (1 if is_single else most)
            forward = partial(self._forward, window, token_ids[start:end])
            logits = with_room(forward, window.make_room)
            start = end
        assert logits is not None, "a forward needs at least one token"
        return logits

    def _forward(self, window: Window, token_ids: Sequence[int]) -> NDArray[np.float32]:
        device = self._loaded.device
        position = window.next_position
        ids = torch.tensor([list(token_ids)], device=device)
        positions = torch.arange(position, position + len(token_ids), device=device)[None]
        done = False
        try:
            with self._loaded.lock, torch.inference_mode():
                output = self._loaded.model(
                    input_ids=ids,
                    position_ids=positions,
                    use_cache=True,
                    **{self._cache_argument: window.cache},
                    **self._keeps_logits,
                )
                logits = output.logits[0, -1].float().cpu().numpy()
            window.appended(token_ids)
            done = True
        finally:
            # Also after KeyboardInterrupt: some layers may hold the new tokens, others not.
            if not done:
                window.recover()
        self.num_forwards += 1
        self.num_tokens += len(token_ids)
        self.peak_tokens = max(self.peak_tokens, window.num_tokens)
        result: NDArray[np.float32] = logits
        return result
