// Gradient of the weights of a typed linear: dW[type] = sum over its places i of s_i x[r_i]^T grad[q_i].
//
// Mapping. A block owns a chunk of the places of one type, one head, and 64 x 64 entries of its weight. 64
// columns of the gathered rows of both tables go through three stages of shared memory. Two of the four
// warps take the upper half of a stage's rows, two the lower, each pair all 64 rows of the weight and each
// warp 32 columns of it; the halves are added at the end. EXACT: lane 4 v + u has rows 4 v to 4 v + 3 of
// each 32, and columns 4 u to 4 u + 3 of each 16. TENSOR: lane 4 g + t reads every fourth row of 16 from
// row t on, so that values of two rows come together in one word as tensor cores want them.
// Chunks write float32 partials, which weight_grad_sum adds.
//
// The lower eight pieces of a row, and the upper, are permuted by its number's lower bits, so that lanes
// that read neighbouring pieces of four rows meet no bank twice.
//
// Bytes a place: its rows of x and of grad once for every 64 columns of the other. Determinism: chunks are
// cut and added in an order that the lengths of the segments fix; no atomics.
#pragma once
#include "gemm.cuh"

namespace gnnb {

struct WeightGradArgs {
    const int4* tiles;                // chunks of places
    const void *x, *grad;             // [N, heads, inner], [M, heads, outer]
    float* partial;                   // [tiles, heads, inner, outer]
    const int *x_rows, *grad_rows;    // of each place; null: the place itself
    const float* scale;               // of each place; read where SCALED
    i64 heads, inner, outer, down, across;  // down, across: blocks for the rows and columns of a weight
};

template <typename T_, Precision HOW_, bool ALIGNED_, bool SCALED_> struct Gradient {
    using T = T_;
    static constexpr Precision HOW = HOW_;
    static constexpr bool ALIGNED = ALIGNED_, SCALED = SCALED_;
    static constexpr int WIDTH = 64, WARP_COLUMNS = 32;
    static constexpr int PER16 = Storage<T>::PER16, PIECES = WIDTH / PER16;
    static constexpr int ROW = WIDTH * (int)sizeof(T);                // bytes
    static constexpr int ROWS = sizeof(T) == 4 ? 16 : 32, HALF = ROWS / 2;
    static constexpr int TABLE = ROWS * ROW, STAGE = 2 * TABLE;       // bytes: x, then grad
    static constexpr int APART = GEMM_BLOCK / PIECES, MANY = ROWS / APART;
};

// Where in a row of a stage a piece lies.
__device__ __forceinline__ int piece_in(int row, int piece) { return (piece ^ 2 * (row & 3)) * PIECE; }

// The part of 64 x 32 entries that a lane has: 8 rows of 8 columns.
template <class L, Precision HOW = L::HOW> struct Entry;

template <class L> struct Entry<L, EXACT> {
    static constexpr int RUN = 4;
    float sum[8][8];
    int u, v;
    __device__ __forceinline__ explicit Entry(int lane) : u(lane % 4), v(lane / 4) {}
    __device__ __forceinline__ float& at(int i, int k) { return sum[i][k]; }
    __device__ __forceinline__ int row(int i) const { return i / 4 * 32 + 4 * v + i % 4; }
    __device__ __forceinline__ int column(int run) const { return 16 * run + 4 * u; }

    __device__ __forceinline__ void add(const char* x, const char* grad, const float* scale, int half) {
        #pragma unroll 4
        for (int r = 0; r < L::HALF; r++) {
            const char *a = x + r * L::ROW, *b = grad + r * L::ROW;
            float left[8], right[8];
            #pragma unroll
            for (int h = 0; h < 2; h++) {
                Storage<float>::unpack(*reinterpret_cast<const uint4*>(a + piece_in(r, 8 * h + v)),
                                       left + 4 * h);
                Storage<float>::unpack(
                    *reinterpret_cast<const uint4*>(b + piece_in(r, 8 * half + 4 * h + u)),
                    right + 4 * h);
            }
            if constexpr (L::SCALED) {
                #pragma unroll
                for (int i = 0; i < 8; i++) left[i] *= scale[r];
            }
            #pragma unroll
            for (int i = 0; i < 8; i++)
                #pragma unroll
                for (int k = 0; k < 8; k++) sum[i][k] = fmaf(left[i], right[k], sum[i][k]);
        }
    }
};

// Values of 16 bits of two rows that meet in one word, scaled by a number a row.
template <class L>
__device__ __forceinline__ unsigned couple(unsigned a, unsigned b, bool upper, float of_a, float of_b) {
    unsigned word = upper ? a >> 16 | (b & 0xffff0000u) : (a & 0xffffu) | b << 16;
    if constexpr (L::SCALED) {
        using T = typename L::T;
        const T lo = {(unsigned short)word}, hi = {(unsigned short)(word >> 16)};
        word = TensorCore<T>::pack(of_a * Storage<T>::get(lo), of_b * Storage<T>::get(hi));
    }
    return word;
}

template <class L> struct Entry<L, TENSOR> {
    static constexpr int RUN = 8;
    static constexpr bool WIDE = sizeof(typename L::T) == 4;
    using Core = TensorCore<typename L::T>;
    float sum[4][4][4];
    int g, t;
    __device__ __forceinline__ explicit Entry(int lane) : g(lane / 4), t(lane % 4) {}
    __device__ __forceinline__ float& at(int i, int k) {
        return sum[i / 2][k % 4][2 * (i % 2) + k / 4];
    }
    __device__ __forceinline__ int row(int i) const { return WIDE ? i / 4 * 32 + 4 * g + i % 4 : 8 * g + i; }
    __device__ __forceinline__ int column(int) const { return 8 * t; }

    __device__ __forceinline__ void add(const char* x, const char* grad, const float* scale, int half) {
        if constexpr (WIDE) {
            #pragma unroll 1
            for (int r = t; r < L::HALF; r += 8) add_wide(x, grad, scale, half, r);
        } else {
            add_narrow(x, grad, scale, half);
        }
    }
    // Rows r and r + 4 of float32.
    __device__ __forceinline__ void add_wide(
        const char* x, const char* grad, const float* scale, int half, int r) {
        float a[2][8], b[2][4];
        #pragma unroll
        for (int q = 0; q < 2; q++) {
            const int row = r + 4 * q;
            #pragma unroll
            for (int h = 0; h < 2; h++)
                Storage<float>::unpack(*reinterpret_cast<const uint4*>(
                    x + row * L::ROW + piece_in(row, 8 * h + g)), a[q] + 4 * h);
            Storage<float>::unpack(*reinterpret_cast<const uint4*>(
                grad + row * L::ROW + piece_in(row, 8 * half + g)), b[q]);
            if constexpr (L::SCALED) {
                #pragma unroll
                for (int i = 0; i < 8; i++) a[q][i] *= scale[row];
            }
        }
        #pragma unroll
        for (int m = 0; m < 4; m++)
            #pragma unroll
            for (int n = 0; n < 4; n++)
                Core::multiply(sum[m][n], word(a[0][2 * m]), word(a[0][2 * m + 1]), word(a[1][2 * m]),
                               word(a[1][2 * m + 1]), word(b[0][n]), word(b[1][n]));
    }
    static __device__ __forceinline__ unsigned word(float x) { return Core::operand(__float_as_uint(x)); }

    // Rows t, t + 4, t + 8 and t + 12 of 16 bits.
    __device__ __forceinline__ void add_narrow(
        const char* x, const char* grad, const float* scale, int half) {
        unsigned a[4][4], b[4][2];
        float factor[4] = {1.f, 1.f, 1.f, 1.f};
        #pragma unroll
        for (int q = 0; q < 4; q++) {
            const int row = t + 4 * q;
            const uint4 left = *reinterpret_cast<const uint4*>(x + row * L::ROW + piece_in(row, g));
            a[q][0] = left.x; a[q][1] = left.y; a[q][2] = left.z; a[q][3] = left.w;
            const uint2 right = *reinterpret_cast<const uint2*>(
                grad + row * L::ROW + piece_in(row, 4 * half + g / 2) + g % 2 * 8);
            b[q][0] = right.x; b[q][1] = right.y;
            if constexpr (L::SCALED) factor[q] = scale[row];
        }
        #pragma unroll
        for (int m = 0; m < 4; m++) {
            unsigned left[4];
            #pragma unroll
            for (int i = 0; i < 4; i++)
                left[i] = couple<L>(a[i / 2 * 2][m], a[i / 2 * 2 + 1][m], i % 2, factor[i / 2 * 2],
                                    factor[i / 2 * 2 + 1]);
            #pragma unroll
            for (int n = 0; n < 4; n++) {
                using Plain = Gradient<typename L::T, L::HOW, L::ALIGNED, false>;
                Core::multiply(sum[m][n], left[0], left[1], left[2], left[3],
                               couple<Plain>(b[0][n / 2], b[1][n / 2], n % 2, 1.f, 1.f),
                               couple<Plain>(b[2][n / 2], b[3][n / 2], n % 2, 1.f, 1.f));
            }
        }
    }
};

// What a thread brings into each stage: a piece of every APARTth row of both tables. The rows' numbers are
// read a stage ahead.
template <class L> struct Rows {
    using T = typename L::T;
    const char *x, *grad;             // this thread's piece of row 0
    unsigned x_bytes, grad_bytes;     // of a row
    int x_left, grad_left;            // values from the piece on
    int x_row[L::MANY], grad_row[L::MANY];
    int at, to;

    __device__ __forceinline__ Rows(
        const WeightGradArgs& args, int head, int first_row, int first_column) {
        const int piece = threadIdx.x % L::PIECES, first = piece * L::PER16;
        at = threadIdx.x / L::PIECES;
        static_assert(L::APART % 4 == 0, "rows so far apart have their pieces permuted alike");
        to = at * L::ROW + piece_in(at, piece);
        x_left = (int)args.inner - first_row - first;
        grad_left = (int)args.outer - first_column - first;
        x_bytes = (unsigned)(args.heads * args.inner) * (unsigned)sizeof(T);
        grad_bytes = (unsigned)(args.heads * args.outer) * (unsigned)sizeof(T);
        x = static_cast<const char*>(args.x) +
            (head * args.inner + first_row + first) * (i64)sizeof(T);
        grad = static_cast<const char*>(args.grad) +
            (head * args.outer + first_column + first) * (i64)sizeof(T);
    }
    __device__ __forceinline__ void find(const WeightGradArgs& args, const RowTile& tile, int step) {
        #pragma unroll
        for (int i = 0; i < L::MANY; i++) {
            const int place = step * L::ROWS + at + i * L::APART;
            const bool exists = place < tile.count;
            x_row[i] = exists ? listed(args.x_rows, tile.first + place) : -1;
            grad_row[i] = exists ? listed(args.grad_rows, tile.first + place) : -1;
        }
    }
    __device__ __forceinline__ void fill(char* stage) const {
        #pragma unroll
        for (int i = 0; i < L::MANY; i++) {
            bring_row(stage + to + i * L::APART * L::ROW, x, x_row[i], x_bytes, x_left);
            bring_row(stage + L::TABLE + to + i * L::APART * L::ROW, grad, grad_row[i], grad_bytes,
                      grad_left);
        }
    }
    static __device__ __forceinline__ void bring_row(
        char* to, const char* table, int row, unsigned bytes, int left) {
        const bool exists = row >= 0 && left > 0;
        const char* from = exists ? table + (u64)(unsigned)row * bytes : table;
        bring<T, L::ALIGNED>(to, reinterpret_cast<const T*>(from), exists ? left : 0);
    }
};

template <class L> __device__ __forceinline__ void weight_grad(const WeightGradArgs& args) {
    __shared__ alignas(16) char stages[STAGES][L::STAGE];
    __shared__ float scales[STAGES][L::ROWS];
    unsigned index = blockIdx.x;                      // columns, then rows, then heads, then chunks
    const int first_column = (int)(index % (unsigned)args.across) * L::WIDTH;
    index /= (unsigned)args.across;
    const int first_row = (int)(index % (unsigned)args.down) * L::WIDTH;
    index /= (unsigned)args.down;
    const int head = (int)(index % (unsigned)args.heads);
    const RowTile tile(args.tiles, index / (unsigned)args.heads);
    if (tile.count == 0) return;
    const int warp = threadIdx.x / WARP, lower = warp / 2, half = warp % 2;
    const int steps = (tile.count + L::ROWS - 1) / L::ROWS;
    Entry<L> entry(threadIdx.x % WARP);
    #pragma unroll
    for (int i = 0; i < 8; i++)
        #pragma unroll
        for (int k = 0; k < 8; k++) entry.at(i, k) = 0.f;
    Rows<L> rows(args, head, first_row, first_column);
    const auto fill = [&](int stage, int step) {
        rows.fill(stages[stage]);
        if (L::SCALED && threadIdx.x < L::ROWS) {
            const int place = step * L::ROWS + threadIdx.x;
            scales[stage][threadIdx.x] = place < tile.count ? __ldg(args.scale + tile.first + place) : 0.f;
        }
        rows.find(args, tile, step + 1);
    };
    rows.find(args, tile, 0);
    #pragma unroll
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) fill(step, step);
        commit_copies();
    }
    int stage = 0;
    #pragma unroll 1
    for (int step = 0; step < steps; step++) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        const int next = step + STAGES - 1;
        if (next < steps) fill(stage == 0 ? STAGES - 1 : stage - 1, next);
        commit_copies();
        const char* from = stages[stage] + lower * L::HALF * L::ROW;
        entry.add(from, from + L::TABLE, scales[stage] + lower * L::HALF, half);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

    // The second pair of warps hands its sums to the first.
    constexpr int PAIR = GEMM_BLOCK / 2;
    static_assert(64 * PAIR * (int)sizeof(float) <= STAGES * L::STAGE, "sums fit the stages");
    float* const handed = reinterpret_cast<float*>(stages[0]) + threadIdx.x % PAIR;
    __syncthreads();
    if (lower) {
        #pragma unroll
        for (int i = 0; i < 64; i++) handed[i * PAIR] = entry.at(i / 8, i % 8);
    }
    __syncthreads();
    if (lower) return;
    float* const out = args.partial +
        (i64)index * args.inner * args.outer + (i64)first_row * args.outer + first_column + half * 32;
    const int live_rows = (int)args.inner - first_row;
    const int live_columns = (int)args.outer - first_column - half * 32;
    constexpr int RUN = Entry<L>::RUN;
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        #pragma unroll
        for (int k = 0; k < 8; k++) entry.at(i, k) += handed[(8 * i + k) * PAIR];
        if (entry.row(i) >= live_rows) continue;
        float* const to = out + (i64)entry.row(i) * args.outer;
        #pragma unroll
        for (int k = 0; k < 8; k += 4) {
            const int column = entry.column(k / RUN) + k % RUN;
            if (L::ALIGNED) {
                if (column < live_columns)
                    *reinterpret_cast<float4*>(to + column) = make_float4(
                        entry.at(i, k), entry.at(i, k + 1), entry.at(i, k + 2), entry.at(i, k + 3));
            } else {
                #pragma unroll
                for (int j = 0; j < 4; j++)
                    if (column + j < live_columns) to[column + j] = entry.at(i, k + j);
            }
        }
    }
}

struct WeightGradSumArgs {
    const float* partial;             // [tiles, heads, inner * outer]
    const int* first;                 // [T + 1] chunks of each type
    void* out;                        // [T, heads or 1, inner * outer]
    i64 heads, each;                  // heads, and whether each has a weight of its own
    i64 entries, blocks;              // inner * outer, and blocks for them
};

constexpr int SUM_BLOCK = 256;        // threads

// A block owns 32 entries of one weight; each of its warps adds every eighth chunk, and then the warps'
// sums are added in turn.
template <typename T> __device__ __forceinline__ void weight_grad_sum(const WeightGradSumArgs& args) {
    constexpr int WARPS = SUM_BLOCK / WARP;
    __shared__ float sums[WARPS][WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const i64 weight = blockIdx.x / (unsigned)args.blocks;
    const i64 entry = (i64)(blockIdx.x % (unsigned)args.blocks) * WARP + lane;
    const i64 type = args.each ? weight / args.heads : weight;
    const i64 apart = args.each ? args.heads : 1;     // partials of one weight
    const i64 begin = __ldg(args.first + type) * args.heads + (args.each ? weight % args.heads : 0);
    const i64 end = __ldg(args.first + type + 1) * args.heads;
    float sum = 0.f;
    if (entry < args.entries) {
        #pragma unroll 8
        for (i64 i = begin + warp * apart; i < end; i += WARPS * apart)
            sum += __ldg(args.partial + i * args.entries + entry);
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || entry >= args.entries) return;
    #pragma unroll
    for (int w = 1; w < WARPS; w++) sum += sums[w][lane];
    static_cast<T*>(args.out)[weight * args.entries + entry] = Storage<T>::put(sum);
}

}  // namespace gnnb
