//! Devices of `wgpu` that allow less than the one that is there.

#![cfg(feature = "wgpu")]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use trifuse::backends::wgpu::Wgpu;
use trifuse::session::Session;
use trifuse_testkit::cases::{Posed, Work, all};
use trifuse_testkit::conformance::{Mode, Outcome, Subject, run_case};
use trifuse_testkit::oracle::Define;

/// Floating-point operations of the cases that are run, and of how many each device runs one: others for each `TRIFUSE_TURN`.
const MOST_WORK: f64 = 5e4;
const ONE_OF: usize = 24;
/// In the reasons for which no device of this backend takes a case.
const NEVER: [&str; 2] = ["an operation of its own is for", "a launch of its own is for"];

/// What a case takes.
struct Flops;

impl Work for Flops {
    type Out = f64;

    fn on<O: Define>(self, posed: &Posed<O>) -> f64 {
        posed.op.cost().executed_flops
    }
}

/// Runs one in [`ONE_OF`] of the small cases; other devices, with another `first`, run others. How many passed, and why others were refused.
fn conform(device: Wgpu, first: usize) -> (usize, Vec<String>) {
    let mut session = Session::new(Arc::new(device)).unwrap();
    let (mut passed, mut refused) = (0, Vec::new());
    let small = all().into_iter().filter(|case| case.problem().unwrap().with(Flops) <= MOST_WORK);
    let turn = std::env::var("TRIFUSE_TURN").ok().and_then(|turn| turn.parse::<usize>().ok()).unwrap_or(0);
    for case in small.skip((first + turn) % ONE_OF).step_by(ONE_OF) {
        let name = case.name().to_owned();
        match run_case(&mut session, &Subject::from(case), None, Mode::Direct) {
            Ok(Outcome::Passed(_)) => passed += 1,
            Ok(Outcome::Unsupported { reason }) if NEVER.iter().any(|never| reason.contains(never)) => {}
            Ok(Outcome::Unsupported { reason }) => refused.push(format!("{name}: {reason}")),
            Ok(Outcome::Failed { why }) => panic!("{name}: {why}"),
            Err(error) => panic!("{name}: {error}"),
        }
    }
    (passed, refused)
}

#[test]
fn a_browsers_limits_are_enough() {
    let device = Wgpu::lesser(|limits| {
        *limits = Default::default();
        limits.max_immediate_size = 128;
    });
    let (passed, refused) = conform(device.unwrap(), 0);
    assert!(passed > 6 && refused.is_empty(), "{passed} passed; {refused:#?}");
}

/// Cases that need more storage buffers than a device binds are refused; Vulkan promises four.
#[test]
fn what_needs_more_than_there_is_is_refused_before_it_is_compiled() {
    let device = Wgpu::lesser(|limits| limits.max_storage_buffers_per_shader_stage = 4);
    let (passed, refused) = conform(device.unwrap(), 1);
    assert!(passed > 4 && refused.iter().all(|reason| reason.contains("storage buffers, the device binds 4")), "{passed} passed; {refused:#?}");
    let device = Wgpu::lesser(|limits| (limits.max_compute_invocations_per_workgroup, limits.max_compute_workgroup_size_x) = (128, 128));
    let (passed, refused) = conform(device.unwrap(), 1);
    assert!(passed > 0 && refused.iter().all(|reason| reason.contains("needs workgroups of 256, the device allows 128")), "{passed} passed; {refused:#?}");
}

/// So little of an operand, and so few workgroups along an axis, that what is done in parts for sizes that no test has is done in parts here.
#[test]
fn operands_are_worked_on_in_parts() {
    let device = Wgpu::lesser(|limits| {
        limits.max_storage_buffer_binding_size = 8 << 10;
        limits.max_compute_workgroups_per_dimension = 20;
        limits.min_storage_buffer_offset_alignment = 256;
    });
    let (passed, refused) = conform(device.unwrap(), 2);
    assert!(passed > 4 && refused.iter().all(|reason| reason.contains("the device binds")), "{passed} passed; {refused:#?}");
}

/// What lies behind an operand in its buffer is no number: bound with it, it shows where it is read and used.
#[test]
fn nothing_depends_on_what_lies_behind_an_operand() {
    let device = Wgpu::lesser(|_| ()).unwrap().binding_behind(4096);
    let (passed, refused) = conform(device, 3);
    assert!(passed > 6 && refused.is_empty(), "{passed} passed; {refused:#?}");
}

#[test]
fn checksums_of_ranges_that_are_longer_than_what_is_bound_go_on_where_they_ended() {
    let device = Wgpu::lesser(|limits| limits.max_storage_buffer_binding_size = 8 << 10);
    let mut session = Session::new(Arc::new(device.unwrap())).unwrap();
    for name in ["checksum/pieces65535", "checksum/pieces65536", "checksum/apart", "checksum/many_ranges"] {
        let case = all().into_iter().find(|case| case.name() == name).unwrap();
        let outcome = run_case(&mut session, &Subject::from(case), None, Mode::Direct).unwrap();
        assert!(matches!(outcome, Outcome::Passed(_)), "{name}: {outcome:?}");
    }
}
