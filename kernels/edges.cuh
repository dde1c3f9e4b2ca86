// What the sparse operators share (spmm.cuh, sddmm.cuh, edge_softmax.cuh): how the columns of a row
// of any width lie over the lanes, how operands that broadcast are read, the loop over edges.
//
// Mapping. A task is a chunk of one row's edges. LANES lanes hold VALUES columns each of what one
// edge gives, EDGES edges of the task stand side by side, and DEPTH more are in flight a lane: their
// rows are all asked for before the first is used. So GROUP = LANES * EDGES lanes own a task, and
// TASKS tasks, of like length since tasks come longest first, stand side by side in a warp. Rows
// wider than LANES * VALUES columns are cut into tiles, over which blockIdx.y runs.
#pragma once
#include "common.cuh"

namespace gnnb {

// Layout of columns over lanes. VECTOR: a lane's VALUES columns are one 16-byte access; else they
// are LANES apart and read one by one, unless they are a whole row of at most 16 bytes (SHORT).
// FULL: the width is a multiple of LANES * VALUES, else the last tile is masked.
template <typename T_, int LANES_, int EDGES_, int VALUES_, bool VECTOR_, bool FULL_> struct Columns {
    using T = T_;
    using C = typename Arithmetic<T>::type;
    static constexpr int LANES = LANES_, EDGES = EDGES_, VALUES = VALUES_;
    static constexpr bool VECTOR = VECTOR_, FULL = FULL_;
    static constexpr int GROUP = LANES * EDGES, TASKS = WARP / GROUP, TILE = LANES * VALUES;
    static constexpr bool SHORT = !VECTOR && FULL && LANES == 1 && VALUES * sizeof(T) <= 16;
    static_assert(!VECTOR || VALUES == Storage<T>::PER16, "a vector is 16 bytes");
    static_assert(WARP % GROUP == 0, "lane layout does not fit a warp");
};

// Where a lane stands in its warp, and which columns of a tile are its own.
template <class L> struct Place {
    int lane, place, edge, within;   // lane of the warp; of its group; which edge; lane of the edge
    int width, first;                // columns of a row; this lane's first one
    __device__ __forceinline__ Place(i64 width_, int tile) {
        lane = threadIdx.x & (WARP - 1);
        place = lane % L::GROUP;
        edge = place / L::LANES;
        within = lane % L::LANES;
        width = (int)width_;
        first = tile * L::TILE + within * (L::VECTOR ? L::VALUES : 1);
    }
    __device__ __forceinline__ int column(int v) const { return first + v * (L::VECTOR ? 1 : L::LANES); }
    __device__ __forceinline__ bool holds(int v) const {
        return L::FULL || (L::VECTOR ? first : column(v)) < width;
    }
};

// The task of this lane's group, or one without edges past the end; `longest` over the warp.
template <class L> struct Assigned {
    Task task;
    bool exists;
    int longest;
    __device__ __forceinline__ Assigned(const int4* tasks, i64 num_tasks, i64 warp) {
        const i64 index = warp * L::TASKS + (threadIdx.x & (WARP - 1)) / L::GROUP;
        exists = index < num_tasks;
        task = Task{0, 0, -1, 0};
        if (exists) task = load_task(tasks, index);
        find_longest();
    }
    __device__ __forceinline__ void find_longest() {
        longest = task.count;
        #pragma unroll
        for (int o = L::GROUP; o < WARP; o <<= 1)
            longest = max(longest, __shfl_xor_sync(ALL_LANES, longest, o));
    }
    // The same, without edges where `keep` is false. Every lane of the warp takes part.
    __device__ __forceinline__ Assigned only(bool keep) const {
        Assigned kept = *this;
        if (!keep) kept.task.count = 0;
        kept.find_longest();
        return kept;
    }
};

__device__ __forceinline__ i64 this_warp() {
    return ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
}

// How an operand gives a value for a column of the result: it has that column (ROW); it has one
// value for every `dim` columns (HEAD); it has the value at offsets[column] (TABLE).
enum Access { NONE, ROW, HEAD, TABLE };

// A table whose rows belong to nodes or edges. `stride`: bytes a row, below 2^32.
struct Table {
    const void* data;
    const int* offsets;
    i64 stride;
};

template <typename T>
__device__ __forceinline__ const T* at_row(const T* base, int row, i64 stride) {
    return reinterpret_cast<const T*>(
        reinterpret_cast<u64>(base) + (u64)(unsigned)row * (unsigned)stride);
}
template <typename T>
__device__ __forceinline__ const T* at_row(const T* base, i64 row, i64 stride) {
    return reinterpret_cast<const T*>(reinterpret_cast<u64>(base) + (u64)row * (u64)stride);
}

// N values that are read or written in one access.
template <typename T, int N> struct alignas(sizeof(T) * N) Bundle { T value[N]; };

// The values of one row that a lane needs, as loaded.
template <class L, bool WORD, int HELD> struct Fragment {
    typename L::C value[HELD];
    __device__ __forceinline__ void unpack(typename L::C (&x)[L::VALUES]) const {
        #pragma unroll
        for (int v = 0; v < L::VALUES; v++) x[v] = value[HELD == 1 ? 0 : v];
    }
};
template <class L, int HELD> struct Fragment<L, true, HELD> {
    uint4 word;
    __device__ __forceinline__ void unpack(typename L::C (&x)[L::VALUES]) const {
        Storage<typename L::T>::unpack(word, x);
    }
};

// An operand read in a lane's columns. ONCE: nobody reads the row again.
template <class L, Access A, bool ONCE = false> struct Operand {
    using T = typename L::T;
    static constexpr bool WORD = L::VECTOR && A == ROW;
    static constexpr int HELD = A == NONE || L::VECTOR ? 1 : L::VALUES;
    static_assert(A != TABLE || !L::VECTOR, "values at given offsets are read one by one");
    using Loaded = Fragment<L, WORD, HELD>;

    const T* base;
    i64 stride;
    int offset[A == ROW || A == NONE ? 1 : HELD];

    __device__ __forceinline__ Operand(const Table& table, const Place<L>& at, i64 dim) {
        if constexpr (A == NONE) return;
        stride = table.stride;
        base = static_cast<const T*>(table.data) + (A == ROW ? at.first : 0);
        if constexpr (A == HEAD || A == TABLE) {
            #pragma unroll
            for (int v = 0; v < HELD; v++) {
                const int column = at.holds(v) ? at.column(v) : 0;
                offset[v] = A == HEAD ? column / (int)dim : __ldg(table.offsets + column);
            }
        }
    }
    // A row that is not `live` reads as zeros.
    template <typename Row>
    __device__ __forceinline__ void load(
        Loaded& into, const Place<L>& at, Row row, bool live) const {
        if constexpr (A == NONE) {
            into.value[0] = 0;
        } else if constexpr (WORD) {
            into.word = make_uint4(0, 0, 0, 0);
            if (!live || !at.holds(0)) return;
            const uint4* from = reinterpret_cast<const uint4*>(at_row(base, row, stride));
            into.word = ONCE ? load_streaming(from) : __ldg(from);
        } else {
            const T* from = at_row(base, row, stride);
            if constexpr (A == ROW && L::SHORT) {
                Bundle<T, HELD> all = {};
                if (live) all = *reinterpret_cast<const Bundle<T, HELD>*>(from);
                #pragma unroll
                for (int v = 0; v < HELD; v++) into.value[v] = Storage<T>::get(all.value[v]);
                return;
            }
            #pragma unroll
            for (int v = 0; v < HELD; v++) {
                const int o = A == ROW ? v * L::LANES : offset[A == ROW ? 0 : v];
                into.value[v] = 0;
                if (live && at.holds(v)) into.value[v] = Storage<T>::get(from[o]);
            }
        }
    }
};

// Which ends of an edge a loop needs to know.
template <bool SOURCES_, bool EDGES_> struct Wants {
    static constexpr bool SOURCES = SOURCES_, EDGES = EDGES_;
};

// Call body(first, sources, edges) for every batch of DEPTH edges of a lane: edge d of the batch is
// at position first + d * EDGES + at.edge of the task, and exists if that is below task.count.
// Every lane of the warp takes part until the longest task of the warp is done. Without edge_ids
// edges are numbered by their place in the CSR.
template <class L, int DEPTH, class W, typename Id, class Where, class Body>
__device__ __forceinline__ void for_edges(
    const int* indices, const Id* edge_ids, const Assigned<L>& own, const Where& at, Body body) {
    constexpr int IDS = DEPTH > L::LANES ? DEPTH / L::LANES : 1;   // ids a lane reads at once
    constexpr int STEP = IDS * L::GROUP, BATCH = L::EDGES * DEPTH;
    const Task& task = own.task;
    int source[IDS], source_ahead[IDS];            // the next ids arrive while these are worked on
    Id edge[IDS], edge_ahead[IDS];
    auto fetch = [&](int first) {
        #pragma unroll
        for (int k = 0; k < IDS; k++) {
            const int position = first + k * L::GROUP + at.place;
            const bool live = position < task.count;
            source_ahead[k] = W::SOURCES && live ? __ldg(indices + task.begin + position) : 0;
            edge_ahead[k] = (Id)(task.begin + position);
            if (W::EDGES && edge_ids != nullptr)
                edge_ahead[k] = live ? __ldg(edge_ids + task.begin + position) : 0;
        }
    };
    fetch(0);
    #pragma unroll 1
    for (int first = 0; first < own.longest; first += STEP) {
        #pragma unroll
        for (int k = 0; k < IDS; k++) {
            source[k] = source_ahead[k];
            edge[k] = edge_ahead[k];
        }
        fetch(first + STEP);
        const int here = min(STEP, own.longest - first);
        #pragma unroll 1
        for (int batch = 0; batch < here; batch += BATCH) {
            int sources[DEPTH];
            Id edges[DEPTH];
            #pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                const int k = IDS == 1 ? 0 : d / L::LANES;
                const int from = at.lane - at.place + at.edge
                    + (IDS == 1 ? batch + d * L::EDGES : d % L::LANES * L::EDGES);
                // An edge of one lane has read its own ids.
                constexpr bool OWN = L::LANES == 1 && IDS == DEPTH;
                if (!W::SOURCES) sources[d] = 0;
                else sources[d] = OWN ? source[k] : __shfl_sync(ALL_LANES, source[k], from);
                if (!W::EDGES) edges[d] = 0;
                else if (OWN) edges[d] = edge[k];
                else if (edge_ids == nullptr)
                    edges[d] = (Id)(task.begin + first + batch + d * L::EDGES + at.edge);
                else edges[d] = __shfl_sync(ALL_LANES, edge[k], from);
            }
            body(first + batch, sources, edges);
        }
    }
}

// step(Flag<true>) where all lanes have every edge of a batch, so that nothing need be masked; else
// step(Flag<false>).
template <class L, int DEPTH, class Step>
__device__ __forceinline__ void whole_or_masked(const Task& task, int first, Step step) {
    if (__all_sync(ALL_LANES, first + L::EDGES * DEPTH <= task.count)) step(Flag<true>());
    else step(Flag<false>());
}

// Write a lane's columns of a row of T, past the caches.
template <class L>
__device__ __forceinline__ void store_values(
    void* table, const Place<L>& at, i64 row, const typename L::C (&x)[L::VALUES]) {
    using T = typename L::T;
    T* to = static_cast<T*>(table) + row * at.width + at.first;
    if constexpr (L::VECTOR) {
        if (at.holds(0)) store_streaming(reinterpret_cast<uint4*>(to), Storage<T>::pack(x));
    } else if constexpr (L::SHORT) {
        Bundle<T, L::VALUES> all;
        #pragma unroll
        for (int v = 0; v < L::VALUES; v++) all.value[v] = Storage<T>::put(x[v]);
        *reinterpret_cast<Bundle<T, L::VALUES>*>(to) = all;
    } else {
        #pragma unroll
        for (int v = 0; v < L::VALUES; v++)
            if (at.holds(v)) to[v * L::LANES] = Storage<T>::put(x[v]);
    }
}

// Write a lane's columns of a row of type P, as they are: partials, ids.
template <class L, typename P>
__device__ __forceinline__ void store_plain(
    void* table, const Place<L>& at, i64 row, const P (&x)[L::VALUES]) {
    P* to = static_cast<P*>(table) + row * at.width + at.first;
    constexpr int EACH = 16 / sizeof(P) < L::VALUES ? 16 / sizeof(P) : L::VALUES;
    if constexpr (L::VECTOR && EACH * sizeof(P) == 16) {
        union Word {
            P value[EACH];
            uint4 word;
        } w;
        #pragma unroll
        for (int v = 0; v < L::VALUES; v += EACH) {
            #pragma unroll
            for (int i = 0; i < EACH; i++) w.value[i] = x[v + i];
            if (at.holds(0)) *reinterpret_cast<uint4*>(to + v) = w.word;
        }
    } else {
        #pragma unroll
        for (int v = 0; v < L::VALUES; v++)
            if (at.holds(v)) to[v * (L::VECTOR ? 1 : L::LANES)] = x[v];
    }
}

}  // namespace gnnb
