//! The kernels of a plan: each distinct spec is built once. Specs are one when their text is: arenas may hold the same nodes in another order.
//! Specs that become the same code are one kernel, under the name of the first: every pipeline costs time at a program's start.

use crate::device::DeviceProfile;
use crate::report::{Code, Diagnostic};
use crate::schedule::tile;
use jvc_codegen::plan::{PlanKernel, Requirements};
use jvc_kernels::dtype::DType;
use jvc_kernels::spec::{
    AttentionSpec, AttentionStaging, Coop, Extent, Grid, InterfaceForm, Kernel, KernelSpec, MatmulSpec, Staging, Target,
};
use jvc_kernels::templates::{scan, sort};
use jvc_kernels::{build, constraints, disassemble, limits::Limits};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Distinct specs in order of first use.
#[derive(Debug, Default)]
pub struct KernelTable {
    specs: Vec<KernelSpec>,
    built: Vec<Kernel>,
    /// By the spec's text.
    index: BTreeMap<String, u32>,
    /// Of each spec: its kernel's number.
    numbers: Vec<u32>,
    /// Of each kernel: the first spec that became its code.
    firsts: Vec<usize>,
}

impl KernelTable {
    /// Builds the kernels of all specs that are new, in parallel.
    ///
    /// # Errors
    /// When the device cannot run one: every tile choice was made for this device, so this names the limit that no choice meets.
    ///
    /// # Panics
    /// When a template refuses a spec: that is a bug of the scheduler.
    pub fn build_all(&mut self, specs: &[KernelSpec], device: &DeviceProfile) -> Result<(), Diagnostic> {
        let mut new: Vec<KernelSpec> = vec![];
        let mut index: BTreeMap<String, u32> = BTreeMap::new();
        for spec in specs {
            let text = spec.to_string();
            if !self.index.contains_key(&text) && !index.contains_key(&text) {
                index.insert(text, (self.specs.len() + new.len()) as u32);
                new.push(spec.clone());
            }
        }
        let limits = limits(device);
        new.iter().try_for_each(|spec| within_loops(spec, device))?;
        let built: Result<Vec<Kernel>, Diagnostic> = new.par_iter().map(|spec| build_one(spec, &limits)).collect();
        for (spec, kernel) in new.into_iter().zip(built?) {
            let same = |first: &usize| is_same(&self.built[*first], &self.specs[*first], &kernel, &spec);
            let number = self.firsts.iter().position(same).unwrap_or_else(|| {
                self.firsts.push(self.specs.len());
                self.firsts.len() - 1
            });
            self.numbers.push(number as u32);
            self.specs.push(spec);
            self.built.push(kernel);
        }
        self.index.append(&mut index);
        Ok(())
    }

    /// The number and grid of a spec that was built.
    pub fn find(&self, spec: &KernelSpec) -> (u32, &Grid) {
        let at = self.index[&spec.to_string()] as usize;
        (self.numbers[at], &self.built[at].grid)
    }

    /// Kernels for the plan, with text, and what they need of a device.
    pub fn finish(self) -> (Vec<PlanKernel>, Requirements) {
        let mut needs = Requirements::default();
        for (spec, kernel) in self.specs.iter().zip(&self.built) {
            require(&mut needs, spec, kernel);
        }
        let kernels = self.firsts.par_iter().map(|&at| plan_kernel(&self.specs[at], &self.built[at])).collect();
        (kernels, needs)
    }
}

/// The code is the same, and a recording passes the same constants.
fn is_same(a: &Kernel, of_a: &KernelSpec, b: &Kernel, of_b: &KernelSpec) -> bool {
    a.words == b.words && a.needs.subgroup == b.needs.subgroup && of_a.interface() == of_b.interface()
}

/// Refuses a kernel whose loops the driver would end early: its results would be wrong without a word.
fn within_loops(spec: &KernelSpec, device: &DeviceProfile) -> Result<(), Diagnostic> {
    let Some(most) = device.limits.max_loop_iterations else { return Ok(()) };
    let n = iterations(spec);
    if n <= u64::from(most) {
        return Ok(());
    }
    let text = format!("a kernel of {n} loop iterations an invocation: the device's driver ends loops after {most}");
    Err(Diagnostic::new(Code::Device, text))
}

/// Loop iterations of an invocation, of the loops that depend on the problem's size alone; symbolic ones do not count.
fn iterations(spec: &KernelSpec) -> u64 {
    let product = |extents: &[Extent]| -> u64 {
        extents.iter().map(|e| if let Extent::Const(n) = e { u64::from(*n) } else { 1 }).product()
    };
    match spec {
        KernelSpec::Row(s) => {
            let passes = s.stages.len() as u64 + u64::from(!s.element_stores.is_empty());
            product(&s.inner) * passes / u64::from(s.threads_per_row)
        }
        KernelSpec::Matmul(s) => product(&s.k),
        KernelSpec::Scan(s) => {
            let len = product(std::slice::from_ref(&s.len));
            let tile = u64::from(s.threads_per_line) * u64::from(scan::ITEMS);
            if s.threads_per_line == 1 { len } else { len.div_ceil(tile) }
        }
        KernelSpec::Attention(s) => {
            let keys = product(std::slice::from_ref(&s.keys));
            match s.staging {
                AttentionStaging::Stream { .. } | AttentionStaging::Coop(_) => keys,
                AttentionStaging::Parts(p) => 3 * u64::from(p.len),
                AttentionStaging::Tiled(t) => {
                    let block = u64::from(t.across * t.cols);
                    keys.div_ceil(block) * (1 + u64::from(s.qk_dim.div_ceil(4)) + block / 4)
                }
            }
        }
        KernelSpec::Recurrent(s) => tile::recurrent_iterations(product(std::slice::from_ref(&s.steps)), s.hidden, s.wg),
        KernelSpec::Scatter(s) => product(&s.inner),
        KernelSpec::Sort(s) => sort::iterations(s),
        KernelSpec::Map(_) | KernelSpec::Fft(_) => 0,
    }
}

fn build_one(spec: &KernelSpec, limits: &Limits) -> Result<Kernel, Diagnostic> {
    constraints(spec, limits).map_err(|r| Diagnostic::new(Code::Device, r.to_string()))?;
    let target = Target { form: InterfaceForm::Addresses, int64: limits.int64_form() };
    Ok(build(spec, target).unwrap_or_else(|e| panic!("{e}\nin {spec:?}")))
}

fn plan_kernel(spec: &KernelSpec, kernel: &Kernel) -> PlanKernel {
    let interface = spec.interface();
    PlanKernel {
        name: spec.file_name(),
        spec: spec.to_string(),
        words: kernel.words.clone(),
        disassembly: disassemble(&kernel.words).unwrap_or_default(),
        n_bases: interface.n_bases,
        operand_bases: interface.operands.iter().map(|o| o.base).collect(),
        subgroup: kernel.needs.subgroup,
    }
}

fn require(needs: &mut Requirements, spec: &KernelSpec, kernel: &Kernel) {
    let k = &kernel.needs;
    needs.int8 |= k.int8;
    needs.int16 |= k.int16;
    needs.float16 |= k.float16;
    needs.int64 |= k.int64;
    needs.float64 |= k.float64;
    needs.subgroup = needs.subgroup.max(k.subgroup);
    needs.shared_bytes = needs.shared_bytes.max(kernel.shared_bytes);
    needs.push_bytes = needs.push_bytes.max(spec.interface().push_bytes());
    needs.max_workgroup = needs.max_workgroup.max(spec.workgroup());
    let used = match spec {
        KernelSpec::Matmul(MatmulSpec { staging: Staging::Coop(Coop { frag, elem, .. }), .. }) => Some((frag, elem)),
        KernelSpec::Attention(AttentionSpec { staging: AttentionStaging::Coop(c), .. }) => Some((&c.frag, &c.elem)),
        _ => None,
    };
    if let Some((frag, elem)) = used {
        let fragment = (frag.0, frag.1, frag.2, super::elem(*elem));
        if !needs.cooperative.contains(&fragment) {
            needs.cooperative.push(fragment);
        }
    }
}

/// A profile's limits as the templates ask for them.
pub fn limits(device: &DeviceProfile) -> Limits {
    let (l, f) = (&device.limits, &device.features);
    let cooperative = device.cooperative.iter().filter(|c| c.result == "f32");
    Limits {
        max_workgroup: l.max_workgroup_invocations,
        shared_bytes: l.shared_bytes_per_workgroup,
        push_bytes: l.push_constant_bytes,
        subgroup: l.subgroup_size,
        int8: f.int8,
        int16: f.int16,
        float16: f.float16,
        int64: f.int64,
        float64: f.float64,
        cooperative: cooperative.filter_map(|c| Some((c.m, c.n, c.k, DType::parse(&c.operand)?))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jvc_kernels::dtype::Storage;
    use jvc_kernels::expr::Exprs;
    use jvc_kernels::spec::{Access, Cell, Interface, MapSpec, Operand, RecurrentSpec, Store};

    /// Fills 256 elements.
    fn filled(value: f32, domain: &[u32]) -> KernelSpec {
        let mut exprs = Exprs::new();
        let (index, value) = (exprs.axis(domain.len() as u8 - 1), exprs.f32(value));
        let operand =
            Operand { dtype: DType::F32, storage: Storage::Native, access: Access::Write, base: 0, via_table: false };
        KernelSpec::Map(MapSpec {
            interface: Interface { operands: vec![operand], n_bases: 1, symbols: false },
            exprs,
            domain: domain.iter().map(|n| Extent::Const(*n)).collect(),
            stores: vec![Store { operand: 0, index, value, guard: None }],
            per_thread: 1,
            wg: 64,
            turned: None,
        })
    }

    #[test]
    fn specs_that_become_the_same_code_are_one_kernel() {
        let device = crate::device::find("lavapipe").expect("it is bundled");
        let specs = [filled(2.0, &[256]), filled(3.0, &[256]), filled(2.0, &[1, 256])];
        assert_ne!(specs[0].to_string(), specs[2].to_string());
        let mut table = KernelTable::default();
        table.build_all(&specs[..2], &device).expect("the device runs maps");
        table.build_all(&specs, &device).expect("the device runs maps");
        assert_eq!(specs.each_ref().map(|spec| table.find(spec).0), [0, 1, 0]);
        let names: Vec<String> = table.finish().0.into_iter().map(|kernel| kernel.name).collect();
        assert_eq!(names, [specs[0].file_name(), specs[1].file_name()]);
    }

    fn recurrent(steps: u32) -> KernelSpec {
        let mut exprs = Exprs::new();
        let zero = exprs.f32(0.0);
        KernelSpec::Recurrent(RecurrentSpec {
            interface: Interface::default(),
            exprs,
            cell: Cell::Gru,
            steps: Extent::Const(steps),
            batch: Extent::Const(1),
            hidden: 256,
            reverse: false,
            input: zero,
            weight: zero,
            bias: None,
            h0: zero,
            c0: None,
            step_stores: vec![],
            final_stores: vec![],
            wg: 256,
        })
    }

    #[test]
    fn loops_that_a_driver_ends_early_are_refused() {
        let device = crate::device::find("lavapipe-22").expect("it is bundled");
        assert!(within_loops(&recurrent(200), &device).is_ok(), "200 · 257 iterations");
        let refused = within_loops(&recurrent(402), &device).expect_err("402 · 257 iterations");
        assert!(refused.to_string().contains("103314"), "{refused}");
        let newer = crate::device::find("lavapipe").expect("it is bundled");
        assert!(within_loops(&recurrent(402), &newer).is_ok(), "no limit there");
    }
}
