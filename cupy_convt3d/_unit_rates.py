"""What the units of a few cards can do: the published rates behind every modelled time.

A card is a row of numbers, so a cost function needs no device. Rates are peaks: a kernel that
keeps one unit busy all the time runs at its rate, and no kernel runs faster. Where NVIDIA
publishes no number and one from a microbenchmark stands in, the comment says so.

References
----------
.. [1] NVIDIA H100 Tensor Core GPU Architecture, tables 2 to 4 (H100 SXM5).
.. [2] NVIDIA A100 Tensor Core GPU Architecture, tables 1, 4 and 5; "L2 cache", p. 35.
.. [3] NVIDIA Ada GPU Architecture, appendix A (RTX 4090).
.. [4] CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions" and "Technical
   Specifications per Compute Capability".
.. [5] Luo et al., Dissecting the NVIDIA Hopper Architecture through Microbenchmarking and Multiple
   Level Analysis, arXiv:2501.12084, section 6.2: ``mma.sync`` reaches 62.9 % of Hopper's peak on
   average, ``wgmma`` above 95 %.
.. [6] te42kyfo/gpu-benches, gpu-l2-cache (h200.txt, h100_pcie.txt, a100_80.txt, l40.txt): read
   bandwidth of a data set that fits the L2 cache and no L1 cache. A microbenchmark.
.. [7] triton-lang/triton#10313: float64 matrix products on an H100, in TFLOP/s: 31 with m8n8k4, 49
   to 53 with m16n8k4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Threads of a warp.
WARP = 32

#: Bytes of a sector, the unit in which caches move memory.
SECTOR = 32

#: Bytes that the driver keeps of every block's shared memory from compute capability 8.0 on [4].
RESERVED_SHARED = 1024

#: Shares of Hopper's tensor peak that ``mma.sync`` and ``wgmma`` reach [5], rounded down.
_HOPPER_MMA_SYNC = 0.62
_HOPPER_WGMMA = 0.95


@dataclass(frozen=True, slots=True)
class UnitRates:
    """The rates and limits of one card.

    Fields without a unit in their name are multiply-adds per clock of one multiprocessor. Those of
    ``mma_`` are what ``mma.sync`` reaches, those of ``wgmma_`` what ``wgmma`` does, 0 where a card
    has none; ``_f16`` stands for float16 and bfloat16 with float32 sums. Memory sizes are in bytes,
    rates in bytes per second.
    """

    name: str
    capability: int
    multiprocessors: int
    clock_ghz: float
    #: The peaks of the tensor cores are quoted at this clock, except for float64.
    tensor_clock_ghz: float
    fma_f32: int
    fma_f64: int
    mma_tf32: float
    mma_f16: float
    mma_f64: float
    #: float64 by the shape m8n8k4, the only one before compute capability 9.0.
    mma_f64_m8n8k4: float
    wgmma_tf32: float
    wgmma_f16: float
    l2_bytes_per_second: float
    dram_bytes_per_second: float
    l2_bytes: int
    shared_per_multiprocessor: int
    shared_per_block: int
    max_warps: int
    max_blocks: int
    registers: int = 64 * 1024
    #: 32 banks of 4 bytes [4].
    shared_bytes_per_clock: int = 128
    #: Four schedulers that issue one instruction of one warp each [4].
    issue_slots_per_clock: int = 4

    def fma_per_second(self, kind: str) -> float:
        """Return multiply-adds per second of the FMA pipe; ``kind`` is "f32" or "f64"."""
        per_clock = {"f32": self.fma_f32, "f64": self.fma_f64}[kind]
        return per_clock * self.multiprocessors * self.clock_ghz * 1e9

    def mma_per_second(self, kind: str, shape: str = "") -> float:
        """Return multiply-adds per second of ``mma.sync``.

        ``kind`` is the type of the factors, "tf32", "f16", "bf16" or "f64"; ``shape`` matters for
        float64 alone.
        """
        if kind == "f64":
            per_clock = self.mma_f64_m8n8k4 if shape == "m8n8k4" else self.mma_f64
            return per_clock * self.multiprocessors * self.clock_ghz * 1e9
        per_clock = {"tf32": self.mma_tf32, "f16": self.mma_f16, "bf16": self.mma_f16}[kind]
        return per_clock * self.multiprocessors * self.tensor_clock_ghz * 1e9

    def wgmma_per_second(self, kind: str) -> float:
        """Return multiply-adds per second of ``wgmma``; ``kind`` is "tf32", "f16" or "bf16"."""
        per_clock = {"tf32": self.wgmma_tf32, "f16": self.wgmma_f16, "bf16": self.wgmma_f16}[kind]
        return per_clock * self.multiprocessors * self.tensor_clock_ghz * 1e9

    @property
    def shared_wavefronts_per_second(self) -> float:
        """One wavefront moves ``shared_bytes_per_clock`` or fewer."""
        return self.multiprocessors * self.clock_ghz * 1e9

    @property
    def issues_per_second(self) -> float:
        """Warp instructions."""
        return self.issue_slots_per_clock * self.multiprocessors * self.clock_ghz * 1e9

    def blocks_per_multiprocessor(self, threads: int, registers: int, shared: int) -> int:
        """Return how many blocks of a kernel a multiprocessor holds at a time.

        Parameters
        ----------
        threads : int
            Of a block.
        registers : int
            Of a thread, as ptxas reports.
        shared : int
            Bytes of a block, static and dynamic.
        """
        warps = -(-threads // WARP)
        # Registers are handed out to a warp in units of 256, warps to four schedulers.
        per_warp = -(-registers * WARP // 256) * 256
        by_registers = self.registers // per_warp // 4 * 4 // warps
        # Shared memory comes in units of 128 bytes.
        by_shared = self.shared_per_multiprocessor // (-(-shared // 128) * 128 + RESERVED_SHARED)
        if shared > self.shared_per_block:
            return 0
        return min(by_registers, by_shared, self.max_warps // warps, self.max_blocks)


H100_SXM = UnitRates(
    name="H100 SXM",
    capability=90,
    multiprocessors=132,  # [1]
    # 66.9 TFLOP/s of float32 are 132 * 128 * 2 at 1.98 GHz; 989.4 of bfloat16 and 494.7 of
    # tf32 are 132 * 4096 and 132 * 2048 at 1.83 GHz [1].
    clock_ghz=1.98,
    tensor_clock_ghz=1.83,
    fma_f32=128,  # [4]
    fma_f64=64,  # [4]
    mma_tf32=_HOPPER_MMA_SYNC * 1024,  # half of 2048 flops, [1] and [5]
    mma_f16=_HOPPER_MMA_SYNC * 2048,  # half of 4096 flops, [1] and [5]
    # 66.9 TFLOP/s at 1.98 GHz [1]. There is no wgmma for float64: mma.sync reaches it.
    mma_f64=128,
    # Inferred, not published: half, because [7] measures 31 TFLOP/s, 93 % of half the peak.
    mma_f64_m8n8k4=64,
    wgmma_tf32=_HOPPER_WGMMA * 1024,  # [1] and [5]
    wgmma_f16=_HOPPER_WGMMA * 2048,  # [1] and [5]
    # Not published. Microbenchmark of the H200 [6], the same chip with 132 multiprocessors; the
    # H100 PCIe (114 multiprocessors, lower clock) gave 6.9e12, so take this one as uncertain.
    l2_bytes_per_second=9.7e12,
    dram_bytes_per_second=3.35e12,  # data sheet of the H100 SXM
    l2_bytes=50 * 2**20,  # [1]
    shared_per_multiprocessor=228 * 1024,  # [4]
    shared_per_block=227 * 1024,  # [4]
    max_warps=64,  # [4]
    max_blocks=32,  # [4]
)

#: The chip of the H100 with faster memory (data sheet of the H200: 4.8 TB/s).
H200 = replace(H100_SXM, name="H200", dram_bytes_per_second=4.8e12)

A100 = UnitRates(
    name="A100",
    capability=80,
    multiprocessors=108,  # [2]
    clock_ghz=1.41,  # [2]
    tensor_clock_ghz=1.41,  # 312 TFLOP/s are 108 * 2048 at 1.41 GHz [2]
    fma_f32=64,  # [4]
    fma_f64=32,  # [4]
    mma_tf32=512,  # 156 TFLOP/s [2]
    mma_f16=1024,  # 312 TFLOP/s [2]
    mma_f64=64,  # 19.5 TFLOP/s [2]
    mma_f64_m8n8k4=64,  # the only shape it has
    wgmma_tf32=0,
    wgmma_f16=0,
    # Microbenchmark [6]. NVIDIA quotes 5120 bytes per clock [2], 7.2e12 at 1.41 GHz.
    l2_bytes_per_second=5.4e12,
    dram_bytes_per_second=2.039e12,  # data sheet of the A100 80 GB SXM
    l2_bytes=40 * 2**20,  # [2]
    shared_per_multiprocessor=164 * 1024,  # [4]
    shared_per_block=163 * 1024,  # [4]
    max_warps=64,  # [4]
    max_blocks=32,  # [4]
)

RTX_4090 = UnitRates(
    name="RTX 4090",
    capability=89,
    multiprocessors=128,  # [3]
    clock_ghz=2.52,  # [3]
    tensor_clock_ghz=2.52,  # [3]
    fma_f32=128,  # 82.6 TFLOP/s [3], [4]
    fma_f64=2,  # 1/64 of float32 [3], [4]
    mma_tf32=128,  # 82.6 TFLOP/s [3]
    mma_f16=256,  # 165.2 TFLOP/s with float32 sums [3]; float16 sums would be twice as fast
    # It has no tensor cores for float64: the instruction runs on the FMA pipe, at best at its rate
    # (triton-lang/triton#7310 measured less, on the L20).
    mma_f64=2,
    mma_f64_m8n8k4=2,
    wgmma_tf32=0,
    wgmma_f16=0,
    # Not published. Microbenchmark of the L40 [6], the same chip with 142 multiprocessors.
    l2_bytes_per_second=5.2e12,
    dram_bytes_per_second=1.008e12,  # [3]
    l2_bytes=72 * 2**20,  # [3]
    shared_per_multiprocessor=100 * 1024,  # [4]
    shared_per_block=99 * 1024,  # [4]
    max_warps=48,  # [4]
    max_blocks=24,  # [4]
)

#: All cards, by the word that names them on a command line.
CARDS: dict[str, UnitRates] = {
    "h100": H100_SXM,
    "h200": H200,
    "a100": A100,
    "rtx4090": RTX_4090,
}
