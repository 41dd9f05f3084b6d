"""The one normalizer of text, for the edge where text enters: from users, tools, models, files.

Everything else is kept as it is: no Unicode normalization, no trimming. Two things cannot be stored
everywhere and are replaced: lone surrogates (not Unicode text) become U+FFFD, NUL becomes U+2400.
"""

from __future__ import annotations

import re

from agentmem.errors import InvalidInput

_SURROGATE = re.compile("[\ud800-\udfff]")


def normalize_text(text: str) -> str:
    """The text as the store keeps it; one without lone surrogates and NUL comes back as it is."""
    if text.isascii():
        return text.replace("\0", "\u2400")
    return _SURROGATE.sub("\ufffd", text).replace("\0", "\u2400")


def check_text(text: str, what: str) -> str:
    """Return the text if the store can keep it as it is.

    Raises:
        InvalidInput: it is not a str, or holds NUL or a lone surrogate; `what` names it.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"{what} must be a str: got {type(text).__name__}.")
    if "\0" in text or (not text.isascii() and _SURROGATE.search(text)):
        raise InvalidInput(
            f"{what} must hold neither NUL nor lone surrogates: got {ascii(text[:80])}. "
            "Pass it through `normalize_text` first."
        )
    return text


def check_name(name: str, what: str) -> str:
    """Return a name of a user, session, turn or embedding space if it can be one.

    Raises:
        InvalidInput: it is empty, longer than 1024 characters, or not text the store can keep.
    """
    check_text(name, what)
    if not name or len(name) > 1024:
        raise InvalidInput(f"{what} must have 1 to 1024 characters: got {len(name)}.")
    return name
