"""What is made by our own dataclass is, to everybody who asks, what the standard library would have made."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from orchestrator.light_dataclass import dataclass


def make(decorator: Any, **options: Any) -> Any:
    """The same class by either."""

    class Base:
        def __str__(self) -> str:
            return "its own"

    class Place(Base):
        name: str
        seen: list[int] = dataclasses.field(default_factory=list)
        note: str = dataclasses.field(default="", compare=False, repr=False)

    return decorator(**options)(Place)


def both(**options: Any) -> list[Any]:
    return [make(one, **options) for one in (dataclasses.dataclass, dataclass)]


def test_it_is_shown_compared_and_taken_apart_as_the_standard_ones_are() -> None:
    theirs, ours = both()
    for kind in (theirs, ours):
        assert kind("a", [1]) == kind("a", [1], note="what is not compared")
        assert kind("a") != kind("b")
        assert kind("a") != theirs.__bases__[0]()
        assert dataclasses.replace(kind("a"), name="b") == kind("b")
        assert kind("a").seen is not kind("a").seen
        assert str(kind("a")) == "its own"
    assert repr(ours("a", [1])) == repr(theirs("a", [1]))
    assert (
        dataclasses.asdict(ours("a", [1]))
        == dataclasses.asdict(theirs("a", [1]))
        == {"name": "a", "seen": [1], "note": ""}
    )
    assert [one.name for one in dataclasses.fields(ours)] == ["name", "seen", "note"]


def test_only_a_frozen_one_can_be_the_key_of_a_table() -> None:
    for kind in both(frozen=True):
        assert hash(kind("a", (1,), note="x")) == hash(kind("a", (1,), note="y"))
        assert len({kind("a", ()), kind("a", ()), kind("b", ())}) == 2
    for kind in both():
        with pytest.raises(TypeError, match="unhashable"):
            hash(kind("a"))


def test_what_a_class_writes_itself_stands() -> None:
    @dataclass(frozen=True)
    class Mild:
        """Equal to whatever begins alike."""

        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Mild) and other.name[:1] == self.name[:1]

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "mild"

    assert Mild("ab") == Mild("ac") != Mild("b")
    assert (hash(Mild("ab")), repr(Mild("ab"))) == (7, "mild")


def test_one_below_another_has_the_fields_of_both_and_is_not_equal_to_it() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Node:
        """The one above."""

        host: str

    @dataclass(frozen=True, kw_only=True)
    class Ranked(Node):
        """The one below."""

        rank: int = 0

    assert Ranked(host="a") == Ranked(host="a", rank=0) != Ranked(host="a", rank=1)
    assert Ranked(host="a") != Node(host="a")
    assert repr(Ranked(host="a")).endswith("Ranked(host='a', rank=0)")


def test_one_without_fields_is_equal_to_every_other() -> None:
    @dataclass(frozen=True)
    class Nothing:
        """It has none."""

    assert Nothing() == Nothing()
    assert len({Nothing(), Nothing()}) == 1


@pytest.mark.parametrize("decorator", [dataclasses.dataclass, dataclass])
def test_an_object_is_made_of_the_same_words(decorator: Any) -> None:
    @decorator
    class Run:
        """With every kind of field that there is."""

        name: str
        tries: int = 3
        notes: list[str] = dataclasses.field(default_factory=list)
        _: dataclasses.KW_ONLY
        strict: bool
        missing: bool = False
        seen: set[str] = dataclasses.field(default_factory=set, init=False)
        state: str = dataclasses.field(default="new", init=False)

    make: Any = Run
    run = make("a", strict=True)
    assert vars(run) | {"state": run.state} == {
        "name": "a",
        "tries": 3,
        "notes": [],
        "strict": True,
        "missing": False,
        "seen": set(),
        "state": "new",
    }
    assert run.seen is not make("a", strict=True).seen
    assert vars(make("b", 5, ["x"], strict=False, missing=True))["notes"] == ["x"]
    for words, named, told in (
        ((), {"strict": True}, "missing 1 required positional argument: 'name'"),
        (("a",), {}, "missing 1 required keyword-only argument: 'strict'"),
        (("a",), {"strict": True, "seen": set()}, "unexpected keyword argument 'seen'"),
        (("a", 1, [], True), {"strict": True}, "positional arguments"),
    ):
        with pytest.raises(TypeError, match=told) as raised:
            make(*words, **named)
        assert "Run.__init__()" in str(raised.value)


def test_what_is_done_after_it_is_made_is_done_and_an_own_way_to_make_it_stands() -> None:
    @dataclass
    class Checked:
        """It looks at itself."""

        name: str

        def __post_init__(self) -> None:
            self.name = self.name.strip()

    @dataclass
    class Own:
        """It makes itself."""

        name: str

        def __init__(self) -> None:
            self.name = "own"

    class Below(Checked):
        """No dataclass itself."""

        def __init__(self) -> None:
            super().__init__(" below ")

    assert (Checked(" a ").name, Own().name, Below().name) == ("a", "own", "below")


def test_threads_that_make_the_first_ones_at_the_same_time_make_whole_ones() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Place:
        """Made by many."""

        rank: int
        notes: tuple[str, ...] = ()

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda rank: Place(rank=rank), range(64))) == [Place(rank=rank) for rank in range(64)]
