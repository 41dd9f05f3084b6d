"""The prompts, as text files: a change of wording is a readable diff."""

from functools import cache
from importlib.resources import files


@cache
def prompt(name: str) -> str:
    """The text of `prompts/NAME.md`, without the final newline."""
    return files(__name__).joinpath(f"{name}.md").read_text(encoding="utf-8").rstrip("\n")
