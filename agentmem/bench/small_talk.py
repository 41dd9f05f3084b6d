"""Small talk of many shapes: a grammar that composes what a user says and a short reply.

It knows no facts: nothing that a conversation states can be found in its vocabulary.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from agentmem.bench.conversation import Turn
from agentmem.bench.phrases import GRAMMAR

PHRASES: dict[str, tuple[str, ...]] = {}
for _name, _phrases in re.findall(r"^(\w+):\n((?: .*\n)+)", GRAMMAR, re.MULTILINE):
    PHRASES[_name] = tuple(" ".join(phrase.split()) for phrase in _phrases.split("|"))

_SLOT = re.compile(r"\{([a-z]+)(\d?)\}")


@dataclass
class SmallTalk:
    """Draws turns; a sentence is used again only when the grammar runs dry.

    Args:
        rng: the only source of chance.
        count_tokens: tokens of a message.
    """

    rng: random.Random
    count_tokens: Callable[[str], int]
    used: set[str] = field(default_factory=set)

    def turn(self, num_tokens: int) -> Turn:
        """A turn of about `num_tokens`, user and reply together; never less than its openings."""
        bound: dict[str, str] = {}
        user = [self._fresh("opening", bound)]
        reply = [self._fresh("answer", bound)]
        echoes = [e for e in PHRASES["echo"] if set(_bound_names(e)) <= bound.keys()]
        if echoes and self.rng.random() < 0.6:
            reply.append(_sentence(self._expand(self.rng.choice(echoes), bound)))
        while True:
            side, name = self.rng.choice([(user, "aside"), (reply, "remark")])
            side.append(self._fresh(name, bound))
            over = self._count(user, reply) - num_tokens
            if over < 0:
                continue
            last = self.count_tokens(side[-1])
            if over > last - over:
                side.pop()
            return Turn(" ".join(user), " ".join(reply), "small_talk")

    def _count(self, user: list[str], reply: list[str]) -> int:
        return self.count_tokens(" ".join(user)) + self.count_tokens(" ".join(reply))

    def _fresh(self, name: str, bound: dict[str, str]) -> str:
        text, draft = "", dict(bound)
        for _ in range(30):
            draft = dict(bound)
            text = _sentence(self._expand(self.rng.choice(PHRASES[name]), draft))
            if text not in self.used:
                break
        self.used.add(text)
        bound.update(draft)
        return text

    def _expand(self, template: str, bound: dict[str, str]) -> str:
        def replace(match: re.Match[str]) -> str:
            name, digit = match.groups()
            if not digit:
                return self._expand(self.rng.choice(PHRASES[name]), bound)
            key = name + digit
            if key not in bound:
                bound[key] = self._expand(self.rng.choice(PHRASES[name]), bound)
            return bound[key]

        return _SLOT.sub(replace, template)


def _bound_names(template: str) -> list[str]:
    return [name + digit for name, digit in _SLOT.findall(template) if digit]


def _sentence(text: str) -> str:
    """The text with a capital at its start, and "an" before vowels."""
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    return text[0].upper() + text[1:]
