"""Prove on a loaded model that its KV tier says what reading the text says.

The self-test every model passes when it is attached, once more, and a reply from a window that a
segment left and came back to, token by token against one that was read as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from agentmem.models.attached import AttachedModel
from agentmem.models.engine import Engine
from agentmem.models.forward import Forward
from agentmem.models.kv_selftest import self_test
from agentmem.models.prompt_ids import Entry
from agentmem.models.segment_cache import SegmentCache
from agentmem.models.segment_window import SegmentWindow
from agentmem.models.text_prefill import PrefixWindow

NUM_TOKENS = 32
_TEXTS = (
    "My sister plays the cello in a small orchestra that meets in the old town hall.",
    "The code of the bike lock is written on a card in the drawer of the kitchen table.",
    "Yesterday I walked to the market and bought apples, bread and a piece of cheese.",
    "When the weather turns cold the birds come to the window and wait for the seeds.",
)


@dataclass(frozen=True, slots=True)
class KVProof:
    """What was found.

    Args:
        self_test_error: relative L2 of the logits, at worst.
        from_kv: greedy tokens from segments, dense.
        from_text: greedy tokens from text prefill.
    """

    self_test_error: float
    from_kv: tuple[int, ...]
    from_text: tuple[int, ...]

    @property
    def num_equal(self) -> int:
        """Tokens up to the first that differs."""
        pairs = zip(self.from_kv, self.from_text, strict=True)
        return next((i for i, (one, other) in enumerate(pairs) if one != other), NUM_TOKENS)


def prove(engine: Engine, attached: AttachedModel) -> KVProof:
    """Run both on a model; about a second on a small one.

    Args:
        engine: the model.
        attached: what makes its segments.

    Raises:
        Unsupported: it fails the self-test.
    """
    with engine.loaded.lock:
        error = self_test(attached)
    encode = engine.vocabulary.encoder.encode
    a, b, c, d = (Entry(key, tuple(encode("", text))) for key, text in enumerate(_TEXTS))
    forward = Forward(engine.loaded)
    segments = SegmentWindow(SegmentCache(attached), max_positions=engine.loaded.context_tokens)
    for entries in ([a, b, c], [a, c]):
        rest = segments.enter(entries, [], partial(forward.run, segments, max_tokens=0))
        if rest:
            forward.run(segments, rest, max_tokens=0)
    # The second one comes back without being read, to where it stood.
    from_kv = _reply(forward, segments, [a, b, c, d])
    from_text = _reply(forward, PrefixWindow(engine.loaded), [a, b, c, d])
    segments.close()
    return KVProof(error, from_kv, from_text)


def _reply(
    forward: Forward, window: SegmentWindow | PrefixWindow, entries: Sequence[Entry]
) -> tuple[int, ...]:
    """The greedy tokens that follow a prompt whose last part is new to the window."""
    unread = window.enter(entries, [], partial(forward.run, window, max_tokens=0))
    tokens: list[int] = []
    while len(tokens) < NUM_TOKENS:
        token_id = int(forward.run(window, unread, max_tokens=0).argmax())
        tokens.append(token_id)
        unread = [token_id]
    return tuple(tokens)
