"""One message of a prompt."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class Message(msgspec.Struct, frozen=True):
    """One message of a prompt, as in OpenAI's API."""

    role: Annotated[Literal["system", "user"], Meta(description="The role of the speaker")]
    content: Annotated[str, Meta(description="The text")]
