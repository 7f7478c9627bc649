//! The fixed load that tells how fast a device's clock is: a product of f32 matrices, as large as the device's profile says that it takes a
//! fifth of a millisecond.

use super::Clock;
use crate::device::DeviceProfile;
use crate::exec::{ExecError, Loaded, Repetition, Resident, Session, made_up};
use crate::import::weights::WeightStore;
use crate::ir::{Builder, DType, Graph, Op, TensorType, UserInput, UserOutput};
use crate::options::Options;
use crate::pipeline::{Compiled, plan_graphs};
use crate::report::Diagnostic;
use jvc_runtime as rt;

/// Seconds that the load should take.
const SECONDS: f64 = 2e-4;
/// Sides of its matrices, at least and at most.
const SIDES: (f64, f64) = (64.0, 4096.0);
/// The load runs so often, and counts as it was at best: what disturbs a single run is not the clock.
const RUNS: u32 = 3;

/// Why there is no load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The device's profile does not allow it.
    #[error("the load that tells the clock cannot be compiled: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Compile(Vec<Diagnostic>),
    /// It does not run.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

/// The load, ready to run.
pub struct FixedLoad<'a> {
    session: Session<'a>,
    resident: Resident,
}

impl FixedLoad<'_> {
    /// The program of the load, for this profile.
    ///
    /// # Errors
    /// The profile does not allow it.
    pub fn program(device: &DeviceProfile) -> Result<Compiled, LoadError> {
        let store = WeightStore::new();
        plan_graphs(vec![graph(side(device))], &[&store], &Options::default(), device).map_err(LoadError::Compile)
    }
}

impl<'a> FixedLoad<'a> {
    /// Loads it.
    ///
    /// # Errors
    /// The runtime's.
    pub fn new(gpu: &rt::Gpu, program: &'a Compiled) -> Result<FixedLoad<'a>, LoadError> {
        let mut session = Loaded::new(gpu, program, &rt::CacheDir::Default)?.timed_session(0, Repetition::ONCE)?;
        let resident = session.make_resident(gpu, &made_up(&program.plan.entries[0], 1)?)?;
        Ok(FixedLoad { session, resident })
    }
}

impl Clock for FixedLoad<'_> {
    fn load_us(&mut self) -> Result<f64, ExecError> {
        let mut best = f64::INFINITY;
        for _ in 0..RUNS {
            self.session.run_resident(&self.resident)?;
            best = best.min(self.session.device_ns()? / 1e3);
        }
        Ok(best)
    }
}

/// Of matrices whose product takes about as long as it should, a multiple of 64.
fn side(device: &DeviceProfile) -> i64 {
    let flops = device.rates.f32_tflop_per_s * 1e12 * SECONDS;
    let side = (flops / 2.0).cbrt().clamp(SIDES.0, SIDES.1);
    ((side / 64.0).round() * 64.0) as i64
}

fn graph(side: i64) -> Graph {
    let mut b = Builder::new("fixed_load");
    let ty = TensorType::fixed(DType::F32, &[side, side]);
    let mut input = |index: u32, name: &str| {
        let v = b.push(Op::Input { index }, vec![], vec![ty.clone()])[0];
        b.graph.inputs.push((name.to_owned(), UserInput::Tensor(v)));
        v
    };
    let (left, right) = (input(0, "left"), input(1, "right"));
    let product = b.add1(Op::Matmul, vec![left, right]).expect("two squares have a product");
    b.graph.outputs = vec![("product".to_owned(), UserOutput::Tensor(product))];
    b.graph
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::all;
    use crate::predict;

    #[test]
    fn the_load_takes_a_fifth_of_a_millisecond_by_the_rates_of_the_device() {
        for device in all() {
            let program = FixedLoad::program(&device).expect("every device has f32");
            let (us, _) = predict::entry_us(&program.plan.entries[0], &program.plan.kernels, &device);
            assert!((100.0..400.0).contains(&us), "{}: {us} µs", device.name);
        }
    }
}
