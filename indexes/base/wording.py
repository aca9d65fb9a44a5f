"""Words for people that several rooms use."""

from __future__ import annotations


def format_count(number: int, thing: str) -> str:
    """Format a count with its noun: `1 file`, `1,200 files`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
