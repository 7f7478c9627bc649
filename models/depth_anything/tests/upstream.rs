//! Sizes and resampling against transformers' image processor, from the references that `export.py` wrote.

use depth_anything::resize::{bicubic_bytes, bicubic_floats};
use depth_anything::size::{Fit, Sizing};
use safetensors::SafeTensors;
use std::io::Read;

/// Shape and bytes of a tensor.
type Tensor = (Vec<usize>, Vec<u8>);

fn references() -> impl Fn(&str) -> Tensor {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&include_bytes!("../twin/depth_anything_v2.pictures.safetensors.gz")[..])
        .read_to_end(&mut bytes)
        .expect("the committed file is whole");
    move |name| {
        let tensors = SafeTensors::deserialize(&bytes).expect("the committed file is well-formed");
        let tensor = tensors.tensor(name).expect("a tensor of this name");
        (tensor.shape().to_vec(), tensor.data().to_vec())
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn pictures_are_resampled_as_upstream_does_to_the_bit() {
    let tensor = references();
    for k in 0..3 {
        let ((from, picture), (to, expected)) = (tensor(&format!("{k}.picture")), tensor(&format!("{k}.resized")));
        assert_eq!(
            bicubic_bytes(&picture, [from[0], from[1]], [to[0], to[1]]),
            expected,
            "picture {k}, {from:?} to {to:?}"
        );
    }
}

#[test]
fn depth_comes_back_to_the_picture_as_upstream_does() {
    let tensor = references();
    for k in 0..3 {
        let ((from, network), (to, depth)) = (tensor(&format!("{k}.network")), tensor(&format!("{k}.depth")));
        let (got, expected) = (bicubic_floats(&floats(&network), [from[0], from[1]], [to[0], to[1]]), floats(&depth));
        let worst = got.iter().zip(&expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max);
        let scale = expected.iter().fold(0.0f32, |scale, value| scale.max(value.abs()));
        assert!(got.len() == expected.len() && worst < 4e-6 * scale, "picture {k}: off by {worst} of {scale}");
    }
}

#[test]
fn sizes_are_those_of_upstreams_processor_and_the_short_side_rule_agrees_on_large_pictures() {
    let (_, bytes) = references()("sizes");
    let rows = bytes.as_chunks::<16>().0.iter().map(|row| {
        let number = |i: usize| i32::from_le_bytes([row[i], row[i + 1], row[i + 2], row[i + 3]]) as usize;
        ([number(0), number(4)], [number(8), number(12)])
    });
    for (picture, expected) in rows {
        let size = |fit| Sizing { side: 518, fit }.network_size(picture);
        assert_eq!(size(Fit::LeastChange), expected, "{picture:?}");
        if picture.iter().all(|side| *side >= 518) {
            assert_eq!(size(Fit::ShortSide), expected, "{picture:?}");
        }
    }
}
