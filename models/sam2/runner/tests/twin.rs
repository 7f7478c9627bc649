//! The small twin of SAM 2.1 on a device, compared with what upstream's own classes make of the same requests; see ../references.py.
//!
//! The generated crate has to be the twin's, and `SAM2_TWIN` the unpacked folder of its references: `./x test` sees to both.

use jvc_runner::jvc_runtime::{CacheDir, Gpu, Select};
use safetensors::SafeTensors;
use sam2::automatic::Options;
use sam2::mask::overlay;
use sam2::segment::Output;
use sam2::video::{Direction, FrameMasks, Prompt};
use sam2::{Click, Engine, Mask, Picture, Request, Segmenter, VideoSession};
use sam2_runner::{GENERATED, Network};
use std::path::{Path, PathBuf};

/// The references, or nothing where the tests do not run for the twin.
fn twin() -> Option<PathBuf> {
    std::env::var_os("SAM2_TWIN").map(PathBuf::from)
}

fn network() -> Network {
    let gpu = Gpu::open(&Select::Auto).expect("tests need a Vulkan driver; Mesa's lavapipe needs no GPU");
    let weights = GENERATED.find_weights(None).expect("jvc compile has written them");
    Network::load(&gpu, weights.source(), &CacheDir::Default).expect("the crate is for this device")
}

fn picture(folder: &Path, name: &str) -> Picture {
    Picture::read(&folder.join(name)).expect("the archive holds it")
}

/// Tensors of `expected.safetensors`.
struct Expected(Vec<u8>);

impl Expected {
    fn read(folder: &Path) -> Self {
        Self::of(folder, "expected.safetensors")
    }

    fn of(folder: &Path, file: &str) -> Self {
        Self(std::fs::read(folder.join(file)).expect("the archive holds it"))
    }

    fn bytes(&self, name: &str) -> (Vec<usize>, Vec<u8>) {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        (tensor.shape().to_vec(), tensor.data().to_vec())
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.bytes(name).1.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    fn ints(&self, name: &str) -> Vec<i32> {
        self.bytes(name).1.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect()
    }

    /// Masks `[n, height, width]`.
    fn masks(&self, name: &str) -> Vec<Mask> {
        let (shape, bytes) = self.bytes(name);
        bytes.chunks(shape[1] * shape[2]).map(|m| Mask::new(shape[2], shape[1], m.to_vec())).collect()
    }
}

fn assert_close(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance, "{what}: off by {worst}");
}

/// The requests of references.py::SEGMENT on picture.png.
fn requests(expected: &Expected) -> Vec<Request> {
    let on = Click::on;
    let off = Click::off;
    let one = Output::One;
    vec![
        Request { clicks: vec![on(75.0, 45.0)], ..Request::default() },
        Request { clicks: vec![on(40.5, 41.25), off(100.0, 60.0)], ..Request::default() },
        Request { boxes: vec![[88.0, 38.0, 122.0, 74.0]], ..Request::default() },
        Request { clicks: vec![on(48.0, 40.0)], boxes: vec![[30.0, 20.0, 70.0, 66.0]], ..Request::default() },
        Request {
            clicks: vec![on(75.0, 45.0), off(20.0, 10.0)],
            mask: Some(expected.floats("segment.mask_prompt")),
            output: one,
            ..Request::default()
        },
    ]
}

#[test]
fn clicks_boxes_and_mask_prompts_give_upstreams_masks_and_scores() {
    let Some(folder) = twin() else { return };
    let (expected, picture) = (Expected::read(&folder), picture(&folder, "picture.png"));
    let mut segmenter = Segmenter::new(network());
    for (k, request) in requests(&expected).iter().enumerate() {
        let found = segmenter.segment("picture", &picture, request).expect("a good request");
        let [found] = found.as_slice() else { panic!("one object") };
        let name = |what: &str| format!("segment.{k}.{what}");
        let ious: Vec<f32> = found.candidates.iter().map(|c| c.iou).collect();
        assert_close(&name("iou"), &ious, &expected.floats(&name("iou")), 1e-4);
        assert_close(&name("score"), &[found.score], &expected.floats(&name("score")), 1e-4);
        let low: Vec<f32> = found.candidates.iter().flat_map(|c| c.low.clone()).collect();
        assert_close(&name("low"), &low, &expected.floats(&name("low")), 1e-4);
        for (got, want) in found.candidates.iter().zip(expected.masks(&name("masks"))) {
            assert!(got.mask.iou(&want) >= 0.999, "{}: {}", name("masks"), got.mask.iou(&want));
        }
    }
    assert!(segmenter.keeps("picture"));
}

#[test]
fn several_boxes_are_several_objects_and_equal_each_alone() {
    let Some(folder) = twin() else { return };
    let picture = picture(&folder, "picture.png");
    let mut segmenter = Segmenter::new(network());
    let boxes = [[88.0, 38.0, 122.0, 74.0], [30.0, 20.0, 70.0, 66.0]];
    let ask = |boxes: &[[f32; 4]]| Request { boxes: boxes.to_vec(), ..Request::default() };
    let both = segmenter.segment("p", &picture, &ask(&boxes)).expect("a good request");
    assert_eq!(both.len(), 2);
    for (one, found) in boxes.iter().zip(&both) {
        let alone = segmenter.segment("p", &picture, &ask(&[*one])).expect("a good request");
        assert!(alone[0].best().mask.iou(&found.best().mask) >= 0.999);
    }
}

#[test]
fn requests_at_the_same_time_get_what_they_get_alone() {
    let Some(folder) = twin() else { return };
    let picture = picture(&folder, "picture.png");
    let ask = |network: Network, x: f32| {
        let click = Request { clicks: vec![Click::on(x, 45.0)], ..Request::default() };
        Segmenter::new(network).segment("p", &picture, &click).expect("a good request")
    };
    let (first, places) = (network(), [20.0, 75.0, 130.0]);
    let alone = places.map(|x| ask(first.another().expect("memory"), x));
    let networks = places.map(|_| first.another().expect("memory"));
    let together = std::thread::scope(|threads| {
        let running = networks.into_iter().zip(places).map(|(network, x)| threads.spawn(move || ask(network, x)));
        let running: Vec<_> = running.collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    assert_eq!(together, alone);
    assert_ne!(alone[0], alone[2], "clicks in different places");
}

#[test]
fn features_under_a_key_are_used_again_and_requests_that_cannot_be_answered_say_why() {
    let Some(folder) = twin() else { return };
    let picture = picture(&folder, "picture.png");
    let mut segmenter = Segmenter::new(network()).with_capacity(1);
    let click = Request { clicks: vec![Click::on(20.0, 20.0)], ..Request::default() };
    let first = segmenter.segment("a", &picture, &click).expect("a good request");
    let black = Picture::new(150, 90, vec![0; 150 * 90 * 3]).expect("three bytes a pixel");
    assert_eq!(
        segmenter.segment("a", &black, &click).expect("kept"),
        first,
        "the key says that it is the same picture"
    );
    assert_ne!(segmenter.segment("b", &black, &click).expect("new"), first);
    assert!(!segmenter.keeps("a"), "one is kept");
    let ask = |request: Request| -> String {
        let mut segmenter = Segmenter::new(network());
        segmenter.segment("a", &picture, &request).expect_err("refused").to_string()
    };
    assert_eq!(ask(Request::default()), "a request needs a click, a box or a mask");
    assert!(ask(Request { clicks: vec![Click::on(1.0, 1.0); 17], ..Request::default() }).contains("17 points"));
    assert!(ask(Request { mask: Some(vec![0.0; 9]), ..Request::default() }).contains("not 9"));
}

#[test]
fn automatic_masks_are_those_of_metas_generator() {
    let Some(folder) = twin() else { return };
    let expected = Expected::read(&folder);
    let mut segmenter = Segmenter::new(network());
    let base = Options {
        points_per_side: 6,
        points_per_batch: 16,
        iou_at_least: 0.5,
        stability_at_least: 0.55,
        ..Options::default()
    };
    let whole = Options { same_box: 1.0, ..base.clone() };
    let layered = Options { crop_layers: 1, fewer_points: 2, same_box: 0.995, same_box_between_crops: 0.9, ..base };
    for (name, file, options) in [("automatic", "square.png", whole), ("crops", "picture.png", layered)] {
        let picture = picture(&folder, file);
        let mut told = (0, 0);
        let found = segmenter.automatic_masks(&picture, &options, |done, of| told = (done, of)).expect("masks");
        assert!(told.0 == told.1 && told.1 >= 36, "{told:?}");
        let key = |what: &str| format!("{name}.{what}");
        let want = expected.masks(&key("masks"));
        assert_eq!(found.len(), want.len(), "{name}");
        let column = |f: fn(&sam2::automatic::Automatic) -> f32| found.iter().map(f).collect::<Vec<_>>();
        assert_close(&key("iou"), &column(|m| m.iou), &expected.floats(&key("iou")), 1e-4);
        assert_close(&key("stability"), &column(|m| m.stability), &expected.floats(&key("stability")), 2e-3);
        let points: Vec<f32> = found.iter().flat_map(|m| m.point).collect();
        assert_close(&key("point"), &points, &expected.floats(&key("point")), 1e-3);
        for (m, want) in found.iter().zip(&want) {
            assert!(m.mask.iou(want) >= 0.999, "{name}: {}", m.mask.iou(want));
        }
        assert_ne!(overlay(&picture, found.iter().map(|m| &m.mask)), picture);
    }
}

#[test]
fn boxes_are_suppressed_and_cropped_as_by_torchvision_and_meta() {
    let Some(folder) = twin() else { return };
    let expected = Expected::read(&folder);
    let boxes: Vec<[f32; 4]> = expected.floats("parts.boxes").as_chunks().0.to_vec();
    let scores = expected.floats("parts.scores");
    for (name, limit) in [("loose", 0.7), ("tight", 0.2)] {
        let kept: Vec<i32> = sam2::boxes::suppress(&boxes, &scores, limit).iter().map(|i| *i as i32).collect();
        assert_eq!(kept, expected.ints(&format!("parts.nms_{name}")), "{name}");
    }
    for (width, height) in [(150, 90), (300, 400), (1920, 1080)] {
        let crops = sam2::boxes::crops(width, height, 2, 512.0 / 1500.0);
        let flat: Vec<i32> = crops.iter().flat_map(|(c, layer)| c.iter().chain([layer]).map(|v| *v as i32)).collect();
        assert_eq!(flat, expected.ints(&format!("parts.crops.{width}x{height}")), "{width} × {height}");
    }
    let near: Vec<u8> =
        boxes.iter().map(|b| sam2::boxes::near_crop_edge(b, [100, 50, 350, 260], (420, 260)).into()).collect();
    assert_eq!(near, expected.bytes("parts.near_edge").1);
}

fn frames(folder: &Path) -> Vec<Picture> {
    (0..8).map(|t| picture(folder, &format!("frames/{t:02}.png"))).collect()
}

/// Masks and scores of a frame against upstream's of the same name.
fn check_frame(expected: &Expected, pass: &str, got: &FrameMasks) {
    let name = format!("{pass}.{}", got.frame);
    let want = expected.masks(&name);
    assert_eq!(got.objects.len(), want.len(), "{name}");
    let scores: Vec<f32> = got.objects.iter().map(|(_, _, score)| *score).collect();
    assert_close(&name, &scores, &expected.floats(&format!("{name}.score")), 2e-2);
    for ((_, mask, _), want) in got.objects.iter().zip(&want) {
        assert!(mask.iou(want) >= 0.99, "{name}: {}", mask.iou(want));
    }
}

fn propagated(
    session: &mut VideoSession<Network, Vec<Picture>>,
    from: usize,
    direction: Direction,
    most: Option<usize>,
) -> Vec<FrameMasks> {
    let mut all = vec![];
    let keep = |masks| {
        all.push(masks);
        true
    };
    session.propagate(from, direction, most, keep).expect("a session with prompts");
    all
}

#[test]
fn two_objects_are_followed_through_a_video_as_by_pytorch() {
    let Some(folder) = twin() else { return };
    let expected = Expected::read(&folder);
    let mut session = VideoSession::new(network(), frames(&folder));
    let points = |clicks: Vec<Click>, rect| Prompt::Points { clicks, rect };
    let clicks = points(vec![Click::on(35.0, 40.0), Click::off(80.0, 20.0)], None);
    check_frame(&expected, "video.click", &session.prompt(0, 1, &clicks).expect("a good prompt"));
    let boxed = points(vec![], Some([70.0, 40.0, 110.0, 80.0]));
    check_frame(&expected, "video.box", &session.prompt(2, 2, &boxed).expect("a good prompt"));
    let forwards = propagated(&mut session, 0, Direction::Forwards, None);
    assert_eq!(forwards.len(), 8);
    forwards.iter().for_each(|masks| check_frame(&expected, "video.forward", masks));
    let again = points(vec![Click::on(50.0, 45.0)], None);
    check_frame(&expected, "video.again", &session.prompt(5, 1, &again).expect("a good prompt"));
    let backwards = propagated(&mut session, 5, Direction::Backwards, None);
    assert_eq!(backwards.iter().map(|m| m.frame).collect::<Vec<_>>(), [5, 4, 3, 2, 1, 0]);
    backwards.iter().for_each(|masks| check_frame(&expected, "video.backward", masks));
    session.forget(2);
    assert_eq!(session.objects(), [1]);
}

#[test]
fn two_objects_are_followed_through_twenty_frames_as_by_pytorch() {
    let Some(folder) = twin() else { return };
    let expected = Expected::of(&folder, "long.safetensors");
    let frames: Vec<_> = (0..20).map(|t| picture(&folder, &format!("long/{t:02}.png"))).collect();
    let mut session = VideoSession::new(network(), frames);
    let click = Prompt::Points { clicks: vec![Click::on(48.0, 45.0)], rect: None };
    let boxed = Prompt::Points { clicks: vec![], rect: Some([80.0, 40.0, 116.0, 80.0]) };
    session.prompt(0, 1, &click).expect("a good prompt");
    session.prompt(0, 2, &boxed).expect("a good prompt");
    let found = propagated(&mut session, 0, Direction::Forwards, None);
    assert_eq!(found.len(), 20);
    let (mut least, mut off) = (1.0f64, 0.0f32);
    for masks in &found {
        check_frame(&expected, "long", masks);
        let name = format!("long.{}", masks.frame);
        for ((_, mask, _), want) in masks.objects.iter().zip(&expected.masks(&name)) {
            least = least.min(mask.iou(want));
        }
        // The scores of the two objects are 0.002 apart, so that one taken for the other is seen.
        let scores = expected.floats(&format!("{name}.score"));
        off = masks.objects.iter().zip(&scores).map(|((.., got), want)| (got - want).abs()).fold(off, f32::max);
    }
    println!("20 frames, two objects: least IoU {least:.5}, scores off by {off:.1e}");
    assert!(off < 1e-3, "scores off by {off}");
}

#[test]
fn a_mask_that_is_given_is_kept_and_followed_as_by_pytorch() {
    let Some(folder) = twin() else { return };
    let expected = Expected::read(&folder);
    let mut session = VideoSession::new(network(), frames(&folder));
    let given = expected.masks("video.given").remove(0);
    check_frame(&expected, "video.mask", &session.prompt(0, 1, &Prompt::Mask(given)).expect("a good prompt"));
    let followed = propagated(&mut session, 0, Direction::Forwards, Some(3));
    assert_eq!(followed.len(), 4);
    followed.iter().for_each(|masks| check_frame(&expected, "video.from_mask", masks));
    let error = session.prompt(8, 1, &Prompt::Points { clicks: vec![Click::on(1.0, 1.0)], rect: None });
    assert_eq!(error.map(|_| ()).expect_err("eight frames").to_string(), "frame 8 of a video of 8");
}

#[test]
fn the_network_says_its_sizes() {
    let Some(_) = twin() else { return };
    let geometry = network().geometry();
    assert_eq!((geometry.side, geometry.low(), geometry.channels), (128, 32, 128));
    assert_eq!((geometry.max_side, geometry.max_prompts, geometry.max_points, geometry.max_masks), (1024, 64, 16, 4));
}
