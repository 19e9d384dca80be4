//! `kernels`: listing, compiling ahead, and using what was compiled where there is no compiler.

#[cfg(not(feature = "cuda"))]
#[test]
fn without_the_feature_it_says_how_to_get_it() {
    use super::support::{err, object, run};

    let output = run(&["kernels", "--json"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(object(&output, "kernels")["error"]["exit_status"], 3);
    assert!(err(&output).contains("--features cuda"), "{}", err(&output));
}

#[cfg(feature = "cuda")]
mod with_cuda {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use trifuse::backends::cuda::{CACHE_DIR, KERNELS, LIBRARY_DIR, Pack, nvrtc_version};

    use crate::support::{err, files, object, out, run, scratch, text, trifuse};

    /// One small variant.
    const POINTWISE: [&str; 5] = ["kernels", "--json", "--op", "pointwise", "--variant=simt"];

    /// The compiler that `./check` installs, or else the system's own.
    fn library_folder() -> Option<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cuda/lib");
        let folders = std::fs::read_dir(root).into_iter().flatten().flatten().map(|python| python.path().join("site-packages/nvidia/cu13/lib"));
        folders.into_iter().find(|folder| folder.is_dir())
    }

    fn with_compiler(arguments: &[&str]) -> Command {
        let mut command = trifuse(arguments);
        if let Some(folder) = library_folder() {
            command.env(LIBRARY_DIR, folder);
        }
        command
    }

    /// As on an image that has a driver and no NVRTC.
    fn without_compiler(arguments: &[&str], pack: &Path, empty: &Path) -> Command {
        let mut command = trifuse(arguments);
        command.env(LIBRARY_DIR, empty).env(CACHE_DIR, empty).env(KERNELS, pack);
        for variable in ["VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH"] {
            command.env_remove(variable);
        }
        command
    }

    #[test]
    fn every_variant_is_listed() {
        let value = object(&run(&["kernels", "--json"]), "kernels");
        let variants = value["variants"].as_array().unwrap();
        for op in ["codebook_gemm", "attention", "prefix_attention", "fused_mlp", "linear", "pointwise", "sample", "checksum"] {
            assert!(variants.iter().any(|variant| variant["op"] == op && variant["variant"] == "simt"), "{op}");
        }
        assert!(variants.iter().any(|variant| variant["op"] == "grouped_linear" && variant["variant"] == "each"));
        for variant in variants {
            assert_eq!(variant["tensor_cores"].is_null(), variant["without_tensor_cores"].is_string(), "one of the two: {variant}");
            assert_eq!(variant["archs"].as_array().unwrap().len(), 4, "{variant}");
        }
        assert!(value["compiled"].as_array().unwrap().is_empty(), "nothing is compiled unasked");
        let page = out(&run(&["kernels", "--op", "attention"]));
        assert!(page.contains("HGMMA") && page.contains("sm_90a alone") && !page.contains("fused_mlp"), "{page}");
    }

    #[test]
    fn what_is_not_there_is_wrong_use() {
        for (arguments, known) in [
            (&["kernels", "--op", "sorting"][..], "codebook_gemm"),
            (&["kernels", "--variant", "sm70"], "sm80"),
            (&["kernels", "--op", "pointwise", "--variant", "sm90"], "pointwise"),
            (&["kernels", "--arch", "sm_75"], "sm_80"),
            (&["kernels", "--output", "somewhere"], "--arch"),
        ] {
            let output = run(arguments);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}");
            assert!(err(&output).contains(known), "{arguments:?}: {}", err(&output));
        }
        let nowhere = run(&["kernels", "--op", "attention", "--variant", "sm90", "--arch", "sm_80"]);
        assert_eq!(nowhere.status.code(), Some(3), "a variant that does not run there: {}", err(&nowhere));
    }

    #[test]
    fn kernels_compiled_ahead_are_found_without_a_compiler() {
        if library_folder().is_none() && nvrtc_version().is_err() {
            eprintln!("skipped: NVRTC is not here");
            return;
        }
        let (folder, cache, empty) = (scratch(), scratch(), scratch());
        let path = folder.path().join("a.pack");
        let arguments = [&POINTWISE[..], &["--arch", "sm_80,sm_90a", "--output", text(&path)]].concat();
        let output = with_compiler(&arguments).env(CACHE_DIR, cache.path()).output().unwrap();
        assert!(output.status.success(), "{}", err(&output));
        assert!(err(&output).contains(KERNELS), "it says how to use them: {}", err(&output));
        let value = object(&output, "kernels");
        let compiled = value["compiled"].as_array().unwrap();
        assert_eq!(files(&cache.path().join("kernels")).len(), compiled.len(), "one file a unit");
        assert_eq!((files(folder.path()), Pack::open(&path).unwrap().len()), (vec!["a.pack".into()], compiled.len()));
        assert_eq!(value["pack"]["bytes"].as_u64(), Some(std::fs::metadata(&path).unwrap().len()));
        for unit in compiled {
            assert_eq!((&unit["cached"], unit["faults"].as_array().unwrap().len()), (&false.into(), 0), "{unit}");
            let kernel = &unit["kernels"][0];
            assert!(kernel["registers"].as_u64().unwrap() > 0, "{unit}");
            assert_eq!((kernel["spill_bytes"].as_u64(), kernel["local_bytes"].as_u64()), (Some(0), Some(0)), "{unit}");
        }

        let output = without_compiler(&[&POINTWISE[..], &["--arch=sm_90a"]].concat(), &path, empty.path()).output().unwrap();
        // A machine whose loader finds an NVRTC by itself cannot be without one.
        if object(&output, "kernels")["compiler"].is_null() {
            assert!(output.status.success(), "{}", err(&output));
            let value = object(&output, "kernels");
            assert!(value["compiled"].as_array().unwrap().iter().all(|unit| unit["cached"] == true), "{value}");
            let lacking = without_compiler(&[&POINTWISE[..], &["--arch=sm_86"]].concat(), folder.path(), empty.path()).output().unwrap();
            assert_eq!(lacking.status.code(), Some(3));
            assert!(err(&lacking).contains("not compiled ahead for sm_86") && err(&lacking).contains("NVRTC"), "{}", err(&lacking));
            // A damaged one is named, and serves nothing.
            std::fs::write(folder.path().join("b.pack"), std::fs::read(&path).unwrap().split_off(1)).unwrap();
            let damaged = without_compiler(&[&POINTWISE[..], &["--arch=sm_90a"]].concat(), &folder.path().join("b.pack"), empty.path()).output().unwrap();
            assert_eq!(damaged.status.code(), Some(3));
            assert!(err(&damaged).contains("b.pack"), "{}", err(&damaged));
        }
    }

    #[test]
    fn a_pack_that_cannot_be_written_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let below = file.path().join("below a file");
        let output = with_compiler(&[&POINTWISE[..], &["--arch", "sm_80", "--output", text(&below)]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    }
}
