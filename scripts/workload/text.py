"""A real text as samples. The main process makes the tokens; every node gets the same, or the run is refused."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from orchestrator.distributed import (
    all_gather_object,
    broadcast_object,
    is_main_process,
    is_node_main,
)
from workload import bpe, dice
from workload.samples import Batch
from workload.schema import ConfigError
from workload.text_source import read_text

if TYPE_CHECKING:
    from workload.schema import Dataset

VERSION = 1
"""Of the file of tokens and of how they are made."""
ITEM = 4
"""Bytes of a token in the cache."""
LEAST_LENGTH = 4
HELD_OUT_SHARE = 10
"""The last of so many parts of the text is never trained on."""
LEARNED_CHARS = 1_000_000
"""Pairs are learned from the beginning of a large text."""
CACHE = Path("~/.aorta/cache/text")


class Text:
    """Samples that begin anywhere in the text; the held-out ones in its last part."""

    def __init__(self, tokens: Tensor, seed: int, sequence_length: int) -> None:
        held_out = len(tokens) // HELD_OUT_SHARE
        self._parts = {False: tokens[:-held_out], True: tokens[-held_out:]}
        longest = held_out - 1
        if longest < LEAST_LENGTH:
            raise ConfigError(
                f"dataset: the text has {len(tokens)} tokens, too few for any sequence_length: take a longer one, or a "
                "smaller dataset.vocab_size"
            )
        if sequence_length > longest:
            raise ConfigError(
                f"dataset.sequence_length: {len(tokens)} tokens of text allow at most {longest}, not {sequence_length}"
            )
        self._seed = seed
        self._length = sequence_length

    def build(self, index: Tensor, *, held_out: bool) -> Batch:
        """Build the samples of these numbers: tokens (samples, length), and what follows each."""
        part = self._parts[held_out]
        start = dice.draw_integers(dice.mix_seed(self._seed, held_out), index, 1, len(part) - self._length)
        whole = part[start + torch.arange(self._length + 1)].long()
        return Batch((whole[:, :-1].contiguous(),), whole[:, 1:].contiguous())

    def best_loss(self) -> None:
        """Nobody knows what a text allows."""


def open_text(dataset: Dataset) -> Text:
    """Open the text on all ranks, a collective; ConfigError on all of them alike when they cannot have the same."""
    name = _agree(lambda: _prepare(dataset) if is_main_process() else "")[0]
    if dataset.path is not None:
        _check_same_file(dataset.path)
    path = _find_file(name)
    lacks = all_gather_object(is_node_main() and not _is_whole(path))
    if any(lacks):
        data = broadcast_object(path.read_bytes() if is_main_process() else b"")
        _agree(lambda: _write(path, data) if is_node_main() and not _is_whole(path) else None)
    kept: list[Tensor] = []
    digests = _agree(lambda: _read_tokens(path, kept))
    if len(set(digests)) > 1:
        raise ConfigError(f"the tokens in {path} differ between the nodes; delete the file on all of them")
    return Text(kept[0], dataset.seed, dataset.sequence_length)


def _agree(work: Any) -> list[Any]:
    # Runs it on every rank, and raises the first rank's trouble on all.
    try:
        mine = ("", work())
    except ConfigError as error:
        mine = (str(error), None)
    except OSError as error:
        mine = (f"{error.filename}: {error.strerror}", None)
    answers = all_gather_object(mine)
    for trouble, _ in answers:
        if trouble:
            raise ConfigError(trouble)
    return [answer for _, answer in answers]


def _check_same_file(path: str) -> None:
    digests = _agree(lambda: _digest_file(path) if is_node_main() else "")
    if len({digest for digest in digests if digest}) > 1:
        raise ConfigError(f"dataset.path: {path} is not the same file on all nodes")


def _digest_file(path: str) -> str:
    return hashlib.sha256(read_text(path).encode()).hexdigest()


def _find_file(name: str) -> Path:
    return CACHE.expanduser() / f"{name}.tokens"


def _prepare(dataset: Dataset) -> str:
    text = read_text(dataset.path)
    name = hashlib.sha256(f"{VERSION} {dataset.vocab_size} ".encode() + text.encode()).hexdigest()[:32]
    path = _find_file(name)
    if not _is_whole(path):
        pairs = bpe.learn_pairs(text[:LEARNED_CHARS], dataset.vocab_size)
        tokens = array("i", bpe.Tokenizer(pairs).encode(text))
        header = json.dumps({"version": VERSION, "pairs": pairs, "tokens": len(tokens), "byteorder": sys.byteorder})
        _write(path, header.encode() + b"\n" + tokens.tobytes())
    return name


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.getpid()}")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # or a power cut leaves the name without the bytes
    aside.replace(path)


def _is_whole(path: Path) -> bool:
    """Tell whether a cache file is there with as many tokens as it says: a full disk or a power cut leaves less."""
    try:
        with path.open("rb") as file:
            header = file.readline()
            size = os.fstat(file.fileno()).st_size
        return size == len(header) + ITEM * int(json.loads(header)["tokens"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _read_tokens(path: Path, into: list[Tensor]) -> str:
    data = path.read_bytes()
    try:
        into.append(torch.frombuffer(bytearray(data[data.index(b"\n") + 1 :]), dtype=torch.int32))
    except (ValueError, RuntimeError):
        raise ConfigError(f"{path} is damaged; delete it") from None
    return hashlib.sha256(data).hexdigest()
