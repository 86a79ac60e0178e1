"""The config file: YAML whose lines are known, whose `launch:` section is ours and whose rest is not judged."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from orchestrator.errors import ConfigError
from orchestrator.light_dataclass import dataclass
from orchestrator.setting_names import SECTIONS
from orchestrator.textfiles import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EXAMPLE = "config/launch.example.yaml"
_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"
# YAML 1.1 takes 3e-4 for a text; a person who sets it on the command line means the number.
_BARE_EXPONENT = re.compile(r"([-+]?[0-9]+)(\.[0-9]*)?[eE]([-+]?)([0-9]+)")


@dataclass(frozen=True)
class Entry:
    """One key of the `launch:` section."""

    key: str
    """Below hang: as hang.after_s."""
    value: Any
    """As YAML types it."""
    text: Any
    """The same with every scalar as the characters of the file."""
    where: str
    """file:line, or the --set that made it."""


@dataclass(frozen=True)
class ConfigFile:
    """A config as used: the text that every node gets, and our section of it."""

    text: str
    launch: tuple[Entry, ...]


def read_config(path: Path, sets: Sequence[str] = ()) -> ConfigFile:
    """Read a config and apply `--set a.b.c=VALUE` to a copy of it.

    Raises:
        ConfigError: not there, not readable, not YAML, a key twice, or a --set that does not fit.
    """
    text = read_text(path, ConfigError, "config", "name the config with --config FILE")
    return parse_config(text, str(path), sets)


def parse_config(text: str, where: str, sets: Sequence[str] = ()) -> ConfigFile:
    """Parse the text of a config; without --set it is kept as it is, comments included.

    Raises:
        ConfigError: not YAML, not a mapping, a key twice, or a --set that does not fit.
    """
    root = _compose(text, where)
    if root is None:
        root = yaml.MappingNode("tag:yaml.org,2002:map", [])
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError("the config is not a mapping of sections", where=_where(root), remedy="start it with launch:")
    _refuse_duplicates(root, set(), [])
    for assignment in sets:
        root = _apply_set(root, assignment)
    if sets:
        text = yaml.serialize(root, Dumper=yaml.SafeDumper, allow_unicode=True, width=float("inf"))
    return ConfigFile(text, _build_entries(root))


def _compose(text: str, where: str) -> yaml.Node | None:
    try:
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {error}", where=where, remedy="remove the control characters") from None
    loader.name = where
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = where if mark is None or where.startswith("--set") else f"{where}:{mark.line + 1}"
        context = f" ({error.context})" if error.context else ""
        remedy = "use spaces, not tabs" if "'\\t'" in str(error.problem) else "correct the YAML there; quote odd texts"
        raise ConfigError(f"not YAML: {error.problem}{context}", where=place, remedy=remedy) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {error}", where=where, remedy="correct the YAML") from None
    except RecursionError:
        raise ConfigError("nested too deep", where=where, remedy="flatten the config") from None
    finally:
        loader.dispose()


def _where(node: yaml.Node) -> str:
    mark = node.start_mark
    if mark is None:
        return ""
    return str(mark.name) if mark.name.startswith("--set") else f"{mark.name}:{mark.line + 1}"


def _refuse_duplicates(node: yaml.Node, seen: set[int], path: list[yaml.Node]) -> None:
    if node in path:
        raise ConfigError("an anchor that holds itself", where=_where(node), remedy="write the value out")
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    lines: dict[tuple[str, str], yaml.Node] = {}
    for item in node.value:
        key, child = item if isinstance(node, yaml.MappingNode) else (None, item)
        if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
            name = (key.tag, key.value)
            if name in lines:
                first = lines[name].start_mark.line + 1
                raise ConfigError(
                    f"key {key.value} stands here and in line {first}", where=_where(key), remedy="keep one of the two"
                )
            lines[name] = key
        _refuse_duplicates(child, seen, [*path, node])


def _pairs(node: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
    """List the pairs of a mapping with `<<` resolved: own keys win, then the earlier source."""
    merged: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
    own: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
    for key, child in node.value:
        if key.tag != _MERGE:
            own[key.value if isinstance(key, yaml.ScalarNode) else id(key)] = (key, child)
            continue
        for source in child.value if isinstance(child, yaml.SequenceNode) else [child]:
            if isinstance(source, yaml.MappingNode):
                for pair in _pairs(source):
                    name = pair[0].value if isinstance(pair[0], yaml.ScalarNode) else id(pair[0])
                    merged.setdefault(name, (_copy_scalar(pair[0]), _copy_scalar(pair[1])))
    return list({**merged, **own}.values())


def _copy_scalar(node: yaml.Node) -> yaml.Node:
    # A scalar that stands in two places would be written with an anchor.
    if not isinstance(node, yaml.ScalarNode):
        return node
    return yaml.ScalarNode(node.tag, node.value, node.start_mark, node.end_mark, node.style)


def _apply_set(root: yaml.MappingNode, assignment: str) -> yaml.MappingNode:
    path, equals, text = assignment.partition("=")
    where = f"--set {assignment}"
    parts = path.split(".")
    if not equals or not all(part.strip() == part and part for part in parts):
        raise ConfigError("not of the form KEY=VALUE", where=where, remedy="write --set training.max_steps=20")
    value = _compose(_spell_number(text), where)
    if value is None:
        value = yaml.ScalarNode(_NULL, "null")
    _refuse_duplicates(value, set(), [])
    _mark(value, where)
    changed = _replace(root, parts, value, where)
    assert isinstance(changed, yaml.MappingNode)
    return changed


def _mark(node: yaml.Node, where: str) -> None:
    node.start_mark = yaml.Mark(where, 0, 0, 0, None, 0)


def _spell_number(text: str) -> str:
    found = _BARE_EXPONENT.fullmatch(text.strip())
    if found is None:
        return text
    whole, fraction, sign, exponent = found.groups()
    return f"{whole}{fraction or '.0'}e{sign or '+'}{exponent}"


def _replace(node: yaml.Node, parts: list[str], value: yaml.Node, where: str) -> yaml.Node:
    """Copy a node with the value at a path; copies, because an alias shows the same node elsewhere."""
    if not parts:
        return value
    part, rest = parts[0], parts[1:]
    if isinstance(node, yaml.SequenceNode):
        if not part.isdecimal() or int(part) >= len(node.value):
            raise ConfigError(
                f"{part} is no item of a list of {len(node.value)}", where=where, remedy="count its items from 0"
            )
        items = list(node.value)
        items[int(part)] = _replace(items[int(part)], rest, value, where)
        return yaml.SequenceNode(node.tag, items, node.start_mark, node.end_mark, node.flow_style)
    if not isinstance(node, yaml.MappingNode):
        if node.tag != _NULL:
            raise ConfigError(
                f"what {part} is to be set in is no section", where=where, remedy="set a key of a section"
            )
        node = yaml.MappingNode("tag:yaml.org,2002:map", [], flow_style=False)
    pairs = _pairs(node)
    for index, (key, child) in enumerate(pairs):
        if isinstance(key, yaml.ScalarNode) and key.value == part:
            pairs[index] = (_marked_key(part, key.tag, where, rest, key), _replace(child, rest, value, where))
            break
    else:
        empty = yaml.ScalarNode(_NULL, "null")
        tag = yaml.SafeLoader("").resolve(yaml.ScalarNode, part, (True, False))  # type: ignore[no-untyped-call]
        pairs.append((_marked_key(part, tag, where, rest, None), _replace(empty, rest, value, where)))
    return yaml.MappingNode(node.tag, pairs, node.start_mark, node.end_mark, node.flow_style)


def _marked_key(part: str, tag: str, where: str, rest: list[str], old: yaml.Node | None) -> yaml.Node:
    if rest and old is not None:
        return old
    key = yaml.ScalarNode(tag, part)
    _mark(key, where)
    return key


def _build_entries(root: yaml.MappingNode) -> tuple[Entry, ...]:
    found = [(key, child) for key, child in _pairs(root) if key.value == "launch"]
    if not found or found[0][1].tag == _NULL:
        return ()
    section = found[0][1]
    if not isinstance(section, yaml.MappingNode):
        raise ConfigError("launch: expected a mapping of settings", where=_where(section), remedy=f"see {EXAMPLE}")
    entries = []
    for key, child in _pairs(section):
        name = key.value if isinstance(key, yaml.ScalarNode) else "?"
        entries += _build_inner(name, child) if name in SECTIONS else [_build_entry(name, key, child)]
    return tuple(entries)


def _build_inner(section: str, node: yaml.Node) -> list[Entry]:
    if node.tag == _NULL:
        return []
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(
            f"launch.{section}: expected a mapping of settings", where=_where(node), remedy=f"see {EXAMPLE}"
        )
    named = [(key.value if isinstance(key, yaml.ScalarNode) else "?", key, child) for key, child in _pairs(node)]
    return [_build_entry(f"{section}.{name}", key, child) for name, key, child in named]


def _build_entry(name: str, key: yaml.Node, child: yaml.Node) -> Entry:
    return Entry(name, _build_value(child, f"launch.{name}"), _build_text(child), _where(key))


def _build_value(node: yaml.Node, name: str) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{name}: {problem}", where=_where(node), remedy="write a plain YAML value") from None
    finally:
        loader.dispose()


def _build_text(node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return None if node.tag == _NULL else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_shallow(item) for item in node.value]
    assert isinstance(node, yaml.MappingNode)
    return {key.value: _shallow(child) for key, child in _pairs(node) if isinstance(key, yaml.ScalarNode)}


def _shallow(node: yaml.Node) -> Any:
    return (None if node.tag == _NULL else node.value) if isinstance(node, yaml.ScalarNode) else [...]
