// The tensor cores of Ampere and later, a warp at a time: D[16, 8] += A[16, 16]·B[16, 8], f16 or bf16, sums in f32.
//
// Lane `l` holds, with g = l / 4 and t = l % 4: of A, rows g and g + 8, columns 2t, 2t + 1, 2t + 8, 2t + 9; of B, column g,
// rows 2t, 2t + 1, 2t + 8, 2t + 9; of D, rows g and g + 8, columns 2t and 2t + 1.
#pragma once

#include "ptx/types.cuh"

// Four 8 × 8 tiles of 16-bit elements. Lane l gives the address of row l % 8 of tile l / 8; its row is 16 bytes.
__device__ __forceinline__ void ldmatrix_x4(u32 (&to)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(u32 (&to)[2], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
}

// As ldmatrix_x4, each tile transposed on the way.
__device__ __forceinline__ void ldmatrix_x4_transposed(u32 (&to)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_transposed(u32 (&to)[2], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
}

// The transpose of an 8 × 8 tile of 16-bit elements of which lane l holds row l / 4, columns 2·(l % 4) and + 1.
__device__ __forceinline__ u32 transpose_8x8(u32 pair) {
    u32 turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
    return turned;
}

// D += A·B. T is f16 or bf16.
template <class T> __device__ __forceinline__ void mma_m16n8k16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]);

template <> __device__ __forceinline__ void mma_m16n8k16<f16>(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <> __device__ __forceinline__ void mma_m16n8k16<bf16>(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
