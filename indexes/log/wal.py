"""Detects acknowledged commits lost in a write-ahead log: SQLite silently stops at the first broken frame.

    header    32 bytes: magic, version, page size, checkpoints, two salts, checksum of these
    frame     24 bytes: page number, database size (0 except in the last frame of a commit), the salts, checksum;
              then the page

All are big-endian 4-byte numbers, see https://sqlite.org/fileformat2.html#walformat. A frame's checksum chains from
the previous frame's, over its first 8 bytes and its page. Frames with other salts are left from before a reset.

A broken frame alone proves nothing: a power loss may leave any part of the last commit, in any order, and that commit
was never acknowledged. But a commit is synced before the next frame is written. So a frame that chains from a valid
commit frame proves that this commit was on disk; if it comes after a broken frame, acknowledged data has been damaged.
Damage to the last commit alone is indistinguishable from a power loss.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from indexes.base.durable import disk_errors
from indexes.base.errors import Damaged

MAGIC = 0x377F0682  # plus one if checksums are over big-endian words
HEADER, FRAME_HEADER = struct.Struct(">8I"), 24
FRAMES_AT_ONCE = 256
PAGE_SIZES = [1 << power for power in range(9, 17)]

Words = NDArray[np.uint64]


def require_whole_wal(path: Path) -> None:
    """Raise Damaged if the WAL of the log at `path` holds acknowledged commits that SQLite would silently drop.

    Call before SQLite opens the log. A suspected loss is read twice, in case a live writer changed the WAL midway.
    """
    lost = lost_commits(path)
    if lost and (lost := min(lost, lost_commits(path))):
        raise Damaged(
            f"{path.parent.name}/{path.name}-wal is damaged: at least {lost} acknowledged commits in it cannot be read"
        )


def lost_commits(path: Path) -> int:
    """Number of commits after the first broken frame that were provably synced."""
    with disk_errors(path), contextlib.suppress(FileNotFoundError):
        with wal_of(path).open("rb") as wal, path.open("rb") as log:
            return behind_the_break(wal, log)
    return 0


def wal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def behind_the_break(wal: BinaryIO, log: BinaryIO) -> int:
    header = wal.read(HEADER.size)
    if len(header) < HEADER.size:
        return 0
    magic, _, page_bytes, _, *salts, sum_1, sum_2 = HEADER.unpack(header)
    order = ">" if magic & 1 else "<"
    start = np.array([sum_1, sum_2], np.uint64)
    words = np.frombuffer(header[:24], f"{order}u4").astype(np.uint64)
    header_whole = magic | 1 == MAGIC | 1 and (sums(words[None], np.zeros((1, 2), np.uint64)) == start).all()
    if not header_whole:  # SQLite ignores it; the page size is in the database, the salts in the first frame
        page_bytes, order, salts = page_bytes_of(log), "<", []
    if page_bytes not in PAGE_SIZES:
        return 0
    commits, follows = [np.empty(0, bool)], [np.empty(0, bool)]
    for frames in read_frames(wal, page_bytes):
        numbers = frames[:, :FRAME_HEADER].copy().view(">u4").astype(np.uint64)
        salts = salts or numbers[0, 2:4].tolist()
        same = (numbers[:, 2:4] == np.array(salts, np.uint64)).all(axis=1)
        covered = np.hstack([frames[:, :8], frames[:, FRAME_HEADER:]]).view(f"{order}u4").astype(np.uint64)
        stored = numbers[:, 4:6]
        before = np.vstack([start, stored[:-1]])
        commits.append((numbers[:, 1] != 0) & same)
        follows.append(same & (sums(covered, before) == stored).all(axis=1))
        start = stored[-1]
    commit, follow = np.concatenate(commits), np.concatenate(follows)
    broken = -1 if not header_whole else int(np.argmin(np.append(follow, False)))
    whole_commit = (commit & follow)[broken + 1 : -1]
    return int((whole_commit & follow[broken + 2 :]).sum())


def read_frames(wal: BinaryIO, page_bytes: int) -> Iterator[NDArray[np.uint8]]:
    """Complete frames in blocks, uint8 [n, frame]."""
    size = FRAME_HEADER + page_bytes
    while block := wal.read(size * FRAMES_AT_ONCE):
        whole = len(block) // size
        if whole:
            yield np.frombuffer(block, np.uint8, whole * size).reshape(whole, size)
        if whole < FRAMES_AT_ONCE:
            return


def page_bytes_of(log: BinaryIO) -> int:
    log.seek(16)
    found = int.from_bytes(log.read(2), "big")
    return 1 << 16 if found == 1 else found


def sums(words: Words, before: Words) -> Words:
    """Checksums [n, 2] of n rows of words, each chained from its row of `before`.

    By definition, each pair of words x, y does a += x + b, then b += y + a. That is linear, so a word's weight in the
    result depends only on its position. 64-bit overflow does not affect the 32 bits that count.
    """
    weights, carry = weights_of(words.shape[1] // 2)
    result: Words = (words @ weights + before @ carry) & 0xFFFFFFFF
    return result


@functools.cache
def weights_of(pairs: int) -> tuple[Any, Any]:
    """Weights of each word, [2 * pairs, 2], and of the preceding checksum, [2, 2]."""
    weights = np.empty((2 * pairs, 2), np.uint64)
    a, b, c = 1, 0, 1  # symmetric matrix [[1, 1], [1, 2]] to the power of the number of pairs that follow
    for at in reversed(range(pairs)):
        weights[2 * at] = a + b & 0xFFFFFFFF, b + c & 0xFFFFFFFF
        weights[2 * at + 1] = b, c
        a, b, c = a + b & 0xFFFFFFFF, b + c & 0xFFFFFFFF, b + 2 * c & 0xFFFFFFFF
    return weights, np.array([[a, b], [b, c]], np.uint64)
