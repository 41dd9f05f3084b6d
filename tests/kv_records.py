"""Small KV records for tests of the places they live in."""

from __future__ import annotations

import torch

from agentmem.storage.kv_record import KVRecord, hash_tokens


def record(
    num_tokens: int = 16, *, seed: int = 0, page_nbytes: tuple[int, ...] = (96, 40)
) -> KVRecord:
    """A record of random bytes; its layers differ in size."""
    generator = torch.Generator().manual_seed(seed)
    num_pages = -(-num_tokens // 16)
    token_ids = tuple(range(seed, seed + num_tokens))
    return KVRecord(
        fingerprint="a model",
        format="q8",
        token_ids=token_ids,
        context=("what was before", f"and {seed}"),
        layers=tuple(
            torch.randint(0, 256, (num_pages, nbytes), generator=generator, dtype=torch.uint8)
            for nbytes in page_nbytes
        ),
        content_hash=hash_tokens(token_ids),
    )


def same(one: KVRecord | None, other: KVRecord) -> bool:
    """Whether two records are the same, bit by bit."""
    if one is None or len(one.layers) != len(other.layers):
        return False
    facts = ("fingerprint", "format", "token_ids", "context", "content_hash")
    return all(getattr(one, fact) == getattr(other, fact) for fact in facts) and all(
        torch.equal(mine, theirs) for mine, theirs in zip(one.layers, other.layers, strict=True)
    )
