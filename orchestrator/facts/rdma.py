"""InfiniBand and RoCE ports, and what GPUDirect needs."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class RdmaGid(FactGroup):
    """One address of a RoCE port, which NCCL_IB_GID_INDEX names by its place."""

    index: int = 0
    kind: str = ""
    ipv4: bool = False


class RdmaPort(FactGroup):
    """One port of an RDMA device."""

    device: str = ""
    port: int = 1
    state: str = ""
    physical: str = ""
    link_layer: str = ""
    rate_gbits: float | None = None
    firmware: str = ""
    interface: str = ""
    gids: tuple[RdmaGid, ...] = ()

    @property
    def name(self) -> str:
        """As NCCL_IB_HCA names it."""
        return f"{self.device}:{self.port}"

    @property
    def active(self) -> bool:
        """It carries data."""
        return self.state == "ACTIVE"


class RdmaFacts(FactGroup):
    """InfiniBand and RoCE ports, and what GPUDirect needs."""

    ports: tuple[RdmaPort, ...] | None = None
    peer_modules: tuple[str, ...] = ()
    """Modules that let a network card reach the memory of a GPU."""
    verbs: bool | None = None
    """This user may use the devices in /dev/infiniband."""

    @property
    def active(self) -> tuple[RdmaPort, ...]:
        """The ports that carry data."""
        return tuple(port for port in self.ports or () if port.active)
