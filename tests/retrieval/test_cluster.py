"""The parts of a cluster without other machines: names, tokens, placement, and searches that wait between steps."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import force_setattr

from indexes.base.errors import (
    Conflict,
    InvalidInput,
    NearlineError,
    NotFound,
    NotReady,
    TooLarge,
    Unavailable,
    WritesHeld,
)
from indexes.base.model import Settings
from indexes.base.moving import Moving
from indexes.directory.marker import NAME
from indexes.filters.grammar import parse_filter
from indexes.parts.query import Query
from retrieval.base.settings import ClusterSection
from retrieval.cluster import asking, renaming
from retrieval.cluster.asking import AGREE_S, MOVING_S, patience_of, patience_of_search
from retrieval.cluster.calls import (
    ANSWERS,
    AnyCall,
    AwaitSeq,
    NodeShards,
    Replies,
    ShardState,
)
from retrieval.cluster.link import Link
from retrieval.cluster.names import ShardName, read_token, shard_of_document, token_of
from retrieval.cluster.nodes import Node, Nodes, Sharded
from retrieval.cluster.notes import HITS_KEPT
from retrieval.cluster.placing import balance, place
from retrieval.cluster.remote import RemoteShard
from retrieval.cluster.serving import require_newest
from retrieval.cluster.targets import NODES
from retrieval.cluster.watching import lost_since
from retrieval.search.calls import CallRefused, CallReply, SearchShard, ShardSearched, likely_hits
from retrieval.search.joint import raise_if_of_all
from retrieval.search.shard import Ask, Fetched, LocalShard, What
from retrieval.search.steps import Away, all_of, run_in_steps
from retrieval.search.stopwatch import Stopwatch
from retrieval.search.travel import pack, unpack
from tests.support.stub import Reply, Stub
from tests.support.vectors import World, fill, make_collection


@pytest.mark.parametrize("collection", ["docs", "a-b_c", "docs@acme"])
def test_a_shard_is_named_after_its_collection(collection: str) -> None:
    name = ShardName(collection, 2, 16)
    assert ShardName.parse(str(name)) == name
    assert NAME.fullmatch(str(name))
    for other in ("docs", "docs~16of16", "docs~1", "docs~1of2~1of2", "docs~of2"):
        assert ShardName.parse(other) is None


def test_documents_stay_where_they_are() -> None:
    """The shard of a document depends on its id alone, also in versions to come."""
    assert [shard_of_document(one, 7) for one in ("a", "b", "ä", "1", "doc-000001")] == [2, 5, 0, 2, 5]
    counts = Counter(shard_of_document(f"document {number}", 16) for number in range(16_000))
    assert len(counts) == 16
    assert max(counts.values()) < 1_150


@given(st.dictionaries(st.integers(0, 6), st.integers(0, 10**12), min_size=1))
def test_a_token_holds_one_operation_of_each_shard(seqs: dict[int, int]) -> None:
    assert read_token(token_of(seqs), 7) == seqs


@pytest.mark.parametrize("token", [4, "", "x", "7.1", "0.1-", "0.1.2", "1.-2", "0." + "9" * 30])
def test_other_tokens_are_refused(token: int | str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_token(token, 7)
    assert refused.value.param == "min_seq"


def nodes_of(*names: str) -> Nodes:
    nodes = Nodes(ClusterSection(nodes={name: [f"http://{name}"] for name in names}))
    for one in nodes.members:
        one.shards = NodeShards(shards={}, writes=True)
    return nodes


def test_shards_are_divided_evenly_and_stay() -> None:
    """Each node gets as many as any other, and of 96 shards a new node takes few from those that keep theirs."""
    before, after = place("docs", 96, ["a", "b", "c"]), place("docs", 96, ["a", "b", "c", "d"])
    assert {*Counter(before).values()} == {32}
    assert {*Counter(after).values()} == {24}
    moved = sum(old != new for old, new in zip(before, after, strict=True))
    assert moved <= 40  # 24 at least
    assert sorted(Counter(place("docs", 4, ["a", "b", "c"])).values()) == [1, 1, 2]


@given(
    st.dictionaries(
        st.builds(
            lambda name, number: str(ShardName(name, number, 12)), st.sampled_from("xyz"), st.integers(0, 11)
        ),
        st.sampled_from("abcd"),
    ),
    st.sets(st.sampled_from("abcdef"), min_size=1),
)
def test_moves_lead_to_balance(held: dict[str, str], nodes: set[str]) -> None:
    """No shard moves twice, none is left where none shall be, and then no more moves are needed. No fewer would do."""
    moves = balance(held, sorted(nodes))
    after = held | dict(moves)
    assert len({shard for shard, _ in moves}) == len(moves)
    assert balance(after, sorted(nodes)) == []
    for name in "xyz":
        own = {shard: node for shard, node in after.items() if shard.startswith(name)}
        counts = Counter(dict.fromkeys(nodes, 0) | Counter(own.values()))
        assert set(counts) == nodes
        assert max(counts.values()) - min(counts.values()) <= 1
        before = Counter(held[shard] for shard in own)
        most, few = divmod(len(own), len(nodes))[0] + 1, divmod(len(own), len(nodes))[1]
        stay = sorted((before[node] for node in nodes), reverse=True)
        kept = sum(min(count, most if at < few else most - 1) for at, count in enumerate(stay))
        assert sum(held[shard] != node for shard, node in own.items()) == len(own) - kept


def test_no_collection_without_all_nodes() -> None:
    nodes = nodes_of("a", "b")
    nodes.members[1].shards = None
    with pytest.raises(Unavailable, match="node b does not answer"):
        nodes.writers()


def test_nodes_are_named_again() -> None:
    """A reload keeps what is known of the nodes that stay."""
    nodes = nodes_of("a", "b")
    kept = nodes.members[0]
    force_setattr(nodes.settings, "nodes", {"a": ["http://a"], "c": ["http://c", "http://d/"]})
    nodes.reload()
    assert nodes.members[0] is kept
    assert [(one.name, one.url, one.writes) for one in nodes.members] == [
        ("a", "http://a", True),
        ("c", "http://c", False),
        ("c", "http://d", False),
    ]


def state_at(seq: int, moving: Moving | None = None) -> ShardState:
    return ShardState(
        seq=seq,
        documents=1,
        generation=0,
        settings=Settings(dimensions=8, fingerprint="f", model=""),
        spoken={},
        ranking=None,
        synonyms=None,
        moving=moving,
    )


def test_two_writers_of_one_shard_are_refused() -> None:
    nodes = nodes_of("a", "b")
    for one in nodes.members:
        one.shards = NodeShards(shards={"docs~0of2": state_at(1)}, writes=True)
    with pytest.raises(Conflict, match="http://a and http://b both write to shard docs~0of2"):
        nodes.writer_of("docs~0of2")


def test_shards_get_their_old_name_back_once_their_node_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that failed is taken back there, too, and again if that fails. Then nothing is looked for any more."""
    nodes = nodes_of("a", "b")
    a, b = nodes.members

    def have(node: Node, *shards: str) -> None:
        node.shards = NodeShards(shards={one: state_at(1) for one in shards}, writes=True)
        nodes._found = None

    have(a, "old~0of2")
    b.shards = None
    sharded, given = nodes.collections()["old"], list[tuple[str, str]]()

    async def give_name(_: Nodes, done: Sharded, name: str, numbers: set[int]) -> list[NearlineError]:
        given.append((done.name, name))
        if len(given) < 3:
            return [Unavailable("not yet")]
        have(b, *(str(ShardName(name, number, done.of)) for number in numbers))
        return []

    async def scenario() -> None:
        going_back = asyncio.create_task(renaming.go_back(nodes, sharded, "new"))
        await asyncio.sleep(0.05)
        assert not given
        have(b, "new~1of2")
        await asyncio.wait_for(going_back, 5)

    monkeypatch.setattr(renaming, "LOOK_S", 0.01)
    monkeypatch.setattr(renaming, "give_name", give_name)
    asyncio.run(scenario())
    assert given == [("new", "old")] * 3


def test_a_write_that_is_held_is_not_sent_again() -> None:
    """When the hold ends, the write may belong to another collection; one that a move refused is sent again."""
    nodes = nodes_of("a", "b")
    node = nodes.members[0]
    assert patience_of(nodes, "docs~0of2", node, WritesHeld("held"), 0.0) == 0.0
    assert patience_of(nodes, "docs~0of2", node, NotReady("moving"), 0.0) > 0.0


@pytest.mark.parametrize("moving", [Moving("copy", "a"), Moving("given", "b", 5), Moving("gone", "b", 5)])
def test_what_was_acknowledged_is_not_forgotten_while_a_shard_moves(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy is behind, and so is what was given away. Only the node that takes the writes may have lost some."""
    nodes, shard = nodes_of("a", "b"), "docs~0of2"
    nodes.acknowledge(shard, 9)
    held = {"http://a": state_at(5, moving), "http://b": state_at(9)}

    async def call(link: Link, url: str, calls: object, within_s: float) -> Replies:
        return Replies(state=NodeShards(shards={shard: held[url]}, writes=True))

    monkeypatch.setattr(Link, "call", call)
    asyncio.run(nodes.look())
    assert nodes.notes.acknowledged(shard) == 9
    assert nodes.writer_of(shard).name == "b"
    assert [one.name for one in nodes.having(shard)] == (["a", "b"] if moving.role == "given" else ["b"])
    held["http://b"] = state_at(7)  # restored from an earlier state
    asyncio.run(nodes.look())
    assert nodes.notes.acknowledged(shard) == 7


def test_an_incomplete_copy_answers_nothing() -> None:
    """A service that has last looked before a shard moved away from a node may ask there while it is moved back."""
    app = web.Application()
    app[NODES] = nodes_of("a", "b")
    with pytest.raises(NotReady, match="being copied from node b"):
        require_newest(app, Moving("copy", "b"))
    require_newest(app, None)


@pytest.mark.parametrize("is_away", [False, True])
def test_looks_at_two_nodes_may_be_of_different_times(is_away: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look saw a copy that was not taken yet, the other, later, that the shard was deleted where it was. Only if a
    node is away, nothing better can be expected."""
    nodes, shard, looks = nodes_of("a", "b"), "docs~0of2", itertools.count()
    copy, taken = state_at(9, Moving("copy", "a")), state_at(9)
    nodes.members[1].shards = NodeShards(shards={shard: copy}, writes=True)

    async def look_again(self: Nodes) -> None:
        b = NodeShards(shards={shard: copy if next(looks) < 2 else taken}, writes=True)
        nodes.members[1].shards = None if is_away else b
        nodes._found = None

    async def send(nodes: Nodes, node: Node, *asked: object) -> dict[str, Any]:
        return {"node": node.name}

    async def call(link: Link, url: str, calls: object, within_s: float) -> Replies:
        return Replies(calls=[CallReply(9, pack(None))])

    monkeypatch.setattr(Nodes, "look_again", look_again)
    monkeypatch.setattr(asking, "send", send)
    monkeypatch.setattr(Link, "call", call)
    if is_away:
        with pytest.raises(Unavailable, match="no node takes writes of shard"):
            asyncio.run(asking.change(nodes, shard, "POST", ""))
        assert next(looks) == 1
        return
    assert asyncio.run(asking.change(nodes, shard, "POST", "")) == {"node": "b"}
    looks = itertools.count()
    nodes.members[1].shards = NodeShards(shards={shard: copy}, writes=True)
    nodes._found = None
    assert asyncio.run(asking.ask(nodes, [Away(RemoteShard(shard), AwaitSeq())])) == [None]


def test_a_shard_that_was_deleted_since_the_last_look_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node a has given it to b and deleted it, and the looks of that moment saw it at a alone."""
    nodes, shard, looks = nodes_of("a", "b"), "docs~0of2", itertools.count()
    here, gone = (NodeShards(shards=one, writes=True) for one in ({shard: state_at(9)}, {}))
    nodes.members[0].shards = here

    async def look_again(self: Nodes) -> None:
        if next(looks) == 3:
            nodes.members[0].shards, nodes.members[1].shards, nodes._found = gone, here, None
            for one in nodes.members:
                one.looked_at = time.monotonic()

    async def send(nodes: Nodes, node: Node, *asked: object) -> dict[str, Any]:
        if node.name == "a":
            raise NotFound(f"no collection {shard!r}", param="collection")
        return {"node": node.name}

    monkeypatch.setattr(Nodes, "look_again", look_again)
    monkeypatch.setattr(asking, "send", send)
    assert asyncio.run(asking.change(nodes, shard, "POST", "")) == {"node": "b"}


def test_an_older_look_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends after one that began later."""
    nodes, shard = nodes_of("a"), "docs~0of2"
    answers = [(0.2, {shard: state_at(9)}), (0.0, {})]

    async def call(link: Link, url: str, calls: object, within_s: float) -> Replies:
        late_s, shards = answers.pop(0)
        await asyncio.sleep(late_s)
        return Replies(state=NodeShards(shards=shards, writes=True))

    async def look_twice() -> None:
        first = asyncio.ensure_future(nodes.look())
        await asyncio.sleep(0.05)
        await nodes.look()
        await first

    monkeypatch.setattr(Link, "call", call)
    asyncio.run(look_twice())
    assert nodes.collections() == {}


def test_a_shard_that_lost_what_a_stream_knows_is_noticed() -> None:
    """Only a look at its writer after the search counts: an earlier one may not have seen what the search saw."""
    nodes, shard = nodes_of("a", "b"), "docs~0of1"
    for one, state in zip(nodes.members, (state_at(7), state_at(5, Moving("given", "a", 5))), strict=True):
        one.shards, one.looked_at = NodeShards(shards={shard: state}, writes=True), 10.0
    sharded = nodes.collections()["docs"]
    assert lost_since(nodes, sharded, {0: 8}, asked_at=11.0) is None
    assert lost_since(nodes, sharded, {0: 7}, asked_at=9.0) is None
    assert lost_since(nodes, sharded, {0: 8}, asked_at=9.0) == shard


def test_a_shard_that_no_look_shows_is_looked_for_again() -> None:
    """A move can hide a shard from looks at two nodes for a moment, also from a search that its old node refused."""
    nodes, error = nodes_of("a", "b"), NotReady("shard docs~1of2 is not here")
    nodes.members[0].shards = NodeShards(shards={"docs~0of2": state_at(1)}, writes=True)
    assert (
        patience_of_search(nodes, "docs~1of2", error)
        == patience_of_search(nodes, "docs~1of2", None)
        == AGREE_S
    )
    assert patience_of_search(nodes, "docs~0of2", error) == MOVING_S
    assert patience_of_search(nodes, "gone~0of2", error) == 0.0
    nodes.members[1].shards = None
    nodes.reload()
    assert patience_of_search(nodes, "docs~1of2", error) == 0.0


# --- searches in steps ----------------------------------------------------------------------------------------


class Asked:
    """Answers calls by doubling them, in rounds; one of "bad" fails."""

    def __init__(self) -> None:
        self.rounds: list[list[Any]] = []

    async def ask(self, calls: Sequence[Away[Any]]) -> list[Any]:
        self.rounds.append([one.call for one in calls])
        return [Unavailable("bad") if one.call == "bad" else one.call * 2 for one in calls]


async def on_thread(step: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, step)


async def twice(first: Any) -> Any:
    return await Away(None, await Away(None, first))


def run(work: Callable[[], Any], asked: Asked) -> Any:
    return asyncio.run(run_in_steps(work, on_thread, asked.ask))


def test_calls_that_can_be_asked_together_are() -> None:
    """Two searches of two calls each take two rounds, beside one that waits for nothing."""

    async def nothing() -> int:
        return 7

    asked = Asked()
    assert run(lambda: all_of([twice(1), nothing(), twice(10)]), asked) == [4, 7, 40]
    assert asked.rounds == [[1, 10], [2, 20]]


def test_a_call_that_fails_raises_where_it_was_awaited() -> None:
    async def careful() -> Any:
        try:
            return await Away(None, "bad")
        except Unavailable:
            return await Away(None, "good")

    asked = Asked()
    assert run(lambda: all_of([careful(), twice(1)]), asked) == ["goodgood", 4]
    with pytest.raises(Unavailable):
        run(lambda: all_of([twice(1), twice("bad")]), Asked())


def test_a_search_whose_caller_has_left_ends() -> None:
    """What it has opened is closed."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await Away(None, 1)
        finally:
            ended.append("closed")

    async def never(calls: Sequence[Away[Any]]) -> Sequence[Any]:
        await asyncio.sleep(1000)
        return []

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run_in_steps(work, on_thread, never), 0.05)

    asyncio.run(leave())
    assert ended == ["closed"]


def test_hits_are_told_with_a_later_call() -> None:
    """Counting them makes no search wait; a node gets at most so many at once."""
    shard, asked = RemoteShard("docs~0of2"), Asked()
    assert run(lambda: shard.fetch([3, 4], What(hits=True)), asked) == Fetched()
    assert (asked.rounds, shard.returned) == ([], [3, 4])
    nodes = nodes_of("a")
    for _ in range(HITS_KEPT):
        nodes.notes.note_hits(shard.name, shard.returned)
    assert len(nodes.notes.hits[shard.name]) == HITS_KEPT


# --- what travels ---------------------------------------------------------------------------------------------


def test_every_call_has_an_answer_that_can_travel(tmp_path: Path) -> None:
    assert set(ANSWERS) == set(AnyCall.__args__)
    collection = make_collection(tmp_path / "c")
    fill(collection, World(), range(30))
    condition = parse_filter({"type": "eq", "key": "even", "value": True}, conditions_max=1)
    query = Query(10, 20, "river", World().queries(1)[0], condition=condition)
    call = unpack(pack(SearchShard(Ask(query))), AnyCall)
    shard = LocalShard(collection, collection.snapshot, Stopwatch())
    found = asyncio.run(shard.search(call.ask))
    first = likely_hits(found.candidates, 3)
    again = unpack(pack(ShardSearched(found, collection.passages(first))), ANSWERS[SearchShard])
    assert again.searched.candidates.ids.tolist() == found.candidates.ids.tolist()
    assert 3 <= len(first) <= 6
    assert {one.id for one in again.passages.values()} == {*first}
    assert again.searched.passages == 30
    collection.close()


@pytest.mark.parametrize(
    "error", [NotFound("gone", param="x"), TooLarge("much"), Unavailable("away", retry_after_s=7)]
)
def test_an_error_comes_back_as_it_was(error: Any) -> None:
    back = CallRefused.of(error).error
    assert (type(back), back.message, back.param) == (type(error), error.message, error.param)
    assert getattr(back, "retry_after_s", None) == getattr(error, "retry_after_s", None)


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("content", [b"<html>", b'{"error": "\xff"}', b'{"error":' * 100_000])
def test_an_answer_that_cannot_be_read_is_none(content: bytes, status: int) -> None:
    """Whatever else is at the address of a node, the node counts as away."""

    async def exchange(url: str) -> None:
        link = Link("")
        try:
            async with link.exchange("GET", url) as reply:
                msgspec.json.decode(await reply.read())
        finally:
            await link.close()

    with Stub(Reply(content, status)) as stub, pytest.raises(Unavailable):
        asyncio.run(exchange(stub.url))


def test_what_only_some_shards_refuse_is_allowed() -> None:
    """One knows the first key of a filter, the other one the second."""
    unknown = partial(InvalidInput, "no document has the metadata key 'a'")
    raise_if_of_all([unknown(param="filter.filters[0]"), unknown(param="filter.filters[1]")])
    telling = InvalidInput("'a' holds strings", param="filter.value")
    with pytest.raises(InvalidInput, match="holds strings"):
        raise_if_of_all([unknown(param="filter"), telling])
