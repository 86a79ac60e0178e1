"""Reads and writes JSON by the half of the json module that is written in C.

The other half brings regular expressions and with them costs as much as a start of Python.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the module typing costs as much again
if TYPE_CHECKING:
    from typing import Any, Union


def refuse(value: Any) -> Any:
    """Say that a value is none that JSON knows."""
    raise TypeError("Object of type %s is not JSON serializable" % type(value).__name__)


try:
    import _json

    class _Context:
        strict = True
        object_hook = object_pairs_hook = None
        parse_float = float
        parse_int = int
        parse_constant = float

    _scan = _json.make_scanner(_Context)  # type: ignore[arg-type] # it asks for these names alone
    _write = _json.make_encoder(None, refuse, _json.encode_basestring_ascii, None, ":", ",", False, False, True)

    def dumps(value: Any) -> str:
        """Write a table or a list in one line."""
        return "".join(_write(value, 0))

    def loads(text: Union[str, bytes]) -> Any:
        """Read one document.

        Raises:
            ValueError: it is none.
        """
        words = (text.decode() if isinstance(text, bytes) else text).strip()
        try:
            value, end = _scan(words, 0)
        except StopIteration:
            raise ValueError("no JSON") from None
        if end != len(words):
            raise ValueError("more than one document")
        return value

    if loads(dumps({"a": [1.5, None, True, "\u20ac"]})) != {"a": [1.5, None, True, "\u20ac"]}:
        raise ImportError("_json is not the one that we know")  # noqa: TRY301 - caught below
except (ImportError, AttributeError, TypeError):  # another Python than CPython, or one to come
    import json

    def dumps(value: Any) -> str:
        """Write a table or a list in one line."""
        return json.dumps(value, separators=(",", ":"))

    def loads(text: Union[str, bytes]) -> Any:
        """Read one document."""
        return json.loads(text)
