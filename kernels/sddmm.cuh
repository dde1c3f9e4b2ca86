// Generalised SDDMM: out_e = op(lhs, rhs), each operand a row of the edge's source, destination or
// its own, columns broadcast; and dot products of the last dimension.
//
// Mapping: edges.cuh, over the tasks by destination, so that a destination's row is read once a task.
// A dot product has LANES lanes for each of HEADS heads side by side; blockIdx.y runs over blocks
// of HEADS heads.
//
// Bytes an edge: 4 (source, if read), 4 (edge id), the rows of sources and edges, and the result,
// written past the caches. Determinism: no atomics; every result is written once; the order of the
// sum of a dot product is fixed by the layout.
#pragma once
#include "edges.cuh"
#include "functors/binary.cuh"

namespace gnnb {

// Whose row an operand is.
enum Target { SOURCE, DESTINATION, EDGE };

struct SddmmArgs {
    const int4* tasks;
    i64 num_tasks;
    const int* indices;
    const void* edge_ids;            // of type Id; null: CSR order
    Table lhs, rhs;
    i64 width, dim;                  // columns of the result; columns a value of HEAD access,
                                     // or the length of a dot product
    void* out;                       // [edges, width] of T
};

template <class L, Access A, Target TARGET, typename Id, int DEPTH> struct Side {
    using Reader = Operand<L, A, TARGET == EDGE>;
    static constexpr int HELD = TARGET == DESTINATION ? 1 : DEPTH;
    Reader reader;
    typename Reader::Loaded loaded[HELD];
    __device__ __forceinline__ Side(
        const Table& table, const Place<L>& at, i64 dim, const Assigned<L>& own)
        : reader(table, at, dim) {
        if constexpr (TARGET == DESTINATION) reader.load(loaded[0], at, own.task.row, own.exists);
    }
    __device__ __forceinline__ void load(
        int d, const Place<L>& at, int source, Id edge, bool live) {
        if constexpr (TARGET == SOURCE) reader.load(loaded[d], at, source, live);
        if constexpr (TARGET == EDGE) reader.load(loaded[d], at, edge, live);
    }
    __device__ __forceinline__ void unpack(int d, typename L::C (&x)[L::VALUES]) const {
        loaded[TARGET == DESTINATION ? 0 : d].unpack(x);
    }
};

// Whether an operand that is read is a row of the source.
constexpr bool gathers(Access access, Target target) { return access != NONE && target == SOURCE; }

template <
    class Op, class L, Access LEFT, Access RIGHT, Target LT, Target RT, typename Id, int DEPTH>
__device__ __forceinline__ void sddmm(const SddmmArgs& args) {
    using C = typename L::C;
    const i64 warp = this_warp();
    if (warp * L::TASKS >= args.num_tasks) return;
    const Assigned<L> own(args.tasks, args.num_tasks, warp);
    const int tiles = (int)((args.width + L::TILE - 1) / L::TILE);
    #pragma unroll 1
    for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
        const Place<L> at(args.width, tile);
        Side<L, LEFT, LT, Id, DEPTH> lhs(args.lhs, at, args.dim, own);
        Side<L, RIGHT, RT, Id, DEPTH> rhs(args.rhs, at, args.dim, own);
        for_edges<L, DEPTH, Wants<gathers(LEFT, LT) || gathers(RIGHT, RT), true>>(
            args.indices, static_cast<const Id*>(args.edge_ids), own, at,
            [&](int first, auto& sources, auto& edges) {
                #pragma unroll
                for (int d = 0; d < DEPTH; d++) {
                    const bool live = first + d * L::EDGES + at.edge < own.task.count;
                    lhs.load(d, at, sources[d], edges[d], live);
                    rhs.load(d, at, sources[d], edges[d], live);
                }
                #pragma unroll
                for (int d = 0; d < DEPTH; d++) {
                    C a[L::VALUES], b[L::VALUES];
                    lhs.unpack(d, a);
                    rhs.unpack(d, b);
                    #pragma unroll
                    for (int v = 0; v < L::VALUES; v++) a[v] = Op::apply(a[v], b[v]);
                    if (first + d * L::EDGES + at.edge < own.task.count)
                        store_values<L>(args.out, at, edges[d], a);
                }
            });
    }
}

// A dot product's layout: an edge has HEADS heads of LANES lanes, each WIDTH values an access.
// ONCE: one access a lane covers the whole length, so that a destination's row stays in registers.
template <typename T_, int LANES_, int HEADS_, int EDGES_, bool VECTOR_, bool ONCE_> struct Heads {
    using T = T_;
    using C = typename Arithmetic<T>::type;
    static constexpr int HEAD_LANES = LANES_, HEADS = HEADS_, EDGES = EDGES_;
    static constexpr bool VECTOR = VECTOR_, ONCE = ONCE_;
    static constexpr int WIDTH = VECTOR ? Storage<T>::PER16 : 1;
    static constexpr int LANES = HEAD_LANES * HEADS;       // of an edge
    static constexpr int GROUP = LANES * EDGES, TASKS = WARP / GROUP;
    static_assert(WARP % GROUP == 0, "lane layout does not fit a warp");
};

// Where a lane stands among the heads.
template <class H> struct HeadPlace {
    int lane, place, edge, head, begin;      // begin: this lane's first value of a head
    bool inside;                             // the head exists
    __device__ __forceinline__ HeadPlace(i64 heads, int block) {
        lane = threadIdx.x & (WARP - 1);
        place = lane % H::GROUP;
        edge = place / H::LANES;
        head = block * H::HEADS + lane % H::LANES / H::HEAD_LANES;
        begin = lane % H::HEAD_LANES * H::WIDTH;
        inside = head < heads;
    }
};

// One operand of a dot product: where the lane's head begins in a row.
template <class H, Target TARGET> struct Vector {
    using T = typename H::T;
    using C = typename H::C;
    const T* base;
    i64 stride;
    __device__ __forceinline__ Vector(const Table& table, const HeadPlace<H>& at, i64 dim) {
        stride = table.stride;
        const int head = !at.inside ? 0 : table.offsets == nullptr ? at.head
            : __ldg(table.offsets + at.head);
        base = static_cast<const T*>(table.data) + head * dim;
    }
    template <typename Id>
    __device__ __forceinline__ const T* row(int source, int destination, Id edge) const {
        if constexpr (TARGET == SOURCE) return at_row(base, source, stride);
        else if constexpr (TARGET == DESTINATION) return at_row(base, destination, stride);
        else return at_row(base, edge, stride);
    }
    static __device__ __forceinline__ uint4 word(const T* row, int column, bool live) {
        if (!live) return make_uint4(0, 0, 0, 0);
        return __ldg(reinterpret_cast<const uint4*>(row + column));
    }
    static __device__ __forceinline__ C single(const T* row, int column, bool live) {
        return live ? Storage<T>::get(row[column]) : (C)0;
    }
};

template <class H>
__device__ __forceinline__ typename H::C product(const uint4& a, const uint4& b, typename H::C sum) {
    typename H::C x[H::WIDTH], y[H::WIDTH];
    Storage<typename H::T>::unpack(a, x);
    Storage<typename H::T>::unpack(b, y);
    #pragma unroll
    for (int i = 0; i < H::WIDTH; i++) sum += x[i] * y[i];
    return sum;
}

template <class H, Target LT, Target RT, typename Id, int DEPTH>
__device__ __forceinline__ void sddmm_dot(const SddmmArgs& args) {
    using T = typename H::T;
    using C = typename H::C;
    const i64 warp = this_warp();
    if (warp * H::TASKS >= args.num_tasks) return;
    const Assigned<H> own(args.tasks, args.num_tasks, warp);
    const Task& task = own.task;
    const int dim = (int)args.dim, blocks = (int)((args.width + H::HEADS - 1) / H::HEADS);
    #pragma unroll 1
    for (int block = blockIdx.y; block < blocks; block += gridDim.y) {
        const HeadPlace<H> at(args.width, block);
        const Vector<H, LT> lhs(args.lhs, at, dim);
        const Vector<H, RT> rhs(args.rhs, at, dim);
        const bool mine = own.exists && at.inside && at.begin < dim;
        uint4 held_left = make_uint4(0, 0, 0, 0), held_right = make_uint4(0, 0, 0, 0);
        if constexpr (H::VECTOR && H::ONCE) {
            if constexpr (LT == DESTINATION) held_left = lhs.word(lhs.row(0, task.row, 0), at.begin, mine);
            if constexpr (RT == DESTINATION) held_right = rhs.word(rhs.row(0, task.row, 0), at.begin, mine);
        }
        for_edges<H, DEPTH, Wants<LT == SOURCE || RT == SOURCE, true>>(
            args.indices, static_cast<const Id*>(args.edge_ids), own, at,
            [&](int first, auto& sources, auto& edges) {
                C sum[DEPTH];
                if constexpr (H::VECTOR && H::ONCE) {
                    uint4 left[DEPTH], right[DEPTH];
                    #pragma unroll
                    for (int d = 0; d < DEPTH; d++) {
                        const bool live = mine && first + d * H::EDGES + at.edge < task.count;
                        left[d] = LT == DESTINATION ? held_left
                            : lhs.word(lhs.row(sources[d], 0, edges[d]), at.begin, live);
                        right[d] = RT == DESTINATION ? held_right
                            : rhs.word(rhs.row(sources[d], 0, edges[d]), at.begin, live);
                    }
                    #pragma unroll
                    for (int d = 0; d < DEPTH; d++) sum[d] = product<H>(left[d], right[d], (C)0);
                } else {
                    #pragma unroll
                    for (int d = 0; d < DEPTH; d++) sum[d] = 0;
                    #pragma unroll 1
                    for (int c = at.begin; c < dim; c += H::HEAD_LANES * H::WIDTH)
                        #pragma unroll
                        for (int d = 0; d < DEPTH; d++) {
                            const bool live = mine && first + d * H::EDGES + at.edge < task.count;
                            const T* x = lhs.row(sources[d], task.row, edges[d]);
                            const T* y = rhs.row(sources[d], task.row, edges[d]);
                            if constexpr (H::VECTOR)
                                sum[d] = product<H>(lhs.word(x, c, live), rhs.word(y, c, live), sum[d]);
                            else
                                sum[d] += lhs.single(x, c, live) * rhs.single(y, c, live);
                        }
                }
                #pragma unroll
                for (int d = 0; d < DEPTH; d++) {
                    #pragma unroll
                    for (int o = H::HEAD_LANES / 2; o; o >>= 1)
                        sum[d] += __shfl_xor_sync(ALL_LANES, sum[d], o);
                    if (at.inside && at.begin == 0 && first + d * H::EDGES + at.edge < task.count)
                        static_cast<T*>(args.out)[(i64)edges[d] * args.width + at.head] =
                            Storage<T>::put(sum[d]);
                }
            });
    }
}

}  // namespace gnnb
