"""`agentmem bench`: measurements that anybody can repeat.

Only flags count here, no settings: the command alone must give the same rows on another machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Self, TypeVar

import typer

from agentmem.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from agentmem.bench.options import PlayOptions

app = typer.Typer(name="bench", help="Measure, and write what was measured.")

_Out = Annotated[
    Path | None, typer.Option("--out", help="JSON file; rows in it are not measured again.")
]
_Quick = Annotated[bool, typer.Option("--quick", help="Small, for minutes on two cores.")]
_Script = Annotated[Path | None, typer.Option("--script", help="Play this conversation file.")]
_Turns = Annotated[int | None, typer.Option("--turns", min=1, help="Of a conversation.")]
_Facts = Annotated[int | None, typer.Option("--facts", min=1, help="Stated in it.")]
_Tokens = Annotated[int | None, typer.Option("--tokens", min=1, help="Of all of it.")]
_Conversations = Annotated[
    int | None, typer.Option("--conversations", min=1, help="Seeds from --seed on, pooled.")
]
_Layouts = Annotated[list[str] | None, typer.Option("--layout", help="document, chat; repeatable.")]


_NOT_OPTIONS = ("quick", "store", "user", "as_json")


class _Options(Protocol):
    """What a benchmark is asked for."""

    @classmethod
    def quick(cls, **changes: Any) -> Self: ...


_T = TypeVar("_T", bound=_Options)
_P = TypeVar("_P", bound="PlayOptions")


def _chosen(kind: type[_T], given: Mapping[str, Any], **plural: str) -> _T:
    """The options of a run, out of the arguments of its command."""
    flags = _flags(given, plural)
    return kind.quick(**flags) if given["quick"] else kind(**flags)


def _fitted(kind: type[_P], given: Mapping[str, Any], **plural: str) -> _P:
    """The options of a run that plays conversations; what had to be lowered goes to stderr."""
    from agentmem.cli.render import progress

    fitted, notes = kind.fitted(quick=given["quick"], **_flags(given, plural))
    for note in notes:
        progress(note)
    return fitted


def _flags(given: Mapping[str, Any], plural: Mapping[str, str]) -> dict[str, Any]:
    """What was said on the command line.

    Args:
        given: a command's own arguments by name; None and empty lists were not given.
        plural: what arguments that may be repeated are called in the options.
    """
    return {
        plural.get(name, name): tuple(value) if name in plural else value
        for name, value in given.items()
        if name not in _NOT_OPTIONS and value is not None and value != []
    }


def _show(
    bench: str,
    rows: Sequence[Any],
    tables: Callable[[], Iterable[Table]],
    as_json: bool,
    to_dict: Callable[[Any], Mapping[str, Any]] = asdict,
) -> None:
    """Write rows as JSON, or as the tables that are made of them."""
    from agentmem.cli import render as screen

    if as_json:
        for row in rows:
            screen.write_json({"type": "row", "bench": bench, **to_dict(row)})
    else:
        for drawn in tables():
            screen.table_console().print(drawn)


@app.callback()
def _group() -> None:
    pass


@app.command()
def recall(
    quick: _Quick = False,
    out: _Out = None,
    system: Annotated[
        list[str] | None,
        typer.Option("--system", help="dense, window, oracle, agentmem[:kv|:text]; repeatable."),
    ] = None,
    script: _Script = None,
    write_script: Annotated[
        Path | None, typer.Option("--write-script", help="Write the conversation that is played.")
    ] = None,
    turns: _Turns = None,
    facts: _Facts = None,
    tokens: _Tokens = None,
    updates: Annotated[
        int | None, typer.Option("--updates", min=0, help="Facts whose value changes in it.")
    ] = None,
    instructions: Annotated[
        int | None, typer.Option("--instructions", min=0, help="Standing ones, stated in it.")
    ] = None,
    returning: Annotated[
        int | None, typer.Option("--returning", min=0, help="Asked in it, 500 turns later.")
    ] = None,
    generate: Annotated[
        bool, typer.Option("--generate", help="The model answers every turn itself.")
    ] = False,
    conversations: _Conversations = None,
    model: options.Model = None,
    budget: options.BudgetTokens = None,
    controller: options.Controller = None,
    policy: options.Policy = None,
    kv: options.KV = None,
    embedder: options.EmbedderName = None,
    max_new_tokens: options.MaxNewTokens = None,
    threads: options.Threads = None,
    seed: options.Seed = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Ask, hundreds of turns later, what was said; against dense, window and oracle.

    It plays in stores of its own: --store and --user change nothing.
    """
    given = locals()
    from agentmem.bench.recall import RecallOptions, render, render_growth, run_recall
    from agentmem.cli.render import progress

    rows = run_recall(_fitted(RecallOptions, given, system="systems"), progress=progress)
    _show("recall", rows, lambda: filter(None, (render(rows), render_growth(rows))), as_json)


@app.command()
def controller(
    quick: _Quick = False,
    out: _Out = None,
    decider: Annotated[
        list[str] | None,
        typer.Option(
            "--decider", help="oracle, random, a policy, llm-scored, -mixture, -free; repeatable."
        ),
    ] = None,
    recall: Annotated[
        list[str] | None, typer.Option("--recall", help="off, on; repeatable.")
    ] = None,
    script: _Script = None,
    turns: _Turns = None,
    facts: _Facts = None,
    tokens: _Tokens = None,
    conversations: _Conversations = None,
    model: options.Model = None,
    budget: options.BudgetTokens = None,
    kv: options.KV = None,
    threads: options.Threads = None,
    seed: options.Seed = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """See what each decider keeps of what will be needed; against chance and an oracle.

    It plays in stores of its own: --store and --user change nothing.
    """
    given = locals()
    from agentmem.bench.controller import ControllerOptions, render, run_controller
    from agentmem.cli.render import progress

    chosen = _fitted(ControllerOptions, given, decider="deciders", recall="recalls")
    rows = run_controller(chosen, progress=progress)
    _show("controller", rows, lambda: [render(rows)], as_json)


@app.command()
def summaries(
    quick: _Quick = False,
    out: _Out = None,
    system: Annotated[
        list[str] | None,
        typer.Option("--system", help="llm, extract, random, whole; repeatable."),
    ] = None,
    script: _Script = None,
    stretches: Annotated[
        int | None, typer.Option("--stretches", min=1, help="Of all conversations together.")
    ] = None,
    turns: _Turns = None,
    facts: Annotated[int | None, typer.Option("--facts", min=1, help="Asked for in it.")] = None,
    tokens: _Tokens = None,
    conversations: _Conversations = None,
    model: options.Model = None,
    threads: options.Threads = None,
    seed: options.Seed = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """See how many facts survive a summary: by the model, by the extract, by chance.

    It plays in stores of its own: --store and --user change nothing.
    """
    given = locals()
    from agentmem.bench.summaries import SummaryOptions, render, run_summaries
    from agentmem.cli.render import progress

    rows = run_summaries(_fitted(SummaryOptions, given, system="systems"), progress=progress)
    _show("summaries", rows, lambda: [render(rows)], as_json)


@app.command()
def kv(
    quick: _Quick = False,
    out: _Out = None,
    format: Annotated[
        list[str] | None,
        typer.Option("--format", help="A format, or quanto4, quanto2, hqq4, hqq2; repeatable."),
    ] = None,
    layout: _Layouts = None,
    context: Annotated[
        list[int] | None,
        typer.Option("--context", min=256, help="Tokens of a context; repeatable."),
    ] = None,
    text_domain: Annotated[
        list[str] | None,
        typer.Option("--text-domain", help="prose, code, chat, chinese; repeatable."),
    ] = None,
    answers: Annotated[
        int | None,
        typer.Option("--answers", min=1, help="Codes asked for in each layout and domain."),
    ] = None,
    baseline_answers: Annotated[
        int | None,
        typer.Option("--baseline-answers", min=1, help="The same for transformers' caches."),
    ] = None,
    model: options.Model = None,
    threads: options.Threads = None,
    seed: options.Seed = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Ask for needles in contexts whose keys and values are packed, in every format.

    It has no store: --store and --user change nothing.
    """
    given = locals()
    from agentmem.bench.kv import KVOptions, render, run_kv
    from agentmem.cli.render import progress

    chosen = _chosen(
        KVOptions,
        given,
        format="formats",
        layout="layouts",
        context="contexts",
        text_domain="text_domains",
    )
    rows = run_kv(chosen, progress=progress)
    _show("kv", rows, lambda: [render(rows)], as_json, lambda row: row.scalars())


@app.command()
def kernels(
    quick: _Quick = False,
    out: _Out = None,
    part: Annotated[
        list[str] | None,
        typer.Option("--part", help="attention, pages, decode, memory; repeatable."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", help="Query heads/key heads/channels, as 9/3/64; repeatable."),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option("--tokens", min=1, help="Of a window, for attention; repeatable."),
    ] = None,
    layout: _Layouts = None,
    format: Annotated[
        list[str] | None,
        typer.Option("--format", help="q8, q4, klt, fp8, binary, dense, quanto4; repeatable."),
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option("--context", min=256, help="Tokens before decoded ones; repeatable."),
    ] = None,
    memory_tokens: Annotated[
        int | None, typer.Option("--memory-tokens", min=1, help="Of the window, for memory.")
    ] = None,
    decoded: Annotated[
        int | None, typer.Option("--decoded", min=1, help="Tokens each system decodes.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="For which the calls of a row take turns.")
    ] = None,
    model: options.Model = None,
    threads: options.Threads = None,
    seed: options.Seed = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Time attention on packed pages against SDPA, and a model's decoding against DynamicCache.

    It has no store: --store and --user change nothing.
    """
    given = locals()
    from agentmem.bench.kernels import KernelOptions, render, run_kernels
    from agentmem.bench.kernels_row import to_dict
    from agentmem.cli.render import progress

    chosen = _chosen(
        KernelOptions,
        given,
        part="parts",
        shape="shapes",
        length="tokens",
        layout="layouts",
        format="formats",
        context="contexts",
    )
    rows = run_kernels(chosen, progress=progress)
    _show("kernels", rows, lambda: render(rows), as_json, to_dict)
