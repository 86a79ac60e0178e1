"""Finds the interpreter of the run, and what torch it has, without importing torch."""

from __future__ import annotations

import os
import pwd

from orchestrator.node.atonce import do_at_once
from orchestrator.node.fastjson import loads
from orchestrator.node.probe_command import NoAnswerError, ask, find_program
from orchestrator.node.probe_question import MARK, QUESTION
from orchestrator.node.probe_script import imports_of, source_of, workdir_of
from orchestrator.node.record import record

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, NamedTuple

    Facts = Dict[str, Any]

    class Question(NamedTuple):
        """What every interpreter is asked, and in which environment."""

        text: str
        env: Dict[str, str]

    class Candidate(NamedTuple):
        """An interpreter that may be the run's, and who proposed it."""

        path: str
        origin: str

else:
    Question = record("Question", "text", "env")
    Candidate = record("Candidate", "path", "origin")

SHELL_LIMIT_S = 5.0
QUESTION_LIMIT_S = 10.0
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
    of_path = find_program("python3")
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
    return Question(QUESTION.replace("WORDS", ascii(words), 1), env)


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
        return find_program(path) or path
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

    def putter(place: int) -> Callable[[], None]:
        return lambda: put(place)

    do_at_once([putter(place) for place in range(len(candidates))])
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
    answer: Facts = loads(lines[-1][len(MARK) :])
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
