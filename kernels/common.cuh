// Vocabulary shared by all kernels: entry points, storage types, lane layout, row fragments.
// Nothing here includes a CUDA toolkit header; inline PTX lives in ptx.cuh alone.
#pragma once
#include "ptx.cuh"

typedef long long i64;
typedef unsigned long long u64;

// One exported kernel. It takes a single struct of 8-byte fields by value. MIN_BLOCKS is how many
// blocks are to fit a multiprocessor, which bounds the registers. The emulator brings its own.
#ifdef GNNB_ENTRY
#define GNNB_ENTRY_TUNED(NAME, ARGS, THREADS, MIN_BLOCKS, BODY) GNNB_ENTRY(NAME, ARGS, THREADS, BODY)
#else
// One block less where as many would spill: measured on sm_90, other compilers need more registers.
#if __CUDA_ARCH__ >= 1200 || (defined(GNNB_CROWDED) && __CUDA_ARCH__ != 900)
#define GNNB_BLOCKS(MIN_BLOCKS) ((MIN_BLOCKS) > 1 ? (MIN_BLOCKS) - 1 : 1)
#else
#define GNNB_BLOCKS(MIN_BLOCKS) MIN_BLOCKS
#endif
#define GNNB_ENTRY_TUNED(NAME, ARGS, THREADS, MIN_BLOCKS, BODY)                         \
    extern "C" __global__ void __launch_bounds__(THREADS, GNNB_BLOCKS(MIN_BLOCKS)) NAME( \
        const ARGS args) {                                                              \
        BODY;                                                                           \
    }
#define GNNB_ENTRY(NAME, ARGS, THREADS, BODY) GNNB_ENTRY_TUNED(NAME, ARGS, THREADS, 1, BODY)
#endif

namespace gnnb {

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int BLOCK = 128;                // threads of a traversal block: four warps
constexpr float LOG2E = 1.4426950408889634f;


// Where a running maximum starts: finite, so that exp2(-inf - maximum) is 0 and not NaN while only
// -inf was seen.
constexpr float LOWEST = -3.0e38f;
constexpr float LARGEST = 3.4028234663852886e38f;  // beyond it is infinity

__device__ __forceinline__ float negative_infinity() { return __int_as_float(0xff800000); }

// 16-bit floats are stored as raw bits; their arithmetic is always float32.
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };

// The type that values stored as T are computed and summed in.
template <typename T> struct Arithmetic { typedef float type; };
template <> struct Arithmetic<double> { typedef double type; };

// How a value of type T is read and written. PER16 values fill one 16-byte access.
template <typename T> struct Storage;
template <> struct Storage<float> {
    static constexpr int PER16 = 4;
    static __device__ __forceinline__ float get(float v) { return v; }
    static __device__ __forceinline__ float put(float v) { return v; }
    static __device__ __forceinline__ void unpack(const uint4& u, float* x) {
        x[0] = __uint_as_float(u.x); x[1] = __uint_as_float(u.y);
        x[2] = __uint_as_float(u.z); x[3] = __uint_as_float(u.w);
    }
    static __device__ __forceinline__ uint4 pack(const float* x) {
        return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]),
                          __float_as_uint(x[2]), __float_as_uint(x[3]));
    }
};
template <> struct Storage<double> {
    static constexpr int PER16 = 2;
    static __device__ __forceinline__ double get(double v) { return v; }
    static __device__ __forceinline__ double put(double v) { return v; }
    static __device__ __forceinline__ void unpack(const uint4& u, double* x) {
        x[0] = __longlong_as_double((i64)((u64)u.y << 32 | u.x));
        x[1] = __longlong_as_double((i64)((u64)u.w << 32 | u.z));
    }
    static __device__ __forceinline__ uint4 pack(const double* x) {
        const u64 a = (u64)__double_as_longlong(x[0]), b = (u64)__double_as_longlong(x[1]);
        return make_uint4((unsigned)a, (unsigned)(a >> 32), (unsigned)b, (unsigned)(b >> 32));
    }
};
template <> struct Storage<bf16> {
    static constexpr int PER16 = 8;
    static __device__ __forceinline__ float get(bf16 v) { return bf16_to_float(v.bits); }
    static __device__ __forceinline__ bf16 put(float v) { return bf16{float_to_bf16(v)}; }
    static __device__ __forceinline__ void unpack(const uint4& u, float* x) {
        const unsigned w[4] = {u.x, u.y, u.z, u.w};
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            x[2 * i] = __uint_as_float(w[i] << 16);
            x[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
        }
    }
    static __device__ __forceinline__ uint4 pack(const float* x) {
        return make_uint4(pack_bf16x2(x[0], x[1]), pack_bf16x2(x[2], x[3]),
                          pack_bf16x2(x[4], x[5]), pack_bf16x2(x[6], x[7]));
    }
};
template <> struct Storage<f16> {
    static constexpr int PER16 = 8;
    static __device__ __forceinline__ float get(f16 v) { return f16_to_float(v.bits); }
    static __device__ __forceinline__ f16 put(float v) { return f16{float_to_f16(v)}; }
    static __device__ __forceinline__ void unpack(const uint4& u, float* x) {
        const unsigned w[4] = {u.x, u.y, u.z, u.w};
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            x[2 * i] = f16_to_float((unsigned short)(w[i] & 0xffffu));
            x[2 * i + 1] = f16_to_float((unsigned short)(w[i] >> 16));
        }
    }
    static __device__ __forceinline__ uint4 pack(const float* x) {
        return make_uint4(pack_f16x2(x[0], x[1]), pack_f16x2(x[2], x[3]),
                          pack_f16x2(x[4], x[5]), pack_f16x2(x[6], x[7]));
    }
};

// Lane layout of a row: HEADS heads side by side, LANES lanes a head, VALUES values a lane; GROUP
// lanes in all, so that TASKS rows stand side by side in a warp. VECTOR: 16-byte accesses, else
// single values. FULL: the head dimension is exactly LANES * VALUES, else the tail is masked.
template <typename T_, int LANES_, int HEADS_, int VALUES_, bool VECTOR_, bool FULL_> struct Shape {
    using T = T_;
    static constexpr int LANES = LANES_, HEADS = HEADS_, VALUES = VALUES_;
    static constexpr bool VECTOR = VECTOR_, FULL = FULL_;
    static constexpr int WIDTH = VECTOR ? Storage<T>::PER16 : 1;   // values an access
    static constexpr int ACCESSES = VALUES / WIDTH;
    static constexpr int GROUP = LANES * HEADS;
    static constexpr int TASKS = WARP / GROUP;
    static constexpr bool TIGHT = VALUES > 8;   // registers are short: what can be computed again is
    static_assert(VALUES % WIDTH == 0 && WARP % GROUP == 0, "lane layout does not fit a warp");
};

// Where a lane stands: which group of the warp, which head, which columns of a row.
template <class S> struct Lane {
    int lane, group, within;   // lane of the warp; its group; its place within its head
    int head;                  // head in the whole row
    int dim;                   // head dimension D
    unsigned stride;           // values a row, H * D (below 2^30; checked on the host)
    unsigned row_bytes;        // of the storage type
    int column;                // first column of this lane
    __device__ __forceinline__ Lane(i64 heads, i64 dim_, int head_block) {
        lane = threadIdx.x & (WARP - 1);
        group = lane / S::GROUP;
        within = lane % S::LANES;
        head = head_block * S::HEADS + (lane % S::GROUP) / S::LANES;
        dim = (int)dim_;
        stride = (unsigned)(heads * dim_);
        row_bytes = stride * (unsigned)sizeof(typename S::T);
        if (!S::TIGHT) row_bytes = opaque(row_bytes);
        column = head * dim + within * S::WIDTH;
    }
    __device__ __forceinline__ bool holds(int access) const {
        return S::FULL || (access * S::LANES + within) * S::WIDTH < dim;
    }
    // Address of an access of a row. One 32 x 32 -> 64 bit multiply-add a row: rows and row bytes
    // are below 2^32, offsets are not.
    template <typename T>
    __device__ __forceinline__ T* address(T* table, int row, int access) const {
        const u64 base = reinterpret_cast<u64>(table + column);
        const unsigned bytes = sizeof(T) == sizeof(typename S::T) ? row_bytes : stride * (unsigned)sizeof(T);
        const u64 at_row = (u64)(unsigned)row * bytes + base;
        return reinterpret_cast<T*>(at_row) + access * (S::LANES * S::WIDTH);
    }
};

// Values of one row that a lane owns, as loaded; unpacked to float32 where used.
template <class S, bool VECTOR = S::VECTOR> struct Raw {
    uint4 word[S::ACCESSES];
    // A row that is not `live` reads as zeros. ONCE: nobody reads the row again in this kernel.
    template <bool ONCE = false>
    __device__ __forceinline__ void load(
        const void* table, const Lane<S>& at, int row, bool live = true) {
        #pragma unroll
        for (int v = 0; v < S::ACCESSES; v++) {
            word[v] = make_uint4(0, 0, 0, 0);
            if (!live || !at.holds(v)) continue;
            const uint4* from = reinterpret_cast<const uint4*>(
                at.address(static_cast<const typename S::T*>(table), row, v));
            word[v] = ONCE ? load_streaming(from) : __ldg(from);
        }
    }
    __device__ __forceinline__ void unpack(float (&x)[S::VALUES]) const {
        #pragma unroll
        for (int v = 0; v < S::ACCESSES; v++) Storage<typename S::T>::unpack(word[v], x + v * S::WIDTH);
    }
};
template <class S> struct Raw<S, false> {
    float value[S::ACCESSES];
    template <bool ONCE = false>
    __device__ __forceinline__ void load(
        const void* table, const Lane<S>& at, int row, bool live = true) {
        const typename S::T* base = static_cast<const typename S::T*>(table);
        #pragma unroll
        for (int v = 0; v < S::ACCESSES; v++)
            value[v] = live && at.holds(v) ? Storage<typename S::T>::get(*at.address(base, row, v)) : 0.f;
    }
    __device__ __forceinline__ void unpack(float (&x)[S::VALUES]) const {
        #pragma unroll
        for (int v = 0; v < S::ACCESSES; v++) x[v] = value[v];
    }
};

template <class S>
__device__ __forceinline__ void load_row(
    const void* table, const Lane<S>& at, int row, float (&x)[S::VALUES]) {
    Raw<S> raw;
    raw.load(table, at, row);
    raw.unpack(x);
}

// Write a lane's part of a row in the storage type, past the caches.
template <class S>
__device__ __forceinline__ void store_row(
    void* table, const Lane<S>& at, int row, const float (&x)[S::VALUES]) {
    typename S::T* base = static_cast<typename S::T*>(table);
    #pragma unroll
    for (int v = 0; v < S::ACCESSES; v++) {
        if (!at.holds(v)) continue;
        if constexpr (S::VECTOR)
            store_streaming(reinterpret_cast<uint4*>(at.address(base, row, v)),
                            Storage<typename S::T>::pack(x + v * S::WIDTH));
        else
            *at.address(base, row, v) = Storage<typename S::T>::put(x[v]);
    }
}

// Write a lane's part of a row as float32 (partials of split rows).
template <class S>
__device__ __forceinline__ void store_partial(
    float* table, const Lane<S>& at, int row, const float (&x)[S::VALUES]) {
    #pragma unroll
    for (int v = 0; v < S::ACCESSES; v++) {
        if (!at.holds(v)) continue;
        float* to = at.address(table, row, v);
        if constexpr (S::VECTOR) {
            #pragma unroll
            for (int i = 0; i < S::WIDTH; i += 4)
                *reinterpret_cast<float4*>(to + i) = make_float4(
                    x[v * S::WIDTH + i], x[v * S::WIDTH + i + 1],
                    x[v * S::WIDTH + i + 2], x[v * S::WIDTH + i + 3]);
        } else {
            *to = x[v];
        }
    }
}

// Sum over the lanes of a head; every lane gets the result.
template <class S> __device__ __forceinline__ float head_sum(float x) {
    #pragma unroll
    for (int o = S::LANES / 2; o; o >>= 1) x += __shfl_xor_sync(ALL_LANES, x, o);
    return x;
}

// Sum over the groups of a warp; every lane gets the result.
template <class S> __device__ __forceinline__ float group_sum(float x) {
    #pragma unroll
    for (int o = S::GROUP; o < WARP; o <<= 1) x += __shfl_xor_sync(ALL_LANES, x, o);
    return x;
}

// N values a lane, to be summed over the lanes of a head, spread over these lanes: a butterfly
// that halves the values at each step, so that N sums cost about N shuffles, not N log2(LANES),
// and what follows (exponentials) is done once an edge, not once a lane. A lane then holds HELD
// of the N sums: those of index(within, 0 .. HELD - 1). N is a power of two.
template <class S, int N> struct Spread {
    static constexpr int HELD = N > S::LANES ? N / S::LANES : 1;
    static constexpr int OWNERS = N / HELD;                 // distinct lanes of a head
    static constexpr int REPEAT = S::LANES / OWNERS;        // neighbouring lanes with the same sums
    float held[HELD];

    __device__ __forceinline__ void sum(float (&x)[N], int within) {
        int n = N;
        #pragma unroll
        for (int o = S::LANES / 2; o; o >>= 1) {
            if (n > 1) {
                n /= 2;
                const bool upper = within & o;
                #pragma unroll
                for (int i = 0; i < N / 2; i++) {
                    if (i >= n) continue;
                    const float send = upper ? x[i] : x[i + n], keep = upper ? x[i + n] : x[i];
                    x[i] = keep + __shfl_xor_sync(ALL_LANES, send, o);
                }
            } else {
                x[0] += __shfl_xor_sync(ALL_LANES, x[0], o);
            }
        }
        #pragma unroll
        for (int i = 0; i < HELD; i++) held[i] = x[i];
    }
    // Which of the N sums held[i] is.
    static __device__ __forceinline__ int index(int within, int i) { return within / REPEAT * HELD + i; }
    // Sum number n (a compile-time constant after unrolling), on every lane of the head.
    __device__ __forceinline__ float get(int n) const {
        return __shfl_sync(ALL_LANES, held[n % HELD], n / HELD * REPEAT, S::LANES);
    }
    // The same of a number that may differ between lanes.
    __device__ __forceinline__ float of(int n) const {
        float found = __shfl_sync(ALL_LANES, held[0], n / HELD * REPEAT, S::LANES);
        #pragma unroll
        for (int i = 1; i < HELD; i++) {
            const float other = __shfl_sync(ALL_LANES, held[i], n / HELD * REPEAT, S::LANES);
            found = n % HELD == i ? other : found;
        }
        return found;
    }
    // Maximum and sum of one value a lane over the owners.
    static __device__ __forceinline__ float max_owners(float x) {
        #pragma unroll
        for (int o = S::LANES / 2; o >= REPEAT; o >>= 1) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, o));
        return x;
    }
    static __device__ __forceinline__ float sum_owners(float x) {
        #pragma unroll
        for (int o = S::LANES / 2; o >= REPEAT; o >>= 1) x += __shfl_xor_sync(ALL_LANES, x, o);
        return x;
    }
};

template <bool B> struct Flag { static constexpr bool value = B; };

// A chunk of one row (gnn_backend/graph/splits.py writes them), and how it is stored.
struct Task {
    i64 begin;
    int row, slot, count;
};
__device__ __forceinline__ Task unpack_task(const int4& t) {
    const i64 packed = (i64)(unsigned)t.z | ((i64)(unsigned)t.w << 32);
    Task task;
    task.begin = packed & 0xffffffffffffLL;
    task.count = (int)(packed >> 48);
    task.row = t.x;
    task.slot = t.y;
    return task;
}
__device__ __forceinline__ Task load_task(const int4* tasks, i64 index) {
    return unpack_task(__ldg(tasks + index));
}

}  // namespace gnnb
