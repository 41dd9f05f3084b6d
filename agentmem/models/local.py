"""The local engine: one conversation on a transformers model, its KV kept by part.

Composes what the files beside it do: the template turns parts into ids, the window keeps their KV,
the decoding speaks. Knows nothing of archives or policies.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from agentmem.errors import InvalidInput, Unsupported
from agentmem.kernels.backend import kernels_in_words
from agentmem.models.base import (
    Capabilities,
    ChatModel,
    Completion,
    Delta,
    KVTier,
    Options,
    Part,
    PartKey,
    Tool,
)
from agentmem.models.decoding import Decoding
from agentmem.models.engine import Engine, engine_for
from agentmem.models.forward import CHUNK_TOKENS, Cancelled, Forward
from agentmem.models.kv_proof import KVProof, prove
from agentmem.models.likelihoods import Likelihoods
from agentmem.models.loading import load
from agentmem.models.local_kv import LocalKV
from agentmem.models.prompt_ids import Entry, PendingReply, PromptIds
from agentmem.models.reading import Reading, read_reply
from agentmem.models.segment_cache import SegmentCache
from agentmem.models.segment_window import SegmentWindow
from agentmem.models.text_prefill import PrefixWindow
from agentmem.models.tool_text import tools_part, with_tools
from agentmem.storage.kv_disk import KVDisk
from agentmem.storage.kv_folder import KVFolder
from agentmem.storage.kv_manifest import Manifest
from agentmem.storage.kv_parking import USUAL_PARKED_BYTES, Parking

_RESERVED = "~"
"""Keys of what a template or the engine adds begin with this."""

SUMMARIZES_FROM_PARAMETERS = 1_000_000_000
"""A smaller model keeps fewer facts than sentences would: see `agentmem bench summaries`."""


class LocalModel(ChatModel):
    """Answers one conversation. The weights are shared with every other one of the process.

    Args:
        engine: the loaded model.
        kv_format: what parts outside the newest turn are packed into; "dense" packs nothing.
        use_kv: False reads prompts as plain text, saving only their unchanged beginning.
        kv_bytes: bytes of the window's KV on the model's device; what exceeds them is streamed from
            host memory. 0: no ceiling.
        parked_ram_bytes: bytes of KV that left the window, kept in memory; of copies of the
            window's beginnings where it is read as text and its cache cannot be cut. None: a
            sixteenth of what the weights take, at least 32 MiB.
        chunk_tokens: new tokens of one forward at most.

    Attributes:
        kv_problem: why parts have no KV of their own; empty where they have.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        kv_format: str = "q8",
        use_kv: bool = True,
        kv_bytes: int = 0,
        parked_ram_bytes: int | None = None,
        chunk_tokens: int = CHUNK_TOKENS,
    ) -> None:
        loaded = engine.loaded
        if parked_ram_bytes is None:
            parked_ram_bytes = max(USUAL_PARKED_BYTES, loaded.weights_bytes // 16)
        self._engine = engine
        # A model that was attached has proved how it goes on from a cache.
        one_by_one = engine.attached is None and engine.reads_one_by_one
        self._forward = Forward(loaded, chunk_tokens=chunk_tokens, one_by_one=one_by_one)
        self._ids = PromptIds(engine)
        self._entries: list[Entry] = []
        self._kv: LocalKV | None = None
        self._max_tokens = 0
        self._window: SegmentWindow | PrefixWindow
        self.name = loaded.name
        self.kv_problem = engine.kv_problem if use_kv else "switched off"
        if engine.attached is not None and use_kv:
            parking = Parking(parked_ram_bytes)
            cache = SegmentCache(engine.attached, kv_format, parking=parking, kv_bytes=kv_bytes)
            window = SegmentWindow(cache, max_positions=loaded.context_tokens)
            self._window = window
            self._kv = LocalKV(window, cache, self._forget)
        else:
            self._window = PrefixWindow(loaded, max_checkpoint_bytes=parked_ram_bytes)
        self._likelihoods = Likelihoods(engine, self._forward, self._window)
        template = engine.template
        self.capabilities = Capabilities(
            has_kv=self._kv is not None,
            has_logits=True,
            calls_tools=True,
            alternates_roles=template is None or template.alternates,
            writes_summaries=loaded.model.num_parameters() >= SUMMARIZES_FROM_PARAMETERS,
            caches_prefix=True,
            context_tokens=loaded.context_tokens,
        )

    @classmethod
    def load(
        cls,
        spec: str | Path,
        *,
        kv_format: str = "q8",
        use_kv: bool = True,
        kv_bytes: int = 0,
        parked_ram_bytes: int | None = None,
        chunk_tokens: int = CHUNK_TOKENS,
        threads: int | None = None,
        dtype: str | None = None,
        device: str = "cpu",
    ) -> LocalModel:
        """A conversation on the model of a folder, or of `hf:PATH-or-ID`.

        Args:
            spec: where the model is.
            threads: CPU threads of the whole process; None leaves them as they are.
            dtype: of the weights; None means float32, the fastest on a CPU.
            device: of the weights.

        Raises:
            ModelNotFound, ModelCorrupt: files are missing or damaged.
        """
        if threads is not None:
            if threads < 1:
                raise InvalidInput(f"`threads` must be positive: got {threads}.")
            torch.set_num_threads(threads)
        return cls(
            engine_for(load(spec, dtype=dtype or "float32", device=device)),
            kv_format=kv_format,
            use_kv=use_kv,
            kv_bytes=kv_bytes,
            parked_ram_bytes=parked_ram_bytes,
            chunk_tokens=chunk_tokens,
        )

    @property
    def kv(self) -> KVTier | None:
        """The KV tier, where the model has one."""
        return self._kv

    @property
    def fingerprint(self) -> str:
        """Who the model is: weights, tokenizer, dtype and RoPE."""
        return self._engine.loaded.fingerprint

    @property
    def _kv_fingerprint(self) -> str:
        """What must be the same for KV of another process to be of use here."""
        engine = self._engine
        facts = [engine.loaded.fingerprint, str(engine.loaded.tokenizer.chat_template)]
        if self._kv is not None and engine.attached is not None:
            facts += [engine.attached.fingerprint, self._kv.format]
        return hashlib.sha256("\0".join(facts).encode()).hexdigest()

    @property
    def template_problem(self) -> str:
        """Why the chat template cannot be taken apart; empty where it can."""
        return self._engine.template_problem

    @property
    def peak_tokens(self) -> int:
        """Most tokens any forward attended to since this was last set to 0."""
        return self._forward.peak_tokens

    @peak_tokens.setter
    def peak_tokens(self, value: int) -> None:
        self._forward.peak_tokens = value

    @property
    def kernels(self) -> str:
        """What attends to packed keys and values here, in words; empty without a KV tier."""
        attached = self._engine.attached
        if attached is None:
            return ""
        return kernels_in_words(attached.device, attached.layers[0].head_dim)

    def prove_kv(self) -> KVProof | None:
        """Hold the model's KV tier against text prefill; None where it has none.

        Raises:
            Unsupported: it fails the self-test.
        """
        attached = self._engine.attached
        if self._kv is None or attached is None:
            return None
        return prove(self._engine, attached)

    @property
    def num_forwards(self) -> int:
        """Forwards of this conversation, reviews included."""
        return self._forward.num_forwards

    @property
    def num_computed_tokens(self) -> int:
        """Tokens computed in this conversation, read and spoken, reviews included."""
        return self._forward.num_tokens

    def count_tokens(self, part: Part) -> int:
        """Tokens of the part in a prompt: the true number for parts that were in one."""
        return self._ids.count(part)

    def count_tools(self, tools: Sequence[Tool]) -> int:
        """Tokens of the tools' signatures, which is all the model reads of them."""
        return self.count_tokens(tools_part(tools)) if tools else 0

    def prompt_token_ids(self) -> list[int]:
        """Ids of the last prompt that was not an aside, without what asks for the reply."""
        return [token_id for entry in self._entries for token_id in entry.token_ids]

    def window_text(self) -> str:
        """What the model was shown in that prompt, decoded from its ids, in order."""
        return self._engine.vocabulary.encoder.decode(self.prompt_token_ids())

    def resume(self, folder: KVFolder, manifest: Manifest | None, max_bytes: int) -> None:
        """Keep KV that leaves memory in a folder, and go on from what a clean close left there."""
        if self._kv is None:
            return
        disk = KVDisk(folder, model=self._kv_fingerprint, max_bytes=max_bytes)
        if manifest is not None and manifest.fingerprint != disk.model:
            manifest = None
        for record in self._kv.resume(disk, manifest):
            self._ids.take_up(record.key, record.token_ids, record.rendering)

    def suspend(self, prompt: Sequence[Part]) -> Manifest | None:
        """Write all KV the conversation holds to the folder it was resumed with."""
        if self._kv is None or self._kv.disk is None:
            return None
        self._finish_reply(self._kv, prompt)
        return self._kv.suspend(self._ids.renderings())

    def _finish_reply(self, kv: LocalKV, prompt: Sequence[Part]) -> None:
        """Make the last reply a part of its own, where its KV waits for one."""
        if self._ids.pending is None:
            return
        try:
            reply = [entry for entry in self._ids.entries(prompt) if entry.is_reply]
        except Unsupported:
            return  # such a window cannot be a prompt: it is read when it can be one again
        read = partial(self._forward.run, kv.window, max_tokens=self._max_tokens)
        if reply and kv.window.finish_reply(reply, read):
            self._ids.remember(prompt, reply)

    def let_go(self) -> None:
        """Drop tokens, cache and copies of states, where there is no KV tier to forget parts of."""
        if self._kv is None:
            self._window.close()
            self._ids = PromptIds(self._engine)
            self._entries = []

    def close(self) -> None:
        """Free the conversation's KV; the weights stay while another conversation uses them."""
        self._likelihoods.close()
        self._window.close()
        if self._kv is not None:
            self._kv.clear()
        self._ids = PromptIds(self._engine)
        self._entries = []

    def generate(self, prompt: Sequence[Part], options: Options) -> Iterator[Delta]:
        """Answer the prompt; the last delta carries the completion.

        Raises:
            BudgetExceeded: the prompt passes `options.max_tokens` or the model's context; nothing
                has changed then.
            InvalidInput: an option is out of range, or a key stands twice in the prompt.
            Unsupported: the chat template refuses the conversation.
        """
        _check(prompt, options)
        may_call = bool(options.tools) and options.json_schema is None
        if may_call:
            prompt = with_tools(prompt, options.tools)
        ids = self._ids.copy() if options.ephemeral else self._ids
        entries = ids.entries(prompt)
        header = ids.reply_header() if options.max_new_tokens else []
        num_tokens = sum(len(entry.token_ids) for entry in entries) + len(header)
        self._forward.check(0, num_tokens, options.max_tokens)
        constraint = self._engine.constraint(options)
        window = self._window.fork() if options.ephemeral else self._window
        decoding = Decoding(
            self._forward,
            window,
            options,
            self._engine.vocabulary,
            constraint,
            holds_calls=may_call,
        )
        if not options.ephemeral:
            self._max_tokens = options.max_tokens
            self._begin(prompt, entries)
        num_before, started = self._forward.num_tokens, time.perf_counter()
        try:
            new_ids = self._enter(window, entries, header, options)
            num_entered = self._forward.num_tokens - num_before
            enter_seconds = time.perf_counter() - started
            if options.max_new_tokens:
                for piece in decoding.run(new_ids):
                    yield Delta(piece)
            else:
                decoding.finish_reason = "length"
        except Cancelled:
            enter_seconds = time.perf_counter() - started
            decoding.finish_reason = "interrupted"
        finally:
            # Before the reader hears of the end, and also where it stopped listening.
            reading = read_reply(self._engine, decoding, header, options)
            if options.ephemeral:
                window.close()
            else:
                self._settle(decoding, reading, header)
        num_prefilled = self._forward.num_tokens - num_before
        if decoding.is_prompt_read:
            num_prefilled = num_entered + len(new_ids)
        yield Delta(
            "" if reading.tool_calls else decoding.pending(),
            Completion(
                text=reading.text,
                finish_reason=reading.finish_reason,
                tool_calls=reading.tool_calls,
                thought=reading.thought,
                prompt_tokens=decoding.prompt_tokens or num_tokens,
                completion_tokens=len(decoding.token_ids),
                prefilled_tokens=num_prefilled,
                prefill_seconds=enter_seconds + decoding.prefill_seconds,
                decode_seconds=decoding.decode_seconds,
            ),
        )

    def weigh(
        self,
        examples: Sequence[Part],
        parts: Sequence[Part],
        answers: Sequence[str],
        options: Options,
    ) -> Iterator[tuple[float, ...]]:
        """How likely each answer is to each part; parts of the window are not read again."""
        for part in parts:
            _check([*examples, part], options)
        yield from self._likelihoods.weigh(self._ids, examples, parts, answers, options)

    def _begin(self, prompt: Sequence[Part], entries: Sequence[Entry]) -> None:
        """Keep the ids of this prompt's parts, and let those of parts that are gone go."""
        wanted = {entry.key for entry in entries}
        has = self._kv.has if self._kv is not None else wanted.__contains__
        self._ids.forget([key for key in self._ids.keys() if key not in wanted and not has(key)])
        self._ids.remember(prompt, entries)
        self._ids.pending = None
        self._entries = list(entries)

    def _enter(
        self,
        window: SegmentWindow | PrefixWindow,
        entries: Sequence[Entry],
        header: Sequence[int],
        options: Options,
    ) -> list[int]:
        """Bring the window to the prompt; ids that are left to be read with the reply's begin."""

        read = partial(
            self._forward.run,
            window,
            max_tokens=options.max_tokens,
            cancelled=options.cancelled,
        )
        new_ids = window.enter(entries, header, read)
        if not options.max_new_tokens and new_ids:
            read(new_ids)
        return new_ids

    def _settle(self, decoding: Decoding, reading: Reading, header: Sequence[int]) -> None:
        """Keep the reply's KV for the part that will bring it back, if it can stay as it is."""
        template, spoken = self._engine.template, decoding.spoken_ids()
        can_stay = (
            template is not None
            and template.keeps_replies
            # Templates take thoughts out of the history.
            and not reading.thought
            and spoken is not None
            and decoding.is_prompt_read
        )
        if can_stay and spoken is not None:
            pending = PendingReply((*header, *spoken), reading.text, reading.tool_calls)
            self._ids.pending = pending
            self._window.settle(len(pending.token_ids))
        else:
            self._window.settle(0)

    def _forget(self, key: PartKey) -> None:
        self._ids.forget([key])
        self._entries = [entry for entry in self._entries if entry.key != key]
        # The part may be the last reply, which has no key yet.
        self._ids.pending = None
        self._window.settle(0)


def _check(prompt: Sequence[Part], options: Options) -> None:
    for name in ("max_new_tokens", "max_tokens"):
        if getattr(options, name) < 0:
            raise InvalidInput(f"`{name}` must not be negative: got {getattr(options, name)}.")
    seen: set[PartKey] = set()
    for part in prompt:
        if isinstance(part.key, str) and part.key.startswith(_RESERVED):
            raise InvalidInput(f"Keys that begin with {_RESERVED!r} are ours: got {part.key!r}.")
        if part.key in seen:
            raise InvalidInput(f"A part stands once in a prompt: {part.key!r} is there twice.")
        seen.add(part.key)
