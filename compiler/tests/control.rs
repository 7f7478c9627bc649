//! Programs whose course or randomness is their own, on the device at hand: `data/control/` holds small exports of torch 2.11 (made by
//! `models/fixtures/make_fixtures.py`) with PyTorch's results where there are any.

use jvc::options::Options;
use jvc::verify::{Request, Status, verify};
use jvc_runtime::{Gpu, Select};
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/control")
}

#[test]
fn programs_with_control_flow_and_random_numbers_run_as_in_pytorch() {
    if Gpu::open(&Select::Auto).is_err() {
        assert!(std::env::var_os("CI").is_none(), "CI has a device");
        return;
    }
    let request = Request {
        paths: vec![folder()],
        device: None,
        gpu: Select::Auto,
        options: Options::default(),
        level: None,
        repeats: 2,
        validate: false,
        save_outputs: None,
    };
    let mut problems = vec![];
    let mut each = |_, _, report: &jvc::verify::FileReport| {
        if report.status != Status::Pass {
            problems.push(format!("{}: {:?}", report.name, report.status));
        }
    };
    verify(&request, &mut each).expect("a device");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
