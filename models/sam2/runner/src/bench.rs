//! `sam2 bench`: entry points and whole requests on a made-up picture.

use crate::args::MeasureArgs;
use crate::{Outcome, load};
use jvc_runner::Common;
use jvc_runner::bench::{Report, Samples};
use jvc_runner::cold_start::ColdStart;
use sam2::engine::{DecodeRequest, Engine, MemoryRequest, Recall};
use sam2::{Click, Picture, Request, Segmenter};

/// Adds a row, and tells it at once: some take a while on small devices.
fn put(report: &mut Report, common: &Common, name: &str, samples: Samples) {
    if !common.quiet {
        eprintln!("measured  {name}: {samples}");
    }
    report.row(name, samples);
}

/// Measures.
pub(crate) fn bench(args: &MeasureArgs, common: &Common, clock: &mut ColdStart) -> Outcome {
    let mut report = Report::default();
    let mut network = load(common, args.video, clock)?;
    let (width, height) = args.size;
    let wave = |i: usize| (((i % (width * 3)) * 7 + (i / (width * 3)) * 5) % 251) as u8;
    let picture = Picture::new(width, height, (0..width * height * 3).map(wave).collect())?;
    let geometry = network.geometry();
    report.fact("picture", format!("{width} × {height}"));
    put(&mut report, common, "encode", args.bench.measure(|| network.encode(&picture).map(drop))?);

    let features = network.encode(&picture)?;
    let middle = geometry.side as f32 / 2.0;
    let ask = |points: &[f32], labels: &[i32], network: &mut sam2_runner::Network| {
        let prompts = labels.len();
        network.decode(&features, &DecodeRequest { points, labels, prompts, mask: None, no_memory: true })
    };
    put(
        &mut report,
        common,
        "decode, one click",
        args.bench.measure(|| ask(&[middle; 2], &[1], &mut network).map(drop))?,
    );
    let many = geometry.max_prompts;
    let (points, labels) = (vec![middle; many * 2], vec![1; many]);
    let samples = args.bench.measure(|| ask(&points, &labels, &mut network).map(drop))?;
    put(&mut report, common, &format!("decode, {many} clicks"), samples);
    let decoded = ask(&[middle; 2], &[1], &mut network)?;
    let up = |network: &mut sam2_runner::Network| network.upscale(&decoded.masks, (width, height), 0.0, 1.0);
    put(&mut report, common, "three masks enlarged", args.bench.measure(|| up(&mut network).map(drop))?);

    if args.video {
        let low = &decoded.masks[..geometry.low_elems()];
        let kept = MemoryRequest { low, given: None, binarize: false, score: 1.0 };
        put(
            &mut report,
            common,
            "memory of a frame",
            args.bench.measure(|| network.memorize(&features, &kept).map(drop))?,
        );
        let memory = network.memorize(&features, &kept)?;
        let recall = Recall {
            memory: memory.repeat(7),
            times: (0..7).collect(),
            pointers: vec![0.1; 16 * geometry.channels],
            offsets: (0..16).map(|n| n as f32 / 15.0).collect(),
        };
        put(
            &mut report,
            common,
            "7 memories, 16 pointers",
            args.bench.measure(|| network.recall(&features, &recall).map(drop))?,
        );
    }

    let mut segmenter = Segmenter::new(network).with_capacity(1);
    let request = Request { clicks: vec![Click::on(width as f32 / 2.0, height as f32 / 2.0)], ..Request::default() };
    let mut key = 0;
    let whole = args.bench.measure(|| {
        key += 1;
        segmenter.segment(&key.to_string(), &picture, &request).map(drop)
    })?;
    put(&mut report, common, "picture to masks", whole);
    if args.bench.json {
        println!("{}", report.to_json())
    } else {
        print!("{report}")
    }
    Ok(())
}
