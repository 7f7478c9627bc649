//! The generated crate behind [`Engine`]: the only file that knows its names. Spectrogram, keys and values of cross-attention, and
//! keys and values of the tokens so far never leave the device; a step takes a token and gives one.

use jvc_runner::jvc_runtime::{
    Arenas, Base, Buffer, CacheDir, Error, Gpu, MemoryKind, Session, SessionOptions, WeightSource, bytes_of,
    bytes_of_mut,
};
use jvc_runner::memory::Needs;
use whisper::engine::{Choice, Chosen, Engine, WINDOW_SAMPLES};
use whisper::facts::Facts;
use whisper_model::{
    AlignSession, AlignSizes, EncodeSession, LogmelSession, PrefillSession, PrefillSizes, StepSession, StepSizes,
    WhisperModel,
};

/// Logits of ids that are never chosen; as in export.py.
const NEVER: f32 = -1e30;

/// Why the network did not run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The runtime's.
    #[error("{0}")]
    Runtime(#[from] Error),
    /// `model.json` tells of another model than the crate was compiled from.
    #[error("model.json and the compiled crate differ: {what} has {got} bytes in the crate, {need} by model.json")]
    OtherModel {
        /// Of which they differ.
        what: &'static str,
        /// By `model.json`.
        need: u64,
        /// In the crate.
        got: u64,
    },
    /// An argument of the caller.
    #[error("{what} is {got}, not {need}")]
    Argument {
        /// Which.
        what: &'static str,
        /// What it must be.
        need: String,
        /// What it is.
        got: usize,
    },
}

/// Device memory that a loaded engine takes.
pub fn needs() -> Needs {
    let sessions = [
        ("logmel", LogmelSession::SLOT_BYTES),
        ("encode", EncodeSession::SLOT_BYTES),
        ("step", StepSession::SLOT_BYTES + StepSession::STATE_BYTES),
    ];
    Needs { weights: WhisperModel::WEIGHT_BYTES, sessions: sessions.map(|(name, bytes)| (name, 1, bytes)).to_vec() }
}

/// Whisper on a device, for one recording at a time. Engines of one device may work side by side.
pub struct DeviceEngine {
    facts: Facts,
    model: WhisperModel,
    arenas: Arenas,
    logmel: LogmelSession,
    encode: EncodeSession,
    step: StepSession,
    /// Made when they are used first.
    prefill: Option<PrefillSession>,
    align: Option<AlignSession>,
    cross: [Buffer; 2],
    /// What sessions exchange on the device; they have its addresses.
    _shared: [Buffer; 2],
    /// What is asked of a step, and its address.
    state: u64,
}

impl DeviceEngine {
    /// Loads the weights and records the programs. `gpu` may be an application's own device ([`Gpu::borrow`]).
    ///
    /// # Errors
    /// A device that lacks something, weights that are not this program's, memory, and facts of another model.
    pub fn load(
        gpu: &Gpu,
        weights: WeightSource<'_>,
        cache: &CacheDir,
        facts: Facts,
    ) -> Result<DeviceEngine, EngineError> {
        let model = WhisperModel::load_with(gpu, weights, cache)?;
        DeviceEngine::new(gpu, model, facts)
    }

    /// Another engine of a loaded model, which shares its weights: for several recordings at a time.
    ///
    /// # Errors
    /// Memory, and facts of another model.
    pub fn new(gpu: &Gpu, model: WhisperModel, facts: Facts) -> Result<DeviceEngine, EngineError> {
        // Runs over shared arenas are ordered after each other, so that one may read what another wrote.
        let arenas = model.arenas(1)?;
        let options = SessionOptions { arenas: Some(arenas.clone()), ..SessionOptions::default() };
        let mut logmel = model.logmel_session_with(&options)?;
        let mut encode = model.encode_session_with(&options)?;
        let mut step = model.step_session_with(&options)?;
        let vocabulary = facts.vocabulary as u64;
        check("the tokens to suppress", 8 * vocabulary, bytes(step.session(), 4)?)?;
        check("the spectrogram", 12_000 * facts.mels as u64, bytes(encode.session(), 0)?)?;
        // Halves take a word each where a device has no 16-bit storage.
        let (values, cross) = (facts.cross_values() as u64, bytes(step.session(), 2)?);
        check("cross-attention", values * if cross == 2 * values { 2 } else { 4 }, cross)?;

        let device = |bytes| gpu.buffer(bytes, MemoryKind::Device);
        let spectrogram = device(bytes(logmel.session(), 2)?)?;
        let cross = [device(bytes(encode.session(), 3)?)?, device(bytes(encode.session(), 4)?)?];
        let suppress = device(bytes(step.session(), 4)?)?;
        suppress.write(0, bytes_of(&suppressed(&facts)))?;
        logmel.session().bind_external(2, Some(spectrogram.address()))?;
        encode.session().bind_external(0, Some(spectrogram.address()))?;
        for (i, buffer) in cross.iter().enumerate() {
            encode.session().bind_external(3 + i, Some(buffer.address()))?;
            step.session().bind_external(2 + i, Some(buffer.address()))?;
        }
        step.session().bind_external(4, Some(suppress.address()))?;
        let state = step.session().buffer(0, Base::State).map_or(0, Buffer::address);
        let (prefill, align, shared) = (None, None, [spectrogram, suppress]);
        let mut engine =
            DeviceEngine { facts, model, arenas, logmel, encode, step, prefill, align, cross, _shared: shared, state };
        // The first run sets the state to its initial value: before it, no prefill may write there.
        engine.listen(0.0, 0)?;
        engine.step(0, 0, &Choice::ANY)?;
        Ok(engine)
    }

    /// The loaded model, for further engines.
    pub fn model(&self) -> &WhisperModel {
        &self.model
    }

    fn options(&self) -> SessionOptions {
        SessionOptions { arenas: Some(self.arenas.clone()), ..SessionOptions::default() }
    }

    /// Runs a program over several tokens, whose ports 1 and 2 are the keys and values of cross-attention.
    fn read_tokens(session: &mut Session, table: &[u32], tokens: &[u32], output: &mut [u8]) -> Result<(), Error> {
        let tokens: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        session.run(table, &[bytes_of(&tokens), &[], &[]], &mut [output])
    }

    fn bind_cross(cross: &[Buffer; 2], session: &mut Session) -> Result<(), Error> {
        let mut ports = cross.iter().enumerate();
        ports.try_for_each(|(i, buffer)| session.bind_external(1 + i, Some(buffer.address())).map(|_| ()))
    }
}

/// Logits that are added to every choice, and to the first one of a transcript.
fn suppressed(facts: &Facts) -> Vec<f32> {
    let mut bias = vec![0.0; 2 * facts.vocabulary];
    let t = &facts.tokens;
    let special = [t.start, t.translate, t.transcribe, t.start_of_lm, t.previous, t.no_speech];
    facts.suppress.iter().chain(&special).for_each(|id| bias[*id as usize] = NEVER);
    facts.suppress_begin.iter().for_each(|id| bias[facts.vocabulary + *id as usize] = NEVER);
    bias
}

/// Bytes of a port at its largest size.
fn bytes(session: &mut Session, port: usize) -> Result<u64, Error> {
    session.bind_external(port, None)
}

fn check(what: &'static str, need: u64, got: u64) -> Result<(), EngineError> {
    if need == got { Ok(()) } else { Err(EngineError::OtherModel { what, need, got }) }
}

fn argument(ok: bool, what: &'static str, need: impl ToString, got: usize) -> Result<(), EngineError> {
    if ok { Ok(()) } else { Err(EngineError::Argument { what, need: need.to_string(), got }) }
}

impl Engine for DeviceEngine {
    type Error = EngineError;

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn spectrogram(&mut self, samples: &[f32], frames: usize) -> Result<f32, EngineError> {
        argument(samples.len() == WINDOW_SAMPLES, "the number of samples", WINDOW_SAMPLES, samples.len())?;
        let (frames, mut top) = ([frames as i32], [0.0f32]);
        let inputs = [bytes_of(samples), bytes_of(&frames)];
        self.logmel.session().run(&[], &inputs, &mut [&mut [], bytes_of_mut(&mut top)])?;
        Ok(top[0])
    }

    fn listen(&mut self, top: f32, frames: usize) -> Result<(), EngineError> {
        let (top, frames) = ([top], [frames as i32]);
        let inputs = [&[], bytes_of(&top), bytes_of(&frames)];
        Ok(self.encode.session().run(&[], &inputs, &mut [&mut [], &mut []])?)
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<(), EngineError> {
        argument(
            (2..self.facts.context).contains(&tokens.len()),
            "the number of tokens",
            "2 to the context's",
            tokens.len(),
        )?;
        if self.prefill.is_none() {
            let mut session = self.model.prefill_session_with(&self.options())?;
            check("the step program's state", StepSession::STATE_BYTES, bytes(session.session(), 3)?)?;
            DeviceEngine::bind_cross(&self.cross, session.session())?;
            session.session().bind_external(3, Some(self.state))?;
            self.prefill = Some(session);
        }
        let table = PrefillSizes { s27: tokens.len() }.table()?;
        let session = self.prefill.as_mut().expect("made above").session();
        Ok(DeviceEngine::read_tokens(session, &table, tokens, &mut [])?)
    }

    fn step(&mut self, token: u32, position: usize, choice: &Choice) -> Result<Chosen, EngineError> {
        argument(position < self.facts.context, "a position", "less than the context", position)?;
        let limit = self.facts.vocabulary as u32;
        argument(token < limit, "a token", "less than the vocabulary", token as usize)?;
        let mut rules = [i32::from(choice.first) | i32::from(choice.timestamps) << 1, 0, 0, 0, 0, 0, 0];
        for (i, (from, to)) in choice.forbidden.iter().enumerate() {
            (rules[1 + 2 * i], rules[2 + 2 * i]) = ((*from).min(limit) as i32, (*to).min(limit) as i32);
        }
        let noise = if choice.temperature > 0.0 { [1.0 / choice.temperature, 1.0] } else { [1.0, 0.0] };
        let table = StepSizes { rng_seed: choice.seed as usize, rng_offset: choice.draw as usize }.table()?;
        let (token, position) = ([i64::from(token)], [position as i64]);
        let inputs = [bytes_of(&token), bytes_of(&position), &[], &[], &[], bytes_of(&rules), bytes_of(&noise)];
        let (mut next, mut logprob, mut no_speech) = ([0i64], [0.0f32], [0.0f32]);
        let mut outputs = [bytes_of_mut(&mut next), bytes_of_mut(&mut logprob), bytes_of_mut(&mut no_speech)];
        self.step.session().run(&table, &inputs, &mut outputs)?;
        Ok(Chosen { token: next[0] as u32, logprob: logprob[0], no_speech: no_speech[0] })
    }

    fn align(&mut self, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        argument(
            (2..=self.facts.context).contains(&tokens.len()),
            "the number of tokens",
            "2 to the context's",
            tokens.len(),
        )?;
        if self.align.is_none() {
            let mut session = self.model.align_session_with(&self.options())?;
            DeviceEngine::bind_cross(&self.cross, session.session())?;
            self.align = Some(session);
        }
        let table = AlignSizes { s27: tokens.len() }.table()?;
        let mut weights = vec![0.0f32; self.facts.alignment_heads.len() * tokens.len() * 1500];
        let session = self.align.as_mut().expect("made above").session();
        DeviceEngine::read_tokens(session, &table, tokens, bytes_of_mut(&mut weights))?;
        Ok(weights)
    }
}
