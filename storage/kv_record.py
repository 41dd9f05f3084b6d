"""A segment's keys and values outside a window, with all that says whose they are.

A record is refused, never guessed at: another model, dtype, RoPE or page layout raises
`Unsupported`; tensors that do not fit what the record says of itself raise `StoreCorrupt`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentmem.errors import StoreCorrupt, Unsupported
from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.storage.kv_arena import PageArena
from agentmem.storage.kv_copies import HostCopy
from agentmem.storage.kv_format import num_pages_for


@dataclass(frozen=True, slots=True)
class KVRecord:
    """One segment's pages, layer by layer.

    Args:
        fingerprint: of the model, its dtype, its RoPE and the page layout.
        format: name of the format the pages are in.
        token_ids: the segment's tokens.
        context: content hashes of what was in the window when it was computed, in order.
        layers: for each layer (num_pages, page_nbytes), uint8; they may still be on their way to
            host memory.
        first_slot: of the first token in the first page; pages are a ring, and the last tokens may
            lie before it.
        content_hash: of `token_ids`.
    """

    fingerprint: str
    format: str
    token_ids: tuple[int, ...]
    context: tuple[str, ...]
    layers: Sequence[Tensor] = field(repr=False)
    content_hash: str
    first_slot: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens it holds."""
        return len(self.token_ids)

    @property
    def context_hash(self) -> str:
        """Of what was live when it was computed: equal contexts give equal keys and values."""
        return hashlib.sha256("".join(self.context).encode()).hexdigest()

    @property
    def nbytes(self) -> int:
        """Bytes of its pages, scales and padding included."""
        if isinstance(self.layers, HostCopy):
            return self.layers.nbytes
        return sum(pages.numel() for pages in self.layers)

    def check(self, fingerprint: str, arena: PageArena) -> None:
        """Refuse to be loaded where it does not belong.

        Raises:
            Unsupported: it is of another model, layout or format.
            StoreCorrupt: it contradicts itself.
        """
        if self.fingerprint != fingerprint:
            raise Unsupported(
                f"The KV record is of model {self.fingerprint[:12]}, this cache of model "
                f"{fingerprint[:12]}: read the text again instead."
            )
        if self.format != arena.format.name:
            raise Unsupported(f"The KV record is {self.format}, the arena {arena.format.name}.")
        if self.content_hash != hash_tokens(self.token_ids):
            raise StoreCorrupt("The KV record's tokens do not fit its content hash.")
        if not self.token_ids or len(self.layers) != len(arena.codecs):
            raise StoreCorrupt(
                f"The KV record has {self.num_tokens} tokens and {len(self.layers)} layers: "
                f"expected some tokens and {len(arena.codecs)} layers."
            )
        if not 0 <= self.first_slot < PAGE_TOKENS:
            raise StoreCorrupt(f"The KV record begins at slot {self.first_slot} of a page.")
        num_pages = num_pages_for(self.num_tokens)
        for index, (pages, codec) in enumerate(zip(self.layers, arena.codecs, strict=True)):
            expected = (num_pages, codec.page_nbytes)
            if tuple(pages.shape) != expected or pages.dtype != torch.uint8:
                raise StoreCorrupt(
                    f"Layer {index} of the KV record is {tuple(pages.shape)}, {pages.dtype}: "
                    f"expected {expected}, {torch.uint8}."
                )


def hash_tokens(token_ids: Sequence[int]) -> str:
    """The content hash of a run of tokens."""
    return hashlib.sha256(" ".join(map(str, token_ids)).encode()).hexdigest()
