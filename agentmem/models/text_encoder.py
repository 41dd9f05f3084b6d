"""Text to token ids in which only the template's own words can be control tokens.

A tokenizer reads `<|im_start|>` as one control token wherever it stands, also in what a user typed.
Here the frame of a message (`before`, `after`) may hold control tokens and its content may not:
whatever the content spells is encoded as the letters it is made of. Knows nothing of roles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from agentmem.errors import Unsupported

_ANCHOR = "\n"
"""Stands before a text while it is encoded, so that no word-start mark is put before it."""
_REPLACEMENT = "\ufffd"


class TextEncoder:
    """Encodes and decodes for one tokenizer.

    Args:
        tokenizer: a fast transformers tokenizer.
        template: its chat template; added tokens it names count as control tokens.

    Raises:
        Unsupported: the tokenizer is not one of the `tokenizers` library.
    """

    def __init__(self, tokenizer: Any, template: str = "") -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise Unsupported(
                "The tokenizer must be a fast one (tokenizer.json): "
                f"got {type(tokenizer).__name__}."
            )
        # A copy of our own: transformers switches truncation and splitting on the shared one.
        self._backend = Tokenizer.from_str(backend.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        added = self._backend.get_added_tokens_decoder()
        self.control_ids = frozenset(
            token_id
            for token_id, token in added.items()
            if (token.special or token.content in template) and not token.content.isspace()
        )
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        names = sorted((added[token_id].content for token_id in self.control_ids), key=len)
        self.control_pattern = re.compile("|".join(map(re.escape, reversed(names))) or r"(?!)")
        anchored, bare = self._raw(_ANCHOR + "a"), self._raw("a")
        self._needs_anchor = anchored[-len(bare) :] != bare
        self._anchor_ids = self._raw(_ANCHOR)
        self._missing_bytes = self._find_missing_bytes()

    @property
    def vocab_size(self) -> int:
        """Ids the tokenizer can produce, added tokens included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name, None if it is not one token."""
        token_id = self._backend.token_to_id(token)
        return None if token_id is None else int(token_id)

    def encode(self, before: str, content: str = "", after: str = "") -> list[int]:
        """Encode a message in its frame.

        Args:
            before: the template's words, control tokens allowed.
            content: what somebody wrote: never becomes a control token.
            after: the template's words, control tokens allowed.
        """
        content = self._spellable(without_surrogates(content))
        token_ids = self._anchored(before + content + after)
        if not content:
            return token_ids
        frame_ids = self._raw(before) + self._raw(after)
        if self._controls(token_ids) == self._controls(frame_ids):
            return token_ids
        head = self._anchored(before) if before else []
        tail = self._anchored(after) if after else []
        return head + self._encode_plain(content) + tail

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the ids, control tokens spelled out."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=False))

    def _spellable(self, content: str) -> str:
        """The text with U+FFFD for characters that have a byte the vocabulary lacks.

        Such a vocabulary drops the byte alone, and the character's other bytes are garbage.
        """
        encoded = content.encode("utf-8")
        if len(encoded.translate(None, self._missing_bytes)) == len(encoded):
            return content
        missing = set(self._missing_bytes)
        return "".join(
            _REPLACEMENT if missing.intersection(character.encode("utf-8")) else character
            for character in content
        )

    def _find_missing_bytes(self) -> bytes:
        if "ByteLevel" not in repr(self._backend.pre_tokenizer):
            return b""
        letters = enumerate(_byte_letters())
        return bytes(byte for byte, letter in letters if self.token_id(letter) is None)

    def _encode_plain(self, content: str) -> list[int]:
        token_ids = self._plain_ids(content)
        if not self._controls(token_ids):
            return token_ids
        # Some vocabularies hold a control token as an ordinary word too: break it in two.
        token_ids, start = [], 0
        for match in self.control_pattern.finditer(content):
            token_ids += self._plain_ids(content[start : match.start() + 1])
            start = match.start() + 1
        token_ids += self._plain_ids(content[start:])
        return [token_id for token_id in token_ids if token_id not in self.control_ids]

    def _plain_ids(self, text: str) -> list[int]:
        if not text:
            return []
        if self._needs_anchor:
            token_ids = list(self._plain.encode(_ANCHOR + text, add_special_tokens=False).ids)
            anchor_ids = list(self._plain.encode(_ANCHOR, add_special_tokens=False).ids)
            if token_ids[: len(anchor_ids)] == anchor_ids:
                return token_ids[len(anchor_ids) :]
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _plain(self) -> Tokenizer:
        """The tokenizer without its control tokens; built when somebody first spells one."""
        state = json.loads(self._backend.to_str())
        state["post_processor"] = None
        state["added_tokens"] = [
            token for token in state["added_tokens"] if token["id"] not in self.control_ids
        ]
        return Tokenizer.from_str(json.dumps(state))

    def _anchored(self, text: str) -> list[int]:
        if self._needs_anchor and text:
            token_ids = self._raw(_ANCHOR + text)
            if token_ids[: len(self._anchor_ids)] == self._anchor_ids:
                return token_ids[len(self._anchor_ids) :]
        return self._raw(text)

    def _raw(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def _controls(self, token_ids: Sequence[int]) -> list[int]:
        return [token_id for token_id in token_ids if token_id in self.control_ids]


def _byte_letters() -> list[str]:
    """The letters that stand for the 256 bytes in byte-level vocabularies, as GPT-2 chose them."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + others.index(byte)) for byte in range(256)]


def without_surrogates(text: str) -> str:
    """The text with `?` for lone surrogates, which no tokenizer takes."""
    return text.encode("utf-8", "replace").decode("utf-8")
