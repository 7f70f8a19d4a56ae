/* The kernels of another processor as a program: requests come in on stdin, results go out on stdout, in host order. */
#include "kernels.c"
#include <stdio.h>

static int64_t number(void) {
    int64_t n;
    if (fread(&n, sizeof n, 1, stdin) != 1) exit(0); /* the other side has closed */
    return n;
}
static uint8_t *take(size_t bytes) {
    uint8_t *p = aligned_alloc(64, bytes / 64 * 64 + 64);
    if (fread(p, 1, bytes, stdin) != bytes) exit(1);
    return p;
}
static void give(uint8_t *p, size_t bytes) {
    fwrite(p, 1, bytes, stdout);
    fflush(stdout);
    free(p);
}

/* format, swiglu, panel_bytes, k, x_stride, out_stride, residual_stride, rows, first, last, block_rows, ahead; bytes of bias; then
 * panels, rows, bias, residual and what the output holds before. */
static void gemm(void) {
    const int format = (int)number(), swiglu = (int)number();
    ew_product m = {.panel_bytes = (size_t)number(), .k = (int)number(), .x_stride = (size_t)number(), .out_stride = (size_t)number()};
    m.residual_stride = (size_t)number();
    m.rows = (int)number();
    m.first_panel = (int)number();
    m.last_panel = (int)number();
    m.block_rows = (int)number();
    m.ahead = (int)number();
    const size_t bias = (size_t)number();
    uint8_t *panels = take(m.panel_bytes * m.last_panel), *x = take(m.x_stride * m.rows), *offsets = take(bias);
    uint8_t *residual = take(m.residual_stride * m.rows);
    m.panels = panels;
    m.x = x;
    m.bias = bias ? (const float *)offsets : 0;
    m.residual = m.residual_stride ? residual : 0;
    m.out = take(m.out_stride * m.rows);
    test_gemm(format, swiglu, &m);
    give(m.out, m.out_stride * m.rows);
    free(panels);
    free(x);
    free(offsets);
    free(residual);
}

/* rotated, rows, x_stride, y_stride, n, k, first, last; then the floats and what the output holds before. */
static void quantize(void) {
    const int rotated = (int)number();
    const size_t rows = (size_t)number(), x_stride = (size_t)number(), y_stride = (size_t)number();
    const int n = (int)number(), k = (int)number(), first = (int)number(), last = (int)number();
    uint8_t *x = take(rows * x_stride), *y = take(rows * y_stride);
    (rotated ? test_quantize : test_quantize_plain)(x, x_stride, y, y_stride, n, k, first, last);
    give(y, rows * y_stride);
    free(x);
}

int main(void) {
    for (;;) {
        if (number()) quantize();
        else gemm();
    }
}
