// Fibers: stacks, and a context switch of a few instructions.
//
// `Context` is a suspended flow of control. `switch_context(from, to)` saves the caller in `from` and
// continues `to`; it returns when somebody switches back. Only the registers that a called function
// must keep are saved (System V x86-64 and AAPCS64); other machines, or a build with
// -DGNNB_FIBER_UCONTEXT, use ucontext, which is slower (it makes a system call for the signal mask).
#pragma once

#ifndef GNNB_FIBER_UCONTEXT
#if defined(__x86_64__)
#define GNNB_FIBER_X86_64 1
#elif defined(__aarch64__)
#define GNNB_FIBER_AARCH64 1
#else
#define GNNB_FIBER_UCONTEXT 1
#endif
#endif

#ifdef GNNB_FIBER_UCONTEXT
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define GNNB_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GNNB_ASAN 1
#endif
#endif

#ifdef GNNB_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace gnnb_emu {

struct Context {
#ifdef GNNB_FIBER_UCONTEXT
  ucontext_t registers;
#else
  void* stack_pointer = nullptr;
#endif
  void* stack = nullptr;  // lowest address
  size_t stack_bytes = 0;
#ifdef GNNB_ASAN
  void* fake_stack = nullptr;
#endif
};

#ifndef GNNB_FIBER_UCONTEXT
// Stores the stack pointer in *save, loads `load`, and returns on the new stack.
extern "C" void gnnb_emulator_switch(void** save, void* load) __asm__("gnnb_emulator_switch");
#endif

#ifdef GNNB_FIBER_X86_64
__asm__(
    ".text\n"
    ".p2align 4\n"
    "gnnb_emulator_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n");
#endif

#ifdef GNNB_FIBER_AARCH64
__asm__(
    ".text\n"
    ".p2align 4\n"
    "gnnb_emulator_switch:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n"
    "  str x9, [x0]\n"
    "  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n");
#endif

// Makes `context` start `entry` (which must never return) on its stack, from the top.
static inline void start_context(Context& context, void (*entry)()) {
#ifdef GNNB_ASAN
  // Frames that the last run left behind still have poisoned surroundings.
  __asan_unpoison_memory_region(context.stack, context.stack_bytes);
  context.fake_stack = nullptr;
#endif
#ifdef GNNB_FIBER_UCONTEXT
  getcontext(&context.registers);
  context.registers.uc_stack.ss_sp = context.stack;
  context.registers.uc_stack.ss_size = context.stack_bytes;
  context.registers.uc_link = nullptr;
  makecontext(&context.registers, entry, 0);
#else
  char* const top = static_cast<char*>(context.stack) + context.stack_bytes;
#ifdef GNNB_FIBER_X86_64
  // Six registers, the return address, and a null caller; `entry` sees rsp = 8 (mod 16).
  void** frame = reinterpret_cast<void**>(top - 64);
  for (int i = 0; i < 8; ++i) frame[i] = nullptr;
  frame[6] = reinterpret_cast<void*>(entry);
#else
  void** frame = reinterpret_cast<void**>(top - 160);
  for (int i = 0; i < 20; ++i) frame[i] = nullptr;
  frame[11] = reinterpret_cast<void*>(entry);  // x30, the link register
#endif
  context.stack_pointer = frame;
#endif
}

// Suspends `from` and continues `to`. `ends`: nobody will ever switch back to `from`.
static inline void switch_context(Context& from, Context& to, bool ends) {
#ifdef GNNB_ASAN
  __sanitizer_start_switch_fiber(ends ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#else
  (void)ends;
#endif
#ifdef GNNB_FIBER_UCONTEXT
  swapcontext(&from.registers, &to.registers);
#else
  gnnb_emulator_switch(&from.stack_pointer, to.stack_pointer);
#endif
#ifdef GNNB_ASAN
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

// To be called first thing on a new fiber; `previous`: the context that it was entered from.
static inline void enter_context(Context& previous) {
#ifdef GNNB_ASAN
  const void* stack;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  previous.stack = const_cast<void*>(stack);
  previous.stack_bytes = bytes;
#else
  (void)previous;
#endif
}

}  // namespace gnnb_emu
