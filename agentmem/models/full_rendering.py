"""A prompt rendered whole by a chat template that cannot be taken apart.

For templates that rewrite history or frame a message by its place: correct, but the prompt has no
parts, so only its unchanged beginning is saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentmem.errors import Unsupported
from agentmem.models.base import Part
from agentmem.models.template import JOINER, PLACEHOLDER
from agentmem.models.template_probe import TEMPLATE_ERRORS
from agentmem.models.text_encoder import without_surrogates
from agentmem.models.tool_text import plain_message


class FullRendering:
    """Renders through one tokenizer's chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, prompt: Sequence[Part]) -> list[int]:
        """Token ids of the whole prompt, reply header included.

        Raises:
            Unsupported: the template refuses the conversation in every form.
        """
        spoken = [plain_message(message) for part in prompt for message in part.messages]
        problem: Exception | None = None
        for messages in (spoken, _taking_turns(spoken)):
            conversation = [
                {"role": role, "content": without_surrogates(content)} for role, content in messages
            ]
            try:
                # Control tokens that somebody typed are encoded as the letters they are made of.
                token_ids = self._tokenizer.apply_chat_template(
                    conversation,
                    add_generation_prompt=True,
                    sanitize_control_tokens=True,
                    return_dict=False,
                )
            except TEMPLATE_ERRORS as error:
                problem = error
                continue
            return [int(token_id) for token_id in token_ids]
        raise Unsupported(f"The chat template refuses the conversation: {problem}.") from problem


def _taking_turns(spoken: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """User first, then in turns: neighbours are joined, system prompts become the user's words."""
    turns: list[tuple[str, str]] = []
    for role, content in spoken:
        role = "assistant" if role == "assistant" else "user"
        if turns and turns[-1][0] == role:
            turns[-1] = (role, turns[-1][1] + JOINER + content)
        elif not turns and role == "assistant":
            turns += [("user", PLACEHOLDER), (role, content)]
        else:
            turns.append((role, content))
    if not turns or turns[-1][0] == "assistant":
        turns.append(("user", PLACEHOLDER))
    return turns
