//! The order of kernels: independent ones side by side, so that few barriers serve many. Between two barriers runs a *wave*.
//!
//! A dependent dispatch costs ten times an independent one on a GPU, whatever it does. Candidates are the order that the graph gives, each
//! kernel as early as memory allows, and each as late as possible; the one of fewest waves wins that needs no more memory than the first.

use super::inline::{Place, Use};
use super::lower::Draft;
use jvc_kernels::spec::Access;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Puts kernels in the order of fewest waves; `bytes` is what a place takes in the arena, 0 for what lies elsewhere.
pub fn order(drafts: Vec<Draft>, bytes: &dyn Fn(Use) -> u64) -> Vec<Draft> {
    let schedule = Schedule::new(&drafts, bytes);
    let given: Vec<usize> = (0..drafts.len()).collect();
    let most = schedule.peak(&given);
    let waves = |order: &[usize]| count(&order.iter().map(|&i| &drafts[i]).collect::<Vec<_>>());
    let mut best = (waves(&given), given);
    for candidate in [schedule.late(), schedule.early(most)] {
        let n = waves(&candidate);
        if n < best.0 && schedule.peak(&candidate) <= most {
            best = (n, candidate);
        }
    }
    let mut drafts: Vec<Option<Draft>> = drafts.into_iter().map(Some).collect();
    best.1.into_iter().map(|i| drafts[i].take().expect("each once")).collect()
}

/// How many kernels depend on each other in the longest chain: no order has fewer waves.
pub fn longest_chain(drafts: &[Draft]) -> u32 {
    let schedule = Schedule::new(drafts, &|_| 0);
    schedule.height.iter().copied().max().unwrap_or(0)
}

/// For each kernel in order, the first and the last of its wave.
pub fn of(drafts: &[Draft]) -> Vec<(u32, u32)> {
    let starts = starts(&drafts.iter().collect::<Vec<_>>());
    let mut out = vec![(0, 0); drafts.len()];
    let mut end = drafts.len();
    for (i, starts) in starts.iter().enumerate().rev() {
        if *starts {
            out[i..end].fill((i as u32, end as u32 - 1));
            end = i;
        }
    }
    out
}

fn count(drafts: &[&Draft]) -> usize {
    starts(drafts).into_iter().filter(|s| *s).count()
}

/// Whether a wave starts at each kernel.
fn starts(drafts: &[&Draft]) -> Vec<bool> {
    let mut since: BTreeMap<Place, Touch> = BTreeMap::new();
    let mut behind_fence = true;
    let mut out = vec![];
    for d in drafts {
        let clash = |u: &Use| since.get(&u.place).is_some_and(|t| t.clashes(u.access));
        let starts = behind_fence || fence(d) || d.uses.iter().any(clash);
        if starts {
            since.clear();
        }
        d.uses.iter().for_each(|u| since.entry(u.place).or_default().add(u.access));
        behind_fence = fence(d);
        out.push(starts);
    }
    out
}

/// Kernels that touch memory under another name: a state's new value, the symbol table.
fn fence(d: &Draft) -> bool {
    d.binding.is_some() || d.uses.iter().any(|u| matches!(u.place, Place::StateUpdate(_) | Place::Table))
}

/// What happened to a place.
#[derive(Default)]
struct Touch {
    read: bool,
    written: bool,
    both: bool,
}

impl Touch {
    fn add(&mut self, access: Access) {
        self.read |= access == Access::Read;
        self.written |= access == Access::Write;
        self.both |= access == Access::ReadWrite;
    }

    /// Kernels that only write a place write different parts of it.
    fn clashes(&self, access: Access) -> bool {
        match access {
            Access::Read => self.written || self.both,
            Access::Write => self.read || self.both,
            Access::ReadWrite => self.read || self.written || self.both,
        }
    }
}

/// Dependences of kernels, and what they keep in memory.
struct Schedule {
    needs: Vec<Vec<usize>>,
    /// Kernels in the longest chain from each to the end.
    height: Vec<u32>,
    /// Arena places of each kernel.
    places: Vec<Vec<Place>>,
    bytes: BTreeMap<Place, u64>,
}

impl Schedule {
    fn new(drafts: &[Draft], bytes: &dyn Fn(Use) -> u64) -> Schedule {
        let needs = needs(drafts);
        let mut height = vec![1; drafts.len()];
        for i in (0..drafts.len()).rev() {
            for &p in &needs[i] {
                height[p] = height[p].max(height[i] + 1);
            }
        }
        let mut sizes = BTreeMap::new();
        drafts.iter().flat_map(|d| &d.uses).for_each(|u| {
            sizes.entry(u.place).or_insert_with(|| bytes(*u));
        });
        sizes.retain(|_, b| *b > 0);
        let places = |d: &Draft| d.uses.iter().map(|u| u.place).filter(|p| sizes.contains_key(p)).collect();
        let places = drafts.iter().map(places).collect();
        Schedule { needs, height, places, bytes: sizes }
    }

    fn uses(&self) -> BTreeMap<Place, u32> {
        let mut uses = BTreeMap::new();
        self.places.iter().flatten().for_each(|p| *uses.entry(*p).or_default() += 1);
        uses
    }

    /// Most bytes live at one kernel.
    fn peak(&self, order: &[usize]) -> u64 {
        let mut memory = Memory::new(self);
        for &i in order {
            memory.allocate(&self.places[i]);
            memory.release(&self.places[i]);
        }
        memory.peak
    }

    /// Every kernel in the last wave that delays nothing.
    fn late(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.height.len()).collect();
        order.sort_by_key(|&i| (Reverse(self.height[i]), i));
        order
    }

    /// Every kernel as soon as what it needs is there, those on long chains first, as far as `limit` bytes reach.
    fn early(&self, limit: u64) -> Vec<usize> {
        let n = self.height.len();
        let mut missing: Vec<usize> = self.needs.iter().map(Vec::len).collect();
        let mut users = vec![vec![]; n];
        self.needs.iter().enumerate().for_each(|(i, needs)| needs.iter().for_each(|&p| users[p].push(i)));
        let mut ready: Vec<usize> = (0..n).filter(|&i| missing[i] == 0).collect();
        let mut memory = Memory::new(self);
        let mut out = vec![];
        while !ready.is_empty() {
            ready.sort_by_key(|&i| (Reverse(self.height[i]), i));
            let mut wave: Vec<usize> = vec![];
            for &i in &ready {
                if memory.live + memory.extra(&self.places[i]) <= limit {
                    memory.allocate(&self.places[i]);
                    wave.push(i);
                }
            }
            if wave.is_empty() {
                let first = *ready.iter().min().expect("not empty");
                memory.allocate(&self.places[first]);
                wave.push(first);
            }
            wave.sort_unstable();
            ready.retain(|i| !wave.contains(i));
            for &i in &wave {
                memory.release(&self.places[i]);
                for &u in &users[i] {
                    missing[u] -= 1;
                    if missing[u] == 0 {
                        ready.push(u);
                    }
                }
            }
            out.extend(wave);
        }
        out
    }
}

/// What is live while kernels run in some order.
struct Memory<'a> {
    schedule: &'a Schedule,
    left: BTreeMap<Place, u32>,
    here: BTreeMap<Place, ()>,
    live: u64,
    peak: u64,
}

impl<'a> Memory<'a> {
    fn new(schedule: &'a Schedule) -> Memory<'a> {
        Memory { schedule, left: schedule.uses(), here: BTreeMap::new(), live: 0, peak: 0 }
    }

    fn extra(&self, places: &[Place]) -> u64 {
        places.iter().filter(|p| !self.here.contains_key(p)).map(|p| self.schedule.bytes[p]).sum()
    }

    fn allocate(&mut self, places: &[Place]) {
        self.live += self.extra(places);
        self.here.extend(places.iter().map(|p| (*p, ())));
        self.peak = self.peak.max(self.live);
    }

    fn release(&mut self, places: &[Place]) {
        for p in places {
            let left = self.left.get_mut(p).expect("counted");
            *left -= 1;
            if *left == 0 {
                self.here.remove(p);
                self.live -= self.schedule.bytes[p];
            }
        }
    }
}

/// For each kernel, earlier ones that must be complete.
fn needs(drafts: &[Draft]) -> Vec<Vec<usize>> {
    #[derive(Default)]
    struct History {
        readers: Vec<usize>,
        writers: Vec<usize>,
    }
    let mut places: BTreeMap<Place, History> = BTreeMap::new();
    let (mut since_fence, mut last_fence) = (vec![], None);
    let mut out = vec![];
    for (i, d) in drafts.iter().enumerate() {
        let mut needs: Vec<usize> = last_fence.into_iter().collect();
        if fence(d) {
            needs.append(&mut since_fence);
            last_fence = Some(i);
        } else {
            since_fence.push(i);
        }
        for (place, access) in accesses(d) {
            let h = places.entry(place).or_default();
            if access != Access::Write {
                needs.extend(&h.writers);
            }
            if access != Access::Read {
                needs.extend(&h.readers);
            }
            match access {
                Access::Read => h.readers.push(i),
                Access::Write => h.writers.push(i),
                Access::ReadWrite => *h = History { readers: vec![], writers: vec![i] },
            }
        }
        needs.sort_unstable();
        needs.dedup();
        out.push(needs);
    }
    out
}

/// What a kernel does to each place, by all of its operands.
fn accesses(d: &Draft) -> BTreeMap<Place, Access> {
    let mut out: BTreeMap<Place, Access> = BTreeMap::new();
    for u in &d.uses {
        let access = out.entry(u.place).or_insert(u.access);
        if *access != u.access {
            *access = Access::ReadWrite;
        }
    }
    out
}

#[cfg(test)]
mod tests;
