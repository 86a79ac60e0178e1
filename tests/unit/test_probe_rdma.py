"""What the node side reads of InfiniBand and RoCE under /sys."""

from __future__ import annotations

from pathlib import Path

from orchestrator.node import probe_rdma


def put_port(root: Path, device: str, number: int, **files: str) -> Path:
    port = root / device / "ports" / str(number)
    port.mkdir(parents=True)
    for name, text in files.items():
        (port / name).write_text(text + "\n")
    return port


def test_infiniband_ports_in_their_order(tmp_path: Path) -> None:
    up = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)"}
    for name in ("mlx5_10", "mlx5_9"):
        put_port(tmp_path, name, 1, **up)
    down = {"state": "1: DOWN", "phys_state": "3: Disabled", "link_layer": "InfiniBand", "rate": "10 Gb/sec (4X SDR)"}
    put_port(tmp_path, "mlx5_11", 1, **down)
    (tmp_path / "mlx5_9" / "fw_ver").write_text("28.39.1002\n")
    ports = probe_rdma.read_ports(str(tmp_path))
    assert [port["device"] for port in ports] == ["mlx5_9", "mlx5_10", "mlx5_11"]
    assert (ports[0]["state"], ports[0]["physical"], ports[0]["rate_gbits"]) == ("ACTIVE", "LinkUp", 400)
    assert (ports[0]["firmware"], ports[0]["gids"]) == ("28.39.1002", [])
    assert (ports[2]["state"], ports[2]["physical"], ports[2]["rate_gbits"]) == ("DOWN", "Disabled", 10)


def test_addresses_of_a_roce_port(tmp_path: Path) -> None:
    port = put_port(tmp_path, "rocep1s0", 1, state="4: ACTIVE", link_layer="Ethernet", rate="100 Gb/sec (4X EDR)")
    (tmp_path / "rocep1s0" / "device" / "net" / "ens1np0").mkdir(parents=True)
    (port / "gids").mkdir()
    (port / "gid_attrs" / "types").mkdir(parents=True)
    for index, (gid, kind) in enumerate(
        [
            ("fe80:0000:0000:0000:0a00:27ff:fe00:0001", "IB/RoCE v1"),
            ("fe80:0000:0000:0000:0a00:27ff:fe00:0001", "RoCE v2"),
            ("0000:0000:0000:0000:0000:0000:0000:0000", ""),
            ("0000:0000:0000:0000:0000:ffff:c0a8:0102", "RoCE v2"),
        ]
    ):
        (port / "gids" / str(index)).write_text(gid + "\n")
        (port / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")
    (read,) = probe_rdma.read_ports(str(tmp_path))
    assert read["interface"] == "ens1np0"
    assert [(gid["index"], gid["kind"], gid["ipv4"]) for gid in read["gids"]] == [
        (0, "IB/RoCE v1", False),
        (1, "RoCE v2", False),
        (3, "RoCE v2", True),
    ]


def test_a_machine_without_rdma_has_no_port(tmp_path: Path) -> None:
    assert probe_rdma.read_ports(str(tmp_path / "none")) == []
    assert probe_rdma.parse_rate("2.5 Gb/sec (1X SDR)") == 2.5
    assert probe_rdma.parse_rate("") is None
