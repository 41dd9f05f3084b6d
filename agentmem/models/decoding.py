"""The loop that speaks: forward, choose, show; until something ends the reply.

Knows a window it may append to, the rules of the reply (`Options`, a grammar) and how ids become
text. Does not know what the prompt was made of, nor what becomes of the reply.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentmem.models.base import FinishReason, Options
from agentmem.models.forward import Cancelled, Forward, Window
from agentmem.models.grammar import Constraint
from agentmem.models.reply_text import Detokenizer, StopStrings, ThoughtSplitter
from agentmem.models.sampling import Sampler
from agentmem.models.text_encoder import TextEncoder

_CALL_STARTS = ("", "{", "<", "[")
"""What a tool call may begin with, in our form or a response template's."""


@dataclass(frozen=True)
class Vocabulary:
    """What a model's ids mean to a reader.

    Args:
        encoder: ids to text.
        stop_ids: end a reply, and are no part of it.
        stop_texts: the same for models without such ids.
        thought_ids: the markers around what the model thinks before it answers.
        mute_ids: control tokens that have no place in a reply; never spoken.
    """

    encoder: TextEncoder
    stop_ids: frozenset[int]
    stop_texts: tuple[str, ...] = ()
    thought_ids: tuple[int | None, int | None] = (None, None)
    mute_ids: frozenset[int] = frozenset()


class Decoding:
    """One reply as it comes into being.

    Attributes:
        token_ids: of the reply so far, thought included.
        text: what a reader may see of it, without stop string.
        thought: what the model thought.
        finish_reason: why it ended; None while it runs.
        prompt_tokens: tokens the model attended to when it began.
        is_prompt_read: the prompt is in the window whole.
        prefill_seconds, decode_seconds: wall-clock.
    """

    def __init__(
        self,
        forward: Forward,
        window: Window,
        options: Options,
        vocabulary: Vocabulary,
        constraint: Constraint | None = None,
        *,
        holds_calls: bool = False,
    ) -> None:
        self._forward = forward
        self._window = window
        self._options = options
        self._vocabulary = vocabulary
        self._constraint = constraint
        self._holds_calls = holds_calls
        self._sampler = Sampler(
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            repetition_penalty=options.repetition_penalty,
            seed=options.seed,
            mute_ids=sorted(vocabulary.mute_ids),
        )
        self._stops = StopStrings((*options.stop, *vocabulary.stop_texts))
        self._num_decided = 0
        self._marks = [(0, 0)]
        self._num_yielded = 0
        self.token_ids: list[int] = []
        self.text = ""
        self.thought = ""
        self.finish_reason: FinishReason | None = None
        self.prompt_tokens = 0
        self.is_prompt_read = False
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0

    def run(self, new_ids: Sequence[int]) -> Iterator[str]:
        """Read the end of the prompt and answer; yields the text as it becomes certain.

        Args:
            new_ids: ids of the prompt that are not in the window yet, at least one.

        Raises:
            BudgetExceeded: they do not fit.
        """
        self._forward.check(self._window.num_tokens, len(new_ids), self._options.max_tokens)
        self.prompt_tokens = self._window.num_tokens + len(new_ids)
        opens, closes = self._vocabulary.thought_ids
        spoken = [token_id for token_id in new_ids if token_id in (opens, closes)]
        self._thoughts = ThoughtSplitter(opens, closes, is_open=spoken[-1:] == [opens])
        # A few ids of context are enough to see whether the reply begins with a space.
        self._detokenizer = Detokenizer(self._vocabulary.encoder.decode, new_ids[-4:])
        started = time.perf_counter()
        try:
            yield from self._speak(list(new_ids))
            self.text += self._stops.flush()
        except Cancelled:
            self.finish_reason = "interrupted"
            self.text += self._stops.flush()
        finally:
            # Whoever closed the stream was shown all of `text`; what is held back stays untold.
            self.finish_reason = self.finish_reason or "interrupted"
            elapsed = time.perf_counter() - started
            self.decode_seconds = elapsed - self.prefill_seconds

    def pending(self) -> str:
        """Text of the finished reply that was not shown yet."""
        shown, self._num_yielded = self._num_yielded, len(self.text)
        return self.text[shown:]

    def spoken_ids(self) -> list[int] | None:
        """The ids whose text is exactly `text`, None where it was cut inside a token."""
        ends = [count for count, length in self._marks if length == len(self.text)]
        return self.token_ids[: ends[-1]] if ends else None

    def _speak(self, queue: list[int]) -> Iterator[str]:
        started = time.perf_counter()
        while True:
            for token_id in self._forced():
                queue.append(token_id)
                yield from self._take(token_id)
            if self._is_over(len(queue)):
                return
            logits = self._run(queue)
            queue = []
            if not self.is_prompt_read:
                self.prefill_seconds = time.perf_counter() - started
                self.is_prompt_read = True
            allowed = self._constraint.allowed(len(logits)) if self._constraint else None
            token_id = self._sampler.sample(logits, self.token_ids, allowed)
            if token_id in self._vocabulary.stop_ids:
                self.finish_reason = "stop"
                return
            if self._constraint:
                self._constraint.accept(token_id)
            queue.append(token_id)
            yield from self._take(token_id)

    def _run(self, token_ids: list[int]) -> NDArray[np.float32]:
        return self._forward.run(
            self._window,
            token_ids,
            max_tokens=self._options.max_tokens,
            cancelled=self._options.cancelled,
        )

    def _forced(self) -> list[int]:
        if self._constraint is None or self._stops.is_stopped:
            return []
        return self._constraint.forced()[: self._options.max_new_tokens - len(self.token_ids)]

    def _is_over(self, num_queued: int) -> bool:
        room = self._forward.room(self._window.num_tokens, self._options.max_tokens)
        if self._stops.is_stopped or (self._constraint and self._constraint.is_finished):
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self._options.max_new_tokens or num_queued > room:
            self.finish_reason = "length"
        return self.finish_reason is not None

    def _take(self, token_id: int) -> Iterator[str]:
        """Add an id to the reply; yields the text it makes certain."""
        self.token_ids.append(token_id)
        if not self._thoughts.is_marker(token_id):
            is_shown = token_id not in self._vocabulary.encoder.special_ids
            piece = self._detokenizer.push(token_id) if is_shown else ""
            thought, answer = self._thoughts.split(piece)
            self.thought += thought
            self._num_decided += len(answer)
            self.text += self._stops.push(answer)
        if not self._detokenizer.is_holding:
            self._marks.append((len(self.token_ids), self._num_decided))
        if self._holds_calls and self.text.lstrip()[:1] in _CALL_STARTS:
            # It may be a call: that is no text.
            return
        if piece := self.pending():
            yield piece
