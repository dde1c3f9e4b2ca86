// What the kernels generated from relational programs (gnn_backend/ir/emit_cuda.py) share.
//
// Mapping. As traversal.cuh: a task is a chunk of a row's elements, owned by a group of HEADS * LANES
// lanes, VALUES columns a lane; TASKS tasks stand side by side in a warp; blockIdx.y runs over blocks
// of HEADS heads. A group loads the indices of U elements, then their rows, and only then computes.
// A row of one task is finished and written; rows of several leave partials, which `merge` combines
// in slot order (split_rows.cuh), a column a lane. A map has no rows: a group owns elements.
//
// Bytes an element: 4 for each index, and the rows that its loads name. Nothing else is written for
// an element unless a store says so.
//
// Determinism. No atomics; tasks and grid fix the order of every sum.
#pragma once
#include "exponential.cuh"
#include "split_rows.cuh"

namespace gnnb {

// Where a lane stands in a row that all heads share, [1, D].
template <class S> __device__ __forceinline__ Lane<S> shared_by_heads(const Lane<S>& at) {
    Lane<S> one = at;
    one.head = 0;
    one.stride = (unsigned)at.dim;
    one.row_bytes = one.stride * (unsigned)sizeof(typename S::T);
    one.column = at.within * S::WIDTH;
    return one;
}

// Whether a lane's value number i is within the row.
template <class S> __device__ __forceinline__ bool holds_value(const Lane<S>& at, int i) {
    return S::FULL || at.holds(i / S::WIDTH);
}

// One number of a table [rows, numbers a row].
template <typename T> __device__ __forceinline__ float number_at(const void* table, i64 place) {
    return Storage<T>::get(static_cast<const T*>(table)[place]);
}
template <typename T> __device__ __forceinline__ void put_number(void* table, i64 place, float x) {
    static_cast<T*>(table)[place] = Storage<T>::put(x);
}

__device__ __forceinline__ float relu_of(float x) { return x <= 0.f ? 0.f : x; }  // NaN stays
__device__ __forceinline__ float leaky_of(float x, float slope) { return x > 0.f ? x : slope * x; }
__device__ __forceinline__ float slope_of(float x, float slope) { return x > 0.f ? 1.f : slope; }
__device__ __forceinline__ float larger(float a, float b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ float smaller(float a, float b) { return a < b || a != a ? a : b; }
__device__ __forceinline__ float flag(bool truth) { return truth ? 1.f : 0.f; }
__device__ __forceinline__ float sigmoid_of(float x) { return 1.f / (1.f + exponential(-x)); }
// |x| small: the quotient would lose what is left of 1 - 1.
__device__ __forceinline__ float tanh_of(float x) {
    const float a = fabsf(x);
    if (a < 0.1f) {
        const float s = x * x;
        return x * (1.f + s * (-0.33333333f + s * (0.13333333f - s * 0.05396825f)));
    }
    const float e = exponential(-2.f * a);
    const float t = (1.f - e) / (1.f + e);
    return x < 0.f ? -t : t;
}

// A running softmax: the largest logit, and the sum of exponentials below it.
struct Softmax {
    float top, sum;
    __device__ __forceinline__ void clear() {
        top = lowest<float>();
        sum = 0.f;
    }
    // Raise the maximum, and give the factor of what was summed so far.
    __device__ __forceinline__ float raise(float other) {
        const float before = top;
        top = fmaxf(top, other);
        const float factor = before == top ? 1.f : exponential(before - top);  // both may be inf
        sum *= factor;
        return factor;
    }
    // What exponents are taken from: an infinite logit makes the sum infinite, not NaN.
    __device__ __forceinline__ float base() const { return top <= LARGEST ? top : 0.f; }
    __device__ __forceinline__ float weigh(float logit) {
        const float weight = exponential(logit - base());
        sum += weight;
        return weight;
    }
    __device__ __forceinline__ float lse() const {
        return sum == 0.f ? negative_infinity() : top + logarithm(sum);
    }
};

// The task of this lane's group, of row 0 and no elements past the last one.
template <class S>
__device__ __forceinline__ Task group_task(const int4* tasks, i64 num_tasks, i64 number) {
    return number < num_tasks ? load_task(tasks, number) : Task{0, 0, -1, 0};
}

// The most elements of the warp's tasks: all of its lanes take part until then.
template <class S> __device__ __forceinline__ int longest_task(int count) {
    #pragma unroll
    for (int o = S::GROUP; o < WARP; o <<= 1) count = max(count, __shfl_xor_sync(ALL_LANES, count, o));
    return count;
}

}  // namespace gnnb
