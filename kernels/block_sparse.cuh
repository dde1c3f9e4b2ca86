// Tiles of 16 rows by 16 compacted columns (gnn_backend/graph/block_sparse.py) on tensor cores: what every
// pass over them shares. Weighted sums of rows are in block_sums.cuh, the passes of dot-product attention
// in block_attention.cuh.
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
#include "tensor_core.cuh"

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
    i64 num_tiles;
    const float* bias;                // [H, tiles, 256] added to logits in base 2, a lane's entries in a row
    float* bias_grad;                 // the same for its gradient, by destination; or null
    float scale, scale_log2;          // of a logit, and the same in base 2
};

// A head of D values, a multiple of 16, of type T, and how a pass trades registers for loads: HELD: the
// window's rows stay in registers; AHEAD: gathered rows are loaded a tile ahead. BIAS: edges have a value
// that is added to their logits.
template <typename T_, int D, bool HELD_, bool AHEAD_, bool BIAS_> struct Head {
    using T = T_;
    using Frugal = Head<T, D, false, false, BIAS_>;
    static constexpr bool HELD = HELD_, AHEAD = AHEAD_, BIAS = BIAS_;
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

// What is added to the logits of a tile's entries: of each edge its own value, if edges have one.
template <class H, bool BIAS = H::BIAS> struct LogitTerm {
    __device__ __forceinline__ void load(const BlockArgs&, i64, int, const Spot&) {}
    __device__ __forceinline__ float plus(int, int, float x) const { return x; }
};
template <class H> struct LogitTerm<H, true> {
    float4 value[2];
    __device__ __forceinline__ void load(const BlockArgs& args, i64 tile, int head, const Spot& at) {
        const float4* from = reinterpret_cast<const float4*>(args.bias) +
            ((head * args.num_tiles + tile) * WARP + at.lane) * 2;
        value[0] = __ldg(from);
        value[1] = __ldg(from + 1);
    }
    __device__ __forceinline__ float plus(int n, int i, float x) const {
        const float4& v = value[n];
        return x + (i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w);
    }
};

// Entry i of product n, of row g + 8 * (i / 2) and column 2 t + i % 2 + 8 n of a tile.
struct Entries { float x[2][4]; };

// Write the gradients of a tile's logits, each entry once.
__device__ __forceinline__ void store_entries(
    const BlockArgs& args, i64 tile, int head, const Spot& at, const Entries& grad) {
    float4* to = reinterpret_cast<float4*>(args.bias_grad) +
        ((head * args.num_tiles + tile) * WARP + at.lane) * 2;
    #pragma unroll
    for (int n = 0; n < 2; n++)
        to[n] = make_float4(grad.x[n][0], grad.x[n][1], grad.x[n][2], grad.x[n][3]);
}

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

// Call body(index, tile, rows, next) for the tiles of a task, where rows[i] are those of tables[i] and
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
        body(task.begin + index, tile, rows, [&] {
            #pragma unroll
            for (int i = 0; i < TABLES; i++) rows[i].load(tables[i], after, at);
            after.load(tiles, min(index + 2, last), at);
        });
    }
}

}  // namespace gnnb
