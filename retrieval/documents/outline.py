"""The structure of a text for chunking: headings, fenced code, paragraphs; in source code, indented blocks.

Handles Markdown, reStructuredText and plain text alike: `# headings`, underlined headings, fences of ``` or ~~~,
blank lines. Text indented below a directive (`.. code-block:: sh`) or a line that ends with `::` has no headings,
because comments in code look like them. A text without any structure has an empty outline. Source code is outlined
separately.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from indexes.base.work import OnStep, do_nothing

LINE = re.compile(r"[^\n]*\n?")
# A list item may begin with one.
FENCE = re.compile(r" {0,3}(?:(?:[-*+]|[0-9]{1,9}[.)])[ \t]{1,4})?(`{3,}|~{3,})")
HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*)")
UNDERLINE = re.compile(r"([=\-~^])\1{2,}[ \t]*$")
DIRECTIVE = re.compile(r"\.\. [a-zA-Z][\w-]*::")
UNDERLINED_LEVELS = {"=": 1, "-": 2, "~": 3, "^": 4}
HEADING_CHARS_MAX = 120  # a longer line is text, whatever surrounds it
PATH_SEPARATOR = " > "
# In code, these lines neither open nor end a block: brackets alone or after a list, comments, preprocessor lines.
NO_OPENER = re.compile(r"[(){}\[\]#/*]")
COMMENT = re.compile(r"#[ !]|//|/\*")  # after a blank line, belongs to the code that follows
# Their blocks are part of the function or class around them.
CONTROL = re.compile(
    r"\W*(?:if|elif|else|for|foreach|while|until|unless|do|loop|try|except|catch|finally|rescue|ensure|with|switch|case"
    r"|match|when|select|begin|return|break|continue|await|yield|defer|go|lock|using|synchronized)\b"
)
QUOTES = re.compile(r"\"{3}|'{3}")
CODE_LEVELS = 2  # of indentation that count: classes and methods, not loops inside them
TAB_COLUMNS = 8
STEP_LINES = 1000

PARAGRAPH = 1  # the weakest break; a heading of level n breaks with strength 8 - n
STRONGEST = 7


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading at `start`, of level 1 to 6, below the nearest earlier one of a higher rank. Without a title, it
    only ends the previous heading's section."""

    start: int
    level: int
    title: str
    above: Heading | None

    @property
    def strength(self) -> int:
        return STRONGEST + 1 - self.level


@dataclass(slots=True)
class Outline:
    """Positions to cut a text, ascending, each with its strength; the headings, in order; and where their texts
    begin."""

    breaks: list[int] = field(default_factory=list)
    strengths: list[int] = field(default_factory=list)
    headings: list[Heading] = field(default_factory=list)
    bodies: set[int] = field(default_factory=set)

    def within(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return position and strength of the breaks from `low` to `high`, both inclusive."""
        first, end = bisect_left(self.breaks, low), bisect_right(self.breaks, high)
        return list(zip(self.breaks[first:end], self.strengths[first:end]))

    def splits_heading(self, at: int) -> bool:
        """Whether a cut here would separate a heading from the text below it."""
        return at in self.bodies

    def path(self, start: int) -> str:
        """Return the headings above the text at `start`, outermost first, including one that begins there."""
        at = bisect_right(self.headings, start, key=lambda heading: heading.start)
        heading = self.headings[at - 1] if at else None
        titles: list[str] = []
        while heading:
            if heading.title:
                titles.append(heading.title)
            heading = heading.above
        return PATH_SEPARATOR.join(reversed(titles))

    def path_of(self, start: int, end: int) -> str:
        """Return the headings of a piece of text.

        These are the headings at its start, unless more than half of it is below later ones, for example when the
        end of a function is followed by another function: then those of the first later heading with a title.
        """
        middle = start + (end - start + 1) // 2
        first, beyond = (bisect_left(self.headings, at, key=lambda one: one.start) for at in (start, middle))
        later = self.headings[first:beyond]
        named = (one.start for one in later if one.title)
        return self.path(next(named, later[0].start if later else start))


def outline(text: str, on_step: OnStep = do_nothing) -> Outline:
    """Outline a text in one pass, line by line. `on_step` is called every few milliseconds."""
    found = Outline()
    fence = ""
    blank = True  # whether the previous line was blank or there was none
    previous: tuple[int, str] | None = None  # start and text of the previous line, if it may be a heading
    heading_open = False  # only white space since the last heading
    for count, (start, line, literal) in enumerate(lines_of(text)):
        if count % STEP_LINES == 0:
            on_step()
        if fence:
            end = FENCE.match(line.lstrip(" "))  # inside a list it is indented
            if end and end[1].startswith(fence) and not line.strip(" `~"):
                fence, blank = "", True  # text after a code block is a new paragraph
            continue
        if not line.strip():
            blank, previous = True, None
            continue
        if previous and not literal and (level := underline_level(previous[1], line)):
            add_heading(found, previous[0], level, previous[1].strip())
            heading_open, blank, previous = True, False, None
            continue
        if heading_open:
            found.bodies.add(start)
        heading = None if literal or len(line) > HEADING_CHARS_MAX else HEADING.match(line)
        if heading and (title := title_in(heading[2])):
            # Consecutive headings stay together: cut before the first.
            add_heading(found, start, len(heading[1]), title, alone=not heading_open)
            heading_open, blank, previous = True, False, None
            continue
        if blank and not heading_open:
            found.breaks.append(start)
            found.strengths.append(PARAGRAPH)
        previous = (start, line) if blank or heading_open else None
        heading_open = blank = False
        if not literal and (begin := FENCE.match(line)):
            fence, previous = begin[1], None
    return found


def lines_of(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each line with its start, and whether it is indented below a directive or a line that ends with `::`."""
    opened: int | None = None  # the column of the directive's line
    for match in LINE.finditer(text):
        line = match[0].rstrip("\r\n")
        column = len(line) - len(line.lstrip())
        if column < len(line):  # not blank
            if opened is not None and column <= opened:
                opened = None
            if opened is None and opens_literal(line):
                opened = column
                yield match.start(), line, False
                continue
        if match[0]:
            yield match.start(), line, opened is not None


def code_outline(text: str, on_step: OnStep = do_nothing) -> Outline:
    """Outline source code of any language with indented blocks, in one pass, line by line.

    A blank line is a stronger break the fewer blocks enclose the next line; the end of an outermost block is a weak
    one. The headings of a line are the first lines of its enclosing blocks: a class, then a function.
    """
    found = Outline()
    blocks: list[tuple[int, int, str]] = []  # first lines of open blocks: column, start, text
    blank, deepest = True, 0  # since the last relevant line
    quote = ""  # the closing quote, inside a multi-line string
    for count, match in enumerate(LINE.finditer(text)):
        if count % STEP_LINES == 0:
            on_step()
        start, line = match.start(), match[0].rstrip()
        if not line:
            blank = True
            continue
        code = line.lstrip()
        column = len(line.expandtabs(TAB_COLUMNS)) - len(code.expandtabs(TAB_COLUMNS))
        counts = not quote and (not NO_OPENER.match(code) or bool(blank and COMMENT.match(code)))
        quote = quote_after(code, quote)
        depth = bisect_left(blocks, (column,))
        if blank or (counts and depth == 0 and deepest > 0):
            found.breaks.append(start)
            found.strengths.append(PARAGRAPH + max(0, CODE_LEVELS - depth) if blank else PARAGRAPH)
        blank = False
        if not counts:
            continue
        if depth > deepest and depth <= CODE_LEVELS:  # the previous line opened a block
            _, opened, title = blocks[depth - 1]
            add_block(found, opened, depth, "" if CONTROL.match(title) else title)
        elif depth < deepest and depth < CODE_LEVELS:
            add_block(found, start, depth + 1, "")
        blocks[depth:] = [(column, start, code)]
        deepest = depth
    return found


def quote_after(line: str, quote: str) -> str:
    """Return the triple quote that is open after a line, or "". `quote` is the one open before it."""
    for match in QUOTES.finditer(line):
        if quote in ("", match[0]):
            quote = "" if quote else match[0]
    return quote


def add_block(found: Outline, start: int, level: int, line: str) -> None:
    above = found.headings[-1] if found.headings else None
    while above and above.level >= level:
        above = above.above
    found.headings.append(Heading(start, level, line.rstrip(" \t{(:")[:HEADING_CHARS_MAX], above))


def title_in(written: str) -> str:
    """Return the title of `# a heading {#anchor} ##`: the part before its anchor and closing marks. Marks that touch
    a word belong to it: `# Learning C#`."""
    title = written.rstrip(" \t")
    unmarked = title.rstrip("#")
    if not unmarked or unmarked[-1] in " \t":
        title = unmarked.rstrip(" \t")
    before, anchor, name = title.rpartition("{#")
    return before.rstrip(" \t") if anchor and name.find("}") == len(name) - 1 else title


def opens_literal(line: str) -> bool:
    """Whether the text indented below this line is code or belongs to a directive, in reStructuredText."""
    text = line.strip()
    return text.endswith("::") or DIRECTIVE.match(text) is not None


def has_literals(text: str) -> bool:
    return "::" in text and any(map(opens_literal, text.splitlines()))


def underline_level(line: str, below: str) -> int:
    """Return the level of a heading underlined by a rule at least as long, or 0 if it is not one."""
    rule = UNDERLINE.match(below)
    if rule is None or len(line) > HEADING_CHARS_MAX or len(below.strip()) < len(line.strip()):
        return 0
    return UNDERLINED_LEVELS[rule[1]]


def add_heading(found: Outline, start: int, level: int, title: str, *, alone: bool = True) -> None:
    """Add a heading. `alone` means that no other heading is directly above, so a cut may precede this one."""
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
