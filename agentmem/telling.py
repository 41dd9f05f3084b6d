"""Which words of a text tell what cannot be guessed: numbers, names, long words.

Knows texts only; not where they come from or what is made of them.
"""

from __future__ import annotations

import re

TERM = re.compile(r"[^\W_][\w'’-]*", re.UNICODE)
COMMON = frozenset(
    "a an and are as at be but by can could did do does for from had has have he her his how i i'm"
    " if in is it it's its like me my no not of on or our she so some that that's the their them"
    " then there they this to too up very was we were what when where which who will with would yes"
    " you your".split()
)


def telling_terms(text: str, *, long_words: bool = True) -> list[str]:
    """Names and numbers of a text, each once as it first stands there, most telling first.

    A name is a capital after a space: what begins a line may be any word.

    Args:
        text: any.
        long_words: words of more than six letters too.
    """
    terms: dict[str, tuple[int, int]] = {}
    spelled: dict[str, str] = {}
    for position, match in enumerate(TERM.finditer(text)):
        term = match.group()
        folded = term.casefold()
        spelled.setdefault(folded, term)
        number = any(c.isdigit() for c in term)
        if folded in COMMON or len(term) < (2 if number else 3):
            continue
        inside = match.start() > 0 and text[match.start() - 1] == " "
        weight = 3 * number + 2 * (term[0].isupper() and inside)
        if weight or (long_words and len(term) > 6):
            terms.setdefault(folded, (-weight, position))
    return [spelled[term] for term in sorted(terms, key=terms.__getitem__)]


def telling(sentence: str) -> float:
    """How much a sentence says that cannot be guessed: numbers, names, few common words."""
    terms = TERM.findall(sentence)
    if not terms:
        return 0.0
    numbers = sum(any(c.isdigit() for c in term) for term in terms)
    names = sum(term[0].isupper() for term in terms[1:])
    rare = sum(term.casefold() not in COMMON for term in terms)
    return float(5 * numbers + 2 * names + rare / len(terms))
