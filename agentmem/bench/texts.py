"""Texts to fill a context with, from what every installation holds.

    prose    licences and descriptions of the packages agentmem depends on
    code     modules in packages of Python's standard library
    chat     the small talk of the benchmark conversations
    chinese  from tables of phrases

None of it is what models are calibrated by: Python's documentation, and modules that are in no
package. Prose and code change with the versions of packages: keep a digest beside what was measured
on them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from agentmem.bench.chinese import chinese_text
from agentmem.bench.small_talk import SmallTalk
from agentmem.errors import InvalidInput

TextDomain = Literal["prose", "code", "chat", "chinese"]
DOMAINS: tuple[str, ...] = get_args(TextDomain)

_PACKAGES = (
    "numpy", "torch", "transformers", "pydantic", "rich", "typer", "sqlalchemy", "accelerate",
    "regex", "tqdm", "tokenizers", "llguidance", "faiss-cpu", "prompt-toolkit", "huggingface-hub",
    "alembic", "packaging", "langchain-core",
)  # fmt: skip
_MODULES = (
    "asyncio.base_events", "asyncio.streams", "asyncio.subprocess", "asyncio.tasks",
    "concurrent.futures.process", "concurrent.futures.thread", "ctypes.util", "email.feedparser",
    "email.generator", "email.header", "email.message", "email.utils", "html.parser",
    "http.client", "http.cookiejar", "http.cookies", "http.server", "json.decoder",
    "json.encoder", "logging.config", "logging.handlers", "multiprocessing.managers",
    "multiprocessing.pool", "multiprocessing.queues", "sqlite3.dump", "unittest.case",
    "unittest.loader", "unittest.mock", "urllib.parse", "urllib.request", "urllib.robotparser",
    "wsgiref.handlers", "xml.dom.minidom", "xml.etree.ElementTree", "xml.sax.saxutils",
    "xmlrpc.client", "xmlrpc.server",
)  # fmt: skip
_GENERATED_CHARACTERS = 150_000
_MODULE_CHARACTERS = 16_000
_TURN_WORDS = 40


def domain_text(domain: str) -> str:
    """The text of a domain; the same on the same installation.

    Raises:
        InvalidInput: there is no such domain.
    """
    if domain == "prose":
        return "\n\n".join(_distinct(_prose()))
    if domain == "code":
        return "\n\n".join(_code())
    if domain == "chat":
        return "\n".join(_small_talk())
    if domain == "chinese":
        return chinese_text(_GENERATED_CHARACTERS)
    raise InvalidInput(f"No text domain {domain!r}: use some of {', '.join(DOMAINS)}.")


def _prose() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        yield str(package.metadata.get_payload() or "")  # type: ignore[attr-defined]
        for file in sorted(package.files or (), key=str):
            if any(word in file.name.lower() for word in ("licen", "notice")):
                located = Path(str(file.locate()))
                yield located.read_text(encoding="utf-8", errors="replace")


def _distinct(texts: Iterator[str]) -> Iterator[str]:
    """Paragraphs, each once: packages bundle the same licence dozens of times."""
    seen: set[str] = set()
    for text in texts:
        for paragraph in text.split("\n\n"):
            words = " ".join(paragraph.split())
            if len(words) > 40 and words not in seen:
                seen.add(words)
                yield paragraph.strip("\n")


def _code() -> Iterator[str]:
    for name in _MODULES:
        spec = find_spec(name)
        source = getattr(spec.loader, "get_source", None) if spec else None
        if source is not None:
            yield str(source(name))[:_MODULE_CHARACTERS]


def _small_talk() -> Iterator[str]:
    small_talk = SmallTalk(random.Random(0), lambda text: len(text.split()))
    length = 0
    while length < _GENERATED_CHARACTERS:
        turn = small_talk.turn(_TURN_WORDS)
        text = f"User: {turn.user}\nAssistant: {turn.reply}"
        length += len(text)
        yield text
