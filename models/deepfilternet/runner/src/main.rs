//! `deepfilternet IN.wav -o OUT.wav`: reads, resamples, denoises channel by channel, writes, and tells how it went.

mod args;

use args::{Args, Command};
use clap::Parser;
use deepfilternet::audio::{Audio, Format};
use deepfilternet::stream::{Controls, HOP, RATE, Settings, StepEngine, Stream, denoise_reporting, steps_of};
use deepfilternet::{noise, si_sdr::si_sdr, spectrogram};
use deepfilternet_runner::engine::{self, Network};
use jvc_resample::resample;
use jvc_runner::Common;
use jvc_runner::bench::{BenchArgs, Report, Samples};
use jvc_runner::cold_start::ColdStart;
use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let mut clock = ColdStart::begin();
    let args = Args::parse();
    let done = match &args.command {
        Some(Command::Stream { strength }) => stream(&args.common, (*strength).into()),
        Some(Command::Bench { bench }) => measure(&args.common, bench),
        None => run(&args, &mut clock),
    };
    done.unwrap_or_else(|error| {
        eprintln!("deepfilternet: {error}");
        ExitCode::FAILURE
    })
}

/// A recording at the network's rate, and what it is compared with.
struct Work {
    noisy: Vec<Vec<f32>>,
    clean: Option<Vec<Vec<f32>>>,
}

fn run(args: &Args, clock: &mut ColdStart) -> Result<ExitCode, Box<dyn Error>> {
    let (Some(path), Some(output)) = (&args.input, &args.output) else { return Err("no recording".into()) };
    let mut input = Audio::read(path)?;
    say("audio", &describe(&input));
    if args.float {
        input.format = Format::Float;
    }
    let work = prepare(args, &input)?;
    if let Some(path) = &args.noisy {
        write(&work.noisy, &input, path, "noisy")?;
    }
    clock.mark("recording");

    let gpu = args.common.open()?;
    clock.mark("device");
    say("device", &gpu.info().name);
    say("needs", &engine::needs(work.noisy.len()).to_string());
    let started = Instant::now();
    let weights = engine::GENERATED.find_weights(args.common.weights.as_deref())?;
    let network = Network::load(&gpu, &weights, &args.common.cache)?;
    clock.mark("load");
    say("load", &format!("{:.2} s", started.elapsed().as_secs_f64()));

    let enhanced = denoise_all(&network, &work.noisy, args, clock)?;
    write(&enhanced, &input, output, "enhanced")?;
    if let Some(path) = &args.spectrogram {
        spectrogram::draw(&mono(&work.noisy), &mono(&enhanced), path)?;
        say("wrote", &path.display().to_string());
    }
    if args.common.cold_start {
        say("cold", &clock.to_string());
    }
    Ok(judge(args, &work, &enhanced))
}

fn describe(audio: &Audio) -> String {
    let n = audio.channels.len();
    format!("{:.2} s, {n} channel{}, {} Hz", audio.seconds(), if n == 1 { "" } else { "s" }, audio.rate)
}

/// Brings the recording to the network's rate; mixes noise in, or reads the reference.
fn prepare(args: &Args, input: &Audio) -> Result<Work, Box<dyn Error>> {
    let channels = at_network_rate(input)?;
    if let Some(snr_db) = args.add_noise {
        // Each channel has noise of its own, as two microphones would.
        let mixes = channels.iter().zip(args.seed..).map(|(channel, seed)| noise::mix(channel, snr_db, seed));
        let (noisy, clean) = mixes.map(|m| (m.noisy, m.clean)).unzip();
        return Ok(Work { noisy, clean: Some(clean) });
    }
    let clean = args.reference.as_deref().map(Audio::read).transpose()?.map(|a| at_network_rate(&a)).transpose()?;
    if let Some(clean) = &clean {
        let shape = |c: &[Vec<f32>]| (c.len(), c.first().map_or(0, Vec::len));
        if shape(clean) != shape(&channels) {
            return Err("the reference has another length or number of channels than the recording".into());
        }
    }
    Ok(Work { noisy: channels, clean })
}

fn at_network_rate(audio: &Audio) -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
    Ok(audio.channels.iter().map(|c| resample(c, audio.rate, RATE)).collect::<Result<_, _>>()?)
}

/// All channels at the same time.
fn denoise_all(
    network: &Network,
    noisy: &[Vec<f32>],
    args: &Args,
    clock: &mut ColdStart,
) -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
    let steps: usize = noisy.iter().map(|channel| steps_of(channel.len())).sum();
    let progress = args.common.progress(steps as u64, "hops");
    let denoise_one = |channel: &Vec<f32>| {
        let (mut hops, mut latest) = (Vec::with_capacity(steps), Instant::now());
        let enhanced = denoise_reporting(&mut network.channel()?, channel, args.strength.into(), |_| {
            hops.push(latest.elapsed());
            latest = Instant::now();
            progress.advance(1);
        })?;
        Ok::<_, jvc_runner::jvc_runtime::Error>((enhanced, hops))
    };
    let started = Instant::now();
    let done: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = noisy.iter().map(|channel| scope.spawn(|| denoise_one(channel))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a channel returns its errors")).collect()
    });
    let seconds = started.elapsed().as_secs_f64();
    drop(progress);
    let (enhanced, hops): (_, Vec<_>) = done.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    clock.mark("result");
    say("run", &format!("{seconds:.2} s; {}", speed(hops.concat())));
    Ok(enhanced)
}

/// What hops took, beside the 10 ms that each of them lasts.
fn speed(hops: Vec<Duration>) -> String {
    let (n, first) = (hops.len(), hops.first().map_or(0.0, |hop| hop.as_secs_f64() * 1e3));
    let hop = Samples::new(hops);
    let [median, p90, p99] = [0.5, 0.9, 0.99].map(|share| hop.quantile_ms(share));
    let real_time = HOP as f64 / f64::from(RATE) * 1e3 / median;
    format!(
        "{n} hops of 10 ms, {median:.2} ms each ({real_time:.1} × real time; p90 {p90:.2}, p99 {p99:.2}, the first {first:.1})"
    )
}

/// The `stream` subcommand.
fn stream(common: &Common, settings: Settings) -> Result<ExitCode, Box<dyn Error>> {
    let mut engine = load(common)?.channel()?;
    let mut stream = Stream::begin(&mut engine, settings);
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let (mut bytes, mut hops) = ([0; 2 * HOP], Vec::new());
    loop {
        match input.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error.into()),
        }
        let started = Instant::now();
        let mut hop = [0.0; HOP];
        for (sample, bytes) in hop.iter_mut().zip(bytes.as_chunks().0) {
            *sample = f32::from(i16::from_le_bytes(*bytes)) / 32768.0;
        }
        let enhanced = stream.push(&hop)?.unwrap_or([0.0; HOP]);
        let samples = enhanced.iter().map(|sample| (sample * 32768.0).round().clamp(-32768.0, 32767.0) as i16);
        let enhanced: Vec<u8> = samples.flat_map(i16::to_le_bytes).collect();
        hops.push(started.elapsed());
        match output.write_all(&enhanced).and_then(|()| output.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            Err(error) => return Err(error.into()),
        }
    }
    eprintln!("{}", speed(hops));
    Ok(ExitCode::SUCCESS)
}

fn load(common: &Common) -> Result<Network, Box<dyn Error>> {
    let weights = engine::GENERATED.find_weights(common.weights.as_deref())?;
    Ok(Network::load(&common.open()?, &weights, &common.cache)?)
}

/// The `bench` subcommand.
fn measure(common: &Common, args: &BenchArgs) -> Result<ExitCode, Box<dyn Error>> {
    let gpu = common.open()?;
    let started = Instant::now();
    let weights = engine::GENERATED.find_weights(common.weights.as_deref())?;
    let mut engine = Network::load(&gpu, &weights, &common.cache)?.channel()?;
    let mut report = Report::default();
    report.fact("device", &gpu.info().name);
    report.fact("memory", engine::needs(1));
    report.fact("load_ms", format!("{:.0}", started.elapsed().as_secs_f64() * 1e3));
    let hop = std::array::from_fn(|i| (i as f32 * 0.1).sin() * 0.1);
    let (controls, mut on_device) = (Controls { keep: 1.0, limit: 0.0, beta: 0.0 }, Vec::new());
    engine.restart();
    let hops = args.measure(|| {
        engine.step(&hop, &controls)?;
        on_device.extend(engine.device_ms().map(|ms| Duration::from_secs_f64(ms / 1e3)));
        Ok::<(), jvc_runner::jvc_runtime::Error>(())
    })?;
    if !on_device.is_empty() {
        report.row("device time", Samples::new(on_device.split_off(args.warm_up.min(on_device.len()))));
    }
    report.row("hop with copies", hops);
    if args.json {
        println!("{}", report.to_json())
    } else {
        print!("{report}")
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes channels of the network's rate as a recording like `like`, with exactly its number of samples.
fn write(channels: &[Vec<f32>], like: &Audio, path: &Path, what: &str) -> Result<(), Box<dyn Error>> {
    let mut out = Vec::with_capacity(channels.len());
    for channel in channels {
        let mut channel = resample(channel, RATE, like.rate)?;
        channel.resize(like.len(), 0.0);
        out.push(channel);
    }
    Audio { rate: like.rate, format: like.format, channels: out }.write(path)?;
    say("wrote", &format!("{} ({what})", path.display()));
    Ok(())
}

/// Prints SI-SDR before and after, the mean of the channels, where there is a reference.
fn judge(args: &Args, work: &Work, enhanced: &[Vec<f32>]) -> ExitCode {
    let Some(clean) = &work.clean else { return ExitCode::SUCCESS };
    let score =
        |signal: &[Vec<f32>]| signal.iter().zip(clean).map(|(s, c)| si_sdr(s, c)).sum::<f64>() / clean.len() as f64;
    let (before, after) = (score(&work.noisy), score(enhanced));
    let gain = after - before;
    say("SI-SDR", &format!("{before:.2} dB noisy, {after:.2} dB enhanced: {gain:+.2} dB"));
    match args.at_least {
        Some(least) if gain.is_nan() || gain < least => {
            eprintln!("deepfilternet: the gain is below {least} dB");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn mono(channels: &[Vec<f32>]) -> Vec<f32> {
    Audio { rate: RATE, format: Format::Float, channels: channels.to_vec() }.mono()
}

fn say(what: &str, text: &str) {
    println!("{what:<9} {text}");
}
