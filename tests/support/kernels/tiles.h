/* The tile instructions of AMX in plain C, as Intel's manual (Software Developer's Manual, volume 2) defines them, in
 * front of what is to be compiled with them: the level amx on processors without AMX. */
#ifndef EW_TILES_H
#define EW_TILES_H

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } tile_config;
static uint8_t tiles[8][16][64];

static void tile_loadconfig(const void *config) {
    memcpy(&tile_config, config, sizeof tile_config);
    memset(tiles, 0, sizeof tiles);
    if (tile_config.palette != 1) abort();
}
static void tile_zero(int t) { memset(tiles[t], 0, sizeof tiles[t]); }
static void tile_loadd(int t, const void *base, size_t stride) {
    tile_zero(t);
    for (int r = 0; r < tile_config.rows[t]; r++) memcpy(tiles[t][r], (const uint8_t *)base + r * stride, tile_config.bytes[t]);
}
static void tile_stored(int t, void *base, size_t stride) {
    for (int r = 0; r < tile_config.rows[t]; r++) memcpy((uint8_t *)base + r * stride, tiles[t][r], tile_config.bytes[t]);
}
static void tile_dpbssd(int c, int a, int b) {
    if (tile_config.rows[b] * 4 != tile_config.bytes[a] || tile_config.bytes[b] != tile_config.bytes[c] || tile_config.rows[a] != tile_config.rows[c]) abort();
    for (int m = 0; m < tile_config.rows[c]; m++)
        for (int n = 0; n < tile_config.bytes[c] / 4; n++) {
            int32_t sum;
            memcpy(&sum, &tiles[c][m][4 * n], 4);
            for (int k = 0; k < tile_config.bytes[a]; k++) sum += (int8_t)tiles[a][m][k] * (int8_t)tiles[b][k / 4][4 * n + k % 4];
            memcpy(&tiles[c][m][4 * n], &sum, 4);
        }
}
/* Subnormals are zeros. */
static float tile_flush(float x) { return x < 0x1p-126f && x > -0x1p-126f ? x * 0.0f : x; }
static float tile_number(const uint8_t *bf16) {
    uint16_t half;
    memcpy(&half, bf16, 2);
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, 4);
    return tile_flush(x);
}
static void tile_dpbf16ps(int c, int a, int b) {
    if (tile_config.rows[b] * 4 != tile_config.bytes[a] || tile_config.bytes[b] != tile_config.bytes[c] || tile_config.rows[a] != tile_config.rows[c]) abort();
    for (int m = 0; m < tile_config.rows[c]; m++)
        for (int n = 0; n < tile_config.bytes[c] / 4; n++) {
            float sums[2] = {0, 0}, total;
            for (int k = 0; k < tile_config.bytes[a] / 4; k++)
                for (int i = 0; i < 2; i++) sums[i] = tile_flush(__builtin_fmaf(tile_number(&tiles[a][m][4 * k + 2 * i]), tile_number(&tiles[b][k][4 * n + 2 * i]), sums[i]));
            memcpy(&total, &tiles[c][m][4 * n], 4);
            total = tile_flush(tile_flush(total) + tile_flush(sums[0] + sums[1]));
            memcpy(&tiles[c][m][4 * n], &total, 4);
        }
}

#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#define _tile_dpbf16ps tile_dpbf16ps
#define _tile_dpbssd tile_dpbssd
#define _tile_loadconfig tile_loadconfig
#define _tile_loadd tile_loadd
#define _tile_stored tile_stored
#define _tile_zero tile_zero
#define syscall(...) 0 /* the system grants the tiles */

#endif
