"""An assistant with a list of tasks that may be killed at any moment: run again, it goes on.

python examples/long_running.py --store assistant.db [--model local] [--stop-after N]
"""

import argparse

from agentmem import Agent

TASKS = [
    "Remember: the meeting with Ada is on Tuesday at ten.",
    "Draft a short invitation to it.",
    "Remember: Ada prefers tea.",
    "When is the meeting, and what should I offer?",
]


def main() -> None:
    """Do every task once, whatever happened before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="assistant.db")
    parser.add_argument("--model", default="local")
    parser.add_argument("--stop-after", type=int, default=len(TASKS))
    options = parser.parse_args()
    with Agent(options.model, store=options.store, session="work", budget=1024) as agent:
        print(f"{agent.started.turns} tasks were begun before")
        for number, task in enumerate(TASKS[: options.stop_after], start=1):
            # The name makes it safe to ask again: what was answered is not done twice.
            reply = agent.chat(task, turn=f"task {number}")
            print(f"{number}. {'(done before) ' if reply.repeated else ''}{reply.text}")


if __name__ == "__main__":
    main()
