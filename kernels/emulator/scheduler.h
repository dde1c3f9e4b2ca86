// Runs the threads of one block at a time as fibers, and makes them meet in collectives.
//
// A thread runs until it reaches a collective (a shuffle, a vote, a barrier). There it leaves its
// value, and the next ready thread runs. The last thread that a collective waits for computes every
// participant's result and makes them all ready. When nobody is ready but somebody still waits, the
// block can never finish: that is reported, with what each lane waits for.
#pragma once

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fiber.h"
#include "vector_types.h"

namespace gnnb_emu {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;
#ifdef GNNB_ASAN
constexpr size_t kStackBytes = 512 << 10;
#else
constexpr size_t kStackBytes = 128 << 10;
#endif
// NaN as float, double, half and bfloat16; an absurd index as an integer.
constexpr uint64_t kPoison = 0x7FF97FF97FF97FF9ull;

enum class Op : uint8_t {
  kShuffle, kShuffleUp, kShuffleDown, kShuffleXor,
  kAny, kAll, kBallot, kSyncWarp, kMatchAny,
  kReduceAdd, kReduceMin, kReduceMax, kReduceUnsignedMin, kReduceUnsignedMax,
  kReduceAnd, kReduceOr, kReduceXor,
  kSyncThreads, kSyncThreadsCount, kSyncThreadsAnd, kSyncThreadsOr,
};

inline const char* op_name(Op op) {
  static const char* const names[] = {
      "__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync",
      "__any_sync", "__all_sync", "__ballot_sync", "__syncwarp", "__match_any_sync",
      "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync",
      "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync", "__reduce_xor_sync",
      "__syncthreads", "__syncthreads_count", "__syncthreads_and", "__syncthreads_or"};
  return names[static_cast<int>(op)];
}

enum class Order : int { kForward = 0, kReversed = 1, kRandom = 2 };

// Where in the kernels' source a collective was called.
struct Site {
  const char* file;
  int line;
};

// 16 bytes that a thread has asked for (copy_async in ptx.cuh); no source: zeros.
struct Copy {
  void* to;
  const void* from;
  int group;
};
constexpr int kMaxCopies = 64;

struct Lane {
  Context context;
  uint3 thread;
  uint64_t value = 0;   // what it brings to the collective it waits in, then what it gets back
  unsigned source = 0;  // the lane that it reads
  unsigned mask = 0;
  Op op = Op::kSyncWarp;
  Site site = {nullptr, 0};
  bool waits = false;
  Copy copies[kMaxCopies];
  int num_copies = 0;
  int copy_group = 0;
};

// Lanes of a warp that wait in the same warp collective with the same mask.
struct Group {
  Op op;
  unsigned mask;
  unsigned arrived;
};

struct Warp {
  unsigned alive = 0;
  unsigned ready = 0;
  unsigned num_groups = 0;
  Group groups[kWarp];
};

using Body = void (*)(const void* args);

struct Entry {
  const char* name;
  Body body;
  int args_bytes;
  int max_threads;
};

struct State {
  Context scheduler;
  Context* previous = nullptr;
  Lane* self = nullptr;
  int self_index = 0;
  Lane lanes[kMaxThreads];
  Warp warps[kMaxThreads / kWarp];
  int num_threads = 0;
  int num_alive = 0;
  int num_at_barrier = 0;
  unsigned ready_warps = 0;
  Order order = Order::kForward;
  uint64_t random = 0;
  uint64_t idle_yields = 0;
  const Entry* entry = nullptr;
  const void* args = nullptr;
  char* error = nullptr;
  int error_bytes = 0;
  bool failed = false;
};

static State state;

}  // namespace gnnb_emu

static uint3 blockIdx;
static uint3 blockDim;
static uint3 gridDim;
#define threadIdx (::gnnb_emu::state.self->thread)

namespace gnnb_emu {

static inline uint64_t next_random() {  // splitmix64
  uint64_t z = state.random += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

static void append_error(const char* format, ...) {
  const int used = static_cast<int>(strlen(state.error));
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(state.error + used, static_cast<size_t>(state.error_bytes - used), format, arguments);
  va_end(arguments);
}

static void begin_error() {
  state.failed = true;
  append_error("kernel %s, block (%u, %u, %u): ", state.entry->name, blockIdx.x, blockIdx.y,
               blockIdx.z);
}

// Leaves the block for good; the other fibers are abandoned where they are.
[[noreturn]] static void abandon_block() {
  switch_context(state.self->context, state.scheduler, true);
  __builtin_unreachable();
}

#define GNNB_FAIL(...)                     \
  do {                                     \
    ::gnnb_emu::begin_error();             \
    ::gnnb_emu::append_error(__VA_ARGS__); \
    ::gnnb_emu::abandon_block();           \
  } while (0)

static inline int pick_bit(unsigned bits) {
  if (state.order == Order::kForward) return __builtin_ctz(bits);
  if (state.order == Order::kReversed) return 31 - __builtin_clz(bits);
  for (int skip = static_cast<int>(next_random() % __builtin_popcount(bits)); skip > 0; --skip)
    bits &= bits - 1;
  return __builtin_ctz(bits);
}

static inline void set_ready(int warp, unsigned lanes) {
  state.warps[warp].ready |= lanes;
  if (state.warps[warp].ready) state.ready_warps |= 1u << warp;
}

static inline void clear_ready(int index) {
  Warp& warp = state.warps[index / kWarp];
  warp.ready &= ~(1u << (index % kWarp));
  if (!warp.ready) state.ready_warps &= ~(1u << (index / kWarp));
}

static void append_lanes(unsigned lanes) {
  const char* separator = "";
  for (int first = 0; first < kWarp; ++first) {
    if (!(lanes >> first & 1)) continue;
    int last = first;
    while (last + 1 < kWarp && (lanes >> (last + 1) & 1)) ++last;
    append_error(last > first ? "%s%d-%d" : "%s%d", separator, first, last);
    separator = ",";
    first = last;
  }
}

static bool same_wait(const Lane& a, const Lane& b) {
  return a.op == b.op && a.mask == b.mask && a.site.line == b.site.line &&
         strcmp(a.site.file, b.site.file) == 0;
}

// Appends, for one warp, which lanes wait where.
static void append_waits(int warp_index) {
  const Lane* const lanes = state.lanes + warp_index * kWarp;
  unsigned exited = ~state.warps[warp_index].alive;
  const int rest = state.num_threads - warp_index * kWarp;
  if (rest < kWarp) exited &= (1u << rest) - 1;
  unsigned left = state.warps[warp_index].alive;
  while (left) {
    const Lane& first = lanes[__builtin_ctz(left)];
    unsigned alike = 0;
    for (int i = 0; i < kWarp; ++i)
      if ((left >> i & 1) && same_wait(first, lanes[i])) alike |= 1u << i;
    left &= ~alike;
    append_error("\n  warp %d: lanes ", warp_index);
    append_lanes(alike);
    append_error(" wait in %s", op_name(first.op));
    if (first.op < Op::kSyncThreads) append_error(" with mask 0x%08x", first.mask);
    append_error(" at %s:%d", first.site.file, first.site.line);
  }
  if (exited) {
    append_error("\n  warp %d: lanes ", warp_index);
    append_lanes(exited);
    append_error(" have exited");
  }
}

static void append_all_waits() {
  for (int warp = 0; warp * kWarp < state.num_threads; ++warp) append_waits(warp);
}

// Switches to the next ready thread; comes back when the caller is chosen again.
static inline void reschedule(bool ends) {
  Context& from = state.self->context;
  if (!state.ready_warps) {
    if (state.num_alive) {
      begin_error();
      append_error("deadlock: no thread can go on. A barrier or a warp primitive was not reached by "
                   "every lane that it waits for:");
      append_all_waits();
    }
    switch_context(from, state.scheduler, true);
    __builtin_unreachable();
  }
  int warp = state.self_index / kWarp;
  if (!(state.ready_warps >> warp & 1) || state.order == Order::kRandom)
    warp = pick_bit(state.ready_warps);
  const int index = warp * kWarp + pick_bit(state.warps[warp].ready);
  if (index == state.self_index && !ends) return;
  state.previous = &from;
  state.self_index = index;
  state.self = &state.lanes[index];
  switch_context(from, state.self->context, ends);
}

// Lets another ready thread run: for loops that wait for a value in memory.
static inline void yield_lane() {
  if (++state.idle_yields > 20000000)
    GNNB_FAIL("livelock: the threads only spin on atomics, none gets on");
  const int index = state.self_index;
  clear_ready(index);
  const bool others = state.ready_warps != 0;
  set_ready(index / kWarp, 1u << (index % kWarp));
  if (!others) return;
  if (state.order == Order::kRandom) return reschedule(false);
  // The fixed orders would choose this lane again: go round in their direction instead.
  Context& from = state.self->context;
  const int step = state.order == Order::kForward ? 1 : state.num_threads - 1;
  int next = index;
  do next = (next + step) % state.num_threads;
  while (!(state.warps[next / kWarp].ready >> (next % kWarp) & 1));
  state.previous = &from;
  state.self_index = next;
  state.self = &state.lanes[next];
  switch_context(from, state.self->context, false);
}

static void compute_results(Lane* lanes, const Group& group);

// Completes a group when every living lane that its mask names is there.
static inline bool try_complete(int warp_index, unsigned group_index) {
  Warp& warp = state.warps[warp_index];
  const Group group = warp.groups[group_index];
  if (group.arrived != (group.mask & warp.alive)) return false;
  warp.groups[group_index] = warp.groups[--warp.num_groups];
  if (group.arrived) {
    compute_results(state.lanes + warp_index * kWarp, group);
    set_ready(warp_index, group.arrived);
  }
  state.idle_yields = 0;
  return true;
}

// Meets the other lanes that `mask` names. Returns this lane's result.
static inline uint64_t warp_collective(Op op, unsigned mask, uint64_t value, unsigned source,
                                       Site site) {
  const int index = state.self_index;
  Lane& self = *state.self;
  Warp& warp = state.warps[index / kWarp];
  const unsigned bit = 1u << (index % kWarp);
  if (!(mask & bit))
    GNNB_FAIL("warp %d, lane %d calls %s at %s:%d with mask 0x%08x, which does not name that lane",
              index / kWarp, index % kWarp, op_name(op), site.file, site.line, mask);
  self.value = value;
  self.source = source;
  self.mask = mask;
  self.op = op;
  self.site = site;
  clear_ready(index);
  unsigned group = 0;
  while (group < warp.num_groups &&
         !(warp.groups[group].op == op && warp.groups[group].mask == mask))
    ++group;
  if (group == warp.num_groups) warp.groups[warp.num_groups++] = {op, mask, 0};
  warp.groups[group].arrived |= bit;
  try_complete(index / kWarp, group);
  reschedule(false);
  return self.value;
}

// Releases the block's barrier when every living thread has reached it.
static inline void try_release_barrier() {
  if (!state.num_at_barrier || state.num_at_barrier != state.num_alive) return;
  const Lane* first = nullptr;
  uint64_t count = 0;
  bool mismatch = false;
  for (int i = 0; i < state.num_threads; ++i) {
    const Lane& lane = state.lanes[i];
    if (!lane.waits) continue;
    if (!first) first = &lane;
    mismatch = mismatch || !same_wait(*first, lane);
    count += lane.value != 0;
  }
  if (mismatch) {
    begin_error();
    append_error("the threads of the block reached different barriers (__syncthreads in divergent "
                 "code):");
    append_all_waits();
    abandon_block();
  }
  const bool all = count == static_cast<uint64_t>(state.num_at_barrier);
  const Op op = first->op;
  const uint64_t result = op == Op::kSyncThreadsAnd  ? all
                          : op == Op::kSyncThreadsOr ? count != 0
                                                     : count;
  for (int i = 0; i < state.num_threads; ++i) {
    Lane& lane = state.lanes[i];
    if (!lane.waits) continue;
    lane.waits = false;
    lane.value = result;
    set_ready(i / kWarp, 1u << (i % kWarp));
  }
  state.num_at_barrier = 0;
  state.idle_yields = 0;
}

static inline uint64_t block_barrier(Op op, uint64_t value, Site site) {
  Lane& self = *state.self;
  self.value = value;
  self.mask = 0;
  self.op = op;
  self.site = site;
  self.waits = true;
  clear_ready(state.self_index);
  ++state.num_at_barrier;
  try_release_barrier();
  reschedule(false);
  return self.value;
}

[[noreturn]] static void fiber_main() {
  enter_context(*state.previous);
  state.entry->body(state.args);
  const int index = state.self_index;
  Warp& warp = state.warps[index / kWarp];
  clear_ready(index);
  warp.alive &= ~(1u << (index % kWarp));
  --state.num_alive;
  state.idle_yields = 0;
  for (unsigned group = 0; group < warp.num_groups;)
    if (!try_complete(index / kWarp, group)) ++group;
  try_release_barrier();
  reschedule(true);
  __builtin_unreachable();
}

}  // namespace gnnb_emu
