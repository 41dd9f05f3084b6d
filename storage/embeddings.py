"""Vectors in SQL, one per segment and embedding space: little-endian float32 with their SHA-256.

A space is one model, revision and dimension under one name; vectors of two spaces never meet.
Vectors are checked at this boundary, because FAISS takes NaN, Inf and double ids without a word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, delete, insert, select

from agentmem.errors import InvalidInput, StoreError
from agentmem.storage import faults
from agentmem.storage.ids import as_ids, portions
from agentmem.storage.schema import AnySelect, embeddings, segments, spaces
from agentmem.storage.segments import FORGOTTEN, select_segments
from agentmem.storage.text import check_name

_EPSILON = 1e-6
"""A vector shorter than this has no direction."""

Matrix = NDArray[np.float32]


_insert = insert(embeddings)
_replaced = delete(embeddings).where(
    embeddings.c.space_id == bindparam("space"), embeddings.c.segment_id == bindparam("segment")
)
_find_space = select(spaces.c.id, spaces.c.dim).where(spaces.c.name == bindparam("name"))


def check_vector(vector: NDArray[Any], dim: int | None = None) -> Matrix:
    """The vector, if it has a direction: float32, shape (dim,), finite, longer than 1e-6.

    Raises:
        InvalidInput: saying which of these it is not.
    """
    if not isinstance(vector, np.ndarray) or vector.dtype != np.float32 or vector.ndim != 1:
        got = f"{getattr(vector, 'dtype', type(vector).__name__)} {getattr(vector, 'shape', '')}"
        raise InvalidInput(f"A vector must be a float32 array of shape (dim,): got {got}.")
    if dim is not None and vector.shape[0] != dim:
        raise InvalidInput(f"A vector of this space has {dim} numbers: got {vector.shape[0]}.")
    # In float64: the sum of squares of large float32 numbers overflows.
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    if not np.isfinite(norm) or norm <= _EPSILON:
        raise InvalidInput(f"A vector must be finite and not zero: got one of length {norm}.")
    return vector


def find_space(connection: Connection, name: str) -> tuple[int, int] | None:
    """Id and dimension of a space; None where no vector was stored in it."""
    row = connection.execute(_find_space, {"name": name}).first()
    return None if row is None else (row[0], row[1])


def check_dim(name: str, dim: int, wanted: int) -> None:
    """Refuse vectors of another dimension than the space has.

    Raises:
        StoreError: naming both dimensions.
    """
    if dim != wanted:
        raise StoreError(
            f"The embedding space {name!r} has {dim} dimensions, this embedder gives {wanted}. "
            "Use the embedder it was made with, or another name for the space."
        )


def add(connection: Connection, space: str, segment_id: int, vector: NDArray[Any]) -> None:
    """Store the vector of a segment, replacing an older one. The first fixes the dimension."""
    dim = check_vector(vector).shape[0]
    found = find_space(connection, space)
    if found is None:
        values: dict[str, Any] = {"name": check_name(space, "An embedding space"), "dim": dim}
        key = connection.execute(insert(spaces).values(values)).inserted_primary_key
        assert key is not None
        found = (int(key[0]), dim)
    space_id, known = found
    check_dim(space, known, dim)
    blob = vector.astype("<f4").tobytes()
    connection.execute(_replaced, {"space": space_id, "segment": segment_id})
    values = {
        "space_id": space_id,
        "segment_id": segment_id,
        "vector": blob,
        "sha256": hashlib.sha256(blob).digest(),
    }
    connection.execute(_insert, values)


def remove(connection: Connection, segment_id: int) -> None:
    """Delete a segment's vectors of all spaces."""
    connection.execute(delete(embeddings).where(embeddings.c.segment_id == segment_id))


def load(
    connection: Connection, user_id: int, space: str, ids: Sequence[int] | None
) -> tuple[NDArray[np.int64], Matrix]:
    """Vectors of a user's segments, by id; those without one are left out.

    Returns:
        ids: (n,), int64, ascending.
        vectors: (n, dim), float32; (0, 0) where the space is unknown.

    Raises:
        StoreCorrupt: a vector is not what was stored.
    """
    found = find_space(connection, space)
    if found is None:
        return np.zeros(0, np.int64), np.zeros((0, 0), np.float32)
    space_id, dim = found
    query = (
        select(embeddings.c.segment_id, embeddings.c.vector, embeddings.c.sha256)
        .join(segments, segments.c.id == embeddings.c.segment_id)
        .where(
            embeddings.c.space_id == space_id,
            segments.c.user_id == user_id,
            segments.c.state != FORGOTTEN,
        )
        .order_by(embeddings.c.segment_id)
    )
    if ids is None:
        rows = connection.execute(query).all()
    else:
        rows = [
            row
            for portion in portions(sorted(set(as_ids(ids))))
            for row in connection.execute(query.where(embeddings.c.segment_id.in_(portion)))
        ]
    for segment_id, blob, digest in rows:
        if len(blob) != dim * 4 or hashlib.sha256(blob).digest() != digest:
            reason = f"the vector of segment {segment_id} in {space!r} is not what was stored"
            raise faults.corrupt(faults.path_of(connection), reason)
    vectors = np.frombuffer(b"".join(row[1] for row in rows), dtype="<f4").reshape(-1, dim)
    return np.array([row[0] for row in rows], np.int64), vectors.astype(np.float32)


def pending(user_id: int, space_id: int | None, after: int) -> AnySelect:
    """A user's searchable segments above id `after` without a vector in the space, by id."""
    query = (
        select_segments(user_id)
        .where(segments.c.searchable == 1, segments.c.id > after)
        .order_by(segments.c.id)
    )
    if space_id is None:
        return query
    has_one = select(embeddings.c.segment_id).where(
        embeddings.c.space_id == space_id, embeddings.c.segment_id == segments.c.id
    )
    return query.where(~has_one.exists())
