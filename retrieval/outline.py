"""The structure of a text that chunking follows: headings, fenced code, paragraphs.

Markdown and plain text alike: `# headings`, underlined headings, fences of ``` or ~~~, blank lines. Text without any of
them has an empty outline.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

LINE = re.compile(r"[^\n]*\n?")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
# An anchor, `{#like-this}`, is no part of a heading.
HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t]*(?:\{#[^}]*\}[ \t]*)?#*[ \t]*$")
UNDERLINE = re.compile(r"([=\-~^])\1{2,}[ \t]*$")
UNDERLINED_LEVELS = {"=": 1, "-": 2, "~": 3, "^": 4}
HEADING_CHARS_MAX = 120  # a longer line is text, whatever stands before or below it
PATH_SEPARATOR = " > "

PARAGRAPH = 1  # the weakest break; a heading of level n breaks with strength 8 - n
STRONGEST = 7


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading at `start`, of level 1 to 6, below the nearest one before it of a higher rank."""

    start: int
    level: int
    title: str
    above: Heading | None

    @property
    def strength(self) -> int:
        return STRONGEST + 1 - self.level


@dataclass(slots=True)
class Outline:
    """Places to cut a text, ascending, each with its strength; the headings, in order; and where their texts begin."""

    breaks: list[int] = field(default_factory=list)
    strengths: list[int] = field(default_factory=list)
    headings: list[Heading] = field(default_factory=list)
    bodies: set[int] = field(default_factory=set)

    def within(self, low: int, high: int) -> list[tuple[int, int]]:
        """Breaks from `low` to `high`, both included: position and strength."""
        first, end = bisect_left(self.breaks, low), bisect_right(self.breaks, high)
        return list(zip(self.breaks[first:end], self.strengths[first:end]))

    def parts_heading(self, at: int) -> bool:
        """Whether a cut here would leave a heading behind without the text below it."""
        return at in self.bodies

    def path(self, start: int) -> str:
        """The headings that the text at `start` stands under, outermost first. One that begins there is the last."""
        at = bisect_right(self.headings, start, key=lambda heading: heading.start)
        heading = self.headings[at - 1] if at else None
        titles: list[str] = []
        while heading:
            titles.append(heading.title)
            heading = heading.above
        return PATH_SEPARATOR.join(reversed(titles))


def outline(text: str) -> Outline:
    """Read a text once, line by line."""
    found = Outline()
    fence = ""
    blank = True  # whether the line before was blank, or there was none
    previous: tuple[int, str] | None = None  # start of the line before and its text, if it may be a heading's
    heading_open = False  # only white space since the last heading
    for match in LINE.finditer(text):
        start, line = match.start(), match[0].rstrip("\n")
        if not match[0]:
            break
        mark = FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip(" `~"):
                fence, blank = "", True  # what follows a block of code is a paragraph of its own
            continue
        if not line.strip():
            blank, previous = True, None
            continue
        if previous and (level := underlined(previous[1], line)):
            add_heading(found, previous[0], level, previous[1].strip())
            heading_open, blank, previous = True, False, None
            continue
        if heading_open:
            found.bodies.add(start)
        if (heading := HEADING.match(line)) and heading[2] and len(line) <= HEADING_CHARS_MAX:
            # Headings in a row stay together: the cut is before the first.
            add_heading(found, start, len(heading[1]), heading[2], alone=not heading_open)
            heading_open, blank, previous = True, False, None
            continue
        if blank and not heading_open:
            found.breaks.append(start)
            found.strengths.append(PARAGRAPH)
        previous = (start, line) if blank or heading_open else None
        heading_open = blank = False
        if mark:
            fence, previous = mark[1], None
    return found


def underlined(line: str, below: str) -> int:
    """The level of a heading written as a line and a rule below it as long as the line; 0 if it is none."""
    rule = UNDERLINE.match(below)
    if rule is None or len(line) > HEADING_CHARS_MAX or len(below.strip()) < len(line.strip()):
        return 0
    return UNDERLINED_LEVELS[rule[1]]


def add_heading(found: Outline, start: int, level: int, title: str, *, alone: bool = True) -> None:
    """`alone`: no other heading stands right above, so a cut may go before this one."""
    above = found.headings[-1] if found.headings else None
    while above and above.level >= level:
        above = above.above
    heading = Heading(start, level, title, above)
    found.headings.append(heading)
    if found.breaks and found.breaks[-1] == start:
        found.strengths[-1] = heading.strength
    elif alone:
        found.breaks.append(start)
        found.strengths.append(heading.strength)
