"""The structure of a text that chunking follows: headings, fenced code, paragraphs; in source code, indented blocks.

Markdown, reStructuredText and plain text alike: `# headings`, underlined headings, fences of ``` or ~~~, blank lines.
What is indented below a directive (`.. code-block:: sh`) or a line that ends with `::` has no headings, since comments
in code look like them. Text without any of them has an empty outline. Source code has one of its own.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

LINE = re.compile(r"[^\n]*\n?")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*)")
UNDERLINE = re.compile(r"([=\-~^])\1{2,}[ \t]*$")
DIRECTIVE = re.compile(r"\.\. [a-zA-Z][\w-]*::")
UNDERLINED_LEVELS = {"=": 1, "-": 2, "~": 3, "^": 4}
HEADING_CHARS_MAX = 120  # a longer line is text, whatever stands before or below it
PATH_SEPARATOR = " > "
# In code these open no block and end none: brackets alone or after a list, comments, the preprocessor's lines.
NO_OPENER = re.compile(r"[(){}\[\]#/*]")
COMMENT = re.compile(r"#[ !]|//|/\*")  # after a blank line, of what follows
# Their blocks are part of the function or class around them.
CONTROL = re.compile(
    r"\W*(?:if|elif|else|for|foreach|while|until|unless|do|loop|try|except|catch|finally|rescue|ensure|with|switch|case"
    r"|match|when|select|begin|return|break|continue|await|yield|defer|go|lock|using|synchronized)\b"
)
QUOTES = ('"""', "'''")
CODE_LEVELS = 2  # of indentation that count: a class and its methods, not the loops in them
TAB_COLUMNS = 8

PARAGRAPH = 1  # the weakest break; a heading of level n breaks with strength 8 - n
STRONGEST = 7


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading at `start`, of level 1 to 6, below the nearest one before it of a higher rank. Without a title, it only
    ends the one before."""

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
            if heading.title:
                titles.append(heading.title)
            heading = heading.above
        return PATH_SEPARATOR.join(reversed(titles))

    def path_of(self, start: int, end: int) -> str:
        """The headings of a piece of the text: those it begins under; or, where most of it stands under later ones, as
        where the end of a function is followed by another function, the first of these that has a title."""
        later = self.headings[bisect_left(self.headings, start, key=lambda one: one.start) :]
        later = [one for one in later if 2 * (one.start - start) < end - start]
        named = (one.start for one in later if one.title)
        return self.path(next(named, later[0].start if later else start))


def outline(text: str) -> Outline:
    """Read a text once, line by line."""
    found = Outline()
    fence = ""
    blank = True  # whether the line before was blank, or there was none
    previous: tuple[int, str] | None = None  # start of the line before and its text, if it may be a heading's
    heading_open = False  # only white space since the last heading
    for start, line, literal in lines_of(text):
        mark = FENCE.match(line) if fence or not literal else None
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip(" `~"):
                fence, blank = "", True  # what follows a block of code is a paragraph of its own
            continue
        if not line.strip():
            blank, previous = True, None
            continue
        if previous and not literal and (level := underlined(previous[1], line)):
            add_heading(found, previous[0], level, previous[1].strip())
            heading_open, blank, previous = True, False, None
            continue
        if heading_open:
            found.bodies.add(start)
        heading = None if literal or len(line) > HEADING_CHARS_MAX else HEADING.match(line)
        if heading and (title := title_in(heading[2])):
            # Headings in a row stay together: the cut is before the first.
            add_heading(found, start, len(heading[1]), title, alone=not heading_open)
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


def lines_of(text: str) -> Iterator[tuple[int, str, bool]]:
    """Each line with its start, and whether it is indented below a directive or a line that ends with `::`."""
    opened: int | None = None  # the column of that line
    for match in LINE.finditer(text):
        line = match[0].rstrip("\n")
        column = len(line) - len(line.lstrip())
        if column < len(line):  # is not blank
            if opened is not None and column <= opened:
                opened = None
            if opened is None and opens_literal(line):
                opened = column
                yield match.start(), line, False
                continue
        if match[0]:
            yield match.start(), line, opened is not None


def code_outline(text: str) -> Outline:
    """Of source code in any language whose blocks are indented, read once, line by line.

    A blank line breaks the more, the fewer blocks the next line is in; so, weakly, does the end of an outermost block.
    The headings of a line are the first lines of the blocks around it: a class, then a function.
    """
    found = Outline()
    blocks: list[tuple[int, int, str]] = []  # lines that are open: column, start, text
    blank, deepest = True, 0  # since the last line that counts
    quote = ""  # that ends the text over several lines in which a line begins
    for match in LINE.finditer(text):
        start, line = match.start(), match[0].rstrip()
        if not line:
            blank = True
            continue
        code = line.lstrip()
        column = len(line.expandtabs(TAB_COLUMNS)) - len(code.expandtabs(TAB_COLUMNS))
        counts = not quote and (not NO_OPENER.match(code) or bool(blank and COMMENT.match(code)))
        quote = quote_after(code, quote)
        depth = sum(above < column for above, _, _ in blocks)
        if blank or (counts and depth == 0 and deepest > 0):
            found.breaks.append(start)
            found.strengths.append(PARAGRAPH + max(0, CODE_LEVELS - depth) if blank else PARAGRAPH)
        blank = False
        if not counts:
            continue
        if depth > deepest and depth <= CODE_LEVELS:  # the line before is the first of a block
            _, opened, title = blocks[depth - 1]
            add_block(found, opened, depth, "" if CONTROL.match(title) else title)
        elif depth < deepest and depth < CODE_LEVELS:
            add_block(found, start, depth + 1, "")
        blocks[depth:] = [(column, start, code)]
        deepest = depth
    return found


def quote_after(line: str, quote: str) -> str:
    """The quotes that are open behind a line: three of one kind, as around a text of several lines. `quote` are those
    before it."""
    while True:
        ends = [(at, one) for one in ([quote] if quote else QUOTES) if (at := line.find(one)) >= 0]
        if not ends:
            return quote
        at, one = min(ends)
        quote, line = "" if quote else one, line[at + len(one) :]


def add_block(found: Outline, start: int, level: int, line: str) -> None:
    above = found.headings[-1] if found.headings else None
    while above and above.level >= level:
        above = above.above
    found.headings.append(Heading(start, level, line.rstrip(" \t{(:")[:HEADING_CHARS_MAX], above))


def title_in(written: str) -> str:
    """The title of `# a heading {#anchor} ##`: what stands before its anchor and its closing marks.

    Marks that touch a word belong to it: `# Learning C#`.
    """
    title = written.rstrip(" \t")
    unmarked = title.rstrip("#")
    if not unmarked or unmarked[-1] in " \t":
        title = unmarked.rstrip(" \t")
    before, anchor, name = title.rpartition("{#")
    return before.rstrip(" \t") if anchor and name.find("}") == len(name) - 1 else title


def opens_literal(line: str) -> bool:
    """Whether what is indented below this line is code or a directive's, by reStructuredText."""
    text = line.strip()
    return text.endswith("::") or DIRECTIVE.match(text) is not None


def has_literals(text: str) -> bool:
    return "::" in text and any(map(opens_literal, text.splitlines()))


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
