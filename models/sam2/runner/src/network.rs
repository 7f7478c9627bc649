//! The generated crate behind [`Engine`]: the only file that knows its names. Features stay on the device, in buffers that the
//! entry points read and write in place.

use jvc_runner::jvc_runtime::{
    Buffer, CacheDir, Error, Gpu, MemoryKind, Session, WeightSource, bytes_of, bytes_of_mut,
};
use jvc_runner::memory::Needs;
use jvc_runner::weights::Generated;
use sam2::Picture;
use sam2::engine::{DecodeRequest, Decoded, Engine, Geometry, MaskLogits, MemoryRequest, Recall, Upscaled};
use sam2_net::{
    DecodeSession, DecodeSizes, EncodeSession, EncodeSizes, MaskPromptInputs, MaskPromptSession,
    MemoryAttentionSession, MemoryAttentionSizes, MemoryEncoderSession, Sam2Net, UpscaleSession, UpscaleSizes,
};
use std::sync::Arc;

/// The generated crate, for finding its weights.
pub const GENERATED: Generated = Generated {
    name: "sam2_net",
    folder: concat!(env!("CARGO_MANIFEST_DIR"), "/../generated/sam2_net"),
    make: "models/sam2/try.sh",
};

/// Device memory: weights, and each entry point's own once it is used.
pub fn needs(video: bool) -> Needs {
    let pictures = [
        ("encode", EncodeSession::SLOT_BYTES),
        ("decode", DecodeSession::SLOT_BYTES),
        ("upscale", UpscaleSession::SLOT_BYTES),
    ];
    let videos = [
        ("mask prompt", MaskPromptSession::SLOT_BYTES),
        ("memory encoder", MemoryEncoderSession::SLOT_BYTES),
        ("memory attention", MemoryAttentionSession::SLOT_BYTES),
    ];
    let videos = videos.into_iter().filter(|_| video);
    let sessions = pictures.into_iter().chain(videos).map(|(name, bytes)| (name, 1, bytes)).collect();
    Needs { weights: Sam2Net::WEIGHT_BYTES, sessions }
}

/// Features of a picture on the device: quarter, eighth and sixteenth of the resolution.
#[derive(Clone)]
pub struct Features([Arc<Buffer>; 3]);

/// The compiled network on a device. Entry points for videos take memory when they are first used.
pub struct Network {
    gpu: Gpu,
    program: Sam2Net,
    geometry: Geometry,
    encode: EncodeSession,
    decode: DecodeSession,
    upscale: UpscaleSession,
    mask_prompt: Option<MaskPromptSession>,
    memory_encoder: Option<MemoryEncoderSession>,
    memory_attention: Option<MemoryAttentionSession>,
    feature_bytes: [u64; 3],
}

impl Network {
    /// Loads the weights and records the entry points for pictures.
    ///
    /// # Errors
    /// A device that lacks something, a weight file that is not this program's, or too little memory.
    pub fn load(gpu: &Gpu, weights: WeightSource<'_>, cache: &CacheDir) -> Result<Self, Error> {
        Self::of(gpu, Sam2Net::load_with(gpu, weights, cache)?)
    }

    /// Another network that shares this one's weights and kernels, with memory of its own ([`needs`], less the weights): for
    /// requests at the same time, one on each thread.
    ///
    /// # Errors
    /// Too little memory.
    pub fn another(&self) -> Result<Self, Error> {
        Self::of(&self.gpu, self.program.clone())
    }

    fn of(gpu: &Gpu, program: Sam2Net) -> Result<Self, Error> {
        let (mut encode, mut decode, mut upscale) =
            (program.encode_session()?, program.decode_session()?, program.upscale_session()?);
        let port = |session: &mut Session, slot| session.bind_external(slot, None);
        let feature_bytes = [port(decode.session(), 0)?, port(decode.session(), 1)?, port(decode.session(), 2)?];
        let low = port(decode.session(), MASK)?.div_euclid(4).isqrt() as usize;
        let top = low / 4;
        let max_prompts = port(decode.session(), IOUS)? as usize / 12;
        let geometry = Geometry {
            side: low * 4,
            channels: feature_bytes[2] as usize / 4 / (top * top),
            memory_channels: 64,
            max_side: (port(encode.session(), 0)? / 3).isqrt() as usize,
            max_prompts,
            max_points: port(decode.session(), LABELS)? as usize / 4 / max_prompts,
            max_masks: port(upscale.session(), 0)? as usize / 4 / (low * low),
            max_memories: MAX_MEMORIES,
            max_pointers: MAX_POINTERS,
        };
        Ok(Self {
            gpu: gpu.clone(),
            program,
            geometry,
            encode,
            decode,
            upscale,
            mask_prompt: None,
            memory_encoder: None,
            memory_attention: None,
            feature_bytes,
        })
    }

    fn buffer(&self, at: usize) -> Result<Arc<Buffer>, Error> {
        Ok(Arc::new(self.gpu.buffer(self.feature_bytes[at], MemoryKind::Device)?))
    }
}

/// Slots of `decode`'s I/O table.
const LABELS: usize = 4;
const MASK: usize = 5;
const IOUS: usize = 9;
/// As in export.py: four prompted frames and six followed ones, pointers of four and of fifteen.
const MAX_MEMORIES: usize = 10;
const MAX_POINTERS: usize = 19;

/// A flag as programs take it.
fn flag(on: bool) -> [u8; 4] {
    f32::from(u8::from(on)).to_ne_bytes()
}

/// Binds buffers to slots of the I/O table, which then take no bytes.
fn bind(session: &mut Session, slots: impl IntoIterator<Item = (usize, u64)>) -> Result<(), Error> {
    slots.into_iter().try_for_each(|(slot, address)| session.bind_external(slot, Some(address)).map(|_| ()))
}

impl Engine for Network {
    type Error = Error;
    type Features = Features;

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn encode(&mut self, picture: &Picture) -> Result<Features, Error> {
        let features = Features([self.buffer(0)?, self.buffer(1)?, self.buffer(2)?]);
        let table = EncodeSizes { s64: picture.height(), s96: picture.width() }.table()?;
        let session = self.encode.session();
        bind(session, (1..4).zip(features.0.iter().map(|b| b.address())))?;
        session.run(&table, &[picture.rgb()], &mut [&mut [], &mut [], &mut []])?;
        Ok(features)
    }

    fn decode(&mut self, features: &Features, request: &DecodeRequest<'_>) -> Result<Decoded, Error> {
        let (b, n, c) = (request.prompts, self.geometry.low_elems(), self.geometry.channels);
        let table = DecodeSizes { s6: b, s24: request.labels.len() / b.max(1) }.table()?;
        let none = vec![0.0; if request.mask.is_some() { 0 } else { n }];
        let mask = request.mask.unwrap_or(&none);
        let mut out = Decoded {
            masks: vec![0.0; b * 3 * n],
            ious: vec![0.0; b * 3],
            single: vec![0.0; b * n],
            single_ious: vec![0.0; b],
            scores: vec![0.0; b],
            pointers: vec![0.0; b * 4 * c],
        };
        let session = self.decode.session();
        bind(session, (0..3).zip(features.0.iter().map(|b| b.address())))?;
        let (use_mask, no_memory) = (flag(request.mask.is_some()), flag(request.no_memory));
        let (points, labels) = (bytes_of(request.points), bytes_of(request.labels));
        let inputs: [&[u8]; 8] = [&[], &[], &[], points, labels, bytes_of(mask), &use_mask, &no_memory];
        let mut outputs: [&mut [u8]; 6] = [
            bytes_of_mut(&mut out.masks),
            bytes_of_mut(&mut out.ious),
            bytes_of_mut(&mut out.single),
            bytes_of_mut(&mut out.single_ious),
            bytes_of_mut(&mut out.scores),
            bytes_of_mut(&mut out.pointers),
        ];
        session.run(&table, &inputs, &mut outputs)?;
        Ok(out)
    }

    fn upscale(
        &mut self,
        low: &[f32],
        (width, height): (usize, usize),
        threshold: f32,
        offset: f32,
    ) -> Result<Upscaled, Error> {
        let n = low.len() / self.geometry.low_elems();
        let table = UpscaleSizes { s35: n, s10: height, s57: width }.table()?;
        // Only the lengths of these say something.
        let (rows, columns) = (vec![0u8; height], vec![0u8; width]);
        let mut out = Upscaled { inside: vec![0; n * width * height], above: vec![0; n], below: vec![0; n] };
        let (threshold, offset) = (threshold.to_ne_bytes(), offset.to_ne_bytes());
        let inputs: [&[u8]; 5] = [bytes_of(low), &rows, &columns, &threshold, &offset];
        let mut outputs: [&mut [u8]; 3] = [&mut out.inside, bytes_of_mut(&mut out.above), bytes_of_mut(&mut out.below)];
        self.upscale.session().run(&table, &inputs, &mut outputs)?;
        // Levels: of the lower threshold, the threshold and the higher one, how many the logit is above.
        out.inside.iter_mut().for_each(|level| *level = u8::from(*level >= 2));
        Ok(out)
    }

    fn mask_logits(&mut self, given: &[u8]) -> Result<MaskLogits, Error> {
        let session = match &mut self.mask_prompt {
            Some(session) => session,
            none => none.insert(self.program.mask_prompt_session()?),
        };
        let out = session.run(&MaskPromptInputs { given })?;
        Ok(MaskLogits { low: out.output_0, prompt: out.output_1, no_pointer: out.output_2 })
    }

    fn memorize(&mut self, features: &Features, request: &MemoryRequest<'_>) -> Result<Vec<f32>, Error> {
        let Geometry { side, memory_channels, .. } = self.geometry;
        let none = vec![0; if request.given.is_some() { 0 } else { side * side }];
        let mut memory = vec![0.0f32; (side / 16) * (side / 16) * memory_channels];
        let typed = match &mut self.memory_encoder {
            Some(session) => session,
            none => none.insert(self.program.memory_encoder_session()?),
        };
        let session = typed.session();
        bind(session, [(0, features.0[2].address())])?;
        let (use_given, binarize) = (flag(request.given.is_some()), flag(request.binarize));
        let score = request.score.to_ne_bytes();
        let given = request.given.unwrap_or(&none);
        let inputs: [&[u8]; 6] = [&[], bytes_of(request.low), given, &use_given, &binarize, &score];
        session.run(&[], &inputs, &mut [bytes_of_mut(&mut memory)])?;
        Ok(memory)
    }

    fn recall(&mut self, features: &Features, recall: &Recall) -> Result<Features, Error> {
        let reminded = self.buffer(2)?;
        // One more pointer that is not looked at: a size is 1 at least.
        let mut pointers = recall.pointers.clone();
        pointers.resize(pointers.len() + self.geometry.channels, 0.0);
        let offsets: Vec<f32> = recall.offsets.iter().copied().chain([0.0]).collect();
        let table = MemoryAttentionSizes { s48: recall.times.len(), s33: offsets.len() }.table()?;
        let typed = match &mut self.memory_attention {
            Some(session) => session,
            none => none.insert(self.program.memory_attention_session()?),
        };
        let session = typed.session();
        bind(session, [(0, features.0[2].address()), (5, reminded.address())])?;
        let memory = bytes_of(&recall.memory);
        let inputs: [&[u8]; 5] = [&[], memory, bytes_of(&recall.times), bytes_of(&pointers), bytes_of(&offsets)];
        session.run(&table, &inputs, &mut [&mut []])?;
        let [f0, f1, _] = &features.0;
        Ok(Features([f0.clone(), f1.clone(), reminded]))
    }
}
