// Traversal template: what every pass over the rows of a graph shares (arguments, tasks, batches).
// The softmax-weighted sum out_i = sum_e softmax_i(score_e) * value_e is in softmax_forward.cuh and
// softmax_backward.cuh.
//
// Mapping. A task is a chunk of at most C neighbours of one row (so that hubs do not serialise).
// Shape::GROUP lanes own a task: HEADS heads of LANES lanes, VALUES columns a lane; Shape::TASKS
// tasks stand side by side in a warp, of like length since tasks come longest first. A group loads
// UNROLL neighbour rows before it uses the first; their scores are summed over the lanes of a head
// by one butterfly that leaves each edge's score with a few lanes (Spread), so that its exponential
// is computed there alone. Blocks have four warps; blockIdx.y runs over blocks of HEADS heads.
// Rows of several chunks write partials, merged in slot order by merge.cuh.
//
// Bytes an edge (row = H * D values): forward 4 + row; by destination 4 + row; by source
// 4 + 2 rows + 8 H. Nothing edge-wise is written. Saved for backward: log-sum-exp, 4 H bytes a row.
//
// Determinism. No atomics. The order of every sum is fixed by the tasks and the grid, so equal
// inputs on one device give equal bits.
//
// A functor F<Shape, Options> (functors/*.cuh) gives
//   flags: DOTS (scores are sums over the lanes of a head), SCALARS ([N, H] tables: src[1], and dst[0],
//     or dst[1] beside DOTS, where the logit depends on the sum and the term in different ways),
//     SECOND (a second table by source has a gradient), PARAMS (has parameters), EXACT (score_exact);
//   loaded fragments: Params, Src, Dst, Edge, and what is fixed of a row: Row of a destination, Source;
//   source_score and score (a lane's share), logit (in base 2, from their sum and the edge's term),
//   slope_of (its derivative towards the term; with DOTS and SCALARS of (sum, term) towards the sum, and
//   term_slope towards the term), value;
//   accumulators DstGrad, SrcGrad, ParamGrad, with grad_dst_param and grad_src, and where it has them
//   store_edge_grad and the parameter gradients of both passes.
#pragma once
#include "edge_terms.cuh"

namespace gnnb {

// Arguments of all passes; unused pointers are null.
struct TraversalArgs {
    const int4* tasks;
    i64 num_tasks;               // below 2^31, as are rows
    const int* indices;
    i64 heads, dim;
    const void* src[2];          // tables read at the source
    const void* dst[2];          // tables read at the destination
    const void* param[2];
    float scalar[4];
    void* out;                   // forward: written; backward: read
    float* lse;                  // [N, H] base-2 log-sum-exp, up to a constant of the row; LogSum
    const void* grad_out;
    float* row_stats;            // [N, H] RowStats, written by destination
    void* grad;                  // gradient of the rows of this direction, or null
    float* param_partials;       // [gridDim.x, H * D], or null
    float* partial;              // [slots, H * D]
    float2* partial_stats;       // [slots, H] (max, sum)
    void* second_grad;           // of the second table of this direction, or null
    float* second_partial;       // its partials of split rows
    EdgeArgs edge;
};

// The logit has a sum over the lanes of a head and the scalars of both ends, each with a slope of its own.
template <class F> constexpr bool GATED = F::DOTS && F::SCALARS;

// Derivatives of the logit towards its sum over lanes and its term; one number where they are the same.
template <class F, bool BOTH = GATED<F>> struct Slopes {
    float sum, term;
    __device__ __forceinline__ Slopes(const typename F::Params& p, float, float z) {
        sum = term = F::slope_of(p, z);
    }
};
template <class F> struct Slopes<F, true> {
    float sum, term;
    __device__ __forceinline__ Slopes(const typename F::Params& p, float s, float z) {
        sum = F::slope_of(p, s, z);
        term = F::term_slope(p, s, z);
    }
};

// Neighbour ids that a group's lanes hold: the first of a task, and later the next to come. Where
// options O need them, with the numbers of the edges, and a bit for each head that dropout keeps.
template <class S, int UNROLL, class O> struct Ids {
    static constexpr int LOADS = UNROLL > S::GROUP ? UNROLL / S::GROUP : 1;  // ids a lane loads at once
    static constexpr int STEP = LOADS * S::GROUP;
    int id[LOADS];
    unsigned edge[LOADS], keep[LOADS];

    // Those from position `first` of a task on, a multiple of STEP.
    __device__ __forceinline__ void load(const TraversalArgs& args, const Task& task, int first, int place) {
        const int* list = args.indices + task.begin + place;
        #pragma unroll
        for (int k = 0; k < LOADS; k++) {
            const int position = first + k * S::GROUP;
            const bool live = position + place < task.count;
            id[k] = live ? __ldg(list + position) : 0;
            if constexpr (NUMBERED<O>)
                edge[k] = live ? edge_at(args.edge, task.begin + place + position) : 0;
        }
    }
    __device__ __forceinline__ void draw(const TraversalArgs& args, const Lane<S>& at) {
        if constexpr (O::DROPOUT) {
            const int first_head = at.head - at.lane % S::GROUP / S::LANES;
            #pragma unroll
            for (int k = 0; k < LOADS; k++) keep[k] = kept_heads<S>(args.edge, edge[k], first_head);
        }
    }
    // What the group holds for position first + u, u < UNROLL, which may differ between lanes.
    template <typename T>
    static __device__ __forceinline__ T pick(const T (&held)[LOADS], int first, int u) {
        if constexpr (LOADS == 1) {
            return __shfl_sync(ALL_LANES, held[0], first % STEP + u, S::GROUP);
        } else {
            T found = __shfl_sync(ALL_LANES, held[0], u % S::GROUP, S::GROUP);
            #pragma unroll
            for (int k = 1; k < LOADS; k++) {
                const T other = __shfl_sync(ALL_LANES, held[k], u % S::GROUP, S::GROUP);
                found = u / S::GROUP == k ? other : found;
            }
            return found;
        }
    }
};

// UNROLL neighbours of a task, from position `first` on.
template <class S, int UNROLL, class O> struct Batch {
    using Held = Ids<S, UNROLL, O>;
    Held& held;
    int first;
    int ids[UNROLL];

    // Have dropout draw for the ids held, if these were not drawn for: after the rows were asked for, so
    // that it is done while they come. Before `kept`; all lanes call.
    __device__ __forceinline__ void draw(const TraversalArgs& args, const Lane<S>& at) const {
        if (first % Held::STEP == 0) held.draw(args, at);
    }

    // Of the edge at position first + u: number, neighbour, and what dropout does. All lanes call.
    __device__ __forceinline__ unsigned edge(int u) const { return Held::pick(held.edge, first, u); }
    __device__ __forceinline__ int neighbour(int u) const { return Held::pick(held.id, first, u); }
    __device__ __forceinline__ bool kept(int u, const Lane<S>& at) const {
        return Held::pick(held.keep, first, u) >> (at.lane % S::GROUP / S::LANES) & 1;
    }
};

// The task of this lane's group and its first neighbours; `exists` is false past the last task.
template <class S, int UNROLL, class O> struct Owned {
    Task task;
    bool exists;
    Ids<S, UNROLL, O> ids;

    __device__ __forceinline__ explicit Owned(const int4& packed) : task(unpack_task(packed)) {
        exists = task.row >= 0;
        if (!exists) task.row = 0;
    }
    // With other batches.
    template <int OTHER>
    __device__ __forceinline__ Owned(
        const TraversalArgs& args, const Lane<S>& at, const Owned<S, OTHER, O>& own)
        : task(own.task), exists(own.exists) {
        load_ids(args, at);
    }
    __device__ __forceinline__ void load_ids(const TraversalArgs& args, const Lane<S>& at) {
        ids.load(args, task, 0, at.lane % S::GROUP);
    }
    // No group of the warp has an edge, so that rows are written without reading anything.
    __device__ __forceinline__ bool idle() const { return !__any_sync(ALL_LANES, task.count > 0); }
};

// Call body(masked, batch) for every batch of UNROLL neighbours. Batches that are whole in all groups
// of the warp come with Flag<false>; in the others positions past the end have neighbour and edge 0
// and are to be masked. Every lane of the warp takes part until the longest task of the warp is done.
template <class S, int UNROLL, class O, class Body>
__device__ __forceinline__ void for_batches(
    const TraversalArgs& args, const Owned<S, UNROLL, O>& own, const Lane<S>& at, Body body) {
    using Held = Ids<S, UNROLL, O>;
    const Task& task = own.task;
    int longest = task.count, shortest = task.count;
    #pragma unroll
    for (int o = S::GROUP; o < WARP; o <<= 1) {
        longest = max(longest, __shfl_xor_sync(ALL_LANES, longest, o));
        shortest = min(shortest, __shfl_xor_sync(ALL_LANES, shortest, o));
    }
    const int place = at.lane % S::GROUP;
    Held mine, ahead = own.ids;      // the next ids arrive while these are worked on
    #pragma unroll 1
    for (int first = 0; first < longest; first += UNROLL) {
        if (first % Held::STEP == 0) {
            mine = ahead;
            ahead.load(args, task, first + Held::STEP, place);
        }
        Batch<S, UNROLL, O> batch{mine, first, {}};
        #pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int from = Held::LOADS == 1 ? first % Held::STEP + u : u % S::GROUP;
            const int held = mine.id[Held::LOADS == 1 ? 0 : u / S::GROUP];
            batch.ids[u] = __shfl_sync(ALL_LANES, held, from, S::GROUP);
        }
        const bool whole = S::TIGHT ? __all_sync(ALL_LANES, first + UNROLL <= task.count)
                                    : first + UNROLL <= shortest;
        if (whole) body(Flag<false>(), batch);
        else body(Flag<true>(), batch);
    }
}

// The packed task of this lane's group, `first` being that of the warp's first group. Past the last
// one its row is -1 and it has no neighbours.
template <class S>
__device__ __forceinline__ int4 packed_task(
    const TraversalArgs& args, const Lane<S>& at, unsigned first) {
    const unsigned index = first + at.group;
    return index < (unsigned)args.num_tasks ? __ldg(args.tasks + index) : make_int4(-1, -1, 0, 0);
}

// Call body(own) for the tasks first, first + step, ... of a warp. Tasks are loaded two ahead and
// their first neighbours one ahead, so that short tasks do not wait for them; where registers are
// short, tasks one ahead and neighbours after the task before.
template <class S, int UNROLL, class O, class Body>
__device__ __forceinline__ void for_tasks(
    const TraversalArgs& args, const Lane<S>& at, unsigned first, unsigned step, Body body) {
    const int place = at.lane % S::GROUP;
    int4 next = packed_task(args, at, first), after;
    if constexpr (!S::TIGHT) after = packed_task(args, at, first + step);
    Ids<S, UNROLL, O> ids;
    ids.load(args, unpack_task(next), 0, place);
    #pragma unroll 1
    for (unsigned index = first; index < (unsigned)args.num_tasks; index += step) {
        Owned<S, UNROLL, O> own(next);
        own.ids = ids;
        if constexpr (S::TIGHT) {
            next = packed_task(args, at, index + step);
            body(own);
            ids.load(args, unpack_task(next), 0, place);
        } else {
            next = after;
            ids.load(args, unpack_task(next), 0, place);
            after = packed_task(args, at, index + 2 * step);
            body(own);
        }
    }
}

template <int UNROLL, class S, class Fragment>
__device__ __forceinline__ void load_batch(
    const TraversalArgs& args, const Lane<S>& at, const int (&ids)[UNROLL], int first, int count,
    bool masked, Fragment (&fragments)[UNROLL]) {
    #pragma unroll
    for (int u = 0; u < UNROLL; u++)
        fragments[u].load(args, at, ids[u], !masked || first + u < count);
}

// Softmax weight of an edge from its score and its row's log-sum-exp. A score that is NaN or +inf while
// the row is finite belongs to a masked edge: where the exact logit is -inf, `score` may give
// inf - inf, or +inf from an overflow (the forward pass took score_exact). Its weight is 0.
__device__ __forceinline__ float weight_of(float score, float lse) {
    return !(score <= LARGEST) && fabsf(lse) <= LARGEST ? 0.f : exp2_approx(score - lse);
}

// The saved log-sum-exp of a row and head. A term of the logit may be a mask of any size, such as -1e9:
// beside it the logarithm of the sum would be rounded away, so both are kept (SPLIT: [N, H, 2]).
template <bool SPLIT> struct LogSum {
    float value;
    static __device__ __forceinline__ void store(float* table, i64 place, float top, float log_sum) {
        table[place] = top + log_sum;
    }
    static __device__ __forceinline__ LogSum load(const float* table, i64 place) {
        return {table[place]};
    }
    __device__ __forceinline__ float weight(float score) const { return weight_of(score, value); }
};
template <> struct LogSum<true> {
    float value, log_sum;   // the maximum, and log2 of the sum of exponentials beside it
    static __device__ __forceinline__ void store(float* table, i64 place, float top, float log_sum) {
        reinterpret_cast<float2*>(table)[place] = make_float2(top, log_sum);
    }
    static __device__ __forceinline__ LogSum load(const float* table, i64 place) {
        return {table[2 * place], table[2 * place + 1]};
    }
    __device__ __forceinline__ float weight(float score) const {
        return weight_of(score - value, log_sum);
    }
};

// What the pass by source gathers of a row and head: the log-sum-exp and <grad_out, out>, in one access.
template <bool SPLIT> struct RowStats {
    LogSum<SPLIT> lse;
    float delta;
    __device__ __forceinline__ void store(float* table, i64 place) const {
        reinterpret_cast<float2*>(table)[place] = make_float2(lse.value, delta);
    }
    static __device__ __forceinline__ RowStats gather(const float* table, u64 place) {
        const float2 found = __ldg(reinterpret_cast<const float2*>(table) + place);
        return {{found.x}, found.y};
    }
};
template <> struct RowStats<true> {
    LogSum<true> lse;
    float delta;
    __device__ __forceinline__ void store(float* table, i64 place) const {
        reinterpret_cast<float4*>(table)[place] = make_float4(lse.value, lse.log_sum, delta, 0.f);
    }
    static __device__ __forceinline__ RowStats gather(const float* table, u64 place) {
        const float4 found = __ldg(reinterpret_cast<const float4*>(table) + place);
        return {{found.x, found.y}, found.z};
    }
};

// A row of the caller's edge order and the operands' shape, where options have it.
template <class S, bool PRESENT> struct EdgeRow {
    template <class B, class Args>
    __device__ __forceinline__ void load(const Args&, const Lane<S>&, const B&, int, bool) {}
};
template <class S> struct EdgeRow<S, true> {
    Raw<S> x;
    template <class B, class Args>
    __device__ __forceinline__ void load(
        const Args& args, const Lane<S>& at, const B& batch, int u, bool live) {
        x.template load<true>(args.edge.rows, at, (int)batch.edge(u), live);
    }
};

// What the lanes that hold an edge's logit (Spread) know of the edge besides. BY_DST: rows are
// destinations and neighbours sources. `own`: the row's own part of the term.
template <class F, class S, int UNROLL, bool BY_DST> struct Owner {
    using O = typename F::Options;
    using Held = Spread<S, UNROLL>;
    using T = typename S::T;
    static constexpr int HELD = Held::HELD;
    unsigned edge[HELD];
    float term[HELD], keep[HELD], cotangent[HELD];

    template <class B>
    __device__ __forceinline__ void load(
        const TraversalArgs& args, const Lane<S>& at, const B& batch, float own) {
        #pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int u = Held::index(at.within, i);
            if constexpr (NUMBERED<O>) edge[i] = batch.edge(u);
            term[i] = own;
            if constexpr (F::SCALARS)
                term[i] += scalar_at<T>(BY_DST ? args.src[1] : args.dst[GATED<F> ? 1 : 0],
                                        (unsigned)batch.neighbour(u), args.heads, at.head);
            if constexpr (O::LOGIT)
                term[i] += scalar_at<T>(args.edge.logit, edge[i], args.heads, at.head);
            if constexpr (O::DROPOUT) keep[i] = batch.kept(u, at) ? args.edge.keep_scale : 0.f;
            if constexpr (O::COTANGENT)
                cotangent[i] = scalar_at<T>(args.edge.grad_weights, edge[i], args.heads, at.head);
        }
    }
    // A softmax weight after dropout, and the gradient that reaches the weight before it.
    __device__ __forceinline__ float kept(int i, float weight) const {
        if constexpr (O::DROPOUT) return weight * keep[i];
        else return weight;
    }
    __device__ __forceinline__ float grad_weight(int i, float product) const {
        if constexpr (O::COTANGENT) product += cotangent[i];
        return kept(i, product);
    }
    // Whether this lane, and not another with the same sums, writes what edge i has.
    static __device__ __forceinline__ bool writes(const Lane<S>& at, int i, int first, int count) {
        return at.within % Held::REPEAT == 0 && first + Held::index(at.within, i) < count;
    }
};

}  // namespace gnnb
