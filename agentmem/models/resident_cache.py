"""Which segments are in a window, in which pages, and what they take: read, not changed.

Residents lie dense or packed, each format in an arena of its own; what the device has no room for
lies in host memory, in the window all the same (see kv_places.py). A segment may be kept in another
format than the cache's: a smaller one is made of what there is, a larger one needs a forward.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

from agentmem.errors import SegmentNotFound
from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.models.attached import AttachedModel
from agentmem.models.kv_formats import make_format
from agentmem.models.kv_tail import TailCache, plain_tensors
from agentmem.models.kv_window import Resident, WindowView
from agentmem.segment import Precision
from agentmem.storage.kv_arena import PageArena
from agentmem.storage.kv_parking import Parking
from agentmem.storage.kv_places import Places

Residence = Literal["live", "compressed", "parked"]


class ResidentCache(TailCache):
    """A window of sealed segments under an open tail, as one looks at it.

    Args:
        attached: the model it belongs to.
        format: what segments are packed into, a name in `kv_formats`; "dense" packs nothing.
        parking: where segments that leave the window are kept; by default 32 MiB of its own.
        kv_bytes: of the window's sealed segments on the model's device, spare pages included; what
            exceeds them lies in host memory and is streamed at every forward. 0: no ceiling. The
            open tail, and two tiles of 4,096 tokens of one layer while streaming, come on top.
        evidence_turns: turns whose queries count in `attention_mass`.
    """

    def __init__(
        self,
        attached: AttachedModel,
        format: str = "dense",
        *,
        parking: Parking | None = None,
        kv_bytes: int = 0,
        evidence_turns: int = 4,
    ) -> None:
        super().__init__(attached, evidence_turns)
        self.format = format
        self.parking = Parking() if parking is None else parking
        with plain_tensors():
            self._dense = PageArena(make_format("dense", attached), attached.shapes, self._device)
            self._packed = (
                self._dense
                if format == "dense"
                else PageArena(make_format(format, attached), attached.shapes, self._device)
            )
            self._places = Places(tuple(dict.fromkeys((self._dense, self._packed))), kv_bytes)
        self._arenas = {"dense": self._dense, format: self._packed}
        """By the format's name in `kv_formats`; shared with forks."""
        self._precisions: dict[Hashable, Precision] = {}
        self._view: WindowView | None = None

    @property
    def packed_format(self) -> str:
        """Of what `compress` packs into, with its parameters: equal names read each other."""
        return self._packed.format.name

    def keep_as(self, key: Hashable, precision: Precision | None) -> None:
        """Say which format a segment is to be packed into; None is the cache's own.

        Where it lies in a larger one by then, `compress` packs it anew; where it lies in a smaller
        one, it is among `too_coarse`. Two formats of one size are as good as each other.

        Raises:
            Unsupported: the format cannot hold the model's layers.
        """
        if precision is None:
            self._precisions.pop(key, None)
        else:
            self._arena(precision)
            self._precisions[key] = precision

    @property
    def too_coarse(self) -> tuple[Hashable, ...]:
        """Segments in the window of which less is left than there should be: to be read anew."""
        return tuple(
            key
            for key, resident in self._residents.items()
            if resident.block.arena.page_nbytes < self._wanted(key).page_nbytes
        )

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """Keys of the segments in the window, in order of position."""
        return tuple(sorted(self._residents, key=lambda key: self._residents[key].start))

    @property
    def num_tokens(self) -> int:
        """Tokens in the window, open tail included."""
        return self._tail_length + sum(r.num_tokens for r in self._residents.values())

    @property
    def nbytes(self) -> int:
        """Bytes held for tokens in the window: codes, scales and padding, open tail included."""
        itemsize = self.attached.dtype.itemsize
        tail = self._tail_length * self.dense_bytes_per_token // 2 * itemsize
        return tail + self._places.nbytes_of(one.block for one in self._residents.values())

    @property
    def host_nbytes(self) -> int:
        """Of `nbytes`, those in host memory because the device has no room for them."""
        blocks = (resident.block for resident in self._residents.values())
        return self._places.nbytes_of(blocks, in_host_memory=True)

    @property
    def dense_bytes_per_token(self) -> int:
        """Bytes a token takes in a dense bf16 cache."""
        return self.attached.dense_bytes_per_token

    def has(self, key: Hashable) -> bool:
        """Whether the segment can be in the window without a forward."""
        return key in self._residents or self.parking.has(key)

    def in_window(self, key: Hashable) -> bool:
        """Whether the segment is in the window."""
        return key in self._residents

    def states(self) -> dict[Hashable, Residence]:
        """Where each segment is: live (dense), compressed or parked."""
        states: dict[Hashable, Residence] = {key: "parked" for key in self.parking}
        for key, resident in self._residents.items():
            packed = resident.block.arena.format is not self._dense.format
            states[key] = "compressed" if packed else "live"
        return states

    def token_ids(self, key: Hashable) -> tuple[int, ...]:
        """The tokens of a segment in the window or parked.

        Raises:
            SegmentNotFound: it is neither.
        """
        if key in self._residents:
            return self._residents[key].token_ids
        token_ids = self.parking.token_ids(key)
        if token_ids is None:
            raise SegmentNotFound(f"No segment {key!r} in the window or parked.")
        return token_ids

    def start(self, key: Hashable) -> int:
        """Position of a segment's first token."""
        return self._resident(key).start

    def _resident(self, key: Hashable) -> Resident:
        resident = self._residents.get(key)
        if resident is None:
            raise SegmentNotFound(f"No segment {key!r} in the window.")
        return resident

    def _arena(self, name: str) -> PageArena:
        """Where segments of a format lie on the device."""
        if name not in self._arenas:
            with plain_tensors():
                shapes = self.attached.shapes
                arena = PageArena(make_format(name, self.attached), shapes, self._device)
            self._places.add(arena)
            self._arenas[name] = arena
        return self._arenas[name]

    def _wanted(self, key: Hashable) -> PageArena:
        return self._arena(self._precisions.get(key, self.format))

    def _first_slot(self, resident: Resident, arena: PageArena) -> int:
        """Where a segment is to begin in its first page: where the one before it ends.

        A function of the window alone, not of what lies where in memory: keys are rounded in
        another frame in another slot, and a session that is resumed must round as it would have.
        """
        before = [
            other
            for other in self._residents.values()
            if other.block.arena.format is arena.format and other.start < resident.start
        ]
        last = max(before, key=lambda other: other.start, default=None)
        return 0 if last is None else (last.block.first_slot + last.num_tokens) % PAGE_TOKENS

    def _window(self) -> WindowView:
        if self._view is not None and self._view.is_stale:
            # Rows moved under the mass gathered so far, but the old view still says whose it is.
            stale, self._view = self._view, None
            if self._num_observed:
                self._collect_from(stale)
        if self._view is None:
            with plain_tensors():
                self._places.tidy()
                self._view = WindowView(
                    self._residents,
                    self._places.arenas,
                    self.attached.frequencies,
                    self._device,
                )
        return self._view
