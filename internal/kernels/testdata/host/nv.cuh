// What nv.cuh gives the kernels, for a CPU: each thread of a block is a fiber, all of one OS thread. Threads meet in warps, blocks and
// clusters; a fiber that waits gives way to the next. The blocks of a grid run one after the other, those of a cluster in turns, for
// which shared memory, a section of its own, is swapped.
#ifndef NV_CUH
#define NV_CUH
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <functional>
#include <vector>

#define __CUDA_ARCH__ 900
#define __shared__ static __attribute__((section("shared")))
#define __launch_bounds__(...)
#define KERNEL static void
#define DEV static inline
#define MEMBER inline
#define DYNAMIC_SHARED(ALIGN) static_assert(ALIGN <= 1024)

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef float f32x2 __attribute__((ext_vector_type(2)));
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef u32 u32x2 __attribute__((ext_vector_type(2)));
typedef u32 u32x4 __attribute__((ext_vector_type(4)));

// Aligned so that the 18 bits of an address that a matrix descriptor has say where in it something lies.
alignas(256 << 10) __attribute__((section("shared"))) static u8 dynamic[256 << 10];
extern "C" u8 __start_shared[], __stop_shared[];

[[noreturn]] static void fault(const char *what) {
  printf("fault: %s\n", what);
  exit(1);
}

// Those who meet: the last to arrive does the work, then all go on.
struct Meeting {
  int turn = 0, arrived = 0;
};
struct Fiber { void *stack; u32 tid; bool done; };
struct Warp { Meeting meeting; u32 in[32][16], out[32][16]; };
struct Block {
  u32 x;
  int alive, at_cluster; // threads; those that wait for the cluster
  Meeting meeting;
  std::vector<Fiber> fibers;
  Warp warps[32];
  std::vector<u8> shared; // while another block of the cluster runs
};
static Block blocks[8], *block;
static Fiber *fiber;
static void *scheduler;
static int cluster_turn;
static u32 grid_x, grid_y, block_x, now_y, now_z, cluster_blocks;
static const std::function<void()> *kernel;

// Saves the registers that a call keeps and the stack, and takes up another.
extern "C" void switch_stack(void **save, void *load);
asm(".globl switch_stack\nswitch_stack: push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15; mov %rsp,(%rdi); mov %rsi,%rsp;"
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret\n");
static void give_way() { switch_stack(&fiber->stack, scheduler); }
static void begin_fiber() {
  (*kernel)();
  fiber->done = true;
  block->alive--;
  give_way();
}

#define TID (fiber->tid)
#define NTID block_x
#define CTAID (block->x)
#define CTAID_Y now_y
#define CTAID_Z now_z
#define NCTAID grid_x
#define NCTAID_Y grid_y

template <class Work> static void meet(Meeting &m, int count, Work work) {
  const int turn = m.turn;
  if (++m.arrived == count) {
    work();
    m.arrived = 0;
    m.turn++;
  }
  while (m.turn == turn) give_way();
}
static void __syncthreads() { meet(block->meeting, block_x, [] {}); }
template <class Work> static u32 *of_warp(const u32 *in, int n, Work work) {
  Warp &w = block->warps[TID >> 5];
  for (int i = 0; i < n; i++) w.in[TID & 31][i] = in[i];
  meet(w.meeting, 32, [&] { work(w); });
  return w.out[TID & 31];
}
static void cluster_meet() {
  const int turn = cluster_turn;
  block->at_cluster++;
  while (cluster_turn == turn) give_way();
}

// Runs the block until all of its threads have ended or wait for the cluster. Warps get on by chance, so that one which doesn't wait
// where it should is ahead of the others, or behind.
static u32 chance = 1;
static void run_block(Block &b) {
  block = &b;
  if (cluster_blocks > 1) memcpy(__start_shared, b.shared.data(), b.shared.size());
  while (b.alive > b.at_cluster) {
    chance = chance * 1664525 + 1013904223;
    const u32 warp = (chance >> 16) % (block_x / 32);
    for (int turns = 1 << (chance >> 8) % 6; turns; turns--)
      for (u32 i = warp * 32; i < warp * 32 + 32; i++)
        if (!b.fibers[i].done) fiber = &b.fibers[i], switch_stack(&scheduler, fiber->stack);
  }
  if (cluster_blocks > 1) memcpy(b.shared.data(), __start_shared, b.shared.size());
}

// Runs a grid. Shared memory begins as NaN.
static void launch(u32 gx, u32 gy, u32 gz, u32 threads, u32 cluster, const std::function<void()> &f) {
  constexpr size_t STACK = 64 << 10;
  static std::vector<char *> stacks;
  while (stacks.size() < threads * cluster) stacks.push_back((char *)aligned_alloc(16, STACK));
  grid_x = gx, grid_y = gy, block_x = threads, cluster_blocks = cluster, kernel = &f;
  for (now_z = 0; now_z < gz; now_z++)
    for (now_y = 0; now_y < gy; now_y++)
      for (u32 first = 0; first < gx; first += cluster) {
        memset(__start_shared, 0xff, __stop_shared - __start_shared);
        for (u32 k = 0; k < cluster; k++) {
          Block &b = blocks[k];
          b.x = first + k, b.alive = threads, b.at_cluster = 0, b.meeting = {};
          for (Warp &w : b.warps) w.meeting = {};
          b.shared.assign(cluster > 1 ? __stop_shared - __start_shared : 0, 0xff);
          b.fibers.resize(threads);
          for (u32 i = 0; i < threads; i++) {
            void **top = (void **)(stacks[k * threads + i] + STACK) - 1;
            *--top = (void *)begin_fiber;
            for (int r = 0; r < 6; r++) *--top = nullptr;
            b.fibers[i] = {top, i, false};
          }
        }
        for (int alive = 1; alive;) {
          alive = 0;
          for (u32 k = 0; k < cluster; k++) run_block(blocks[k]), alive += blocks[k].alive;
          cluster_turn++;
          for (u32 k = 0; k < cluster; k++) blocks[k].at_cluster = 0;
        }
      }
}

static float as_float(u32 u) { return __builtin_bit_cast(float, u); }
static u32 as_word(float f) { return __builtin_bit_cast(u32, f); }
static u32 shfl_word(u32 v, int mask) {
  return *of_warp(&v, 1, [mask](Warp &w) { for (int i = 0; i < 32; i++) w.out[i][0] = w.in[i ^ mask][0]; });
}
#define __nvvm_shfl_sync_bfly_i32(all, v, mask, c) ((int)shfl_word((u32)(v), mask))
DEV float shfl(float v, int lane) {
  const u32 in[2] = {as_word(v), (u32)lane};
  return as_float(*of_warp(in, 2, [](Warp &w) { for (int i = 0; i < 32; i++) w.out[i][0] = w.in[w.in[i][1]][0]; }));
}
DEV int shfl(int v, int lane) { return (int)as_word(shfl(as_float(v), lane)); }
DEV u32 ballot(bool v) {
  const u32 in = v;
  return *of_warp(&in, 1, [](Warp &w) {
    u32 all = 0;
    for (int i = 0; i < 32; i++) all |= w.in[i][0] << i;
    for (int i = 0; i < 32; i++) w.out[i][0] = all;
  });
}
#define __nvvm_bar_warp_sync(all) ((void)shfl_word(0, 0))
DEV float shfl_xor(float v, int mask) { return as_float(shfl_word(as_word(v), mask)); }
DEV float warp_sum(float v) {
  for (int m = 16; m; m >>= 1) v += shfl_xor(v, m);
  return v;
}

DEV float ex2(float x) { return exp2f(x); }
DEV float rsqrt(float x) { return 1 / sqrtf(x); }
DEV float rcp(float x) { return 1 / x; }
DEV float silu(float x) { return x * rcp(1.0f + ex2(-1.4426950408889634f * x)); }
DEV float bf16_f32(u16 b) { return as_float((u32)b << 16); }
DEV float bf16_lo(u32 p) { return as_float(p << 16); }
DEV float bf16_hi(u32 p) { return as_float(p & 0xffff0000u); }
DEV u16 f32_bf16(float f) {
  const u32 u = as_word(f);
  return f == f ? (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16) : 0x7fff;
}
DEV u32 pack_bf16(float lo, float hi) { return f32_bf16(lo) | (u32)f32_bf16(hi) << 16; }
DEV float f16_f32(u16 h) { return (float)__builtin_bit_cast(_Float16, h); }
template <u32 SELECT> static u32 permute(u32 a, u32 b) {
  const u64 all = a | (u64)b << 32;
  u32 r = 0;
  for (int i = 0; i < 4; i++) r |= (u32)(all >> 8 * (SELECT >> 4 * i & 7) & 0xff) << 8 * i;
  return r;
}

template <class T> static T aligned(const void *p) {
  if ((u64)p % sizeof(T)) fault("a load that isn't aligned");
  return *(const T *)p;
}
DEV u32x4 load_once(const void *p) { return aligned<u32x4>(p); }
DEV u64 passing() { return 0; }
DEV u32x4 load_once(const void *p, u64) { return load_once(p); }
DEV u32x2 load_once8(const void *p) { return aligned<u32x2>(p); }
DEV u32 load_fresh(const void *p) { return aligned<u32>(p); }
DEV void fence_gpu() {}
DEV u32 count_up(u32 *p) { return (*p)++; }
DEV u32 load_word(const void *p) { return aligned<u32>(p); }
DEV u32 load_half(const void *p) { return aligned<u16>(p); }
DEV u32x2 load_pair(const void *p) { return aligned<u32x2>(p); }
DEV void dependents_may_launch() {}
DEV void wait_for_earlier() {}
// The program is linked so that its own memory lies below 4 GiB.
DEV u32 shared_address(const void *p) { return (u32)(u64)p; }
DEV u8 *shared_at(u32 address) { return (u8 *)(u64)address; }
DEV void store_shared(u32 address, float v) { *(float *)shared_at(address) = v; }
#endif
