"""Tiny tokenizers and random models, built in a second and never downloaded."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.chat_templates import CHATML, CONTROL_TOKENS, PLAIN_ADDED_TOKENS

_WORDS = (
    "the quick brown fox jumps over a lazy dog and then another one while it rains in Oslo "
    "user assistant system model name arguments keep drop summarize segment reason value "
) * 4


@cache
def _tokenizer_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=[AddedToken(token, special=True) for token in CONTROL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_WORDS], trainer)
    tokenizer.add_tokens([AddedToken(token, special=False) for token in PLAIN_ADDED_TOKENS])
    return str(tokenizer.to_str())


def tiny_tokenizer(chat_template: str | None = CHATML, **extra: Any) -> Any:
    """A byte-level BPE tokenizer of some 360 tokens with the control tokens of many families."""
    is_llama3 = chat_template is not None and "eot_id" in chat_template
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_tokenizer_json()),
        chat_template=chat_template,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>" if is_llama3 else "<|endoftext|>",
        **extra,
    )


def tiny_llama(vocab_size: int = 380, *, seed: int = 0, **config: Any) -> Any:
    """A random Llama of two layers whose greedy replies vary."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": 0.25,
        "bos_token_id": None,
        "eos_token_id": 0,
        "tie_word_embeddings": False,
    }
    return LlamaForCausalLM(LlamaConfig(**settings | config)).eval()


def save_tiny_model(
    folder: Path, chat_template: str | None = CHATML, *, seed: int = 0, **config: Any
) -> Path:
    """Write a tiny model and tokenizer as a folder that can be loaded."""
    tiny_llama(seed=seed, **config).save_pretrained(folder)
    tiny_tokenizer(chat_template).save_pretrained(folder)
    return folder


@cache
def _metaspace_json() -> str:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", *CONTROL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator([_WORDS], trainer)
    state = json.loads(tokenizer.to_str())
    # The trainer knows no other way to have the bytes in the vocabulary.
    state["added_tokens"] = [
        token for token in state["added_tokens"] if not token["content"].startswith("<0x")
    ]
    return json.dumps(state)


def tiny_metaspace_tokenizer(chat_template: str = CHATML) -> Any:
    """A tokenizer that marks word starts, as the SentencePiece families do."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_metaspace_json()),
        chat_template=chat_template,
        bos_token="<|begin_of_text|>",
        eos_token="<|endoftext|>",
    )
