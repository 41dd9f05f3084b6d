"""Embedders give unit vectors that tell what is near; their name tells the space."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.errors import InvalidInput, ModelCorrupt, ModelNotFound
from agentmem.models import embed as embed_module
from agentmem.models.base import Embedder
from agentmem.models.embed import (
    MAX_WINDOWS,
    WINDOW_PIECES,
    HashEmbedder,
    MiniLMEmbedder,
    default_embedder,
)

CAT, KITTEN, MARKET = "The cat sat on the mat.", "A kitten rested there.", "Stocks fell on Monday."
TEXTS = [CAT, KITTEN, MARKET, "", " ", "x", "日本語のテキスト", "a\ud800b", "word " * 300]


@pytest.fixture(params=["minilm", "hash"])
def embedder(request: pytest.FixtureRequest, minilm_dir: Path) -> Embedder:
    return MiniLMEmbedder(minilm_dir) if request.param == "minilm" else HashEmbedder()


def test_every_text_gets_a_float32_vector_of_unit_length(embedder: Embedder) -> None:
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dim)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_no_texts_give_no_vectors(embedder: Embedder) -> None:
    assert embedder.embed([]).shape == (0, embedder.dim)


def test_a_text_has_one_vector_whatever_is_embedded_with_it(embedder: Embedder) -> None:
    together = embedder.embed(TEXTS)
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=2e-6)


def test_minilm_puts_near_what_means_the_same(minilm_dir: Path) -> None:
    cat, kitten, market = MiniLMEmbedder(minilm_dir).embed([CAT, KITTEN, MARKET])
    assert cat @ kitten > 0.4
    assert cat @ market < 0.2


def test_minilm_is_the_masked_mean_of_the_last_hidden_states(minilm_dir: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm_dir)
    model = AutoModel.from_pretrained(minilm_dir, dtype=torch.float32).eval()
    with torch.inference_mode():
        hidden = model(**tokenizer(CAT, return_tensors="pt")).last_hidden_state[0]
    expected = torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy()
    [vector] = MiniLMEmbedder(minilm_dir).embed([CAT])
    np.testing.assert_allclose(vector, expected, atol=1e-6)


def test_a_long_text_is_the_mean_of_its_windows_weighted_by_their_pieces(minilm_dir: Path) -> None:
    embedder = MiniLMEmbedder(minilm_dir)
    room = WINDOW_PIECES - 2
    first, second = "cat " * room, "market " * (room // 2)
    whole, one, two = embedder.embed([first + second, first, second])
    weighted = one * WINDOW_PIECES * _norm(embedder, first)
    weighted += two * (room // 2 + 2) * _norm(embedder, second)
    np.testing.assert_allclose(whole, weighted / np.linalg.norm(weighted), atol=1e-5)


def _norm(embedder: MiniLMEmbedder, text: str) -> float:
    """Length of the pooled vector before it is made one."""
    model, tokenizer = embed_module._loaded(embedder.path)
    window = tokenizer.encode(text, add_special_tokens=False).ids
    return float(np.linalg.norm(embedder._pool(model, tokenizer, [window])))


def test_the_end_of_a_long_text_counts(minilm_dir: Path) -> None:
    embedder = MiniLMEmbedder(minilm_dir)
    filler = "the report continues with more of the same " * 60
    with_cat, with_market, cat = embedder.embed([filler + CAT * 9, filler + MARKET * 9, CAT])
    assert with_cat @ cat > with_market @ cat + 0.05


def test_a_huge_text_is_represented_by_a_bounded_number_of_windows(minilm_dir: Path) -> None:
    windows = list(embed_module._windows(list(range(1_000_000)), WINDOW_PIECES - 2))
    assert len(windows) == MAX_WINDOWS
    assert windows[0][0] == 0
    assert windows[-1][-1] == 999_999


def test_torchs_threads_are_left_alone(minilm_dir: Path) -> None:
    import torch

    torch.set_num_threads(2)
    MiniLMEmbedder(minilm_dir).embed([CAT])
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_threads_may_embed_at_once(minilm_dir: Path) -> None:
    embedder = MiniLMEmbedder(minilm_dir)
    texts = TEXTS[:4]
    expected = embedder.embed(texts)
    results: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = []
    threads = [
        threading.Thread(target=lambda: results.append(embedder.embed(texts))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    for result in results:
        np.testing.assert_allclose(result, expected, atol=2e-6)


def test_the_name_is_the_space_and_not_the_place(minilm_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(minilm_dir, copy)
    (copy / "manifest.json").unlink()
    name = MiniLMEmbedder(minilm_dir).name
    assert name == "minilm:53aa51172d14:384"
    assert MiniLMEmbedder(copy).name == name
    with (copy / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"\x01")
    assert MiniLMEmbedder(copy).name != name
    assert HashEmbedder(64).name != HashEmbedder(128).name


def test_missing_and_broken_files_are_told_apart(minilm_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        MiniLMEmbedder(tmp_path)
    broken = tmp_path / "broken"
    shutil.copytree(minilm_dir, broken)
    (broken / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(ModelCorrupt, match="broken"):
        MiniLMEmbedder(broken).embed([CAT])


def test_hashed_words_put_near_what_shares_words_or_their_parts() -> None:
    embedder = HashEmbedder()
    code, question, plural, other = embedder.embed(
        ["my locker code is 58291", "what is the locker code?", "lockers and codes", "blue sky"]
    )
    assert code @ question > code @ plural > 0.1
    assert abs(code @ other) < 0.1


def test_hashed_words_are_the_same_in_every_process() -> None:
    [vector] = HashEmbedder(8).embed(["locker"])
    root = 18**-0.5
    np.testing.assert_allclose(vector, [3 * root, root, 0, 0, 2 * root, 0, -2 * root, 0], atol=1e-6)


def test_an_empty_text_is_a_fixed_unit_vector() -> None:
    empty, blank = HashEmbedder(16).embed(["", " ?! "])
    assert empty.tolist() == blank.tolist() == [1.0] + [0.0] * 15


@given(st.text(), st.integers(1, 40))
@settings(deadline=None, max_examples=100)
def test_hashed_words_never_fail(text: str, dim: int) -> None:
    [vector] = HashEmbedder(dim).embed([text])
    assert abs(float(np.linalg.norm(vector)) - 1) < 1e-5


def test_a_dimension_below_one_is_refused() -> None:
    with pytest.raises(InvalidInput, match="got 0"):
        HashEmbedder(0)


def test_the_default_is_minilm_where_it_is_set_up_and_hashed_words_elsewhere(
    monkeypatch: pytest.MonkeyPatch, minilm_dir: Path
) -> None:
    assert isinstance(default_embedder(), HashEmbedder)
    monkeypatch.setenv("AGENTMEM_MODELS_HOME", str(minilm_dir.parent))
    assert isinstance(default_embedder(), MiniLMEmbedder)
