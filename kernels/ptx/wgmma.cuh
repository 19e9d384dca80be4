// The tensor cores of Hopper (sm_90a), a warpgroup of 128 threads at a time: D[64, N] (+)= A[64, 16]·B[16, N], f16 or bf16, sums
// in f32. B lies in shared memory, A in shared memory (SS) or in registers (RS).
//
// Of D, thread t of warp w holds, with l = t % 32: rows 16w + l / 4 and + 8, columns 8i + 2·(l % 4) and + 1, as
// d[4i], d[4i + 1] (first row), d[4i + 2], d[4i + 3] (second). Of A in registers: as mma.cuh's A, rows 16w and on.
#pragma once

#include "ptx/types.cuh"

// Before the first wgmma on registers that other code has written.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING groups are under way.
template <int PENDING> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// Keeps the compiler from moving a use of an accumulator across a wait.
template <int COUNT> __device__ __forceinline__ void wgmma_hold(f32 (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

// Keeps an address in registers, where the compiler would find out in every step of a loop where shared memory lies.
__device__ __forceinline__ void hold_address(char *&address) { asm volatile("" : "+l"(address)); }

enum Swizzle : u64 { SWIZZLE_NONE = 0, SWIZZLE_128 = 1, SWIZZLE_64 = 2, SWIZZLE_32 = 3 };

// Describes a tile in shared memory. Offsets in bytes, multiples of 16: `leading` is the step between the repeating patterns of
// 8 × (swizzle width) along the contiguous axis where there are several (a swizzled tile of one pattern ignores it, 16 by custom), `stride` the step along the other axis. The tile starts on a multiple of 1,024 bytes; a step along K inside
// the pattern is an addition to the address.
__device__ __forceinline__ u64 wgmma_descriptor(u32 address, u32 leading, u32 stride, Swizzle swizzle) {
    u64 start = (address & 0x3ffff) >> 4;
    return start | u64((leading & 0x3ffff) >> 4) << 16 | u64((stride & 0x3ffff) >> 4) << 32 | u64(swizzle) << 62;
}

// The tile `bytes` further on, a multiple of 16.
__device__ __forceinline__ u64 wgmma_moved(u64 descriptor, u32 bytes) {
    return (descriptor & 0xffffffff00000000ull) | (u32(descriptor) + (bytes >> 4));
}

// The same place in another pattern.
__device__ __forceinline__ u64 wgmma_patterned(u64 descriptor, u32 stride, Swizzle swizzle) {
    return (wgmma_descriptor(0, 0, stride, swizzle) & 0xffffffff00000000ull) | u32(descriptor);
}

// A descriptor that is the same in all lanes, said so that the compiler knows: what is added to it then happens in uniform
// registers, where the instruction reads it, and not in every lane with a move for each.
__device__ __forceinline__ u64 wgmma_uniform(u64 descriptor) {
    return (descriptor & 0xffffffff00000000ull) | __shfl_sync(0xffffffffu, u32(descriptor), 0);
}

// ---- the instruction, for each width: N / 2 registers of D, then the operands ----

// Eight accumulators as operands of asm, and the names of the first so many operands.
#define D8(n) "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3]), "+f"(d[n + 4]), "+f"(d[n + 5]), "+f"(d[n + 6]), "+f"(d[n + 7])
#define D4(n) "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3])
#define D32(n) D8(n), D8(n + 8), D8(n + 16), D8(n + 24)
#define NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_12 NAMES_8 ", %8, %9, %10, %11"
#define NAMES_16 NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_36 NAMES_32 ", %32, %33, %34, %35"
#define NAMES_40 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_48 NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_56 NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_20 NAMES_16 ", %16, %17, %18, %19"
#define NAMES_44 NAMES_40 ", %40, %41, %42, %43"
#define NAMES_64 NAMES_32 ", " "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_72 NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NAMES_80 NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_24 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_52 NAMES_48 ", %48, %49, %50, %51"
#define NAMES_60 NAMES_56 ", %56, %57, %58, %59"
#define NAMES_68 NAMES_64 ", %64, %65, %66, %67"
#define NAMES_76 NAMES_72 ", %72, %73, %74, %75"
#define NAMES_84 NAMES_64 ", " "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83"
#define NAMES_88 NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define NAMES_96 NAMES_64 ", " "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_104 NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define NAMES_112 NAMES_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_120 NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define NAMES_128 NAMES_96 ", " "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// TYPE is "f16" or "bf16". A, B, P and so on name the operands after D.
#define WGMMA_SS(N, TYPE, NAMES, A, B, P, TA, TB, ...) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES "}, " A ", " B ", p, 1, 1, " TA ", " TB ";\n}" \
                 : __VA_ARGS__ \
                 : "l"(a), "l"(b), "r"(i32(accumulate)), "n"(A_MN), "n"(B_MN))

#define WGMMA_RS(N, TYPE, NAMES, A0, A1, A2, A3, B, P, TB, ...) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B \
                 ", p, 1, 1, " TB ";\n}" \
                 : __VA_ARGS__ \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(i32(accumulate)), "n"(B_MN))

template <class T> constexpr bool is_f16 = false;
template <> constexpr bool is_f16<f16> = true;

// D = A·B + (accumulate ? D : 0). T is f16 or bf16; A_MN, B_MN: 1 where the operand's M (or N) axis is the contiguous one, 0
// where K is.
template <class T, int N, int A_MN = 0, int B_MN = 0>
__device__ __forceinline__ void wgmma_ss(f32 (&d)[N / 2], u64 a, u64 b, bool accumulate) {
    static_assert(N == 24 || N == 40 || N == 72 || N == 88 || N == 104 || N == 120 || N == 136 || N == 152 || N == 168 || (N % 16 == 0 && N <= 256), "a width that there is");
    if constexpr (N == 16) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(16, "f16", NAMES_8, "%8", "%9", "%10", "%11", "%12", D8(0));
        } else {
            WGMMA_SS(16, "bf16", NAMES_8, "%8", "%9", "%10", "%11", "%12", D8(0));
        }
    } else if constexpr (N == 24) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(24, "f16", NAMES_12, "%12", "%13", "%14", "%15", "%16", D8(0), D4(8));
        } else {
            WGMMA_SS(24, "bf16", NAMES_12, "%12", "%13", "%14", "%15", "%16", D8(0), D4(8));
        }
    } else if constexpr (N == 32) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(32, "f16", NAMES_16, "%16", "%17", "%18", "%19", "%20", D8(0), D8(8));
        } else {
            WGMMA_SS(32, "bf16", NAMES_16, "%16", "%17", "%18", "%19", "%20", D8(0), D8(8));
        }
    } else if constexpr (N == 40) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(40, "f16", NAMES_20, "%20", "%21", "%22", "%23", "%24", D8(0), D8(8), D4(16));
        } else {
            WGMMA_SS(40, "bf16", NAMES_20, "%20", "%21", "%22", "%23", "%24", D8(0), D8(8), D4(16));
        }
    } else if constexpr (N == 64) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(64, "f16", NAMES_32, "%32", "%33", "%34", "%35", "%36", D32(0));
        } else {
            WGMMA_SS(64, "bf16", NAMES_32, "%32", "%33", "%34", "%35", "%36", D32(0));
        }
    } else if constexpr (N == 72) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(72, "f16", NAMES_36, "%36", "%37", "%38", "%39", "%40", D32(0), D4(32));
        } else {
            WGMMA_SS(72, "bf16", NAMES_36, "%36", "%37", "%38", "%39", "%40", D32(0), D4(32));
        }
    } else if constexpr (N == 80) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(80, "f16", NAMES_40, "%40", "%41", "%42", "%43", "%44", D32(0), D8(32));
        } else {
            WGMMA_SS(80, "bf16", NAMES_40, "%40", "%41", "%42", "%43", "%44", D32(0), D8(32));
        }
    } else if constexpr (N == 88) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(88, "f16", NAMES_44, "%44", "%45", "%46", "%47", "%48", D32(0), D8(32), D4(40));
        } else {
            WGMMA_SS(88, "bf16", NAMES_44, "%44", "%45", "%46", "%47", "%48", D32(0), D8(32), D4(40));
        }
    } else if constexpr (N == 96) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(96, "f16", NAMES_48, "%48", "%49", "%50", "%51", "%52", D32(0), D8(32), D8(40));
        } else {
            WGMMA_SS(96, "bf16", NAMES_48, "%48", "%49", "%50", "%51", "%52", D32(0), D8(32), D8(40));
        }
    } else if constexpr (N == 112) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(112, "f16", NAMES_56, "%56", "%57", "%58", "%59", "%60", D32(0), D8(32), D8(40), D8(48));
        } else {
            WGMMA_SS(112, "bf16", NAMES_56, "%56", "%57", "%58", "%59", "%60", D32(0), D8(32), D8(40), D8(48));
        }
    } else if constexpr (N == 128) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(128, "f16", NAMES_64, "%64", "%65", "%66", "%67", "%68", D32(0), D32(32));
        } else {
            WGMMA_SS(128, "bf16", NAMES_64, "%64", "%65", "%66", "%67", "%68", D32(0), D32(32));
        }
    } else if constexpr (N == 144) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(144, "f16", NAMES_72, "%72", "%73", "%74", "%75", "%76", D32(0), D32(32), D8(64));
        } else {
            WGMMA_SS(144, "bf16", NAMES_72, "%72", "%73", "%74", "%75", "%76", D32(0), D32(32), D8(64));
        }
    } else if constexpr (N == 160) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(160, "f16", NAMES_80, "%80", "%81", "%82", "%83", "%84", D32(0), D32(32), D8(64), D8(72));
        } else {
            WGMMA_SS(160, "bf16", NAMES_80, "%80", "%81", "%82", "%83", "%84", D32(0), D32(32), D8(64), D8(72));
        }
    } else if constexpr (N == 168) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(168, "f16", NAMES_84, "%84", "%85", "%86", "%87", "%88", D32(0), D32(32), D8(64), D8(72), D4(80));
        } else {
            WGMMA_SS(168, "bf16", NAMES_84, "%84", "%85", "%86", "%87", "%88", D32(0), D32(32), D8(64), D8(72), D4(80));
        }
    } else if constexpr (N == 176) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(176, "f16", NAMES_88, "%88", "%89", "%90", "%91", "%92", D32(0), D32(32), D8(64), D8(72), D8(80));
        } else {
            WGMMA_SS(176, "bf16", NAMES_88, "%88", "%89", "%90", "%91", "%92", D32(0), D32(32), D8(64), D8(72), D8(80));
        }
    } else if constexpr (N == 192) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(192, "f16", NAMES_96, "%96", "%97", "%98", "%99", "%100", D32(0), D32(32), D32(64));
        } else {
            WGMMA_SS(192, "bf16", NAMES_96, "%96", "%97", "%98", "%99", "%100", D32(0), D32(32), D32(64));
        }
    } else if constexpr (N == 208) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(208, "f16", NAMES_104, "%104", "%105", "%106", "%107", "%108", D32(0), D32(32), D32(64), D8(96));
        } else {
            WGMMA_SS(208, "bf16", NAMES_104, "%104", "%105", "%106", "%107", "%108", D32(0), D32(32), D32(64), D8(96));
        }
    } else if constexpr (N == 224) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(224, "f16", NAMES_112, "%112", "%113", "%114", "%115", "%116", D32(0), D32(32), D32(64), D8(96), D8(104));
        } else {
            WGMMA_SS(224, "bf16", NAMES_112, "%112", "%113", "%114", "%115", "%116", D32(0), D32(32), D32(64), D8(96), D8(104));
        }
    } else if constexpr (N == 48) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(48, "f16", NAMES_24, "%24", "%25", "%26", "%27", "%28", D8(0), D8(8), D8(16));
        } else {
            WGMMA_SS(48, "bf16", NAMES_24, "%24", "%25", "%26", "%27", "%28", D8(0), D8(8), D8(16));
        }
    } else if constexpr (N == 104) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(104, "f16", NAMES_52, "%52", "%53", "%54", "%55", "%56", D32(0), D8(32), D8(40), D4(48));
        } else {
            WGMMA_SS(104, "bf16", NAMES_52, "%52", "%53", "%54", "%55", "%56", D32(0), D8(32), D8(40), D4(48));
        }
    } else if constexpr (N == 120) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(120, "f16", NAMES_60, "%60", "%61", "%62", "%63", "%64", D32(0), D8(32), D8(40), D8(48), D4(56));
        } else {
            WGMMA_SS(120, "bf16", NAMES_60, "%60", "%61", "%62", "%63", "%64", D32(0), D8(32), D8(40), D8(48), D4(56));
        }
    } else if constexpr (N == 136) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(136, "f16", NAMES_68, "%68", "%69", "%70", "%71", "%72", D32(0), D32(32), D4(64));
        } else {
            WGMMA_SS(136, "bf16", NAMES_68, "%68", "%69", "%70", "%71", "%72", D32(0), D32(32), D4(64));
        }
    } else if constexpr (N == 152) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(152, "f16", NAMES_76, "%76", "%77", "%78", "%79", "%80", D32(0), D32(32), D8(64), D4(72));
        } else {
            WGMMA_SS(152, "bf16", NAMES_76, "%76", "%77", "%78", "%79", "%80", D32(0), D32(32), D8(64), D4(72));
        }
    } else if constexpr (N == 240) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(240, "f16", NAMES_120, "%120", "%121", "%122", "%123", "%124", D32(0), D32(32), D32(64), D8(96), D8(104), D8(112));
        } else {
            WGMMA_SS(240, "bf16", NAMES_120, "%120", "%121", "%122", "%123", "%124", D32(0), D32(32), D32(64), D8(96), D8(104), D8(112));
        }
    } else if constexpr (N == 256) {
        if constexpr (is_f16<T>) {
            WGMMA_SS(256, "f16", NAMES_128, "%128", "%129", "%130", "%131", "%132", D32(0), D32(32), D32(64), D32(96));
        } else {
            WGMMA_SS(256, "bf16", NAMES_128, "%128", "%129", "%130", "%131", "%132", D32(0), D32(32), D32(64), D32(96));
        }
    }
}

template <class T, int N, int B_MN = 0>
__device__ __forceinline__ void wgmma_rs(f32 (&d)[N / 2], const u32 (&a)[4], u64 b, bool accumulate) {
    static_assert(N % 16 == 0 && N <= 256 && N != 48, "a width that there is");
    if constexpr (N == 16) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(16, "f16", NAMES_8, "%8", "%9", "%10", "%11", "%12", "%13", "%14", D8(0));
        } else {
            WGMMA_RS(16, "bf16", NAMES_8, "%8", "%9", "%10", "%11", "%12", "%13", "%14", D8(0));
        }
    } else if constexpr (N == 32) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(32, "f16", NAMES_16, "%16", "%17", "%18", "%19", "%20", "%21", "%22", D8(0), D8(8));
        } else {
            WGMMA_RS(32, "bf16", NAMES_16, "%16", "%17", "%18", "%19", "%20", "%21", "%22", D8(0), D8(8));
        }
    } else if constexpr (N == 64) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(64, "f16", NAMES_32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", D32(0));
        } else {
            WGMMA_RS(64, "bf16", NAMES_32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", D32(0));
        }
    } else if constexpr (N == 80) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(80, "f16", NAMES_40, "%40", "%41", "%42", "%43", "%44", "%45", "%46", D32(0), D8(32));
        } else {
            WGMMA_RS(80, "bf16", NAMES_40, "%40", "%41", "%42", "%43", "%44", "%45", "%46", D32(0), D8(32));
        }
    } else if constexpr (N == 96) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(96, "f16", NAMES_48, "%48", "%49", "%50", "%51", "%52", "%53", "%54", D32(0), D8(32), D8(40));
        } else {
            WGMMA_RS(96, "bf16", NAMES_48, "%48", "%49", "%50", "%51", "%52", "%53", "%54", D32(0), D8(32), D8(40));
        }
    } else if constexpr (N == 112) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(112, "f16", NAMES_56, "%56", "%57", "%58", "%59", "%60", "%61", "%62", D32(0), D8(32), D8(40), D8(48));
        } else {
            WGMMA_RS(112, "bf16", NAMES_56, "%56", "%57", "%58", "%59", "%60", "%61", "%62", D32(0), D8(32), D8(40), D8(48));
        }
    } else if constexpr (N == 128) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(128, "f16", NAMES_64, "%64", "%65", "%66", "%67", "%68", "%69", "%70", D32(0), D32(32));
        } else {
            WGMMA_RS(128, "bf16", NAMES_64, "%64", "%65", "%66", "%67", "%68", "%69", "%70", D32(0), D32(32));
        }
    } else if constexpr (N == 144) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(144, "f16", NAMES_72, "%72", "%73", "%74", "%75", "%76", "%77", "%78", D32(0), D32(32), D8(64));
        } else {
            WGMMA_RS(144, "bf16", NAMES_72, "%72", "%73", "%74", "%75", "%76", "%77", "%78", D32(0), D32(32), D8(64));
        }
    } else if constexpr (N == 160) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(160, "f16", NAMES_80, "%80", "%81", "%82", "%83", "%84", "%85", "%86", D32(0), D32(32), D8(64), D8(72));
        } else {
            WGMMA_RS(160, "bf16", NAMES_80, "%80", "%81", "%82", "%83", "%84", "%85", "%86", D32(0), D32(32), D8(64), D8(72));
        }
    } else if constexpr (N == 176) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(176, "f16", NAMES_88, "%88", "%89", "%90", "%91", "%92", "%93", "%94", D32(0), D32(32), D8(64), D8(72), D8(80));
        } else {
            WGMMA_RS(176, "bf16", NAMES_88, "%88", "%89", "%90", "%91", "%92", "%93", "%94", D32(0), D32(32), D8(64), D8(72), D8(80));
        }
    } else if constexpr (N == 192) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(192, "f16", NAMES_96, "%96", "%97", "%98", "%99", "%100", "%101", "%102", D32(0), D32(32), D32(64));
        } else {
            WGMMA_RS(192, "bf16", NAMES_96, "%96", "%97", "%98", "%99", "%100", "%101", "%102", D32(0), D32(32), D32(64));
        }
    } else if constexpr (N == 208) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(208, "f16", NAMES_104, "%104", "%105", "%106", "%107", "%108", "%109", "%110", D32(0), D32(32), D32(64), D8(96));
        } else {
            WGMMA_RS(208, "bf16", NAMES_104, "%104", "%105", "%106", "%107", "%108", "%109", "%110", D32(0), D32(32), D32(64), D8(96));
        }
    } else if constexpr (N == 224) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(224, "f16", NAMES_112, "%112", "%113", "%114", "%115", "%116", "%117", "%118", D32(0), D32(32), D32(64), D8(96), D8(104));
        } else {
            WGMMA_RS(224, "bf16", NAMES_112, "%112", "%113", "%114", "%115", "%116", "%117", "%118", D32(0), D32(32), D32(64), D8(96), D8(104));
        }
    } else if constexpr (N == 240) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(240, "f16", NAMES_120, "%120", "%121", "%122", "%123", "%124", "%125", "%126", D32(0), D32(32), D32(64), D8(96), D8(104), D8(112));
        } else {
            WGMMA_RS(240, "bf16", NAMES_120, "%120", "%121", "%122", "%123", "%124", "%125", "%126", D32(0), D32(32), D32(64), D8(96), D8(104), D8(112));
        }
    } else if constexpr (N == 256) {
        if constexpr (is_f16<T>) {
            WGMMA_RS(256, "f16", NAMES_128, "%128", "%129", "%130", "%131", "%132", "%133", "%134", D32(0), D32(32), D32(64), D32(96));
        } else {
            WGMMA_RS(256, "bf16", NAMES_128, "%128", "%129", "%130", "%131", "%132", "%133", "%134", D32(0), D32(32), D32(64), D32(96));
        }
    }
}

#undef WGMMA_SS
#undef WGMMA_RS
#undef D4
#undef D8
#undef D32
#undef NAMES_8
#undef NAMES_12
#undef NAMES_16
#undef NAMES_20
#undef NAMES_32
#undef NAMES_36
#undef NAMES_40
#undef NAMES_44
#undef NAMES_48
#undef NAMES_56
#undef NAMES_64
#undef NAMES_72
#undef NAMES_80
#undef NAMES_24
#undef NAMES_52
#undef NAMES_60
#undef NAMES_68
#undef NAMES_76
#undef NAMES_84
#undef NAMES_88
#undef NAMES_96
#undef NAMES_104
#undef NAMES_112
#undef NAMES_120
#undef NAMES_128
