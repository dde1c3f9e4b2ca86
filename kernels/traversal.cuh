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
// A functor F (functors/*.cuh) gives Params, Src, Dst (loaded fragments), source_score, score,
// score_exact, value, the accumulators DstGrad, ParamGrad, SrcGrad with grad_dst_param and
// grad_src, and the parameter gradients of both passes.
#pragma once
#include "common.cuh"

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
    float* lse;                  // [N, H] base-2 log-sum-exp, up to a constant of the row
    const void* grad_out;
    float2* row_stats;           // [N, H] (lse, <grad_out, out>), written by destination
    void* grad;                  // gradient of the rows of this direction, or null
    float* param_partials;       // [gridDim.x, H * D], or null
    float* partial;              // [slots, H * D]
    float2* partial_stats;       // [slots, H] (max, sum)
};

// Neighbour ids that a group's lanes hold: the first of a task, and later the next to come.
template <class S, int UNROLL> struct Ids {
    static constexpr int LOADS = UNROLL > S::GROUP ? UNROLL / S::GROUP : 1;  // ids a lane loads at once
    static constexpr int STEP = LOADS * S::GROUP;
    int id[LOADS];

    // Those from position `first` of a task on, a multiple of STEP.
    __device__ __forceinline__ void load(const int* indices, const Task& task, int first, int place) {
        const int* list = indices + task.begin + place;
        #pragma unroll
        for (int k = 0; k < LOADS; k++) {
            const int position = first + k * S::GROUP;
            id[k] = position + place < task.count ? __ldg(list + position) : 0;
        }
    }
};

// The task of this lane's group and its first neighbours; `exists` is false past the last task.
template <class S, int UNROLL> struct Owned {
    Task task;
    bool exists;
    Ids<S, UNROLL> ids;

    __device__ __forceinline__ explicit Owned(const int4& packed) : task(unpack_task(packed)) {
        exists = task.row >= 0;
        if (!exists) task.row = 0;
    }
    // With other batches.
    template <int OTHER>
    __device__ __forceinline__ Owned(
        const TraversalArgs& args, const Lane<S>& at, const Owned<S, OTHER>& own)
        : task(own.task), exists(own.exists) {
        load_ids(args, at);
    }
    __device__ __forceinline__ void load_ids(const TraversalArgs& args, const Lane<S>& at) {
        ids.load(args.indices, task, 0, at.lane % S::GROUP);
    }
    // No group of the warp has an edge, so that rows are written without reading anything.
    __device__ __forceinline__ bool idle() const { return !__any_sync(ALL_LANES, task.count > 0); }
};

// Call body(masked, first, ids) for every batch of UNROLL neighbours: `first` is the position of
// the batch in the task, ids its neighbour ids. Batches that are whole in all groups of the warp
// come with Flag<false>; in the others positions past the end have id 0 and are to be masked.
// Every lane of the warp takes part until the longest task of the warp is done.
template <class S, int UNROLL, class Body>
__device__ __forceinline__ void for_batches(
    const int* indices, const Owned<S, UNROLL>& own, const Lane<S>& at, Body body) {
    using Held = Ids<S, UNROLL>;
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
            ahead.load(indices, task, first + Held::STEP, place);
        }
        int ids[UNROLL];
        #pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int from = Held::LOADS == 1 ? first % Held::STEP + u : u % S::GROUP;
            const int held = mine.id[Held::LOADS == 1 ? 0 : u / S::GROUP];
            ids[u] = __shfl_sync(ALL_LANES, held, from, S::GROUP);
        }
        const bool whole = S::TIGHT ? __all_sync(ALL_LANES, first + UNROLL <= task.count)
                                    : first + UNROLL <= shortest;
        if (whole) body(Flag<false>(), first, ids);
        else body(Flag<true>(), first, ids);
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
template <class S, int UNROLL, class Body>
__device__ __forceinline__ void for_tasks(
    const TraversalArgs& args, const Lane<S>& at, unsigned first, unsigned step, Body body) {
    const int place = at.lane % S::GROUP;
    int4 next = packed_task(args, at, first), after;
    if constexpr (!S::TIGHT) after = packed_task(args, at, first + step);
    Ids<S, UNROLL> ids;
    ids.load(args.indices, unpack_task(next), 0, place);
    #pragma unroll 1
    for (unsigned index = first; index < (unsigned)args.num_tasks; index += step) {
        Owned<S, UNROLL> own(next);
        own.ids = ids;
        if constexpr (S::TIGHT) {
            next = packed_task(args, at, index + step);
            body(own);
            ids.load(args.indices, unpack_task(next), 0, place);
        } else {
            next = after;
            ids.load(args.indices, unpack_task(next), 0, place);
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

}  // namespace gnnb
