"""The page at /ui, in a real Chromium over a real service with keys. Each control of it is used at least once."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from jobs.serving.process import ServerProcess, serving
from jobs.sources import read_documents
from retrieval.handlers.ui import FOLDER
from tests.support.files import docx, xlsx
from tests.support.guarded import Caller, guarded_service
from tests.support.http import Http
from tests.support.redis_server import free_port

NODE = shutil.which("node")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WAIT_MS = 20_000
HOSTILE = '<img src=x onerror="document.title=1"><b>bold</b>'
DOCUMENTS = [
    {
        "id": "refunds",
        "title": "Refunds",
        "text": "You get your money back within fourteen days.",
        "metadata": {"lang": "en", "year": 2026},
    },
    {
        "id": "shipping",
        "title": "Shipping",
        "text": "Parcels leave on weekdays. " * 40,
        "metadata": {"lang": "en", "year": 2025},
    },
    {
        "id": "retour",
        "title": "Rückgabe 😀",
        "text": "😀 Geld zurück: money back.",
        "metadata": {"lang": "de", "year": 2024},
    },
    {"id": "hostile", "title": HOSTILE, "text": f"money {HOSTILE}", "metadata": {"lang": HOSTILE}},
]
REPORT = {
    "version": 2, "k": 10, "generation": 1, "model": "m", "documents": 4, "queries": 60, "source": "file",
    "cohorts": [
        {"name": "overall", "kind": "overall", "recall": 0.98, "low": 0.95, "high": 0.99, "queries": 60},
        {"name": "cold", "kind": "tier", "recall": 0.9, "low": 0.85, "high": 0.94, "queries": 60},
    ],
    "floors": {"overall": 0.95, "tier": 0.95}, "below": ["recall@10 cold is 0.9000, below 0.95"],
    "rankings": {one: {"ndcg@10": {"value": 0.4, "low": 0.3, "high": 0.5}} for one in ("dense", "hybrid")},
    "relevance": {
        "calibration_error": 0.02,
        "bins": [{"since": 0.1, "hits": 90, "relevance": 0.15, "relevant": 0.2}],
    },
    "latency_ms": {"dense": {"embed": {"p50": 1.0, "p95": 2.0, "p99": 3.0}}},
}  # fmt: skip


@dataclass
class Seen:
    """What a browser has noticed that none of the tests may cause."""

    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """A service with keys, a browser, and keys by their scope."""

    server: ServerProcess
    browser: Any
    keys: dict[str, str]

    @property
    def http(self) -> Caller:
        return Caller(self.server.url, self.keys["admin"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Place]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (Debian: apt install chromium)")
    data = tmp_path_factory.mktemp("page") / "data"
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    with (
        guarded_service(data, environ) as guarded,
        playwright.sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        keys = {
            "admin": guarded.caller("admin").token,
            "search": guarded.caller("search").token,
            "groups": guarded.caller("search", groups=["board"]).token,
        }
        found = Place(guarded.server, browser, keys)
        found.http.ok("POST", "/v1/collections", {"name": "shop"})
        found.http.write("shop", *DOCUMENTS)
        yield found
        browser.close()


Opener = Callable[..., Any]


@pytest.fixture
def open_page(place: Place) -> Iterator[Opener]:
    """Opens the page at a view with a key. At the end: no error in the console, no script that broke, no breach of the
    policy, and no request to anywhere else."""
    seen, contexts = Seen(), []

    def opened(view: str = "", key: str | None = "admin", width: int = 1280) -> Any:
        context = place.browser.new_context(viewport={"width": width, "height": 900})
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        if key is not None:
            page.add_init_script(f"sessionStorage.setItem('nearline-key', '{place.keys[key]}')")
        page.on("request", lambda request: seen.requests.append(request.url))
        page.on("pageerror", lambda error: seen.faults.append(str(error)))
        page.on("console", lambda message: noted(seen, message))
        page.goto(f"{place.server.url}/ui{view}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert seen.faults == []
    assert [url for url in seen.requests if not url.startswith((f"{place.server.url}/", "data:"))] == []


def noted(seen: Seen, message: Any) -> None:
    """Chromium reports every answer that is an error as well, which some tests ask for."""
    asked_for = re.search(r"responded with a status of (4|503)", message.text)
    if message.type in ("error", "warning") and not asked_for:
        seen.faults.append(message.text)


def titles(page: Any) -> list[str]:
    return list(page.locator(".hit h2").all_inner_texts())


def search(page: Any, text: str) -> None:
    page.get_by_label("Query").fill(text)
    page.get_by_role("button", name="Search", exact=True).click()
    page.locator(".results[aria-busy=false] .hit").first.wait_for()


def until(page: Any, holds: Callable[[], bool]) -> None:
    """The page's policy forbids the strings of code that Playwright would wait with."""
    for _ in range(WAIT_MS // 20):
        if holds():
            return
        page.wait_for_timeout(20)
    raise AssertionError("it did not come to hold")


def titled(page: Any, view: str) -> bool:
    return bool(page.title().startswith(view))


def taken(page: Any, outcome: str) -> bool:
    return outcome in "".join(page.locator(".taken tbody").all_inner_texts())


# --- what the browser is sent ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_its_files_are_strict_and_cached(place: Place) -> None:
    """Nothing inline is allowed, types are right, a browser that has a file is not sent it again, others are 404."""
    http = Caller(place.server.url)
    paths = ["/ui", *(f"/ui/assets/{path.name}" for path in FOLDER.iterdir() if path.name != "index.html")]
    types = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    for path in paths:
        reply = http.call("GET", path)
        assert reply.status == 200
        assert reply.headers["Content-Type"].partition(";")[0] == types.get(Path(path).suffix, "text/html")
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
        assert "unsafe" not in policy
        again = http.call("GET", path, headers={"If-None-Match": reply.headers["ETag"]})
        assert (again.status, again.body) == (304, None)
    assert len(paths) > 10
    for name in ("index.html", "..%2findex.html", "nothing.js", "%00", "x" * 5000):
        assert http.call("GET", f"/ui/assets/{name}").status == 404


def test_it_never_writes_markup() -> None:
    """No script has a way to make markup of text, but the one that reads files of HTML."""
    for path in FOLDER.glob("*.js"):
        ways = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|parseFromString|eval\(", path.read_text()
        )
        assert ways == (["parseFromString"] if path.name == "markup.js" else []), path.name


# --- search ---------------------------------------------------------------------------------------------------


def test_a_search_by_keyboard_alone(open_page: Opener) -> None:
    """`/`, the words, Enter, Tab to why, Enter, Escape; the result is announced, and the focus comes back."""
    page = open_page("#/collections")
    page.get_by_role("heading", name="Collections").wait_for()
    page.keyboard.press("/")
    page.locator("#query:focus").wait_for()
    page.keyboard.type("when do I get my money back?")
    page.keyboard.press("Enter")
    page.locator(".hit").first.wait_for()
    assert re.fullmatch(r"\d hits in .*", page.locator("#status").inner_text())
    assert titles(page)[0] == "Refunds"
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Why this hit":
            break
    page.keyboard.press("Enter")
    page.locator(".explanation h2").wait_for()
    assert "hit 1" in page.locator(".explanation").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".explanation").count() == 0
    assert page.evaluate("document.activeElement.textContent") == "Why this hit"


def test_no_collection_is_chosen_by_its_name(open_page: Opener, place: Place) -> None:
    """Where there are several, search and ingest wait for a choice, and begin with the last one from then on."""
    if len(place.http.ok("GET", "/v1/collections")["collections"]) < 2:
        place.http.new_collection()
    page = open_page("#/search")
    assert page.get_by_label("Collection").input_value() == ""
    page.get_by_text("Choose a collection to search.").wait_for()
    page.get_by_label("Collection").select_option("shop")
    search(page, "money")
    page.goto(page.url.partition("#")[0] + "#/ingest")
    page.locator(".drop").wait_for()
    assert page.get_by_label("Into").input_value() == "shop"


@pytest.mark.slow
def test_a_search_without_a_collection_asks_for_one(open_page: Opener) -> None:
    """A key that lists none has to name it."""
    page = open_page("#/search", key="groups")
    page.locator("#query").fill("tent")
    page.locator("#query").press("Enter")
    page.get_by_text("Type the name of the one to search.").wait_for()
    assert not [one for one in page.locator(".error").all_inner_texts() if "no such path" in one]


def test_values_that_hold_a_comma(open_page: Opener) -> None:
    """Commas separate the values of `one of`, except in quotes."""
    page = open_page("#/search")
    script = """async (value) => {
        const { filterOf } = await import(new URL('ui/assets/filters.js', location.href).href);
        return filterOf([{ key: 'author', operator: 'in', value }], new Map()).value;
    }"""
    for text, values in [
        ("Smith, 5", ["Smith", 5]),
        ('"Smith, John", "Doe, Jane",Poe', ["Smith, John", "Doe, Jane", "Poe"]),
        ('5" pipe, say "hi', ['5" pipe', 'say "hi']),
    ]:
        assert page.evaluate(script, text) == values


def test_a_search_with_all_its_options(open_page: Opener) -> None:
    """Keys and values of filters are proposed; the address holds the search, also when it is loaded again."""
    page = open_page("#/search")
    page.get_by_label("Collection").select_option("shop")
    page.get_by_role("button", name="+ Filter").click()
    page.get_by_label("Filter: key").fill("year")
    page.locator("#metadata-keys option[value=lang]").wait_for(state="attached")
    page.get_by_label("Filter: value").focus()
    page.locator("datalist[id^=values] option[value='2026']").wait_for(state="attached")
    page.get_by_label("Filter: operator").select_option("gte")
    page.get_by_label("Filter: value").fill("2025")
    page.get_by_label("Mode").select_option("lexical")
    page.get_by_label("Hits").fill("5")
    page.get_by_label("One hit per document").check()
    search(page, "money parcels weekdays")
    assert sorted(titles(page)) == ["Refunds", "Shipping"]
    page.reload()
    page.locator(".hit").first.wait_for()
    assert sorted(titles(page)) == ["Refunds", "Shipping"]
    assert (page.get_by_label("Mode").input_value(), page.get_by_label("Hits").input_value()) == (
        "lexical",
        "5",
    )
    assert page.get_by_label("One hit per document").is_checked()
    page.get_by_label("Remove this filter").click()
    page.get_by_role("button", name="+ Filter").click()
    page.get_by_label("Filter: key").fill("lang")
    page.get_by_label("Filter: operator").select_option("missing")
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_text("Nothing was found.").wait_for()
    page.go_back()
    page.locator(".hit").first.wait_for()


def test_a_hit_shows_what_is_known_of_it(open_page: Opener) -> None:
    """Its words are marked where they stand, also behind characters of two UTF-16 units; the answer has its stages."""
    page = open_page("#/search?c=shop&q=money+back")
    hit = page.locator(".hit", has_text="Rückgabe")
    hit.wait_for()
    assert hit.locator("mark").all_inner_texts() == ["money", "back"]
    assert "de" in hit.locator(".chips").inner_text()
    assert hit.locator(".scores .meter").count() >= 2
    assert hit.locator(".tier").inner_text() == "new"
    assert "since the last rebuild" in str(hit.locator(".tier [title]").get_attribute("title"))
    long = page.locator(".hit", has_text="Shipping")
    assert long.get_by_role("button", name="Whole passage").get_attribute("aria-expanded") == "false"
    long.get_by_role("button", name="Whole passage").click()
    assert long.get_by_role("button", name="Whole passage").get_attribute("aria-expanded") == "true"
    aside = page.get_by_label("About this answer")
    assert "by meaning" in aside.locator(".waterfall").inner_text()
    assert "all-MiniLM-L6-v2" in aside.locator(".facts").inner_text()


def test_what_documents_hold_is_text(open_page: Opener) -> None:
    """Markup in a title, a text and metadata is shown as it was written."""
    page = open_page("#/search?c=shop&q=money")
    hit = page.locator(".hit", has_text="onerror")
    hit.wait_for()
    assert hit.locator("h2").inner_text() == HOSTILE
    assert HOSTILE in hit.locator(".chips").inner_text()
    assert page.locator("main img, main b >> text=bold").count() == 0


def test_why_not_that_document(open_page: Opener) -> None:
    """The reason is shown with a change that finds the document, which can be searched, and left again."""
    page = open_page("#/search?c=shop&q=money+back&k=1")
    page.get_by_label("Document id").fill("shipping")
    page.get_by_role("button", name="Explain").click()
    page.locator(".explanation h2").wait_for()
    assert "no hit" in page.locator(".explanation").inner_text()
    page.locator("summary", has_text="Evidence").click()
    page.get_by_role("button", name="Search so").first.click()
    page.get_by_text("Changed search:").wait_for()
    assert "Shipping" in titles(page)
    page.get_by_role("button", name="Back to the form's").click()
    page.get_by_text("Changed search:").wait_for(state="detached")
    page.get_by_label("Document id").fill("nothing")
    page.get_by_role("button", name="Explain").click()
    page.get_by_text("no_document").wait_for()
    page.get_by_role("button", name="Close the explanation").click()
    assert page.locator(".explanation").count() == 0


def test_a_refusal_is_shown(open_page: Opener) -> None:
    """In the words of the service."""
    page = open_page('#/search?c=shop&q=x&filters=[{"key":"yaer","operator":"eq","value":"1"}]')
    assert "yaer" in page.locator(".results .notice").inner_text()


# --- collections, jobs, evaluation ----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_life_of_a_collection(open_page: Opener, place: Place) -> None:
    """Created, named by an alias, rebuilt twice, rolled back, deleted; nothing happens without confirmation."""
    page = open_page("#/collections")
    page.get_by_text("New collection").click()
    form = page.locator("details form")
    form.get_by_label("Name").fill("books")
    form.get_by_label("Language").fill("en")
    form.get_by_label("Recent passages kept in the fast (hot) tier").fill("100")
    form.get_by_role("button", name="Create").click()
    card = page.locator("#collection-books")
    card.wait_for()
    place.http.write("books", {"id": "a", "text": "A book about the sea."})
    form.get_by_label("Name").fill("books")
    form.get_by_role("button", name="Create").click()
    page.locator("details .notice.bad").wait_for()
    for view in ("Evaluation", "Ingest"):
        card.get_by_role("link", name=view).click()
        page.get_by_role("heading", name=view).wait_for()
        assert page.locator("main select").first.input_value() == "books"
        page.go_back()
    card.get_by_label("New alias of books").fill("library")
    card.get_by_role("button", name="Add").click()
    card.get_by_role("button", name="Remove the alias library").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    card.get_by_role("button", name="Remove the alias library").wait_for(state="detached")
    card.get_by_role("button", name="Rebuild").click()
    page.keyboard.press("Escape")
    for generation in (1, 2):
        card.get_by_role("button", name="Rebuild").click()
        page.get_by_role("dialog").get_by_role("button", name="Rebuild").click()
        card.get_by_text(f"{generation} serves").wait_for()
    card.get_by_role("button", name="Roll back").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    card.get_by_text("1 serves").wait_for()
    page.get_by_role("link", name="Jobs").click()
    page.locator(".job", has_text="books").locator("summary").first.click()
    assert "succeeded" in page.locator(".job", has_text="books").first.inner_text()
    page.locator(".job").get_by_role("link", name="books").first.click()
    card.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_role("button", name="Delete").is_disabled()
    dialog.get_by_role("button", name="Cancel").click()
    card.get_by_role("button", name="Delete").click()
    dialog.get_by_label("Type books").fill("books")
    dialog.get_by_role("button", name="Delete").click()
    card.wait_for(state="detached")
    assert place.http.call("GET", "/v1/collections/books").status == 404


def test_the_last_evaluation(open_page: Opener, place: Place) -> None:
    """Before there is one, how to get it; then its plots, and what is below its floor; of a later version, its JSON."""
    name = place.http.new_collection()
    page = open_page("#/evaluation?c=shop")
    page.get_by_text("nearline evaluate -c shop --publish").wait_for()
    page.get_by_label("Collection").select_option(name)
    page.get_by_text(f"nearline evaluate -c {name} --publish").wait_for()
    place.http.ok("PUT", f"/v1/collections/{name}/evaluation", {"report": REPORT})
    page.reload()
    page.get_by_text("recall@10 cold is 0.9000, below 0.95").wait_for()
    assert page.locator(".plot h2").all_inner_texts() == ["Recall", "Ranking", "Relevance", "Latency"]
    assert page.locator(".chart .below circle").count() == 1
    assert page.locator(".chart .floor").count() == 2
    place.http.ok("PUT", f"/v1/collections/{name}/evaluation", {"report": {"version": 9}})
    page.reload()
    page.get_by_text("This report has version 9").wait_for()


# --- ingest ---------------------------------------------------------------------------------------------------

FILES = {
    "guide.md": b"# The guide\n\nHow to moor a boat.",
    "page.html": b"<title>Harbor</title><nav>menu</nav><main><h2>Fees</h2><p>A berth costs 20 euros."
    b"<img src=http://example.com/x.png><script>document.title='ran'</script></main>",
    "rows.csv": b'id,text,price,paid\n1,"a rope, long",2.5,true\n2,,3,false\n',
    "lines.jsonl": b'{"id": "x", "text": "an anchor", "kind": "iron"}\n{"broken\n{"id": "z"}\n',
    "again.csv": b"id,text\n1,another rope\n",
    "staff.md": b"---\nacl: [staff]\n---\nFor the staff.",
    "latin.html": "<meta charset='iso-8859-1'><p>Größe</p>".encode("latin-1"),
    "book.pdf": b"%PDF-1.7\x00\xff",
    "letter.docx": docx("To the harbor", "The berth by the lighthouse is mine."),
    "prices.xlsx": xlsx(Berths=[["berth", "euros"], ["north", 20]]),
    "image.png": b"\x89PNG\xff\x00",
    "notes.unknown": b"a chart of the sea",
    "tide.txt": "\ufeffHigh tide at nöon.".encode("utf-16-le"),
    "ebb.md": "\ufeff# Ebb\n\nLow tide.".encode("utf-16-be"),
    "cut.txt": "\ufeffHigh tide".encode("utf-16-le")[:-1],
}


@pytest.mark.slow
def test_files_become_documents(open_page: Opener, place: Place) -> None:
    """Of a new collection; each that fails is named with its reason, and the others are there."""
    page = open_page("#/ingest")
    page.get_by_label("Into").select_option("New collection…")
    page.get_by_label("Its name").fill("harbor")
    page.get_by_label("Column of the text").fill("text")
    payload = [{"name": name, "mimeType": "", "buffer": content} for name, content in FILES.items()]
    page.locator("#files").set_input_files(payload)
    page.get_by_role("heading", name="Failed").wait_for()
    page.locator(".taken tbody tr", has_text="notes.unknown").wait_for()
    failed = page.get_by_label("What failed").inner_text()
    for words in (
        "2",
        "lines.jsonl#2",
        "cut.txt",
        "not text in UTF-8, nor in UTF-16",
        "not JSON",
        "no text in the field text",
        "book.pdf",
        "image.png",
        "neither text in UTF-8",
    ):
        assert words in failed
    found = place.http.ok("POST", "/v1/collections/harbor/documents/scroll", {})["documents"]
    documents = {one["id"]: one for one in found if not one["id"].startswith("file-")}
    uploaded = {one["text"] for one in found if one["id"].startswith("file-")}
    assert sorted(documents) == ["1", "ebb.md", "guide.md", "latin.html", "page.html", "tide.txt", "x"]
    assert documents["latin.html"]["text"] == "Größe"
    for words in ("a document of rows.csv has its id", "names an acl"):
        assert words in failed
    assert len(uploaded) == len(place.http.ok("GET", "/v1/files")["data"]) == 3
    for words in ("chart of the sea", "berth by the lighthouse", "north"):
        assert any(words in text for text in uploaded)
    assert documents["1"]["metadata"] == {"price": 2.5, "paid": True}
    assert (documents["page.html"]["title"], documents["page.html"]["text"]) == (
        "Harbor",
        "## Fees\n\nA berth costs 20 euros.",
    )
    assert documents["guide.md"]["title"] == "The guide"
    assert documents["tide.txt"]["text"] == "High tide at nöon."
    assert documents["ebb.md"]["title"] == "Ebb"
    page.get_by_role("link", name="Search harbor").click()
    search(page, "what a berth costs: the fees")
    assert titles(page)[0] == "Harbor"


def test_a_filter_needs_a_key_and_a_value(open_page: Opener) -> None:
    """A row that is half filled in is not left out in silence."""
    page = open_page("#/search")
    page.get_by_label("Collection").select_option("shop")
    for label, words in (("key", "needs a value"), ("value", "needs a key")):
        page.get_by_role("button", name="+ Filter").click()
        page.get_by_label(f"Filter: {label}").fill("year")
        page.locator("#query").fill("money")
        page.get_by_role("button", name="Search", exact=True).click()
        page.get_by_text(words).wait_for()
        page.get_by_label("Remove this filter").click()


def test_files_are_dropped(open_page: Opener, place: Place) -> None:
    """Into the collection that is chosen; sent again they are unchanged."""
    name = place.http.new_collection()
    page = open_page(f"#/ingest?c={name}")
    page.locator(".drop").wait_for()
    for outcome in ("1\t1\t0", "1\t0\t1"):
        page.evaluate(
            """() => { const data = new DataTransfer(); data.items.add(new File(["Dropped words."], "d.txt"));
            const drop = document.querySelector(".drop");
            for (const kind of ["dragover", "dragleave", "drop"])
              drop.dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true })); }"""
        )
        until(page, partial(taken, page, outcome))


def test_a_busy_service_is_waited_for(open_page: Opener, place: Place) -> None:
    """What is refused with a time to come back is sent again then."""
    name = place.http.new_collection()
    page = open_page(f"#/ingest?c={name}")
    busy = {
        "status": 429,
        "headers": {"Retry-After-Ms": "20"},
        "body": '{"error": {"message": "a queue is full"}}',
    }
    page.route("**/documents", lambda route: route.fulfill(**busy), times=2)
    page.locator("#files").set_input_files({"name": "a.txt", "mimeType": "", "buffer": b"a text"})
    until(page, partial(taken, page, "a.txt\t1\t1\t0"))
    assert place.http.ok("POST", f"/v1/collections/{name}/documents/count", {})["documents"] == 1


def test_long_numbers_of_a_table_stay_what_they_are(open_page: Opener, place: Place) -> None:
    """JavaScript would round them: they are text, as `nearline ingest` has it."""
    name = place.http.new_collection()
    page = open_page(f"#/ingest?c={name}")
    rows = b"id,text,number\na,a text,9007199254740993\n"
    page.locator("#files").set_input_files({"name": "a.csv", "mimeType": "", "buffer": rows})
    until(page, partial(taken, page, "a.csv\t1\t1\t0"))
    found = place.http.ok("GET", f"/v1/collections/{name}/documents/a")
    assert found["metadata"]["number"] == "9007199254740993"


@pytest.mark.slow
def test_long_numbers_of_json_stay_what_they_are(open_page: Opener, place: Place) -> None:
    """In ids and in metadata, as they are sent, shown and filtered by: two that JavaScript rounds to one are two."""
    name = place.http.new_collection()
    page = open_page(f"#/ingest?c={name}")
    lines = b"".join(
        b'{"id": 900719925474099%d, "text": "a text", "n": %d}\n' % (at, 2**62 + at) for at in (2, 3)
    )
    page.locator("#files").set_input_files({"name": "a.jsonl", "mimeType": "", "buffer": lines})
    until(page, partial(taken, page, "a.jsonl\t2\t2\t0"))
    found = place.http.ok("POST", f"/v1/collections/{name}/documents/scroll", {})["documents"]
    assert {one["id"]: one["metadata"]["n"] for one in found} == {
        f"900719925474099{at}": 2**62 + at for at in (2, 3)
    }
    filters = json.dumps([{"key": "n", "operator": "eq", "value": str(2**62 + 3)}])
    page = open_page(f"#/search?{urlencode({'c': name, 'q': 'text', 'filters': filters})}")
    page.get_by_text("9007199254740993").first.wait_for()
    assert page.locator(".hit").count() == 1
    assert str(2**62 + 3) in page.locator(".hit").inner_text()


@pytest.mark.skipif(NODE is None, reason="no Node.js is installed")
def test_json_in_the_browser_keeps_integers() -> None:
    """What is read is what is written, whatever stands in strings; what is no JSON is refused."""
    given = [
        '{"a":[9007199254740993,-9223372036854775808,1,2.5,0.12345678901234568]}',
        json.dumps(["9007199254740993 1e999", '"1234567890123456789"', "\\"], separators=(",", ":")),
        '{"1234567890123456789":12345678901234567890}',
    ]
    refused = ["[1e999]", "[01234567890123456789]", "[1234567890123456789x]"]
    script = f"""import {{ decoded, encoded }} from {json.dumps(str(FOLDER / "numbers.js"))};
    const tried = (text) => {{ try {{ return encoded(decoded(text)); }} catch (error) {{ return error.name; }} }};
    console.log(JSON.stringify({json.dumps(given + refused)}.map(tried)));"""
    assert printed_by_node(script) == [*given, *["SyntaxError"] * len(refused)]


@pytest.mark.skipif(NODE is None, reason="no Node.js is installed")
def test_no_row_is_lost_in_the_browser() -> None:
    """What `nearline ingest` would not take is named: ids that are equal as text, cells without a column, two columns
    of one name. Otherwise a document would replace another, or lack what the file has."""
    lines = [None, None, True, 1.5, [1], "", 7, "7", 2**60]
    files = {
        "ids.jsonl": "\n".join(json.dumps({"id": one, "text": "a text"}) for one in lines),
        "cells.csv": "id,text,k\n1,a text\n2,a text,k,more\n3,a text,k\n",
        "twice.csv": "id,text,k,k\n1,a text,a,b\n",
    }
    script = f"""import {{ read }} from {json.dumps(str(FOLDER / "reading.js"))};
    const found = {{}};
    for (const [name, text] of Object.entries({json.dumps(files)})) {{
      const file = {{ name, arrayBuffer: async () => new TextEncoder().encode(text).buffer }};
      const shown = (one) => one.document?.id ?? one.error;
      found[name] = await read(file).then((rows) => rows.map(shown), (error) => error.message);
    }}
    console.log(JSON.stringify(found));"""
    found = printed_by_node(script)
    assert found["ids.jsonl"] == [*["id is neither a text nor an integer"] * 6, "7", "7", str(2**60)]
    assert found["cells.csv"] == [*(f"expected 3 cells as in the header, found {at}" for at in (2, 4)), "3"]
    assert found["twice.csv"] == "the header names a column twice: k"


READ_ALIKE = {
    "mod.py": "# install it\ndef one(a):\n    return a\n",
    "App.kt": 'fun main() { println("words") }\n',
    "run.sh": "echo # no heading\r\nmake\r\n",
    "fenced.md": "```sh\n# install it\nmake\n```\n\n# Real title\n\ntext\n",
    "underlined.md": "Title below\n===========\n\ntext\n",
    "closed.md": "Text before.\n\n# Closed ##\n\ntext\n",
    "sharp.md": "# Learning C#\n",
    "second.md": "## Second level\n\n# First level\n",
    "none.md": "#hashtag\n\n- a list\n---\n",
    "notes.txt": "# no title here\r\nbut text\r\n",
    "header.csv": " id , text , n , k \nr1,spaced, 7 , x \nr2,more,8, \n",
    "acl.csv": 'id,text,acl\na1,one,board\na2,two,\na3,three," "\n',
    "late.csv": "id,text,n,ok\n"
    + "".join(f"l{one},text {one},{one},true\n" for one in range(1000))
    + f"m1,late,x,no\nm2,late,{10**16},false\nm3,late,7,\n",
    "rows.tsv": "id\ttext\tok\n1\tone\ttrue\n2\ttwo\tFALSE\n",
    "lines.jsonl": '{"id": 7, "text": "one", "n": {"a": [1, 2]}}\n{"id": "x", "text": "two", "title": "T"}\n',
}


@pytest.mark.skipif(NODE is None, reason="no Node.js is installed")
def test_files_are_read_in_the_browser_as_by_the_command(tmp_path: Path) -> None:
    """Ids, titles, texts and metadata are the same."""
    paths = [tmp_path / name for name in READ_ALIKE]
    for path in paths:
        path.write_bytes(READ_ALIKE[path.name].encode())
    wanted = {one.id: [one.title, one.text, dict(one.metadata)] for one in read_documents(paths)}
    script = f"""import {{ read }} from {json.dumps(str(FOLDER / "reading.js"))};
    const found = {{}};
    for (const [name, text] of Object.entries({json.dumps(READ_ALIKE)})) {{
      const file = {{ name, arrayBuffer: async () => new TextEncoder().encode(text).buffer }};
      for (const {{ document: one }} of await read(file))
        found[one.id] = [one.title ?? null, one.text, one.metadata ?? {{}}];
    }}
    console.log(JSON.stringify(found));"""
    assert printed_by_node(script) == wanted


def printed_by_node(script: str) -> Any:
    assert NODE is not None
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", script], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_jobs_are_followed_through_a_restart(open_page: Opener, place: Place) -> None:
    """A 503 in between is said, and passes."""
    page = open_page("#/search")
    page.locator("#query").wait_for()
    away = {"status": 503, "body": '{"error": {"message": "the service is starting"}}'}
    page.route("**/v1/jobs", lambda route: route.fulfill(**away), times=1)
    page.get_by_role("link", name="Jobs").click()
    page.get_by_text("the service is starting").wait_for()
    page.get_by_text("the service is starting").wait_for(state="detached", timeout=15_000)


@pytest.mark.slow
def test_a_node_is_emptied(place: Place, tmp_path: Path, model_folder: Path, open_page: Opener) -> None:
    """Its shards move to the other node, and the page shows that. A service in no cluster says so."""
    page = open_page("#/cluster")
    page.get_by_text("This service is in no cluster").wait_for()
    ports = {name: free_port() for name in "ab"}
    named = {name: [f"http://127.0.0.1:{port}"] for name, port in ports.items()}
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_CLUSTER_NODES": json.dumps(named),
        "NEARLINE_SERVER_SEARCH_PROCESSES": "0",
    }
    with contextlib.ExitStack() as stack:
        for name, port in ports.items():
            server = stack.enter_context(serving(tmp_path / name, environ, port=port))
        Http(server.url).ok("POST", "/v1/collections", {"name": "docs", "shards": 4, "dimensions": 3})
        page = place.browser.new_context().new_page()
        page.set_default_timeout(WAIT_MS)
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{server.url}/ui#/cluster")
        page.locator("[data-moves=b]").click()
        page.get_by_role("button", name="Move", exact=True).click()
        page.locator(".job", has_text="balance").get_by_text("succeeded").wait_for(timeout=60_000)
        rows = page.locator("[aria-label='Services of the cluster'] tbody tr")
        until(page, lambda: rows.locator("td:nth-child(4)").all_inner_texts() == ["4", "0"])
        assert rows.locator("td:nth-child(3)").all_inner_texts() == ["writes", "writes"]
        page.get_by_text("4 shards on 2 nodes").wait_for()
        page.context.close()
    assert not faults


# --- keys, schemes, sizes -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_a_key_lacks_is_said(open_page: Opener, place: Place) -> None:
    """Without a key; with one that may only search; with one that sees some documents only; and the key can be
    forgotten."""
    page = open_page("#/search?c=shop", key=None)
    page.get_by_text("This service needs an access key").wait_for()
    page.get_by_role("button", name="Key").click()
    page.get_by_label("Key", exact=True).fill("nl_ü")
    page.get_by_role("button", name="Use").click()
    page.get_by_text("characters that no key has").wait_for()
    page.get_by_role("button", name="Key").click()
    page.get_by_label("Key", exact=True).fill(place.keys["search"])
    page.get_by_role("button", name="Use").click()
    page.locator("#query").wait_for()
    search(page, "money")
    page.get_by_text("figures need a key with the scope metrics").wait_for()
    page.get_by_role("link", name="Jobs").click()
    page.get_by_text("This key may not do that").wait_for()
    page.get_by_role("link", name="Nearline").click()
    page.locator("#query").wait_for()
    page.get_by_role("link", name="Collections").click()
    page.locator("#collection-shop").get_by_role("button", name="Rebuild").click()
    page.get_by_role("dialog").get_by_role("button", name="Rebuild").click()
    page.locator("#collection-shop .notice.bad").wait_for()
    assert "scope admin" in page.locator("#collection-shop .notice.bad").inner_text()
    page.get_by_role("button", name="Key").click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Key").click()
    page.get_by_role("button", name="Forget").click()
    page.get_by_text("This service needs an access key").wait_for()
    assert page.evaluate("sessionStorage.length + localStorage.length") == 0
    page = open_page("#/search", key="groups")
    page.get_by_text("Type the name").wait_for()
    page.get_by_label("Collection").fill("shop")
    search(page, "money")


def test_the_health_of_the_service(open_page: Opener) -> None:
    """Ready, memory against its ceiling, searches a second and their p99."""
    page = open_page("#/jobs")
    strip = page.locator("#health")
    strip.get_by_text("p99").wait_for()
    figures = r"ready\s+memory\s+\S+ MiB of \S+ .iB\s+searches/s\s+\S+\s+p99\s+[\d.]+ ms\s+cache hits\s+\d+ %"
    assert re.fullmatch(figures, strip.inner_text().strip())


@pytest.mark.slow
def test_the_caches_of_the_service(open_page: Opener) -> None:
    """What /metrics says of each, opened with the keyboard; it stays open while the figures change."""
    page = open_page("#/jobs")
    strip = page.locator("#health")
    strip.get_by_text("cache hits").wait_for()
    strip.locator("summary").focus()
    page.keyboard.press("Enter")
    strip.get_by_role("rowheader", name="query vectors").or_(
        strip.get_by_text("query vectors")
    ).first.wait_for()
    assert re.search(r"answers\s+\d+\s+\d+\s+\d+ %\s+.*s saved", strip.inner_text())
    page.wait_for_timeout(5500)
    assert strip.get_by_text("query vectors").is_visible()
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_light_and_dark(open_page: Opener) -> None:
    """As the system has it, or as chosen, which lasts."""
    page = open_page("#/jobs")
    button = page.locator("#theme-button")
    colors = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colors.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colors[0] != colors[1]
    button.click()
    button.click()
    page.emulate_media(color_scheme="light")
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colors[1]
    assert button.inner_text() == "Dark"
    button.click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colors[0]


def test_it_fits_a_phone(open_page: Opener) -> None:
    """No view is wider than 390 pixels."""
    page = open_page("#/search?c=shop&q=money", width=390)
    for view in ("Search", "Collections", "Jobs", "Evaluation", "Ingest"):
        page.get_by_role("link", name=view, exact=True).click()
        until(page, partial(titled, page, view))
        page.locator(".view > *").nth(1).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
    assert page.get_by_role("link", name="API").get_attribute("href") == "docs"


def test_the_content_can_be_reached_at_once(open_page: Opener) -> None:
    """The first Tab is a link past the bar."""
    page = open_page("#/jobs")
    page.locator(".view h1").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "view"
