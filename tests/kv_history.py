"""A random history of operations on a segment cache, compared with the oracle wherever it reads."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from agentmem.kernels.page_table import STRETCH_TOKENS
from agentmem.kernels.rotary import as_channels, ordered_pairs, unit_rotations
from agentmem.models.attached import AttachedModel
from agentmem.models.kv_formats import make_format
from agentmem.models.segment_cache import SegmentCache
from agentmem.storage.kv_format import num_pages_for, phases_of
from tests.kv_oracle import Oracle

MAX_WINDOW_TOKENS = 160


class Branch:
    """One cache and its oracle, kept in step."""

    def __init__(self, cache: SegmentCache, oracle: Oracle, lengths: dict[int, int]) -> None:
        self.cache, self.oracle = cache, oracle
        self.lengths = lengths
        """Every segment ever sealed."""
        self.places = {key: cache.start(key) for key in lengths if cache.in_window(key)}

    def layout(self, places: dict[int, int]) -> None:
        """Make both windows these segments at these places."""
        self.cache.layout(list(places.items()))
        for key in self.places.keys() - places.keys():
            self.oracle.hide(key)
        for key, start in places.items():
            self.oracle.show(key, start)
        self.places = dict(places)

    def contiguous(self, order: list[int], gap: int, first: int = 0) -> dict[int, int]:
        """Places for segments in this order, `gap` tokens apart."""
        places = {}
        for key in order:
            places[key] = first
            first += self.lengths[key] + gap
        return places

    def order(self) -> list[int]:
        return sorted(self.places, key=lambda key: self.places[key])


class History:
    """Applies random operations and compares logits whenever tokens are read."""

    def __init__(
        self,
        attached: AttachedModel,
        oracle: Oracle,
        *,
        seed: int,
        text: list[int],
        max_tokens: int,
        appends: int = 3,
        format: str = "dense",
    ) -> None:
        self.attached = attached
        self.format = format
        """What segments are packed into, now and then."""
        self.random = random.Random(seed)
        self.text = text
        """Tokens to read from, in order and around again."""
        self.max_tokens = max_tokens
        self.appends = appends
        """How much likelier appending is than any other operation."""
        self.branches = [Branch(SegmentCache(attached, format), oracle, {})]
        self.next_key = 0
        self.worst = self.worst_next = 0.0
        """Largest relative error of any logit vector, and of those of a forward's last token."""
        self.compared = 0
        self.worst_code = 0.0
        """Largest error of any packed channel, over what the format allows."""
        self.done: dict[str, int] = {}

    def run(self, num_operations: int) -> None:
        operations = [
            *[self.append] * self.appends, self.drop, self.restore, self.move, self.summarize,
            self.insert, self.fork,
        ]  # fmt: skip
        if self.format != "dense":
            operations.append(self.pack)
        while sum(self.done.values()) < num_operations:
            operation = self.random.choice(operations)
            branch = self.random.choice(self.branches)
            self.make_room(branch)
            if operation(branch):
                name = operation.__name__
                self.done[name] = self.done.get(name, 0) + 1

    def make_room(self, branch: Branch) -> None:
        while sum(branch.lengths[key] for key in branch.places) > MAX_WINDOW_TOKENS:
            self.drop(branch)

    def read(self, branch: Branch, start: int, num_tokens: int) -> None:
        """Read new tokens at a place as one segment; every logit vector must be the oracle's."""
        key, self.next_key = self.next_key, self.next_key + 1
        self.text = self.text[num_tokens:] + self.text[:num_tokens]
        ids = self.text[-num_tokens:]
        branch.cache.begin(start)
        expected = branch.oracle.append(key, ids, start)
        # In one forward, or in two: the second one meets an open tail.
        cut = self.random.choice([0, 0, self.random.randrange(num_tokens)])
        found = [
            self.attached.forward(part, branch.cache, logits_to_keep=0)
            for part in (ids[:cut], ids[cut:])
            if part
        ]
        self.compare(torch.cat(found), expected)
        branch.cache.seal(key)
        branch.lengths[key] = num_tokens
        branch.places[key] = start

    def compare(self, found: Tensor, expected: Tensor) -> None:
        errors = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
        self.worst = max(self.worst, float(errors.max()))
        self.worst_next = max(self.worst_next, float(errors[-1]))
        self.compared += len(errors)

    def append(self, branch: Branch) -> bool:
        self.read(branch, branch.cache.next_position, self.random.randint(1, self.max_tokens))
        return True

    def drop(self, branch: Branch) -> bool:
        if not branch.places:
            return False
        key = self.random.choice(branch.order())
        branch.cache.park(key)
        branch.oracle.hide(key)
        del branch.places[key]
        return True

    def restore(self, branch: Branch) -> bool:
        away = [key for key in branch.lengths if key not in branch.places]
        if not away:
            return False
        key = self.random.choice(away)
        start = branch.cache.next_position + self.random.choice([0, 3])
        if self.random.random() < 0.5:
            branch.cache.restore(key, start)
            branch.oracle.show(key, start)
            branch.places[key] = start
        else:
            branch.layout(branch.contiguous(sorted([*branch.places, key]), 0))
        return True

    def move(self, branch: Branch) -> bool:
        if not branch.places:
            return False
        order = branch.order()
        if self.random.random() < 0.3:
            self.random.shuffle(order)
        gap, first = self.random.choice([(0, 0), (2, 0), (0, 137)])
        branch.layout(branch.contiguous(order, gap, first))
        return True

    def summarize(self, branch: Branch) -> bool:
        """A new segment in place of two or three neighbours, before what followed them."""
        order = branch.order()
        if len(order) < 3:
            return False
        first = self.random.randrange(len(order) - 1)
        replaced = order[first : first + self.random.choice([2, 3])]
        length = self.random.randint(2, 8)
        self.open_gap(branch, [key for key in order if key not in replaced], first, length)
        return True

    def insert(self, branch: Branch) -> bool:
        order = branch.order()
        if len(order) < 2:
            return False
        index = self.random.randrange(1, len(order))
        self.open_gap(branch, order, index, self.random.randint(1, self.max_tokens))
        return True

    def open_gap(self, branch: Branch, order: list[int], index: int, length: int) -> None:
        before = branch.contiguous(order[:index], 0)
        start = sum(branch.lengths[key] for key in before)
        after = branch.contiguous(order[index:], 0, start + length)
        branch.layout({**before, **after})
        self.read(branch, start, length)

    def fork(self, branch: Branch) -> bool:
        """Both live on, one operation at a time; then the other or this one is forgotten."""
        if len(self.branches) > 1:
            self.branches.remove(branch)
        else:
            copy = Branch(branch.cache.fork(), branch.oracle.fork(), dict(branch.lengths))
            self.branches.append(copy)
        return True

    def pack(self, branch: Branch) -> bool:
        """From here on the oracle has of a segment what its codes stand for."""
        states = branch.cache.states()
        live = [key for key in branch.order() if states[key] == "live"]
        if not live:
            return False
        key = self.random.choice(live)
        exact, offsets_before = self.stored(branch, key)
        assert branch.cache.compress(key)
        packed, offsets = self.stored(branch, key)
        for layer, (states_before, states_now) in enumerate(zip(exact, packed, strict=True)):
            # It may begin in another slot, and its keys then have other offsets.
            frequencies = self.attached.frequencies[self.attached.groups[layer]]
            turns = unit_rotations(offsets - offsets_before, frequencies)
            keys_before = as_channels(ordered_pairs(states_before[0].contiguous()) * turns)
            states_before = (keys_before, states_before[1])
            center = self.attached.centers[layer]
            middle = center.by_offset[offsets].transpose(0, 1) if center.is_large else 0.0
            for before, now, about in zip(states_before, states_now, (middle, 0.0), strict=True):
                # Half a scale, which is kept in half precision.
                allowed = (before - about).abs().amax(-1, keepdim=True) / 127 / 2 * (1 + 2**-10)
                self.worst_code = max(
                    self.worst_code, float(((now - before).abs() / allowed).max())
                )
            keys, values = states_now
            order = self.attached.layers[layer].pair_order
            in_channels = torch.empty_like(keys)
            in_channels[..., order] = keys
            branch.oracle.recode(key, layer, in_channels, values, offsets)
        return True

    def stored(self, branch: Branch, key: int) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Keys, in pair order and rotated by their offset in the stretch, and values: (H, T, D).

        And those offsets: (T,).
        """
        record = branch.cache.fork().park(key)
        format = make_format(record.format, self.attached)
        num_pages = num_pages_for(record.num_tokens, record.first_slot)
        slots = torch.arange(record.first_slot, record.first_slot + record.num_tokens)
        found = []
        for layer, (shape, pages) in enumerate(
            zip(self.attached.shapes, record.layers, strict=True)
        ):
            keys, values = (
                states.transpose(0, 1).flatten(1, 2)[:, slots]
                # The pages are a ring: the first may be the last as well.
                for states in format.layer(layer, shape).decode(
                    torch.cat((pages, pages[:1]))[:num_pages], phases_of(num_pages)
                )
            )
            found.append((keys, values))
        return found, slots % STRETCH_TOKENS
