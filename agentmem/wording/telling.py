"""Which words of a text tell what cannot be guessed: numbers, names, long words.

Knows texts only; not where they come from or what is made of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from agentmem.storage.terms import UNSPACED
from agentmem.wording.sentences import sentences_of

TERM = re.compile(rf"[{UNSPACED}]+|[^\W_{UNSPACED}](?:[^\W{UNSPACED}]|['’.:,/-](?=[^\W_]))*")
_NUMBER, _NAME, _LONG_WORD, _PAIR = 5.0, 2.0, 0.5, 0.3
"""What terms tell."""
_MAX_TERM = 40
"""Characters of a term that count: a line of base64 is not a word."""
COMMON = frozenset(
    "a an and are as at be but by can could did do does for from had has have he her him his how i"
    " i'd i'll i'm i've if in into is it it's its just like me my no not of okay on or our she so"
    " some that that's the their them then there they this to too up us very was we we're were what"
    " when where which while who why will with would yes yet you you're your"
    " aber als auch auf aus bei das dass dem den der des die ein eine einen einer er es für haben"
    " hat ich im in ist ja man mein meine mit nicht noch oder sie sind so und uns von war was wenn"
    " wie wir zu zum zur"
    " au aux avec ce ces cette dans de des du elle en est et eux il je la le les leur lui ma mais"
    " mes mon ne nous on ou par pas pour qu que qui sa se ses son sont sur un une vous"
    " al como con del el ella en era es esta este la las le les lo los mi mis muy no nos para pero"
    " por que se sin son su sus un una y yo".split()
)


def telling_terms(text: str) -> dict[str, float]:
    """Terms of a text that cannot be guessed, case folded, and how much each tells.

    Numbers tell most, then names (a capital inside a sentence), then long words. Runs of a script
    without spaces become pairs of characters.
    """
    terms: dict[str, float] = {}
    for sentence in sentences_of(text):
        for match in TERM.finditer(sentence):
            for term, weight in _weighed(match.group(), inside=match.start() > 0):
                terms[term] = max(weight, terms.get(term, 0.0))
    return terms


def names_and_numbers(text: str) -> set[str]:
    """Those of the terms that only somebody who was told can know, case folded."""
    return {term for term, weight in telling_terms(text).items() if weight >= _NAME}


def is_unspaced(term: str) -> bool:
    """Whether a term is a run of a script that puts no spaces between words."""
    return re.match(f"[{UNSPACED}]", term) is not None


def pairs_of(run: str) -> list[str]:
    """The pairs of characters that stand for the words of such a run."""
    return [run[at : at + 2] for at in range(max(1, len(run) - 1))]


def _weighed(word: str, *, inside: bool) -> Iterable[tuple[str, float]]:
    folded = word.casefold()[:_MAX_TERM]
    if is_unspaced(word):
        return [(pair, _PAIR) for pair in pairs_of(folded)]
    if any(character.isdigit() for character in word):
        return [(folded, _NUMBER)]
    if folded in COMMON or len(word) < 3:
        return []
    if word[0].isupper() and inside:
        return [(folded, _NAME)]
    return [(folded, _LONG_WORD)] if len(word) > 6 else []
