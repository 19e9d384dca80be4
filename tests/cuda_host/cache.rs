//! The cache of compiled kernels, with the real compiler.

use std::path::Path;
use std::time::Instant;

use libtest_mimic::Trial;
use trifuse::backends::cuda::jit::{Arch, Unit, compilations};
use trifuse::backends::cuda::{Cache, KERNELS, LIBRARY_DIR, PackWriter, Packs, catalogue, nvrtc_version};

const ARCH: Arch = Arch(80);

/// Any unit that compiles fast.
fn unit() -> Unit {
    let entry = catalogue().into_iter().find(|entry| entry.op == "pointwise").unwrap();
    entry.units(ARCH).swap_remove(0)
}

/// Builds into the folder that TRIFUSE_CACHE_DIR names, on two threads at once; tells the size, and how many units were compiled.
pub fn probe() {
    let build = || unit().build(ARCH, &Cache::from_environment()).unwrap();
    let built = std::thread::scope(|scope| {
        let beside = scope.spawn(build);
        let built = build();
        assert!(built == beside.join().unwrap(), "two threads at once have one and the same");
        built
    });
    println!("{} bytes, {} compiled", built.cubin.len(), compilations());
}

fn entries(folder: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

pub fn trials() -> Vec<Trial> {
    let lacks = nvrtc_version().is_err().then_some("NVRTC");
    let trial = |name: &str, body: fn()| {
        super::trial(&format!("cache: {name}"), lacks, move || {
            body();
            Ok(())
        })
    };
    vec![
        trial("a second build is read", || {
            let folder = tempfile::tempdir().unwrap();
            let cache = Cache::at(folder.path());
            let (start, first) = (Instant::now(), unit().build(ARCH, &cache).unwrap());
            let compiling = start.elapsed();
            let (start, second) = (Instant::now(), unit().build(ARCH, &cache).unwrap());
            assert!(start.elapsed() < compiling, "{:?} < {compiling:?}", start.elapsed());
            assert!(first == second);
            assert_eq!(entries(folder.path()).len(), 1);
        }),
        trial("a damaged entry is compiled anew and mended", || {
            let folder = tempfile::tempdir().unwrap();
            let cache = Cache::at(folder.path());
            let first = unit().build(ARCH, &cache).unwrap();
            let path = entries(folder.path()).swap_remove(0);
            let damaged = std::fs::read(&path).unwrap().split_off(40);
            std::fs::write(&path, damaged).unwrap();
            // The log tells the time it took; the code is the same.
            assert!(unit().build(ARCH, &cache).unwrap().cubin == first.cubin);
            assert_eq!(entries(folder.path()), [path]);
            assert!(unit().build(ARCH, &cache).unwrap().cubin == first.cubin);
        }),
        trial("another architecture is another entry", || {
            let folder = tempfile::tempdir().unwrap();
            let cache = Cache::at(folder.path());
            let [one, two] = [Arch(80), Arch(90)].map(|arch| unit().build(arch, &cache).unwrap());
            assert!(one.cubin != two.cubin);
            assert_eq!(entries(folder.path()).len(), 2);
        }),
        trial("four processes at once compile once, and leave one whole entry", || {
            let folder = tempfile::tempdir().unwrap();
            let start = || super::probe("build").env("TRIFUSE_CACHE_DIR", folder.path()).stdout(std::process::Stdio::piped()).spawn().unwrap();
            let children: Vec<_> = (0..4).map(|_| start()).collect();
            let mut compiled = 0;
            for child in children {
                let output = child.wait_with_output().unwrap();
                assert!(output.status.success());
                compiled += usize::from(String::from_utf8_lossy(&output.stdout).trim_end().ends_with(" 1 compiled"));
            }
            assert_eq!(compiled, 1);
            let kernels = folder.path().join("kernels");
            assert_eq!(entries(&kernels).len(), 1, "no temporary file is left, and no lock");
            assert!(unit().build(ARCH, &Cache::at(kernels)).is_ok());
        }),
        trial("a lock that a dead process left holds nobody up", || {
            let folder = tempfile::tempdir().unwrap();
            let cache = Cache::at(folder.path());
            unit().build(ARCH, &cache).unwrap();
            let entry = entries(folder.path()).swap_remove(0);
            let lock = folder.path().join(format!("{}.lock", entry.file_name().unwrap().to_str().unwrap()));
            std::fs::remove_file(&entry).unwrap();
            std::fs::write(&lock, b"").unwrap();
            unit().build(ARCH, &cache).unwrap();
            assert_eq!(entries(folder.path()), [entry]);
        }),
        trial("a folder that cannot be used costs only time", || {
            let file = tempfile::NamedTempFile::new().unwrap();
            assert!(unit().build(ARCH, &Cache::at(file.path().join("below a file"))).is_ok());
            let output = super::probe("build").env("TRIFUSE_CACHE_DIR", "").output().unwrap();
            assert!(output.status.success());
            let output = super::probe("build").env_remove("TRIFUSE_CACHE_DIR").env_remove("XDG_CACHE_HOME").env_remove("HOME").output().unwrap();
            assert!(output.status.success());
        }),
        trial("a read-only folder costs only time", || {
            use std::os::unix::fs::PermissionsExt;
            let folder = tempfile::tempdir().unwrap();
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
            assert!(unit().build(ARCH, &Cache::at(folder.path())).is_ok());
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        }),
        trial("a pack is served whatever made it, with a read-only folder behind it or none", || {
            use std::os::unix::fs::PermissionsExt;
            let folder = tempfile::tempdir().unwrap();
            let mut made = unit().build(ARCH, &Cache::at(folder.path().join("kernels"))).unwrap();
            made.log.push_str("of the pack");
            let mut writer = PackWriter::new(Some((99, 9)));
            writer.add(&unit(), ARCH, &made);
            let path = folder.path().join("a.pack");
            writer.write(&mut std::fs::File::create(&path).unwrap()).unwrap();
            std::fs::remove_dir_all(folder.path().join("kernels")).unwrap();
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
            for kept in ["kernels", "a.pack/below a file"] {
                let cache = Cache::at(folder.path().join(kept)).with_packs(Packs::at(folder.path()));
                assert!(unit().build(ARCH, &cache).unwrap() == made);
                for version in [None, Some((12, 4)), nvrtc_version().ok()] {
                    assert!(cache.get(&unit().hash(ARCH), version).as_ref() == Some(&made), "{version:?}");
                }
                assert_eq!((cache.refused(), cache.get(&unit().hash(Arch(90)), None)), (Vec::new(), None));
            }
            let output = super::probe("build").env("TRIFUSE_CACHE_DIR", "").env(KERNELS, folder.path()).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), format!("{} bytes, 0 compiled", made.cubin.len()));
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        }),
        trial("kernels compiled ahead need no compiler", || {
            let folder = tempfile::tempdir().unwrap();
            let empty = tempfile::tempdir().unwrap();
            let built = unit().build(ARCH, &Cache::at(folder.path().join("kernels"))).unwrap();
            let child = || {
                let mut command = super::probe("build");
                command.env(LIBRARY_DIR, empty.path()).env("TRIFUSE_CACHE_DIR", folder.path());
                for variable in ["VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH"] {
                    command.env_remove(variable);
                }
                command.output().unwrap()
            };
            let output = child();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), format!("{} bytes, 0 compiled", built.cubin.len()));
        }),
    ]
}
