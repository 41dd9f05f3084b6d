"""Who besides the speaker a question or statement is about, among the people that were named.

"My niece Lena" and "Breda, my mother-in-law" make two names of one; so "Lena started at Riverside"
answers "Which school is my niece at?", and "My sister's code is 1177" answers nothing about mine.
Milder than `facts.whose`, which decides whether a statement ends another for good: who is only in
the company of something, or what somebody is ("Marcus is my boss"), makes nothing theirs. It reads
the texts it is given, a question and what was found for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agentmem.facts.whose import KIN

_PEOPLE = KIN | {
    "mam": "mother", "landlord": "landlord", "landlady": "landlord",
    "boss": "boss", "manager": "boss", "supervisor": "boss", "tenant": "tenant",
}  # fmt: skip
_WORD = "|".join(
    sorted((re.escape(word) for word in _PEOPLE if word.isascii()), key=len, reverse=True)
)
_PARENTS = "|".join(
    word
    for word, kin in _PEOPLE.items()
    if word.isascii() and kin in ("mother", "father", "grandmother", "grandfather")
)
_NAME = r"(?-i:[A-ZÀ-Þ][a-zà-ÿ]+)"
_THEIRS = re.compile(
    rf"\b(?:my|our|his|her|their)\s+(?:\w+\s+)?(?P<kin>{_WORD})\b(?:['’]s)?"
    rf"(?:,?\s+(?P<name>{_NAME}))?",
    re.IGNORECASE,
)
_NAME_FIRST = re.compile(
    rf"\b(?P<name>{_NAME}),\s+(?:my|our)\s+(?:\w+\s+)?(?P<kin>{_WORD})\b", re.IGNORECASE
)
_PARENT = re.compile(rf"\b(?:{_PARENTS})\b", re.IGNORECASE)
_POSSESSIVE = re.compile(rf"\b({_NAME})(?:['’]s|(?<=s)['’])(?=\s+\w)")
_THING = re.compile(r"\bthe\s+(?:\w+\s+)?([a-z]+)['’]s\s+\w", re.IGNORECASE)
_IS = re.compile(r"(?:\b(?:is|are|was|as|be|become|became|called)|['’]s)\s*$", re.IGNORECASE)
_SOMEBODY = re.compile(r"\b(?:he|she|him|her|his|they|their|them|it|its)\b", re.IGNORECASE)
_SPEAKER = re.compile(
    r"\b(?:i|me|we|us|i['’]m|i['’]ve|i['’]d|mine|ours)\b"
    rf"|\b(?:my|our)\s+(?!(?:\w+\s+)?(?:{_WORD})\b)",
    re.IGNORECASE,
)
_NO_NAMES = frozenset(
    "what where when how which why whose who my our the it that he she they there here let today"
    .split()
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class People:
    """The people that some texts name.

    Args:
        names: casefolded.
        aliases: for a name or a word for kin, what else the same person is called.
    """

    names: frozenset[str]
    aliases: Mapping[str, frozenset[str]]

    @classmethod
    def named_in(cls, texts: Iterable[str]) -> People:
        """Everybody that the texts name."""
        names: set[str] = set()
        aliases: dict[str, frozenset[str]] = {}
        for text in texts:
            for match in (*_THEIRS.finditer(text), *_NAME_FIRST.finditer(text)):
                name = (match["name"] or "").casefold()
                if not name or name in _NO_NAMES:
                    continue
                kin = _PEOPLE[match["kin"].casefold()]
                names.add(name)
                for one, other in ((name, kin), (kin, name)):
                    aliases[one] = aliases.get(one, frozenset()) | {other}
            for match in _POSSESSIVE.finditer(text):
                names.add(match[1].casefold())
        return cls(frozenset(names - _NO_NAMES), aliases)

    def owners(self, text: str) -> frozenset[str]:
        """Who a text is about besides the speaker, by all that they are called."""
        found: set[str] = set()
        for match in _THEIRS.finditer(text):
            name = (match["name"] or "").casefold()
            if name in self.names:
                found.add(name)
            elif not _is_predicate(match, text):
                found.add(_PEOPLE[match["kin"].casefold()])
        found.update(_PEOPLE[match[0].casefold()] for match in _PARENT.finditer(text))
        found |= self.names & _words(text)
        return frozenset(found.union(*(self.aliases.get(one, ()) for one in found)))

    def may_answer(self, question: str, sentences: Iterable[str], text: str) -> bool:
        """Whether a text can be about those a question is about.

        Args:
            question: what was asked.
            sentences: those of the text that give a value; one that can is enough.
            text: all of it: who "she" is may be said before.
        """
        things = {match[1].casefold() for match in _THING.finditer(question)}
        if things and _THING.search(text) and not things & _words(text):
            # The pharmacy's number is not the clinic's.
            return False
        asked, said = self.owners(question), self.owners(text)
        if not asked:
            return any(not self.owners(one) or _SPEAKER.search(one) for one in sentences)
        for one in sentences:
            owners = self.owners(one)
            if owners & asked:
                return True
            somebody = not owners and _SOMEBODY.search(one)
            if somebody and (said & asked or not (said or _SPEAKER.search(one))):
                return True
        return False


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]+", text.casefold()))


def _is_predicate(match: re.Match[str], text: str) -> bool:
    """Whether a word for kin says what somebody is: "Marcus is my boss", "who is my boss?"."""
    if _IS.search(text[: match.start()]) is None:
        return False
    # In a question what is asked of stands behind the verb: "Which school is my niece at?"
    return "?" not in text or not re.search(r"\w", text[match.end() :])
