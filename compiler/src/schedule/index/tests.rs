//! Tests of the index algebra: reshapes undo each other, bounds decide comparisons, without numbers.

use super::*;
use crate::ir::{Range, Ranges};

fn ranges() -> Ranges {
    Ranges::from([("s0".to_string(), Range { min: 2, max: 64 }), ("s1".to_string(), Range { min: 1, max: 9 })])
}

/// Going to another shape and back gives the same coordinates.
fn check_round_trip(from: &[Dim], to: &[Dim]) {
    let mut table = SymTable::new(&ranges());
    let mut ix = Ix::new(&mut table);
    let axes: Vec<ExprId> = from.iter().enumerate().map(|(k, d)| ix.axis(k, d)).collect();
    let lin = ix.linear(&axes, from);
    let mid = ix.delinear(lin, to);
    let lin2 = ix.linear(&mid, to);
    assert_eq!(lin, lin2, "linear index survives {to:?}");
    assert_eq!(ix.delinear(lin2, from), axes, "coordinates survive {to:?}");
}

#[test]
fn reshapes_undo_each_other() {
    let d = |v: i64| Dim::from(v);
    let s0 = Dim::symbol("s0");
    check_round_trip(&[d(2), d(1024), d(576)], &[d(2), d(1024), d(8), d(72)]);
    check_round_trip(&[d(2), d(6), d(35)], &[d(420)]);
    check_round_trip(&[d(6), d(35)], &[d(7), d(30)]);
    check_round_trip(&[s0.clone(), d(12), d(64)], &[&s0 * &d(12), d(8), d(8)]);
    check_round_trip(&[d(3), s0.clone(), d(64)], &[&s0 * &d(3), d(64)]);
    check_round_trip(&[d(1), s0.clone(), d(8), d(64)], &[s0.clone(), d(512)]);
}

#[test]
fn split_heads_needs_no_division() {
    let mut table = SymTable::new(&ranges());
    let mut ix = Ix::new(&mut table);
    let shape = [Dim::from(1024), Dim::from(8), Dim::from(72)];
    let axes: Vec<ExprId> = shape.iter().enumerate().map(|(k, d)| ix.axis(k, d)).collect();
    let lin = ix.linear(&axes, &shape);
    let got = ix.delinear(lin, &[Dim::from(1024), Dim::from(576)]);
    assert_eq!(got[0], axes[0]);
    let text = format!("{:?}", ix.exprs);
    assert!(!text.contains("Div") && !text.contains("Rem"), "no division in {text}");
}

#[test]
fn symbolic_bounds_decide_comparisons() {
    let mut table = SymTable::new(&ranges());
    let mut ix = Ix::new(&mut table);
    let s0 = Dim::symbol("s0");
    let a = ix.axis(0, &s0);
    let n = ix.dim(&s0);
    let inside = ix.lt(a, n);
    assert_eq!(ix.as_bool(inside), Some(true), "an axis is below its extent");
    let one = ix.int(1);
    let next = ix.add(a, one);
    let unknown = ix.lt(next, n);
    assert_eq!(ix.as_bool(unknown), None, "a + 1 may reach the extent");
    let past = ix.lt(n, a);
    assert_eq!(ix.as_bool(past), Some(false), "the extent is never below the axis");
}

#[test]
fn coordinates_of_an_empty_tensor_have_a_form() {
    let mut table = SymTable::new(&ranges());
    let mut ix = Ix::new(&mut table);
    let (a, none) = (ix.axis(0, &Dim::from(100)), ix.int(0));
    let (q, r) = (ix.div(a, none), ix.rem(a, none));
    assert!(ix.as_const(q).is_none() && ix.as_const(r).is_none(), "nothing is known of what is never evaluated");
}

#[test]
fn nested_divisions_join() {
    let mut table = SymTable::new(&ranges());
    let mut ix = Ix::new(&mut table);
    let q = ix.axis(0, &Dim::from(1000));
    let (seven, three) = (ix.int(7), ix.int(3));
    let a = ix.div(q, seven);
    let b = ix.div(a, three);
    let both = ix.int(21);
    let direct = ix.div(q, both);
    assert_eq!(b, direct);
}

#[test]
fn repeated_squares_stay_products() {
    let mut table = SymTable::new(&ranges());
    let mut ix = Ix::new(&mut table);
    let mut power = ix.axis(0, &Dim::from(1000));
    for _ in 0..31 {
        power = ix.mul(power, power);
    }
    assert!(ix.exprs.len() < 200, "x to the 2^31 needs 31 products, not {} nodes", ix.exprs.len());
}

#[test]
fn coefficients_beyond_32_bits_are_left_to_wrapping_arithmetic() {
    let mut table = SymTable::new(&ranges());
    let mut ix = Ix::new(&mut table);
    let (x, c) = (ix.axis(0, &Dim::from(1000)), ix.int(65_537));
    let once = ix.mul(x, c);
    let twice = ix.mul(once, c);
    assert_eq!(ix.exprs.get(twice), &Expr::Binary(Binary::Mul, once, c), "not a literal cut off at 2^31 − 1");
}
