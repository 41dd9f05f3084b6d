"""Asks a context's questions of one system, and compares its answers with the dense model's.

Everything is teacher-forced: an answer's tokens are given, and what the system holds for likeliest
at each is looked at. Along the dense model's own answer that is the same as decoding greedily.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    right: list[float]
    answers: list[tuple[int, ...]]
    log_probs: list[Tensor]
    fresh: Tensor


def ask_dense(packed: PackedContext, context: NeedleContext) -> Reference:
    """Ask the dense model, which the others are compared with."""
    questions = context.questions
    golds = _along(packed, [(one, one.answer) for one in questions])
    right = [_share_right(*pair) for pair in zip(golds, questions, strict=True)]
    answers = _own_answers(packed, questions, golds)
    differ = [i for i, one in enumerate(questions) if answers[i] != one.answer]
    own = _along(packed, [(questions[i], answers[i]) for i in differ])
    log_probs = list(golds)
    for index, along in zip(differ, own, strict=True):
        log_probs[index] = along
    fresh = packed.read(context.fresh, len(context.fresh))
    return Reference(packed, right, answers, log_probs, fresh)


def measure(packed: PackedContext, context: NeedleContext, dense: Reference) -> Measured:
    """Ask a system, and compare.

    Args:
        packed: the context in its cache.
        context: what to ask.
        dense: of the same context; if it looks at `packed` itself, nothing is asked again.
    """
    questions = context.questions
    own, right, fresh = dense.log_probs, dense.right, dense.fresh
    if packed is not dense.packed:
        pairs = [(one, one.answer) for one in questions]
        pairs += zip(questions, dense.answers, strict=True)
        along = _along(packed, pairs)
        golds, own = along[: len(questions)], along[len(questions) :]
        right = [_share_right(*pair) for pair in zip(golds, questions, strict=True)]
        fresh = packed.read(context.fresh, len(context.fresh))
    measured = Measured()
    for index, question in enumerate(questions):
        _compare(measured, question, dense.answers[index], own[index], dense.log_probs[index])
        if question.kind == "digits":
            measured.digits.append(right[index])
            measured.digits_dense.append(dense.right[index])
        else:
            measured.words.append(right[index] == 1)
            measured.words_dense.append(dense.right[index] == 1)
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


def _along(
    packed: PackedContext, pairs: Sequence[tuple[Question, tuple[int, ...]]]
) -> list[Tensor]:
    """Log-probabilities at each token of each answer to a question: (tokens, vocab_size)."""
    texts = [question.prompt + answer[:-1] for question, answer in pairs]
    # An answer that is asked for twice is read once.
    distinct = {text: len(answer) for text, (_, answer) in zip(texts, pairs, strict=True)}
    read = dict(
        zip(distinct, packed.read_all(list(distinct), list(distinct.values())), strict=True)
    )
    return [read[text][-len(answer) :] for text, (_, answer) in zip(texts, pairs, strict=True)]


def _own_answers(
    packed: PackedContext, questions: Sequence[Question], golds: Sequence[Tensor]
) -> list[tuple[int, ...]]:
    """Greedy answers, as long as the right ones; `golds` give them as far as they are right."""
    answers: list[tuple[int, ...]] = []
    for question, gold in zip(questions, golds, strict=True):
        likeliest = gold.argmax(-1).tolist()
        pairs = zip(likeliest, question.answer, strict=True)
        num_right = next((i for i, (mine, right) in enumerate(pairs) if mine != right), None)
        known = len(likeliest) if num_right is None else num_right + 1
        answers.append(tuple(likeliest[:known]))
    while open_ones := [i for i, one in enumerate(questions) if len(answers[i]) < len(one.answer)]:
        texts = [(*questions[i].prompt, *answers[i]) for i in open_ones]
        for index, log_probs in zip(
            open_ones, packed.read_all(texts, [1] * len(texts)), strict=True
        ):
            answers[index] += (int(log_probs.argmax()),)
    return answers


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
