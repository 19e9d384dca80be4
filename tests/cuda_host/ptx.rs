//! The functions of `kernels/ptx`, one instruction each, compiled for every architecture.

use libtest_mimic::Trial;
use trifuse::backends::cuda::jit::{Arch, resources};
use trifuse::backends::cuda::nvrtc_version;

use super::compile::{compile, disassemble, nvdisasm, probe_unit, trial};

/// Names every function of the Ampere headers.
pub const AMPERE: &str = r#"
    #include "ptx/copy.cuh"
    #include "ptx/mma.cuh"
    #include "ptx/special.cuh"
    #include "tile/power.cuh"
    template <class T> __device__ void use(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_m16n8k16<T>(d, a, b); }
    extern "C" __global__ void probe(const char *from, f32 *to, f32 value) {
        __shared__ alignas(128) char tile[4096];
        u32 at = shared_address(tile) + threadIdx.x * 16;
        cp_async_16(at, from + threadIdx.x * 16);
        cp_async_16(at, from + threadIdx.x * 16, 8);
        cp_async_16_stream(at, from + threadIdx.x * 16);
        cp_async_4(at + 2048, from + threadIdx.x * 4, 2);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        u32 a[4], b[2];
        f32 d[4] = {};
        ldmatrix_x4(a, at);
        ldmatrix_x2(b, at);
        use<f16>(d, a, b);
        ldmatrix_x4_transposed(a, at);
        ldmatrix_x2_transposed(b, at);
        b[0] = transpose_8x8(b[0]);
        use<bf16>(d, a, b);
        to[threadIdx.x] = d[0] + d[1] + d[2] + d[3] + widen(narrow<f16>(value)) + widen(narrow<bf16>(value)) + narrow<f32>(infinity());
        to[threadIdx.x + 160] = power(exponent_below(value)) * inverse_power(exponent_below(d[0]));
        to[threadIdx.x + 64] = shuffle_xor(exp2_fast(value), 1) + max_or_nan(reciprocal_fast(value), 0.0f) + f32(any_lane(value > 0.0f));
        ((u32 *)to)[threadIdx.x + 96] = shuffle_from(a[0], 31) + shuffle_up(a[1], 1) + any_lane_bits(a[2]) + first_lane(threadIdx.x >= 3) + count_arrival((u32 *)to + 128);
        ((u32 *)to)[threadIdx.x + 32] = narrow2<f16>(value, d[0]) ^ narrow2<bf16>(value, d[1]);
        ((u32 *)to)[threadIdx.x + 128] = and_or(a[0], 0xff, a[1]) + count_ones(lanes_where(value > 1.0f)) + shared_load_16(at);
        float4 four = shared_load_16_bytes(at);
        publish_16((float4 *)to + 192, four);
        to[threadIdx.x + 192] = poll_16((const float4 *)to + 192, four) ? 1.0f : 0.0f;
        store_16(to + 512 + threadIdx.x * 4, uint4{__float_as_uint(four.x), __float_as_uint(four.y), __float_as_uint(four.z), __float_as_uint(four.w)});
    }
"#;

/// Names every function of the Hopper headers.
pub const HOPPER: &str = r#"
    #include "ptx/copy.cuh"
    #include "ptx/cluster.cuh"
    #include "ptx/wgmma.cuh"
    template <class T, int N> __device__ f32 use(u32 at, bool more) {
        f32 d[N / 2];
        u32 a[4] = {at, at + 1, at + 2, at + 3};
        u64 left = wgmma_descriptor(at, 16, 1024, SWIZZLE_128), right = wgmma_descriptor(at + 8192, 16, 1024, SWIZZLE_128);
        wgmma_fence();
        wgmma_ss<T, N>(d, left, right, false);
        wgmma_ss<T, N, 1, 1>(d, left, right, more);
        wgmma_rs<T, N>(d, a, right, true);
        wgmma_rs<T, N, 1>(d, a, right, true);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(d);
        f32 sum = 0.0f;
        for (int i = 0; i < N / 2; i++) { sum += d[i]; }
        return sum;
    }
    template <class T, int N> __device__ f32 use_rows(u32 at) {
        f32 d[N / 2] = {};
        u32 a[4] = {at, at + 1, at + 2, at + 3};
        wgmma_fence();
        wgmma_rs<T, N, 1>(d, a, wgmma_descriptor(at, 16384, 1024, SWIZZLE_128), true);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(d);
        return d[0] + d[N / 2 - 1];
    }
    template <class T, int N> __device__ f32 use_shared(u32 at, bool more) {
        f32 d[N / 2];
        u64 both = wgmma_moved(wgmma_uniform(wgmma_descriptor(at, 16, 1024, SWIZZLE_128)), 1024);
        wgmma_fence();
        wgmma_ss<T, N>(d, both, both, more);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(d);
        return d[0] + d[N / 2 - 1];
    }
    extern "C" __global__ void __launch_bounds__(384, 1) probe(const __grid_constant__ tensor_map map, f32 *to, bool more) {
        extern __shared__ __align__(1024) char tile[];
        __shared__ u64 barrier;
        grid_wait();
        if (elect_one()) {
            tma_prefetch_map(&map);
            mbarrier_init(&barrier, 1);
            fence_mbarrier_init();
        }
        cluster_arrive();
        cluster_wait();
        if (threadIdx.x == 0) {
            mbarrier_arrive_expect(&barrier, 4096);
            bulk_load(tile, to, 64, &barrier);
            tma_load_2d(tile, &map, &barrier, 0, 0);
            tma_load_2d_by(EVICT_FIRST, tile, &map, &barrier, 0, 0);
            tma_load_3d(tile, &map, &barrier, 0, 0, 0);
            tma_load_4d(tile, &map, &barrier, 0, 0, 0, 0);
            tma_load_5d(tile, &map, &barrier, 0, 0, 0, 0, 0);
            tma_load_2d_multicast(tile, &map, &barrier, 0, 0, 3);
            tma_load_5d_multicast(tile, &map, &barrier, 0, 0, 0, 0, 0, 3);
            tma_load_4d_multicast(tile, &map, &barrier, 0, 0, 0, 0, 3);
            prefetch_line(to);
            mbarrier_arrive(&barrier);
            mbarrier_arrive_remote(&barrier, cluster_rank() ^ 1);
            mbarrier_arrive_remote_relaxed(&barrier, cluster_rank() ^ 1);
            u32 other = cluster_address(shared_address(tile), cluster_size() - 1);
            to[0] = cluster_load(other) + cluster_load_16(other).x;
            to[1] = f32(block_index_anew() + block_count_anew());
        }
        mbarrier_wait(&barrier, 0);
        registers_take<240>();
        char *near = tile;
        hold_address(near);
        u32 at = shared_address(near);
        cluster_store(cluster_address(at, 1), float4{}, cluster_address(shared_address(&barrier), 1));
        cluster_barrier_wait(&barrier, 1);
        cluster_write(cluster_address(at, 1), float4{1.0f, 2.0f, 3.0f, 4.0f});
        if (count_up((u32 *)to + 512) == 1) {
            wait_for_count((u32 *)to + 512, 2);
            fence_proxy_async_global();
        }
        f32 sum = use<f16, 16>(at, more) + use<bf16, 16>(at, more) + use<f16, 32>(at, more) + use<bf16, 32>(at, more);
        sum += use<f16, 64>(at, more) + use<f16, 128>(at, more) + use<f16, 192>(at, more) + use<f16, 256>(at, more);
        sum += use<bf16, 64>(at, more) + use<bf16, 128>(at, more) + use<bf16, 192>(at, more) + use<bf16, 256>(at, more);
        sum += use_rows<f16, 80>(at) + use_rows<bf16, 80>(at) + use_rows<f16, 96>(at) + use_rows<bf16, 96>(at);
        sum += use_shared<f16, 168>(at, more) + use_shared<bf16, 168>(at, more);
        sum += use_rows<f16, 112>(at) + use_rows<bf16, 112>(at);
        sum += use_shared<f16, 144>(at, more) + use_shared<bf16, 144>(at, more) + use_shared<f16, 208>(at, more) + use_shared<bf16, 208>(at, more);
        registers_give<40>();
        to[threadIdx.x] = sum;
        fence_proxy_async();
        named_barrier_arrive(1, 256);
        named_barrier_sync(2, 128);
        if (threadIdx.x == 0) {
            tma_store_2d(&map, tile, 0, 0);
            tma_store_4d(&map, tile, 0, 0, 0, 0);
            tma_store_commit();
            tma_store_wait_read<0>();
            tma_store_wait<0>();
        }
        grid_launch_next();
    }
"#;

/// The Ampere headers spill nothing, and keep nothing in local memory.
fn frugal(arch: Arch) {
    for kernel in resources(&compile(&probe_unit(AMPERE), arch).unwrap()) {
        assert!(kernel.registers > 0, "no registers were read from the log");
        assert_eq!((kernel.spill_bytes, kernel.local_bytes), (0, 0), "{} for {arch}: spills and local memory, in bytes", kernel.entry);
    }
}

pub fn trials() -> Vec<Trial> {
    let lacks = nvrtc_version().is_err().then_some("NVRTC");
    let shows = lacks.or_else(|| nvdisasm().is_none().then_some("nvdisasm"));
    let mut trials = Vec::new();
    for arch in Arch::CHECKED {
        trials.push(trial(&format!("ptx: the Ampere headers for {arch}"), lacks, Box::new(move || frugal(arch))));
    }
    // Every wgmma shape at once is more than registers hold; the variants, which use one each, are held to it above.
    trials.push(trial("ptx: the Hopper headers for sm_90a", lacks, Box::new(|| drop(compile(&probe_unit(HOPPER), Arch(90)).unwrap()))));
    trials.push(trial(
        "ptx: the instructions are the intended ones",
        shows,
        Box::new(|| {
            let ampere = disassemble(&compile(&probe_unit(AMPERE), Arch(80)).unwrap().cubin);
            let hopper = disassemble(&compile(&probe_unit(HOPPER), Arch(90)).unwrap().cubin);
            for instruction in ["LDGSTS", "LDSM", "HMMA.16816.F32"] {
                assert!(ampere.contains(instruction), "{instruction}");
            }
            for instruction in
                ["UTMALDG.2D", "UTMALDG.4D", "UTMALDG.2D.MULTICAST", "UTMASTG.2D", "SYNCS", "HGMMA.64x16x16", "HGMMA.64x64x16", "HGMMA.64x256x16", "USETMAXREG"]
            {
                assert!(hopper.contains(instruction), "{instruction}");
            }
        }),
    ));
    trials
}
