"""What torch says about CUDA devices, behind an interface that tests can stand in for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class FrameworkDevice:
    """One CUDA device in torch's numbering. uuid: None where torch does not tell it. integrated: shares host memory."""

    index: int
    name: str
    uuid: str | None
    total_bytes: int
    integrated: bool
    capability: tuple[int, int]
    l2_bytes: int | None


class Framework(Protocol):
    """The part of torch that device detection asks."""

    def count(self) -> int: ...

    def device(self, index: int) -> FrameworkDevice: ...

    def memory(self, index: int) -> tuple[int, int] | None:
        """Free and total bytes, or ``None`` where the query fails."""
        ...

    def missing_cuda(self) -> str:
        """Why there is no CUDA device, in words for the user."""
        ...


class TorchFramework:
    """torch, imported when first asked."""

    def count(self) -> int:
        import torch

        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def device(self, index: int) -> FrameworkDevice:
        import torch

        properties: Any = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        return FrameworkDevice(
            index=index,
            name=str(properties.name),
            uuid=str(uuid) if uuid is not None else None,
            total_bytes=int(properties.total_memory),
            integrated=bool(getattr(properties, "is_integrated", False)),
            capability=(int(properties.major), int(properties.minor)),
            l2_bytes=getattr(properties, "L2_cache_size", None),
        )

    def memory(self, index: int) -> tuple[int, int] | None:
        import torch

        try:
            free, total = torch.cuda.mem_get_info(index)
        except RuntimeError:
            return None
        return int(free), int(total)

    def missing_cuda(self) -> str:
        import torch

        if torch.version.cuda is None:
            return f"this torch ({torch.__version__}) is built without CUDA; install a CUDA build of it"
        return f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no usable card; see inferdoc doctor"
