"""The frame of a clause: what it speaks of, and by which verb it gives that a value.

    "since Friday my sister's flight leaves at 7:10"   my sister's flight | leav
    "I work for Bosch now"                             I | work
    "our parrot's name is Kipper"                      our parrot | be one
    "as for my seat: it's in row K"                    my seat | be at

Knows the grammar of a clause; not what its words mean, nor any other clause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentmem.storage.terms import analyze

SHORT = (
    r"(?:['’](?:re|m)\b"
    r"|(?:(?<=\bit)|(?<=\bhe)|(?<=\bshe)|(?<=\bthat)|(?<=\bthere)|(?<=\bname))['’]s\b"
    r"|['’]s(?=\s+(?:an?|the|at|in|on|with|now|not|called|named|gone|been|still)\b|\s+\d))"
)
"""Short forms of "to be"; "'s" only where it cannot be a possessive."""
BE = rf"(?:\b(?:is|are|am|was|were|be|been)\b|{SHORT})"
NAMED = r"(?:called|named|known as)"
_ADVERBS = (
    r"(?:(?:now|nowadays|currently|also|actually|still|usually|always|only|just|really|finally"
    r"|already|normally|mostly)\s+)*"
)
VERBS = (
    r"(?:costs?|pays?|leaves?|starts?|begins?|ends?|finish(?:es)?|opens?|closes?|lives?|works?"
    r"|stud(?:y|ies)|teach(?:es)?|drives?|uses?|takes?|goes|go|comes?|keeps?|stays?|sleeps?|runs?"
    r"|wears?|supports?|prefers?|belongs?|sits?|meets?|parks?|weighs?|arrives?|departs?|lands?"
    r"|boards?|sets|answers|reports?|trains?|reads?|expires?|depends?|takes place)(?!-)"
)
_OF = r"(?:of|at|in|for|to|on|with|from|by)"
_THING = (
    r"(?:my|our|the|its|[^\W\d_][\w-]*(?:['’]s|(?<=s)['’]))(?:\s+"
    rf"(?:{_OF}\s+(?:my|our|the)\s+)?(?!(?:my|our|the|i|we)\b)[\w'’&-]+){{1,8}}?"
)
_FRAME = re.compile(
    rf"\b(?P<who>i|we|{_THING}|(?-i:[A-Z]\w+)(?:\s+and\s+i)?)\s*{_ADVERBS}"
    rf"(?:['’](?:ve|ll|d)\s+|\b(?:will|would|have to|has to|must|used to|has|have|had)\s+)?"
    rf"{_ADVERBS}(?P<verb>{BE}|\b{VERBS}\b|(?<=\bi )\w+|(?<=\bwe )\w+)",
    re.IGNORECASE,
)
_NAMED = re.compile(rf"\s*{_ADVERBS}{NAMED}\b", re.IGNORECASE)
_NAME = re.compile(r"\s+name$", re.IGNORECASE)
_ONE = re.compile(r"\b(?:favou?rite|usual|go-to|preferred|regular|default|main)\b", re.IGNORECASE)
_DOING = re.compile(rf"\s*{_ADVERBS}(?P<verb>\w+ing)\b", re.IGNORECASE)
_WHERE = re.compile(r"\s*(?:\w+ed\s+)?(?P<where>in|at|on|with|from|for|to|by|under|near)\b", re.I)
_SAME_PLACE = frozenset(("in", "at", "on", "under", "near"))
_IT = re.compile(r"\W*(?:(?:it|that|he|she|they)(?=['’]|\s)|(?=(?:is|are)\b))", re.IGNORECASE)
_IS = re.compile(r"^\s*['’](?:s|re)\b")
_VERB = re.compile(rf"{BE}|\b(?:has|have|had|got)\b", re.IGNORECASE)
_DETERMINED = re.compile(r"\b(?:my|our|the|(?-i:[A-Z])\w+['’]s)\s", re.IGNORECASE)
_THEN = re.compile(
    r"\b(?:before|after|since|because|until|till|when|while|as of|as from|from|starting)\b.*$", re.I
)
_ANSWERS = re.compile(r"(?:answers|goes)\s+(?:to|by)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Frame:
    """By what a clause gives a value, and to what.

    Args:
        relation: "be", "be at", "be from" and the like, "be one" (of its name or kind, there is but
            one), or the verb.
        topic: what else it says, as it stands there.
    """

    relation: str
    topic: str


def frame_of(clause: str, value: str, earlier: str = "") -> Frame | None:
    """The frame in which a clause gives its value; None where it has no such form.

    Args:
        clause: with the value in it.
        value: as it stands there.
        earlier: what was said before, to which "it" refers.
    """
    before, _, after = clause.partition(value)
    if _IT.match(before) and (named := [*_DETERMINED.finditer(earlier)]):
        thing = _VERB.split(earlier[named[-1].start() :], maxsplit=1)[0].strip(" ,:;.!?")
        before = f"{thing} {_IS.sub('is', _IT.sub('', before, count=1))}"
    frames = [*_FRAME.finditer(before)]
    if not frames:
        return None
    found = frames[-1]
    who, verb, rest = found["who"], found["verb"], before[found.end() :]
    if _NAMED.match(rest) or _ONE.search(who) or _NAME.search(who):
        relation, rest = "be one", ""
    elif _ANSWERS.match(before[found.start("verb") :]):
        relation, rest = "be one", ""
    elif re.fullmatch(BE, verb, re.IGNORECASE) is None and verb[0] not in "'’":
        relation = " ".join(analyze(verb)) or verb.casefold()
    elif doing := _DOING.match(rest):
        relation, rest = " ".join(analyze(doing["verb"])), rest[doing.end() :]
    elif where := _WHERE.match(rest):
        place = where["where"].casefold()
        relation = f"be {'at' if place in _SAME_PLACE else place}"
    else:
        relation = "be"
    return Frame(relation, f"{_NAME.sub('', who)} {rest} {_THEN.sub('', after)}")
