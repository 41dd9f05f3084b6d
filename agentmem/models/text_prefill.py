"""A window for models without a KV tier of ours: plain text prefill.

The prompt is one list of ids in a stock transformers cache; its unchanged beginning is kept, the
rest is read again. A cache that cannot be cut (recurrent layers, sliding windows) is copied at the
end of every part of the prompt, and gone on from at the last copy that still fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from transformers import DynamicCache

from agentmem.models import stock_layers
from agentmem.models.loading import LoadedModel
from agentmem.models.long_rope import switch_tokens
from agentmem.models.prompt_ids import Entry
from agentmem.models.state_checkpoints import Checkpoint, StateCheckpoints


class PrefixWindow:
    """The tokens of the last prompt and reply, and their cache.

    Args:
        loaded: the model.
        max_checkpoint_bytes: of copies of a cache that cannot be cut.
    """

    def __init__(self, loaded: LoadedModel, *, max_checkpoint_bytes: int = 0) -> None:
        self._loaded = loaded
        self.token_ids: list[int] = []
        self._cache = self._empty()
        self._can_cut = stock_layers.can_cut(self._cache.layers)
        self.checkpoints = StateCheckpoints(max_checkpoint_bytes)
        self._is_fork = False
        self._switch_tokens = switch_tokens(loaded.model.config.get_text_config(decoder=True))

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
        """Take out what an interrupted forward left behind in some layers."""
        if self._can_cut:
            self._cut(len(self.token_ids))
        else:
            self._go_back(self.checkpoints.longest(self.token_ids))

    def restart(self) -> list[int]:
        """Forget every token; their ids, to be read again."""
        token_ids = self.token_ids
        self.clear()
        return token_ids

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
        if self._can_cut:
            self._cut(length)
            return len(self.token_ids)
        checkpoint = self.checkpoints.longest(token_ids[:-1])
        is_further = checkpoint is not None and len(checkpoint.token_ids) > length
        if length < len(self.token_ids) or is_further:
            self._go_back(checkpoint)
        return len(self.token_ids)

    def enter(
        self,
        entries: Sequence[Entry],
        header_ids: Sequence[int],
        read: Callable[[Sequence[int]], object],
    ) -> list[int]:
        """Keep what the window shares with a prompt, and read the parts that end before its end.

        Nothing is read yet where the cache can be cut, and in a fork.

        Args:
            entries: the prompt.
            header_ids: what asks for the reply.
            read: forwards ids into this window.

        Returns:
            Ids of the prompt that must be read, header included: at least one.
        """
        token_ids = [token_id for entry in entries for token_id in entry.token_ids]
        token_ids += header_ids
        self.keep_start(token_ids)
        if not self._can_cut and not self._is_fork and self.checkpoints.max_bytes:
            for end in accumulate(len(entry.token_ids) for entry in entries):
                if self.num_tokens < end < len(token_ids):
                    read(token_ids[self.num_tokens : end])
                    self.checkpoints.keep(self.token_ids, self._cache.layers)
        return token_ids[self.num_tokens :]

    def settle(self, num_reply_ids: int) -> None:
        """Nothing to do: the next prompt is compared with all that was read."""

    def fork(self) -> PrefixWindow:
        """A window of its own over the same tokens; this one is never changed through it."""
        window = PrefixWindow(self._loaded)
        window.token_ids = list(self.token_ids)
        window._cache.layers = [stock_layers.twin(layer) for layer in self._cache.layers]
        # It goes on from checkpoints of this one, and makes none.
        window.checkpoints = self.checkpoints
        window._is_fork = True
        return window

    def close(self) -> None:
        """Free the cache."""
        self.clear()
        if not self._is_fork:
            self.checkpoints.clear()

    def clear(self) -> None:
        """Forget every token; checkpoints stay."""
        self.token_ids = []
        self._cache = self._empty()

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and states, without checkpoints."""
        return sum(stock_layers.nbytes(layer) for layer in self._cache.layers)

    def _empty(self) -> Any:
        return DynamicCache(config=self._loaded.model.config)

    def _go_back(self, checkpoint: Checkpoint | None) -> None:
        """Make the cache that of a checkpoint, or empty."""
        self.clear()
        if checkpoint is not None:
            self.token_ids = list(checkpoint.token_ids)
            self._cache.layers = checkpoint.layers()

    def _cut(self, length: int) -> None:
        held = [layer for layer in self._cache.layers if layer.keys is not None]
        # What is left after the switch was rotated by the frequencies that hold behind it.
        is_mixed = length <= self._switch_tokens < len(self.token_ids)
        # Some layers may not have what others do: a forward was interrupted in the first one.
        if length == 0 or is_mixed or any(layer.get_seq_length() < length for layer in held):
            self.clear()
            return
        for layer in held:
            if layer.get_seq_length() > length:
                layer.crop(length - layer.get_seq_length())
        self.token_ids = self.token_ids[:length]
