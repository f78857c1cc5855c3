"""Drafts from earlier verified answers: what followed the longest matching suffix.

A robot answers nearly the same frame after frame, so its earlier answers predict the next without a
pass of a model: prompt lookup (Saxena 2023), REST (He et al. 2023, section 3) and SuffixDecoding
(Oliaro et al. 2025, section 4).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from struct import Struct
from zlib import crc32

from ..lru_cache import LruCache
from .draft import Draft

LENGTHS_BESIDE_LAST = (8, 4, 2, 1)  # suffix lengths, keyed also by what follows in the last answer
LENGTHS_ALONE = (4, 2, 1)  # suffix lengths, keyed by the suffix alone
FOLLOWERS = 4  # different tokens stored per suffix
RECENT_OCCURRENCES = 16  # roughly how many recent occurrences of a suffix count
LEAST_OCCURRENCES = 0.5  # a follower with so few remaining occurrences is forgotten
ESCAPE = 2.0  # occurrences that a shorter suffix weighs, per different follower
ENOUGH = 0.15  # shorter suffixes are skipped once they have at most this probability
MAX_PATTERNS = 64  # instruction patterns whose last answer is stored
MAX_INDEXED_TOKENS = 256  # first tokens of an answer or prompt that are used, which bounds the cost
MAX_TOKEN = 2**31 - 1

# Of a suffix: its hash, the probability left to shorter ones, and followers with probabilities.
_RECORD = Struct("=qf" + FOLLOWERS * "if")
BYTES_PER_SUFFIX = _RECORD.size
_BEGIN = -1  # marks an answer's beginning
_LONGEST = max(*LENGTHS_BESIDE_LAST, *LENGTHS_ALONE)
# Keys of a suffix, the most informative first: its length, and whether it is keyed beside the last.
_ENDS = (
    *((length, True) for length in LENGTHS_BESIDE_LAST),
    *((length, False) for length in LENGTHS_ALONE),
)


class SuffixIndex:
    """Counts which tokens followed each suffix of verified answers; at most ``max_suffixes``.

    Each suffix keeps the ``FOLLOWERS`` tokens that recently followed it most often. A token that is
    also in the instruction is stored as its position there, so "no blue box" matches "no red
    chair". The instruction's pattern precedes each answer. The last answer to each pattern is kept,
    too: successive frames differ in few words.

    All memory is allocated at once, ``BYTES_PER_SUFFIX`` each, except for the last answers to
    ``MAX_PATTERNS`` patterns. A new suffix replaces an older one of the same hash.
    """

    def __init__(self, max_suffixes: int) -> None:
        """Raises ValueError if not even one suffix fits."""
        if max_suffixes < 1:
            raise ValueError(f"an index holds at least 1 suffix, not {max_suffixes}")
        self._size = max_suffixes
        self._records = bytearray(BYTES_PER_SUFFIX * max_suffixes)
        self._last: LruCache[int, dict[int, int]] = LruCache(MAX_PATTERNS)

    def add(self, pattern: str, tokens: Sequence[int], prompt: Sequence[int] = ()) -> None:
        """Add the first ``MAX_INDEXED_TOKENS`` tokens of a verified answer.

        prompt: the instruction's tokens. ValueError: an invalid token id.
        """
        tokens = tokens[:MAX_INDEXED_TOKENS]
        if any(not 0 <= token <= MAX_TOKEN for token in tokens):
            raise ValueError(f"token ids are 0 to {MAX_TOKEN}")
        start, places = _start(pattern), _places(prompt)
        last = self._last.get(start, {})
        symbols = [start, _BEGIN, *(places.get(token, token) for token in tokens)]
        for at in range(2, len(symbols)):
            suffix = tuple(symbols[max(0, at - _LONGEST) : at])
            beside = last.get(suffix[-1], -1)
            for length, is_beside in _ENDS:
                if length <= len(suffix):
                    end = suffix[-length:]
                    self._count(hash((beside, end) if is_beside else end), symbols[at])
        self._last[start] = dict(zip(symbols[-2:0:-1], symbols[:1:-1], strict=True))

    def _count(self, mark: int, token: int) -> None:
        """Count this token as a follower of this suffix."""
        place = mark % self._size * BYTES_PER_SUFFIX
        found, escape, *known = _RECORD.unpack_from(self._records, place)
        counts: dict[int, float] = {}
        if found == mark:
            chances = [chance for chance in known[1::2] if chance]
            weight = ESCAPE * len(chances) / escape * (1 - 1 / RECENT_OCCURRENCES)
            for other, chance in zip(known[::2], chances, strict=False):
                if weight * chance > LEAST_OCCURRENCES:
                    counts[other] = weight * chance
        if token not in counts and len(counts) == FOLLOWERS:
            del counts[min(counts, key=counts.__getitem__)]
        counts[token] = counts.get(token, 0.0) + 1
        escape = ESCAPE * len(counts)
        weight = escape + sum(counts.values())
        fields: list[float] = []
        for other, count in counts.items():
            fields += other, count / weight
        fields += [0] * (2 * FOLLOWERS - len(fields))
        _RECORD.pack_into(self._records, place, mark, escape / weight, *fields)

    def look_up(
        self,
        pattern: str,
        prefix: Sequence[int],
        nodes: int,
        depth: int,
        prompt: Sequence[int] = (),
    ) -> Draft:
        """The ``nodes`` most likely continuations of an answer, as a tree of at most ``depth``
        levels.

        The most likely nodes come first; empty if nothing matches. All nodes are ``looked_up``.
        """
        start, places, words = _start(pattern), _places(prompt), prompt[-MAX_INDEXED_TOKENS:]
        last = self._last.get(start, {})
        ending = prefix[-_LONGEST:]
        symbols = [*((start, _BEGIN) if len(ending) < _LONGEST else ()), *ending]
        suffix = tuple([places.get(token, token) for token in symbols][-_LONGEST:])
        tokens: list[int] = []
        parents: list[int] = []
        suffixes = [suffix]  # of the prefix, then of each node
        # At most as many as can be chosen, the best last.
        waiting: list[tuple[float, int, int, int, int]] = []
        pushed, node, likely, level = 0, -1, 1.0, 0
        while len(tokens) < nodes:
            if level < depth:
                room = nodes - len(tokens)
                least = waiting[0][0] if len(waiting) == room else 0.0
                for token, chance in self._followers(suffix, last, words).items():
                    chance *= likely
                    if chance > least:
                        pushed -= 1  # among equals the first wins
                        insort(waiting, (chance, pushed, node, token, level + 1))
                del waiting[:-room]
            if not waiting:
                break
            likely, _, parent, token, level = waiting.pop()
            node = len(tokens)
            tokens.append(token)
            parents.append(parent)
            suffix = (*suffixes[1 + parent][1 - _LONGEST :], places.get(token, token))
            suffixes.append(suffix)
        return Draft(tuple(tokens), tuple(parents), looked_up=len(tokens))

    def _followers(
        self, suffix: tuple[int, ...], last: dict[int, int], words: Sequence[int]
    ) -> dict[int, float]:
        """The tokens that followed this suffix, with probabilities.

        The longest suffix counts first; the probability left for shorter ones grows with the number
        of different tokens after it (escape method C of PPM: Moffat 1990).
        """
        records, size, unpack = self._records, self._size, _RECORD.unpack_from
        beside = last.get(suffix[-1], -1)
        found: dict[int, float] = {}
        left = 1.0
        for length, is_beside in _ENDS:
            if length > len(suffix):
                continue
            end = suffix[-length:]
            mark = hash((beside, end) if is_beside else end)
            fields = iter(unpack(records, mark % size * BYTES_PER_SUFFIX))
            if next(fields) != mark:
                continue
            escape = next(fields)
            for token, chance in zip(fields, fields):  # noqa: B905 (an argument costs time)
                if not chance:
                    break
                if token < 0:
                    if -2 - token > len(words):
                        continue
                    token = words[2 + token]
                found[token] = found.get(token, 0.0) + left * chance
            left *= escape
            if left < ENOUGH:
                break
        return found


def _start(pattern: str) -> int:
    return -2 - crc32(pattern.encode())


def _places(prompt: Sequence[int]) -> dict[int, int]:
    """The symbol of each prompt token: -3 for the last one, -4 for the one before, and so on.

    -2 is not used, because Python hashes -1 and -2 alike.
    """
    return {
        token: i - min(len(prompt), MAX_INDEXED_TOKENS) - 2
        for i, token in enumerate(prompt[-MAX_INDEXED_TOKENS:])
    }
