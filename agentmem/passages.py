"""Archival passages: notes that stand in no conversation until they are found or recalled.

Each is a segment of its own, searchable, with tags. Who may write what is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agentmem.errors import InvalidInput
from agentmem.outside import Outside
from agentmem.recall.finder import Finder
from agentmem.recall.scoring import Scored
from agentmem.segment import Message, Segment, Trust
from agentmem.storage.archive import Archive
from agentmem.storage.rows import SessionRow
from agentmem.storage.text import normalize_text

MAX_CHARS = 4000
_MAX_TAGS = 8
_MAX_TAG_CHARS = 40
_HEADING = "[Note] "


class Passages:
    """The archival passages of a user.

    Args:
        archive: where they are.
        session: new ones are filed under it.
        finder: finds them by meaning and by words.
        turn: the number of the turn that is being answered, or was last.
        outside: new ones are acts, to be recorded.
    """

    def __init__(
        self,
        archive: Archive,
        session: SessionRow,
        finder: Finder,
        turn: Callable[[], int],
        outside: Outside,
    ) -> None:
        self._archive = archive
        self._session = session
        self._finder = finder
        self._turn = turn
        self._outside = outside

    def insert(
        self,
        text: str,
        tags: Iterable[str] = (),
        *,
        maker: str = "user",
        trust: Trust = Trust.USER,
        sources: Iterable[int] = (),
    ) -> Segment:
        """Store a passage; one that is there already is returned as it is.

        Args:
            text: what it says.
            tags: to find it by; capitals make no difference.
            maker: who stores it: "user", or a model's name.
            trust: how far it may be believed.
            sources: segments the text was taken from: it is forgotten with them.

        Raises:
            InvalidInput: text or tags are empty or too long.
        """
        segment = Segment(
            (Message("user", _HEADING + _checked(text)),),
            kind="passage",
            origin="user" if maker == "user" else "assistant",
            trust=trust,
            parents=tuple(sources),
        )
        names = _tags(tags)
        stored = self._archive.passage_ids(content_hash=segment.content_hash)
        if stored:
            return self._archive.segment(stored[0]).segment
        given = {"maker": maker, "trust": int(trust), "sources": segment.parents}
        with (
            self._outside.act("passages.insert", [text, names, given]),
            self._archive.write() as transaction,
        ):
            segment = transaction.add_segment(
                self._session.id, self._turn(), segment, state="archived"
            )
            transaction.tag_passage(segment.id, names)
        return segment

    def search(self, query: str, tags: Iterable[str] = ()) -> list[Scored]:
        """The passages that have all the tags and something of the query, best first."""
        return self._finder.search(query, set(self._archive.passage_ids(_tags(tags))))


def passage_text(segment: Segment) -> str:
    """What a passage says."""
    return segment.messages[0].content.removeprefix(_HEADING)


def _checked(text: str) -> str:
    if not isinstance(text, str):
        raise InvalidInput(f"`text` must be a text: got {text!r:.80}.")
    text = normalize_text(text).strip()
    if not text:
        raise InvalidInput("`text` must not be empty.")
    if len(text) > MAX_CHARS:
        raise InvalidInput(
            f"`text` has {len(text):,} characters; at most {MAX_CHARS:,} are taken: store it in "
            "parts."
        )
    return text


def _tags(tags: Iterable[str]) -> list[str]:
    if isinstance(tags, str):
        raise InvalidInput(f"`tags` must be a list of words: got {tags!r:.80}.")
    names = []
    for tag in tags:
        name = normalize_text(tag).strip().casefold() if isinstance(tag, str) else ""
        if not name or len(name) > _MAX_TAG_CHARS:
            raise InvalidInput(
                f"A tag must be a word of 1 to {_MAX_TAG_CHARS} characters: got {tag!r:.80}."
            )
        names.append(name)
    if len(set(names)) > _MAX_TAGS:
        raise InvalidInput(f"At most {_MAX_TAGS} tags are taken: got {len(set(names))}.")
    return sorted(set(names))
