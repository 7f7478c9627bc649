/* main.c: a generated crate from C. Softens pictures, two on their way at once, compares every byte with integer arithmetic, and shows
 * what wrong calls give. Arguments: WEIGHTS [GPU]. Exit code 0 if everything is as it should be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "soften.h"

enum { LARGEST = SOFTEN_SOFTEN_MAX_BYTES_IN_IMAGE };

static int n_faults = 0;

/* Says what is not as it should be, with the library's words. */
static void expect(int holds, const char *what) {
    if (!holds) {
        n_faults++;
        printf("FAULT: %s (last error: %s)\n", what, soften_last_error());
    }
}

/* What the program computes: sixteenths of the weights [1 2 1] x [1 2 1], edges repeated, halves to even, opacity left alone. */
static uint8_t softened(const uint8_t *image, int height, int width, int row, int column, int channel) {
    static const int weight[3] = {1, 2, 1};
    int sum = 0;
    if (channel == 3) {
        return image[(row * width + column) * 4 + 3];
    }
    for (int i = -1; i <= 1; i++) {
        for (int j = -1; j <= 1; j++) {
            int y = row + i < 0 ? 0 : row + i >= height ? height - 1 : row + i;
            int x = column + j < 0 ? 0 : column + j >= width ? width - 1 : column + j;
            sum += weight[i + 1] * weight[j + 1] * image[(y * width + x) * 4 + channel];
        }
    }
    int whole = sum / 16, rest = sum % 16;
    return (uint8_t)(whole + (rest > 8 || (rest == 8 && whole % 2 == 1)));
}

static void draw(uint8_t *image, size_t bytes, uint32_t seed) {
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        image[i] = (uint8_t)(seed >> 24);
    }
}

static void check(const uint8_t *image, const uint8_t *result, int height, int width) {
    int n_wrong = 0;
    for (int i = 0; i < height * width * 4; i++) {
        n_wrong += result[i] != softened(image, height, width, i / 4 / width, i / 4 % width, i % 4);
    }
    expect(n_wrong == 0, "every byte is right");
    printf("%d x %d: %d bytes wrong\n", width, height, n_wrong);
}

/* Rows and columns of the pictures. */
static const int64_t sizes_of[5][2] = {{48, 64}, {1, 1}, {512, 512}, {211, 37}, {2, 300}};
/* Two runs are in flight: each has a picture and a place for its result, which stay ours. */
static uint8_t images[2][LARGEST], results[2][LARGEST];
static uint64_t tickets[2];

static void start(soften_session *session, int k) {
    soften_input input = {images[k % 2], (size_t)(sizes_of[k][0] * sizes_of[k][1] * 4)};
    draw(images[k % 2], input.bytes, (uint32_t)k);
    expect(soften_submit(session, sizes_of[k], 2, &input, 1, &tickets[k % 2]) == SOFTEN_OK, "a submission");
}

static void finish(soften_session *session, int k) {
    int height = (int)sizes_of[k][0], width = (int)sizes_of[k][1];
    soften_output output = {results[k % 2], LARGEST, 0};
    expect(soften_wait(session, tickets[k % 2], &output, 1) == SOFTEN_OK, "a run");
    expect(output.bytes == (size_t)(height * width * 4), "bytes of the output");
    check(images[k % 2], results[k % 2], height, width);
}

static void run_all(soften_session *session) {
    for (int k = 0; k < 5 + 2; k++) {
        if (k >= 2) {
            finish(session, k - 2);
        }
        if (k < 5) {
            start(session, k);
        }
    }
}

/* Whatever is wrong is an error code before anything happens, with words. */
static void run_wrongly(const soften_program *program) {
    static uint8_t image[16];
    int64_t sizes[2] = {2, 2}, large[2] = {2, 513}, negative[2] = {-2, 2};
    uint64_t runs[3];
    soften_session *session = NULL, *none = NULL;
    soften_input input = {image, 16}, shorter = {image, 15};
    soften_output output = {image, 16, 0}, small = {image, 15, 0};
    expect(soften_session_new(program, SOFTEN_ENTRY_SOFTEN, 2, &session) == SOFTEN_OK, "a session");
    expect(soften_session_new(program, 1, 1, &none) == SOFTEN_ERROR_ARGUMENT && none == NULL, "no such entry point");
    expect(soften_run(NULL, sizes, 2, &input, 1, &output, 1) == SOFTEN_ERROR_ARGUMENT, "no session");
    expect(soften_run(session, sizes, 2, &shorter, 1, &output, 1) == SOFTEN_ERROR_ARGUMENT, "a short input");
    expect(strstr(soften_last_error(), "image") != NULL, "the words name the input");
    expect(soften_run(session, sizes, 1, &input, 1, &output, 1) == SOFTEN_ERROR_ARGUMENT, "a size is missing");
    expect(soften_run(session, large, 2, &input, 1, &output, 1) == SOFTEN_ERROR_ARGUMENT, "a size out of its range");
    expect(soften_run(session, negative, 2, &input, 1, &output, 1) == SOFTEN_ERROR_ARGUMENT, "a negative size");
    expect(soften_run(session, sizes, 2, &input, 1, &small, 1) == SOFTEN_ERROR_ARGUMENT && small.bytes == 16, "no room");
    expect(soften_wait(session, 12345, &output, 1) == SOFTEN_ERROR_ARGUMENT, "no such run");
    expect(soften_submit(session, sizes, 2, &input, 1, &runs[0]) == SOFTEN_OK, "a first run");
    expect(soften_submit(session, sizes, 2, &input, 1, &runs[1]) == SOFTEN_OK, "a second run");
    expect(soften_submit(session, sizes, 2, &input, 1, &runs[2]) == SOFTEN_ERROR_BUSY, "both slots are taken");
    expect(soften_cancel(session, runs[0]) == SOFTEN_OK, "one is given up");
    expect(soften_submit(session, sizes, 2, &input, 1, &runs[2]) == SOFTEN_OK, "so that there is a slot again");
    expect(soften_wait(session, runs[1], &output, 1) == SOFTEN_OK, "the others go on");
    expect(soften_reset(session) == SOFTEN_OK, "there is no state to reset");
    int32_t done = 7;
    expect(soften_is_done(session, runs[2], &done) == SOFTEN_OK && (done == 0 || done == 1), "whether it is done");
    soften_session_free(session); /* which waits for the run in flight */
}

int main(int argc, char **argv) {
    soften_program *program = NULL;
    soften_session *session = NULL;
    const char *gpu = argc > 2 ? argv[2] : NULL;
    if (argc < 2) {
        fprintf(stderr, "usage: %s WEIGHTS [GPU]\n", argv[0]);
        return 2;
    }
    expect(soften_load(gpu, "no such file", "", &program) == SOFTEN_ERROR_WEIGHTS && program == NULL, "no weights");
    expect(soften_load("no such GPU", argv[1], "", &program) == SOFTEN_ERROR_DEVICE, "no device");
    if (soften_load(gpu, argv[1], "", &program) != SOFTEN_OK
        || soften_session_new(program, SOFTEN_ENTRY_SOFTEN, 2, &session) != SOFTEN_OK) {
        fprintf(stderr, "%s\n", soften_last_error());
        return 1;
    }
    run_all(session);
    run_wrongly(program);
    /* In any order; null is fine. */
    soften_free(program);
    run_all(session);
    soften_session_free(session);
    soften_session_free(NULL);
    printf("%d faults\n", n_faults);
    return n_faults == 0 ? 0 : 1;
}
