//! The way from the start of the process to the first result, part by part.
//!
//! Three caches shorten it: the driver's own (on or off by the driver's environment variables, as `__GL_SHADER_DISK_CACHE=0` or
//! `MESA_SHADER_CACHE_DISABLE=true`), the runtime's (`--cache`), and the operating system's of files. Figures name all three.

use serde_json::{Value, json};
use std::fmt;
use std::time::{Duration, Instant};

/// A clock that started with the process.
#[derive(Debug, Clone)]
pub struct ColdStart {
    /// When this was made, and how old the process was then.
    begun: Instant,
    age: Duration,
    points: Vec<(&'static str, Duration)>,
}

impl ColdStart {
    /// To be called first in `main`. Linux tells when the process started, in steps of 10 ms; elsewhere, it starts now.
    pub fn begin() -> Self {
        Self { begun: Instant::now(), age: process_age().unwrap_or_default(), points: Vec::new() }
    }

    /// A part has ended.
    pub fn mark(&mut self, part: &'static str) {
        self.points.push((part, self.age + self.begun.elapsed()));
    }

    /// From the start of the process to the latest mark.
    pub fn total(&self) -> Duration {
        self.points.last().map_or(self.age, |(_, at)| *at)
    }

    /// Milliseconds of each part, and of all.
    pub fn to_json(&self) -> Value {
        let parts = self.parts().map(|(part, took)| (part.to_owned(), json!(took.as_secs_f64() * 1e3)));
        let total = ("total".to_owned(), json!(self.total().as_secs_f64() * 1e3));
        Value::Object(parts.chain([total]).collect())
    }

    /// What each part took, the process's own start first.
    fn parts(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        let starts = [self.age].into_iter().chain(self.points.iter().map(|(_, at)| *at));
        let parts = self.points.iter().zip(starts).map(|((part, at), start)| (*part, at.saturating_sub(start)));
        [("process", self.age)].into_iter().chain(parts)
    }
}

/// `512 ms: process 10, device 80, load 300, first result 122`.
impl fmt::Display for ColdStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.total().as_millis())?;
        let mut lead = ": ";
        self.parts().try_for_each(|(part, took)| {
            write!(f, "{lead}{part} {}", took.as_millis())?;
            lead = ", ";
            Ok(())
        })
    }
}

/// From /proc: uptime less the process's start, both since boot. Linux counts the latter in hundredths of a second on every
/// architecture.
fn process_age() -> Option<Duration> {
    let read = |file: &str| std::fs::read_to_string(file).ok();
    age_from(&read("/proc/self/stat")?, &read("/proc/uptime")?)
}

fn age_from(stat: &str, uptime: &str) -> Option<Duration> {
    // The process's name, in parentheses, may hold anything; start is the 22nd field, the 20th behind it.
    let start: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64((uptime - start / 100.0).max(0.0)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_total() {
        let mut clock = ColdStart { begun: Instant::now(), age: Duration::from_millis(10), points: Vec::new() };
        assert_eq!(clock.total(), Duration::from_millis(10));
        clock.mark("device");
        clock.mark("load");
        assert_eq!(clock.parts().map(|(_, took)| took).sum::<Duration>(), clock.total());
        assert_eq!(clock.parts().map(|(part, _)| part).collect::<Vec<_>>(), ["process", "device", "load"]);
        assert!(clock.to_string().contains(": process 10, device 0, load 0"), "{clock}");
    }

    #[test]
    fn the_age_is_uptime_less_start_whatever_the_name_of_the_process() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194304 100 0 0 0 0 0 0 0 20 0 1 0 12345 1000 1";
        assert_eq!(age_from(stat, "124.45 200.00"), Some(Duration::from_secs(1)));
        assert_eq!(age_from("nothing", "1 1"), None);
    }
}
