"""What a text says that cannot be guessed, as sentences of its own: a summary without a model.

Sentences with numbers, dates, names, decisions and statements about the speaker's world come first,
each only for what those before it have not said. English, German, French, Spanish and Chinese
have their words for dates and decisions here; numbers and names need none. It counts with the
function it is given and knows no model.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from agentmem.wording.asking import only_asks
from agentmem.wording.sentences import sentences_of
from agentmem.wording.telling import telling_terms

_DATE = re.compile(
    r"\b(?:january|february|march|april|may \d|\d+ may|june|july|august|september|october|november"
    r"|december|mon|tues|wednes|thurs|fri|satur|sun)(?:day)?s?\b|\b(?:today|tomorrow|tonight)\b"
    r"|\b(?:januar|februar|märz|mai|juni|juli|oktober|dezember|montag|dienstag|mittwoch|donnerstag"
    r"|freitag|samstag|sonntag|heute|morgen)\b"
    r"|\b(?:janvier|février|mars|avril|juin|juillet|août|septembre|octobre|novembre|décembre|lundi"
    r"|mardi|mercredi|jeudi|vendredi|samedi|dimanche|demain)\b"
    r"|\b(?:enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre"
    r"|diciembre|lunes|martes|miércoles|jueves|viernes|sábado|domingo|mañana)\b"
    r"|[一二三四五六七八九十\d]月|星期|周[一二三四五六日]|今天|明天",
    re.IGNORECASE,
)
_DECISION = re.compile(
    r"\b(?:decided?|decision|agreed?|agreement|must|shall|will|won't|promised?|chose|chosen|prefers?"
    r"|never|always|deadline|due|cancell?ed|approved|rejected|remember|don't forget)\b"
    r"|\b(?:beschlossen|beschließen|entschieden|entschied|vereinbart|einig|muss|müssen|soll|sollen"
    r"|werde|wird|werden|immer|niemals|versprochen|frist)\b"
    r"|\b(?:décid\w+|convenu\w*|accord|doit|devons|doivent|faut|toujours|jamais|promis\w*|délai)\b"
    r"|\b(?:decid\w+|acord\w+|acuerdo|debe|debemos|deben|tiene que|hay que|siempre|nunca|plazo)\b"
    r"|决定|同意|必须|应该|将|约定|记住|不要|截止",
    re.IGNORECASE,
)
_OWN = re.compile(
    r"\b(?:my|our|mein\w*|unser\w*|mon|ma|mes|notre|nos|mi|mis|nuestr\w+)\b|\b[^\W\d_]+['’]s\b"
    r"|我的|我们的|他的|她的",
    re.IGNORECASE,
)
_STATES = re.compile(
    r"\b(?:is|are|was|were|used to|called|named|starts?|lives?|works?|has|have|costs?|owns?"
    r"|ist|sind|war|heißt|heißen|hat|kostet|beginnt|wohnt"
    r"|est|sont|était|s'appelle|a|habite|coûte|commence"
    r"|es|está|son|era|fue|llama|tiene|vive|cuesta|empieza)\b|是|叫|在|有|住",
    re.IGNORECASE,
)
_CALLED = re.compile(r"\b(?:called|named|heißt|s'appelle|se llama)\b|叫|名字", re.IGNORECASE)


def left_out_terms(originals: str, summary: str) -> list[str]:
    """Names, numbers and long words of the originals that the summary lacks, most telling first."""
    said = summary.casefold()
    terms = {term: weight for term, weight in telling_terms(originals).items() if weight >= 0.5}
    ranked = sorted(terms, key=lambda term: -terms[term])
    spelled = originals.casefold()
    left_out = []
    for term in ranked:
        if not re.search(rf"(?<!\w){re.escape(term)}(?!\w)", said):
            at = spelled.find(term)
            left_out.append(
                originals[at : at + len(term)] if len(spelled) == len(originals) else term
            )
    return left_out


def extract(text: str, *, max_tokens: int, count: Callable[[str], int]) -> str:
    """Sentences of the text in their order, the telling ones first to be taken.

    Args:
        text: where they are from.
        max_tokens: all of them together take at most so many.
        count: tokens of a text.
    """
    sentences = list(dict.fromkeys(sentences_of(text)))
    lengths = [count(sentence) for sentence in sentences]
    terms = [telling_terms(sentence) for sentence in sentences]
    extra = [_manner(sentence) for sentence in sentences]
    said: set[str] = set()
    taken: list[int] = []
    left = {i for i in range(len(sentences)) if lengths[i] <= max_tokens}
    room = max_tokens
    while left:
        gains = {i: _gain(terms[i], extra[i], said) for i in left}
        best = max(left, key=lambda i: (gains[i] / (lengths[i] + 8), -i))
        if taken and gains[best] <= 0:
            break
        left.discard(best)
        candidate = sorted([*taken, best])
        if count(" ".join(sentences[i] for i in candidate)) <= max_tokens:
            taken = candidate
            said |= terms[best].keys()
            room = max_tokens - sum(lengths[i] for i in taken)
            left = {i for i in left if lengths[i] <= room}
    if not taken:
        return _piece(max(sentences, key=_score, default=""), max_tokens, count)
    return " ".join(sentences[i] for i in taken)


def _gain(terms: dict[str, float], extra: float, said: set[str]) -> float:
    """What a sentence adds to what is said."""
    new = sum(weight for term, weight in terms.items() if term not in said)
    share = new / sum(terms.values()) if terms else 1.0
    return new + extra * share


def _manner(sentence: str) -> float:
    """How much the way a sentence speaks promises, whatever its terms."""
    if only_asks(sentence):
        return -4.0
    owns = _OWN.search(sentence) is not None
    states = _STATES.search(sentence) is not None
    return (
        3.0 * (_DATE.search(sentence) is not None)
        + 2.0 * (_DECISION.search(sentence) is not None)
        + 2.0 * (owns and states)
        + 2.0 * (_CALLED.search(sentence) is not None)
    )


def _score(sentence: str) -> float:
    return sum(telling_terms(sentence).values()) + _manner(sentence)


def _piece(sentence: str, max_tokens: int, count: Callable[[str], int]) -> str:
    """The part of a long sentence around its most telling term."""
    terms = telling_terms(sentence)
    at = 0
    if terms:
        at = max(0, sentence.casefold().find(max(terms, key=lambda term: terms[term])))
    low, high = 0, len(sentence)
    while low < high:
        middle = (low + high + 1) // 2
        if count(_around(sentence, at, middle)) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return _around(sentence, at, low)


def _around(text: str, at: int, length: int) -> str:
    """So many characters of a text, a quarter of them before a place, whole words where it can."""
    start = max(0, min(at - length // 4, len(text) - length))
    if start and (space := text.find(" ", start, at)) >= 0:
        start = space + 1
    return text[start : start + length].strip()
