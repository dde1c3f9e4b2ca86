// Dot-product attention over tiles on tensor cores: forward, and backward by destination and by source,
// with the contracts of softmax_forward.cuh and softmax_backward.cuh (dot functor), so that a call may
// take rows for one pass and tiles for another. Mapping, bytes and determinism: block_sparse.cuh.
//
// Products take 16-bit operands, or float32 rounded to tf32; their sums, the softmax and the row
// statistics are float32. Weights are rounded to the storage type before they are multiplied with rows.
//
// A pass that ends with a NaN runs its task again over the edges alone: in a product of tiles, an infinity
// or NaN of a row that is no neighbour meets a weight of 0.
#pragma once
#include "block_sums.cuh"

namespace gnnb {

// How far a logit may pass the running maximum before the sums are scaled: weights stay below 2^8.
constexpr float SLACK = 8.f;

// Maximum and sum of a value a lane over the four lanes of a row.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// Online softmax of a window: [0] is row g, [1] row g + 8; `sum` is this lane's share until `finish`.
template <class H> struct BlockSoftmax {
    float top[2], sum[2];
    Sums<H> sums;

    template <bool EXACT>
    __device__ __forceinline__ void run(
        const BlockArgs& args, const BlockTask& own, int head, const Spot& at) {
        using L = typename Path<H, EXACT>::type;
        const Rows queries = head_rows<H>(args.row_table[0], args, head);
        const Rows keys[1] = {head_rows<H>(args.column_table[0], args, head)};
        const Rows values = head_rows<H>(args.column_table[1], args, head);
        WindowRows<L> query;
        query.load(queries, at, own.first, args.num_rows);
        clear();
        for_tiles<L>(args, own.task, at, keys, [&](i64 index, const Tile& tile, auto& key, auto next) {
            Segment<H> ahead;
            LogitTerm<H> term;
            term.load(args, index, head, at);
            if (!EXACT) ahead.load(values, tile, at, 0);
            Entries p = dots(query, key[0]);
            next();
            weigh(p, tile, term, args.scale_log2);
            if (EXACT) sums.add_exact(p, values, tile, at);
            else sums.add(p, values, tile, at, ahead);
        });
        #pragma unroll
        for (int half = 0; half < 2; half++) sum[half] = quad_sum(sum[half]);
    }
    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            top[half] = LOWEST;
            sum[half] = 0.f;
        }
        sums.clear();
    }
    // Dot products become weights relative to `top`.
    __device__ __forceinline__ void weigh(
        Entries& p, const Tile& tile, const LogitTerm<H>& term, float scale_log2) {
        float most[2] = {LOWEST, LOWEST};
        #pragma unroll
        for (int n = 0; n < 2; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                const float logit = term.plus(n, i, p.x[n][i] * scale_log2);
                p.x[n][i] = tile.has(n, i) ? logit : negative_infinity();
                most[i / 2] = fmaxf(most[i / 2], p.x[n][i]);
            }
        if (__any_sync(ALL_LANES, most[0] > top[0] + SLACK || most[1] > top[1] + SLACK)) rescale(most);
        #pragma unroll
        for (int n = 0; n < 2; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                p.x[n][i] = exp2_approx(p.x[n][i] - top[i / 2]);
                sum[i / 2] += p.x[n][i];
            }
    }
    __device__ __forceinline__ void rescale(const float (&most)[2]) {
        float factor[2];
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const float next = fmaxf(top[half], quad_max(most[half]));
            factor[half] = exp2_approx(top[half] - next);
            top[half] = next;
            sum[half] *= factor[half];
        }
        sums.scale(factor[0], factor[1]);
    }
    // A row without edges is 0; a row whose logits are all -inf has sum 0 and becomes NaN.
    __device__ __forceinline__ void store(
        const BlockArgs& args, const BlockTask& own, int head, const Spot& at) {
        const unsigned rows = __ldg(args.occupied + own.task.row);
        const bool whole = own.task.slot < 0;
        float inverse[2];
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = at.g + 8 * half;
            const bool empty = !(rows >> row & 1);
            inverse[half] = empty ? 0.f : 1.f / sum[half];
            if (at.t || (whole && own.first + row >= args.num_rows)) continue;
            const i64 place = own.place(args, row, head);
            if (!whole) args.partial_stats[place] = make_float2(top[half], sum[half]);
            else args.lse[place] = empty ? 0.f : top[half] + log2_approx(sum[half]);
        }
        if (whole) sums.scale(inverse[0], inverse[1]);
        store_window(args, 0, own, head, at, sums);
    }
};

template <class H> __device__ __forceinline__ void block_forward(const BlockArgs& args) {
    const Spot at;
    const BlockTask own(args);
    if (!own.exists) return;
    const int head = blockIdx.y;
    BlockSoftmax<H> state;
    state.clear();
    if (own.task.count > 0) {
        state.template run<false>(args, own, head, at);
        if (__any_sync(ALL_LANES, state.sums.any_nan()))
            state.template run<true>(args, own, head, at);
    }
    state.store(args, own, head, at);
}

// By destination: gradient of the queries. Tables: q, grad_out; k, v.
template <class H, bool EXACT>
__device__ __forceinline__ void query_gradient(
    const BlockArgs& args, const BlockTask& own, int head, const Spot& at, Sums<H>& grad) {
    using L = typename Path<H, EXACT>::type;
    const Rows keys = head_rows<H>(args.column_table[0], args, head);
    const Rows gathered[2] = {keys, head_rows<H>(args.column_table[1], args, head)};
    WindowRows<L> query, grad_out;
    query.load(head_rows<H>(args.row_table[0], args, head), at, own.first, args.num_rows);
    grad_out.load(head_rows<H>(args.row_table[1], args, head), at, own.first, args.num_rows);
    float2 stats[2];
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = own.first + at.g + 8 * half;
        stats[half] = make_float2(0.f, 0.f);
        if (row < args.num_rows) stats[half] = args.row_stats[(i64)row * args.heads + head];
    }
    grad.clear();
    for_tiles<L>(args, own.task, at, gathered, [&](i64 index, const Tile& tile, auto& rows, auto next) {
        Segment<H> ahead;
        LogitTerm<H> term;
        term.load(args, index, head, at);
        if (!EXACT) ahead.load(keys, tile, at, 0);
        Entries ds = dots(query, rows[0]);
        const Entries product = dots(grad_out, rows[1]);
        next();
        #pragma unroll
        for (int n = 0; n < 2; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                const float shift = term.plus(n, i, -stats[i / 2].x);
                const float p = exp2_approx(fmaf(ds.x[n][i], args.scale_log2, shift));
                ds.x[n][i] = tile.has(n, i) ? p * (product.x[n][i] - stats[i / 2].y) : 0.f;
            }
        if (H::BIAS && args.bias_grad != nullptr) store_entries(args, index, head, at, ds);
        if (EXACT) grad.add_exact(ds, keys, tile, at);
        else grad.add(ds, keys, tile, at, ahead);
    });
}

template <class H> __device__ __forceinline__ void block_backward_dst(const BlockArgs& args) {
    const Spot at;
    const BlockTask own(args);
    if (!own.exists) return;
    const int head = blockIdx.y;
    Sums<H> grad;
    grad.clear();
    if (own.task.count > 0) {
        query_gradient<H, false>(args, own, head, at, grad);
        if (__any_sync(ALL_LANES, grad.any_nan()))
            query_gradient<H, true>(args, own, head, at, grad);
    }
    grad.scale(args.scale, args.scale);
    store_window(args, 0, own, head, at, grad);
}

// Sums that a pass may do without.
template <class H, bool WANTED> struct WantedSums : Sums<H> {};
template <class H> struct WantedSums<H, false> {
    __device__ __forceinline__ void clear() {}
    __device__ __forceinline__ bool any_nan() const { return false; }
};

// By source: gradients of the keys and of the values. Tables: k, v; q, grad_out.
template <class H, bool KEY, bool VALUE> struct SourceGradients {
    static constexpr int GATHERED = KEY ? 2 : 1;
    WantedSums<H, KEY> key_grad;
    WantedSums<H, VALUE> value_grad;

    __device__ __forceinline__ void clear() {
        key_grad.clear();
        value_grad.clear();
    }
    template <bool EXACT>
    __device__ __forceinline__ void run(
        const BlockArgs& args, const BlockTask& own, int head, const Spot& at) {
        using L = typename Path<H, EXACT>::type;
        const Rows queries = head_rows<H>(args.column_table[0], args, head);
        const Rows grads = head_rows<H>(args.column_table[1], args, head);
        WindowRows<L> key, value;
        key.load(head_rows<H>(args.row_table[0], args, head), at, own.first, args.num_rows);
        if constexpr (KEY)
            value.load(head_rows<H>(args.row_table[1], args, head), at, own.first, args.num_rows);
        clear();
        const auto body = [&](i64 index, const Tile& tile, auto& rows, auto next) {
            LogitTerm<H> term;
            term.load(args, index, head, at);
            float2 stats[2][2];
            #pragma unroll
            for (int n = 0; n < 2; n++)
                #pragma unroll
                for (int i = 0; i < 2; i++)
                    stats[n][i] = __ldg(args.row_stats + (i64)tile.column(n, i) * args.heads + head);
            Entries p = dots(key, rows[0]), ds;
            if constexpr (KEY) ds = dots(value, rows[1]);
            next();
            #pragma unroll
            for (int n = 0; n < 2; n++)
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float2 stat = stats[n][i & 1];
                    const float shift = term.plus(n, i, -stat.x);
                    const float weight = exp2_approx(fmaf(p.x[n][i], args.scale_log2, shift));
                    const bool live = tile.has(n, i);
                    p.x[n][i] = live ? weight : 0.f;
                    if constexpr (KEY) ds.x[n][i] = live ? weight * (ds.x[n][i] - stat.y) : 0.f;
                }
            if constexpr (VALUE) add<EXACT>(value_grad, p, grads, tile, at);
            if constexpr (KEY) add<EXACT>(key_grad, ds, queries, tile, at);
        };
        if constexpr (KEY) {
            const Rows gathered[2] = {queries, grads};
            for_tiles<L>(args, own.task, at, gathered, body);
        } else {
            const Rows gathered[1] = {queries};
            for_tiles<L>(args, own.task, at, gathered, body);
        }
    }
    template <bool EXACT>
    static __device__ __forceinline__ void add(
        Sums<H>& sums, const Entries& weight, const Rows& table, const Tile& tile, const Spot& at) {
        if constexpr (EXACT) {
            sums.add_exact(weight, table, tile, at);
        } else {
            Segment<H> first;
            first.load(table, tile, at, 0);
            sums.add(weight, table, tile, at, first);
        }
    }
};

template <class H, bool KEY, bool VALUE>
__device__ __forceinline__ void block_backward_src(const BlockArgs& args) {
    const Spot at;
    const BlockTask own(args);
    if (!own.exists) return;
    const int head = blockIdx.y;
    SourceGradients<H, KEY, VALUE> grads;
    grads.clear();
    if (own.task.count > 0) {
        grads.template run<false>(args, own, head, at);
        if (__any_sync(ALL_LANES, grads.key_grad.any_nan() || grads.value_grad.any_nan()))
            grads.template run<true>(args, own, head, at);
    }
    if constexpr (KEY) {
        grads.key_grad.scale(args.scale, args.scale);
        store_window<H>(args, 0, own, head, at, grads.key_grad);
    }
    if constexpr (VALUE) store_window<H>(args, 1, own, head, at, grads.value_grad);
}

// (lse, <grad_out, out>) of every row: four lanes a row, eight rows a warp. Tables: out, grad_out by row;
// tasks are not read.
template <class H> __device__ __forceinline__ void block_row_stats(const BlockArgs& args) {
    using S = Storage<typename H::T>;
    const Spot at;
    const i64 row = ((i64)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP) * 8 + at.g;
    const bool exists = row < args.num_rows;
    const int head = blockIdx.y;
    const Rows outs = head_rows<H>(args.row_table[0], args, head);
    const Rows grads = head_rows<H>(args.row_table[1], args, head);
    float delta = 0.f;
    #pragma unroll
    for (int k = 0; k < H::BYTES; k += 4 * 16) {
        if (!exists || k + at.t * 16 >= H::BYTES) continue;
        float a[S::PER16], b[S::PER16];
        S::unpack(__ldg(reinterpret_cast<const uint4*>(outs[(int)row] + k) + at.t), a);
        S::unpack(__ldg(reinterpret_cast<const uint4*>(grads[(int)row] + k) + at.t), b);
        #pragma unroll
        for (int i = 0; i < S::PER16; i++) delta = fmaf(a[i], b[i], delta);
    }
    delta = quad_sum(delta);
    const i64 stat = row * args.heads + head;
    if (exists && at.t == 0) args.row_stats[stat] = make_float2(args.lse[stat], delta);
}

}  // namespace gnnb
