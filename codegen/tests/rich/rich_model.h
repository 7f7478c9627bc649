/* The C interface of `rich-model`, a program compiled by jvc for `lavapipe`. Generated, not edited: change the model or the
 * options, and compile again. The library: cargo build --release --features c-api. */
#ifndef RICH_MODEL_H
#define RICH_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return. Words for the latest failure on this thread: rich_model_last_error(), never null; the text is valid until the next
 * failure on this thread, or its end. */
typedef int32_t rich_model_status;
enum {
    RICH_MODEL_OK = 0, /* fine */
    RICH_MODEL_ERROR_ARGUMENT = 1, /* an argument does not fit; nothing has happened */
    RICH_MODEL_ERROR_DEVICE = 2, /* no Vulkan loader, no such device, or it lacks what the program needs */
    RICH_MODEL_ERROR_WEIGHTS = 3, /* the weight file is missing, damaged, or not this program's */
    RICH_MODEL_ERROR_MEMORY = 4, /* no device memory left */
    RICH_MODEL_ERROR_BUSY = 5, /* every slot of the session is in flight */
    RICH_MODEL_ERROR_SIZES = 6, /* the data give a size that memory was not planned for; the run has no outputs */
    RICH_MODEL_ERROR_LOST = 7, /* the device is gone; load again */
    RICH_MODEL_ERROR_VULKAN = 8, /* any other failure of Vulkan */
    RICH_MODEL_ERROR_PANIC = 9, /* a bug of the library */
};
const char *rich_model_last_error(void);

/* Element types. Booleans are bytes of 0 and 1; halves are the bits of an IEEE 754 binary16 or of a bfloat16 in an uint16_t. */
enum {
    RICH_MODEL_DTYPE_BOOL = 0,
    RICH_MODEL_DTYPE_U8 = 1,
    RICH_MODEL_DTYPE_I8 = 2,
    RICH_MODEL_DTYPE_I16 = 3,
    RICH_MODEL_DTYPE_I32 = 4,
    RICH_MODEL_DTYPE_I64 = 5,
    RICH_MODEL_DTYPE_F16 = 6,
    RICH_MODEL_DTYPE_BF16 = 7,
    RICH_MODEL_DTYPE_F32 = 8,
    RICH_MODEL_DTYPE_F64 = 9,
};

/* An input: elements row by row, at an address that suits them. The array stays the caller's, and is copied before a call returns. */
typedef struct rich_model_input {
    const void *data;
    size_t bytes; /* of all elements: must be the product of the shape at the sizes of the call */
} rich_model_input;

/* An output. The array is the caller's; null where the output is not wanted. */
typedef struct rich_model_output {
    void *data;
    size_t capacity; /* bytes that have room there; the most that can be needed stands below */
    size_t bytes;    /* written: bytes of the output, also if they have no room */
} rich_model_output;

typedef struct rich_model_program rich_model_program; /* kernels and weights on a device; may be used by several threads at once */
typedef struct rich_model_session rich_model_session; /* an entry point with memory for its runs; calls from several threads take turns */

/* Opens a device and loads the program. `gpu`: part of a device's name or its number, null for the best. `weights`: path of `weights.jvcw`.
 * `cache`: folder of compiled kernels, null for the user's cache folder, "" for none. The caller owns the program. */
rich_model_status rich_model_load(const char *gpu, const char *weights, const char *cache, rich_model_program **program);

/* Frees a program; null is fine. Its sessions stay valid: order does not matter. */
void rich_model_free(rich_model_program *program);

/* A session of an entry point (RICH_MODEL_ENTRY_...) for `n_slots` runs in flight. The caller owns it. */
rich_model_status rich_model_session_new(const rich_model_program *program, uint32_t entry, size_t n_slots, rich_model_session **session);

/* Waits for runs in flight, and frees a session; null is fine. */
void rich_model_session_free(rich_model_session *session);

/* Runs and waits. Sizes, inputs and outputs come by the positions below; arrays may be null where there are none. */
rich_model_status rich_model_run(rich_model_session *session, const int64_t *sizes, size_t n_sizes, const rich_model_input *inputs, size_t n_inputs,
    rich_model_output *outputs, size_t n_outputs);

/* Starts a run in a free slot and returns at once; inputs have been copied then. */
rich_model_status rich_model_submit(rich_model_session *session, const int64_t *sizes, size_t n_sizes, const rich_model_input *inputs, size_t n_inputs,
    uint64_t *ticket);

/* Waits for a run, copies its outputs and frees its slot, also if it fails: but for a wrong number of outputs, the ticket is spent. */
rich_model_status rich_model_wait(rich_model_session *session, uint64_t ticket, rich_model_output *outputs, size_t n_outputs);

/* `done` becomes 1 once a run has finished, else 0. It still has to be waited for. */
rich_model_status rich_model_is_done(rich_model_session *session, uint64_t ticket, int32_t *done);

/* Gives up a run's outputs: its slot becomes free when it has finished. */
rich_model_status rich_model_cancel(rich_model_session *session, uint64_t ticket);

/* The next run starts from the initial state; nothing happens where there is no state. */
rich_model_status rich_model_reset(rich_model_session *session);

/* Entry point `encode`. */
#define RICH_MODEL_ENTRY_ENCODE 0
#define RICH_MODEL_ENCODE_N_SIZES 0
#define RICH_MODEL_ENCODE_N_INPUTS 1
#define RICH_MODEL_ENCODE_N_OUTPUTS 1
/* Input `x`: f16[32, 64]. */
#define RICH_MODEL_ENCODE_IN_X 0
#define RICH_MODEL_ENCODE_DTYPE_IN_X RICH_MODEL_DTYPE_F16
#define RICH_MODEL_ENCODE_RANK_IN_X 2
#define RICH_MODEL_ENCODE_SHAPE_IN_X {32, 64}
#define RICH_MODEL_ENCODE_MAX_BYTES_IN_X 4096u
/* Output `type`: f16[32, 64]. */
#define RICH_MODEL_ENCODE_OUT_TYPE 0
#define RICH_MODEL_ENCODE_DTYPE_OUT_TYPE RICH_MODEL_DTYPE_F16
#define RICH_MODEL_ENCODE_RANK_OUT_TYPE 2
#define RICH_MODEL_ENCODE_SHAPE_OUT_TYPE {32, 64}
#define RICH_MODEL_ENCODE_MAX_BYTES_OUT_TYPE 4096u

/* Entry point `step`. */
#define RICH_MODEL_ENTRY_STEP 1
#define RICH_MODEL_STEP_N_SIZES 3
#define RICH_MODEL_STEP_N_INPUTS 11
#define RICH_MODEL_STEP_N_OUTPUTS 12
/* Size `s0`: 1 to 100. */
#define RICH_MODEL_STEP_SIZE_S0 0
#define RICH_MODEL_STEP_MAX_SIZE_S0 100
/* Size `position`: 0 to 4096. */
#define RICH_MODEL_STEP_SIZE_POSITION 1
#define RICH_MODEL_STEP_MAX_SIZE_POSITION 4096
/* Size `unused`: 2 to 3. */
#define RICH_MODEL_STEP_SIZE_UNUSED 2
#define RICH_MODEL_STEP_MAX_SIZE_UNUSED 3
/* Input `bool`: bool[s0, 3]. */
#define RICH_MODEL_STEP_IN_BOOL 0
#define RICH_MODEL_STEP_DTYPE_IN_BOOL RICH_MODEL_DTYPE_BOOL
#define RICH_MODEL_STEP_RANK_IN_BOOL 2
#define RICH_MODEL_STEP_SHAPE_IN_BOOL {-1, 3} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_IN_BOOL 300u
/* Input `u8`: u8[s0, 3]. */
#define RICH_MODEL_STEP_IN_U8 1
#define RICH_MODEL_STEP_DTYPE_IN_U8 RICH_MODEL_DTYPE_U8
#define RICH_MODEL_STEP_RANK_IN_U8 2
#define RICH_MODEL_STEP_SHAPE_IN_U8 {-1, 3} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_IN_U8 300u
/* Input `i8`: i8[s0, 3]. */
#define RICH_MODEL_STEP_IN_I8 2
#define RICH_MODEL_STEP_DTYPE_IN_I8 RICH_MODEL_DTYPE_I8
#define RICH_MODEL_STEP_RANK_IN_I8 2
#define RICH_MODEL_STEP_SHAPE_IN_I8 {-1, 3} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_IN_I8 300u
/* Input `i16`: i16[s0, 3]. */
#define RICH_MODEL_STEP_IN_I16 3
#define RICH_MODEL_STEP_DTYPE_IN_I16 RICH_MODEL_DTYPE_I16
#define RICH_MODEL_STEP_RANK_IN_I16 2
#define RICH_MODEL_STEP_SHAPE_IN_I16 {-1, 3} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_IN_I16 600u
/* Input `i32`: i32[s0, 3]. */
#define RICH_MODEL_STEP_IN_I32 4
#define RICH_MODEL_STEP_DTYPE_IN_I32 RICH_MODEL_DTYPE_I32
#define RICH_MODEL_STEP_RANK_IN_I32 2
#define RICH_MODEL_STEP_SHAPE_IN_I32 {-1, 3} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_IN_I32 1200u
/* Input `i64`: i64[s0, 3]. */
#define RICH_MODEL_STEP_IN_I64 5
#define RICH_MODEL_STEP_DTYPE_IN_I64 RICH_MODEL_DTYPE_I64
#define RICH_MODEL_STEP_RANK_IN_I64 2
#define RICH_MODEL_STEP_SHAPE_IN_I64 {-1, 3} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_IN_I64 2400u
/* Input `f16`: f16[s0, 3]. */
#define RICH_MODEL_STEP_IN_F16 6
#define RICH_MODEL_STEP_DTYPE_IN_F16 RICH_MODEL_DTYPE_F16
#define RICH_MODEL_STEP_RANK_IN_F16 2
#define RICH_MODEL_STEP_SHAPE_IN_F16 {-1, 3} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_IN_F16 600u
/* Input `bf16`: bf16[s0, 3]. */
#define RICH_MODEL_STEP_IN_BF16 7
#define RICH_MODEL_STEP_DTYPE_IN_BF16 RICH_MODEL_DTYPE_BF16
#define RICH_MODEL_STEP_RANK_IN_BF16 2
#define RICH_MODEL_STEP_SHAPE_IN_BF16 {-1, 3} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_IN_BF16 600u
/* Input `f32`: f32[s0, 3]. */
#define RICH_MODEL_STEP_IN_F32 8
#define RICH_MODEL_STEP_DTYPE_IN_F32 RICH_MODEL_DTYPE_F32
#define RICH_MODEL_STEP_RANK_IN_F32 2
#define RICH_MODEL_STEP_SHAPE_IN_F32 {-1, 3} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_IN_F32 1200u
/* Input `f64`: f64[s0, 3]. */
#define RICH_MODEL_STEP_IN_F64 9
#define RICH_MODEL_STEP_DTYPE_IN_F64 RICH_MODEL_DTYPE_F64
#define RICH_MODEL_STEP_RANK_IN_F64 2
#define RICH_MODEL_STEP_SHAPE_IN_F64 {-1, 3} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_IN_F64 2400u
/* Input `mask`: bool[4]. */
#define RICH_MODEL_STEP_IN_MASK 10
#define RICH_MODEL_STEP_DTYPE_IN_MASK RICH_MODEL_DTYPE_BOOL
#define RICH_MODEL_STEP_RANK_IN_MASK 1
#define RICH_MODEL_STEP_SHAPE_IN_MASK {4}
#define RICH_MODEL_STEP_MAX_BYTES_IN_MASK 4u
/* Output `bool_out`: bool[(s0 - 1) / 2 + 1]. */
#define RICH_MODEL_STEP_OUT_BOOL_OUT 0
#define RICH_MODEL_STEP_DTYPE_OUT_BOOL_OUT RICH_MODEL_DTYPE_BOOL
#define RICH_MODEL_STEP_RANK_OUT_BOOL_OUT 1
#define RICH_MODEL_STEP_SHAPE_OUT_BOOL_OUT {-1} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_OUT_BOOL_OUT 50u
/* Output `u8_out`: u8[(s0 - 1) / 2 + 1]. */
#define RICH_MODEL_STEP_OUT_U8_OUT 1
#define RICH_MODEL_STEP_DTYPE_OUT_U8_OUT RICH_MODEL_DTYPE_U8
#define RICH_MODEL_STEP_RANK_OUT_U8_OUT 1
#define RICH_MODEL_STEP_SHAPE_OUT_U8_OUT {-1} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_OUT_U8_OUT 50u
/* Output `i8_out`: i8[(s0 - 1) / 2 + 1]. */
#define RICH_MODEL_STEP_OUT_I8_OUT 2
#define RICH_MODEL_STEP_DTYPE_OUT_I8_OUT RICH_MODEL_DTYPE_I8
#define RICH_MODEL_STEP_RANK_OUT_I8_OUT 1
#define RICH_MODEL_STEP_SHAPE_OUT_I8_OUT {-1} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_OUT_I8_OUT 50u
/* Output `i16_out`: i16[(s0 - 1) / 2 + 1]. */
#define RICH_MODEL_STEP_OUT_I16_OUT 3
#define RICH_MODEL_STEP_DTYPE_OUT_I16_OUT RICH_MODEL_DTYPE_I16
#define RICH_MODEL_STEP_RANK_OUT_I16_OUT 1
#define RICH_MODEL_STEP_SHAPE_OUT_I16_OUT {-1} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_OUT_I16_OUT 100u
/* Output `i32_out`: i32[(s0 - 1) / 2 + 1]. */
#define RICH_MODEL_STEP_OUT_I32_OUT 4
#define RICH_MODEL_STEP_DTYPE_OUT_I32_OUT RICH_MODEL_DTYPE_I32
#define RICH_MODEL_STEP_RANK_OUT_I32_OUT 1
#define RICH_MODEL_STEP_SHAPE_OUT_I32_OUT {-1} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_OUT_I32_OUT 200u
/* Output `i64_out`: i64[(s0 - 1) / 2 + 1]. */
#define RICH_MODEL_STEP_OUT_I64_OUT 5
#define RICH_MODEL_STEP_DTYPE_OUT_I64_OUT RICH_MODEL_DTYPE_I64
#define RICH_MODEL_STEP_RANK_OUT_I64_OUT 1
#define RICH_MODEL_STEP_SHAPE_OUT_I64_OUT {-1} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_OUT_I64_OUT 400u
/* Output `f16_out`: f16[(s0 - 1) / 2 + 1]. */
#define RICH_MODEL_STEP_OUT_F16_OUT 6
#define RICH_MODEL_STEP_DTYPE_OUT_F16_OUT RICH_MODEL_DTYPE_F16
#define RICH_MODEL_STEP_RANK_OUT_F16_OUT 1
#define RICH_MODEL_STEP_SHAPE_OUT_F16_OUT {-1} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_OUT_F16_OUT 100u
/* Output `bf16_out`: bf16[(s0 - 1) / 2 + 1]. */
#define RICH_MODEL_STEP_OUT_BF16_OUT 7
#define RICH_MODEL_STEP_DTYPE_OUT_BF16_OUT RICH_MODEL_DTYPE_BF16
#define RICH_MODEL_STEP_RANK_OUT_BF16_OUT 1
#define RICH_MODEL_STEP_SHAPE_OUT_BF16_OUT {-1} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_OUT_BF16_OUT 100u
/* Output `f32_out`: f32[(s0 - 1) / 2 + 1]. */
#define RICH_MODEL_STEP_OUT_F32_OUT 8
#define RICH_MODEL_STEP_DTYPE_OUT_F32_OUT RICH_MODEL_DTYPE_F32
#define RICH_MODEL_STEP_RANK_OUT_F32_OUT 1
#define RICH_MODEL_STEP_SHAPE_OUT_F32_OUT {-1} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_OUT_F32_OUT 200u
/* Output `f64_out`: f64[(s0 - 1) / 2 + 1]. */
#define RICH_MODEL_STEP_OUT_F64_OUT 9
#define RICH_MODEL_STEP_DTYPE_OUT_F64_OUT RICH_MODEL_DTYPE_F64
#define RICH_MODEL_STEP_RANK_OUT_F64_OUT 1
#define RICH_MODEL_STEP_SHAPE_OUT_F64_OUT {-1} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_OUT_F64_OUT 400u
/* Output `position`: the integer position. */
#define RICH_MODEL_STEP_OUT_POSITION 10
#define RICH_MODEL_STEP_DTYPE_OUT_POSITION RICH_MODEL_DTYPE_I64
#define RICH_MODEL_STEP_RANK_OUT_POSITION 0
#define RICH_MODEL_STEP_MAX_BYTES_OUT_POSITION 8u
/* Output `chosen`: f32[u0]. */
#define RICH_MODEL_STEP_OUT_CHOSEN 11
#define RICH_MODEL_STEP_DTYPE_OUT_CHOSEN RICH_MODEL_DTYPE_F32
#define RICH_MODEL_STEP_RANK_OUT_CHOSEN 1
#define RICH_MODEL_STEP_SHAPE_OUT_CHOSEN {-1} /* -1: by the sizes */
#define RICH_MODEL_STEP_MAX_BYTES_OUT_CHOSEN 200u

#ifdef __cplusplus
}
#endif

#endif /* RICH_MODEL_H */
