"""What a message asks of memory: its floor for recall depends on it.

A question about the speaker's own world ("What is my locker code?", "When does Anna arrive?") can
only be answered from memory; any other question may be; a statement seldom needs it. The words are
looked for in the sentences that ask, not in the chatter around them. It reads one text and no
memory.
"""

from __future__ import annotations

import re
from typing import Literal

from agentmem.wording.sentences import sentences_of

Need = Literal["own", "open", "none"]
"""`own`: about the speaker's world; `open`: any other question; `none`: no question."""

_ASKS = re.compile(
    r"[?？؟]|^\W*(?:remind me|tell me|do you remember)\b"
    # "When a pipe leaks, we call Derek." and "What I drive is a Panda." tell.
    r"|^\W*(?:when|where)(?:['’]|\s+(?:do|does|did|is|are|was|were|am|will|can|could|should|shall"
    r"|would|has|have|had|must)\b|\W*$)"
    r"|^\W*(?:what|which|who|whose|how)\b(?!\s+(?:i|we|he|she|they)\b)"
    r"|什么|哪|谁|多少|吗|何|誰|ですか",
    re.IGNORECASE,
)
_OWN = re.compile(
    r"\b(?:my|mine|i|we|our|ours|us|mein\w*|unser\w*|ich|mon|ma|mes|notre|nos|je|mi|mis|nuestr\w*|yo"
    r"|mio|mia|nostr\w*|meu|minha|mijn|ik)\b",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]+|\b[A-Z][a-z]+['’]s\b")
_LATIN = re.compile(r"[A-Za-z]")


def only_asks(text: str) -> bool:
    """Whether every sentence of a text asks: such a text tells nothing."""
    sentences = sentences_of(text)
    return bool(sentences) and all(_ASKS.search(sentence) for sentence in sentences)


def asks(text: str) -> bool:
    """Whether any sentence of a text asks."""
    return need_of(text) != "none"


def need_of(text: str) -> Need:
    """What a message asks of memory, by its sentences that ask."""
    asking = [sentence for sentence in sentences_of(text) if _ASKS.search(sentence)]
    if not asking:
        return "none"
    if any(_OWN.search(s) or _NAME.search(s) or not _LATIN.search(s) for s in asking):
        return "own"
    return "open"
