"""The front door: a model, a store and a session, put together.

agent = Agent("local", store="me.db", budget=2048)
print(agent.chat("My locker code is 58291.").text)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_args

from agentmem.audit.recorder import Recorder
from agentmem.budget import Budget
from agentmem.consolidation import chores_for
from agentmem.context import Context
from agentmem.conversation.queued import QueuedTurns
from agentmem.conversation.session import Session
from agentmem.conversation.suspension import Suspension
from agentmem.conversation.turn import Generation
from agentmem.errors import InvalidInput, Unsupported
from agentmem.events import Event, Reply, SessionStarted, Token, TurnKey, Usage
from agentmem.folders import default_store
from agentmem.memory import Memory
from agentmem.memory_tools import memory_tools_for
from agentmem.models.base import ChatModel, Embedder
from agentmem.models.registry import resolve_embedder, resolve_model
from agentmem.models.scripted import ScriptedModel
from agentmem.modes import ControllerMode, RecallMode, SummaryMode
from agentmem.opening import load_stored_window, open_window
from agentmem.outside import Outside
from agentmem.policies import make_policy
from agentmem.policies.base import SegmentPolicy
from agentmem.recall.scoring import Recall
from agentmem.recollection import Recollection
from agentmem.review.controller import Controller
from agentmem.review.judge import Judge
from agentmem.storage.archive import Archive, SessionRow, Store
from agentmem.summary import Summarizer
from agentmem.worker import Worker

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


class Agent:
    """An assistant whose conversation never outgrows its budget.

    Args:
        model: "local", "hf:PATH-or-ID", "provider:name", "openai-compatible:NAME", "scripted", a
            LangChain chat model, or a `ChatModel`.
        store: path of the SQLite file.
        user: whose memory it is.
        session: name of the conversation; resumed where it exists.
        new: begin the conversation afresh; what was said in it stays in the archive, under a
            numbered name.
        budget: tokens of the window, reply included, or a whole `Budget`.
        kv: format of KV in the window: "dense", "q8", "fp8", "q4", "klt" or "binary".
        controller: who decides in reviews: "scored" the policy, on what the model's logits say of
            each segment; "tools" the model by tool calls, the policy finishes; "llm" the first
            where logits are at hand, else the second; "policy" the policy alone; "off" nobody until
            the window would overflow.
        policy: decides or finishes: a name or a `SegmentPolicy`.
        recall: "kv" as KV where there is a record, "text" always as text, "off".
        system_prompt: what the model is told first; kept from the last run where None.
        embedder: for search by meaning: "auto" or "minilm" the embedded MiniLM, "hash" hashed words
            (no model), "hf:PATH", or an `Embedder`. By default the embedded one, and hashed words
            where the model is scripted: then nothing needs to be installed.
        tools: functions the model may call, where it can.
        memory_tools: let the model edit its core memory, search what was said and keep notes, by
            tools; None leaves it to models that say they can, where the budget has room.
        pin_instructions: pin standing instructions and preferences when the user states them.
        summaries: who writes them: "model", "extract" (sentences of the originals), or "auto": the
            model, but for local ones below a billion parameters, whose summaries keep less.
        background: consolidate memory in a thread of its own between turns: vectors of imports,
            facts that the model reads, summaries that forgetting took away.
        base_url, api_key: of an OpenAI-compatible endpoint.
        threads: CPU threads of the local engine; None leaves torch's choice.
        max_new_tokens, temperature, top_p, top_k, repetition_penalty, seed, stop: of replies.
        outside: what comes from outside comes through it; recorded unless told otherwise.

    Raises:
        BudgetTooSmall: the budget cannot hold system prompt, tools, reserve and two turns.
        ModelError: the model cannot be used.
        StoreError: the store cannot be used; `SessionBusy` where another sender holds the session.
    """

    def __init__(
        self,
        model: str | ChatModel | BaseChatModel = "local",
        *,
        store: str | Path | None = None,
        user: str = "default",
        session: str = "default",
        new: bool = False,
        budget: int | Budget = 2048,
        kv: str = "q8",
        controller: ControllerMode = "llm",
        policy: str | SegmentPolicy = "mixture",
        recall: RecallMode = "kv",
        system_prompt: str | None = None,
        embedder: str | Embedder | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        memory_tools: bool | None = None,
        pin_instructions: bool = True,
        summaries: SummaryMode = "auto",
        background: bool = False,
        base_url: str | None = None,
        api_key: str | None = None,
        threads: int | None = None,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        outside: Callable[[Archive, SessionRow], Outside] = Recorder,
    ) -> None:
        _one_of("controller", controller, get_args(ControllerMode))
        _one_of("recall", recall, get_args(RecallMode))
        _one_of("summaries", summaries, get_args(SummaryMode))
        limits = Budget(budget) if isinstance(budget, int) else budget
        if controller == "off":
            limits = _only_when_full(limits)
        generation = Generation(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=tuple(stop),
        )
        decides = make_policy(policy) if isinstance(policy, str) else policy
        with ExitStack() as stack:
            opened = stack.enter_context(Store.open(store or default_store()))
            archive = opened.for_user(user)
            if new:
                archive.set_aside(session)
            row = archive.session(session)
            stack.enter_context(archive.lease(row.id))
            self.model = resolve_model(
                model,
                base_url=base_url,
                api_key=api_key,
                kv_format=kv,
                threads=threads,
                kv_bytes=limits.kv_bytes,
                parked_ram_bytes=limits.parked_ram_bytes,
            )
            stack.callback(self.model.close)
            suspension = Suspension(archive, row, self.model, limits.parked_disk_bytes)
            suspension.resume()
            stack.callback(suspension.suspend)
            embeds = _embedder(embedder, self.model)
            seam = outside(archive, row)
            asked = seam.model(self.model)
            functions = seam.tools(tools) if asked.capabilities.calls_tools else ()
            settings = {
                "kind": "agent",
                **_described(self.model),
                "budget": asdict(limits),
                "kv": kv,
                "controller": controller,
                "policy": decides.name,
                "rule": repr(decides),
                "recall": recall,
                "system_prompt": system_prompt,
                "embedder": embeds.name,
                "dim": embeds.dim,
                "memory_tools": memory_tools,
                "pin_instructions": pin_instructions,
                "summaries": summaries,
                "generation": asdict(generation),
            }
            with seam.opening(settings):
                context = Context(limits, asked.count_tokens, fence=seam.fence)
                memory = Memory(
                    archive,
                    row,
                    context,
                    embeds,
                    recall=Recall(),
                    kv=asked.kv,
                    let_go=asked.let_go,
                    summarizer=Summarizer.for_budget(
                        asked, context.part, limits, mode=summaries, monotonic=seam.monotonic
                    ),
                    outside=seam,
                )
                decider = _controller(controller, asked, decides, limits, seam.monotonic)

                def reload() -> None:
                    load_stored_window(memory)
                    decider.begin_anew()

                seam.reload = reload
                open_window(memory, system_prompt)
                suspension.memory = memory
                self._recollection = Recollection(memory, recall)
                self.session = Session(
                    memory,
                    asked,
                    controller=decider,
                    generation=generation,
                    recollection=self._recollection,
                    tools=functions,
                    memory_tools=memory_tools_for(memory, asked, memory_tools),
                    pin_instructions=pin_instructions,
                )
            self.started = SessionStarted(
                row.name, self.model.name, limits.max_tokens, kv, row.num_turns
            )
            self._resting: Callable[[], AbstractContextManager[None]] = nullcontext
            if background:
                worker = Worker(chores_for(memory, self.model))
                stack.callback(worker.close)
                self._resting = worker.resting
            self._queued = QueuedTurns(
                lambda text, *, turn, cancelled: self._rested(
                    self.session.events(text, turn=turn, cancelled=cancelled)
                )
            )
            stack.callback(self._queued.close)
            self._stack = stack.pop_all()

    # Talking

    def chat(self, text: str, *, turn: TurnKey | None = None, reply: str | None = None) -> Reply:
        """Send a message and wait for the reply.

        Args:
            text: what the user says.
            turn: a name for the turn, so that it can be sent again safely.
            reply: a reply that is known already: remembered as the model's, not generated.

        Raises:
            SessionBusy: another thread's turn is being answered, or a stream is not at its end.
        """
        answer = None
        for event in self.events(text, turn=turn, reply=reply):
            if isinstance(event, Reply):
                answer = event
        assert answer is not None, "a turn ends with its reply"
        return answer

    def stream(self, text: str, *, turn: TurnKey | None = None) -> Generator[str, None, None]:
        """Send a message; the reply's text as it is generated."""
        for event in self.events(text, turn=turn):
            if isinstance(event, Token):
                yield event.text
            elif isinstance(event, Reply) and event.repeated:
                yield event.text

    def events(
        self, text: str, *, turn: TurnKey | None = None, reply: str | None = None
    ) -> Iterator[Event]:
        """Send a message; everything that happens until the reply, which comes after its commit."""
        return self._rested(self.session.events(text, turn=turn, reply=reply))

    def _rested(self, events: Generator[Event, None, None]) -> Iterator[Event]:
        with self._resting():
            yield from events

    async def achat(self, text: str, *, turn: TurnKey | None = None) -> Reply:
        """`chat` on this agent's own worker thread, after the turns that were asked for before.

        Cancelling the task takes the turn back, or interrupts its reply.
        """
        answer = None
        async with aclosing(self._queued.events(text, turn=turn)) as events:
            async for event in events:
                if isinstance(event, Reply):
                    answer = event
        assert answer is not None, "a turn ends with its reply"
        return answer

    async def astream(self, text: str, *, turn: TurnKey | None = None) -> AsyncIterator[str]:
        """`stream` on this agent's own worker thread, after the turns asked for before.

        The reply does not wait for its reader; one that walks away interrupts it.
        """
        async with aclosing(self._queued.events(text, turn=turn)) as events:
            async for event in events:
                if isinstance(event, Token) or (isinstance(event, Reply) and event.repeated):
                    yield event.text

    def cancel(self) -> None:
        """End the reply being generated; what there is of it is kept. Safe in a signal handler."""
        self.session.cancel()

    # Looking

    @property
    def memory(self) -> Memory:
        """Search, explain, act, undo."""
        return self.session.memory

    @property
    def context(self) -> Context:
        """The window."""
        return self.session.context

    @property
    def usage(self) -> Usage:
        """Tokens, KV bytes and seconds of the last turn, and what a dense cache would hold."""
        return self.session.usage

    def window_text(self) -> str:
        """What stands in the window: decoded prompt tokens where the model has them, else text."""
        decode = getattr(self.model, "window_text", None)
        if decode is not None:
            return str(decode())
        return "\n".join(m.content for part in self.context.prompt() for m in part.messages)

    def turn_segments(self, turn: int) -> list[int]:
        """Ids of what was said in a turn."""
        return [stored.segment.id for stored in self.memory.turn_segments(turn)]

    @property
    def recall(self) -> RecallMode:
        """How segments come back; what is set here holds from the next turn on."""
        return self._recollection.mode

    @recall.setter
    def recall(self, mode: RecallMode) -> None:
        _one_of("recall", mode, get_args(RecallMode))
        with self.memory.outside.act("recall", [mode]):
            self._recollection.mode = mode

    @property
    def recalled_tokens(self) -> int:
        """Tokens in the window that recall brought back."""
        return self.context.recalled_tokens

    # Leaving

    def close(self) -> None:
        """Release session, model and store; the session's KV is left for its next opening."""
        self._stack.close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _controller(
    mode: ControllerMode,
    model: ChatModel,
    policy: SegmentPolicy,
    limits: Budget,
    monotonic: Callable[[], float],
) -> Controller:
    """Who decides, for a model.

    Raises:
        Unsupported: it is to be scored and its logits are not at hand.
    """
    has_logits = model.capabilities.has_logits
    if mode == "llm":
        mode = "scored" if has_logits else "tools"
    if mode == "scored" and not has_logits:
        raise Unsupported(
            f'`controller="scored"` reads logits, which {model.name} does not show: use '
            '"tools" or "policy".'
        )
    return Controller(
        policy=policy,
        budget=limits,
        model=model if mode == "tools" else None,
        judge=Judge(model, limits.max_tokens, monotonic) if mode == "scored" else None,
        monotonic=monotonic,
    )


def _embedder(spec: str | Embedder | None, model: ChatModel) -> Embedder:
    if spec is None and isinstance(model, ScriptedModel):
        spec = "hash"
    return resolve_embedder(spec)


def _described(model: ChatModel) -> dict[str, Any]:
    """What a replay has to know of a model."""
    kv = model.kv
    return {
        "model": model.name,
        "capabilities": asdict(model.capabilities),
        "dense_bytes_per_token": None if kv is None else kv.dense_bytes_per_token,
    }


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInput(f"`{name}` must be one of {', '.join(allowed)}: got {value!r}.")


def _only_when_full(limits: Budget) -> Budget:
    """The same ceilings for a window that is let fill up before anything leaves."""
    full = 1 - (limits.reserve + limits.message_tokens) / limits.max_tokens
    return replace(limits, warn_at=0.999, free_to=max(0.01, full))
