// Typed linear: out[o_i] = s_i * x[r_i] W[type of i], for places i that are sorted by type.
//
// Mapping. A block owns up to 128 places of one type, one head and COLUMNS columns of the result. Each step
// takes 64 bytes of every row: 128 gathered rows of x and COLUMNS rows of the weight, which lies with its
// inner dimension last, go through three stages of shared memory. Of four warps each has WARP_ROWS x
// WARP_COLUMNS results in registers. EXACT: lane 4 v + u has rows v + 8 i and columns 4 u to 4 u + 3 of
// every 16, and adds products in the order of the inner dimension. TENSOR: tensor cores, of which lane
// 4 g + t has rows g + 8 i and a run of columns. Rows of the weight go to the slots of a stage that give
// every lane neighbouring columns, so that results are written by 16 bytes.
//
// The four pieces of a row are permuted by bits 1 and 2 of its number, so that eight lanes that read one
// piece of eight rows, or four pieces of two, meet no bank twice.
//
// Bytes a place: its row of x once for every COLUMNS columns, its row of the result once, and the numbers of
// both. Determinism: every result has one owner and one order of additions; no atomics.
#pragma once
#include "gemm.cuh"

namespace gnnb {

struct LinearArgs {
    const int4* tiles;                // of 128 places
    const void* x;                    // [N, heads, inner]
    const void* weight;               // [T, weight_heads, outer, inner]
    void* out;                        // [M, heads, outer]
    const int *rows, *out_rows;       // of each place; null: the place itself
    const float* scale;               // of each place, or null
    i64 heads, weight_heads, inner, outer, column_tiles;
};

template <typename T_, Precision HOW_, int COLUMNS_, bool ALIGNED_> struct Linear {
    using T = T_;
    static constexpr Precision HOW = HOW_;
    static constexpr bool ALIGNED = ALIGNED_;
    static constexpr int ROWS = 128, COLUMNS = COLUMNS_;
    static constexpr int PER16 = Storage<T>::PER16;
    static constexpr int PIECES = 4, STEP = PIECES * PIECE;           // of a row at a time
    static constexpr int STAGE = (ROWS + COLUMNS) * STEP;             // bytes
    static constexpr int WARP_COLUMNS = COLUMNS < 32 ? COLUMNS : 32;
    static constexpr int WARPS_ACROSS = COLUMNS / WARP_COLUMNS;
    static constexpr int WARP_ROWS = ROWS * WARPS_ACROSS / (GEMM_BLOCK / WARP);
    static_assert(HOW == TENSOR || sizeof(T) == 4, "16-bit values are multiplied on tensor cores");
};

// Where in a stage a piece of a row lies.
__device__ __forceinline__ int piece_at(int row, int piece) {
    return row * 64 + (piece ^ (row >> 1 & 3)) * PIECE;
}

// The part of a block's results that a thread has: LINES rows, of each RUNS runs of RUN columns.
template <class L, Precision HOW = L::HOW> struct Part;

template <class L> struct Part<L, EXACT> {
    static constexpr int LINES = L::WARP_ROWS / 8, ACROSS = L::WARP_COLUMNS / 4, RUN = 4;
    static constexpr int RUNS = ACROSS / RUN;
    float sum[LINES][ACROSS];
    int u, v;
    __device__ __forceinline__ explicit Part(int lane) : u(lane % 4), v(lane / 4) {
        #pragma unroll
        for (int i = 0; i < LINES; i++)
            #pragma unroll
            for (int j = 0; j < ACROSS; j++) sum[i][j] = 0.f;
    }
    // The slot of a column: the middle two of its lower four bits and the lowest two change places.
    static __device__ __forceinline__ int slot(int column) {
        return (column & ~15) | (column & 3) << 2 | (column >> 2 & 3);
    }
    __device__ __forceinline__ int line(int i) const { return v + 8 * i; }
    __device__ __forceinline__ int column(int run) const { return 16 * run + 4 * u; }
    __device__ __forceinline__ float value(int i, int run, int k) const { return sum[i][RUN * run + k]; }

    __device__ __forceinline__ void add(const char* rows, const char* columns) {
        #pragma unroll 1                              // unrolled, loads of later pieces spill
        for (int piece = 0; piece < L::PIECES; piece++) {
            float4 a[LINES];
            const char* const row = rows + piece_at(v, piece);
            #pragma unroll
            for (int i = 0; i < LINES; i++)
                a[i] = *reinterpret_cast<const float4*>(row + 8 * i * L::STEP);
            // Of slots u + 4 j: odd j turn the upper bit of the permutation, and u the lower.
            const char* const column[2] = {columns + piece_at(u, piece), columns + piece_at(u, piece ^ 2)};
            #pragma unroll
            for (int j = 0; j < ACROSS; j++) {
                const float4 b = *reinterpret_cast<const float4*>(column[j % 2] + 4 * j * L::STEP);
                #pragma unroll
                for (int i = 0; i < LINES; i++) sum[i][j] = fmaf(a[i].x, b.x, sum[i][j]);
                #pragma unroll
                for (int i = 0; i < LINES; i++) sum[i][j] = fmaf(a[i].y, b.y, sum[i][j]);
                #pragma unroll
                for (int i = 0; i < LINES; i++) sum[i][j] = fmaf(a[i].z, b.z, sum[i][j]);
                #pragma unroll
                for (int i = 0; i < LINES; i++) sum[i][j] = fmaf(a[i].w, b.w, sum[i][j]);
            }
        }
    }
};

template <class L> struct Part<L, TENSOR> {
    static constexpr int BANDS = L::WARP_ROWS / 16, ACROSS = L::WARP_COLUMNS / 8;
    static constexpr int LINES = 2 * BANDS, RUN = 2 * ACROSS, RUNS = 1;
    using Core = TensorCore<typename L::T>;
    float sum[BANDS][ACROSS][4];
    int g, t;
    __device__ __forceinline__ explicit Part(int lane) : g(lane / 4), t(lane % 4) {
        #pragma unroll
        for (int m = 0; m < BANDS; m++)
            #pragma unroll
            for (int n = 0; n < ACROSS; n++)
                #pragma unroll
                for (int i = 0; i < 4; i++) sum[m][n][i] = 0.f;
    }
    // Product n of a lane gives columns 2 t and 2 t + 1 of its slots: they are 2 n and 2 n + 1 of the run.
    static __device__ __forceinline__ int slot(int column) {
        const int within = column % L::WARP_COLUMNS, at = within % RUN;
        return column - within + at / 2 * 8 + within / RUN * 2 + at % 2;
    }
    __device__ __forceinline__ int line(int i) const { return g + 8 * i; }
    __device__ __forceinline__ int column(int) const { return RUN * t; }
    __device__ __forceinline__ float value(int i, int, int k) const {
        return sum[i / 2][k / 2][2 * (i % 2) + k % 2];
    }

    // Lane t takes piece t of every row: what a product sums over may be in any order that both sides share.
    __device__ __forceinline__ void add(const char* rows, const char* columns) {
        const int at = piece_at(g, t);
        uint4 upper[BANDS], lower[BANDS];
        #pragma unroll
        for (int m = 0; m < BANDS; m++) {
            upper[m] = operand(rows + at + 16 * m * L::STEP);
            lower[m] = operand(rows + at + (16 * m + 8) * L::STEP);
        }
        #pragma unroll
        for (int n = 0; n < ACROSS; n++) {
            const uint4 b = operand(columns + at + 8 * n * L::STEP);
            #pragma unroll
            for (int m = 0; m < BANDS; m++) {
                Core::multiply(sum[m][n], upper[m].x, lower[m].x, upper[m].y, lower[m].y, b.x, b.y);
                Core::multiply(sum[m][n], upper[m].z, lower[m].z, upper[m].w, lower[m].w, b.z, b.w);
            }
        }
    }
    static __device__ __forceinline__ uint4 operand(const char* from) {
        const uint4 u = *reinterpret_cast<const uint4*>(from);
        return make_uint4(Core::operand(u.x), Core::operand(u.y), Core::operand(u.z), Core::operand(u.w));
    }
};

// What a thread brings into each stage: a piece of every 32nd row, of x and of the weight.
template <class L> struct Sources {
    using T = typename L::T;
    static constexpr int APART = GEMM_BLOCK / L::PIECES;
    static constexpr int MANY = L::ROWS / APART, FEW = (L::COLUMNS + APART - 1) / APART;
    static_assert(APART % 32 == 0, "rows so far apart have their pieces permuted alike");
    const char *x, *weight;           // this thread's piece of row 0, and of its first column
    int row[MANY];
    unsigned row_bytes, live;         // of a row of x; bits of what exists: rows, then columns
    int left, to_row, to_column;      // values from the piece on; bytes into a stage

    __device__ __forceinline__ Sources(
        const LinearArgs& args, const RowTile& tile, int head, int first_column) {
        const int at = threadIdx.x / L::PIECES, piece = threadIdx.x % L::PIECES;
        const int inner = (int)args.inner, outer = (int)args.outer, first = piece * L::PER16;
        left = inner - first;
        row_bytes = (unsigned)(args.heads * args.inner) * (unsigned)sizeof(T);
        x = static_cast<const char*>(args.x) + (head * args.inner + first) * (i64)sizeof(T);
        const i64 matrix = tile.segment * args.weight_heads + (args.weight_heads > 1 ? head : 0);
        weight = static_cast<const char*>(args.weight) +
            ((matrix * args.outer + first_column + at) * args.inner + first) * (i64)sizeof(T);
        to_row = piece_at(at, piece);
        to_column = L::ROWS * L::STEP + piece_at(Part<L>::slot(at), piece);
        live = 0;
        #pragma unroll
        for (int i = 0; i < MANY; i++) {
            const int place = at + i * APART;
            const bool exists = place < tile.count;
            row[i] = exists ? listed(args.rows, tile.first + place) : 0;
            live |= (unsigned)exists << i;
        }
        #pragma unroll
        for (int i = 0; i < FEW; i++) {
            const int line = at + i * APART;
            const bool exists = line < L::COLUMNS && first_column + line < outer;
            live |= (unsigned)exists << (MANY + i);
        }
    }
    __device__ __forceinline__ void fill(const LinearArgs& args, char* stage, int step) {
        row_bytes = opaque(row_bytes);  // else rows' offsets are kept instead, in twice the registers
        const int begin = step * L::STEP, rest = left - step * (L::PIECES * L::PER16);
        const u64 table = reinterpret_cast<u64>(x + begin);
        #pragma unroll
        for (int i = 0; i < MANY; i++) {
            const char* from = reinterpret_cast<const char*>((u64)(unsigned)row[i] * row_bytes + table);
            bring<T, L::ALIGNED>(stage + to_row + i * APART * L::STEP,
                                 reinterpret_cast<const T*>(from), live >> i & 1 ? rest : 0);
        }
        #pragma unroll
        for (int i = 0; i < FEW; i++) {
            if (L::COLUMNS < APART && (int)threadIdx.x >= L::COLUMNS * L::PIECES) continue;
            const char* from = weight + i * APART * (unsigned)args.inner * (u64)sizeof(T) + begin;
            bring<T, L::ALIGNED>(stage + to_column + i * APART * L::STEP,
                                 reinterpret_cast<const T*>(from), live >> (MANY + i) & 1 ? rest : 0);
        }
    }
};

template <class L>
__device__ __forceinline__ void store_run(
    const Part<L>& part, int i, int run, float scale, typename L::T* to, int columns) {
    using T = typename L::T;
    constexpr int RUN = Part<L>::RUN, PER16 = L::PER16;
    float y[RUN];
    #pragma unroll
    for (int k = 0; k < RUN; k++) y[k] = scale * part.value(i, run, k);
    if constexpr (L::ALIGNED && RUN % PER16 == 0) {
        #pragma unroll
        for (int k = 0; k < RUN; k += PER16)
            if (k < columns) *reinterpret_cast<uint4*>(to + k) = Storage<T>::pack(y + k);
    } else {
        #pragma unroll
        for (int k = 0; k < RUN; k++)
            if (k < columns) to[k] = Storage<T>::put(y[k]);
    }
}

template <class L> __device__ __forceinline__ void typed_linear(const LinearArgs& args) {
    using T = typename L::T;
    __shared__ alignas(16) char stages[STAGES][L::STAGE];
    unsigned index = blockIdx.x;                      // columns, then heads, then tiles
    const int first_column = (int)(index % (unsigned)args.column_tiles) * L::COLUMNS;
    index /= (unsigned)args.column_tiles;
    const int head = (int)(index % (unsigned)args.heads);
    const RowTile tile(args.tiles, index / (unsigned)args.heads);
    if (tile.count == 0) return;
    const int warp = threadIdx.x / WARP;
    const int first_row = warp / L::WARPS_ACROSS * L::WARP_ROWS;
    const int across = warp % L::WARPS_ACROSS * L::WARP_COLUMNS;
    const int steps = ((int)args.inner + L::PIECES * L::PER16 - 1) / (L::PIECES * L::PER16);
    Part<L> part(threadIdx.x % WARP);
    Sources<L> sources(args, tile, head, first_column);

    #pragma unroll
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) sources.fill(args, stages[step], step);
        commit_copies();
    }
    int stage = 0;
    #pragma unroll 1
    for (int step = 0; step < steps; step++) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        const int next = step + STAGES - 1;
        if (next < steps) sources.fill(args, stages[stage == 0 ? STAGES - 1 : stage - 1], next);
        commit_copies();
        const char* from = stages[stage];
        part.add(from + first_row * L::STEP, from + (L::ROWS + across) * L::STEP);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

    char* const out = static_cast<char*>(args.out) +
        (head * args.outer + first_column + across + part.column(0)) * (i64)sizeof(T);
    const unsigned out_bytes = (unsigned)(args.heads * args.outer) * (unsigned)sizeof(T);
    const int columns = (int)args.outer - first_column - across - part.column(0);
    #pragma unroll
    for (int i = 0; i < Part<L>::LINES; i++) {
        const int line = first_row + part.line(i);
        if (line >= tile.count) continue;
        const int place = tile.first + line;
        const float scale = args.scale == nullptr ? 1.f : __ldg(args.scale + place);
        T* to = reinterpret_cast<T*>(out + (u64)(unsigned)listed(args.out_rows, place) * out_bytes);
        #pragma unroll
        for (int run = 0; run < Part<L>::RUNS; run++) {
            const int ahead = part.column(run) - part.column(0);
            store_run<L>(part, i, run, scale, to + ahead, columns - ahead);
        }
    }
}

}  // namespace gnnb
