"""A calibration reads as the model reads: its moments are those of the model's own keys, values and
gradients, whatever the family.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from agentmem.errors import InvalidInput
from agentmem.kernels.transform_coding import STRETCH_TOKENS, LayerMoments, fit_transforms
from agentmem.models.attached import AttachedModel, attach
from agentmem.models.calibrate import calibrate
from agentmem.models.calibration import collect_moments, measure_peaks
from agentmem.models.calibration_reading import Continuations, read_context
from agentmem.models.calibration_text import SKIPPED_TOKENS, CalibrationText, calibration_texts
from agentmem.models.calibration_weights import measure_weights
from tests.kv_models import ids, tiny_model
from tests.tiny_models import tiny_tokenizer

CONTEXT = SKIPPED_TOKENS + 2 * STRETCH_TOKENS + 64
FAMILIES = ["llama", "qwen3", "phi", "mistral_sliding", "gemma2", "gemma3", "gpt_oss"]


@contextmanager
def attached_model(family: str, **changes: Any) -> Iterator[AttachedModel]:
    attached = attach(tiny_model(family, **changes), self_test=False)
    try:
        yield attached
    finally:
        attached.detach()


def text(seed: int = 0, num_runs: int = 2) -> CalibrationText:
    runs = tuple(tuple(ids(9 + 4 * run, seed + 50 + run)) for run in range(num_runs))
    return CalibrationText(tuple(ids(CONTEXT, seed)), runs)


@pytest.mark.parametrize("family", FAMILIES)
def test_continuations_see_the_context_and_themselves_as_a_plain_forward_does(family: str) -> None:
    read = text()
    with attached_model(family) as attached:
        context = read_context(attached, read.context)
        runs = Continuations(attached, CONTEXT, read.continuations)
        with torch.no_grad():
            found = runs.read(context.keys, context.values)[0]
            expected = torch.cat(
                [
                    attached.model(input_ids=torch.tensor([[*read.context, *run]])).logits[
                        0, CONTEXT:
                    ]
                    for run in read.continuations
                ]
            )
    assert float((found - expected).norm() / expected.norm()) < 1e-4


def test_keys_are_counted_as_the_model_has_them_at_their_offset_in_a_stretch() -> None:
    # In the first layer a key depends on its token and position alone: the same tokens at
    # positions 0 to 63 have the keys that the moments are about.
    read = text()
    with attached_model("llama") as attached:
        moments = collect_moments(attached, [read], gradients=False)[0]
        used = slice(SKIPPED_TOKENS, SKIPPED_TOKENS + 2 * STRETCH_TOKENS)
        cache = DynamicCache()
        with torch.no_grad():
            attached.model(
                input_ids=torch.tensor([read.context[used]]),
                position_ids=torch.arange(STRETCH_TOKENS).repeat(2)[None],
                attention_mask=torch.eye(2 * STRETCH_TOKENS, dtype=torch.bool)[None, None],
                **{attached.cache_argument: cache},
            )
        order = attached.layers[0].pair_order
        keys = cache.layers[0].keys[0][..., order].double()
        values = read_context(attached, read.context).values[0][:, used].double()
    by_offset = keys.reshape(keys.shape[0], 2, STRETCH_TOKENS, -1).mean(1).transpose(0, 1)
    assert torch.allclose(moments.key_means, by_offset, atol=1e-4)
    assert torch.allclose(moments.key_products, outer(keys), atol=1e-3)
    assert torch.allclose(moments.value_mean, values.mean(1), atol=1e-5)
    assert torch.allclose(moments.value_products, outer(values), atol=1e-4)
    assert moments.key_fisher is None and moments.value_fisher is None


def outer(rows: Tensor) -> Tensor:
    """(heads, n, d) -> (heads, d, d): mean of outer products."""
    return rows.transpose(1, 2) @ rows / rows.shape[1]


def test_the_fisher_is_that_of_gradients_through_a_cache_of_transformers() -> None:
    read = text(num_runs=1)
    with attached_model("llama") as attached:
        moments = collect_moments(attached, [read])
        cache = DynamicCache()
        with torch.no_grad():
            attached.model(
                input_ids=torch.tensor([read.context]), **{attached.cache_argument: cache}
            )
        leaves = [(layer.keys, layer.values) for layer in cache.layers]
        for layer, (keys, values) in zip(cache.layers, leaves, strict=True):
            layer.keys, layer.values = keys.requires_grad_(True), values.requires_grad_(True)
        run = torch.tensor([read.continuations[0]])
        logits = attached.model(input_ids=run, **{attached.cache_argument: cache}).logits[0]
        log_probabilities = logits.log_softmax(-1)
        drawn = torch.multinomial(
            log_probabilities.detach().exp(), 1, generator=torch.Generator().manual_seed(0)
        )
        (-log_probabilities.gather(1, drawn).sum()).backward()
        used = slice(SKIPPED_TOKENS, SKIPPED_TOKENS + 2 * STRETCH_TOKENS)
        for one, (keys, values) in zip(moments, leaves, strict=True):
            assert keys.grad is not None and values.grad is not None
            assert one.key_fisher is not None and one.value_fisher is not None
            expected = outer(values.grad[0, :, used].double())
            assert float((one.value_fisher - expected).norm() / expected.norm()) < 1e-3
            # Turning keys back changes no lengths: the traces agree.
            trace = keys.grad[0, :, used].double().square().sum((1, 2)) / (2 * STRETCH_TOKENS)
            assert torch.allclose(one.key_fisher.diagonal(dim1=1, dim2=2).sum(-1), trace, rtol=1e-3)


def test_query_products_are_those_of_queries_turned_back_to_each_stretch() -> None:
    # One pair of channels a head, so that a turn is one number: the products' trace keeps, and
    # a query that is turned by half a circle too far would swap signs off the diagonal.
    read = text()
    with attached_model("llama") as attached:
        moments = collect_moments(attached, [read], gradients=False)
        context = read_context(attached, read.context)
        runs = Continuations(attached, CONTEXT, read.continuations)
        with torch.no_grad():
            queries = runs.read(context.keys, context.values)[1][0].double()
        layer = attached.layers[0]
        heads = layer.num_kv_heads
        expected = torch.zeros_like(moments[0].query_products)
        for start in (SKIPPED_TOKENS, SKIPPED_TOKENS + STRETCH_TOKENS):
            pairs = torch.view_as_complex(
                queries[..., layer.pair_order].reshape(*queries.shape[:2], -1, 2).contiguous()
            )
            turned = pairs * torch.polar(torch.ones(()).double(), -start * layer.frequencies)
            rows = torch.view_as_real(turned).flatten(-2).reshape(heads, -1, layer.head_dim)
            expected += outer(rows) / 2
    assert float((moments[0].query_products - expected).norm() / expected.norm()) < 1e-4


def test_the_output_projection_is_found_and_read_per_head() -> None:
    with attached_model("llama") as attached:
        moments = collect_moments(attached, [text()], gradients=False)[1]
        projection = attached.model.model.layers[1].self_attn.o_proj.weight.double()
        assert not attached.model.model.layers[1].self_attn.o_proj._forward_pre_hooks
    # Four query heads on two key heads: heads 2 and 3 read the second.
    second = projection.T.reshape(4, 16, 64)[2:]
    expected = torch.einsum("gdo,geo->de", second, second)
    assert torch.allclose(moments.output_products[1], expected, atol=1e-5)


def test_weights_without_gradients_order_layers_as_the_fisher_does() -> None:
    # The last layer's projection is made small: what its values carry hardly matters.
    with attached_model("llama") as attached:
        with torch.no_grad():
            attached.model.model.layers[2].self_attn.o_proj.weight.mul_(0.02)
        texts = [text(0), text(1)]
        moments = collect_moments(attached, texts)
        told: list[tuple[int, int]] = []
        weighed = measure_weights(
            attached, texts, moments, lambda done, total: told.append((done, total))
        )
    assert told == [(done, 6) for done in range(1, 7)]
    for kind in ("key", "value"):
        found = [getattr(one, f"{kind}_weight") for one in weighed]
        fisher = [float(getattr(one, f"{kind}_fisher").diagonal(0, 1, 2).sum()) for one in moments]
        assert min(found) == found[2] and min(fisher) == fisher[2]
        assert found[2] < found[0] / 20


def test_peaks_are_the_largest_codes_of_the_texts_that_were_read() -> None:
    texts = [text(0), text(1)]
    with attached_model("llama") as attached:
        transforms = fit_transforms(collect_moments(attached, texts))
        one = measure_peaks(attached, texts[:1], transforms)
        both = measure_peaks(attached, texts, transforms)
        values = read_context(attached, texts[0].context).values[0]
    used = slice(SKIPPED_TOKENS, SKIPPED_TOKENS + 2 * STRETCH_TOKENS)
    part = transforms[0][1]
    expected = ((values[:, used] - part.mean[:, None]) @ part.forward).abs().amax(1)
    assert torch.allclose(one[0][1].peaks, expected, rtol=1e-4)
    for less, more in zip(one, both, strict=True):
        assert all(bool((b.peaks >= a.peaks).all()) for a, b in zip(less, more, strict=True))
        assert all(bool((part.peaks > 1).all()) for part in more)


@pytest.mark.parametrize("gradients", [True, False])
def test_a_calibration_has_every_layer_of_a_model_with_two_kinds_of_layers(gradients: bool) -> None:
    lines: list[str] = []
    with attached_model("gemma3") as attached:
        made = calibrate(attached, [text()], gradients=gradients, progress=lines.append)
        expected = attached.fingerprint
    assert made.fingerprint == expected and len(made.layers) == 6 and made.is_finite
    assert len({tuple(layer.frequencies.tolist()) for layer in made.layers}) == 2
    assert lines[0] == "read 1 of 1 texts"
    assert ("compared 6 of 6 layers" in lines) is not gradients


def test_the_same_texts_give_the_same_calibration() -> None:
    with attached_model("llama") as attached:
        first, second = (calibrate(attached, [text()]).layers[1].keys for _ in range(2))
    assert torch.equal(first.directions, second.directions)
    assert torch.equal(first.importances, second.importances)


def test_no_text_and_too_short_a_text_are_refused() -> None:
    with attached_model("llama") as attached:
        with pytest.raises(InvalidInput, match="got none"):
            calibrate(attached, [])
        short = CalibrationText(tuple(ids(100)), (tuple(ids(5)),))
        with pytest.raises(InvalidInput, match="132 tokens at least: got 100"):
            calibrate(attached, [short])


def test_calibration_leaves_the_model_as_it_was() -> None:
    model = tiny_model("llama")
    attached = attach(model, self_test=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calibrate(attached, [text()])
    attached.detach()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_texts_have_the_length_asked_for_and_repeat_what_the_context_said() -> None:
    tokenizer = tiny_tokenizer()
    texts = list(calibration_texts(tokenizer, 8, 640))
    assert texts == list(calibration_texts(tokenizer, 8, 640))
    for one in texts:
        assert len(one.context) == 640
        passage = one.continuations[1]
        assert any(
            one.context[begin : begin + len(passage)] == passage for begin in range(640 - 200)
        )
        assert len(one.continuations) == 2 + 8


def test_facts_stand_in_the_context_in_the_words_they_are_asked_in() -> None:
    tokenizer = tiny_tokenizer()
    for one in calibration_texts(tokenizer, 4, 1156):
        said = tokenizer.decode(list(one.context))
        facts = [tokenizer.decode(list(run)).strip() for run in one.continuations[2:]]
        assert len(facts) == 8 and all(fact in said for fact in facts)


def test_moments_do_not_depend_on_how_texts_are_split() -> None:
    texts = [text(0), text(1)]
    with attached_model("llama") as attached:
        both = collect_moments(attached, texts, gradients=False)
        parts = [collect_moments(attached, [one], gradients=False) for one in texts]
    for layer, first, second in zip(both, *parts, strict=True):
        for name in ("key_products", "value_products", "query_products", "key_means"):
            mean = (getattr(first, name) + getattr(second, name)) / 2
            assert torch.allclose(getattr(layer, name), mean, atol=1e-6)
        assert isinstance(layer, LayerMoments)
