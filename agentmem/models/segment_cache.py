"""A transformers cache whose contents are addressed by segment.

Forwards append to an open tail; `seal` closes the tail as a segment. Segments can then be dropped,
parked, brought back, moved and packed without a forward: keys are stored rotated by their offset in
their stretch of four pages alone, so a segment's place is one integer. Attention masks by position,
so a segment can also be written in the middle.

For one conversation on one thread: a batch of one, no beam search. Knows nothing of texts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch

from agentmem.errors import InvalidInput, SegmentNotFound
from agentmem.models.kv_encoding import packed_pages, tail_pages
from agentmem.models.kv_tail import plain_tensors
from agentmem.models.kv_window import Resident
from agentmem.models.resident_cache import ResidentCache
from agentmem.segment import PRECISIONS
from agentmem.storage.kv_arena import Block, PageArena
from agentmem.storage.kv_copies import to_host
from agentmem.storage.kv_parking import Parking
from agentmem.storage.kv_places import with_room
from agentmem.storage.kv_record import KVRecord, hash_tokens


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """What a new layout did: keys brought back from parking, keys that left the window."""

    restored: tuple[Hashable, ...] = ()
    parked: tuple[Hashable, ...] = ()


class SegmentCache(ResidentCache):
    """Keys and values of one conversation, by segment; arguments as `ResidentCache`."""

    def seal(
        self,
        key: Hashable,
        num_tokens: int | None = None,
        *,
        token_ids: Sequence[int] | None = None,
    ) -> None:
        """Close the first tokens of the open tail as a segment.

        Args:
            key: what to call it; must be new to the window. A parked segment of that key is
                replaced.
            num_tokens: how many; None means the whole tail.
            token_ids: the tokens, where no one told the cache (`note_tokens`).

        Raises:
            InvalidInput: the key is taken, or the tail does not hold such tokens.
            DeviceFull: there is no memory for it; the tail is as before.
        """
        count = self._tail_length if num_tokens is None else num_tokens
        if key in self._residents:
            raise InvalidInput(f"Segment {key!r} is in the window already: drop it first.")
        if not 0 < count <= self._tail_length:
            raise InvalidInput(
                f"A segment needs 1 to {self._tail_length} tokens, the tail's length: got {count}."
            )
        ids = tuple(self._tail_ids[:count] if token_ids is None else token_ids)
        if len(ids) != count:
            raise InvalidInput(
                f"Segment {key!r} has {count} tokens, but {len(ids)} token ids are known: pass "
                "`token_ids`."
            )
        self._collect()
        assert self._tail_start is not None
        start = self._tail_start
        block = with_room(lambda: self._sealed(key, count), self.make_room)
        context = tuple(
            hash_tokens(self._residents[other].token_ids)
            for other in self.keys
            if self._residents[other].start < start
        )
        self.parking.forget(key)
        self._residents[key] = Resident(start, ids, block, context)
        self._evidence.forget(key)
        self._evidence.add(key, float(self._tail_mass[:count].sum()), self._tail_observed)
        self._view = None
        if count == self._tail_length:
            self._reset_tail()
            return
        self._tail_start += count
        self._tail_begin += count
        self._tail_length -= count
        self._tail_mass = self._tail_mass[count:]
        del self._tail_ids[:count]

    def layout(self, places: Sequence[tuple[Hashable, int]]) -> LayoutChange:
        """Make the window exactly these segments at exactly these positions.

        Segments move by changing one integer; parked ones come back; those not listed are parked.
        Nothing changes where an error is raised.

        Args:
            places: key and position of the first token, any order.

        Raises:
            SegmentNotFound: a key is neither in the window nor parked.
            InvalidInput: a key twice, an overlap, a negative position, or an open tail.
            Unsupported, StoreCorrupt: a parked record does not belong here.
            DeviceFull: there is no memory for what comes back.
        """
        if self._tail_length:
            raise InvalidInput(
                f"The tail holds {self._tail_length} tokens: seal or discard it before `layout`."
            )
        wanted = dict(places)
        if len(wanted) != len(places):
            raise InvalidInput("A segment stands at one place: a key is listed twice.")
        records = {key: self._record(key) for key in wanted if key not in self._residents}
        lengths = {
            key: records[key].num_tokens if key in records else self._residents[key].num_tokens
            for key in wanted
        }
        _check_places([(key, start, lengths[key]) for key, start in places])
        self._collect()
        leaving = tuple(key for key in self.keys if key not in wanted)
        blocks = {key: self._load(record) for key, record in records.items()}
        for key in leaving:
            self.park(key)
        for key, start in places:
            if key in blocks:
                record = records[key]
                self._residents[key] = Resident(
                    start, record.token_ids, blocks[key], record.context
                )
                self.parking.forget(key)
            else:
                self._residents[key].start = start
        self._reset_tail()
        self._view = None
        return LayoutChange(tuple(records), leaving)

    def drop(self, key: Hashable) -> None:
        """Delete a segment's keys and values from the window and from parking.

        Raises:
            SegmentNotFound: it is in neither.
        """
        self._collect()
        parked = self.parking.forget(key)
        if self._residents.pop(key, None) is None and not parked:
            raise SegmentNotFound(f"No segment {key!r} in the window or parked.")
        self._evidence.forget(key)
        self._view = None

    def park(self, key: Hashable) -> KVRecord:
        """Take a segment out of the window and file its record in `parking`.

        Raises:
            SegmentNotFound: it is not in the window.
        """
        resident = self._resident(key)
        self._collect()
        with plain_tensors():
            layers = to_host(resident.block.arena.load(resident.block))
        record = KVRecord(
            fingerprint=self.attached.fingerprint,
            format=resident.block.arena.format.name,
            token_ids=resident.token_ids,
            context=resident.context,
            layers=layers,
            content_hash=hash_tokens(resident.token_ids),
            first_slot=resident.block.first_slot,
        )
        self.parking.put(key, record)
        del self._residents[key]
        self._view = None
        return record

    def restore(self, key: Hashable, start: int, record: KVRecord | None = None) -> None:
        """Bring a segment back into the window, without a forward.

        Args:
            key: what it is called.
            start: position of its first token.
            record: its keys and values; by default what is parked under the key.

        Raises:
            SegmentNotFound: nothing is parked under the key.
            InvalidInput: the key is in the window, or the place is taken.
            Unsupported, StoreCorrupt: the record does not belong here.
            DeviceFull: there is no memory for it.
        """
        if key in self._residents:
            raise InvalidInput(f"Segment {key!r} is in the window already: move it with `layout`.")
        record = self._record(key) if record is None else record
        places = [(other, r.start, r.num_tokens) for other, r in self._residents.items()]
        if self._tail_start is not None and self._tail_length:
            places.append(("the open tail", self._tail_start, self._tail_length))
        _check_places([*places, (key, start, record.num_tokens)])
        self._collect()
        block = self._load(record)
        self._residents[key] = Resident(start, record.token_ids, block, record.context)
        self.parking.forget(key)
        self._view = None

    def compress(self, key: Hashable) -> bool:
        """Pack a segment into the format it is to be kept in, in place.

        Returns:
            Whether it was packed now: False where it takes no more than that format already.

        Raises:
            DeviceFull: there is no memory for the packed pages.
        """
        resident = self._resident(key)
        packed = self._wanted(key)
        if resident.block.arena.page_nbytes <= packed.page_nbytes:
            return False
        self._collect()
        first_slot = self._first_slot(resident, packed) if packed.shares_pages else 0

        def pack() -> Block:
            with plain_tensors():
                encoded = packed_pages(
                    self.layers, packed, self.attached.frequencies, resident.block, first_slot
                )
                return self._places.store(packed, resident.num_tokens, encoded, first_slot)

        resident.block = with_room(pack, self.make_room)
        self._view = None
        return True

    def make_room(self) -> bool:
        """Move some of the window from the device to host memory, after the device ran out.

        Where host memory runs out too, what is parked in it moves down to the disk first, if there
        is one.

        Returns:
            False where nothing was left to move.

        Raises:
            OutOfMemoryError: of torch: host memory ran out again.
        """
        try:
            return self._places.make_room()
        except torch.OutOfMemoryError:
            if self.parking.disk is None:
                raise
            self.parking.flush()
        return self._places.make_room()

    def _sealed(self, key: Hashable, count: int) -> Block:
        """The first tokens of the tail as a dense block."""
        assert self._tail_start is not None
        with plain_tensors():
            encoded = tail_pages(
                self.layers, self._dense, self.attached.frequencies, key=key,
                start=self._tail_start, tokens=slice(self._tail_begin, self._tail_begin + count),
            )  # fmt: skip
            return self._places.store(self._dense, count, encoded)

    def fork(self) -> SegmentCache:
        """A cache of its own that starts equal: blocks by reference, the open tail copied.

        What either does afterwards, the other never sees.
        """
        self._collect()
        other = self._beside(self.parking.copy())
        other._residents = {key: replace(r) for key, r in self._residents.items()}
        other._evidence = self._evidence.copy()
        begin, end = self._tail_begin, self._tail_begin + self._tail_length
        with plain_tensors():
            for mine, theirs in zip(self.layers, other.layers, strict=True):
                theirs.copy_tail(mine, begin, end)
        other._tail_start = self._tail_start
        other._tail_length = self._tail_length
        other._tail_ids = list(self._tail_ids)
        other._tail_mass = self._tail_mass.clone()
        other._tail_observed = self._tail_observed
        return other

    def beside(self) -> SegmentCache:
        """An empty cache over the same pages, which can `borrow` segments of this one."""
        return self._beside(Parking(0))

    def borrow(self, key: Hashable, lender: SegmentCache) -> None:
        """Take a segment of another window into this one, by reference, behind all that is here.

        Args:
            key: a segment in the lender's window; new to this one.
            lender: this cache is `beside` it, or it beside this one.

        Raises:
            SegmentNotFound: it is not in the lender's window.
            InvalidInput: the key is taken, or the caches share no pages.
        """
        if key in self._residents:
            raise InvalidInput(f"Segment {key!r} is in the window already.")
        if lender._places is not self._places:
            raise InvalidInput(f"Segment {key!r} lies in pages of another model or format.")
        resident = replace(lender._resident(key), start=self.next_position)
        self._collect()
        self._residents[key] = resident
        self._view = None

    def reset(self) -> None:
        """Empty the window; parked segments stay."""
        self.discard_tail()
        self._residents = {}
        self._view = None

    def _beside(self, parking: Parking) -> SegmentCache:
        other = SegmentCache(self.attached, parking=parking)
        other.format = self.format
        other._dense, other._packed, other._places = self._dense, self._packed, self._places
        other._arenas, other._precisions = self._arenas, dict(self._precisions)
        return other

    def _record(self, key: Hashable) -> KVRecord:
        record = self.parking.get(key)
        if record is None:
            raise SegmentNotFound(f"No segment {key!r} in the window or parked.")
        return record

    def _arena_of(self, record: KVRecord) -> PageArena:
        """Where a record belongs: its format may be one that no segment here has yet."""
        for arena in self._arenas.values():
            if arena.format.name == record.format:
                return arena
        name = record.format.partition(":")[0]
        return self._arena(name) if name in PRECISIONS else self._dense

    def _load(self, record: KVRecord) -> Block:
        arena = self._arena_of(record)
        record.check(self.attached.fingerprint, arena)

        def load() -> Block:
            with plain_tensors():
                return self._places.store(
                    arena, record.num_tokens, record.layers, record.first_slot
                )

        return with_room(load, self.make_room)


def _check_places(places: Sequence[tuple[Hashable, int, int]]) -> None:
    """Refuse negative and overlapping places, given as key, start, number of tokens."""
    ordered = sorted(places, key=lambda place: place[1])
    if ordered and ordered[0][1] < 0:
        raise InvalidInput(f"A position must not be negative: got {ordered[0][1]}.")
    for (key, start, num_tokens), (other, other_start, _) in zip(
        ordered, ordered[1:], strict=False
    ):
        if other_start < start + num_tokens:
            raise InvalidInput(
                f"Segment {other!r} at {other_start} overlaps {key!r}, which ends at "
                f"{start + num_tokens - 1}."
            )
