//! Tests of what is stored: which value of a chain, and how many kernels that takes.

use super::*;
use crate::ir::parse::parse;

/// Names of the values that get a buffer or are an output, in the order of the graph.
fn stored(text: &str) -> Vec<String> {
    let graph = parse(text).expect("the text is a graph");
    let fusion = fuse(&graph);
    fusion.groups.iter().map(|g| graph.value(g.result).name.clone()).collect()
}

#[test]
fn a_half_that_a_product_reads_widened_is_stored_as_a_half() {
    let kernels = stored(
        "graph g {
           %x = input 0 \"x\" : f16[32,64]
           %w = input 1 \"w\" : f16[64,16]
           %a = map(exp(a)) %x : f16[32,64]
           %b = map(to_f16(a)) %a : f32[32,64]
           %v = map(to_f16(a)) %w : f32[64,16]
           %y = matmul %b, %v : f32[32,16]
           output \"y\" = %y
         }",
    );
    assert_eq!(kernels, ["a", "y"], "not %b, which holds the same in twice the bytes");
}

#[test]
fn a_half_that_a_product_in_parts_reads_widened_is_stored_as_a_half() {
    let kernels = stored(
        "graph g {
           %x = input 0 \"x\" : f16[32,64]
           %w = input 1 \"w\" : f16[2,32,16]
           %a = map(exp(a)) %x : f16[32,64]
           %b = map(to_f16(a)) %a : f32[32,64]
           %c = reshape %b : f32[32,2,32]
           %d = permute %c perm=[1,0,2] : f32[2,32,32]
           %v = map(to_f16(a)) %w : f32[2,32,16]
           %y = matmul %d, %v : f32[2,32,16]
           output \"y\" = %y
         }",
    );
    assert_eq!(kernels, ["a", "y"], "not %d, which holds the same in twice the bytes, where no matrix unit takes it");
}

#[test]
fn a_reshape_that_is_stored_anyway_is_stored_by_the_kernel_before_it() {
    let kernels = stored(
        "graph g {
           %x = input 0 \"x\" : f32[32,64]
           %w = input 1 \"w\" : f32[64,64]
           %c = input 2 \"c\" : f32[1,64]
           %a = matmul %x, %w : f32[32,64]
           %b = map(exp(a + b)) %a, %c : f32[32,64]
           %d = reshape %b : f32[8,4,64]
           %e = input 3 \"e\" : f32[8,64,16]
           %y = matmul %d, %e : f32[8,4,16]
           output \"y\" = %y
         }",
    );
    assert_eq!(kernels, ["d", "y"], "no kernel that only copies");
}
