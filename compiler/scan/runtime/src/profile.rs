//! Time per step, by timestamps in a recording of its own: normal runs carry none.

use std::sync::Arc;

use ash::vk;

use crate::error::{Error, Named as _};
use crate::gpu::Device;
use crate::program::EntryDesc;
use crate::recorder::Recording;
use crate::session::Session;

/// A second recording of a session's first slot, with a timestamp after each step.
pub struct Profile {
    device: Arc<Device>,
    queries: vk::QueryPool,
    n_queries: u32,
    recording: Option<Recording>,
}

/// Time of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTime {
    /// Name of the dispatch.
    pub label: String,
    /// Nanoseconds from the end of the step before it to its own end. Steps without a barrier between them overlap: their sum is
    /// right, the share of each is not.
    pub ns: f64,
}

impl Profile {
    /// Records the session's entry point again. Errors as of [`crate::Model::session`], and when the device has no timestamps.
    pub fn new(session: &Session, entry: &EntryDesc<'_>) -> Result<Profile, Error> {
        let device = Arc::clone(&session.model.device);
        if device.info.limits.timestamp_period_ns == 0.0 {
            return Err(Error::Missing { what: "timestamps on compute queues" });
        }
        let n_queries = session.step_labels().len() as u32 + 1;
        let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(n_queries);
        // SAFETY: a plain creation; `Drop` destroys the pool.
        let queries = unsafe { device.raw.create_query_pool(&info, None) }.named("vkCreateQueryPool")?;
        let mut profile = Profile { device, queries, n_queries, recording: None };
        profile.recording = Some(session.record_timed(entry, (queries, n_queries))?);
        Ok(profile)
    }

    /// Runs the session once and gives the time of each step. Errors as of [`Session::run`]; the first slot must be free.
    pub fn run(
        &mut self,
        session: &mut Session,
        table: &[u32],
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Vec<StepTime>, Error> {
        let recording = self.recording.as_mut().expect("set by `new`");
        session.run_recording(recording, table, inputs, outputs)?;
        let mut ticks = vec![0u64; self.n_queries as usize];
        // SAFETY: the run has finished, so all queries are available.
        unsafe { self.device.raw.get_query_pool_results(self.queries, 0, &mut ticks, vk::QueryResultFlags::TYPE_64) }
            .named("vkGetQueryPoolResults")?;
        let period = f64::from(self.device.info.limits.timestamp_period_ns);
        let time = |(label, pair): (&String, &[u64])| StepTime {
            label: label.clone(),
            ns: pair[1].saturating_sub(pair[0]) as f64 * period,
        };
        Ok(recording.labels.iter().zip(ticks.windows(2)).map(time).collect())
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        // SAFETY: runs with this recording were waited for, or the device is lost.
        unsafe { self.device.raw.destroy_query_pool(self.queries, None) };
    }
}
