"""Small copies of the output of documentation generators, with what they put around the pages."""

from __future__ import annotations

from pathlib import Path

FILLER = "Some words that make a paragraph long enough to be told from others, of the page {}."
HELP = """<div id="mdbook-help-container"><div id="mdbook-help-popup">
<h2 class="mdbook-help-title">Keyboard shortcuts</h2><p>Press <kbd>S</kbd> to search in the book</p></div></div>"""


def put_all(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def page(title: str, text: str) -> str:
    return f"<h1 id='x'><a class='header' href='#x'>{title}</a></h1>\n<p>{text}</p>\n<p>{FILLER.format(title)}</p>\n"


def mdbook(folder: Path) -> Path:
    """As mdBook 0.5 writes it: two chapters, all of them in print.html, and a popup of keys in every page."""
    chapters = {"index.html": page("Welcome", "Hi."), "ch01/loops.html": page("Loops", "They go round.")}

    def around(main: str) -> str:
        return (
            f"<html><head><title>The Book</title></head><body>{HELP}<div id='mdbook-body-container'>"
            f"<nav id='mdbook-sidebar'><mdbook-sidebar-scrollbox>Contents</mdbook-sidebar-scrollbox></nav>"
            f"<div class='page'><div id='mdbook-menu-bar'><h1 class='menu-title'>The Book</h1></div>"
            f"<div id='mdbook-content'><main>{main}</main><nav class='nav-wrapper'>Next chapter</nav></div></div></div>"
            "<script src='book-1a2b3c4d.js'></script></body></html>"
        )

    return put_all(
        folder,
        {
            **{name: around(main) for name, main in chapters.items()},
            "print.html": around("".join(chapters.values())),
            "toc.html": "<body><ol class='chapter'><li>Loops</li></ol></body>",
            "moved.html": "<head><meta http-equiv='refresh' content='0; URL=index.html'></head><p>Redirecting to...",
            "404.html": around("<h1>Document not found (404)</h1>"),
            "searchindex-1a2b3c4d.js": "window.search = {}",
            "book-1a2b3c4d.js": "function run() {}\n",
            "toc-1a2b3c4d.js": "class Toc {}\n",
            "elasticlunr-ef4e1f8f.min.js": "!function(){}()",
            "css/general-ae11f2fe.css": "body { margin: 0 }\n",
            "highlight-abc.js": "var hljs = 1;\n",
            ".nojekyll": "",
        },
    )


def sphinx(folder: Path) -> Path:
    """As Sphinx writes it: one page, with its source beside it, its indexes and its scripts."""
    body = (
        "<section id='usage'><h1>Usage<a class='headerlink' href='#usage'>P</a></h1><p>Call it.</p></section>"
    )
    content = (
        "<html><head><title>Usage</title></head><body><a class='skip-link' href='#m'>Skip to main content</a>"
        "<div class='related' role='navigation'>next | index</div><div class='document'>"
        f"<div class='body' role='main'>{body}</div></div><div class='sphinxsidebar' role='navigation'>"
        "<div id='searchbox' role='search'><h3>Quick search</h3></div></div><div class='footer'>Made with Sphinx</div>"
        "<div role='dialog' aria-modal='true'><h2>Search shortcuts</h2></div></body></html>"
    )
    return put_all(
        folder,
        {
            "usage.html": content,
            "genindex.html": content,
            "py-modindex.html": content,
            "search.html": content,
            "searchindex.js": "Search.setIndex({})",
            "objects.inv": "# Sphinx inventory",
            "_sources/usage.rst.txt": "Usage\n=====\n\nCall it.\n",
            "_static/doctools.js": "function ready() {}\n",
            "_static/basic.css": "p { margin: 0 }\n",
        },
    )
