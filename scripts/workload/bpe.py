"""A small byte-level tokenizer: it begins with the 256 bytes and joins the most frequent pairs, until it has enough.

Any text can be encoded and comes back as it was. Words, each with the blanks before it, are looked at alone, so that
no token reaches over a word's end and each word is encoded once.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict

BYTES = 256
WORD = re.compile(r" ?[^\W\d_]+| ?\d+|\n+ *| ?[^\s\w]+|_+|\s+")

Pair = tuple[int, int]


class _Words:
    """The distinct words of a text as lists of tokens, and where each pair stands."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = list(counts.values())
        self.tokens = [list(word.encode()) for word in counts]
        self.pairs: Counter[Pair] = Counter()
        self.places: dict[Pair, set[int]] = defaultdict(set)
        for number in range(len(self.tokens)):
            self._count(number, 1)

    def _count(self, number: int, sign: int) -> set[Pair]:
        tokens = self.tokens[number]
        found = list(zip(tokens, tokens[1:]))
        for pair in found:
            self.pairs[pair] += sign * self.counts[number]
            if sign > 0:
                self.places[pair].add(number)
        return set(found)

    def join(self, pair: Pair, token: int) -> set[Pair]:
        """Join a pair wherever it stands; give the pairs whose number changed."""
        changed: set[Pair] = set()
        for number in sorted(self.places.pop(pair, ())):
            changed |= self._count(number, -1)
            self.tokens[number] = join_pair(self.tokens[number], pair, token)
            changed |= self._count(number, 1)
        return changed


def join_pair(tokens: list[int], pair: Pair, token: int) -> list[int]:
    """Put one token in the place of every such pair, from the left."""
    joined, at = [], 0
    while at < len(tokens):
        if at + 1 < len(tokens) and (tokens[at], tokens[at + 1]) == pair:
            joined.append(token)
            at += 2
        else:
            joined.append(tokens[at])
            at += 1
    return joined


def learn_pairs(text: str, vocab_size: int) -> list[Pair]:
    """Learn which pairs to join, in order, until the vocabulary is full or no pair stands twice."""
    words = _Words(Counter(WORD.findall(text)))
    # By number, then by the pair itself: the same on every Python.
    heap = [(-count, pair) for pair, count in words.pairs.items()]
    heapq.heapify(heap)
    learned: list[Pair] = []
    while heap and len(learned) < vocab_size - BYTES:
        negative, pair = heapq.heappop(heap)
        count = words.pairs[pair]
        if count != -negative:  # an old entry: its number has changed since
            continue
        if count <= 1:
            break
        token = BYTES + len(learned)
        learned.append(pair)
        for changed in words.join(pair, token):
            if words.pairs[changed] > 0:
                heapq.heappush(heap, (-words.pairs[changed], changed))
    return learned


class Tokenizer:
    """Turns text into tokens and back, by the pairs that were learned."""

    def __init__(self, pairs: list[Pair]) -> None:
        self._ranks = {pair: BYTES + place for place, pair in enumerate(pairs)}
        self._texts = [bytes([number]) for number in range(BYTES)]
        for left, right in pairs:
            self._texts.append(self._texts[left] + self._texts[right])
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Give the tokens of a text."""
        tokens: list[int] = []
        for word in WORD.findall(text):
            known = self._known.get(word)
            if known is None:
                known = self._known[word] = self._encode_word(word)
            tokens += known
        return tokens

    def _encode_word(self, word: str) -> list[int]:
        tokens = list(word.encode())
        while len(tokens) > 1:
            ranks = [self._ranks.get(pair, -1) for pair in zip(tokens, tokens[1:])]
            best = min((rank for rank in ranks if rank >= 0), default=-1)
            if best < 0:
                break
            at = ranks.index(best)
            tokens = join_pair(tokens, (tokens[at], tokens[at + 1]), best)
        return tokens

    def decode(self, tokens: list[int]) -> str:
        """Give the text of tokens; what is cut in the middle of a letter shows as a question mark."""
        return b"".join(self._texts[token] for token in tokens).decode("utf-8", "replace")
