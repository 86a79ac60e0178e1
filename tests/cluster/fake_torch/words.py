"""The words that the stand-in understands: torchrun's own, as many of them as the launcher uses."""

from __future__ import annotations

import argparse


def parse_words(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; torchrun takes dashes and underscores alike."""
    parser = argparse.ArgumentParser(prog="torchrun", allow_abbrev=False)
    add(parser, "--nnodes", int, 1)
    add(parser, "--nproc-per-node", int, 1)
    add(parser, "--node-rank", int, 0)
    add(parser, "--master-addr", str, "127.0.0.1")
    add(parser, "--master-port", int, 29500)
    add(parser, "--rdzv-id", str, "none")
    add(parser, "--rdzv-conf", str, "")
    add(parser, "--max-restarts", int, 0)
    add(parser, "--monitor-interval", float, 0.1)
    add(parser, "--redirects", str, "0")
    add(parser, "--log-dir", str, None)
    add(parser, "--shutdown-timeout", float, 30.0)
    add(parser, "--signals-to-handle", str, "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    return parser.parse_args(words)


def add(parser: argparse.ArgumentParser, flag: str, kind: type, default: object) -> None:
    """Add one flag in both spellings."""
    parser.add_argument(flag, "--" + flag[2:].replace("-", "_"), type=kind, default=default)


def rendezvous_timeout_s(conf: str) -> float:
    """The time-out in `--rdzv-conf timeout=N,...`; torchrun's own is 900 s."""
    pairs = dict(pair.split("=", 1) for pair in conf.split(",") if "=" in pair)
    return float(pairs.get("timeout", 900))
