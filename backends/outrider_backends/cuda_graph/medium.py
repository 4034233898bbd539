"""`CudaGraphMedium`: work captured as CUDA graphs of one memory pool, on one stream."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from outrider._torch import GraphPool, new_stream
from outrider.errors import CaptureError
from outrider.interfaces import Work
from outrider_backends.cuda_graph.captured import CudaGraphs

__all__ = ["CudaGraphMedium"]


class CudaGraphMedium:
    """Every graph of a medium takes its memory from the same pool, whichever runner it belongs to.

    Graphs of one medium must not be replayed at the same time; engines that run on streams of their own get media of
    their own.
    """

    def __init__(self) -> None:
        self._pools: dict[torch.device, _Pool] = {}
        # One stream a device, whatever becomes of pools: the matrix library keeps a workspace for every stream it has seen.
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    @property
    def name(self) -> str:
        """ "cuda graph"."""
        return "cuda graph"

    def refuses(self, device: torch.device) -> str | None:
        """Why ``device`` has no CUDA graphs."""
        return None if device.type == "cuda" else f"{device} is no CUDA device"

    def capture(
        self,
        work: Work,
        inputs: Mapping[str, Tensor],  # noqa: ARG002 - a CUDA graph keeps no names
        *,
        device: torch.device,
        what: str,
        warm: bool = True,
        vary: Callable[[], None] | None = None,  # noqa: ARG002 - nothing is compared: capturing runs nothing
    ) -> CudaGraphs:
        """Capture ``work`` on the medium's own stream; synchronises the device.

        Raises:
            CaptureError: a host read, an operator that capture forbids.
            OutOfMemoryError: the pool cannot grow.
        """
        pool = self._pools.get(device)
        if pool is None:
            stream = self._streams.setdefault(device, new_stream(device))
            pool = self._pools[device] = _Pool(device, stream)
        with pool.entered():
            free = pool.free_bytes()
            if warm:
                work(_skip)
                torch.cuda.synchronize(device)
            graphs = CudaGraphs(pool.handle, lambda: self._freed(device, pool))
            try:
                with _no_collection():
                    graphs.record(work)
            except BaseException as error:
                graphs.close()
                # A capture that was cut off leaves its pool and its stream open to allocations; others begin anew.
                self._forget(device, pool)
                self._streams.pop(device, None)
                if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
                    raise CaptureError(f"{what} cannot be captured: {error}") from error
                raise
            graphs.nbytes = max(free - pool.free_bytes(), 0)
        pool.members += 1
        return graphs

    def _freed(self, device: torch.device, pool: _Pool) -> None:
        """A graph of ``pool`` is gone; with the last one PyTorch gives the memory up, and its handle means nothing more."""
        pool.members -= 1
        if pool.members == 0:
            self._forget(device, pool)

    def _forget(self, device: torch.device, pool: _Pool) -> None:
        if self._pools.get(device) is pool:
            del self._pools[device]


class _Pool:
    """Memory and stream of the graphs on one device."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device = device
        self.handle: GraphPool = GraphPool()
        self.members: int = 0
        self._stream = stream

    @contextmanager
    def entered(self) -> Generator[None]:
        """Work goes to the pool's stream, after what is enqueued now and before what comes later."""
        torch.cuda.synchronize(self._device)
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream), warnings.catch_warnings():
            # Two breaks in a row have nothing between them.
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            yield
        torch.cuda.synchronize(self._device)

    def free_bytes(self) -> int:
        """Free memory of the card, what graphs themselves take included."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.mem_get_info(self._device)[0]


@contextmanager
def _no_collection() -> Generator[None]:
    """No garbage is collected inside: a graph that is freed while another is captured spoils the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _skip(eager: Callable[[], None]) -> None:
    """A break in a warm-up: there is nothing to run between segments."""
