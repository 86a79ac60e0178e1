"""What every interpreter is asked that may be the run's.

It goes over stdin, so that no file of the working directory can stand in for a module; it speaks the Python of 2016. Of
the standard library it takes what every Python loads at its start: json and re would cost half as much again.
"""

from __future__ import annotations

MARK = "AORTA-PYTHON="
QUESTION = r"""
import sys
sys.path.pop(0)
import os
words = WORDS
try:
    from _frozen_importlib import _find_spec
    from _frozen_importlib_external import cache_from_source
except ImportError:
    _find_spec = None
    from importlib.util import cache_from_source
try:
    from _json import encode_basestring_ascii as quote
except ImportError:
    from json import dumps as quote
facts = {"version": ".".join(map(str, sys.version_info[:3])), "executable": sys.executable, "prefix": sys.prefix}
packages = facts["packages"] = {}
places = facts["torch_places"] = []
for folder in sys.path:
    try:
        names = os.listdir(folder)
    except OSError:
        continue
    torch_here = []
    for name in names:
        if not name.endswith(("dist-info", "egg-info")):
            continue
        # Name, version, and what may stand behind them.
        stem = name.rpartition(".")[0]
        dash = stem.find("-", 1)
        while dash > 0 and stem[dash + 1:dash + 2] in ("-", ""):
            dash = stem.find("-", dash + 1)
        if dash < 0 or name[len(stem):] not in (".dist-info", ".egg-info"):
            continue
        package = stem[:dash].lower().replace("_", "-").replace(".", "-")
        while "--" in package:
            package = package.replace("--", "-")
        version = stem[dash + 1:].partition("-")[0]
        packages.setdefault(package, version)
        if package == "torch":
            torch_here.append(version)
    if torch_here or os.path.isfile(os.path.join(folder, "torch", "version.py")):
        places.append([folder, sorted(torch_here), folder.startswith(sys.prefix + "/")])
def text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
def version_in(text):
    for line in text.split("\n"):
        head, equals, value = line.partition("=")
        value = value.lstrip(" ").replace('"', "'")
        if equals and head.rstrip(" ") == "__version__" and value[:1] == "'" and value.split("'")[1]:
            return value.split("'")[1]
    return ""
for place in places:
    place.append(version_in(text(os.path.join(place[0], "torch", "version.py"))))
def find(name):
    try:
        if _find_spec is not None and "." not in name and name not in sys.modules:
            return _find_spec(name, None)
        import importlib.util
        return importlib.util.find_spec(name)
    except Exception:
        return None
facts["modules"] = {name: find(name) is not None for name in words["modules"]}
if words["source"] is not None:
    try:
        compile(words["source"], words["script"], "exec", 0, True)
        facts["syntax"] = ""
    except SyntaxError as error:
        facts["syntax"] = "line %s: %s" % (error.lineno, error.msg) if error.lineno else str(error.msg)
    except (ValueError, MemoryError, RecursionError) as error:
        facts["syntax"] = str(error) or "it is nested too deeply"
    except Exception:
        pass
base = getattr(sys, "base_prefix", sys.prefix)
facts["environment"] = "conda" if os.path.isdir(os.path.join(sys.prefix, "conda-meta")) else (
    "venv" if sys.prefix != base else "system")
facts["managed"] = facts["environment"] == "system" and os.path.exists(
    os.path.join(os.path.dirname(os.__file__), "EXTERNALLY-MANAGED"))
spec = find("torch")
if spec is not None and spec.origin:
    folder = os.path.dirname(spec.origin)
    facts["torch_folder"] = folder
    facts["version_py"] = text(os.path.join(folder, "version.py"))
    run = text(os.path.join(folder, "distributed", "run.py"))
    facts["torchrun_flags"] = [flag for flag in ("--shutdown-timeout", "--signals-to-handle") if '"' + flag + '"' in run]
    cached = cache_from_source(spec.origin)
    facts["bytecode"] = os.path.exists(cached) or os.access(os.path.dirname(cached), os.W_OK) or (
        not os.path.exists(os.path.dirname(cached)) and os.access(folder, os.W_OK))
    facts["bytecode"] = facts["bytecode"] and (os.path.exists(cached) or not sys.dont_write_bytecode)
def tell(value):
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, dict):
        return "{" + ",".join(quote(name) + ":" + tell(value[name]) for name in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(tell, value)) + "]"
    return {True: "true", False: "false", None: "null"}[value]
sys.stdout.write("\nAORTA-PYTHON=" + tell(facts) + "\n")
sys.stdout.flush()
os._exit(0)
"""
