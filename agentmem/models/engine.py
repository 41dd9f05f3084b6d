"""What the conversations of one process share of one model: weights, template, grammar, attention.

Everything here is set up once per loaded model; nothing here belongs to a conversation.
"""

from __future__ import annotations

import logging
import threading
from functools import cached_property
from weakref import WeakValueDictionary

from agentmem.errors import Unsupported
from agentmem.models.attached import AttachedModel, attach
from agentmem.models.base import Options
from agentmem.models.decoding import Vocabulary
from agentmem.models.full_rendering import FullRendering
from agentmem.models.grammar import Constraint, GrammarCompiler
from agentmem.models.loading import LoadedModel
from agentmem.models.template import Template
from agentmem.models.template_probe import probe_template
from agentmem.models.text_encoder import TextEncoder
from agentmem.models.tool_text import call_schema

logger = logging.getLogger(__name__)

_THOUGHT_MARKERS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


class Engine:
    """One loaded model, ready to serve conversations.

    Attributes:
        loaded: weights and tokenizer.
        template: the frames of its chat template, None where it cannot be taken apart.
        rendering: renders whole prompts where there is no template.
        template_problem: why there is none; empty where there is.
        attached: the model made ready for segment caches, None where it cannot be.
        kv_problem: why it cannot be; empty where it can.
        vocabulary: what its ids mean to a reader.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.template: Template | None = None
        self.template_problem = ""
        self.rendering = FullRendering(loaded.tokenizer)
        source = str(loaded.tokenizer.chat_template or "")
        try:
            self.template = probe_template(loaded.tokenizer)
        except Unsupported as error:
            self.template_problem = str(error)
        encoder = self.template.encoder if self.template else TextEncoder(loaded.tokenizer, source)
        stops = set(_end_ids(loaded))
        if self.template is not None:
            stops |= self.template.stop_ids()
        thoughts = _thought_ids(encoder, source)
        # A response template may read control tokens of its own: then all may be spoken.
        has_response_template = getattr(loaded.tokenizer, "response_template", None) is not None
        self.vocabulary = Vocabulary(
            encoder,
            frozenset(stops),
            self.template.stop_texts if self.template else (),
            thoughts,
            frozenset() if has_response_template else encoder.special_ids - stops - set(thoughts),
        )
        self.attached: AttachedModel | None = None
        self.kv_problem = self.template_problem
        if self.template is not None:
            try:
                self.attached = attach(loaded.model)
            except Unsupported as error:
                self.kv_problem = str(error)
        if self.kv_problem:
            logger.warning("%s runs without a KV tier, on text: %s", loaded.name, self.kv_problem)
        self._setup = threading.Lock()

    def constraint(self, options: Options) -> Constraint | None:
        """What the reply must fit: `json_schema`; or a call of one of the tools, or free text.

        Raises:
            InvalidInput: the schema cannot be enforced.
        """
        if options.grammar:
            return self._grammar.lark(options.grammar)
        if options.json_schema is not None:
            return self._grammar.json_schema(options.json_schema)
        if options.tools:
            return self._grammar.json_or_text(call_schema(options.tools))
        return None

    @cached_property
    def reads_one_by_one(self) -> bool:
        """Whether tokens behind others must be read one at a time, on text prefill.

        Raises:
            Unsupported: the model does not go on from a cache at all.
        """
        # Windows of text are made of prompts, which engines read.
        from agentmem.models.continuation import reads_one_by_one

        return reads_one_by_one(self.loaded)

    @cached_property
    def _grammar(self) -> GrammarCompiler:
        with self._setup:
            ends = _end_ids(self.loaded)
            ends += sorted(self.vocabulary.stop_ids.difference(ends))
            return GrammarCompiler(self.loaded.tokenizer, self.loaded.vocab_size, ends)


_engines: WeakValueDictionary[LoadedModel, Engine] = WeakValueDictionary()
_lock = threading.Lock()


def engine_for(loaded: LoadedModel) -> Engine:
    """The engine of a loaded model; the same one for all its conversations."""
    with _lock:
        engine = _engines.get(loaded)
        if engine is None:
            engine = _engines[loaded] = Engine(loaded)
        return engine


def _end_ids(loaded: LoadedModel) -> list[int]:
    """Ids that end a text, the tokenizer's own first."""
    ends: list[int] = []
    generation = getattr(loaded.model, "generation_config", None)
    for value in (loaded.tokenizer.eos_token_id, getattr(generation, "eos_token_id", None)):
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is not None and token_id not in ends:
                ends.append(int(token_id))
    return ends


def _thought_ids(encoder: TextEncoder, source: str) -> tuple[int | None, int | None]:
    """The marker tokens of a template that has a place for thoughts."""
    for opens, closes in _THOUGHT_MARKERS:
        if closes in source:
            ids = encoder.token_id(opens), encoder.token_id(closes)
            if None not in ids:
                return ids
    return None, None
