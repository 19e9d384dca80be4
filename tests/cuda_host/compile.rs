//! Every variant, and every function of `kernels/ptx`, compiled to machine code for every architecture.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use trifuse::Error;
use trifuse::backends::cuda::jit::{Arch, Source, Unit, resources};
use trifuse::backends::cuda::{Cache, Entry, TensorCores, catalogue, nvrtc_version};

use super::waits;

/// `part` of every folder of NVIDIA's in `.cuda`, where `./check` installs.
pub fn python_folders(part: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cuda/lib");
    let list = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    list(root).flat_map(|python| list(python.join("site-packages/nvidia"))).map(|package| package.join(part)).collect()
}

/// Whether the folder has a file whose name starts so.
pub fn holds(folder: &Path, start: &str) -> bool {
    std::fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(start))
}

/// The disassembler, if there is one.
fn nvdisasm() -> Option<PathBuf> {
    let installed = python_folders("bin").into_iter().map(|folder| folder.join("nvdisasm")).find(|path| path.exists());
    installed.or_else(|| Command::new("nvdisasm").arg("--version").output().is_ok().then(|| "nvdisasm".into()))
}

fn disassemble(cubin: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), cubin).unwrap();
    let output = Command::new(nvdisasm().unwrap()).arg("--print-code").arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn compile(unit: &Unit, arch: Arch) -> trifuse::Result<trifuse::backends::cuda::Built> {
    unit.build(arch, &Cache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels")))
}

/// No spill, no local memory, no more shared memory than a block of that chip may use, and no wgmma that waits for the one before.
fn frugal(unit: &Unit, arch: Arch) {
    let built = compile(unit, arch).unwrap();
    let waits: Vec<_> = built.log.lines().filter(|line| line.contains("instructions are serialized")).collect();
    assert!(waits.is_empty(), "{} {arch}: the assembler has every product waited for: {waits:?}", unit.name);
    let used = resources(&built);
    assert_eq!(used.len(), unit.entries.len(), "{used:?}");
    for kernel in used {
        let at = format!("{} {arch} {}", unit.name, kernel.entry);
        assert!(unit.entries.contains(&kernel.entry.as_str()), "{at}: not listed");
        assert!(kernel.registers > 0, "{at}: no registers were read from the log");
        assert_eq!((kernel.spill_bytes, kernel.local_bytes), (0, 0), "{at}: spills and local memory, in bytes");
        let (shared, limit) = (kernel.shared_bytes + unit.shared_bytes, arch.shared_bytes().unwrap());
        assert!(shared <= limit, "{at}: {shared} bytes of shared memory > {limit}");
    }
}

fn probe_unit(source: &'static str) -> Unit {
    Unit { entries: &["probe"], ..Unit::new("probe", Source { path: "probe.cu", text: source }) }
}

/// Names every function of the Ampere headers.
const AMPERE: &str = r#"
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
        tell_16((float4 *)to + 192, four);
        to[threadIdx.x + 192] = hear_16((const float4 *)to + 192, four) ? 1.0f : 0.0f;
        store_16(to + 512 + threadIdx.x * 4, uint4{__float_as_uint(four.x), __float_as_uint(four.y), __float_as_uint(four.z), __float_as_uint(four.w)});
    }
"#;

/// Names every function of the Hopper headers.
const HOPPER: &str = r#"
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

/// What is left of a unit's name without its type of elements.
fn shape(unit: &Unit) -> String {
    let typed = |word: &&str| !matches!(word.trim_end_matches(','), "f16" | "bf16" | "f32");
    unit.name.split(' ').filter(typed).collect::<Vec<_>>().join(" ")
}

/// The units of an entry that are compiled for `arch` where nothing asks for all, and how many are left out.
///
/// Of units that differ by the type of elements alone one is compiled: of one shape this type, of the next shape another, and
/// `TRIFUSE_KERNELS_TURN`, a number that `./check` draws for each revision, turns them round. So is the family of activations, of which
/// Hopper's kernels for products have three: one for each tile. sm_86 and sm_89, which have the registers and instructions of
/// sm_80, take a quarter of the shapes each, and the assembler gives both the same code (a trial below holds it to that); sm_90a
/// takes half of those that sm_80 has too, and all that are its own.
fn covered(entry: &Entry, arch: Arch) -> (Vec<Unit>, usize) {
    let mut shapes: Vec<(String, Vec<Unit>)> = Vec::new();
    for unit in entry.units(arch) {
        let name = shape(&unit);
        match shapes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, units)) => units.push(unit),
            None => shapes.push((name, vec![unit])),
        }
    }
    let all = std::env::var_os("TRIFUSE_ALL_KERNELS").is_some();
    let turn = std::env::var("TRIFUSE_KERNELS_TURN").ok().and_then(|turn| turn.parse().ok()).unwrap_or(0usize);
    let (count, number_of_shapes) = (shapes.iter().map(|(_, units)| units.len()).sum::<usize>(), shapes.len());
    let families = matches!(entry.op, "linear" | "fused_mlp") && entry.variant.starts_with("sm90") && number_of_shapes.is_multiple_of(3);
    let taken = |number: usize| match arch {
        _ if all => true,
        Arch(86) => number.is_multiple_of(4),
        Arch(89) => number % 4 == 2 || number_of_shapes <= 2,
        Arch(90) if families => (number + number / 3 + turn).is_multiple_of(3),
        Arch(90) if entry.runs_on.accept(Arch(80)).is_ok() => number.is_multiple_of(2),
        _ => true,
    };
    let mut chosen = Vec::new();
    for (place, (_, (_, units))) in shapes.into_iter().enumerate().filter(|(number, _)| taken(*number)).enumerate() {
        let types = units.len();
        chosen.extend(units.into_iter().enumerate().filter(|(number, _)| all || *number == place.wrapping_add(turn) % types).map(|(_, unit)| unit));
    }
    let left = count - chosen.len();
    (chosen, left)
}

/// The instructions of a disassembly. One conversion has its source type spelt out for some architectures alone.
fn instructions(cubin: &[u8]) -> Vec<String> {
    let short = |line: &str| line.replace(".BF16.F32.PACK_AB", ".BF16.PACK_AB").replace(".F16.F32.PACK_AB", ".PACK_AB");
    disassemble(cubin).lines().filter(|line| line.contains("/*")).map(short).collect()
}

pub fn trials() -> Vec<Trial> {
    let lacks = nvrtc_version().is_err().then_some("NVRTC");
    let shows = lacks.or_else(|| nvdisasm().is_none().then_some("nvdisasm"));
    let trial = |name: &str, lacks, body: Box<dyn FnOnce() + Send>| {
        crate::trial(name, lacks, move || {
            body();
            Ok(())
        })
    };
    let mut trials = Vec::new();
    for entry in catalogue() {
        for arch in Arch::CHECKED {
            let (chosen, left) = covered(&entry, arch);
            if left > 0 {
                let name =
                    format!("compile: {left} more of {}/{} for {arch} (skipped: much like these; TRIFUSE_ALL_KERNELS=1 compiles all)", entry.op, entry.variant);
                trials.push(Trial::test(name, || Ok(())).with_ignored_flag(true));
            }
            for unit in chosen {
                let name = format!("compile: {} for {arch}", unit.name);
                // In one trial: two that run side by side would both compile the unit.
                let instruction = match entry.tensor_cores {
                    TensorCores::By(instruction) if shows.is_none() => Some(instruction),
                    TensorCores::By(instruction) => {
                        trials.push(trial(&format!("{name}: {instruction}"), shows, Box::new(|| {})));
                        None
                    }
                    TensorCores::Without(_) => None,
                };
                let shown = instruction.map(|instruction| format!(": {instruction}")).unwrap_or_default();
                let body = move || {
                    frugal(&unit, arch);
                    if shows.is_none() && (instruction.is_some() || arch == Arch(90)) {
                        let code = disassemble(&compile(&unit, arch).unwrap().cubin);
                        assert!(instruction.is_none_or(|instruction| code.contains(instruction)), "no {instruction:?} in {}", unit.name);
                        assert_eq!(waits::ahead(&code), [], "{}: in front of the wait for the launch before", unit.name);
                    }
                };
                trials.push(trial(&format!("{name}{shown}"), lacks, Box::new(body)));
            }
        }
    }
    let mut beside: Vec<(Unit, Arch)> = Vec::new();
    for (entry, arch) in catalogue().into_iter().flat_map(|entry| Arch::CHECKED.map(|arch| (entry, arch))) {
        beside.extend(entry.helpers(arch).into_iter().map(|unit| (unit, arch)));
    }
    let mut met: HashSet<String> = HashSet::new();
    for (unit, arch) in beside.into_iter().filter(|(unit, arch)| met.insert(unit.hash(*arch))) {
        trials.push(trial(&format!("compile: {} for {arch}", unit.name), lacks, Box::new(move || frugal(&unit, arch))));
    }
    // One unit of each variant that both have.
    for entry in catalogue() {
        if let Some(unit) = entry.units(Arch(86)).into_iter().next() {
            let same = move || {
                let [one, two] = [86, 89].map(|arch| instructions(&compile(&unit, Arch(arch)).unwrap().cubin));
                assert!(!one.is_empty() && one == two, "{}: sm_86 and sm_89 differ, so that each needs all units", unit.name);
            };
            trials.push(trial(&format!("compile: {}/{}: sm_86 and sm_89 get the same code", entry.op, entry.variant), shows, Box::new(same)));
        }
    }
    for arch in Arch::CHECKED {
        trials.push(trial(&format!("ptx: the Ampere headers for {arch}"), lacks, Box::new(move || frugal(&probe_unit(AMPERE), arch))));
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
    let late = r#"
        #include "ptx/grid.cuh"
        extern "C" __global__ void probe(const float *from, float *to) { float value = from[0]; grid_wait(); to[0] = value; }
    "#;
    trials.push(trial(
        "compile: what is read in front of a wait is found",
        shows,
        Box::new(|| {
            let code = disassemble(&compile(&probe_unit(late), Arch(90)).unwrap().cubin);
            assert!(matches!(waits::ahead(&code)[..], [("probe", load)] if load.starts_with("LDG.E ")), "{code}");
        }),
    ));
    trials.push(trial(
        "compile: what an architecture lacks is an error with the assembler's words",
        lacks,
        Box::new(|| match compile(&probe_unit(HOPPER), Arch(80)) {
            Err(Error::Compile { kernel, log }) => assert!(kernel.contains("sm_80") && log.contains("sm_90"), "{kernel}: {log}"),
            other => panic!("{other:?}"),
        }),
    ));
    trials.push(trial(
        "compile: an include that leads nowhere is an error that names it, but for one that a condition leaves out",
        lacks,
        Box::new(|| {
            match compile(&probe_unit("#include \"ptx/none.cuh\""), Arch(80)) {
                Err(Error::Compile { log, .. }) => assert!(log.contains("probe.cu includes ptx/none.cuh"), "{log}"),
                other => panic!("{other:?}"),
            }
            let left_out = "#if 0\n#include \"ptx/none.cuh\"\n#endif\nextern \"C\" __global__ void probe() {}";
            compile(&probe_unit(left_out), Arch(80)).unwrap();
        }),
    ));
    trials.push(trial(
        "compile: a fault in a source is an error with its line",
        lacks,
        Box::new(|| match compile(&probe_unit("\nextern \"C\" __global__ void probe() { nonsense(); }"), Arch(80)) {
            Err(Error::Compile { log, .. }) => assert!(log.contains("probe.cu(2)") && log.contains("nonsense"), "{log}"),
            other => panic!("{other:?}"),
        }),
    ));
    trials.push(trial(
        "compile: an architecture that NVRTC does not know is named",
        lacks,
        Box::new(|| match compile(&probe_unit(AMPERE), Arch(999)) {
            Err(Error::Compile { log, .. }) => assert!(log.contains("does not know") && log.contains("newer NVRTC"), "{log}"),
            other => panic!("{other:?}"),
        }),
    ));
    trials
}
