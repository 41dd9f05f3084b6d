"""Whose thing a sentence speaks of: the people in it besides the speaker.

"My sister's code" and "my code" share every word but one, and that one decides. Words for people
are tables here; a name is a capitalized word with a possessive, after "von" or "de", or one that
begins a sentence about itself. Whether two sentences can be about the same people is all this says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAME = {
    "mother": "mum mom mummy mama mutter mère mère maman madre mamá 妈妈 母亲",
    "father": "dad daddy papa vater père padre papá 爸爸 父亲",
    "parent": "parents eltern padres folks 父母",
    "grandmother": "grandma granny nan nana oma grandmère abuela 奶奶 外婆",
    "grandfather": "grandpa grandad granddad opa abuelo 爷爷 外公",
    "sister": "sisters sibling schwester sœur soeur hermana 妹妹 姐姐",
    "brother": "brothers bruder frère hermano 哥哥 弟弟",
    "husband": "spouse mann mari marido esposo hubby 丈夫 老公",
    "wife": "frau femme esposa mujer 妻子 老婆",
    "son": "sohn fils hijo boy 儿子",
    "daughter": "tochter fille hija 女儿",
    "child": "kid kids children kinder enfants hijos 孩子",
    "youngest": "",
    "eldest": "oldest",
    "uncle": "onkel oncle tío 叔叔 舅舅",
    "aunt": "auntie tante tía 阿姨 姑姑",
    "cousin": "cousine primo prima 表哥 表妹",
    "nephew": "neffe neveu sobrino",
    "niece": "nichte nièce sobrina",
    "friend": "friends buddy mate freund freundin ami amie amigo amiga 朋友",
    "neighbour": "neighbours neighbor neighbors nachbar nachbarin voisin voisine vecino 邻居",
    "colleague": "colleagues coworker coworkers kollege kollegin collègue colega 同事",
    "flatmate": "roommate housemate mitbewohner mitbewohnerin colocataire 室友",
    "partner": "girlfriend boyfriend fiancé fiancée fiance fiancee novio novia",
    "in-law": "in-laws brother-in-law sister-in-law mother-in-law father-in-law",
    "grandchild": "grandson granddaughter enkel enkelin",
    "godmother": "godfather godson goddaughter",
}
KIN = {name: word for word, names in _SAME.items() for name in (word, *names.split())}
_UNSPACED_KIN = [name for name in KIN if not name.isascii() and "\u4e00" <= name[0] <= "\u9fff"]
_LETTER = r"[^\W\d_]"
_WORD = re.compile(rf"{_LETTER}+(?:-{_LETTER}+)*")
_POSSESSIVE = re.compile(
    rf"\b({_LETTER}[\w-]*)(?:['’]s|(?<=s)['’])(?=\s+(?!(?:a|an|the|at|in|on)\b|\d)\w)"
)
_OF_NAME = re.compile(r"\b(?:von|de|di|of|for|für|para|pour)\s+((?-i:[A-ZÀ-Þ])\w+)", re.IGNORECASE)
_BY_NAME = re.compile(r"\s+([A-Z]\w+)(?=\s+[a-z]|['’]s)")
_PLURAL_NAME = re.compile(r"\bthe\s+([A-Z]\w+s)['’]")
_BEGINS = re.compile(
    r"^\W*((?-i:[A-ZÀ-Þ])[\w-]+)(?:\s+and\s+(?-i:[A-ZÀ-Þ])[\w-]+)?\s+(?:is|was|has|had|isn['’]t"
    r"|doesn['’]t|"
    r"didn['’]t|told|said|got|(?!(?:this|his|us|as)\b)(?-i:[a-z])+s|(?-i:[a-z])+ed|broke|quit"
    r"|left|went|found|took|gave"
    r"|came|made|began|sold|bought|ist|hat|est|a(?=\s+\w+é)|es"
    r"|tiene)\b(?!\s*[,:;])",
    re.IGNORECASE,
)
_SPEAKER = re.compile(
    r"(?<!told )(?<!tells )\b(?:my|mine|me|us|our|ours|i|i'm|i’m|we|we're|mein\w*|unser\w*|ich"
    r"|wir|mon|ma|mes|notre|je|j'|mi"
    r"|mis"
    r"|nuestr\w+|yo)\b|我",
    re.IGNORECASE,
)
_NOBODY = frozenset(
    "the a an this that these those it there here he she they we you i my our his her their its who"
    " what everything someone somebody everybody nobody that's it's he's she's today tomorrow"
    " yesterday now"
    " monday tuesday wednesday thursday friday saturday sunday"
    " then"
    " new old die der das le la el los las les un une ein eine es il elle mr mrs ms dr".split()
)
_GROUP = re.compile(
    r"\b(?:my|our|the)\s+(?:\w+\s+)?(club|team|class|band|choir|crew|group|office|company)\s+"
    r"(?:is|are|has|have|was|were|meets?|(?-i:[a-z])+(?<!s)s)\s+(?!at\b|on\b|in\b|called|named)",
    re.IGNORECASE,
)
_COMPANY = re.compile(
    r"\b(?:together )?with (?:my|our|his|her|their) \w+(?!['’\w])(?! \w+['’])", re.IGNORECASE
)
_POSSESSED = frozenset("it that he she who what there let here today".split())


@dataclass(frozen=True, slots=True)
class Whose:
    """The people a sentence speaks of: `sure` by their word or possessive, `maybe` by place."""

    sure: frozenset[str]
    maybe: frozenset[str]


def whose(sentence: str) -> Whose:
    """The people besides the speaker that a sentence speaks of."""
    sentence = _COMPANY.sub("", sentence)
    sure: set[str] = set()
    for said in _WORD.finditer(sentence):
        if kin := KIN.get(said[0].casefold()):
            # "my cousin Rita" is Rita, whoever else is a cousin.
            name = _BY_NAME.match(sentence, said.end())
            sure.add(kin if name is None else name[1].casefold())
    sure.update(KIN[name] for name in _UNSPACED_KIN if name in sentence)
    if {"mother", "father"} <= sure:
        sure = sure - {"mother", "father"} | {"parent"}
    for match in (*_POSSESSIVE.finditer(sentence), *_PLURAL_NAME.finditer(sentence)):
        word = match.group(1).casefold()
        if word not in _POSSESSED and word not in KIN and _is_somebody(match, sentence):
            sure.add(word)
    sure.update(match.group(1).casefold() for match in _GROUP.finditer(sentence))
    for match in _OF_NAME.finditer(sentence):
        if match.group(0)[0] in "vd":
            sure.add(match.group(1).casefold())
    maybe: set[str] = set()
    begins = _BEGINS.match(sentence)
    if begins is not None and not _SPEAKER.search(sentence):
        word = begins.group(1).casefold()
        if word not in _NOBODY and word not in KIN and not begins.group(1).isupper():
            maybe.add(word)
    return Whose(frozenset(sure), frozenset(maybe))


def _is_somebody(match: re.Match[str], sentence: str) -> bool:
    """Whether a possessive is a name's, or a person's: "my doctor's", not "the bus's"."""
    word = match.group(1)
    if word[0].isupper() and word.casefold() not in _NOBODY:
        return True
    return bool(
        re.search(r"\b(?:my|our|mein\w*|unser\w*)\s+(?:\w+\s+)?$", sentence[: match.start()], re.I)
    )


def same_people(one: str, one_whose: Whose, other: str, other_whose: Whose) -> bool:
    """Whether two sentences can be about the same people: nobody sure in one is missing in other.

    Args:
        one, other: the sentences, casefolded.
        one_whose, other_whose: their people.
    """
    return _are_in(one_whose, other, other_whose) and _are_in(other_whose, one, one_whose)


def _are_in(people: Whose, sentence: str, there: Whose) -> bool:
    return all(
        name in there.sure or (name not in _SAME and name in sentence)
        for name in people.sure | people.maybe
    )
