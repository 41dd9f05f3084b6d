"""The segment cache as transformers sees it: generate, masks, other users, refused models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from agentmem.errors import InvalidInput, Unsupported
from agentmem.models import kv_attention, kv_selftest
from agentmem.models.attached import AttachedModel, attach
from agentmem.models.rope_probe import LayerGeometry
from agentmem.models.segment_cache import SegmentCache
from tests.kv_models import cache_argument, tiny_model

IDS = torch.randint(3, 320, (1, 40), generator=torch.Generator().manual_seed(4))
ONES = torch.ones_like(IDS)
GREEDY: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}


@pytest.fixture(scope="module")
def attached() -> Iterator[AttachedModel]:
    made = attach(tiny_model("llama"))
    yield made
    made.detach()


@pytest.fixture(scope="module")
def expected() -> Tensor:
    """What the stock model generates."""
    generated: Tensor = tiny_model("llama").generate(IDS, attention_mask=ONES, **GREEDY)
    return generated


def generate(attached: AttachedModel, cache: Any, ids: Tensor, **options: Any) -> Tensor:
    generated: Tensor = attached.model.generate(
        ids, **{attached.cache_argument: cache, **GREEDY, **options}
    )
    return generated


def warm(attached: AttachedModel) -> SegmentCache:
    """The first thirty tokens in two segments."""
    cache = SegmentCache(attached)
    attached.forward(IDS[0, :30].tolist(), cache)
    cache.seal("a", 15)
    cache.seal("b")
    return cache


def test_generate_on_a_new_cache_is_token_identical(
    attached: AttachedModel, expected: Tensor
) -> None:
    found = generate(attached, SegmentCache(attached), IDS, attention_mask=ONES)
    assert torch.equal(found, expected)


def test_generate_on_a_warm_cache_takes_all_ids(attached: AttachedModel, expected: Tensor) -> None:
    assert torch.equal(generate(attached, warm(attached), IDS), expected)


def test_generate_on_a_warm_cache_takes_new_ids_and_a_mask_of_the_logical_length(
    attached: AttachedModel, expected: Tensor
) -> None:
    found = generate(attached, warm(attached), IDS[:, 30:], attention_mask=ONES)
    assert torch.equal(found, expected[:, 30:])


def test_generate_after_a_drop_still_counts_logical_positions(attached: AttachedModel) -> None:
    cache = warm(attached)
    cache.park("a")
    found = generate(attached, cache, IDS[:, 30:], attention_mask=ONES)
    assert found.shape == (1, 22)
    # The last token is generated and not read.
    assert cache.next_position == 51 and cache.num_tokens == 36


@pytest.mark.parametrize("mask", [None, ONES[:, 30:]])
def test_generate_with_a_short_mask_on_a_warm_cache_says_what_it_needs(
    attached: AttachedModel, mask: Tensor | None
) -> None:
    options = {} if mask is None else {"attention_mask": mask}
    with pytest.raises(InvalidInput, match="30 logical tokens needs either all token ids"):
        generate(attached, warm(attached), IDS[:, 30:], **options)


def test_assisted_decoding_takes_rejected_tokens_back(
    attached: AttachedModel, expected: Tensor
) -> None:
    cache = SegmentCache(attached)
    found = generate(attached, cache, IDS, attention_mask=ONES, prompt_lookup_num_tokens=3)
    assert torch.equal(found, expected)


def test_crop_reaches_into_the_tail_only(attached: AttachedModel) -> None:
    cache = warm(attached)
    attached.forward([5, 6, 7], cache)
    cache.crop(-2)
    assert cache.next_position == 31
    cache.crop(0)
    assert cache.next_position == 31
    for refused in (1, -2):
        with pytest.raises(InvalidInput, match="up to 1 tokens"):
            cache.crop(refused)


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"num_return_sequences": 2}])
def test_more_than_one_sequence_is_refused(
    attached: AttachedModel, options: dict[str, Any]
) -> None:
    with pytest.raises(Unsupported, match="one sequence"):
        generate(attached, SegmentCache(attached), IDS, attention_mask=ONES,
                 **options, do_sample="num_beams" not in options)  # fmt: skip
    cache = SegmentCache(attached)
    with pytest.raises(Unsupported, match="one sequence"):
        cache.reorder_cache(torch.tensor([0]))
    with pytest.raises(Unsupported, match="one sequence"):
        cache.batch_repeat_interleave(2)
    with pytest.raises(Unsupported, match="one sequence"):
        cache.batch_select_indices(torch.tensor([0]))


def test_padding_and_masks_of_the_callers_own_are_refused(attached: AttachedModel) -> None:
    padded = ONES.clone()
    padded[0, :3] = 0
    cases: list[tuple[Tensor, str]] = [
        (padded, "hides 3 of 40"),
        (ONES[:, :39], "covers 39 tokens"),
        (torch.ones(1, 1, 40, 40, dtype=torch.bool), "no custom attention mask"),
    ]
    for mask, words in cases:
        cache = SegmentCache(attached)
        with torch.no_grad(), pytest.raises(InvalidInput, match=words):
            attached.model(IDS, attention_mask=mask, **{attached.cache_argument: cache})


def test_positions_that_are_not_the_caches_are_refused(attached: AttachedModel) -> None:
    cache = warm(attached)
    with torch.no_grad(), pytest.raises(InvalidInput, match="next position is 30"):
        attached.model(
            IDS, position_ids=torch.arange(40)[None], **{attached.cache_argument: cache}
        )  # fmt: skip
    assert cache.num_tokens == 30


def test_training_through_the_cache_is_refused(attached: AttachedModel) -> None:
    with pytest.raises(InvalidInput, match="no_grad"):
        attached.model(IDS, **{attached.cache_argument: SegmentCache(attached)})


def test_a_cache_is_refused_by_a_model_it_was_not_made_for(attached: AttachedModel) -> None:
    other = attach(tiny_model("llama"))
    with pytest.raises(InvalidInput, match="another model"):
        other.forward([5, 6], SegmentCache(attached))
    other.detach()
    with pytest.raises(InvalidInput, match="detached"):
        other.forward([5, 6], SegmentCache(other))


def test_a_forward_that_fails_half_way_leaves_nothing(attached: AttachedModel) -> None:
    cache, clean = warm(attached), warm(attached)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    hook = attached.model.model.layers[1].mlp.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        attached.forward([5, 6, 7], cache)
    hook.remove()
    assert cache.tail_length == 0 and cache.next_position == 30
    assert torch.equal(attached.forward([9], cache), attached.forward([9], clean))


@pytest.mark.parametrize("family", ["llama", "mistral_sliding", "gemma2", "gemma3", "gpt_oss"])
def test_others_who_use_the_attached_model_are_served_as_before(family: str) -> None:
    model = tiny_model(family)
    batch = IDS.view(2, 20)
    padded = torch.ones_like(batch)
    padded[0, :5] = 0

    def outputs() -> list[Tensor]:
        with torch.no_grad():
            return [
                model(IDS).logits,
                model(batch, attention_mask=padded).logits[1],
                model(batch, attention_mask=padded).logits[0, 5:],
                model.generate(batch, attention_mask=padded, **GREEDY),
                model(IDS[:, 30:], **_filled(model)).logits,
            ]

    before, implementation = outputs(), model.config._attn_implementation
    attached = attach(model)
    assert model.config._attn_implementation == kv_attention.IMPLEMENTATION
    for old, new in zip(before, outputs(), strict=True):
        torch.testing.assert_close(new, old, rtol=2e-5, atol=2e-5)
    attached.detach()
    assert model.config._attn_implementation == implementation
    assert torch.equal(outputs()[0], before[0])


def _filled(model: Any) -> dict[str, DynamicCache]:
    """The argument of a forward that continues after thirty tokens in a stock cache."""
    cache = {cache_argument(model): DynamicCache(config=model.config)}
    model(IDS[:, :30], use_cache=True, **cache)
    return cache


def test_everyone_who_attaches_a_model_gets_the_same_and_the_last_gives_it_back() -> None:
    model = tiny_model("llama")
    first, second = attach(model), attach(model)
    assert first is second
    first.detach()
    assert first.is_attached and model.config._attn_implementation == kv_attention.IMPLEMENTATION
    second.detach()
    assert not second.is_attached and model.config._attn_implementation == "sdpa"
    second.detach()
    again = attach(model)
    assert again is not first
    again.detach()


@pytest.mark.parametrize(
    ("family", "convention", "windows"),
    [
        ("llama", "half 8/8", [0, 0, 0]),
        ("yarn", "half 8/8", [0, 0, 0]),
        ("phi", "half 4/8", [0, 0, 0]),
        ("cohere2", "interleaved 8/8", [24, 24, 24]),
        ("mistral_sliding", "half 8/8", [24, 24, 24]),
        ("gemma2", "half 8/8", [24, 0, 24]),
        ("gpt_oss", "half 8/8", [24, 0, 24]),
    ],
)
def test_the_rotation_of_every_layer_is_found_by_asking(
    family: str, convention: str, windows: list[int]
) -> None:
    attached = attach(tiny_model(family))
    assert {layer.convention for layer in attached.layers} == {convention}
    assert [layer.window for layer in attached.layers] == windows
    attached.detach()


def test_each_layer_type_has_its_own_frequencies() -> None:
    attached = attach(tiny_model("gemma3"))
    assert attached.groups == [0, 0, 0, 0, 0, 1] and len(attached.frequencies) == 2
    attached.detach()


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("dynamic", "dynamic RoPE: its frequencies change with the length"),
        ("longrope", "longrope RoPE"),
        ("gpt2", "no rotation of the model's own frequencies explains its keys"),
        ("mamba", "layers of type linear_attention"),
        ("qwen3_next", "layers of type linear_attention"),
        ("mimo", "they must have the same heads and channels"),
        ("deepseek_v2", "latent attention"),
        ("deepseek_v3", "latent attention"),
        ("bloom", "no replaceable attention function"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused_with_the_reason_and_left_alone(
    family: str, reason: str
) -> None:
    model = tiny_model(family)
    before = model.config._attn_implementation
    with pytest.raises(Unsupported, match=reason):
        attach(model)
    assert model.config._attn_implementation == before


def test_a_model_that_breaks_while_it_is_probed_is_refused_and_left_alone() -> None:
    model = tiny_model("llama")

    def broken(*_: Any, **__: Any) -> None:
        raise IndexError("index out of range in self")

    hook = model.model.layers[1].register_forward_pre_hook(broken)
    with pytest.raises(Unsupported, match="IndexError: index out of range"):
        attach(model)
    hook.remove()
    assert model.config._attn_implementation == "sdpa"
    attach(model).detach()


def _twice_as_fast(geometry: LayerGeometry) -> None:
    geometry.frequencies.mul_(2.0)


def _halves_swapped(geometry: LayerGeometry) -> None:
    geometry.pair_order.copy_(torch.arange(geometry.head_dim))


@pytest.mark.parametrize("fault", [_twice_as_fast, _halves_swapped])
def test_the_self_test_finds_a_wrong_rotation(fault: Any) -> None:
    attached = attach(tiny_model("llama"))
    kv_selftest.self_test(attached)
    fault(attached.layers[1])
    for group, _ in enumerate(attached.frequencies):
        attached.frequencies[group] = attached.layers[1].frequencies
    with pytest.raises(Unsupported, match="failed the self-test"):
        kv_selftest.self_test(attached)
    attached.detach()


def test_the_self_test_finds_a_window_that_is_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentmem.models.kv_window import Step

    attached = attach(tiny_model("mistral_sliding"))
    hidden = Step.hidden
    monkeypatch.setattr(Step, "hidden", lambda self, window: hidden(self, window + 1))
    with pytest.raises(Unsupported, match="failed the self-test"):
        kv_selftest.self_test(attached)
    attached.detach()


@pytest.mark.parametrize("length", [23, 24, 25, 26, 60])
def test_a_sliding_window_is_right_at_and_around_its_length(length: int) -> None:
    model = tiny_model("mistral_sliding")
    text = torch.randint(3, 320, (1, length + 3))
    with torch.no_grad():
        expected = model(text).logits[0]
    attached = attach(model)
    cache = SegmentCache(attached)
    found = [attached.forward(text[0, :length].tolist(), cache, 0)]
    cache.seal("a")
    found += [attached.forward([int(token)], cache) for token in text[0, length:]]
    torch.testing.assert_close(torch.cat(found), expected, rtol=2e-5, atol=2e-5)
    assert cache.get_seq_length() == length + 3
    attached.detach()


def test_low_precision_models_are_served() -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.div_(3.0)
        expected = model(IDS).logits[0, -1].float()
    attached = attach(model)
    cache = warm(attached)
    found = attached.forward(IDS[0, 30:].tolist(), cache)[0].float()
    assert float((found - expected).norm() / expected.norm()) < 0.02
    attached.detach()
