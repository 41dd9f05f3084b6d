"""One conversation inside a fixed budget: talk, search, ask why, undo, forget.

python examples/sdk.py [--model local]
"""

import argparse
import tempfile
from pathlib import Path

from agentmem import Agent


def main() -> None:
    """Talk about a locker code, then look at what became of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="local", help="local, openai:gpt-5, ollama:qwen3, ...")
    model = parser.parse_args().model
    with (
        tempfile.TemporaryDirectory() as folder,
        Agent(model, store=Path(folder) / "me.db", budget=1024) as agent,
    ):
        print("assistant:", agent.chat("My locker code is 58291.").text)
        print("assistant: ", end="")
        for piece in agent.stream("What is my locker code?"):
            print(piece, end="", flush=True)
        print(f"\n{agent.usage.prompt_tokens} of {agent.usage.budget} tokens are in use")

        hit = agent.memory.search("locker code")[0]
        print(f"found segment {hit.segment.id}: {hit.segment.text}")
        agent.memory.drop(hit.segment.id)
        print(agent.memory.why(hit.segment.id))
        print("undone:", agent.memory.undo().action)
        print("forgotten:", agent.memory.forget(hit.segment.id))


if __name__ == "__main__":
    main()
