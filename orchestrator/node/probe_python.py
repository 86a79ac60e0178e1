"""Finds the interpreter of the run, and what torch it has, without importing torch."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import threading
from typing import Any, Dict, List, NamedTuple

from orchestrator.node.probe_command import NoAnswerError, ask
from orchestrator.node.probe_script import imports_of, source_of, workdir_of

Facts = Dict[str, Any]
SHELL_LIMIT_S = 5.0
QUESTION_LIMIT_S = 10.0
MARK = "AORTA-PYTHON="
# It goes over stdin, so that no file of the working directory can stand in for a module; it speaks the Python of 2016.
QUESTION = r"""
import sys
sys.path.pop(0)
import json, os, re
words = json.loads(WORDS)
facts = {"version": ".".join(map(str, sys.version_info[:3])), "executable": sys.executable, "prefix": sys.prefix}
facts["packages"], facts["torch_places"] = {}, []
for folder in sys.path:
    try:
        names = os.listdir(folder)
    except OSError:
        continue
    torch_here = []
    for name in names:
        match = re.match(r"(.+?)-([^-]+)(-.*)?\.(dist|egg)-info$", name)
        if match:
            package = re.sub("[-_.]+", "-", match.group(1)).lower()
            facts["packages"].setdefault(package, match.group(2))
            if package == "torch":
                torch_here.append(match.group(2))
    if torch_here or os.path.isfile(os.path.join(folder, "torch", "version.py")):
        facts["torch_places"].append([folder, sorted(torch_here), folder.startswith(sys.prefix + "/")])
def text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
for place in facts["torch_places"]:
    found = re.search("(?m)^__version__ *= *['\"]([^'\"]+)", text(os.path.join(place[0], "torch", "version.py")))
    place.append(found.group(1) if found else "")
import importlib.util
def find(name):
    try:
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
    cached = importlib.util.cache_from_source(spec.origin)
    facts["bytecode"] = os.path.exists(cached) or os.access(os.path.dirname(cached), os.W_OK) or (
        not os.path.exists(os.path.dirname(cached)) and os.access(folder, os.W_OK))
    facts["bytecode"] = facts["bytecode"] and (os.path.exists(cached) or not sys.dont_write_bytecode)
sys.stdout.write("\nAORTA-PYTHON=" + json.dumps(facts) + "\n")
"""
VENVS = (".venv", "venv", "env")
CONDA_ROOTS = (
    "~/miniconda3",
    "~/anaconda3",
    "~/miniforge3",
    "~/mambaforge",
    "~/micromamba",
    "~/.local/share/mamba",
    "~/.conda",
    "/opt/conda",
    "/opt/miniconda3",
    "/opt/anaconda3",
    "/opt/miniforge3",
)
COMMON = ("/opt/conda/bin/python3", "/opt/venv/bin/python3", "/usr/local/bin/python3", "/usr/bin/python3")


class Question(NamedTuple):
    """What every interpreter is asked, and in which environment."""

    text: str
    env: Dict[str, str]


class Candidate(NamedTuple):
    """An interpreter that may be the run's, and who proposed it."""

    path: str
    origin: str


def probe_python(request: Facts) -> Facts:
    """Choose the interpreter: a named one counts alone; else the first that has torch, else the first there is."""
    workdir = workdir_of(request)
    question = build_question(request, workdir)
    named = named_candidate(request, workdir)
    if named is not None:
        return _facts_of(named, *_answers([named], question))
    near = [
        Candidate(path, "virtual environment of the working directory")
        for path in (os.path.join(workdir, name, "bin", "python") for name in VENVS)
        if os.path.exists(path)
    ]
    of_path = shutil.which("python3")
    further = [Candidate(of_path, "python3 of the PATH")] if of_path else []
    tried: List[Candidate] = []
    answers: List[Facts] = []
    for stage in (near, None, [Candidate(path, f"found at {path}") for path in COMMON if os.path.exists(path)]):
        # A login shell can be slow: it is asked only when no environment of the project has torch.
        candidates = _login_shell_python() + further if stage is None else stage
        fresh = [one for one in candidates if one.path not in [old.path for old in tried]]
        tried += fresh
        answers += _answers(fresh, question)
        for candidate, answer in zip(tried, answers):
            if answer.get("torch_folder"):
                return _facts_of(candidate, answer)
    for candidate, answer in zip(tried, answers):
        if "version" in answer:
            return _facts_of(candidate, answer)
    return {"python": "", "python_origin": "", "python_trouble": "no python3 was found"}


def build_question(request: Facts, workdir: str) -> Question:
    """Build the question: in the run's own environment, as far as it decides where Python looks for modules."""
    env = dict(os.environ)
    given = request.get("given_values") or {}
    env.update({name: given[name] for name in ("PYTHONPATH", "PYTHONNOUSERSITE") if name in given})
    if env.get("PYTHONPATH"):
        # The run starts in the working directory, the question does not.
        folders = [folder for folder in env["PYTHONPATH"].split(os.pathsep) if folder]
        env["PYTHONPATH"] = os.pathsep.join(os.path.join(workdir, folder) for folder in folders)
    imports = imports_of(request, workdir)
    words = {"modules": imports["needed"], "source": source_of(request, workdir), "script": request.get("script", "")}
    return Question(QUESTION.replace("WORDS", repr(json.dumps(words)), 1), env)


def named_candidate(request: Facts, workdir: str) -> "Candidate | None":
    """Give the interpreter that the user named; there is no falling through to another one."""
    for key, origin in (("python", "node list python="), ("launch_python", "launch.python")):
        if request.get(key):
            return Candidate(named_path(str(request[key]), workdir), origin)
    if request.get("conda_env"):
        name = str(request["conda_env"])
        return Candidate(_conda_python(name), f"conda environment {name}")
    return None


def named_path(words: str, workdir: str) -> str:
    """Make a named interpreter absolute: a bare name by the PATH, a relative one by the working directory."""
    path = os.path.expanduser(words)
    if "/" not in path:
        return shutil.which(path) or path
    return os.path.normpath(os.path.join(workdir, path))


def _conda_python(name: str) -> str:
    if "/" in name:
        return os.path.join(os.path.expanduser(name), "bin", "python")
    roots = [os.path.dirname(os.path.dirname(os.environ["CONDA_EXE"]))] if os.environ.get("CONDA_EXE") else []
    roots += [os.environ[key] for key in ("CONDA_ROOT", "MAMBA_ROOT_PREFIX") if os.environ.get(key)]
    roots += [os.path.expanduser(root) for root in CONDA_ROOTS]
    places = [root if name == "base" else os.path.join(root, "envs", name) for root in roots]
    try:
        # Conda notes every environment that it ever made for this user here.
        with open(os.path.expanduser("~/.conda/environments.txt"), encoding="utf-8") as file:
            places += [line.strip() for line in file if os.path.basename(line.strip()) == name]
    except OSError:
        pass
    paths = [os.path.join(place, "bin", "python") for place in places]
    return next((path for path in paths if os.path.exists(path)), f"conda environment {name}")


def _login_shell_python() -> List[Candidate]:
    shell = os.environ.get("SHELL") or pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    # The interpreter tells where it is: the name may be an alias, a function or a shim.
    line = f"python3 -I -S -c 'import sys; print(); print(\"{MARK}\" + sys.executable)'"
    try:
        out = ask([shell, "-lc", line], SHELL_LIMIT_S, cwd=os.path.expanduser("~"))
    except (NoAnswerError, OSError):
        return []
    paths = [text[len(MARK) :].strip() for text in out.splitlines() if text.startswith(MARK)]
    return [Candidate(path, f"python3 of the login shell {shell}") for path in paths[-1:] if path]


def _answers(candidates: List[Candidate], question: Question) -> List[Facts]:
    """Ask all of them at the same time."""
    answers: List[Facts] = [{} for _ in candidates]

    def put(place: int) -> None:
        answers[place] = ask_python(candidates[place].path, question)

    threads = [threading.Thread(target=put, args=(place,), daemon=True) for place in range(len(candidates))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def ask_python(path: str, question: Question) -> Facts:
    """Ask an interpreter for its version, its packages and its torch; the trouble where it does not answer."""
    try:
        out = ask([path, "-"], QUESTION_LIMIT_S, question.text, env=question.env)
    except NoAnswerError as error:
        return {"trouble": str(error)}
    lines = [line for line in out.splitlines() if line.startswith(MARK)]
    if not lines:
        return {"trouble": "it is no Python 3"}
    answer: Facts = json.loads(lines[-1][len(MARK) :])
    return answer


def _facts_of(candidate: Candidate, answer: Facts) -> Facts:
    if "version" not in answer:
        trouble = f"{candidate.path}: {answer.get('trouble', 'no answer')}"
        return {"python": "", "python_origin": candidate.origin, "python_trouble": trouble}
    packages = answer.get("packages", {})
    return {
        "python": candidate.path,
        "python_origin": candidate.origin,
        "python_version": answer["version"],
        "python_prefix": answer.get("prefix", ""),
        "torch_folder": answer.get("torch_folder", ""),
        "torch_metadata": packages.get("torch"),
        "torch_version_py": answer.get("version_py", ""),
        "numpy_version": packages.get("numpy"),
        "nccl_metadata": next((packages[name] for name in sorted(packages) if name.startswith("nvidia-nccl")), None),
        "torchrun_flags": answer.get("torchrun_flags", []),
        "torch_bytecode": answer.get("bytecode"),
        "project": {
            "packages": packages,
            "modules": answer.get("modules"),
            "syntax": answer.get("syntax"),
            "environment": answer.get("environment", ""),
            "managed": answer.get("managed"),
            "torch_places": [
                {"folder": folder, "metadata": metadata, "own": own, "version": version}
                for folder, metadata, own, version in answer.get("torch_places", [])
            ],
        },
    }
