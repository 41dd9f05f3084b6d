"""Find a chat template's frames by rendering made-up conversations through it.

Each probe's words are unlike anything a template writes, so the text between two of them is what
the template put there. A template whose frames depend on more than the role is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from agentmem.errors import Unsupported
from agentmem.models.base import Part
from agentmem.models.template import JOINER, Frame, Template
from agentmem.models.text_encoder import TextEncoder
from agentmem.segment import Message, Role

TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError)
"""What the code inside a template raises when it does not like a conversation."""


def probe_template(tokenizer: Any) -> Template:
    """The frames of the tokenizer's chat template.

    Raises:
        Unsupported: the template cannot be taken apart; the message says why.
    """
    source = getattr(tokenizer, "chat_template", None)
    if isinstance(source, dict):
        source = source.get("default")
    if not source:
        return Template.plain(TextEncoder(tokenizer))
    return _Probe(tokenizer, TextEncoder(tokenizer, str(source))).template()


def render(tokenizer: Any, messages: Sequence[Message], *, reply: bool) -> str | None:
    """The template's own rendering, None where it refuses the conversation."""
    conversation = [{"role": message.role, "content": message.content} for message in messages]
    try:
        text = tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=reply
        )
    except TEMPLATE_ERRORS:
        return None
    return str(text)


class _Probe:
    def __init__(self, tokenizer: Any, encoder: TextEncoder) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._gaps = self._between("uauau", reply=True)
        if self._gaps is None:
            raise Unsupported(
                "The chat template does not show user and assistant messages as they are."
            )

    def template(self) -> Template:
        gaps = self._gaps
        assert gaps is not None
        if gaps[1] != gaps[3] or gaps[2] != gaps[4]:
            raise Unsupported("The chat template frames a message by more than its role.")
        user_after = self._ending("u", gaps[1], gaps[5])
        assistant_after = self._ending("ua", gaps[2], gaps[2])
        user_before = gaps[2][len(assistant_after) :]
        while not gaps[0].endswith(user_before) and user_before[:1].isspace():
            assistant_after, user_before = assistant_after + user_before[0], user_before[1:]
        if not gaps[0].endswith(user_before):
            raise Unsupported("The chat template frames the first user message in its own way.")
        lead = gaps[0][: len(gaps[0]) - len(user_before)]
        reply_header = gaps[5][len(user_after) :]
        takes_over = not reply_header
        if takes_over:
            # Something must be read to begin a reply: what closes the user's message.
            reply_header, user_after = user_after, ""
        user = Frame(user_before, user_after)
        assistant = Frame(gaps[1][len(user_after) :], assistant_after)
        system_first, system, opens_user, is_native = self._system(lead, user, assistant)
        template = Template(
            self._encoder,
            lead=lead,
            system_first=system_first,
            system=system,
            user=user,
            assistant=assistant,
            reply_header=reply_header,
            system_opens_user=opens_user,
            alternates=takes_over or self._alternates(user, assistant),
            trimmed=self._trimmed("sua" if is_native else "ua"),
        )
        self._check(template, with_system=is_native)
        return template

    def _system(
        self, lead: str, user: Frame, assistant: Frame
    ) -> tuple[Frame, Frame | None, bool, bool]:
        """First and later frame of a system prompt, whether it opens the user's message, and
        whether the template itself says so."""
        gaps, plain = self._between("suauau", reply=True), self._gaps
        if gaps is None or plain is None or gaps[2:] != plain[1:]:
            # It refuses or moves the system prompt: put it at the head of the first user message.
            return Frame(lead + user.before, JOINER), None, True, False
        before, after = gaps[0], gaps[1]
        if not after.endswith(user.before) or not user.before:
            return Frame(before, after), None, True, True
        after = after[: len(after) - len(user.before)]
        later = self._between("suasu", reply=False)
        if later is not None and later[3].startswith(assistant.after):
            frame = Frame(later[3][len(assistant.after) :], after)
            if later[4] == after + user.before and frame.before:
                return Frame(before, after), frame, False, True
        later_before = before.removeprefix(lead) if lead else before
        return Frame(before, after), Frame(later_before, after), False, True

    def _alternates(self, user: Frame, assistant: Frame) -> bool:
        gaps = self._between("uuaau", reply=False)
        expected = [
            user.after + user.before,
            user.after + assistant.before,
            assistant.after + assistant.before,
            assistant.after + user.before,
        ]
        return gaps is None or gaps[1:5] != expected

    def _trimmed(self, roles: str) -> frozenset[str]:
        trimmed = set()
        messages = _conversation(roles + "u", pad="  ")
        text = render(self._tokenizer, messages, reply=False) or ""
        for message in messages:
            if message.content not in text:
                trimmed.add(message.role)
        return frozenset(trimmed)

    def _ending(self, roles: str, *following: str) -> str:
        """What closes the last message: the part of its ending that also stands mid-way."""
        gaps = self._between(roles, reply=False)
        ending = gaps[-1] if gaps is not None else following[0]
        for text in following:
            ending = self._common_start(ending, text)
        return ending

    def _common_start(self, ending: str, text: str) -> str:
        length = 0
        while length < min(len(ending), len(text)) and ending[length] == text[length]:
            length += 1
        # `<|end|>` and `<|endoftext|>` share letters, not tokens.
        for source in (ending, text):
            for match in self._encoder.control_pattern.finditer(source):
                if match.start() < length < match.end():
                    length = match.start()
        return ending[:length]

    def _between(self, roles: str, *, reply: bool) -> list[str] | None:
        """The texts around the words of a made-up conversation, None if they are not all there."""
        messages = _conversation(roles)
        text = render(self._tokenizer, messages, reply=reply)
        if text is None:
            return None
        pattern = "(.*)".join(re.escape(message.content) for message in messages)
        match = re.fullmatch(f"(.*){pattern}(.*)", text, flags=re.DOTALL)
        once = all(text.count(message.content) == 1 for message in messages)
        return list(match.groups()) if match is not None and once else None

    def _check(self, template: Template, *, with_system: bool) -> None:
        """Hold what was found against the template's own rendering of plain conversations."""
        conversations = ["u", "uau", "uauauau"]
        conversations += ["su", "suau", "suauauau"] if with_system else []
        for roles in conversations:
            messages = _conversation(roles)
            expected = render(self._tokenizer, messages, reply=True)
            prompt = [Part(index, (message,)) for index, message in enumerate(messages)]
            if template.render(prompt) != expected:
                raise Unsupported(
                    f"The chat template renders a conversation of {len(roles)} messages in a way "
                    "its frames do not explain."
                )


def _conversation(roles: str, pad: str = "") -> list[Message]:
    names: dict[str, Role] = {"s": "system", "u": "user", "a": "assistant"}
    return [
        Message(names[letter], f"{pad}probe{chr(ord('A') + index)}words{pad}")
        for index, letter in enumerate(roles)
    ]
