// Launches: stacks, shared memory, and the loop over the blocks of a grid.
#pragma once

#include "scheduler.h"

namespace gnnb_emu {

// One __shared__ variable: its own allocation, so that AddressSanitizer sees its bounds.
struct SharedBlock {
  SharedBlock* next;
  void* data;
  size_t bytes;
};

static SharedBlock* shared_blocks = nullptr;

static void fill_poison(void* data, size_t bytes) {
  const uint16_t pattern = static_cast<uint16_t>(kPoison);
  char* out = static_cast<char*>(data);
  for (size_t i = 0; i + 1 < bytes; i += 2) memcpy(out + i, &pattern, 2);
  if (bytes & 1) out[bytes - 1] = static_cast<char>(0xF9);
}

static void poison_shared() {
  for (SharedBlock* block = shared_blocks; block; block = block->next)
    fill_poison(block->data, block->bytes);
}

// All stacks, each with an inaccessible page below it: an overflow crashes, it never corrupts.
static bool allocate_stacks(int num_threads) {
  static int num_stacks = 0;
  if (num_threads <= num_stacks) return true;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t stride = kStackBytes + page;
  const size_t count = static_cast<size_t>(num_threads - num_stacks);
  void* const memory = mmap(nullptr, stride * count, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  for (size_t i = 0; i < count; ++i) {
    char* const base = static_cast<char*>(memory) + i * stride;
    mprotect(base, page, PROT_NONE);
    state.lanes[num_stacks + static_cast<int>(i)].context.stack = base + page;
    state.lanes[num_stacks + static_cast<int>(i)].context.stack_bytes = kStackBytes;
  }
  num_stacks = num_threads;
  return true;
}

static void run_block() {
  state.num_alive = state.num_threads;
  state.num_at_barrier = 0;
  state.ready_warps = 0;
  state.idle_yields = 0;
  for (int warp = 0; warp * kWarp < state.num_threads; ++warp) {
    const int rest = state.num_threads - warp * kWarp;
    state.warps[warp].alive = rest >= kWarp ? ~0u : (1u << rest) - 1;
    state.warps[warp].ready = 0;
    state.warps[warp].num_groups = 0;
    set_ready(warp, state.warps[warp].alive);
  }
  for (int i = 0; i < state.num_threads; ++i) {
    state.lanes[i].waits = false;
    start_context(state.lanes[i].context, fiber_main);
  }
  poison_shared();
  const int warp = pick_bit(state.ready_warps);
  state.self_index = warp * kWarp + pick_bit(state.warps[warp].ready);
  state.self = &state.lanes[state.self_index];
  state.previous = &state.scheduler;
  switch_context(state.scheduler, state.self->context, false);
}

static int launch(const Entry& entry, const void* args, int args_bytes, const unsigned* grid,
                  const unsigned* block, int order, unsigned seed, char* error, int capacity) {
  state.entry = &entry;
  state.error = error;
  state.error_capacity = capacity;
  state.failed = false;
  error[0] = '\0';
  if (args_bytes != entry.args_bytes) {
    append_error("kernel %s: the argument struct has %d bytes, but %d bytes were passed", entry.name,
                 entry.args_bytes, args_bytes);
    return 1;
  }
  const uint64_t threads = uint64_t(block[0]) * block[1] * block[2];
  if (threads == 0 || threads > static_cast<uint64_t>(entry.max_threads) || threads > kMaxThreads) {
    append_error("kernel %s: block (%u, %u, %u) has %llu threads, the kernel takes 1 to %d",
                 entry.name, block[0], block[1], block[2],
                 static_cast<unsigned long long>(threads), entry.max_threads);
    return 1;
  }
  if (grid[0] == 0 || grid[0] > 0x7FFFFFFFu || grid[1] == 0 || grid[1] > 65535 || grid[2] == 0 ||
      grid[2] > 65535) {
    append_error("kernel %s: grid (%u, %u, %u) is outside 1..2147483647, 1..65535, 1..65535",
                 entry.name, grid[0], grid[1], grid[2]);
    return 1;
  }
  state.args = args;
  state.num_threads = static_cast<int>(threads);
  state.order = static_cast<Order>(order);
  state.random = seed;
  if (!allocate_stacks(state.num_threads)) {
    append_error("kernel %s: no memory for the stacks of %d threads", entry.name, state.num_threads);
    return 1;
  }
  blockDim = {block[0], block[1], block[2]};
  gridDim = {grid[0], grid[1], grid[2]};
  for (unsigned i = 0; i < threads; ++i)
    state.lanes[i].thread = {i % block[0], i / block[0] % block[1], i / block[0] / block[1]};
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; ++x) {
        blockIdx = {x, y, z};
        run_block();
        if (state.failed) return 1;
      }
  return 0;
}

}  // namespace gnnb_emu

// A kernel. Under CUDA the same macro makes a __global__ function; here it makes an exported
// function that gnn_backend/runtime/emulator.py calls. The variadic part is the kernel's body,
// which sees the parameter `const ARGS_TYPE args`.
#define GNNB_ENTRY(NAME, ARGS_TYPE, BLOCK_THREADS, ...)                                        \
  static void NAME##_emulated(const void* bytes) {                                             \
    ARGS_TYPE copy_of_args;                                                                    \
    memcpy(&copy_of_args, bytes, sizeof(ARGS_TYPE));                                           \
    const ARGS_TYPE args = copy_of_args;                                                       \
    (void)args;                                                                                \
    __VA_ARGS__;                                                                               \
  }                                                                                            \
  extern "C" __attribute__((visibility("default"))) int NAME(                                  \
      const void* args, int args_bytes, const unsigned* grid, const unsigned* block,           \
      int lane_order, unsigned seed, char* error, int error_capacity) {                        \
    static const ::gnnb_emu::Entry entry = {#NAME, NAME##_emulated,                            \
                                            static_cast<int>(sizeof(ARGS_TYPE)),               \
                                            (BLOCK_THREADS)};                                  \
    return ::gnnb_emu::launch(entry, args, args_bytes, grid, block, lane_order, seed, error,   \
                              error_capacity);                                                 \
  }
