//! Loading: requirements, weight files, selection.

use crate::support::*;
use jvc_runtime::*;

/// Three chunks whose borders and hash segments do not coincide.
const CHUNKS: &[u64] = &[256, 3 << 20, (20 << 20) + 4352];

fn payload() -> Vec<u8> {
    (0..CHUNKS.iter().sum::<u64>()).map(|i| ((i * 2_654_435_761) >> 13) as u8).collect()
}

/// The payload, chunk by chunk.
fn chunks(payload: &[u8]) -> Vec<&[u8]> {
    let mut rest = payload;
    let take = |bytes: &u64| {
        let (chunk, behind) = rest.split_at(*bytes as usize);
        rest = behind;
        chunk
    };
    CHUNKS.iter().map(take).collect()
}

/// Adds weights (chunk and offset in units of 16 bytes) to x.
fn add_weights(chunk: u32, offset: u32) -> impl Fn(&mut Recorder<'_>) + Sync {
    move |r| {
        load(r);
        r.barrier();
        let bases = [Base::Arena(0), Base::Weights(chunk), Base::Arena(0), Base::Symbols];
        r.dispatch(ADD, &bases, &[0, offset, SECOND], GROUPS);
        r.barrier();
        store_second(r);
    }
}

fn check_weights(model: &Model, payload: &[u8]) {
    let mut start = 0;
    for (chunk, bytes) in (0..).zip(CHUNKS) {
        let n = (bytes / 4).min(1024);
        for offset in [0, bytes - n * 4] {
            let record = add_weights(chunk, (offset / 16) as u32);
            let mut session = model.session(&entry(&record)).expect("a session");
            let mut y = vec![0; n as usize * 4];
            // Zeros are added, so the bits of the weights come back (but NaN payloads and denormals are the driver's).
            session.run(&table(n as u32), &[&vec![0; n as usize * 4]], &mut [&mut y]).expect("a run");
            let expected = &payload[(start + offset) as usize..][..y.len()];
            let same = |(a, b): (f32, f32)| a == b || (a.is_nan() && b.is_nan()) || b.is_subnormal();
            assert!(values(&y).into_iter().zip(values(expected)).all(same), "chunk {chunk} at {offset}");
        }
        start += bytes;
    }
}

fn load_with(gpu: &Gpu, hash: u64, source: WeightSource<'_>) -> Result<Model, Error> {
    let weights = WeightsDesc { chunk_bytes: CHUNKS, content_hash: hash };
    Model::load(gpu, &ProgramDesc { weights, ..program(KERNELS) }, source, &CacheDir::None)
}

#[test]
fn weights_arrive_from_bytes_files_and_functions() {
    let gpu = open();
    let payload = payload();
    let hash = content_hash(chunks(&payload));
    let file = weight_file(&chunks(&payload));
    check_weights(&load_with(&gpu, hash, WeightSource::Bytes(&file)).expect("bytes"), &payload);
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("weights.bin");
    std::fs::write(&path, &file).expect("a file");
    check_weights(&load_with(&gpu, hash, WeightSource::Path(&path)).expect("a path"), &payload);
    let produce = |chunk: u32, offset: u64, out: &mut [u8]| {
        let start = CHUNKS[..chunk as usize].iter().sum::<u64>() + offset;
        out.copy_from_slice(&payload[start as usize..][..out.len()]);
    };
    check_weights(&load_with(&gpu, 0, WeightSource::Produce(&produce)).expect("a function"), &payload);
}

#[test]
fn weights_arrive_through_staging_buffers() {
    let lab = lab(jvc_lab::Options { without_mapped: true, ..jvc_lab::Options::default() });
    let gpu = lab.gpu();
    let payload = payload();
    let hash = content_hash(chunks(&payload));
    let mut file = weight_file(&chunks(&payload));
    check_weights(&load_with(gpu, hash, WeightSource::Bytes(&file)).expect("bytes"), &payload);
    *file.last_mut().expect("a payload") ^= 1;
    let damaged = load_with(gpu, hash, WeightSource::Bytes(&file)).err();
    assert!(matches!(damaged, Some(Error::Weights { fault: WeightsFault::Corrupt, .. })), "{damaged:?}");
}

#[test]
fn weight_files_that_are_not_the_program_s_are_refused() {
    let gpu = open();
    let payload = payload();
    let hash = content_hash(chunks(&payload));
    let file = weight_file(&chunks(&payload));
    let refuse = |source: WeightSource<'_>| match load_with(&gpu, hash, source) {
        Err(Error::Weights { fault, need, got }) => (fault, need, got),
        other => panic!("not refused: {:?}", other.err()),
    };
    let refuse_bytes = |file: &[u8]| refuse(WeightSource::Bytes(file));
    let is = |fault, need: &dyn ToString, got: &dyn ToString| (fault, need.to_string(), got.to_string());
    assert_eq!(refuse_bytes(b""), is(WeightsFault::Format, &"JVCW version 1", &""));
    assert_eq!(refuse_bytes(&payload[..64]).0, WeightsFault::Format);
    let need = payload.len() as u64;
    assert_eq!(refuse_bytes(&file[..file.len() - 1]), is(WeightsFault::Size, &need, &(need - 1)));
    assert_eq!(refuse_bytes(&[&file[..], &[0]].concat()), is(WeightsFault::Size, &need, &(need + 1)));
    let mut newer = file.clone();
    newer[4] = 2;
    assert_eq!(refuse_bytes(&newer), is(WeightsFault::Format, &"JVCW version 1", &"JVCW\\x02\\x00\\x00\\x00"));
    let other = weight_file(&[&payload.iter().rev().copied().collect::<Vec<u8>>()]);
    let (fault, needed, _) = refuse_bytes(&other);
    assert_eq!((fault, needed), (WeightsFault::Foreign, format!("{hash:016x}")));
    for at in [64, 64 + 256, 64 + (1 << 20), file.len() - 1] {
        let mut flipped = file.clone();
        flipped[at] ^= 0x80;
        let (fault, need, got) = refuse_bytes(&flipped);
        assert_eq!((fault, &need), (WeightsFault::Corrupt, &format!("{hash:016x}")), "byte {at}");
        assert_ne!(need, got, "byte {at}");
    }
    assert_eq!(refuse(WeightSource::Path("/nowhere/weights.bin".as_ref())).0, WeightsFault::Unreadable);
    assert_eq!(refuse(WeightSource::None), is(WeightsFault::Size, &need, &0));
}

#[test]
fn what_the_device_lacks_is_named_with_need_and_fact() {
    let gpu = open();
    let limits = gpu.info();
    let refuse = |requirements: Requirements<'_>| {
        let desc = ProgramDesc { requirements, ..program(KERNELS) };
        Model::load(&gpu, &desc, WeightSource::None, &CacheDir::None).err().expect("too much").to_string()
    };
    let shared_bytes = limits.shared_bytes + 1;
    let expected =
        format!("this GPU offers shared memory bytes {}, the program needs {shared_bytes}", limits.shared_bytes);
    assert_eq!(refuse(Requirements { shared_bytes, ..Requirements::NONE }), expected);
    let subgroup = limits.subgroup_range.1 * 2;
    assert!(refuse(Requirements { subgroup, ..Requirements::NONE }).contains("subgroup size"));
    let shape = Cooperative { m: 3, n: 5, k: 7, operand: "f16", accumulator: "f32" };
    assert!(refuse(Requirements { cooperative: &[shape], ..Requirements::NONE }).contains("cooperative"));
    let max_allocation_bytes = limits.max_allocation_bytes + 1;
    assert!(refuse(Requirements { max_allocation_bytes, ..Requirements::NONE }).contains("one allocation"));
    let mut poor = gpu.info().clone();
    poor.features.float16 = false;
    let features = Features { float16: true, ..Features::NONE };
    let error = Requirements { features, ..Requirements::NONE }.check(&poor).expect_err("no f16");
    assert_eq!(error.to_string(), "this GPU has no 16-bit floats, which the program needs");
}

#[test]
fn shapes_that_the_device_has_are_accepted() {
    let gpu = open();
    let all = Requirements { cooperative: &gpu.info().cooperative, ..Requirements::NONE };
    all.check(gpu.info()).expect("shapes of the table");
    let subgroup = gpu.info().subgroup;
    Requirements { subgroup, ..Requirements::NONE }.check(gpu.info()).expect("the default size");
}

#[test]
fn devices_are_selected_by_index_name_and_uuid() {
    let list = Gpu::list().expect("a loader");
    let first = &list[0];
    let name = first.name.to_uppercase();
    for select in [Select::Index(0), Select::Name(name), Select::Uuid(first.uuid)] {
        assert_eq!(Gpu::open(&select).expect("a device").info().uuid, first.uuid, "{select:?}");
    }
    let error = Gpu::open(&Select::Name("no such device".to_owned())).err().expect("nonsense");
    assert!(matches!(&error, Error::NoDevice { found, .. } if found.contains(&first.name)), "{error}");
}

#[test]
fn buffers_refuse_accesses_past_their_end() {
    let buffer = open().buffer(256, MemoryKind::Device).expect("a buffer");
    buffer.write(0, &[1; 256]).expect("all of it");
    assert!(buffer.write(1, &[1; 256]).is_err());
    assert!(buffer.read(u64::MAX, &mut [0]).is_err());
    buffer.write(100, &[2; 7]).expect("a part");
    let mut read = [0; 9];
    buffer.read(99, &mut read).expect("a part");
    assert_eq!(read, [1, 2, 2, 2, 2, 2, 2, 2, 1]);
}

#[test]
fn bytes_are_those_of_the_numbers() {
    assert_eq!(bytes_of(&[0x0102_0304u32, 5]), [0x0102_0304u32.to_ne_bytes(), 5u32.to_ne_bytes()].concat());
    let mut floats = [0f32; 2];
    bytes_of_mut(&mut floats)[4..].copy_from_slice(&1.5f32.to_ne_bytes());
    assert_eq!(floats, [0.0, 1.5]);
}
