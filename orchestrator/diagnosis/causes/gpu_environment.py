"""What is said when a node's driver, or the builds for its GPUs, are not what the script needs."""

from __future__ import annotations

from orchestrator.diagnosis.cause import Cause
from orchestrator.diagnosis.causes.words import SAID

GPU_ENVIRONMENT = (
    Cause(
        id="env.nvml_mismatch",
        family="ENV",
        role="cause",
        priority=93,
        title="the NVIDIA driver was changed without a reboot",
        explanation="The loaded kernel module and the driver's libraries have different versions, as after an automatic upgrade.",
        remedy="Reboot that node; hold the driver's packages (`apt-mark hold`) against the next upgrade.",
        patterns=(
            r"Driver/library version mismatch|NVRM: API mismatch|Error 803: system has unsupported display driver",
        ),
        source="NVIDIA driver",
        section="driver-and-library-differ",
    ),
    Cause(
        id="env.driver_old",
        family="ENV",
        role="cause",
        priority=88,
        title="the NVIDIA driver is too old for this torch[ (found version {version})]",
        explanation="torch was built for a newer CUDA than the driver of this node can run.",
        remedy="Install a newer driver on that node, or a torch for an older CUDA on all.",
        patterns=(
            SAID + r"driver on your system is too old(?: \(found version (?P<version>\d+)\))?",
            SAID + r"(?:CUDA driver version is insufficient|Error 804: forward compatibility was attempted)",
        ),
        source="torch",
        section="driver-too-old",
    ),
    Cause(
        id="env.no_driver",
        family="ENV",
        role="cause",
        priority=87,
        title="the node has no working NVIDIA driver",
        explanation="No driver is installed, its kernel module is not loaded, or a kernel update left it behind.",
        remedy="Run `nvidia-smi` there; load the module (`sudo modprobe nvidia`) or install the driver again for the running kernel.",
        patterns=(
            SAID + r"(?:Found no NVIDIA driver on your system|libcuda\.so\.?\d*: cannot open shared object file)",
            r"^NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver|NVMLError\w{0,40}: (?:Driver Not Loaded|Uninitialized)",
        ),
        source="torch, nvidia-smi",
        section="no-working-driver",
    ),
    Cause(
        id="env.arch",
        family="ENV",
        role="cause",
        priority=88,
        title="a build holds no code for this node's GPU",
        explanation="torch, or a package with kernels, was built for other types of GPU than the one here.",
        remedy="Install a build for this type, or build with TORCH_CUDA_ARCH_LIST / PYTORCH_ROCM_ARCH set; look out for nodes with different GPUs.",
        patterns=(
            r"no kernel image is available for execution|HIP error: invalid device function|hipErrorNoBinaryForGpu|CUDA error: device kernel image is invalid|rocBLAS error: Cannot read \S{1,160}TensileLibrary|FlashAttention only supports (?:Ampere|AMD).{0,60}",
        ),
        source="torch, rocBLAS",
        section="build-without-code-for-this-gpu",
    ),
    Cause(
        id="env.cuda_init802",
        family="FABRIC",
        role="cause",
        priority=92,
        title="the NVSwitch fabric of the node is not ready",
        explanation="On machines with NVSwitch CUDA starts only when the fabric manager runs, in exactly the driver's version.",
        remedy="Run `sudo systemctl restart nvidia-fabricmanager` there; its version must equal the driver's.",
        patterns=(
            SAID + r"(?:CUDA error:? (?:system not yet initialized|802\b)|Error 802\b)",
            r"CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady",
        ),
        source="CUDA",
        section="fabric-manager",
    ),
    Cause(
        id="env.no_gpu",
        family="GPU_HW",
        role="cause",
        priority=80,
        title="no GPU can be used on this node",
        explanation="It is absent, hidden by CUDA_VISIBLE_DEVICES, taken by another process in exclusive mode, or failed.",
        remedy="Run `nvidia-smi -L` (AMD: `rocminfo`) there; look at CUDA_VISIBLE_DEVICES and at other processes on the GPUs (`aorta-launch check`).",
        patterns=(
            r"No (?:CUDA|HIP) GPUs are available|(?:CUDA|HIP)-capable device\(s\) is/are busy or unavailable|no (?:ROCm|CUDA)-capable device|hipErrorNoDevice|cudaErrorNoDevice|cudaErrorDevicesUnavailable",
        ),
        source="torch",
        section="no-usable-gpu",
    ),
    Cause(
        id="env.cuda_warning",
        family="ENV",
        role="hint",
        priority=61,
        title="CUDA cannot be used on this node: {what}",
        explanation="torch looked for GPUs and met an error; it goes on without them until the script needs one.",
        remedy="Run `nvidia-smi` there; the words of the warning say what is wrong (driver, fabric manager, a hidden GPU).",
        patterns=(r"UserWarning: (?:CUDA|HIP) initialization: (?P<what>.{1,120})|UserWarning: Can't initialize NVML",),
        source="torch",
        section="no-usable-gpu",
    ),
    Cause(
        id="env.ordinal",
        family="CONFIG",
        role="cause",
        priority=88,
        title="a rank wants a GPU that this node does not have",
        explanation="There are more ranks on the node than GPUs that they can see.",
        remedy="Set nproc_per_node to the number of GPUs (or gpu); choose the device by LOCAL_RANK, not RANK.",
        patterns=(
            r"invalid device ordinal|(?:device|local_rank).{0,60}(?:>=|exceeds).{0,60}device_count\(\)|local_rank .{0,60} exceeds|Invalid device id|cudaErrorInvalidDevice\b|hipErrorInvalidDevice\b",
        ),
        source="torch",
        section="no-gpu-for-this-rank",
    ),
)
