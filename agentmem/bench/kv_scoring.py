"""Asks a context's questions of one system, and compares its answers with the dense model's.

Everything is teacher-forced: an answer's tokens are given, and what the system holds for likeliest
at each is looked at. Along the dense model's own answer that is the same as decoding greedily.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

from agentmem.bench.kv_contexts import PackedContext
from agentmem.bench.kv_row import Measured
from agentmem.bench.needles import NeedleContext, Question

_TIMED_TOKENS = 8


@dataclass
class Reference:
    """What the dense model says about a context.

    Args:
        packed: where it looks.
        right: for each question the share of its counted tokens that were right.
        answers: its own answers, token ids.
        log_probs: along them, (tokens, vocab_size).
        fresh: along the text that goes on, (tokens, vocab_size).
    """

    packed: PackedContext
    right: list[float] = field(default_factory=list)
    answers: list[tuple[int, ...]] = field(default_factory=list)
    log_probs: list[Tensor] = field(default_factory=list)
    fresh: Tensor = field(default_factory=lambda: torch.zeros(0))


def ask_dense(packed: PackedContext, context: NeedleContext) -> Reference:
    """Ask the dense model, which the others are compared with."""
    reference = Reference(packed)
    for question in context.questions:
        gold = _along(packed, question, question.answer)
        answer = _own_answer(packed, question, gold)
        reference.right.append(_share_right(gold, question))
        reference.answers.append(answer)
        own = gold if answer == question.answer else _along(packed, question, answer)
        reference.log_probs.append(own)
    reference.fresh = packed.read(context.fresh, len(context.fresh))
    return reference


def measure(packed: PackedContext, context: NeedleContext, dense: Reference) -> Measured:
    """Ask a system, and compare.

    Args:
        packed: the context in its cache.
        context: what to ask.
        dense: of the same context; if it looks at `packed` itself, nothing is asked again.
    """
    measured = Measured()
    is_asked = packed is dense.packed
    for index, question in enumerate(context.questions):
        answer, own, share = dense.answers[index], dense.log_probs[index], dense.right[index]
        if not is_asked:
            own = gold = _along(packed, question, question.answer)
            if answer != question.answer:
                own = _along(packed, question, answer)
            share = _share_right(gold, question)
        _compare(measured, question, answer, own, dense.log_probs[index])
        share_dense = dense.right[index]
        if question.kind == "digits":
            measured.digits.append(share)
            measured.digits_dense.append(share_dense)
        else:
            measured.words.append(share == 1)
            measured.words_dense.append(share_dense == 1)
    fresh = dense.fresh if is_asked else packed.read(context.fresh, len(context.fresh))
    measured.fresh_nll.append(_nll(fresh, context.fresh))
    measured.fresh_nll_dense.append(_nll(dense.fresh, context.fresh))
    measured.fresh_kl.append(_kl(dense.fresh, fresh))
    seconds = packed.decode_seconds(context.fresh[:_TIMED_TOKENS])
    measured.decode_ms.append(round(1000 * median(seconds), 3))
    measured.prefill_ms.append(round(1000 * packed.prefill_seconds, 1))
    measured.packed_bytes.append(packed.packed_bytes)
    measured.packed_tokens.append(packed.packed_tokens)
    measured.dense_tokens.append(packed.dense_tokens)
    return measured


def _compare(
    measured: Measured, question: Question, answer: tuple[int, ...], mine: Tensor, dense: Tensor
) -> None:
    """Score a system along the dense model's own answer."""
    ids = torch.tensor(answer, device=mine.device)[:, None]
    measured.log_prob.append(_rounded(mine.gather(1, ids).sum()))
    measured.log_prob_dense.append(_rounded(dense.gather(1, ids).sum()))
    same = (mine.argmax(-1) == ids[:, 0]).tolist()
    measured.agrees.append(all(same))
    measured.agrees_first.append(bool(same[question.counted.index(True)]))
    measured.kl.append(_kl(dense, mine))


def _along(packed: PackedContext, question: Question, answer: tuple[int, ...]) -> Tensor:
    """Log-probabilities at each token of an answer: (tokens, vocab_size)."""
    return packed.read(question.prompt + answer[:-1], len(answer))


def _own_answer(packed: PackedContext, question: Question, gold: Tensor) -> tuple[int, ...]:
    """The greedy answer, as long as the right one; `gold` gives it as far as it is right."""
    answer: list[int] = []
    for likeliest, right in zip(gold.argmax(-1).tolist(), question.answer, strict=True):
        answer.append(int(likeliest))
        if likeliest != right:
            break
    while len(answer) < len(question.answer):
        answer.append(int(packed.read((*question.prompt, *answer), 1).argmax()))
    return tuple(answer)


def _share_right(log_probs: Tensor, question: Question) -> float:
    likeliest = log_probs.argmax(-1).tolist()
    right: list[bool] = [
        guess == token
        for guess, token, counts in zip(likeliest, question.answer, question.counted, strict=True)
        if counts
    ]
    return sum(right) / len(right)


def _nll(log_probs: Tensor, token_ids: tuple[int, ...]) -> float:
    """Of each token after the first, from what stands at the one before; nats a token."""
    ids = torch.tensor(token_ids[1:], device=log_probs.device)[:, None]
    return -_rounded(log_probs[:-1].gather(1, ids).mean())


def _kl(dense: Tensor, other: Tensor) -> float:
    """From the dense model to another, mean over tokens, nats."""
    return _rounded((dense.exp() * (dense - other)).sum(-1).mean())


def _rounded(scalar: Tensor) -> float:
    """To seven digits behind the point: what float32 holds, and files stay small."""
    value: float = scalar.item()
    return round(value, 7)
