"""The files that make a node and the launch host's HOME: text in, no process but ssh-keygen."""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import shutil
import sys
import uuid
from pathlib import Path

from . import real_gpus
from .programs import find_program, run
from .spec import Spec

HERE = Path(__file__).parent
DRIVER = "570.00"


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file that has its mode from the start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode)
    path.write_text(text)
    path.chmod(mode)


def write_launch_host(spec: Spec) -> None:
    """Make the launch host's HOME with its key, and what sshd reads."""
    spec.identity.parent.mkdir(parents=True)
    spec.launch_home.chmod(0o700)
    spec.identity.parent.chmod(0o700)
    make_key(spec.identity, "launch-host")
    write(spec.root / "auth" / "authorized_keys", spec.identity.with_suffix(".pub").read_text())
    write(spec.root / "etc_hosts", hosts_text(spec))


def make_key(path: Path, comment: str) -> None:
    """Make an ed25519 key without passphrase."""
    run([find_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])


def hosts_text(spec: Spec) -> str:
    """An /etc/hosts that names the launch host and every node."""
    lines = ["127.0.0.1 localhost", f"{spec.launch_address} launch-host"]
    lines += [f"{spec.address(k)} {spec.name(k)}" for k in spec.numbers]
    return "\n".join(lines) + "\n"


def write_node(spec: Spec, k: int) -> None:
    """Make everything of one node that does not need it to run."""
    folder = spec.folder(k)
    for path in (folder / "tmp", folder / "bin", folder / "etc"):
        path.mkdir(parents=True)
    (folder / "tmp").chmod(0o1777)
    spec.home_folder(k).mkdir(parents=True, exist_ok=True)
    spec.home_folder(k).chmod(0o700)
    make_key(folder / "ssh_host_ed25519_key", spec.name(k))
    write(folder / "sshd_config", sshd_text(spec, k))
    if spec.gpus:
        script = (HERE / "nvidia_smi.sh").read_text().replace("@FOLDER@", shlex.quote(str(folder)))
        write(folder / "bin" / "nvidia-smi", script, 0o755)
        write(folder / "gpus.csv", gpus_text(spec, k))
    own = dict(spec.shares).get(k)
    if own is not None:
        write(folder / "bin" / "nvidia-smi", real_gpus.smi_text(real_gpus.find_smi(), own), 0o755)
    if spec.namespaces:
        write_identity(spec, k)
        write(folder / "mounts", mounts_text(spec, k))


def gpus_text(spec: Spec, k: int) -> str:
    """The table of the stand-in nvidia-smi."""
    return "".join(
        f"{g},{spec.gpu_model},GPU-{k:08x}-0000-0000-0000-{g:012x},81559,4,0,{30 + g},{DRIVER}\n"
        for g in range(spec.gpus)
    )


def write_identity(spec: Spec, k: int) -> None:
    """What tells one machine from another, and its network."""
    folder = spec.folder(k)
    # A cloned disk would give all nodes one id; these differ from each other and from run to run.
    token = hashlib.sha256(f"{spec.state} {k} {secrets.token_hex(8)}".encode()).hexdigest()[:32]
    write(folder / "etc" / "machine-id", token + "\n", 0o444)
    write(folder / "boot_id", f"{uuid.uuid4()}\n", 0o444)
    write(folder / "etc" / "hostname", spec.name(k) + "\n")
    write(folder / "etc" / "hosts", hosts_text(spec))
    # No name server is reachable from a node; asking one would cost ten seconds a name.
    write(folder / "etc" / "nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
    write(folder / "etc" / "passwd", passwd_text())
    write(
        folder / "etc" / "shadow", "root:*:19000:0:99999:7:::\nsshd:!:19000::::::\ntrain:*:19000:0:99999:7:::\n", 0o600
    )
    write(folder / "etc" / "group", Path("/etc/group").read_text() + "train:x:2000:\n")
    address = spec.address(k)
    write(
        folder / "net.batch",
        f"link set lo up\naddr add {address}/16 dev eth0\nlink set eth0 up\nroute add default via {spec.launch_address}\n",
    )


def passwd_text() -> str:
    """This machine's users, root with bash, and a plain one that nodes alone have."""
    lines = []
    for line in Path("/etc/passwd").read_text().splitlines():
        fields = line.split(":")
        if fields[0] == "root":
            fields[6] = "/bin/bash"
        if fields[0] != "train":
            lines.append(":".join(fields))
    return "\n".join([*lines, "train:x:2000:2000::/home/train:/bin/bash"]) + "\n"


def mounts_text(spec: Spec, k: int) -> str:
    """What the node sees where, in the order in which it is mounted."""
    state, lines = spec.root, []
    lines.append(("bind", spec.home_folder(k), Path(spec.home)))
    lines.append(("hide", Path("-"), Path(spec.project)))
    lines += [("hide", Path("-"), path) for path in real_gpus.hidden_cards(spec, k)]
    if spec.prefix != spec.base_prefix:
        lines.append(("bind", Path(spec.prefix), state / "venv"))
    lines += [("bind", state / part, state / part) for part in ("fake", "auth", spec.folder(k).name)]
    base = Path(spec.base_prefix)
    if any(base.is_relative_to(hidden) for hidden in (spec.project, spec.home, "/tmp", "/home")):
        lines.append(("bind", base, base))
    for number, (path, nodes) in enumerate(spec.shared):
        source = Path(path) if 0 in nodes else state / "shared" / str(number)
        source.mkdir(parents=True, exist_ok=True)
        if k in nodes:
            lines.append(("bind", source, Path(path)))
    return "".join(f"{verb}\t{source}\t{target}\n" for verb, source, target in lines)


def sshd_text(spec: Spec, k: int) -> str:
    """The configuration of one node's sshd; the first value of an option wins, so the caller's come first."""
    folder = spec.folder(k)
    path = f"{folder}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    lines = [*spec.sshd_options, f"Port {spec.ssh_port}", f"HostKey {folder}/ssh_host_ed25519_key"]
    lines += [f"AuthorizedKeysFile {spec.root}/auth/authorized_keys", f"PidFile {folder}/sshd.pid"]
    lines += [
        "UsePAM no",
        "UseDNS no",
        "StrictModes no",
        "PermitRootLogin prohibit-password",
        "PrintMotd no",
        "PrintLastLog no",
    ]
    lines += ["PasswordAuthentication no", "KbdInteractiveAuthentication no", "MaxStartups 100", "AcceptEnv LANG LC_*"]
    lines += ["Subsystem sftp internal-sftp"]
    if spec.namespaces:
        lines += [" ".join([f"SetEnv PATH={path}", *real_gpus.session_words(spec, k)])]
    else:
        # The login chdirs to the user's real HOME before SetEnv counts, so the command goes to the node's own first.
        lines += [f"ListenAddress {spec.address(k)}", f"SetEnv PATH={path} HOME={spec.home_on_node(k)}"]
        lines += ['ForceCommand cd "$HOME" && exec "$SHELL" -c "${SSH_ORIGINAL_COMMAND:-exec \\"$SHELL\\" -l}"']
    return "\n".join(lines) + "\n"


def write_known_hosts(spec: Spec) -> None:
    """Tell the launch host every node's key, by address and by name."""
    lines = []
    for k in spec.numbers:
        key = " ".join((spec.folder(k) / "ssh_host_ed25519_key.pub").read_text().split()[:2])
        places = [spec.address(k), spec.name(k)]
        if spec.ssh_port != 22:
            places = [f"[{place}]:{spec.ssh_port}" for place in places]
        lines.append(f"{','.join(places)} {key}")
    write(spec.known_hosts, "\n".join(lines) + "\n", 0o600)


def write_fake_python(spec: Spec) -> None:
    """Make an environment whose torch is nothing but the stand-in for torchrun."""
    base = Path(os.path.realpath(sys.executable))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    root = spec.root / "fake"
    site = root / "lib" / f"python{version}" / "site-packages"
    (root / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (root / "bin" / name).symlink_to(base)
    write(root / "pyvenv.cfg", f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {version}\n")
    source = HERE.parent / "fake_torch"
    shutil.copytree(source, site / "torch" / "distributed", ignore=shutil.ignore_patterns("__pycache__"))
    number = "2.13.0"
    write(site / "torch" / "version.py", f'__version__ = "{number}"\ndebug = False\ncuda = None\nhip = None\n')
    write(site / "torch" / "__init__.py", "from torch.version import __version__\n")
    metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {number}\n"
    write(site / f"torch-{number}.dist-info" / "METADATA", metadata)
