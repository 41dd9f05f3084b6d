"""Any LangChain chat model, with tools; put `ChatOpenAI(...)` in the place of this offline one."""

import tempfile
from pathlib import Path
from typing import Any

from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage

from agentmem import Agent


class OfflineModel(FakeMessagesListChatModel):
    """Needs no network: it calls the tool, then answers."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        """Take the tools' schemas."""
        return self


def temperature(city: str) -> str:
    """Look up the temperature in a city.

    Args:
        city: Name of the city.
    """
    return f"It is 21 degrees in {city}."


if __name__ == "__main__":
    call = {"id": "1", "name": "temperature", "args": {"city": "Oslo"}}
    script: list[BaseMessage] = [AIMessage("", tool_calls=[call]), AIMessage("It has 21 degrees.")]
    model = OfflineModel(responses=script)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "me.db"
        with Agent(model, store=store, tools=[temperature], controller="policy") as agent:
            print(agent.chat("How warm is it in Oslo?").text)
            print([entry.segment.kind for entry in agent.context.entries])
