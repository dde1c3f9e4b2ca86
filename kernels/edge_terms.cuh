// What edges bring to attention besides their two ends, and what of it a unit is compiled for:
// terms of the logit, dropout, rows and features, the gradient of returned weights. Edge tables are in the
// caller's edge order; edge numbers are loaded beside the neighbour ids, only where they are needed.
#pragma once
#include "common.cuh"

namespace gnnb {

// Pointers of what a unit has no use for are null.
struct EdgeArgs {
    const void* ids;             // position in the CSR -> the caller's edge; null: the same
    i64 wide_ids;                // they are 64-bit
    const void* logit;           // [E, H], added to the logit
    const void* rows;            // GATv2: [E, H, D]; else features [E, F], or [E, H, F]
    const void* grad_weights;    // [E, H], gradient of the returned weights
    void* grad_logit;            // [E, H]
    void* grad_rows;             // as rows
    void* weights;               // [E, H]
    float2* pairs;               // [E, H] (weight, gradient of the logit) in CSR order by destination
    float* row_sums;             // [N, H] sum of weight * grad_weights
    i64 features;                // F
    const void* query;           // [N, H, F]
    void* out;                   // [N, H, F] sum of weight * features
    const void* grad_out;        // [N, H, F]
    void* grad_query;            // [N, H, F]
    float* partial;              // [slots, H * F] of out or grad_query
    u64 seed, offset;            // of dropout
    const u64* drawn;            // or its seed on the device, for a CUDA graph to draw at each replay
    unsigned drop_below;         // smaller words drop an edge
    float keep_scale;
};

// Edge features: a row of F values for an edge, SHARED by the heads or one for each. QUERY: the
// logit has <query, features>; AGGREGATE: their weighted sum is a result. FRAGMENT is their lane
// layout, with the lanes and heads of the unit's.
struct NoFeatures {
    static constexpr bool ANY = false, QUERY = false, AGGREGATE = false, SHARED = false;
};
template <class FRAGMENT, bool SHARED_, bool QUERY_, bool AGGREGATE_> struct Features {
    using Fragment = FRAGMENT;
    static constexpr bool ANY = true, SHARED = SHARED_, QUERY = QUERY_, AGGREGATE = AGGREGATE_;
};

// The options of a unit; others are structs that derive from this one.
struct Plain {
    static constexpr bool LOGIT = false;       // [E, H] added to the logit
    static constexpr bool DROPOUT = false;
    static constexpr bool ROWS = false;        // a row of the operands' shape for each edge
    static constexpr bool COTANGENT = false;   // a gradient of the returned weights
    static constexpr bool WEIGHTS = false;     // these are written
    using EdgeFeatures = NoFeatures;
};
// Whether edges have to be known by number.
template <class O> constexpr bool NUMBERED =
    O::LOGIT || O::DROPOUT || O::ROWS || O::COTANGENT || O::WEIGHTS || O::EdgeFeatures::ANY;

// Edge numbers are below 2^32 (checked on the host).
__device__ __forceinline__ unsigned edge_at(const EdgeArgs& edge, i64 position) {
    if (edge.ids == nullptr) return (unsigned)position;
    return edge.wide_ids ? (unsigned)__ldg(static_cast<const i64*>(edge.ids) + position)
                         : (unsigned)__ldg(static_cast<const int*>(edge.ids) + position);
}

// Value of an [N, H] or [E, H] table.
template <typename T>
__device__ __forceinline__ float scalar_at(const void* table, unsigned row, i64 heads, int head) {
    return Storage<T>::get(static_cast<const T*>(table)[(u64)row * (unsigned)heads + head]);
}

// A part of a logit in base 2. The lowest floats, with which callers mask, stay finite, so that a row of
// them alone is uniform.
__device__ __forceinline__ float base2_term(float x) {
    const float scaled = LOG2E * x;
    return scaled < LOWEST && x >= -LARGEST ? LOWEST : scaled;
}

// Philox 4x32-7 (Salmon et al., 2011): the fewest rounds that they found to pass BigCrush.
constexpr int PHILOX_ROUNDS = 7;
__device__ __forceinline__ uint4 philox(uint4 counter, u64 seed) {
    unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
    #pragma unroll
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const u64 a = (u64)0xD2511F53u * counter.x, b = (u64)0xCD9E8D57u * counter.z;
        counter = make_uint4((unsigned)(b >> 32) ^ counter.y ^ k0, (unsigned)b,
                             (unsigned)(a >> 32) ^ counter.w ^ k1, (unsigned)a);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return counter;
}

// Bit j: head first_head + j of the group keeps the edge. One evaluation serves four heads.
template <class S>
__device__ __forceinline__ unsigned kept_heads(
    const EdgeArgs& edge, unsigned number, int first_head, u64 seed) {
    unsigned bits = 0;
    #pragma unroll
    for (int block = 0; block < (S::HEADS + 3) / 4; block++) {
        const uint4 r = philox(
            make_uint4(number, 0, (unsigned)(first_head / 4 + block), (unsigned)edge.offset), seed);
        const unsigned word[4] = {r.x, r.y, r.z, r.w};
        unsigned four = 0;
        #pragma unroll
        for (int i = 0; i < 4; i++) four |= (unsigned)(word[i] >= edge.drop_below) << i;
        bits |= (S::HEADS < 4 ? four >> (first_head & 3) : four) << (4 * block);
    }
    return bits;
}
template <class S>
__device__ __forceinline__ unsigned kept_heads(const EdgeArgs& edge, unsigned number, int first_head) {
    // Two calls, so that the keys of a seed among the arguments are the same for the whole warp.
    if (edge.drawn != nullptr) return kept_heads<S>(edge, number, first_head, __ldg(edge.drawn));
    return kept_heads<S>(edge, number, first_head, edge.seed);
}

}  // namespace gnnb
