// Tiles of 16 rows by 16 compacted columns (gnn_backend/graph/block_sparse.py) on tensor cores: what every
// pass over them shares. The passes of dot-product attention are in block_attention.cuh.
//
// Mapping. A warp owns a task: tiles of one window of 16 rows, of one head (blockIdx.y). Lane 4 g + t has
// rows g and g + 8 of the window, and of a tile the eight entries of these rows in columns 2 t, 2 t + 1,
// 2 t + 8 and 2 t + 9, which is how tensor cores give a product of 16 x 16 and take it back as the
// left side of the next. Gathered rows go from memory straight into fragments, by accesses of up to 16
// bytes: what a product sums over may be in any order that both sides share, and so may its columns.
// Windows of several tasks write partials, merged in slot order by block_merge.cuh.
//
// Bytes a tile and head: 64 of ids, 32 of bitmap, and 16 rows for each gathered table, with no regard to
// how many of the 256 pairs are edges. Nothing edge-wise is written. Determinism: no atomics; the order of
// every sum is fixed by the tasks.
#pragma once
#include "common.cuh"

namespace gnnb {

constexpr int TILE = 16;

// Arguments of all passes; unused pointers are null.
struct BlockArgs {
    const int4* tasks;                // over the windows, counted in tiles
    i64 num_tasks;
    const int* columns;               // [tiles * 16]
    const unsigned char* masks;       // [tiles * 32]
    const unsigned* occupied;         // [windows] bits of the rows that have edges
    i64 num_rows, heads;
    const void* row_table[2];         // read at the window's rows
    const void* column_table[2];      // gathered
    float2* row_stats;                // [N_dst, H] (lse, <grad_out, out>)
    void* out[2];                     // [rows, H, D]
    float* lse;                       // [rows, H], base 2
    float* partial[2];                // [slots, 16, H, D]
    float2* partial_stats;            // [slots, 16, H] (max, sum)
    float scale, scale_log2;          // of a logit, and the same in base 2
};

// A product of tensor cores takes 32 bytes of each row at a time. `operand`: as it takes a word.
template <typename T> struct TensorCore;
template <> struct TensorCore<bf16> {
    static __device__ __forceinline__ unsigned operand(unsigned x) { return x; }
    static __device__ __forceinline__ unsigned pack(float lo, float hi) { return pack_bf16x2(lo, hi); }
    static __device__ __forceinline__ void multiply(
        float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
        mma_bf16(c, a0, a1, a2, a3, b0, b1);
    }
};
template <> struct TensorCore<f16> {
    static __device__ __forceinline__ unsigned operand(unsigned x) { return x; }
    static __device__ __forceinline__ unsigned pack(float lo, float hi) { return pack_f16x2(lo, hi); }
    static __device__ __forceinline__ void multiply(
        float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
        mma_f16(c, a0, a1, a2, a3, b0, b1);
    }
};
template <> struct TensorCore<float> {
    static __device__ __forceinline__ unsigned operand(unsigned x) { return round_tf32(x); }
    static __device__ __forceinline__ void multiply(
        float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
        mma_tf32(c, a0, a1, a2, a3, b0, b1);
    }
};

// A head of D values, a multiple of 16, of type T, and how a pass trades registers for loads: HELD: the
// window's rows stay in registers; AHEAD: gathered rows are loaded a tile ahead.
template <typename T_, int D, bool HELD_, bool AHEAD_> struct Head {
    using T = T_;
    using Frugal = Head<T, D, false, false>;
    static constexpr bool HELD = HELD_, AHEAD = AHEAD_;
    static constexpr int DIM = D, BYTES = D * (int)sizeof(T);
    // Dot products: bytes of a row that a lane loads at once, and how often.
    static constexpr int PIECE = BYTES % 64 ? 8 : 16, PIECES = BYTES / (4 * PIECE);
    // Weighted sums: values of a row that a lane loads at once, and how often.
    static constexpr int ACCESS = BYTES % 128 == 0 ? 16 : BYTES % 64 == 0 ? 8 : 4;
    static constexpr int VALUES = ACCESS / (int)sizeof(T), SEGMENTS = BYTES / (8 * ACCESS);
};
// The layout of a pass; of its exact form, which is rare, the one of the fewest registers.
template <class H, bool EXACT> struct Path { using type = H; };
template <class H> struct Path<H, true> { using type = typename H::Frugal; };

// Rows of one head of a table, `head_bytes` long.
struct Rows {
    const char* base;
    unsigned bytes;                               // a row of all heads (below 2^32; checked on the host)
    __device__ __forceinline__ Rows(const void* table, i64 heads, int head, int head_bytes)
        : base(static_cast<const char*>(table) + (i64)head * head_bytes),
          bytes((unsigned)heads * (unsigned)head_bytes) {}
    __device__ __forceinline__ const char* operator[](int row) const {
        return base + (u64)(unsigned)row * bytes;
    }
};

template <int BYTES> struct Words { unsigned word[BYTES / 4]; };
template <int BYTES> __device__ __forceinline__ Words<BYTES> load_words(const char* from) {
    Words<BYTES> w;
    if constexpr (BYTES == 16) {
        const uint4 v = __ldg(reinterpret_cast<const uint4*>(from));
        w.word[0] = v.x; w.word[1] = v.y; w.word[2] = v.z; w.word[3] = v.w;
    } else if constexpr (BYTES == 8) {
        const uint2 v = __ldg(reinterpret_cast<const uint2*>(from));
        w.word[0] = v.x; w.word[1] = v.y;
    } else {
        w.word[0] = __ldg(reinterpret_cast<const unsigned*>(from));
    }
    return w;
}

template <class H>
__device__ __forceinline__ Rows head_rows(const void* table, const BlockArgs& args, int head) {
    return Rows(table, args.heads, head, H::BYTES);
}

// Lane 4 g + t of the warp.
struct Spot {
    int lane, g, t;
    __device__ __forceinline__ Spot() : lane(threadIdx.x & (WARP - 1)), g(lane / 4), t(lane % 4) {}
};

// A quarter of a row as one side of dot products, in registers or loaded when it is used.
template <class H, bool IN_REGISTERS> struct Pieces {
    Words<H::PIECE> held[H::PIECES];
    __device__ __forceinline__ void load(const char* row, const Spot& at, bool live = true) {
        #pragma unroll
        for (int p = 0; p < H::PIECES; p++) {
            if (live) held[p] = load_words<H::PIECE>(row + (4 * p + at.t) * H::PIECE);
            else held[p] = Words<H::PIECE>();
        }
    }
    __device__ __forceinline__ Words<H::PIECE> piece(int p) const { return held[p]; }
};
template <class H> struct Pieces<H, false> {
    const char* from;
    bool exists;
    __device__ __forceinline__ void load(const char* row, const Spot& at, bool live = true) {
        from = row + at.t * H::PIECE;
        exists = live;
    }
    __device__ __forceinline__ Words<H::PIECE> piece(int p) const {
        return exists ? load_words<H::PIECE>(from + 4 * p * H::PIECE) : Words<H::PIECE>();
    }
};

// Rows g and g + 8 of a window; rows past the last read as zeros.
template <class H> struct WindowRows {
    Pieces<H, H::HELD> upper, lower;
    __device__ __forceinline__ void load(const Rows& table, const Spot& at, int first, i64 num_rows) {
        const int row = first + at.g;
        upper.load(table[row], at, row < num_rows);
        lower.load(table[row + 8], at, row + 8 < num_rows);
    }
};

// The ids and bitmaps of a task's tiles, as a lane reads them.
struct Tiles {
    const int* ids;
    const unsigned char* masks;
    __device__ __forceinline__ Tiles(const BlockArgs& args, i64 first, const Spot& at)
        : ids(args.columns + first * TILE), masks(args.masks + first * WARP + at.lane) {}
};

// Columns g and g + 8 of a tile, which a lane gathers for dot products.
struct Gathered {
    int id[2];
    __device__ __forceinline__ void load(const Tiles& tiles, int tile, const Spot& at) {
        #pragma unroll
        for (int n = 0; n < 2; n++) id[n] = __ldg(tiles.ids + tile * TILE + 8 * n + at.g);
    }
};

// Entries of a tile that a lane has.
struct Tile {
    int2 pair[2];             // columns 2 t and 2 t + 1, 2 t + 8 and 2 t + 9
    unsigned mask;            // bit 4 n + i: entry i of product n is an edge
    __device__ __forceinline__ void load(const Tiles& tiles, int tile, const Spot& at) {
        #pragma unroll
        for (int n = 0; n < 2; n++)
            pair[n] = __ldg(reinterpret_cast<const int2*>(tiles.ids + tile * TILE + 8 * n) + at.t);
        mask = __ldg(tiles.masks + tile * WARP);
    }
    __device__ __forceinline__ bool has(int n, int i) const { return mask >> (4 * n + i) & 1; }
    // Column of entry i of product n.
    __device__ __forceinline__ int column(int n, int i) const { return i & 1 ? pair[n].y : pair[n].x; }
};

// The rows of a tile's columns as right sides of dot products.
template <class H> struct TileRows {
    Pieces<H, H::AHEAD> column[2];
    __device__ __forceinline__ void load(const Rows& table, const Gathered& from, const Spot& at) {
        #pragma unroll
        for (int n = 0; n < 2; n++) column[n].load(table[from.id[n]], at);
    }
};

// Entry i of product n, of row g + 8 * (i / 2) and column 2 t + i % 2 + 8 n of a tile.
struct Entries { float x[2][4]; };

// Dot products of the window's rows and a tile's.
template <class H>
__device__ __forceinline__ Entries dots(const WindowRows<H>& rows, const TileRows<H>& columns) {
    using Core = TensorCore<typename H::T>;
    Entries c;
    #pragma unroll
    for (int n = 0; n < 2; n++)
        #pragma unroll
        for (int i = 0; i < 4; i++) c.x[n][i] = 0.f;
    // What is loaded here is loaded in small lots, for it is here that registers are short.
    constexpr int UNROLL = H::HELD || H::AHEAD ? H::PIECES : 2;
    #pragma unroll UNROLL
    for (int p = 0; p < H::PIECES; p++) {
        const auto upper = rows.upper.piece(p), lower = rows.lower.piece(p);
        #pragma unroll
        for (int n = 0; n < 2; n++) {
            const auto column = columns.column[n].piece(p);
            #pragma unroll
            for (int w = 0; w < H::PIECE / 4; w += 2)
                Core::multiply(c.x[n], Core::operand(upper.word[w]), Core::operand(lower.word[w]),
                               Core::operand(upper.word[w + 1]), Core::operand(lower.word[w + 1]),
                               Core::operand(column.word[w]), Core::operand(column.word[w + 1]));
        }
    }
    return c;
}

// Part of the four rows of a tile that a lane weights.
template <class H> struct Segment {
    Words<H::ACCESS> row[4];
    __device__ __forceinline__ void load(
        const Rows& table, const Tile& tile, const Spot& at, int segment) {
        const int offset = (segment * 8 + at.g) * H::ACCESS;
        #pragma unroll
        for (int r = 0; r < 4; r++)
            row[r] = load_words<H::ACCESS>(table[tile.column(r / 2, r)] + offset);
    }
};

// Sums of a window's rows. Of segment s a lane has the 2 * VALUES values from first(s) on of row g, in
// elements 0 and then 1, and of row g + 8, in elements 2 and then 3.
template <class H> struct Sums {
    using T = typename H::T;
    using Core = TensorCore<T>;
    static constexpr int K = H::VALUES, RUN = 2 * K;
    float x[H::SEGMENTS][K][4];

    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (int s = 0; s < H::SEGMENTS; s++)
            #pragma unroll
            for (int k = 0; k < K; k++)
                #pragma unroll
                for (int i = 0; i < 4; i++) x[s][k][i] = 0.f;
    }
    __device__ __forceinline__ void scale(float upper, float lower) {
        #pragma unroll
        for (int s = 0; s < H::SEGMENTS; s++)
            #pragma unroll
            for (int k = 0; k < K; k++)
                #pragma unroll
                for (int i = 0; i < 4; i++) x[s][k][i] *= i < 2 ? upper : lower;
    }
    __device__ __forceinline__ bool any_nan() const {
        bool found = false;
        #pragma unroll
        for (int s = 0; s < H::SEGMENTS; s++)
            #pragma unroll
            for (int k = 0; k < K; k++)
                #pragma unroll
                for (int i = 0; i < 4; i++) found |= x[s][k][i] != x[s][k][i];
        return found;
    }

    // Add weighted rows of a tile. Weights are rounded to the storage type, those of no edge are 0; a row
    // with an infinity or NaN spoils the sums of the whole window. `ahead`: segment 0 of the rows.
    __device__ __forceinline__ void add(
        const Entries& weight, const Rows& table, const Tile& tile, const Spot& at,
        const Segment<H>& ahead) {
        Segment<H> part = ahead;
        #pragma unroll
        for (int s = 0; s < H::SEGMENTS; s++) {
            if (s > 0) part.load(table, tile, at, s);
            if constexpr (sizeof(T) == 2) {
                const float (&w)[2][4] = weight.x;
                const unsigned a0 = Core::pack(w[0][0], w[0][1]), a1 = Core::pack(w[0][2], w[0][3]);
                const unsigned a2 = Core::pack(w[1][0], w[1][1]), a3 = Core::pack(w[1][2], w[1][3]);
                #pragma unroll
                for (int k = 0; k < K; k++)
                    Core::multiply(x[s][k], a0, a1, a2, a3, couple(part.row[0], part.row[1], k),
                                   couple(part.row[2], part.row[3], k));
            } else {
                #pragma unroll
                for (int n = 0; n < 2; n++) {
                    unsigned a[4];
                    #pragma unroll
                    for (int i = 0; i < 4; i++) a[i] = Core::operand(__float_as_uint(weight.x[n][i]));
                    #pragma unroll
                    for (int k = 0; k < K; k++)
                        Core::multiply(x[s][k], a[0], a[2], a[1], a[3],
                                       Core::operand(part.row[2 * n].word[k]),
                                       Core::operand(part.row[2 * n + 1].word[k]));
                }
            }
        }
    }
    // Value k of two rows of 16 bits in one word.
    static __device__ __forceinline__ unsigned couple(
        const Words<H::ACCESS>& a, const Words<H::ACCESS>& b, int k) {
        const unsigned lo = a.word[k / 2], hi = b.word[k / 2];
        return k & 1 ? lo >> 16 | (hi & 0xffff0000u) : (lo & 0xffffu) | hi << 16;
    }

    // The same over the edges alone, one column at a time.
    __device__ void add_exact(
        const Entries& weight, const Rows& table, const Tile& tile, const Spot& at) {
        #pragma unroll 1
        for (int c = 0; c < TILE; c++) {
            const int n = c / 8, from = at.lane / 4 * 4 + c % 8 / 2;
            const bool odd = c & 1;
            float w[2];
            bool live[2];
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                const float even_one = n ? weight.x[1][2 * half] : weight.x[0][2 * half];
                const float odd_one = n ? weight.x[1][2 * half + 1] : weight.x[0][2 * half + 1];
                w[half] = __shfl_sync(ALL_LANES, odd ? odd_one : even_one, from);
                live[half] = __shfl_sync(ALL_LANES, tile.mask, from) >> (4 * n + 2 * half + odd) & 1;
            }
            const int2 ids = n ? tile.pair[1] : tile.pair[0];
            const int id = __shfl_sync(ALL_LANES, odd ? ids.y : ids.x, from);
            const T* row = reinterpret_cast<const T*>(table[id]);
            #pragma unroll
            for (int s = 0; s < H::SEGMENTS; s++)
                #pragma unroll
                for (int k = 0; k < K; k++)
                    #pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float value = Storage<T>::get(row[first(s, at) + K * (i & 1) + k]);
                        if (live[i / 2]) x[s][k][i] = fmaf(w[i / 2], value, x[s][k][i]);
                    }
        }
    }

    static __device__ __forceinline__ int first(int segment, const Spot& at) {
        return segment * 8 * K + at.t * RUN;
    }

    // Write row g or, with half = 1, row g + 8, in the storage type.
    __device__ __forceinline__ void store(T* row, int half, const Spot& at) const {
        constexpr int PER16 = Storage<T>::PER16;
        #pragma unroll
        for (int s = 0; s < H::SEGMENTS; s++) {
            float run[RUN < PER16 ? PER16 : RUN];
            unpack(s, half, run);
            T* to = row + first(s, at);
            if constexpr (RUN < PER16) {
                #pragma unroll
                for (int k = RUN; k < PER16; k++) run[k] = 0.f;
                const uint4 word = Storage<T>::pack(run);
                *reinterpret_cast<uint2*>(to) = make_uint2(word.x, word.y);
            } else {
                #pragma unroll
                for (int k = 0; k < RUN; k += PER16)
                    store_streaming(reinterpret_cast<uint4*>(to + k), Storage<T>::pack(run + k));
            }
        }
    }
    // The same as float32.
    __device__ __forceinline__ void store_partial(float* row, int half, const Spot& at) const {
        #pragma unroll
        for (int s = 0; s < H::SEGMENTS; s++) {
            float run[RUN];
            unpack(s, half, run);
            #pragma unroll
            for (int k = 0; k < RUN; k += 4)
                *reinterpret_cast<float4*>(row + first(s, at) + k) =
                    make_float4(run[k], run[k + 1], run[k + 2], run[k + 3]);
        }
    }
    __device__ __forceinline__ void unpack(int s, int half, float* run) const {
        #pragma unroll
        for (int k = 0; k < RUN; k++) run[k] = x[s][k % K][2 * half + k / K];
    }
};

// A warp's task, and where its rows are written.
struct BlockTask {
    Task task;
    bool exists;
    int first;                                    // row
    __device__ __forceinline__ explicit BlockTask(const BlockArgs& args) {
        const i64 index = (i64)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP;
        exists = index < args.num_tasks;
        if (!exists) return;
        task = load_task(args.tasks, index);
        first = task.row * TILE;
    }
    // Offset of a window's row in units of rows of one head: in the result, or in the partials.
    __device__ __forceinline__ i64 place(const BlockArgs& args, int row, int head) const {
        const i64 begin = task.slot < 0 ? first : (i64)task.slot * TILE;
        return (begin + row) * args.heads + head;
    }
};

// Write a window's sums into result number `which`, or its partials.
template <class H>
__device__ __forceinline__ void store_window(
    const BlockArgs& args, int which, const BlockTask& own, int head, const Spot& at,
    const Sums<H>& sums) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = at.g + 8 * half;
        const i64 offset = own.place(args, row, head) * H::DIM;
        if (own.task.slot >= 0) sums.store_partial(args.partial[which] + offset, half, at);
        else if (own.first + row < args.num_rows)
            sums.store(static_cast<typename H::T*>(args.out[which]) + offset, half, at);
    }
}

// Call body(tile, rows, next) for the tiles of a task, where rows[i] are those of tables[i] and
// next() starts to load those of the tile after, once these are not needed any more.
template <class H, int TABLES, class Body>
__device__ __forceinline__ void for_tiles(
    const BlockArgs& args, const Task& task, const Spot& at, const Rows (&tables)[TABLES], Body body) {
    const Tiles tiles(args, task.begin, at);
    const int last = task.count - 1;
    Gathered after;
    TileRows<H> rows[TABLES];
    after.load(tiles, 0, at);
    #pragma unroll
    for (int i = 0; i < TABLES; i++) rows[i].load(tables[i], after, at);
    after.load(tiles, min(1, last), at);
    #pragma unroll 1
    for (int index = 0; index <= last; index++) {
        Tile tile;
        tile.load(tiles, index, at);
        body(tile, rows, [&] {
            #pragma unroll
            for (int i = 0; i < TABLES; i++) rows[i].load(tables[i], after, at);
            after.load(tiles, min(index + 2, last), at);
        });
    }
}

}  // namespace gnnb
