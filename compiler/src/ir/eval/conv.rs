//! Convolution and its transpose, 1–3 spatial dimensions, grouped: one pass over the output lines per kernel tap.

use super::tensor::{Data, Tensor};
use crate::ir::op::Window;

/// Spatial geometry, filled up to three dimensions from the left.
struct Geometry {
    small: [usize; 3],
    large: [usize; 3],
    kernel: [usize; 3],
    stride: [i64; 3],
    padding: [i64; 3],
    dilation: [i64; 3],
}

fn three<T: Copy>(v: &[T], fill: T) -> [T; 3] {
    let mut out = [fill; 3];
    out[3 - v.len()..].copy_from_slice(v);
    out
}

impl Geometry {
    /// `large[i] = small[j]·stride − padding + tap·dilation`: a convolution reads large and writes small, its transpose the reverse.
    fn new(small: &[usize], large: &[usize], kernel: &[usize], window: &Window) -> Geometry {
        Geometry {
            small: three(small, 1),
            large: three(large, 1),
            kernel: three(kernel, 1),
            stride: three(&window.stride, 1),
            padding: three(&window.padding, 0),
            dilation: three(&window.dilation, 1),
        }
    }

    /// For one tap: calls `f(small, large)` with the linear offsets of every pair of positions that it connects.
    fn pairs(&self, tap: [usize; 3], mut f: impl FnMut(usize, usize)) {
        let large = |d: usize, j: usize| {
            let i = j as i64 * self.stride[d] - self.padding[d] + tap[d] as i64 * self.dilation[d];
            (i >= 0 && (i as usize) < self.large[d]).then_some(i as usize)
        };
        for z in 0..self.small[0] {
            let Some(lz) = large(0, z) else { continue };
            for y in 0..self.small[1] {
                let Some(ly) = large(1, y) else { continue };
                for x in 0..self.small[2] {
                    let Some(lx) = large(2, x) else { continue };
                    f((z * self.small[1] + y) * self.small[2] + x, (lz * self.large[1] + ly) * self.large[2] + lx);
                }
            }
        }
    }

    /// Every pair of every tap, once and for all channels: (tap, small, large).
    fn all_pairs(&self) -> Vec<Vec<(u32, u32)>> {
        let [kz, ky, kx] = self.kernel;
        let taps = (0..kz).flat_map(|z| (0..ky).flat_map(move |y| (0..kx).map(move |x| [z, y, x])));
        taps.map(|tap| {
            let mut list = vec![];
            self.pairs(tap, |s, l| list.push((s as u32, l as u32)));
            list
        })
        .collect()
    }
}

pub(super) fn conv(x: &Tensor, w: &Tensor, window: &Window, groups: usize, shape: &[usize]) -> Data {
    match (&x.data, &w.data) {
        (Data::Int(v), Data::Int(k)) => {
            let mul_add = |s: i64, a: i64, b: i64| s.wrapping_add(a.wrapping_mul(b));
            Data::Int(conv_of(&Operands { x, w, v, k, window, groups }, shape, mul_add))
        }
        _ => {
            let (v, k) = (x.floats(), w.floats());
            Data::Float(conv_of(&Operands { x, w, v, k, window, groups }, shape, |s: f64, a, b| s + a * b))
        }
    }
}

pub(super) fn conv_transpose(x: &Tensor, w: &Tensor, window: &Window, groups: usize, shape: &[usize]) -> Data {
    match (&x.data, &w.data) {
        (Data::Int(v), Data::Int(k)) => {
            let mul_add = |s: i64, a: i64, b: i64| s.wrapping_add(a.wrapping_mul(b));
            Data::Int(transpose_of(&Operands { x, w, v, k, window, groups }, shape, mul_add))
        }
        _ => {
            let (v, k) = (x.floats(), w.floats());
            Data::Float(transpose_of(&Operands { x, w, v, k, window, groups }, shape, |s: f64, a, b| s + a * b))
        }
    }
}

/// Input and weights with their elements.
struct Operands<'a, T> {
    x: &'a Tensor,
    w: &'a Tensor,
    v: &'a [T],
    k: &'a [T],
    window: &'a Window,
    groups: usize,
}

fn conv_of<T: Copy + Default>(o: &Operands<'_, T>, shape: &[usize], mul_add: impl Fn(T, T, T) -> T) -> Vec<T> {
    let g = Geometry::new(&shape[2..], &o.x.shape[2..], &o.w.shape[2..], o.window);
    let (n_out, c_group, taps) = (shape[1], o.w.shape[1], g.all_pairs());
    let (in_plane, out_plane) = (o.x.shape[2..].iter().product::<usize>(), shape[2..].iter().product::<usize>());
    let mut out = vec![T::default(); shape.iter().product()];
    for n in 0..shape[0] {
        for channel in 0..n_out {
            let dst = &mut out[(n * n_out + channel) * out_plane..][..out_plane];
            let first = channel / (n_out / o.groups) * c_group;
            for c in 0..c_group {
                let src = &o.v[(n * o.x.shape[1] + first + c) * in_plane..][..in_plane];
                for (tap, pairs) in taps.iter().enumerate() {
                    let weight = o.k[(channel * c_group + c) * taps.len() + tap];
                    for &(s, l) in pairs {
                        dst[s as usize] = mul_add(dst[s as usize], weight, src[l as usize]);
                    }
                }
            }
        }
    }
    out
}

fn transpose_of<T: Copy + Default>(o: &Operands<'_, T>, shape: &[usize], mul_add: impl Fn(T, T, T) -> T) -> Vec<T> {
    let g = Geometry::new(&o.x.shape[2..], &shape[2..], &o.w.shape[2..], o.window);
    let (n_in, o_group, taps) = (o.x.shape[1], o.w.shape[1], g.all_pairs());
    let (in_plane, out_plane) = (o.x.shape[2..].iter().product::<usize>(), shape[2..].iter().product::<usize>());
    let mut out = vec![T::default(); shape.iter().product()];
    for n in 0..shape[0] {
        for c in 0..n_in {
            let src = &o.v[(n * n_in + c) * in_plane..][..in_plane];
            let first = c / (n_in / o.groups) * o_group;
            for channel in 0..o_group {
                let dst = &mut out[(n * shape[1] + first + channel) * out_plane..][..out_plane];
                for (tap, pairs) in taps.iter().enumerate() {
                    let weight = o.k[(c * o_group + channel) * taps.len() + tap];
                    for &(s, l) in pairs {
                        dst[l as usize] = mul_add(dst[l as usize], weight, src[s as usize]);
                    }
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ty::DType;

    fn window(stride: i64, padding: i64, dilation: i64) -> Window {
        Window { stride: vec![stride], padding: vec![padding], dilation: vec![dilation] }
    }

    fn f32s(shape: &[usize], v: &[f64]) -> Tensor {
        Tensor::from_f64(DType::F32, shape, v.to_vec())
    }

    #[test]
    fn padding_and_stride_place_the_taps() {
        let y = conv(
            &f32s(&[1, 1, 5], &[1.0, 2.0, 3.0, 4.0, 5.0]),
            &f32s(&[1, 1, 3], &[1.0, 10.0, 100.0]),
            &window(2, 1, 1),
            1,
            &[1, 1, 3],
        );
        assert_eq!(y, Data::Float(vec![210.0, 432.0, 54.0]));
    }

    #[test]
    fn groups_see_only_their_channels() {
        let y =
            conv(&f32s(&[1, 2, 1], &[3.0, 5.0]), &f32s(&[2, 1, 1], &[10.0, 100.0]), &window(1, 0, 1), 2, &[1, 2, 1]);
        assert_eq!(y, Data::Float(vec![30.0, 500.0]));
    }

    #[test]
    fn integers_stay_integers() {
        let x = Tensor::from_i64(DType::I64, &[1, 1, 3], vec![1, 2, 3]);
        let w = Tensor::from_i64(DType::I64, &[1, 1, 2], vec![10, 1]);
        assert_eq!(conv(&x, &w, &window(1, 0, 1), 1, &[1, 1, 2]), Data::Int(vec![12, 23]));
        assert_eq!(conv_transpose(&x, &w, &window(1, 0, 1), 1, &[1, 1, 4]), Data::Int(vec![10, 21, 32, 3]));
    }

    #[test]
    fn transpose_is_the_adjoint() {
        // ⟨conv(x), y⟩ = ⟨x, convᵀ(y)⟩ for any x, y.
        let (x, w, y) = (
            f32s(&[1, 2, 7], &(0..14).map(f64::from).collect::<Vec<_>>()),
            f32s(&[4, 1, 3], &(0..12).map(|v| f64::from(v * v % 7)).collect::<Vec<_>>()),
            f32s(&[1, 4, 4], &(0..16).map(|v| f64::from(v * 5 % 11)).collect::<Vec<_>>()),
        );
        let Data::Float(a) = conv(&x, &w, &window(2, 2, 2), 2, &[1, 4, 4]) else { panic!("floats") };
        let Data::Float(b) = conv_transpose(&y, &w, &window(2, 2, 2), 2, &[1, 2, 7]) else { panic!("floats") };
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        assert_eq!(dot(&a, y.floats()), dot(x.floats(), &b));
    }
}
