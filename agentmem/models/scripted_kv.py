"""A KV tier without tensors: it keeps the keys of parts, so that sessions are tested without torch.

Stricter than a real one: it refuses a prompt that names a key twice, or that changes what a key
stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from agentmem.errors import InvalidInput
from agentmem.models.base import KVUsage, Part, PartKey
from agentmem.segment import Precision, State

BYTES_PER_TOKEN = 64


class ScriptedKV:
    """Which parts a scripted model has read, and where they would live.

    Args:
        count_tokens: tokens of a part.
    """

    def __init__(self, count_tokens: Callable[[Part], int]) -> None:
        self._count_tokens = count_tokens
        self._parts: dict[PartKey, Part] = {}
        self._window: tuple[PartKey, ...] = ()
        self._attention: dict[PartKey, float] = {}
        self.precisions: dict[PartKey, Precision] = {}
        """Of parts that are to be stored otherwise than the rest."""

    @property
    def dense_bytes_per_token(self) -> int:
        """Bytes a token would take."""
        return BYTES_PER_TOKEN

    @property
    def window(self) -> tuple[PartKey, ...]:
        """Keys of the last prompt that left a trace, in its order."""
        return self._window

    def read(self, prompt: Sequence[Part], *, ephemeral: bool) -> int:
        """Take in a prompt; return how many of its tokens had to be computed.

        Segments (int keys) that left the prompt are parked; other parts are let go.

        Raises:
            InvalidInput: a key is there twice, or stands for other messages than before.
        """
        keys = [part.key for part in prompt]
        for key in keys:
            if keys.count(key) > 1:
                raise InvalidInput(f"A prompt must name each part once: got {key!r} twice.")
        for part in prompt:
            if part.key in self._parts and self._parts[part.key].messages != part.messages:
                raise InvalidInput(f"The part {part.key!r} must keep its messages: they changed.")
        new = [part for part in prompt if part.key not in self._parts]
        if not ephemeral:
            self._parts.update((part.key, part) for part in new)
            self._window = tuple(keys)
            for key in [key for key in self._parts if isinstance(key, str) and key not in keys]:
                self.forget(key)
        return sum(map(self._count_tokens, new))

    def has(self, key: PartKey) -> bool:
        """Whether the part can be in the next prompt without prefill."""
        return key in self._parts

    def attention(self) -> Mapping[PartKey, float]:
        """What `set_attention` said, for the keys that are held."""
        return {key: mass for key, mass in self._attention.items() if key in self._parts}

    def set_attention(self, attention: Mapping[PartKey, float]) -> None:
        """Decide what `attention` tells from now on."""
        self._attention = dict(attention)

    def keep_as(self, key: PartKey, precision: Precision | None) -> None:
        """Note at which precision the part would be stored."""
        if precision is None:
            self.precisions.pop(key, None)
        else:
            self.precisions[key] = precision

    def forget(self, key: PartKey) -> None:
        """Let a part go, wherever it is."""
        self._parts.pop(key, None)
        self._window = tuple(one for one in self._window if one != key)

    def usage(self) -> KVUsage:
        """Bytes by place: parts in the window are live, the others parked in RAM."""
        parked = [key for key in self._parts if key not in self._window]
        states: dict[PartKey, State] = dict.fromkeys(self._window, "live")
        states.update(dict.fromkeys(parked, "parked"))
        return KVUsage(
            window_bytes=self._nbytes(self._window),
            parked_ram_bytes=self._nbytes(parked),
            states=states,
        )

    def clear(self) -> None:
        """Let everything go."""
        self._parts.clear()
        self._window = ()

    def _nbytes(self, keys: Iterable[PartKey]) -> int:
        return BYTES_PER_TOKEN * sum(self._count_tokens(self._parts[key]) for key in keys)
