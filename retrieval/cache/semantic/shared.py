"""The questions of all services that share a Redis: a vector set for each scope.

Vector sets are part of Redis 8 and need no module. They store a byte per dimension and find neighbors approximately,
which is enough: a member carries its text and vector sealed, and the similarity is recomputed from these. A member that
was planted or damaged is removed. A set of another type or dimension is started over, and one that Redis lost is
refilled from the questions of this process. An older Redis has no vector sets: then each process has only its own
questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, Final

import numpy as np

from indexes.base.model import Floats
from retrieval.cache import SharedStore
from retrieval.cache.semantic.questions import Question, Scope

HALF: Final = np.dtype("<f2")
MEMBERS_MAX: Final = 4096  # per scope; beyond, a random one is evicted
UNDER_WAY_MAX: Final = 64  # more are dropped
PUT_BACK_FROM: Final = 8  # questions known here; with fewer, a set of one in Redis is normal

FIND: Final = "return redis.call('VSIM', KEYS[1], 'FP32', ARGV[1], 'COUNT', ARGV[2])"
KEEP: Final = """
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and (kind ~= 'vectorset' or redis.call('VDIM', KEYS[1]) * 4 ~= #ARGV[1]) then
  redis.call('EXPIRE', KEYS[1], -1)
end
redis.call('VADD', KEYS[1], 'FP32', ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
while redis.call('VCARD', KEYS[1]) > tonumber(ARGV[4]) do
  redis.call('VREM', KEYS[1], redis.call('VRANDMEMBER', KEYS[1]))
end
return {redis.call('VCARD', KEYS[1])}
"""
REMOVE: Final = "for at = 1, #ARGV do redis.call('VREM', KEYS[1], ARGV[at]) end return {}"


class SharedQuestions:
    """Never raises and never delays a put's caller. What Redis does not answer in time counts as unknown."""

    def __init__(self, store: SharedStore, *, ttl_s: int) -> None:
        self.ttl_s = ttl_s
        self.rejected = 0  # members that were not put there by a holder of the secret
        self.put_back = 0  # sets that Redis had lost
        self._store = store
        self._tasks: set[asyncio.Task[object]] = set()

    async def near(self, scope: bytes, vector: Floats, most: int) -> list[Question]:
        """Return the `most` nearest questions, nearest first."""
        members = await self._store.run_script(FIND, scope, vector.tobytes(), most) or []
        found: list[Question] = []
        planted: list[bytes] = []
        for member in members:
            if not isinstance(member, bytes):
                continue
            question = self._open_member(scope, member, vector)
            if question is None:
                planted.append(member)
            else:
                found.append(question)
        if planted:
            self.rejected += len(planted)
            self._begin(self._store.run_script(REMOVE, scope, *planted))
        return sorted(found, key=lambda one: -one.similarity)

    def put(self, scope: bytes, text: str, vector: Floats, known: Scope) -> None:
        """Add a question in the background. `known` are the questions of this process, for a set that was lost."""
        self._begin(self._put(scope, text, vector, known))

    def forget(self, scope: bytes, member: bytes) -> None:
        self._begin(self._store.run_script(REMOVE, scope, member))

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.drain()

    async def _put(self, scope: bytes, text: str, vector: Floats, known: Scope) -> None:
        if await self._add(scope, text, vector) == 1 and len(known) >= PUT_BACK_FROM:
            self.put_back += 1
            for other, its_vector in known.everything():
                if await self._add(scope, other, its_vector) is None:
                    return

    async def _add(self, scope: bytes, text: str, vector: Floats) -> int | None:
        """Add a question and return how many members the set then has; None if Redis does not answer."""
        vector = vector.astype(np.float32)
        member = self._store.seal(scope, vector.astype(HALF).tobytes() + text.encode())
        reply = await self._store.run_script(KEEP, scope, vector.tobytes(), member, self.ttl_s, MEMBERS_MAX)
        return reply[0] if reply and isinstance(reply[0], int) else None

    def _open_member(self, scope: bytes, member: bytes, vector: Floats) -> Question | None:
        """Return the question of a member; None for one that is not ours."""
        value = self._store.unseal(scope, member)
        size = HALF.itemsize * len(vector)
        if value is None or len(value) <= size:
            return None
        its_vector = np.frombuffer(value[:size], HALF).astype(np.float32)
        return Question(value[size:].decode(), float(its_vector @ vector), member)

    def _begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Start work in a context of its own: no request waits for it."""
        if len(self._tasks) >= UNDER_WAY_MAX:
            work.close()
            return
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._tasks.discard)
