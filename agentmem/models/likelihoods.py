"""How likely each of a few answers is, read off the logits: nothing is spoken.

Examples stand in a window of their own, read once and kept. Every part is weighed alone behind
them: its KV is borrowed from the conversation's window where it is there, so that only what asks
for the reply is read, a handful of tokens. Knows nothing of what is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from agentmem.errors import InvalidInput
from agentmem.models.base import Options, Part
from agentmem.models.engine import Engine
from agentmem.models.forward import Cancelled, Forward
from agentmem.models.prompt_ids import PromptIds
from agentmem.models.segment_window import SegmentWindow
from agentmem.models.text_prefill import PrefixWindow


class Likelihoods:
    """Weighs answers for one conversation.

    Args:
        engine: the model.
        forward: its forwards, counted with those of the conversation.
        window: the conversation's; it is never changed.
    """

    def __init__(
        self, engine: Engine, forward: Forward, window: SegmentWindow | PrefixWindow
    ) -> None:
        self._engine = engine
        self._forward = forward
        self._lender = window
        self._window: SegmentWindow | PrefixWindow | None = None

    def weigh(
        self,
        ids: PromptIds,
        examples: Sequence[Part],
        parts: Sequence[Part],
        answers: Sequence[str],
        options: Options,
    ) -> Iterator[tuple[float, ...]]:
        """Log-probabilities of the answers for each part; arguments as `ChatModel.weigh`.

        Args:
            ids: of the conversation's parts; left as it is.
        """
        answer_ids = self._first_ids(answers)
        window = self._opened()
        header = ids.reply_header()
        ids = ids.copy()
        ids.remember(examples, ids.entries(examples))
        read = partial(
            self._forward.run,
            window,
            max_tokens=options.max_tokens,
            cancelled=options.cancelled,
        )
        try:
            for part in parts:
                entries = ids.entries([*examples, part])
                if isinstance(window, SegmentWindow) and isinstance(self._lender, SegmentWindow):
                    window.borrow(part.key, self._lender)
                yield _among(read(window.enter(entries, header, read)), answer_ids)
        except Cancelled:
            return
        finally:
            # What was borrowed may be forgotten later: nothing but examples stays.
            if isinstance(window, SegmentWindow):
                window.settle(0)
                window.keep_only({part.key for part in examples})

    def close(self) -> None:
        """Free the examples."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def _opened(self) -> SegmentWindow | PrefixWindow:
        if self._window is None:
            lender = self._lender
            self._window = (
                lender.beside()
                if isinstance(lender, SegmentWindow)
                else PrefixWindow(self._engine.loaded)
            )
        return self._window

    def _first_ids(self, answers: Sequence[str]) -> list[int]:
        encode = self._engine.vocabulary.encoder.encode
        first = {answer: encode("", answer)[0] for answer in answers}
        if len(set(first.values())) < len(answers):
            raise InvalidInput(
                "Answers must differ in their first token, which is all that is read: got "
                f"{', '.join(answers)}."
            )
        return list(first.values())


def _among(logits: NDArray[np.float32], token_ids: Sequence[int]) -> tuple[float, ...]:
    """Log-probabilities of tokens where one of them must come."""
    some = logits[list(token_ids)].astype(np.float64)
    return tuple((some - np.logaddexp.reduce(some)).tolist())
