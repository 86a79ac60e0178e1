from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.errors import ConfigError, UsageError
from orchestrator.setting_names import SECTIONS, config_name
from orchestrator.settings import Settings, build_settings, config_keys, render_origins, require_script

ROOT = Path(__file__).parents[2]


def config(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return {"config": str(path)}


def test_flag_beats_variable_beats_config_beats_default(tmp_path: Path) -> None:
    flags = config(tmp_path, "launch:\n  grace_s: 1\n  fanout: 1\n  label: mine\n")
    environ = {"AORTA_LAUNCH_GRACE_S": "2", "AORTA_LAUNCH_FANOUT": "2", "AORTA_LAUNCH_USER": ""}
    settings = build_settings({**flags, "grace_s": "3m", "user": None}, environ)
    assert (settings.grace_s, settings.fanout, settings.label, settings.lost_after_s) == (180.0, 2, "mine", 60.0)
    origins = settings.origins
    assert (origins["grace_s"], origins["fanout"]) == ("flag --grace", "variable AORTA_LAUNCH_FANOUT")
    assert (origins["label"], origins["lost_after_s"]) == (f"config {tmp_path}/c.yaml:4", "default")
    assert origins["user"] == "default"


def test_set_beats_the_file_and_says_so(tmp_path: Path) -> None:
    flags = {**config(tmp_path, "launch:\n  grace_s: 1\n"), "set": ["launch.grace_s=1h", "training.x=1"]}
    settings = build_settings(flags, {})
    assert settings.grace_s == 3600.0
    assert settings.origins["grace_s"] == "flag --set launch.grace_s=1h"
    assert yaml.safe_load(settings.config_text or "") == {"launch": {"grace_s": "1h"}, "training": {"x": 1}}
    with pytest.raises(UsageError, match="no config"):
        build_settings({"set": ["a=1"]}, {})


def test_the_config_can_come_from_a_variable(tmp_path: Path) -> None:
    path = config(tmp_path, "launch: {script: a.py}\n")["config"]
    settings = build_settings({}, {"AORTA_LAUNCH_CONFIG": path})
    assert (settings.script, settings.config) == ("a.py", Path(path))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("5m", 300), ("1h", 3600), ("1h30m", 5400), ("2.5s", 2.5), ("0", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert build_settings({"grace_s": text}, {}).grace_s == seconds


@pytest.mark.parametrize(
    ("flags", "where", "words"),
    [
        ({"grace_s": "soon"}, "flag --grace", "a duration like 90, 90s, 5m or 1h, not 'soon'"),
        ({"grace_s": ""}, "flag --grace", "a duration"),
        ({"timeout_s": "0"}, "flag --timeout", "above 0"),
        ({"grace_s": "-1"}, "flag --grace", "a duration"),
        ({"fanout": "0"}, "flag --fanout", "from 1 up"),
        ({"ssh_port": "65536"}, "flag --ssh-port", "1 to 65535"),
        ({"nproc_per_node": "0"}, "flag --nproc-per-node", "auto, gpu, cpu"),
        ({"ranks": "1-"}, "flag --ranks", "0, all or a list"),
        ({"label": "a b"}, "flag --label", "letters, digits"),
        ({"label": "../x"}, "flag --label", "letters, digits"),
        ({"color": "blue"}, "flag --color", "auto, always or never"),
        ({"python": "python3"}, "flag --python", "absolute path"),
        ({"nodes": ""}, "flag --nodes", "a path"),
    ],
)
def test_bad_flags_are_named(flags: dict[str, Any], where: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_settings(flags, {})
    assert caught.value.where == where
    assert words in caught.value.what
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("grace: 5", "unknown key launch.grace, did you mean grace_s?"),
        ("dry_run: true", "unknown key launch.dry_run"),
        ("xyzzy: 5", "unknown key launch.xyzzy"),
        ("grace_s: [1]", "launch.grace_s: expected a duration"),
        ("grace_s: true", "expected a duration"),
        ("grace_s: null", "expected a duration"),
        ("grace_s: .nan", "expected a duration"),
        ("check: 3", "launch.check: expected true or false, not 3"),
        ("fanout: 1.5", "a whole number from 1 up"),
        ("args: --lr 3", "a list of words"),
        ("args: [[a]]", "a list of words"),
        ("env: [A]", "a mapping of NAME: value"),
        ("env: {A: null}", "a text as the value of A"),
        ("env: {A-B: x}", "names of environment variables"),
        ("env: {A: [hunter2]}", "a text as the value of A"),
        ("script: [a]", "some UTF-8 text"),
        ("ranks: some", "0, all or a list"),
    ],
)
def test_the_launch_section_is_strict(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_settings(config(tmp_path, f"other: {{grace: 1}}\nlaunch:\n  label: x\n  {line}\n"), {})
    assert caught.value.where == f"{tmp_path}/c.yaml:4"
    assert words in caught.value.what
    assert "hunter2" not in str(caught.value)


def test_what_a_person_wrote_reaches_the_script_as_those_characters(tmp_path: Path) -> None:
    flags = config(
        tmp_path, "launch:\n  args: [3.0e-4, 007, yes, ~x, 'null']\n  env: {A: 1_000, B: on, C: ''}\n  ranks: 0\n"
    )
    settings = build_settings(flags, {})
    assert settings.args == ("3.0e-4", "007", "yes", "~x", "null")
    assert settings.env == {"A": "1_000", "B": "on", "C": ""}
    assert settings.ranks == "0"


def test_misspelt_variables_are_refused_and_others_left_alone() -> None:
    build_settings({}, {"AORTA_RUN_ID": "x", "GRACE_S": "x"})
    with pytest.raises(ConfigError) as caught:
        build_settings({}, {"AORTA_LAUNCH_GRACE": "5"})
    assert "did you mean AORTA_LAUNCH_GRACE_S?" in caught.value.what
    with pytest.raises(ConfigError) as caught:
        build_settings({}, {"AORTA_LAUNCH_CHECK": "maybe"})
    assert caught.value.where == "variable AORTA_LAUNCH_CHECK"
    assert build_settings({}, {"AORTA_LAUNCH_CHECK": "no"}).check is False


def test_words_on_the_command_line_replace_the_configs_script(tmp_path: Path) -> None:
    flags = config(tmp_path, "launch: {module: a.b, args: [x]}\n")
    kept = build_settings(flags, {})
    assert (kept.script, kept.module, kept.args) == (None, "a.b", ("x",))
    given = build_settings(flags, {}, ("t.py", "-m", "", "--"))
    assert (given.script, given.module, given.args) == ("t.py", None, ("-m", "", "--"))
    module = build_settings(flags, {}, ("-m", "c.d", "--flag", "a b"))
    assert (module.script, module.module, module.args) == (None, "c.d", ("--flag", "a b"))
    with pytest.raises(UsageError, match="name of a module"):
        build_settings({}, {}, ("-m",))


def test_nothing_to_run_is_an_error(tmp_path: Path) -> None:
    for flags in ({}, config(tmp_path, "training: {}\n")):
        with pytest.raises(UsageError, match="nothing to run"):
            require_script(build_settings(flags, {}))
    with pytest.raises(ConfigError, match="both given"):
        build_settings(config(tmp_path, "launch:\n  script: a.py\n  module: b\n"), {})


def test_names_split_at_commas_outside_brackets() -> None:
    assert build_settings({"include": ["n[1,3],a", "b"]}, {}).include == ("n[1,3]", "a", "b")


def test_origins_show_values_but_no_secrets() -> None:
    text = render_origins(build_settings({"flag_env": ["TOKEN=hunter2"], "fanout": "3"}, {}, ("a.py",)))
    assert "fanout = 3  (flag --fanout)" in text
    assert "TOKEN" in text
    assert "hunter2" not in text
    assert "grace_s" not in text


def test_the_example_names_every_key_with_its_default_and_what_it_does() -> None:
    path = ROOT / "config" / "launch.example.yaml"
    lines = path.read_text().splitlines()
    settings, plain = build_settings({"config": path}, {}), build_settings({}, {})
    assert flatten(yaml.safe_load(path.read_text())["launch"]) == [config_name(key) for key in config_keys()]
    about: dict[str, Any] = {one.name: getattr(one.type, "__metadata__", None) for one in fields(Settings)}
    for key in config_keys():
        assert getattr(settings, key) == getattr(plain, key), key
        section, _, name = config_name(key).rpartition(".")
        start = lines.index(f"  {section}:") if section else 0
        indent = "    " if section else "  "
        at = next(n for n, line in enumerate(lines) if n >= start and line.startswith(f"{indent}{name}:"))
        assert lines[at - 1] == f"{indent}# {about[key][1]}"


def flatten(section: dict[str, Any]) -> list[str]:
    inner = {key: value for key, value in section.items() if key in SECTIONS}
    return [name for key in section for name in ([f"{key}.{one}" for one in inner[key]] if key in inner else [key])]


def test_a_section_of_its_own_is_as_strict_and_can_be_set(tmp_path: Path) -> None:
    flags = config(tmp_path, "launch:\n  hang:\n    after_s: 5m\n    action: off\n")
    settings = build_settings(flags, {})
    assert (settings.hang_after_s, settings.hang_grace_s, settings.hang_action) == (300.0, 900.0, "off")
    assert settings.origins["hang_action"] == f"config {tmp_path}/c.yaml:4"
    told = build_settings({**flags, "set": ["launch.hang.after_s=5", "launch.rank_hook=yes"]}, {})
    assert (told.hang_after_s, told.rank_hook) == (5.0, True)
    assert told.origins["hang_after_s"] == "flag --set launch.hang.after_s=5"
    again = build_settings({**flags, "hang_action": "stop"}, {"AORTA_LAUNCH_HANG_AFTER_S": "20s"})
    assert (again.hang_after_s, again.hang_action) == (20.0, "stop")
    assert build_settings(config(tmp_path, "launch:\n  hang:\n"), {}).hang_after_s == 600.0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("  after: 5", "unknown key launch.hang.after, did you mean hang.after_s?"),
        ("  action: kill", "launch.hang.action: expected warn, stop or off, not 'kill'"),
        ("  after_s: 0", "launch.hang.after_s: expected a duration above 0"),
    ],
)
def test_a_wrong_key_of_a_section_is_named_with_its_line(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_settings(config(tmp_path, f"launch:\n  hang:\n  {line}\n"), {})
    assert caught.value.where == f"{tmp_path}/c.yaml:3"
    assert words in caught.value.what


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("hang: 5m", "launch.hang: expected a mapping of settings"),
        ("hang_after_s: 5", "unknown key launch.hang_after_s, did you mean hang.after_s?"),
    ],
)
def test_a_section_is_written_in_one_way(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_settings(config(tmp_path, f"launch:\n  {line}\n"), {})
    assert caught.value.where == f"{tmp_path}/c.yaml:2"
    assert words in caught.value.what


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_every_config_loads(path: Path) -> None:
    build_settings({"config": path}, {})


def test_the_two_node_example_runs_a_script_that_is_there() -> None:
    settings = build_settings({"config": ROOT / "config" / "two_nodes.yaml"}, {})
    assert (ROOT / (settings.script or "")).is_file()
    assert settings.args == ("--config", "{config}")
