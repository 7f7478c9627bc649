//! A progress bar on the terminal; nothing where standard error is a file or a pipe.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How far a long run is. It vanishes when it is dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar over `total` of `unit` ("frames", "hops").
    pub fn new(total: u64, unit: &str) -> Self {
        let template = format!("{{bar:30}} {{pos}} of {{len}} {unit}, {{eta}} left");
        let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_style(style))
    }

    /// One that shows nothing.
    pub fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    /// So many are done.
    pub fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// So many more are done.
    pub fn advance(&self, by: u64) {
        self.0.inc(by);
    }

    /// How many are done.
    pub fn done(&self) -> u64 {
        self.0.position()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_whether_it_is_shown_or_not() {
        for progress in [Progress::hidden(), Progress::new(10, "frames {with} braces")] {
            progress.set(3);
            progress.advance(2);
            assert_eq!(progress.done(), 5);
        }
    }
}
