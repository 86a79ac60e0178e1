from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import UsageError
from orchestrator.words import CallWords, split_words

SHARED = {"--nodes": True, "--set": True, "--json": False, "-v": False, "-q": False, "--help": False}
OPTIONS = {
    "launch": {**SHARED, "--grace": True, "--check": False, "--no-check": False},
    "check": {**SHARED, "--skip": True},
    "kill": {**SHARED, "--all": False},
}


def split(*argv: str) -> CallWords:
    return split_words(argv, OPTIONS, ("--help", "--version"), lambda word: word == "here")


@pytest.mark.parametrize(
    ("argv", "verb", "options", "script"),
    [
        ("", "launch", "", ""),
        ("train.py --lr 3", "launch", "", "train.py --lr 3"),
        ("--nodes f train.py --nodes g -- -v", "launch", "--nodes f", "train.py --nodes g -- -v"),
        ("--nodes=f bin/run x", "launch", "--nodes=f", "bin/run x"),
        ("here --flag", "launch", "", "here --flag"),
        ("-- odd --json", "launch", "", "odd --json"),
        ("-v -m my.mod check -q", "launch", "-v", "-m my.mod check -q"),
        ("launch --grace 5 odd -v", "launch", "--grace 5", "odd -v"),
        ("--grace 5 launch -m mod", "launch", "--grace 5", "-m mod"),
        ("--nodes f check --skip gpu", "check", "--nodes f --skip gpu", ""),
        ("-vv check", "check", "-vv", ""),
        ("--nodes check check", "check", "--nodes check", ""),
        ("kill run-1 --all", "kill", "run-1 --all", ""),
        ("--json --config", None, "", ""),
        ("--nodes", "launch", "--nodes", ""),
        ("--help", "", "--help", ""),
        ("--version", "", "--version", ""),
        ("launch --help", "launch", "--help", ""),
        ("--help check", "check", "--help", ""),
    ],
)
def test_split(argv: str, verb: str | None, options: str, script: str) -> None:
    if verb is None:
        with pytest.raises(UsageError):
            split(*argv.split())
        return
    assert split(*argv.split()) == CallWords(verb, tuple(options.split()), tuple(script.split()))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["chek"], "did you mean check?"),
        (["--nodes", "f", "lunch"], "did you mean launch?"),
        (["frobnicate"], "neither a verb nor a script"),
        ([""], "neither a verb nor a script"),
        (["--node", "f", "a.py"], "no such option: --node, did you mean --nodes?"),
        (["--no_check", "a.py"], "did you mean --no-check?"),
        (["-x", "a.py"], "no such option: -x"),
    ],
)
def test_other_words_are_refused_with_the_nearest(argv: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        split(*argv)
    assert words in caught.value.what
    assert caught.value.exit_code == 2


HOSTILE = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["--", "-m", "--nodes", "check", "", "-v", "$(x)", "a\nb", "`y`", "🚀", "--help", "'", '"']),
)


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from([("--nodes", "check"), ("--json",), ("--set", "a=--"), ("-vv",), ("--grace", "-m")])),
    st.sampled_from([("train.py",), ("--", "odd"), ("-m", "my.mod"), ("./x",)]),
    st.lists(HOSTILE, max_size=6),
)
def test_what_follows_the_script_is_untouched(
    options: list[tuple[str, ...]], start: tuple[str, ...], rest: list[str]
) -> None:
    own = [word for option in options for word in option]
    found = split(*own, *start, *rest)
    assert found.verb == "launch"
    assert found.options == tuple(own)
    assert found.script == (*(start[1:] if start[0] == "--" else start), *rest)
