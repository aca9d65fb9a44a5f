"""Moving shards: the jobs of the node that is asked, which has the new node of each shard take it."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from typing import Literal

from aiohttp import web

from indexes.base.errors import Conflict, InvalidInput, NearlineError, NotFound, Unavailable
from indexes.base.model import now_ms
from retrieval.access.auth import NODE, PRINCIPAL
from retrieval.cluster.link import RETRY_AFTER_S
from retrieval.cluster.names import ShardName
from retrieval.cluster.nodes import Node, Nodes
from retrieval.cluster.placing import balance as balance_shards
from retrieval.cluster.running import keep_running, remember
from retrieval.cluster.taking import TakeShard, TakeState
from retrieval.cluster.targets import nodes_of
from retrieval.handlers.wire import answer, body
from retrieval.search.travel import pack, unpack
from retrieval.wire.collections import BalanceShards, JobBody, JobProgress, JobStarted, MoveShard

logger = logging.getLogger(__name__)

ASK_S = 0.2  # between two looks at how far a move is
LEAVES_S = 60.0  # for the old node to delete what it has given
ANSWERS_S = 10.0  # for a node to say how far a move is
SILENT_S = 60.0  # without an answer of the new node, until a move is given up

MOVES = web.AppKey["dict[str, JobBody]"]("MOVES")  # by id, the newest last
Move = tuple[str, str]  # a shard, and the node that it shall be at


async def move(request: web.Request) -> web.Response:
    """Begin to move a shard to another node."""
    wanted, nodes, caller = await body(request, MoveShard), nodes_of(request), PRINCIPAL.get()
    caller.require_service()
    require_known(nodes, [wanted.to], "to")
    shard = caller.full(wanted.shard)
    require_shard(nodes, shard, wanted.shard)
    if wanted.to == nodes.writer_of(shard).name:
        raise Conflict(f"shard {wanted.shard} is at node {wanted.to} already", param="to")
    return begin(request, "move", [(shard, wanted.to)])


async def balance(request: web.Request) -> web.Response:
    """Begin to move shards until each node has as many as any other, without some nodes that shall have none."""
    wanted, nodes = await body(request, BalanceShards), nodes_of(request)
    PRINCIPAL.get().require_service()
    require_known(nodes, wanted.without, "without")
    await nodes.look()
    named = [one for one in nodes.settings.nodes if one not in wanted.without]
    if not named:
        raise InvalidInput("one node must be left", param="without")
    nodes.writers()  # raises if one is away
    if missing := nodes.missing():
        raise Conflict(f"no node has {', '.join(missing[:10])}: give what is lost back before shards move")
    held = {
        shard: nodes.writer_of(shard).name
        for collection in nodes.collections().values()
        for shard in map(collection.shard, sorted(collection.states))
    }
    return begin(request, "balance", balance_shards(held, named))


def require_shard(nodes: Nodes, shard: str, called: str) -> None:
    """Raise Unavailable if no node answers for a shard, and NotFound if there is none of this name."""
    named = ShardName.parse(shard)
    if named is not None and nodes.having(shard):
        return
    if named is not None and (away := nodes.away()):
        why = f"no node that answers has shard {called[:100]!r}; not answering: {', '.join(away)}"
        raise Unavailable(why, retry_after_s=RETRY_AFTER_S)
    raise NotFound(f"no node has a shard {called[:100]!r}", param="shard")


def require_known(nodes: Nodes, names: Sequence[str], param: str) -> None:
    for name in names:
        if name not in nodes.settings.nodes:
            known = ", ".join(sorted(nodes.settings.nodes))
            raise InvalidInput(f"no node {name[:100]!r}; the nodes are {known}", param=param)


def begin(request: web.Request, kind: Literal["move", "balance"], moves: Sequence[Move]) -> web.Response:
    """Start a job. Raises Conflict while another one of this service moves shards."""
    app, nodes = request.app, nodes_of(request)
    if busy := next((one for one in app[MOVES].values() if one.finished_ms is None), None):
        raise Conflict(f"a {busy.kind} of shards is under way: job {busy.id}", job=busy.id)
    job = JobBody(uuid.uuid4().hex, kind, "", "running", JobProgress("waiting", 0, len(moves)), now_ms())
    remember(app[MOVES], job.id, job)
    keep_running(app, run(nodes, job, moves))
    return answer(JobStarted(job.id), status=202, headers={"Location": f"/v1/jobs/{job.id}"})


async def run(nodes: Nodes, job: JobBody, moves: Sequence[Move]) -> None:
    PRINCIPAL.set(NODE)
    done: list[dict[str, str]] = []
    try:
        for shard, to in moves:
            await nodes.look()
            giver = nodes.writer_of(shard).name
            await move_shard(nodes, shard, to, job)
            done.append({"shard": shard, "from": giver, "to": to})
        job.status = "succeeded"
    except NearlineError as error:
        job.status, job.error = "failed", error.message
    except Exception as error:
        logger.exception("job %s failed", job.id)
        job.status, job.error = "failed", f"{type(error).__name__}: {error}"
    finally:
        job.result, job.finished_ms = {"moved": done}, now_ms()
        logger.info("%s of shards ended: %s, %d moved", job.kind, job.error or job.status, len(done))


async def move_shard(nodes: Nodes, shard: str, to: str, job: JobBody) -> None:
    """Have a node take a shard, and wait until the old one has none of it. Raises Unavailable if that fails."""
    giver, taker = nodes.writer_of(shard), nodes.writer_at(to)
    moved = job.progress.done
    state = await ask_taker(nodes, taker, "PUT", shard, pack(TakeShard(to)))
    answered = time.monotonic()
    while not state.ended:
        stage = f"{shard} to {to}: {state.stage}" + (f", {state.done:,}" if state.done else "")
        job.progress = JobProgress(stage, moved, job.progress.total)
        await asyncio.sleep(ASK_S)
        try:
            state = await ask_taker(nodes, taker, "GET", shard)
            answered = time.monotonic()
        except Unavailable:
            if time.monotonic() > answered + SILENT_S:
                raise
    if state.error:
        raise Unavailable(f"{shard} was not moved to {to}: {state.error}", retry_after_s=RETRY_AFTER_S)
    until = time.monotonic() + LEAVES_S
    while giver in nodes.having(shard) and time.monotonic() < until:
        await nodes.look_again()
        await asyncio.sleep(ASK_S)
    job.progress = JobProgress(shard, moved + 1, job.progress.total)


async def ask_taker(
    nodes: Nodes, taker: Node, method: str, shard: str, content: bytes | None = None
) -> TakeState:
    url = f"{taker.url}/v1/shards/{shard}"
    async with nodes.link.exchange(method, url, content=content, within_s=ANSWERS_S) as reply:
        found: TakeState = unpack(await reply.read(), TakeState)
        return found
