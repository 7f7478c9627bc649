//! The crate that was compiled last against transformers: the twin with made-up weights (as `./x test` compiles it), or the trained
//! tiny.en. Another model has no expected transcripts: the test says so.

use jvc_runner::jvc_runtime::{CacheDir, Gpu, Select, WeightSource};
use serde_json::Value;
use std::path::{Path, PathBuf};
use whisper::engine::{Choice, Engine};
use whisper::facts::Facts;
use whisper::tokenizer::Tokenizer;
use whisper::window::Recording;
use whisper::{Options, audio, transcribe};
use whisper_runner::DeviceEngine;

/// Difference of log-probabilities that is forgiven: the crate may be one in halves, which round logits of about ten by 5e-3.
const LOGPROB: f32 = 1e-2;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn load() -> (DeviceEngine, Tokenizer, Gpu) {
    let model = folder("generated/whisper_model");
    let facts = Facts::read(&model.join("model.json")).expect("model.json lies beside the weights");
    let tokenizer = Tokenizer::read(&model.join("tokenizer.json")).expect("tokenizer.json lies beside the weights");
    let gpu = Gpu::open(&Select::Auto).expect("a Vulkan device");
    let weights = model.join("weights.jvcw");
    let engine =
        DeviceEngine::load(&gpu, WeightSource::Path(&weights), &CacheDir::None, facts).expect("a loaded model");
    (engine, tokenizer, gpu)
}

fn clip(name: &str) -> Vec<f32> {
    audio::read(&folder("clips").join(format!("{name}.flac"))).expect("a clip")
}

/// What transformers wrote, and how many tokens a window may have.
fn expected(facts: &Facts) -> Option<(Value, usize)> {
    let read = |path: PathBuf| std::fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok());
    if let Some(twin) = read(folder("generated/whisper_model/expected.json")) {
        println!("the twin with made-up weights");
        return Some((twin, 60));
    }
    let is_tiny_en = facts.d_model == 384 && facts.vocabulary == 51864 && !facts.half;
    println!(
        "{}",
        if is_tiny_en { "the trained tiny.en" } else { "no expected transcripts of this model: nothing compared" }
    );
    is_tiny_en.then(|| read(folder("clips/expected.json"))).flatten().map(|expected| (expected, 448))
}

/// Start, end and tokens of segments. Transformers leave the first time of an unfinished segment behind the last whole one.
fn segments(way: &Value, times_from: u64) -> Vec<(f64, f64, Vec<u64>)> {
    let list = way["segments"].as_array().expect("a list").iter();
    let segments = list.map(|s| {
        let mut tokens: Vec<u64> = s["tokens"].as_array().expect("a list").iter().filter_map(Value::as_u64).collect();
        if let [.., a, b] = tokens[..]
            && a >= times_from
            && b >= times_from
        {
            tokens.pop();
        }
        (s["start"].as_f64().expect("a number"), s["end"].as_f64().expect("a number"), tokens)
    });
    segments.collect()
}

#[test]
fn transcripts_are_those_of_transformers_token_by_token() {
    let (mut engine, tokenizer, _gpu) = load();
    let Some((expected, max_tokens)) = expected(engine.facts()) else { return };
    let times_from = u64::from(engine.facts().tokens.timestamp_begin);
    let text = |tokens: &[u64]| tokenizer.text(&tokens.iter().map(|token| *token as u32).collect::<Vec<_>>());
    for (name, ways) in expected.as_object().expect("clips by name") {
        let samples = clip(name);
        for (way, want) in ways.as_object().expect("ways by name") {
            let (timestamps, condition_on_previous) = (way != "plain", way == "chained");
            let options = Options { timestamps, condition_on_previous, max_tokens, ..Options::greedy() };
            let got = transcribe(&mut engine, &tokenizer, &samples, &options, &mut |_, _| {}).expect("a transcript");
            // Transformers go on to 30 s after a shorter recording, and keep segments without text.
            let seconds = Recording::new(&samples).frames() as f64 / 100.0 - 0.01;
            let want = segments(want, times_from);
            let said = want.iter().filter(|(start, _, tokens)| *start < seconds && !text(tokens).trim().is_empty());
            let said: Vec<_> = said.collect();
            let got: Vec<_> = got.segments.iter().filter(|s| s.start < seconds).collect();
            println!(
                "{name}, {way}: {} segments, {} tokens",
                said.len(),
                said.iter().map(|s| s.2.len()).sum::<usize>()
            );
            let list: Vec<_> = got.iter().map(|s| (s.start, s.end, &s.tokens)).collect();
            assert_eq!(got.len(), said.len(), "{name}, {way}: {list:?} instead of {said:?}");
            for (got, (start, end, tokens)) in got.iter().zip(said) {
                let of = format!("{name}, {way}, at {start}");
                assert_eq!(got.tokens.iter().map(|t| u64::from(*t)).collect::<Vec<_>>(), *tokens, "{of}");
                assert!((got.start - start).abs() < 0.011, "{of}: starts at {}", got.start);
                // Transformers take 30 s for the length of a shorter recording.
                let has_end = tokens.len() > 1 && tokens[tokens.len() - 1] >= times_from;
                assert!(!has_end || (got.end - end).abs() < 0.011, "{of}: ends at {}, not {end}", got.end);
            }
        }
    }
}

/// Listens to a clip.
fn listen(engine: &mut DeviceEngine, name: &str) {
    let samples = clip(name);
    let top = engine.spectrogram(&Recording::new(&samples).window(0), 3000).expect("a spectrogram");
    engine.listen(top, 3000).expect("keys and values");
}

#[test]
fn many_tokens_at_once_leave_what_single_steps_leave() {
    let (mut engine, ..) = load();
    listen(&mut engine, "espeak_short");
    let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 200).collect();
    let last = tokens.len();
    engine.prefill(&tokens).expect("a prefill");
    let at_once = engine.step(7, last, &Choice::ANY).expect("a step");
    for (at, token) in tokens.iter().enumerate() {
        engine.step(*token, at, &Choice::ANY).expect("a step");
    }
    let one_by_one = engine.step(7, last, &Choice::ANY).expect("a step");
    assert_eq!(at_once.token, one_by_one.token);
    assert!((at_once.logprob - one_by_one.logprob).abs() < LOGPROB, "{at_once:?} {one_by_one:?}");
    engine.prefill(&tokens[..5]).expect("another length");
    engine.step(tokens[5], 5, &Choice::ANY).expect("a step");
    let fewer = engine.step(tokens[6], 6, &Choice::ANY).expect("a step");
    engine.prefill(&tokens[..6]).expect("another length");
    let again = engine.step(tokens[6], 6, &Choice::ANY).expect("a step");
    assert!(fewer.token == again.token && (fewer.logprob - again.logprob).abs() < LOGPROB, "{fewer:?} {again:?}");
}

#[test]
fn forbidden_ids_are_not_chosen_and_draws_are_repeatable_and_differ() {
    let (mut engine, ..) = load();
    listen(&mut engine, "espeak_short");
    let (start, end) = (engine.facts().tokens.start, engine.facts().vocabulary as u32);
    let best = engine.step(start, 0, &Choice::ANY).expect("a step");
    let forbidden = [(best.token, best.token + 1), (0, 0), (0, 0)];
    let second = engine.step(start, 0, &Choice { forbidden, ..Choice::ANY }).expect("a step");
    assert_ne!(best.token, second.token);
    let few = Choice { forbidden: [(0, 100), (103, end), (0, 0)], temperature: 1.0, seed: 3, ..Choice::ANY };
    let mut draw = |draw| engine.step(start, 0, &Choice { draw, ..few }).expect("a step");
    let drawn: Vec<u32> = (0..20).map(|i| draw(i).token).collect();
    assert!(drawn.iter().all(|token| (100..103).contains(token)), "{drawn:?}");
    assert!((0..20).all(|i| draw(i).token == drawn[i as usize]));
    let sum: f32 = (100..103)
        .map(|id| {
            let only = [(0, id), (id + 1, end), (0, 0)];
            engine.step(start, 0, &Choice { forbidden: only, ..Choice::ANY }).expect("a step").logprob
        })
        .sum();
    assert!(sum.abs() < 1e-3, "the only allowed id has probability 1: {sum}");
}

#[test]
fn words_start_where_transformers_path_enters_their_tokens() {
    let (mut engine, tokenizer, _gpu) = load();
    let expected = expected(engine.facts());
    let Some(times) = expected.as_ref().and_then(|(clips, _)| clips["librivox"]["timed"]["token_times"].as_array())
    else {
        println!("the twin has no words: nothing compared");
        return;
    };
    let times: Vec<f64> = times.iter().filter_map(Value::as_f64).collect();
    let options = Options { words: true, ..Options::greedy() };
    let transcript =
        transcribe(&mut engine, &tokenizer, &clip("librivox"), &options, &mut |_, _| {}).expect("a transcript");
    let end_of_text = engine.facts().tokens.end;
    let text: Vec<u32> =
        transcript.segments.iter().flat_map(|s| s.tokens.clone()).filter(|t| *t < end_of_text).collect();
    assert_eq!(times.len(), text.len() + 1, "{}", transcript.text);
    let mut last = 0;
    for word in transcript.segments.iter().flat_map(|s| &s.words) {
        let first = last;
        while tokenizer.text(&text[first..last]) != word.word {
            last += 1;
        }
        // Positions are 20 ms long, and rounding may choose the next one.
        let near = |time: f64, token: usize| (time - times[token]).abs() < 0.021;
        assert!(near(word.start, first) && near(word.end, last), "{word:?} of tokens {first}..{last}: {times:?}");
    }
    assert_eq!((last, transcript.segments[0].words.len()), (text.len(), 22));
}

#[test]
fn words_follow_each_other_within_their_recording() {
    let (mut engine, tokenizer, gpu) = load();
    let samples = clip("espeak_short");
    let options = Options { words: true, language: Some("en".to_owned()), max_tokens: 60, ..Options::greedy() };
    let transcript = transcribe(&mut engine, &tokenizer, &samples, &options, &mut |_, _| {}).expect("a transcript");
    let words: Vec<_> = transcript.segments.iter().flat_map(|s| &s.words).collect();
    let text: String = words.iter().map(|w| w.word.as_str()).collect();
    assert_eq!(text.trim(), transcript.text.trim());
    assert!(words.windows(2).all(|w| w[0].start <= w[0].end && w[0].end <= w[1].start + 1e-9), "{words:?}");

    // A second engine shares the weights and gives the same.
    let facts = engine.facts().clone();
    let mut other = DeviceEngine::new(&gpu, engine.model().clone(), facts).expect("a second engine");
    let again = transcribe(&mut other, &tokenizer, &samples, &options, &mut |_, _| {}).expect("a transcript");
    assert_eq!(again, transcript);
}
