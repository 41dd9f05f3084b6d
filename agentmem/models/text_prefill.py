"""A window for models without a KV tier of ours: plain text prefill.

The prompt is one list of ids in a stock transformers cache; its unchanged beginning is kept, the
rest is read again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from agentmem.models.loading import LoadedModel
from agentmem.models.prompt_ids import Entry


class PrefixWindow:
    """The tokens of the last prompt and reply, and their cache."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self.token_ids: list[int] = []
        self._cache = self._empty()

    @property
    def cache(self) -> Any:
        """What the model takes as `past_key_values`."""
        return self._cache

    @property
    def num_tokens(self) -> int:
        """Tokens in the cache."""
        return len(self.token_ids)

    @property
    def next_position(self) -> int:
        """Position of the next token: there are no gaps here."""
        return len(self.token_ids)

    def appended(self, token_ids: Sequence[int]) -> None:
        """Take note of ids that are now in the cache."""
        self.token_ids += token_ids

    def recover(self) -> None:
        """Cut what an interrupted forward left behind in some layers."""
        self._cut(len(self.token_ids))

    def make_room(self) -> bool:
        """False: a plain cache stays where it is."""
        return False

    def keep_start(self, token_ids: Sequence[int]) -> int:
        """Keep the beginning shared with a prompt, at most all but its last id.

        Returns:
            Ids of the prompt that are in the cache.
        """
        limit = min(len(self.token_ids), len(token_ids) - 1)
        length = 0
        while length < limit and self.token_ids[length] == token_ids[length]:
            length += 1
        self._cut(length)
        return len(self.token_ids)

    def enter(
        self,
        entries: Sequence[Entry],
        header_ids: Sequence[int],
        read: Callable[[Sequence[int]], object],
    ) -> list[int]:
        """Keep what the window shares with a prompt; nothing is read yet.

        Args:
            entries: the prompt.
            header_ids: what asks for the reply.
            read: not needed here.

        Returns:
            Ids of the prompt that must be read, header included: at least one.
        """
        token_ids = [token_id for entry in entries for token_id in entry.token_ids]
        token_ids += header_ids
        return token_ids[self.keep_start(token_ids) :]

    def settle(self, num_reply_ids: int) -> None:
        """Nothing to do: the next prompt is compared with all that was read."""

    def fork(self) -> PrefixWindow:
        """A window of its own over the same tokens; this one is never changed through it."""
        window = copy.copy(self)
        window.token_ids = list(self.token_ids)
        window._cache = copy.copy(self._cache)
        window._cache.layers = [
            # Their tensors are replaced, never written to; other layers write in place.
            copy.copy(layer) if isinstance(layer, DynamicLayer) else copy.deepcopy(layer)
            for layer in self._cache.layers
        ]
        return window

    def close(self) -> None:
        """Free the cache."""
        self.clear()

    def clear(self) -> None:
        """Forget every token."""
        self.token_ids = []
        self._cache = self._empty()

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(
            tensor.numel() * tensor.element_size()
            for layer in self._cache.layers
            if layer.is_initialized
            for tensor in (layer.keys, layer.values)
            if tensor is not None
        )

    def _empty(self) -> Any:
        return DynamicCache(config=self._loaded.model.config)

    def _cut(self, length: int) -> None:
        held = [layer for layer in self._cache.layers if layer.is_initialized]
        if all(layer.get_seq_length() == length for layer in held):
            self.token_ids = self.token_ids[:length]
            return
        # A sliding window that has moved on, or a recurrent state, cannot be turned back.
        can_cut = length > 0 and all(
            type(layer) is DynamicLayer and layer.get_seq_length() >= length for layer in held
        )
        if not can_cut:
            self.clear()
            return
        for layer in held:
            layer.crop(length - layer.get_seq_length())
        self.token_ids = self.token_ids[:length]
