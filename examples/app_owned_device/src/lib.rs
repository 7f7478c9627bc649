//! What an application with a Vulkan device of its own does to have a generated crate work on its images: it lends the device
//! ([`Vulkan::lend`]), lets the session read and write its buffers, and puts the run between its own commands, in one submission
//! ([`soften`]).

mod check;
mod frame;
mod picture;
mod vulkan;

pub use check::check;
pub use picture::{Picture, softened_by_integers};
pub use vulkan::{Messages, Vulkan, own};

use std::collections::VecDeque;
use std::error::Error;
use std::path::Path;

use frame::Frame;
use soften::jvc_runtime::{CacheDir, SessionOptions, Ticket, WeightSource};
use soften::{Soften, SoftenSession, SoftenSizes};
use vulkan::Timeline;

/// Pictures on their way at once: slots of the session.
const IN_FLIGHT: usize = 2;
/// Slots of the I/O table: `plan.txt` of the generated crate lists them, inputs before outputs.
const IMAGE: usize = 0;
const OUTPUT: usize = 1;

/// Every picture as `VkImage`, softened on the application's device, and read back from a `VkImage`.
///
/// # Errors
/// A device that lacks something; pictures of more than 512 rows or columns; Vulkan's errors.
pub fn soften(vulkan: &Vulkan, weights: &Path, pictures: &[Picture]) -> Result<Vec<Picture>, Box<dyn Error>> {
    let gpu = vulkan.lend()?;
    let program = Soften::load_with(&gpu, WeightSource::Path(weights), &CacheDir::None)?;
    let mut session =
        program.soften_session_with(&SessionOptions { n_slots: IN_FLIGHT, ..SessionOptions::default() })?;
    let timeline = Timeline::new(vulkan)?;
    let mut results = Vec::new();
    let mut in_flight = VecDeque::new();
    for (picture, drawn) in pictures.iter().zip((1..).step_by(2)) {
        if in_flight.len() == IN_FLIGHT {
            results.extend(in_flight.pop_front().map(|run| finish(&mut session, &timeline, run)).transpose()?);
        }
        let frame = Frame::new(vulkan, picture, session.session().ports()[IMAGE].max_bytes)?;
        // Whatever makes the image: here the host's bytes, in a submission of its own.
        frame.draw(vulkan, &timeline, drawn)?;
        let ticket = submit(vulkan, &timeline, &mut session, &frame, (drawn, gpu.timeline()))?;
        in_flight.push_back(Run { frame, ticket, done: drawn + 1 });
    }
    for run in in_flight {
        results.push(finish(&mut session, &timeline, run)?);
    }
    Ok(results)
}

/// A picture on its way, which the application's timeline tells the end of.
struct Run {
    frame: Frame,
    ticket: Ticket,
    done: u64,
}

/// One `vkQueueSubmit`: it waits until the image has been drawn, copies it to the input's buffer, runs the recorded program, copies
/// the output's buffer to another image, and signals the application's timeline, and the runtime's.
fn submit(
    vulkan: &Vulkan,
    timeline: &Timeline,
    session: &mut SoftenSession,
    frame: &Frame,
    (drawn, runtime): (u64, u64),
) -> Result<Ticket, Box<dyn Error>> {
    let (height, width) = (frame.height as usize, frame.width as usize);
    let table = SoftenSizes { s40: height, s62: width }.table()?;
    let session = session.session();
    // Nothing is recorded again: the addresses are words that kernels read.
    session.bind_external(IMAGE, Some(frame.input.address))?;
    session.bind_external(OUTPUT, Some(frame.output.address))?;
    let ticket = session.submit_by(&table, &[&[]], &[0], &mut |run, value| {
        let commands = frame.around(run);
        vulkan.submit(
            &commands,
            Some((timeline, drawn)),
            &[(timeline.raw, drawn + 1), (vulkan.semaphore(runtime), value)],
        )
    })?;
    Ok(ticket)
}

/// Waits for the application's own value; then the session's slot is free as well.
fn finish(session: &mut SoftenSession, timeline: &Timeline, run: Run) -> Result<Picture, Box<dyn Error>> {
    timeline.wait(run.done)?;
    session.session().wait(run.ticket, &mut [&mut []])?;
    Ok(run.frame.read_back())
}
