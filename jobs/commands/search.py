"""nearline search"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click
import msgspec
from rich.markup import escape
from rich.text import Text

from jobs.commands.connection import ask
from jobs.commands.labels import SCORES, STAGES, TIERS, list_tiers
from jobs.commands.options import JSON, URL
from jobs.commands.output import console, print_json
from retrieval.search.relevance import READ_MIN

HIGHLIGHT = {"snippet_chars": 240}
SPACE = re.compile(r"\s")  # replaced one for one, so that offsets stay valid


@click.command(epilog="Example: nearline search -c docs 'how do refunds work' -k 5")
@click.argument("query")
@URL
@click.option(
    "--collection",
    "-c",
    "collections",
    required=True,
    multiple=True,
    help="Name or alias of the collection; several, each with its own -c, are searched as one.",
)
@click.option("-k", type=int, default=10, show_default=True, help="Hits wanted.")
@click.option("--offset", type=int, default=0, help="Hits to pass over: those of the pages before.")
@click.option("--mode", type=click.Choice(["hybrid", "dense", "lexical"]), help="[default: the service's]")
@click.option(
    "--filter", "condition", help='A filter in JSON, such as \'{"type":"eq","key":"lang","value":"en"}\'.'
)
@click.option(
    "--operators",
    is_flag=True,
    help='"Words in quotes" must follow each other so; inst* is any word that begins so.',
)
@click.option("--partial", is_flag=True, help="Leave out shards that do not answer.")
@click.option("--rerank", is_flag=True, help="Let the service's reranker read the first candidates.")
@JSON
def command(
    query: str,
    url: str,
    collections: tuple[str, ...],
    k: int,
    offset: int,
    mode: str | None,
    condition: str | None,
    operators: bool,
    partial: bool,
    rerank: bool,
    as_json: bool,
) -> None:
    """Search a collection of a running service, or several with one ranking."""
    search: dict[str, Any] = {"query": query, "k": k}
    if offset:
        search["offset"] = offset
    if not as_json:
        search["highlight"] = HIGHLIGHT
    if mode:
        search["mode"] = mode
    if operators:
        search["operators"] = True
    if partial:
        search["partial"] = True
    if rerank:
        search["rerank"] = True
    if condition:
        try:
            search["filter"] = msgspec.json.decode(condition)
        except msgspec.DecodeError as error:
            raise click.BadParameter(f"not JSON: {error}", param_hint="--filter") from None
    if len(collections) == 1:
        answer: Mapping[str, Any] = ask(url, lambda client: client.search(collections[0], **search))
    else:
        answer = ask(url, lambda client: client.search_collections(collections=list(collections), **search))
    if as_json:
        print_json(answer)
    else:
        show(answer, offset)


def show(answer: Mapping[str, Any], offset: int = 0) -> None:
    """Print the hits of a search with `HIGHLIGHT`: with relevance and scores, then timings and what was searched."""
    for number, hit in enumerate(answer["hits"], offset + 1):
        scores = ", ".join(
            f"{SCORES.get(name, name)} {value:.3f}"
            for name, value in hit["scores"].items()
            if value is not None
        )
        relevance = f"relevance {hit['relevance']:.2f}, " if "relevance" in hit else ""
        of = f"{escape(hit['collection'])}: " if "collection" in hit else ""
        title = f" [bold]{escape(hit['title'])}[/]" if hit["title"] else ""
        console.print(
            f"[dim]{number:>2}[/]{title} {of}[cyan]{escape(hit['document_id'])}[/]#{hit['passage']}"
            f" [dim]{relevance}{TIERS.get(hit['tier'], hit['tier'])}, score {hit['score']:.4f} ({scores})[/]"
        )
        console.print("  ", snippet_of(hit))
        if collapsed := hit.get("collapsed"):
            console.print(f"   [dim]and {collapsed} more like it[/]")
    receipts, timings = answer.get("receipts") or [answer["receipt"]], answer["timings_ms"]
    receipt = receipts[0]
    if not answer["hits"]:
        console.print("nothing found")
    elif receipt["evidence"] == "none":
        console.print("nothing here seems to be about this: these hits are only the nearest")
    if receipt["share_read"] is not None and receipt["share_read"] < READ_MIN:
        console.print(f"{receipt['model']} reads little of this query: the words decide")
    if receipt.get("query_cut"):
        console.print(
            f"longer than {receipt['model']} reads: it read the questions, or the beginning and end"
        )
    for one in receipts:
        if missing := one.get("shards_missing"):
            shards = ", ".join(map(str, missing))
            console.print(
                f"left out, because they did not answer: shards {shards} of {escape(one['collection'])}"
            )
    for word, taken in receipt.get("corrected", {}).items():
        console.print(f"no document has {escape(repr(word))}: searched for {escape(repr(taken))}")
    stages = ", ".join(f"{STAGES[name]} {ms:.1f}" for name, ms in timings.items() if name != "total" and ms)
    searched = ""
    for one in receipts:
        of = f" of {escape(one['collection'])}" if len(receipts) > 1 else ""
        cold = f"; older not searched: {escape(one['cold_skipped'])}" if one["cold_skipped"] else ""
        searched += (
            f"; searched {list_tiers(one['tiers'])}{of}; build {one['generation']} of the indexes, with {one['seq']}"
            f" writes{cold}"
        )
    console.print(f"[dim]{timings['total']:.1f} ms ({stages}){searched}; cache {receipt['cache']}[/]")


def snippet_of(hit: Mapping[str, Any]) -> Text:
    """Return the part of a hit with the most words of the query, which are in bold."""
    text = Text(SPACE.sub(" ", hit["text"]))
    for start, end in hit["highlights"]:
        text.stylize("bold", start, end)
    start, end = hit["snippet"]
    shown = text[start:end]
    return Text.assemble("... " if start else "", shown, " ..." if end < len(text) else "")
