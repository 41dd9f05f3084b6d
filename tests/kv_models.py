"""Tiny random models of the families the segment cache is proved on, and caches filled by them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from agentmem.models.attached import AttachedModel
from agentmem.models.segment_cache import SegmentCache
from tests.tiny_models import tiny_tokenizer

_COMMON: dict[str, Any] = dict(
    vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip


def _rope(kind: str, **options: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **options}}


_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama3": ("LlamaConfig", _rope("llama3", factor=8.0, low_freq_factor=1.0,
        high_freq_factor=4.0, original_max_position_embeddings=1024)),
    "yarn": ("LlamaConfig", _rope("yarn", factor=4.0, original_max_position_embeddings=1024)),
    "dynamic": ("LlamaConfig", _rope("dynamic", factor=4.0)),
    "longrope": ("Phi3Config", _rope("longrope", short_factor=[1.0] * 8, long_factor=[4.0] * 8,
        original_max_position_embeddings=64) | {"original_max_position_embeddings": 64}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "mistral_sliding": ("MistralConfig", {"sliding_window": 24}),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "query_pre_attn_scalar": 16,
        "sliding_window": 24}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "query_pre_attn_scalar": 16,
        "sliding_window": 24, "num_hidden_layers": 6}),
    "phi": ("PhiConfig", {}),
    "phi3": ("Phi3Config", {}),
    "cohere2": ("Cohere2Config", {"sliding_window": 24}),
    "gpt_oss": ("GptOssConfig", {"head_dim": 16, "sliding_window": 24, "num_local_experts": 4,
        "num_experts_per_tok": 2}),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 4}),
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_head": 4, "n_layer": 2}),
    "mamba": ("MambaConfig", {"state_size": 8}),
    "mamba2": ("Mamba2Config", {"num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 1,
        "chunk_size": 16}),
    "bamba": ("BambaConfig", {"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
        "mamba_d_head": 16, "mamba_chunk_size": 16, "attn_layer_indices": [1]}),
    "jamba": ("JambaConfig", {"num_experts": 2, "num_experts_per_tok": 1, "attn_layer_period": 2,
        "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4}),
    "falcon_h1": ("FalconH1Config", {"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
        "mamba_d_head": 16, "mamba_d_ssm": 128, "mamba_chunk_size": 16}),
    "qwen3_next": ("Qwen3NextConfig", {"num_hidden_layers": 4, "head_dim": 16, "num_experts": 2,
        "num_experts_per_tok": 1, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32, "linear_num_value_heads": 4,
        "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16}),
    "rwkv": ("RwkvConfig", {"context_length": 512}),
    "deepseek_v2": ("DeepseekV2Config", {"num_hidden_layers": 2, "num_key_value_heads": 4,
        "first_k_dense_replace": 2}),
    "deepseek_v3": ("DeepseekV3Config", {"num_hidden_layers": 2, "num_key_value_heads": 4}),
    "mimo": ("MiMoV2FlashConfig", {"num_hidden_layers": 2, "head_dim": 16, "v_head_dim": 8,
        "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}),
    "bloom": ("BloomConfig", {}),
}  # fmt: skip


def tiny_model(family: str, **changes: Any) -> Any:
    """A random model in float32 whose attention matters: weights three times the usual size."""
    config_class, options = _FAMILIES[family]
    torch.manual_seed(1)
    config = getattr(transformers, config_class)(**{**_COMMON, **options, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
    return model


def save_family(folder: Path, family: str, **changes: Any) -> Path:
    """A tiny model of a family and a tokenizer, as a folder that can be loaded."""
    settings = {"vocab_size": 380, "bos_token_id": None, "eos_token_id": 0, **changes}
    tiny_model(family, **settings).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def cache_argument(model: Any) -> str:
    """What the model's forward calls its cache: transformers 5.24 renamed it."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def ids(num_tokens: int, seed: int = 0) -> list[int]:
    """Random tokens."""
    generator = torch.Generator().manual_seed(seed)
    drawn: list[int] = torch.randint(3, 320, (num_tokens,), generator=generator).tolist()
    return drawn


def filled(
    attached: AttachedModel, lengths: Sequence[int] = (20, 30, 10), **options: Any
) -> SegmentCache:
    """Segments 0, 1, 2, ... one behind the other."""
    cache = SegmentCache(attached, **options)
    for key, length in enumerate(lengths):
        attached.forward(ids(length, key), cache)
        cache.seal(key)
    return cache


def ask(attached: AttachedModel, cache: SegmentCache, num_tokens: int = 5) -> Tensor:
    """Logits of a question; the cache is as before afterwards."""
    logits = attached.forward(ids(num_tokens, 99), cache, logits_to_keep=0)
    cache.discard_tail()
    return logits
