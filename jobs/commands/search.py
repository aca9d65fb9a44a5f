"""nearline search"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import msgspec
from rich.markup import escape

from jobs.commands.options import COLLECTION, JSON, URL, ask, console, print_json
from retrieval.relevance import READ_MIN

SHOWN_CHARS = 240


@click.command(epilog="Example: nearline search -c docs 'how do refunds work' -k 5")
@click.argument("query")
@URL
@COLLECTION
@click.option("-k", type=int, default=10, show_default=True, help="Hits wanted.")
@click.option("--mode", type=click.Choice(["hybrid", "dense", "lexical"]), help="[default: the service's]")
@click.option(
    "--filter", "condition", help='A filter in JSON, such as \'{"type":"eq","key":"lang","value":"en"}\'.'
)
@click.option("--rerank", is_flag=True, help="Let the service's reranker read the first candidates.")
@JSON
def command(
    query: str,
    url: str,
    collection: str,
    k: int,
    mode: str | None,
    condition: str | None,
    rerank: bool,
    as_json: bool,
) -> None:
    """Ask a running service."""
    search: dict[str, Any] = {"query": query, "k": k}
    if mode:
        search["mode"] = mode
    if rerank:
        search["rerank"] = True
    if condition:
        try:
            search["filter"] = msgspec.json.decode(condition)
        except msgspec.DecodeError as error:
            raise click.BadParameter(f"not JSON: {error}", param_hint="--filter") from None
    answer = ask(url, lambda client: client.search(collection, **search))
    if as_json:
        print_json(answer)
    else:
        show(answer)


def show(answer: Mapping[str, Any]) -> None:
    """Print the hits with relevance, scores and tiers, then timings and receipt."""
    for number, hit in enumerate(answer["hits"], 1):
        scores = ", ".join(
            f"{name} {value:.3f}" for name, value in hit["scores"].items() if value is not None
        )
        relevance = f"relevance {hit['relevance']:.2f}, " if "relevance" in hit else ""
        title = f" [bold]{escape(hit['title'])}[/]" if hit["title"] else ""
        console.print(
            f"[dim]{number:>2}[/]{title} [cyan]{escape(hit['document_id'])}[/]#{hit['passage']}"
            f" [dim]{relevance}{hit['tier']}, score {hit['score']:.4f} ({scores})[/]"
        )
        text = " ".join(hit["text"].split())
        cut = text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + " ..."
        console.print(f"   {escape(cut)}")
    receipt, timings = answer["receipt"], answer["timings_ms"]
    if not answer["hits"]:
        console.print("nothing found")
    elif receipt["supported"] is False:
        console.print(f"perhaps nothing relevant: no hit reaches {receipt['support_from']:.2f}")
    if receipt["share_read"] is not None and receipt["share_read"] < READ_MIN:
        console.print(f"{receipt['model']} reads little of this query: the words decide")
    tiers = "+".join(receipt["tiers"]) or "no passages"
    stages = ", ".join(f"{name} {ms:.1f}" for name, ms in timings.items() if name != "total" and ms)
    cold = f"; cold not searched: {receipt['cold_skipped']}" if receipt["cold_skipped"] else ""
    console.print(
        f"[dim]{timings['total']:.1f} ms ({stages}); {tiers}; generation {receipt['generation']},"
        f" seq {receipt['seq']}, cache {receipt['cache']}{cold}[/]"
    )
