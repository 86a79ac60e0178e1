"""The words of a call, split into the verb, our own options and the script's words."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.light_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DEFAULT_VERB = "launch"
COMMAND_VERB = "exec"
"""The other verb whose words begin with the first one that is no option."""


@dataclass(frozen=True)
class CallWords:
    """A call taken apart."""

    verb: str
    """Empty when the call asks for the help or version of the whole program."""
    options: tuple[str, ...]
    """What the verb's own parser reads."""
    script: tuple[str, ...] = ()
    """The script, or -m and a module, and all of its words, untouched."""


def split_words(
    argv: Sequence[str],
    options_of: Mapping[str, Mapping[str, bool]],
    top_options: Sequence[str],
    is_file: Callable[[str], bool],
) -> CallWords:
    """Split the words of a call; without a verb the first word decides.

    Args:
        argv: The words after the program's name.
        options_of: The options of every verb, and whether each takes a value.
        top_options: Options of the whole program, such as --version; none takes a value.
        is_file: Tells whether a word names a file.

    Raises:
        UsageError: a word that is neither verb nor script, or an option that no verb knows.
    """
    verb = ""
    known: dict[str, bool] = dict.fromkeys(top_options, False)
    for options in options_of.values():
        known |= options
    at = 0
    before: list[str] = []
    while at < len(argv):
        word = argv[at]
        if word == "--" or (word == "-m" and verb != COMMAND_VERB):
            script = argv[at + 1 :] if word == "--" else argv[at:]
            return CallWords(verb or DEFAULT_VERB, tuple(before), tuple(script))
        if word.startswith("-") and len(word) > 1:
            step = _option_length(word, known, verb or DEFAULT_VERB)
            before.extend(argv[at : at + step])
            at += step
            continue
        if not verb and word in options_of:
            if word not in (DEFAULT_VERB, COMMAND_VERB):
                return CallWords(word, (*before, *argv[at + 1 :]))
            verb, known = word, dict(options_of[word])
            at += 1
            continue
        if not verb:
            _refuse_other_words(word, tuple(options_of), is_file)
        return CallWords(verb or DEFAULT_VERB, tuple(before), tuple(argv[at:]))
    asked = not verb and any(word in top_options for word in before)
    return CallWords("" if asked else verb or DEFAULT_VERB, tuple(before))


def _option_length(word: str, known: Mapping[str, bool], verb: str) -> int:
    """Count the words of an option: 2 when its value is the next one."""
    name = word.partition("=")[0] if word.startswith("--") else word
    if name in known:
        return 2 if known[name] and name == word else 1
    if not word.startswith("--") and all(known.get(f"-{letter}") is False for letter in word[1:]):
        return 1
    near = get_close_matches(name.replace("_", "-"), known, n=1, cutoff=0.6)
    words = "command" if verb == COMMAND_VERB else "script"
    raise UsageError(
        f"no such option: {name}" + (f", did you mean {near[0]}?" if near else ""),
        where="command line",
        remedy=f"options of the {words} stand behind the {words}; aorta-launch {verb} --help lists ours",
    )


def _refuse_other_words(word: str, verbs: Sequence[str], is_file: Callable[[str], bool]) -> None:
    if word.endswith(".py") or "/" in word or (word and is_file(word)):
        return
    near = get_close_matches(word, verbs, n=1, cutoff=0.5)
    guess = f", did you mean {near[0]}?" if near else ""
    raise UsageError(
        f"{word!r} is neither a verb nor a script{guess}",
        where="command line",
        remedy=f"the verbs are {', '.join(verbs)}; a script ends in .py, holds a slash, or follows --",
    )
