//! Bessel functions of the first kind.
#![allow(clippy::excessive_precision, reason = "coefficients are written as published")]

use super::AtenOp;
use super::body::BodyBuilder;
use super::unary::{float1, polynomial, times};
use jvc_kernels::expr::{ExprId, Unary};
use std::f64::consts::{FRAC_2_PI, FRAC_PI_4};

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.special_bessel_j0.default"], rule: |cx, c| float1(cx, c, |b, x| bessel(b, x, &J0)) },
    AtenOp { names: &["aten.special_bessel_j1.default"], rule: |cx, c| float1(cx, c, |b, x| bessel(b, x, &J1)) },
];

/// Numerator and denominator, highest coefficient first.
type Ratio = (&'static [f64], &'static [f64]);

/// Cephes' approximations as PyTorch has them, which leaves out the leading one of two denominators.
struct Wave {
    /// Whether it is an odd function (J₁, zero at 0), not an even one.
    odd: bool,
    /// Squares of the first two zeros.
    zeros: [f64; 2],
    /// Up to 5, in x², without the zeros.
    near: Ratio,
    /// Beyond 5, in (5/x)²: the factors of the cosine and the sine.
    cosine: Ratio,
    sine: Ratio,
}

const J0: Wave = Wave {
    odd: false,
    zeros: [5.78318596294678452118, 3.04712623436620863991e1],
    near: (
        &[-4.79443220978201773821e9, 1.95617491946556577543e12, -2.49248344360967716204e14, 9.70862251047306323952e15],
        &[
            4.99563147152651017219e2,
            1.73785401676374683123e5,
            4.84409658339962045305e7,
            1.11855537045356834862e10,
            2.11277520115489217587e12,
            3.10518229857422583814e14,
            3.18121955943204943306e16,
            1.71086294081043136091e18,
        ],
    ),
    cosine: (
        &[
            7.96936729297347051624e-4,
            8.28352392107440799803e-2,
            1.23953371646414299388,
            5.44725003058768775090,
            8.74716500199817011941,
            5.30324038235394892183,
            9.99999999999999997821e-1,
        ],
        &[
            9.24408810558863637013e-4,
            8.56288474354474431428e-2,
            1.25352743901058953537,
            5.47097740330417105182,
            8.76190883237069594232,
            5.30605288235394617618,
            1.00000000000000000218,
        ],
    ),
    sine: (
        &[
            -1.13663838898469149931e-2,
            -1.28252718670509318512,
            -1.95539544257735972385e1,
            -9.32060152123768231369e1,
            -1.77681167980488050595e2,
            -1.47077505154951170175e2,
            -5.14105326766599330220e1,
            -6.05014350600728481186,
        ],
        &[
            6.43178256118178023184e1,
            8.56430025976980587198e2,
            3.88240183605401609683e3,
            7.24046774195652478189e3,
            5.93072701187316984827e3,
            2.06209331660327847417e3,
            2.42005740240291393179e2,
        ],
    ),
};

const J1: Wave = Wave {
    odd: true,
    zeros: [1.46819706421238932572e1, 4.92184563216946036703e1],
    near: (
        &[-8.99971225705559398224e8, 4.52228297998194034323e11, -7.27494245221818276015e13, 3.68295732863852883286e15],
        &[
            6.20836478118054335476e2,
            2.56987256757748830383e5,
            8.35146791431949253037e7,
            2.21511595479792499675e10,
            4.74914122079991414898e12,
            7.84369607876235854894e14,
            8.95222336184627338078e16,
            5.32278620332680085395e18,
        ],
    ),
    cosine: (
        &[
            7.62125616208173112003e-4,
            7.31397056940917570436e-2,
            1.12719608129684925192,
            5.11207951146807644818,
            8.42404590141772420927,
            5.21451598682361504063,
            1.00000000000000000254,
        ],
        &[
            5.71323128072548699714e-4,
            6.88455908754495404082e-2,
            1.10514232634061696926,
            5.07386386128601488557,
            8.39985554327604159757,
            5.20982848682361821619,
            9.99999999999999997461e-1,
        ],
    ),
    sine: (
        &[
            5.10862594750176621635e-2,
            4.98213872951233449420,
            7.58238284132545283818e1,
            3.66779609360150777800e2,
            7.10856304998926107277e2,
            5.97489612400613639965e2,
            2.11688757100572135698e2,
            2.52070205858023719784e1,
        ],
        &[
            7.42373277035675149943e1,
            1.05644886038262816351e3,
            4.98641058337653607651e3,
            9.56231892404756170795e3,
            7.99704160447350683650e3,
            2.82619278517639096600e3,
            3.36093607810698293419e2,
        ],
    ),
};

fn bessel(b: &mut BodyBuilder, x: ExprId, wave: &Wave) -> ExprId {
    let size = b.un(Unary::Abs, x);
    let split = b.like(x, 5.0);
    let near = b.min(size, split);
    let square = b.mul(near, near);
    let mut small = ratio(b, square, wave.near);
    if wave.odd {
        small = b.mul(small, near);
    }
    for zero in wave.zeros {
        let zero = b.like(x, zero);
        let factor = b.sub(square, zero);
        small = b.mul(small, factor);
    }
    let far = b.max(size, split);
    let inverse = b.div(split, far);
    let square = b.mul(inverse, inverse);
    let (p, q) = (ratio(b, square, wave.cosine), ratio(b, square, wave.sine));
    let phase = b.like(x, if wave.odd { 3.0 * FRAC_PI_4 } else { FRAC_PI_4 });
    let angle = b.sub(far, phase);
    let (cos, sin) = (b.un(Unary::Cos, angle), b.un(Unary::Sin, angle));
    let (p, q) = (b.mul(p, cos), b.mul(q, inverse));
    let q = b.mul(q, sin);
    let swing = b.sub(p, q);
    let root = b.un(Unary::Sqrt, far);
    let swing = times(b, swing, FRAC_2_PI.sqrt());
    let large = b.div(swing, root);
    let is_near = b.le(size, split);
    let v = b.select(is_near, small, large);
    if !wave.odd {
        return v;
    }
    let zero = b.like(x, 0.0);
    let (negative, minus) = (b.lt(x, zero), b.neg(v));
    b.select(negative, minus, v)
}

fn ratio(b: &mut BodyBuilder, x: ExprId, (over, under): Ratio) -> ExprId {
    let (p, q) = (polynomial(b, x, over), polynomial(b, x, under));
    b.div(p, q)
}
