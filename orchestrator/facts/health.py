"""How well the GPUs are, as the driver and the kernel tell it."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class PciDevice(FactGroup):
    """A GPU as the bus shows it, whether or not the driver does."""

    address: str = ""
    vendor: str = ""
    driver: str = ""
    """The kernel module that holds it; vfio-pci has given it to a virtual machine."""
    display: bool = False
    """It can show pictures: such a one of AMD may be the processor's own."""
    gone: bool = False
    """It answers every read with ones."""
    ours: bool = True
    """False: a container or a batch system hides it from this session."""


class DeviceNode(FactGroup):
    """A file of /dev that programs need to reach a GPU."""

    path: str = ""
    group: str = ""
    usable: bool = True


class KernelEvent(FactGroup):
    """Trouble of a GPU in the kernel log since boot; equal ones are one, with the age of the last."""

    kind: str = ""
    """xid, sxid, init failed, mismatch, or amdgpu and what happened."""
    code: int | None = None
    pci: str = ""
    text: str = ""
    count: int = 1
    age_s: float = 0.0


class GpuHealth(FactGroup):
    """What the driver tells of one GPU; None and empty: it does not tell."""

    index: int = 0
    uuid: str = ""
    model: str = ""
    architecture: str = ""
    pci: str = ""
    vbios: str = ""
    persistence: bool | None = None
    compute_mode: str = ""
    mig: bool | None = None
    mig_slices: int = 0
    recovery: str = ""
    """What the driver wants done: Reset, Reboot, Drain and Reset."""
    fabric_state: str = ""
    fabric_status: str = ""
    pcie_width: int | None = None
    pcie_width_most: int | None = None
    throttle: tuple[str, ...] | None = None
    """Reasons for slow clocks that are active now."""
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    ecc: bool | None = None
    ecc_uncorrected: int | None = None
    """Since the driver was loaded."""
    ecc_uncorrected_ever: int | None = None
    rows_failed: bool | None = None
    rows_pending: bool | None = None
    rows_uncorrected: int | None = None
    links_up: int | None = None
    links_down: int | None = None


class HealthFacts(FactGroup):
    """How well the GPUs are, as the driver and the kernel tell it."""

    pci: tuple[PciDevice, ...] | None = None
    switches: int = 0
    """NVSwitches on the bus."""
    fabric_manager: bool | None = None
    module_version: str = ""
    """NVIDIA's kernel module that is loaded."""
    module_open: bool | None = None
    library_version: str = ""
    """The driver's library that programs would load."""
    compat: bool = False
    """A library is there that lets an old driver run newer CUDA, on some models."""
    maker: bool = False
    """nvidia-modprobe is there and makes missing device nodes."""
    amdgpu: bool | None = None
    kfd_gpus: int | None = None
    """GPUs that AMD's driver offers for computing."""
    devices: tuple[DeviceNode, ...] | None = None
    gpus: tuple[GpuHealth, ...] = ()
    events: tuple[KernelEvent, ...] | None = None
