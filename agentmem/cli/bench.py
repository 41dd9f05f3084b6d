"""`agentmem bench`: measurements that anybody can repeat.

Only flags count here, no settings: the command alone must give the same rows on another machine.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from agentmem.cli import options

app = typer.Typer(name="bench", help="Measure, and write what was measured.")

_Out = Annotated[
    Path | None, typer.Option("--out", help="JSON file; rows in it are not measured again.")
]
_Quick = Annotated[bool, typer.Option("--quick", help="Small, for minutes on two cores.")]
_Layouts = Annotated[list[str] | None, typer.Option("--layout", help="document, chat; repeatable.")]


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
    script: Annotated[
        Path | None, typer.Option("--script", help="Play this conversation file.")
    ] = None,
    write_script: Annotated[
        Path | None, typer.Option("--write-script", help="Write the conversation that is played.")
    ] = None,
    turns: Annotated[
        int | None, typer.Option("--turns", min=1, help="Of the conversation.")
    ] = None,
    facts: Annotated[int | None, typer.Option("--facts", min=1, help="Stated in it.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Of all of it.")] = None,
    updates: Annotated[
        int | None, typer.Option("--updates", min=0, help="Facts whose value changes in it.")
    ] = None,
    instructions: Annotated[
        int | None, typer.Option("--instructions", min=0, help="Standing ones, stated in it.")
    ] = None,
    conversations: Annotated[
        int | None, typer.Option("--conversations", min=1, help="Seeds from --seed on, pooled.")
    ] = None,
    model: options.Model = None,
    budget: options.BudgetTokens = None,
    controller: options.Controller = None,
    policy: options.Policy = None,
    kv: options.KV = None,
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
    from agentmem.bench.recall import RecallOptions, render, run_recall
    from agentmem.cli import render as screen

    own = ("quick", "system", "store", "user", "as_json")
    flags = {name: value for name, value in given.items() if name not in own and value is not None}
    if system:
        flags["systems"] = tuple(system)
    rows = run_recall(
        RecallOptions.quick(**flags) if quick else RecallOptions(**flags), progress=screen.progress
    )
    if as_json:
        for row in rows:
            screen.write_json({"type": "row", "bench": "recall"} | asdict(row))
    else:
        screen.table_console().print(render(rows))


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
    script: Annotated[
        Path | None, typer.Option("--script", help="Play this conversation file.")
    ] = None,
    turns: Annotated[int | None, typer.Option("--turns", min=1, help="Of a conversation.")] = None,
    facts: Annotated[int | None, typer.Option("--facts", min=1, help="Stated in it.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Of all of it.")] = None,
    conversations: Annotated[
        int | None, typer.Option("--conversations", min=1, help="Seeds from --seed on, pooled.")
    ] = None,
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
    lists = {"deciders": decider, "recalls": recall}
    single = {
        "out": out, "script": script, "turns": turns, "facts": facts, "tokens": tokens,
        "conversations": conversations, "model": model, "budget": budget, "kv": kv,
        "threads": threads, "seed": seed,
    }  # fmt: skip
    from agentmem.bench.controller import ControllerOptions, render, run_controller
    from agentmem.cli import render as screen

    flags: dict[str, Any] = {name: tuple(given) for name, given in lists.items() if given}
    flags |= {name: given for name, given in single.items() if given is not None}
    rows = run_controller(
        ControllerOptions.quick(**flags) if quick else ControllerOptions(**flags),
        progress=screen.progress,
    )
    if as_json:
        for row in rows:
            screen.write_json({"type": "row", "bench": "controller"} | asdict(row))
    else:
        screen.table_console().print(render(rows))


@app.command()
def summaries(
    quick: _Quick = False,
    out: _Out = None,
    system: Annotated[
        list[str] | None,
        typer.Option("--system", help="llm, extract, random, whole; repeatable."),
    ] = None,
    script: Annotated[
        Path | None, typer.Option("--script", help="Take stretches of this conversation file.")
    ] = None,
    stretches: Annotated[
        int | None, typer.Option("--stretches", min=1, help="Of all conversations together.")
    ] = None,
    turns: Annotated[int | None, typer.Option("--turns", min=1, help="Of a conversation.")] = None,
    facts: Annotated[int | None, typer.Option("--facts", min=1, help="Asked for in it.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Of all of it.")] = None,
    conversations: Annotated[
        int | None, typer.Option("--conversations", min=1, help="Seeds from --seed on, pooled.")
    ] = None,
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
    single = {
        "out": out, "script": script, "stretches": stretches, "turns": turns, "facts": facts,
        "tokens": tokens, "conversations": conversations, "model": model, "threads": threads,
        "seed": seed,
    }  # fmt: skip
    from agentmem.bench.summaries import SummaryOptions, render, run_summaries
    from agentmem.cli import render as screen

    flags: dict[str, Any] = {name: given for name, given in single.items() if given is not None}
    if system:
        flags["systems"] = tuple(system)
    rows = run_summaries(
        SummaryOptions.quick(**flags) if quick else SummaryOptions(**flags),
        progress=screen.progress,
    )
    if as_json:
        for row in rows:
            screen.write_json({"type": "row", "bench": "summaries"} | asdict(row))
    else:
        screen.table_console().print(render(rows))


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
    lists = {
        "formats": format, "layouts": layout, "contexts": context, "text_domains": text_domain,
    }  # fmt: skip
    single = {
        "out": out, "answers": answers, "baseline_answers": baseline_answers, "model": model,
        "threads": threads, "seed": seed,
    }  # fmt: skip
    from agentmem.bench.kv import KVOptions, render, run_kv
    from agentmem.cli import render as screen

    flags: dict[str, Any] = {name: tuple(given) for name, given in lists.items() if given}
    flags |= {name: given for name, given in single.items() if given is not None}
    rows = run_kv(
        KVOptions.quick(**flags) if quick else KVOptions(**flags), progress=screen.progress
    )
    if as_json:
        for row in rows:
            screen.write_json({"type": "row", "bench": "kv"} | row.scalars())
    else:
        screen.table_console().print(render(rows))


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
    lists = {
        "parts": part, "shapes": shape, "tokens": length, "layouts": layout, "formats": format,
        "contexts": context,
    }  # fmt: skip
    single = {
        "out": out, "memory_tokens": memory_tokens, "decoded": decoded, "seconds": seconds,
        "model": model, "threads": threads, "seed": seed,
    }  # fmt: skip
    from agentmem.bench.kernels import KernelOptions, render, run_kernels
    from agentmem.bench.kernels_row import to_dict
    from agentmem.cli import render as screen

    flags: dict[str, Any] = {name: tuple(given) for name, given in lists.items() if given}
    flags |= {name: given for name, given in single.items() if given is not None}
    rows = run_kernels(
        KernelOptions.quick(**flags) if quick else KernelOptions(**flags), progress=screen.progress
    )
    if as_json:
        for row in rows:
            screen.write_json({"type": "row", "bench": "kernels"} | to_dict(row))
    else:
        for drawn in render(rows):
            screen.table_console().print(drawn)
