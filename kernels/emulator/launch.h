// Launches: stacks, shared memory, and the loop over the blocks of a grid.
#pragma once

#include <stdlib.h>

#include "scheduler.h"

namespace gnnb_emu {

// A __shared__ variable's memory. Each has its own allocation, so that AddressSanitizer sees its
// bounds, and is filled with poison before every block.
struct SharedMemory {
  SharedMemory* next;
  void* data;
  size_t bytes;
};

static SharedMemory* shared_memory = nullptr;

static void fill_poison(void* data, size_t bytes) {
  char* const out = static_cast<char*>(data);
  size_t i = 0;
  for (; i + sizeof(kPoison) <= bytes; i += sizeof(kPoison)) memcpy(out + i, &kPoison, sizeof(kPoison));
  for (; i < bytes; ++i) out[i] = static_cast<char>(kPoison >> 8 * (i % 2));
}

// Under the sanitizers, memory lies at an address that is aligned no better than its type demands,
// so that a wider access through a cast is reported.
static void* allocate_shared(size_t bytes, size_t alignment) {
  constexpr size_t kWide = 128;
#ifdef GNNB_ASAN
  const size_t offset = alignment % kWide;
#else
  const size_t offset = 0;
  (void)alignment;
#endif
  void* base = nullptr;
  if (posix_memalign(&base, kWide, bytes + offset) != 0) return nullptr;
  return static_cast<char*>(base) + offset;
}

// What emulator.py turns `__shared__ T name;` into a static object of. T may be an array.
template <typename T, size_t ALIGNMENT = alignof(T)>
struct Shared {
  SharedMemory memory;
  Shared() : memory{shared_memory, allocate_shared(sizeof(T), ALIGNMENT), sizeof(T)} {
    if (!memory.data) abort();
    fill_poison(memory.data, memory.bytes);
    shared_memory = &memory;
  }
  static_assert(sizeof(T) <= 48 << 10, "static shared memory is limited to 48 KiB");
  T& get() { return *static_cast<T*>(memory.data); }
};

// The block's dynamic shared memory, which every `extern __shared__` array names: one fixed
// address, of which `dynamic_bytes` may be used.
constexpr size_t kMaxDynamicBytes = 227 << 10;
alignas(128) static char dynamic_memory[kMaxDynamicBytes];
static size_t dynamic_bytes = 0;

static void set_dynamic_bytes(size_t bytes) {
  dynamic_bytes = bytes;
#ifdef GNNB_ASAN
  __asan_unpoison_memory_region(dynamic_memory, bytes);
  __asan_poison_memory_region(dynamic_memory + bytes, kMaxDynamicBytes - bytes);
#endif
}

// The array that `extern __shared__ T name[];` declares.
template <typename Array>
static inline Array& dynamic_shared() {
  return *reinterpret_cast<Array*>(dynamic_memory);
}

static void poison_shared() {
  for (SharedMemory* memory = shared_memory; memory; memory = memory->next)
    fill_poison(memory->data, memory->bytes);
  fill_poison(dynamic_memory, dynamic_bytes);
}

// All stacks of a run, each with an inaccessible page below it: an overflow crashes, it never
// corrupts. They are given back after the run: each takes two of the mappings that a process may
// have, and a process may load hundreds of these libraries.
class Stacks {
 public:
  ~Stacks() {
    if (memory_ == MAP_FAILED) return;
#ifdef GNNB_ASAN
    __asan_unpoison_memory_region(memory_, bytes_);  // whoever gets these addresses next
#endif
    munmap(memory_, bytes_);
  }
  bool allocate(int num_threads) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t stride = kStackBytes + page;
    bytes_ = stride * static_cast<size_t>(num_threads);
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) return false;
    for (int i = 0; i < num_threads; ++i) {
      char* const base = static_cast<char*>(memory_) + static_cast<size_t>(i) * stride;
      mprotect(base, page, PROT_NONE);
      state.lanes[i].context.stack = base + page;
      state.lanes[i].context.stack_bytes = kStackBytes;
    }
    return true;
  }

 private:
  void* memory_ = MAP_FAILED;
  size_t bytes_ = 0;
};

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
    state.lanes[i].num_copies = state.lanes[i].copy_group = 0;
    start_context(state.lanes[i].context, fiber_main);
  }
  poison_shared();
  const int warp = pick_bit(state.ready_warps);
  state.self_index = warp * kWarp + pick_bit(state.warps[warp].ready);
  state.self = &state.lanes[state.self_index];
  state.previous = &state.scheduler;
  switch_context(state.scheduler, state.self->context, false);
}

template <typename T>
static inline T copy_of(const void* bytes) {
  T value;
  memcpy(&value, bytes, sizeof(T));
  return value;
}

// What emulator.py passes; the order of the fields is part of the contract with it.
struct Launch {
  const void* args;
  char* error;
  int error_bytes;
  int args_bytes;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  int lane_order;
  unsigned seed;
};

static bool check_launch(const Entry& entry, const Launch& launch) {
  const unsigned* const grid = launch.grid;
  const unsigned* const block = launch.block;
  const uint64_t threads = uint64_t(block[0]) * block[1] * block[2];
  append_error("kernel %s: ", entry.name);
  if (launch.args_bytes != entry.args_bytes) {
    append_error("the argument struct has %d bytes, but %d bytes were passed", entry.args_bytes,
                 launch.args_bytes);
  } else if (threads == 0 || threads > static_cast<uint64_t>(entry.max_threads)) {
    append_error("block (%u, %u, %u) has %llu threads; GNNB_ENTRY allows 1 to %d", block[0], block[1],
                 block[2], static_cast<unsigned long long>(threads), entry.max_threads);
  } else if (grid[0] == 0 || grid[0] > 0x7FFFFFFFu || grid[1] == 0 || grid[1] > 65535 ||
             grid[2] == 0 || grid[2] > 65535) {
    append_error("grid (%u, %u, %u) is outside 1 to 2147483647, 65535, 65535", grid[0], grid[1],
                 grid[2]);
  } else if (launch.shared_bytes > kMaxDynamicBytes) {
    append_error("%u bytes of dynamic shared memory; the limit is %zu", launch.shared_bytes,
                 kMaxDynamicBytes);
  } else {
    state.error[0] = '\0';
    state.num_threads = static_cast<int>(threads);
    return true;
  }
  return false;
}

// Runs every block of the grid. Returns 0, or 1 with a message in launch.error.
static int run(const Entry& entry, const Launch& launch) {
  state.entry = &entry;
  state.args = launch.args;
  state.error = launch.error;
  state.error_bytes = launch.error_bytes;
  state.error[0] = '\0';
  state.failed = false;
  state.order = static_cast<Order>(launch.lane_order);
  state.random = launch.seed;
  if (!check_launch(entry, launch)) return 1;
  Stacks stacks;
  if (!stacks.allocate(state.num_threads)) {
    append_error("no memory for the stacks of %d threads", state.num_threads);
    return 1;
  }
  set_dynamic_bytes(launch.shared_bytes);
  const unsigned* const grid = launch.grid;
  const unsigned* const block = launch.block;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  for (unsigned i = 0; i < static_cast<unsigned>(state.num_threads); ++i)
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
// which sees the parameter `const ARGS_TYPE args`; every thread has its own copy, as on a GPU.
#define GNNB_ENTRY(NAME, ARGS_TYPE, BLOCK_THREADS, ...)                                         \
  static void NAME##_emulated(const void* bytes) {                                              \
    const ARGS_TYPE args = ::gnnb_emu::copy_of<ARGS_TYPE>(bytes);                               \
    (void)args;                                                                                 \
    __VA_ARGS__;                                                                                \
  }                                                                                             \
  extern "C" __attribute__((visibility("default"))) int NAME(const ::gnnb_emu::Launch* launch) { \
    static_assert((BLOCK_THREADS) >= 1 && (BLOCK_THREADS) <= ::gnnb_emu::kMaxThreads,           \
                  "a block has 1 to 1024 threads");                                             \
    static const ::gnnb_emu::Entry entry = {                                                    \
        #NAME, NAME##_emulated, static_cast<int>(sizeof(ARGS_TYPE)), (BLOCK_THREADS)};          \
    return ::gnnb_emu::run(entry, *launch);                                                     \
  }
