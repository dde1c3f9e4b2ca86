"""kernels/ptx.cuh: the host twin agrees with torch, and the real file compiles and agrees."""

from __future__ import annotations

import struct

import numpy
import pytest
import torch

from gnn_backend.runtime.emulator import KERNELS
from tests.emulator.support import launch

CONVERSIONS = r"""
#include "ptx.cuh"
struct Args { const unsigned* x; unsigned* out; long long n; };
__device__ __forceinline__ void widen(const Args& args) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= args.n) return;
  const unsigned short bits = (unsigned short)args.x[i];
  args.out[2 * i] = __float_as_uint(bf16_to_float(bits));
  args.out[2 * i + 1] = __float_as_uint(f16_to_float(bits));
}
__device__ __forceinline__ void narrow(const Args& args) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= args.n) return;
  const float x = __uint_as_float(args.x[i]), y = __uint_as_float(args.x[args.n - 1 - i]);
  args.out[4 * i] = float_to_bf16(x);
  args.out[4 * i + 1] = float_to_f16(x);
  args.out[4 * i + 2] = pack_bf16x2(x, y);
  args.out[4 * i + 3] = pack_f16x2(x, y);
}
__device__ __forceinline__ void approximate(const Args& args) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= args.n) return;
  const float x = __uint_as_float(args.x[i]);
  args.out[2 * i] = __float_as_uint(exp2_approx(x));
  args.out[2 * i + 1] = __float_as_uint(log2_approx(x));
}
__device__ __forceinline__ void extremes(const Args& args) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= args.n) return;
  const float x = __uint_as_float(args.x[i]), y = __uint_as_float(args.x[args.n - 1 - i]);
  args.out[2 * i] = __float_as_uint(max_nan(x, y));
  args.out[2 * i + 1] = __float_as_uint(min_nan(x, y));
}
__device__ __forceinline__ void stream(const Args& args) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (4 * i >= args.n) return;
  const uint4 v = load_streaming(reinterpret_cast<const uint4*>(args.x) + i);
  args.out[4 * i] = v.x; args.out[4 * i + 1] = v.y; args.out[4 * i + 2] = v.z;
  args.out[4 * i + 3] = v.w;
}
__device__ __forceinline__ void tf32(const Args& args) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < args.n) args.out[i] = round_tf32(args.x[i]);
}
// x: A [16, 8], then B [8, 8], then C [16, 8]; out: C + A B.
__device__ __forceinline__ void multiply_tf32(const Args& args) {
  const unsigned g = threadIdx.x / 4, t = threadIdx.x % 4;
  const unsigned *a = args.x, *b = a + 128, *c = b + 64;
  float sum[4];
  for (int i = 0; i < 4; i++) sum[i] = __uint_as_float(c[(g + i / 2 * 8) * 8 + 2 * t + i % 2]);
  mma_tf32(sum, a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4],
           b[t * 8 + g], b[(t + 4) * 8 + g]);
  for (int i = 0; i < 4; i++)
    args.out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = __float_as_uint(sum[i]);
}
// Every other lane's 16 bytes, by way of shared memory, to the lane before it.
__device__ __forceinline__ void copy(const Args& args) {
  __shared__ alignas(16) unsigned words[32][4];
  const unsigned lane = threadIdx.x;
  copy_async(words[lane], args.x + 4 * lane, lane % 2);
  commit_copies();
  commit_copies();
  wait_copies<1>();
  __syncthreads();
  for (int i = 0; i < 4; i++) args.out[4 * lane + i] = words[(lane + 1) % 32][i];
}
// What is read before it was waited for.
__device__ __forceinline__ void hasty(const Args& args) {
  __shared__ alignas(16) unsigned words[32][4];
  copy_async(words[threadIdx.x], args.x + 4 * threadIdx.x, true);
  commit_copies();
  args.out[threadIdx.x] = words[threadIdx.x][0];
}
"""
NAMES = ("widen", "narrow", "approximate", "extremes", "stream", "tf32", "multiply_tf32", "copy",
         "hasty")  # fmt: skip
HOST = CONVERSIONS + "".join(f"GNNB_ENTRY({n}, Args, 256, {n}(args))\n" for n in NAMES)
DEVICE = CONVERSIONS + "".join(
    f'extern "C" __global__ void {n}_kernel(const Args args) {{ {n}(args); }}\n' for n in NAMES
)


def _run(entry: str, x: torch.Tensor, width: int) -> torch.Tensor:
    """Run on the host; ``x`` and the result are bit patterns, [n] -> [n, width] int32."""
    out = torch.zeros(x.numel(), width, dtype=torch.int32)
    launch(HOST, entry, 256, x, out, x.numel(), grid=(x.numel() + 255) // 256)
    return out


def _sixteen_bits() -> torch.Tensor:
    return torch.arange(65536, dtype=torch.int32)


def _floats() -> torch.Tensor:
    """Random bit patterns, and every 16-bit value with its neighbours and rounding ties."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (200_000,), generator=generator)
    half = _sixteen_bits().to(torch.int16).view(torch.float16).float().view(torch.int32)
    tie_bf16 = (_sixteen_bits().long() << 16) + 0x8000
    near = torch.cat([half.long() + 0x1000, tie_bf16, torch.tensor([0x477FEFFF, 0x477FF000])])
    subnormal_ties = (torch.arange(2049) * 2.0**-25).view(torch.int32).long()
    near = torch.cat([near, subnormal_ties])
    patterns = torch.cat([patterns, half.long(), near - 1, near, near + 1])
    return ((patterns + 2**31) % 2**32 - 2**31).int()


def _bits(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.view(torch.float32).to(dtype).view(torch.int16).int() & 0xFFFF


def test_widening_all_patterns_equals_torch() -> None:
    out = _run("widen", _sixteen_bits(), 2)
    patterns = _sixteen_bits().to(torch.int16)
    for column, dtype in enumerate((torch.bfloat16, torch.float16)):
        expected = patterns.view(dtype).float()
        got = out[:, column].contiguous().view(torch.float32)
        nan = expected.isnan()
        assert torch.equal(got.isnan(), nan)
        assert torch.equal(got.view(torch.int32)[~nan], expected.view(torch.int32)[~nan])


def test_narrowing_rounds_to_nearest_even() -> None:
    x = _floats()
    out = _run("narrow", x, 4)
    nan = x.view(torch.float32).isnan()
    assert nan.any()
    for column, dtype in enumerate((torch.bfloat16, torch.float16)):
        expected = _bits(x, dtype)
        assert torch.equal(out[:, column][~nan], expected[~nan])
        assert (out[:, column][nan] == 0x7FFF).all()
        packed = out[:, column] | out[:, column].flip(0) << 16
        assert torch.equal(out[:, 2 + column], packed)


def test_round_trip_keeps_every_pattern() -> None:
    wide = _run("widen", _sixteen_bits(), 2)
    for column, dtype in enumerate((torch.bfloat16, torch.float16)):
        back = _run("narrow", wide[:, column].contiguous(), 4)[:, column]
        nan = _sixteen_bits().to(torch.int16).view(dtype).isnan()
        assert torch.equal(back[~nan], _sixteen_bits()[~nan])


def test_exp2_and_log2_at_the_corners() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([-inf, inf, nan, 0.0, -127.0, -126.0, 1.0, -0.5, 128.0, -1.0, 8.0])
    out = _run("approximate", x.view(torch.int32), 2).view(torch.float32)
    exp2 = [0.0, inf, nan, 1.0, 0.0, 2.0**-126, 2.0, 2.0**-0.5, inf, 0.5, 256.0]
    log2 = [nan, inf, nan, -inf, nan, nan, 0.0, nan, 7.0, nan, 3.0]
    torch.testing.assert_close(out[:, 0], torch.tensor(exp2), equal_nan=True)
    torch.testing.assert_close(out[:, 1], torch.tensor(log2), equal_nan=True)
    assert out[0, 0] == 0
    assert not out[0, 0].signbit()


def _check_extremes(x: torch.Tensor, out: torch.Tensor) -> None:
    a, b = x.view(torch.float32), x.flip(0).view(torch.float32)
    out = out.view(torch.float32)
    for column, expected in enumerate((torch.maximum(a, b), torch.minimum(a, b))):
        torch.testing.assert_close(out[:, column], expected, rtol=0, atol=0, equal_nan=True)


def test_extremes_are_nan_where_an_operand_is() -> None:
    _check_extremes(_floats(), _run("extremes", _floats(), 2))


def test_tf32_has_11_bits_and_ties_go_away_from_zero() -> None:
    x = _floats()
    out = _run("tf32", x, 1)[:, 0]
    value = x.view(torch.float32)
    nan, finite = value.isnan(), value.isfinite()
    assert out.view(torch.float32)[nan].isnan().all()
    assert torch.equal(out[value.isinf()], x[value.isinf()])
    assert not (out[finite] & 0x1FFF).any()
    normal = finite & (value.abs() > 2.0**-126) & (value.abs() < 2.0**127)
    wide = value[normal].double()
    step = torch.ldexp(torch.ones_like(wide), torch.frexp(wide).exponent - 11)
    expected = (wide.abs() / step + 0.5).floor() * step * wide.sign()
    assert torch.equal(out.view(torch.float32)[normal].double(), expected)


def _products() -> torch.Tensor:
    """Bit patterns of A, B and C of a product of tf32; A has more bits than are read."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(320, generator=generator).view(torch.int32)


def _tf32_product(out: torch.Tensor) -> None:
    x = _products()
    read = x.clone()
    read[:192] &= ~0x1FFF
    a, b, c = (t.view(torch.float32).double() for t in read.split([128, 64, 128]))
    expected = c.view(16, 8) + a.view(16, 8) @ b.view(8, 8)
    got = out.view(torch.float32)[:128].view(16, 8)
    torch.testing.assert_close(got.double(), expected, rtol=1e-6, atol=1e-6)


def test_a_product_of_tf32() -> None:
    x, out = _products(), torch.zeros(128, dtype=torch.int32)
    launch(HOST, "multiply_tf32", 32, x, out, 32)
    _tf32_product(out)


def test_wide_loads() -> None:
    x = torch.randint(-(2**31), 2**31, (4096,), dtype=torch.int32)
    out = torch.zeros_like(x)
    launch(HOST, "stream", 256, x, out, x.numel(), grid=4)
    assert torch.equal(out, x)


def test_copies_in_the_background() -> None:
    x = torch.randint(-(2**31), 2**31, (32, 4), dtype=torch.int32)
    out, hasty = torch.zeros_like(x), x[:, 0].contiguous()
    launch(HOST, "copy", 32, x, out, 32)
    want = torch.where(torch.arange(32)[:, None] % 2 == 1, x, 0)
    assert torch.equal(out, want.roll(-1, 0))
    launch(HOST, "hasty", 32, x, hasty, 32)
    assert not (hasty == x[:, 0]).any()


@pytest.mark.parametrize("arch", [80, 90, 100, 120])
def test_real_header_compiles(arch: int) -> None:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="CuPy is not installed")
    header = (KERNELS / "ptx.cuh").read_bytes()
    program = nvrtc.createProgram(DEVICE, "ptx.cu", [header], [b"ptx.cuh"])
    try:
        nvrtc.compileProgram(program, [f"-arch=sm_{arch}", "-std=c++17"])
    except Exception:
        pytest.fail(nvrtc.getProgramLog(program))
    assert nvrtc.getCUBIN(program)[:4] == b"\x7fELF"
    nvrtc.destroyProgram(program)


@pytest.mark.gpu
def test_device_agrees_with_its_host_twin() -> None:
    """Bit for bit, except where the hardware approximates."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    header = (KERNELS / "ptx.cuh").read_text()
    module = cupy.RawModule(
        code=DEVICE.replace('#include "ptx.cuh"', header), options=("-std=c++17",)
    )

    def run(entry: str, x: torch.Tensor, width: int, threads: int = 256) -> torch.Tensor:
        x = x.cuda()
        out = torch.zeros(x.numel(), width, dtype=torch.int32, device="cuda")
        words = struct.pack("3q", x.data_ptr(), out.data_ptr(), x.numel())
        torch.cuda.synchronize()
        kernel = module.get_function(f"{entry}_kernel")
        args = numpy.frombuffer(words, dtype=[("words", numpy.int64, (3,))])[0]
        blocks = 1 if threads == 32 else (x.numel() + 255) // 256
        kernel((blocks,), (threads,), (args,))
        cupy.cuda.Device().synchronize()
        return out.cpu()

    nan = torch.stack([_sixteen_bits().to(torch.int16).view(t).isnan()
                       for t in (torch.bfloat16, torch.float16)], 1)  # fmt: skip
    host, device = (f("widen", _sixteen_bits(), 2) for f in (_run, run))
    assert torch.equal(host[~nan], device[~nan])
    assert device.view(torch.float32)[nan].isnan().all()
    assert torch.equal(_run("narrow", _floats(), 4), run("narrow", _floats(), 4))
    host, device = (f("tf32", _floats(), 1)[:, 0] for f in (_run, run))
    normal = ~_floats().view(torch.float32).isnan()
    assert torch.equal(host[normal], device[normal])
    _tf32_product(run("multiply_tf32", _products(), 1, 32)[:, 0])
    _check_extremes(_floats(), run("extremes", _floats(), 2))
    x = torch.arange(1, 129, dtype=torch.int32)
    copied = run("copy", x, 1, 32)[:, 0].view(32, 4)
    assert torch.equal(copied[::2].flatten(), x.view(32, 4)[1::2].flatten())
    assert not copied[1::2].any()
    x = torch.cat([torch.linspace(-140, 140, 10001), torch.tensor([float("nan"), -float("inf")])])
    host, device = (f("approximate", x.view(torch.int32), 2) for f in (_run, run))
    torch.testing.assert_close(
        device.view(torch.float32), host.view(torch.float32), rtol=1e-6, atol=1e-6, equal_nan=True
    )
