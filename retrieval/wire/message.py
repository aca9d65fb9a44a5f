"""One message of a prompt."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class Message(msgspec.Struct, frozen=True):
    """One message of a prompt, as OpenAI has it."""

    role: Annotated[Literal["system", "user"], Meta(description="Who says it")]
    content: Annotated[str, Meta(description="The text")]
