"""InfiniBand and RoCE ports of a node, read from /sys, and what GPUDirect needs beside them."""

from __future__ import annotations

import os

from orchestrator.node.probe_command import list_names, read_text

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    Facts = Dict[str, Any]

ROOT = "/sys/class/infiniband"
PEER_MODULES = ("nvidia_peermem", "nv_peer_mem", "ib_peer_mem")
MOST_GIDS = 16


def probe_rdma(request: Facts) -> Facts:
    """List the RDMA ports."""
    del request
    ports = read_ports(ROOT)
    if not ports:
        return {"rdma": {"ports": []}}
    return {
        "rdma": {
            "ports": ports,
            "peer_modules": [name for name in PEER_MODULES if os.path.isdir(f"/sys/module/{name}")],
            "verbs": _usable_verbs(),
        }
    }


def read_ports(root: str) -> List[Facts]:
    """Read every port of every RDMA device."""
    found: List[Facts] = []
    tops = [f"{root}/{name}/ports" for name in list_names(root)]
    for path in sorted((f"{top}/{name}" for top in tops for name in list_names(top)), key=_in_order):
        device, port = path.split("/")[-3], path.split("/")[-1]
        if not port.isdigit():
            continue
        top = f"{root}/{device}"
        found.append(
            {
                "device": device,
                "port": int(port),
                "state": _word(read_text(f"{path}/state")),
                "physical": _word(read_text(f"{path}/phys_state")),
                "link_layer": read_text(f"{path}/link_layer"),
                "rate_gbits": parse_rate(read_text(f"{path}/rate")),
                "firmware": read_text(f"{top}/fw_ver"),
                "interface": next(iter(sorted(list_names(f"{top}/device/net"))), ""),
                "gids": read_gids(path),
            }
        )
    return found


def _in_order(path: str) -> List[Any]:
    import re  # noqa: PLC0415 - dear, and few nodes have such ports

    # mlx5_10 comes behind mlx5_9.
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]


def _word(text: str) -> str:
    """Read "4: ACTIVE" or "5: LinkUp"."""
    return text.partition(":")[2].strip() or text


def parse_rate(text: str) -> Optional[float]:
    """Read "400 Gb/sec (4X NDR)"."""
    import re  # noqa: PLC0415 - as above

    match = re.match(r"\s*([\d.]+)\s*Gb/sec", text)
    return float(match.group(1)) if match else None


def read_gids(port: str) -> List[Facts]:
    """Read the addresses of a port that speaks RoCE version 2 over IPv4, which NCCL picks by index."""
    if read_text(f"{port}/link_layer") != "Ethernet":
        return []
    found = []
    for index in range(MOST_GIDS):
        gid = read_text(f"{port}/gids/{index}")
        if gid and gid.strip("0:"):
            kind = read_text(f"{port}/gid_attrs/types/{index}")
            found.append({"index": index, "kind": kind, "ipv4": gid.startswith("0000:0000:0000:0000:0000:ffff:")})
    return found


def _usable_verbs() -> Optional[bool]:
    """Tell whether this user may use the devices; None when there is no node of any."""
    paths = [f"/dev/infiniband/{name}" for name in list_names("/dev/infiniband", "uverbs")]
    return all(os.access(path, os.R_OK | os.W_OK) for path in paths) if paths else False
