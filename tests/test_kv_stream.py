"""Attention over pages in host memory, tile by tile, is attention over the same pages at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from agentmem.kernels import packed
from agentmem.kernels.attention import merge
from agentmem.storage import kv_stream
from agentmem.storage.kv_arena import PageArena
from agentmem.storage.kv_dense import DenseFormat
from agentmem.storage.kv_format import Format, LayerCodec, LayerShape
from agentmem.storage.kv_packed import PackedCodec
from agentmem.storage.kv_stream import PageStream
from tests.packed_windows import PackedWindow, packed_window, plain_attention, random_layer

CPU = torch.device("cpu")
LENGTHS = (5, 70, 1, 33, 64, 17, 3, 40)
LAYERS = {
    "q8": random_layer(2, 16, widths=(8,), seed=1),
    "q4": random_layer(
        2, 16, widths=(5,), value_widths=(3,), seed=2, centered=True, transformed=True
    ),
    "klt": random_layer(
        2, 16, widths=(0, 1, 2, 3, 5), seed=3, token_scales=False, centered=True, transformed=True
    ),
}


class _OneLayer(Format):
    """The format of a window's layer, three times."""

    def __init__(self, codec: LayerCodec) -> None:
        self.codec = codec

    def layer(self, index: int, shape: LayerShape) -> LayerCodec:
        return self.codec


def streamed(window: PackedWindow, *, max_tokens: int) -> tuple[PageStream, PageArena]:
    """The window's pages in host memory, three layers of them; the third is the window's."""
    shape = LayerShape(2, 16)
    format = _OneLayer(PackedCodec("test", shape, window.layer))
    arena = PageArena(format, [shape] * 3, CPU).in_host_memory()
    other = torch.zeros_like(window.pages)
    arena.layers = [other, other + 1, window.pages.clone()]
    return PageStream(arena, window.table, CPU, max_tokens=max_tokens), arena


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("max_tokens", "softcap"), [(16, None), (48, 2.0), (4096, None)])
def test_tiles_merged_are_the_whole(name: str, max_tokens: int, softcap: float | None) -> None:
    layer = LAYERS[name]
    window = packed_window(layer, LENGTHS, seed=4)
    queries, limits = window.queries(6, scale=3.0), window.limits(6)
    whole = packed.attend(
        queries, window.rotations, window.table, window.pages, layer, limits, softcap
    )
    mass = packed.column_mass(
        queries, window.rotations, window.table, window.pages, layer, limits, softcap, whole[1]
    )
    stream, _ = streamed(window, max_tokens=max_tokens)
    parts, masses = [], []
    for tile, pages in stream.tiles(2):
        rotations = window.rotations[tile.stretches]
        assert tile.table.num_slots <= max_tokens
        parts.append(packed.attend(queries, rotations, tile.table, pages, layer, limits, softcap))
    for tile, pages in stream.tiles(2):
        rotations = window.rotations[tile.stretches]
        masses.append(
            packed.column_mass(
                queries, rotations, tile.table, pages, layer, limits, softcap, whole[1]
            )
        )
    mixed, log_sum_exp = merge(parts)
    torch.testing.assert_close(log_sum_exp, whole[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mixed, whole[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.cat(masses), mass, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_the_kernels_of_this_machine_read_tiles_as_well(name: str) -> None:
    layer = LAYERS[name]
    window = packed_window(layer, LENGTHS, seed=5)
    queries, limits = window.queries(4), window.limits(4)
    stream, arena = streamed(window, max_tokens=64)
    codec = arena.codecs[2]
    parts = [
        codec.attend(queries, window.rotations[tile.stretches], tile.table, pages, limits, None)
        for tile, pages in stream.tiles(2)
    ]
    expected, log_sum_exp, _ = plain_attention(window, queries, limits)
    mixed, found = merge(parts)
    torch.testing.assert_close(found.double(), log_sum_exp, rtol=1e-2, atol=1e-2)
    assert float((mixed - expected).norm() / expected.norm()) < 0.02


def test_every_row_is_copied_once_a_tile_and_runs_are_long() -> None:
    window = packed_window(LAYERS["q8"], LENGTHS, seed=6)
    stream, _ = streamed(window, max_tokens=4096)
    (tile,) = stream._tiles
    rows = [row for first, count in tile.runs for row in range(first, first + count)]
    assert rows == sorted(set(window.table.rows.tolist()))
    assert all(
        first + count < other for (first, count), (other, _) in itertools.pairwise(tile.runs)
    )
    assert len(rows) < window.table.num_pages, "segments share pages in this window"


def test_a_second_pass_and_the_next_layer_find_what_is_on_its_way() -> None:
    window = packed_window(LAYERS["q8"], LENGTHS, seed=6)
    stream, _ = streamed(window, max_tokens=4096)
    (tile,) = stream._tiles
    for layer in range(3):
        for _ in range(2):
            for _, pages in stream.tiles(layer):
                assert pages.shape[0] == tile.num_rows
    assert stream.num_copied_rows == (3 + 1) * tile.num_rows, "the first layer's again, for later"


def test_a_tile_holds_the_rows_it_says_of_the_layer_asked_for() -> None:
    window = packed_window(LAYERS["q4"], LENGTHS, seed=7)
    stream, arena = streamed(window, max_tokens=48)
    for layer in (2, 0, 1, 1, 2):
        found: list[Tensor] = []
        for tile, pages in stream.tiles(layer):
            found.append(pages.index_select(0, tile.table.rows))
        expected = arena.layers[layer].index_select(0, window.table.rows)
        assert torch.equal(torch.cat(found), expected)


def test_a_pass_that_was_given_up_half_way_disturbs_nothing() -> None:
    window = packed_window(LAYERS["q4"], LENGTHS, seed=7)
    stream, arena = streamed(window, max_tokens=48)
    for _ in stream.tiles(1):
        break
    found = [pages.index_select(0, tile.table.rows) for tile, pages in stream.tiles(2)]
    expected = arena.layers[2].index_select(0, window.table.rows)
    assert torch.equal(torch.cat(found), expected)


class _Clock:
    """Stands in for the two streams of a CUDA device: what was asked of them, in order."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []

    def fence(self, memory: Tensor) -> _FakeFence:
        return _FakeFence(self, len({number for _, number in self.done}))


class _FakeFence:
    def __init__(self, clock: _Clock, number: int) -> None:
        self.clock, self.number = clock, number
        self.filled = self
        self.waited = 0
        self.free()

    def synchronize(self) -> None:
        self.waited += 1

    def _note(self, what: str) -> None:
        self.clock.done.append((what, self.number))

    @contextmanager
    def filling(self) -> Iterator[None]:
        self._note("fill")
        yield

    def wait(self) -> None:
        self._note("wait")

    def free(self) -> None:
        self._note("free")


@pytest.mark.parametrize("max_tokens", [48, 4096])
def test_a_buffer_is_filled_when_it_is_free_and_read_when_it_is_full(
    monkeypatch: pytest.MonkeyPatch, max_tokens: int
) -> None:
    clock = _Clock()
    window = packed_window(LAYERS["q8"], LENGTHS, seed=8)
    shape = LayerShape(2, 16)
    arena = PageArena(DenseFormat(), [shape] * 3, CPU).in_host_memory()
    arena.layers = [torch.zeros((99, pages.shape[1]), dtype=torch.uint8) for pages in arena.layers]
    monkeypatch.setattr(kv_stream, "Fence", clock.fence)
    monkeypatch.setattr(kv_stream, "_has_streams", lambda device: True)
    stream = PageStream(arena, window.table, CPU, max_tokens=max_tokens)
    num_tiles = 0
    for layer in range(3):
        for _ in range(2):
            for _ in stream.tiles(layer):
                num_tiles += 1
                clock.done.append(("read", clock.done[-1][1]))
    assert len([what for what, _ in clock.done if what == "read"]) == num_tiles
    for number in (0, 1):
        mine = [what for what, of in clock.done if of == number]
        for before, after in itertools.pairwise(mine):
            assert (before, after) in {
                ("free", "fill"), ("free", "wait"), ("fill", "fill"), ("fill", "wait"),
                ("wait", "read"), ("read", "free"),
            }  # fmt: skip
    # Whenever one buffer is waited for, copies into the other one have been asked for.
    for index, (what, number) in enumerate(clock.done):
        others = [done for done, of in clock.done[:index] if of != number]
        assert what != "wait" or "fill" in others


def test_rows_are_not_written_while_they_are_being_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(kv_stream, "Fence", clock.fence)
    monkeypatch.setattr(kv_stream, "_has_streams", lambda device: True)
    arena = PageArena(DenseFormat(), [LayerShape(2, 16)], CPU).in_host_memory()
    pages = [torch.zeros((2, arena.page_nbytes), dtype=torch.uint8)]
    blocks = [arena.store(20, pages) for _ in range(6)]
    window = packed_window(LAYERS["q8"], (5,), first_slots=(0,))
    for write in (lambda: arena.store(20, pages), lambda: arena.tidy(0)):
        stream = PageStream(arena, window.table, CPU)
        for _ in stream.tiles(0):
            pass
        event = arena.last_read
        assert isinstance(event, _FakeFence) and event.waited == 0
        del blocks[1:4]
        write()
        assert arena.last_read is None
        assert _waits(event) == 1


def _waits(event: _FakeFence) -> int:
    return event.waited
