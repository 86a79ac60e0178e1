"""What a run would meet in this session: its variables, proxies, trackers' logins, who we are, which system it is."""

from __future__ import annotations

import os

from orchestrator.node.globs import matches
from orchestrator.node.probe_command import read_text

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Sequence

    Facts = Dict[str, Any]

TEXT_LIMIT = 300
DIGITS = "0123456789"
WATCHED = (
    *("PYTHON*", "LD_PRELOAD", "LD_LIBRARY_PATH", "NCCL_*", "RCCL_*", "GLOO_*", "TORCH*", "PYTORCH*", "CUDA_*"),
    *(
        "CUBLAS_*",
        "CUDNN_*",
        "HIP_*",
        "HSA_*",
        "ROCR_*",
        "MIOPEN_*",
        "OMP_*",
        "MKL_*",
        "KMP_*",
        "TRITON_*",
        "HF_HUB_OFFLINE",
    ),
    *("XLA_*", "UCX_*", "PET_*", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_*", "ROLE_*"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
"""Variables that change what ranks do."""
OF_THE_NODE = ("*_SOCKET_IFNAME", "*VISIBLE_DEVICES*", "*_NET_DEVICES", "NCCL_IB_HCA", "*_GID_INDEX")
"""They name what this machine has, and may differ."""
SECRETS = ("*KEY*", "*TOKEN*", "*SECRET*", "*PASSW*", "*CREDENTIAL*")
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
WANDB_OFF = ("offline", "disabled", "dryrun")
KEYS: Mapping[str, Sequence[str]] = {
    "wandb": ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"),
    "comet_ml": ("COMET_API_KEY",),
    "neptune": ("NEPTUNE_API_TOKEN",),
    "huggingface_hub": ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
}
"""Variables that log in to a service, by the module that speaks to it."""
FILES: Mapping[str, Sequence[str]] = {
    "comet_ml": ("~/.comet.config",),
    "neptune": (),
    "huggingface_hub": ("~/.cache/huggingface/token", "~/.huggingface/token"),
}


def probe_project(request: Facts) -> Facts:
    """Gather what costs nothing: no process is started, nothing leaves this node that could be a secret."""
    given = [str(name) for name in request.get("given") or []]
    values = {str(name): str(value) for name, value in (request.get("given_values") or {}).items()}
    release = parse_release(read_text("/etc/os-release") or read_text("/usr/lib/os-release"))
    return {
        "project": {
            "given": given,
            "session": session_of(os.environ, given),
            "proxies": proxies_of(os.environ, given),
            "logins": logins_of({**os.environ, **values}, given),
            "uid": os.getuid(),
            "distribution": release,
            "glibc": parse_libc(_libc()),
        }
    }


def session_of(environ: Mapping[str, str], given: Sequence[str]) -> Dict[str, str]:
    """Give the session's variables that reach the ranks and change what they do; of secrets only the name."""
    found: Dict[str, str] = {}
    for name, value in environ.items():
        if name in given or not matches(name, WATCHED) or matches(name, OF_THE_NODE):
            continue
        hidden = matches(name.upper(), SECRETS) or "@" in value
        found[name] = "(hidden)" if hidden else value[:TEXT_LIMIT]
    return found


def proxies_of(environ: Mapping[str, str], given: Sequence[str]) -> Dict[str, str]:
    """Give the proxies of the session without their passwords, and what goes past them."""
    found: Dict[str, str] = {}
    for name in (*PROXIES, "no_proxy"):
        # Programs differ in which spelling they read; both mean the same thing.
        spelling = next((one for one in (name, name.upper()) if one in given or environ.get(one)), None)
        if spelling is None:
            continue
        value = "(given)" if spelling in given else environ[spelling]
        found[name] = value if name == "no_proxy" or spelling in given else without_password(value)
    return found


def without_password(url: str) -> str:
    """Keep scheme, host and port of a URL."""
    from urllib.parse import urlsplit  # noqa: PLC0415 - dear, and few sessions have a proxy

    try:
        parts = urlsplit(url if "//" in url else "//" + url)
        port = ":%d" % parts.port if parts.port else ""
    except ValueError:
        return "(not a URL)"
    return (parts.scheme + "://" if parts.scheme else "") + (parts.hostname or "") + port


def logins_of(environ: Mapping[str, str], given: Sequence[str]) -> Dict[str, str]:
    """Say by what this user is logged in to each service; those without a login are not there."""
    logins: Dict[str, str] = {}
    for module, names in KEYS.items():
        known = [name for name in names if name in given or environ.get(name)]
        files = [path for path in FILES.get(module, ()) if read_text(os.path.expanduser(path), 4096)]
        if known or files:
            logins[module] = (known or files)[0]
    mode = environ.get("WANDB_MODE", "").lower()
    if mode in WANDB_OFF:
        logins["wandb"] = "WANDB_MODE=" + mode
    elif "wandb" not in logins:
        login = _wandb_login(environ)
        if login:
            logins["wandb"] = login
    return logins


def _wandb_login(environ: Mapping[str, str]) -> str:
    host = _host_of(environ.get("WANDB_BASE_URL", "")) or "api.wandb.ai"
    for path in (environ.get("NETRC") or "~/.netrc", "~/_netrc"):
        if host in parse_netrc(read_text(os.path.expanduser(path))):
            return path
    settings = os.path.join(environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb", "settings")
    mode = parse_wandb_mode(read_text(os.path.expanduser(settings)))
    return "%s (%s)" % (settings, mode) if mode else ""


def _host_of(url: str) -> str:
    if not url:
        return ""
    from urllib.parse import urlsplit  # noqa: PLC0415 - dear, and few set it

    return urlsplit(url).hostname or ""


def parse_netrc(text: str) -> List[str]:
    """List the machines of a netrc file that have a password; nothing else of it is looked at."""
    if not text:
        return []
    import re  # noqa: PLC0415 - dear, and few have such a file

    machines: List[str] = []
    for part in re.split(r"(?:^|\s)machine\s+", text)[1:]:
        words = part.split()
        if words and "password" in words[1:]:
            machines.append(words[0])
    return machines


def parse_wandb_mode(text: str) -> str:
    """Find in the settings of wandb a mode in which it needs no login."""
    for line in text.splitlines():
        name, _, value = (word.strip().lower() for word in line.partition("="))
        if name == "mode" and value in WANDB_OFF:
            return value
        if name == "disabled" and value == "true":
            return "disabled"
    return ""


def parse_release(text: str) -> str:
    """Give distribution and version of /etc/os-release: "debian 12"; what is a point release of it is left out."""
    values = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        values[name.strip()] = value.strip().strip("\"'")
    return " ".join(part for part in (values.get("ID", ""), values.get("VERSION_ID", "")) if part)


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""


def parse_libc(text: str) -> str:
    """Give major and minor version of the C library."""
    name, _, version = text.partition(" ")
    major, _, rest = version.partition(".")
    minor = rest[: len(rest) - len(rest.lstrip(DIGITS))]
    return f"{major}.{minor}" if name == "glibc" and major.isdecimal() and minor else ""
