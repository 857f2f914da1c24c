/* The checksum of records: CRC-32 (the reflected polynomial 0xEDB88320) without its highest bit.

   Long input is folded with carry-less multiplication where the processor has it: each step brings 64 bytes down by
   the remainders of x^n modulo the polynomial. The rest, and all of it elsewhere, goes through tables, eight bytes at a
   time. `kappa_crc_prepare` must have run before. */

#ifndef KAPPAMQ_CRC31_H
#define KAPPAMQ_CRC31_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define KAPPA_CRC_FOLDS 1
#include <immintrin.h>
#endif

static uint32_t kappa_crc_table[8][256];
static int kappa_crc_may_fold = 0;

static void kappa_crc_prepare(void)
{
    for (uint32_t number = 0; number < 256; number++) {
        uint32_t value = number;
        for (int step = 0; step < 8; step++)
            value = (value >> 1) ^ (value & 1 ? 0xEDB88320u : 0u);
        kappa_crc_table[0][number] = value;
    }
    for (uint32_t number = 0; number < 256; number++)
        for (int step = 1; step < 8; step++) {
            uint32_t value = kappa_crc_table[step - 1][number];
            kappa_crc_table[step][number] = (value >> 8) ^ kappa_crc_table[0][value & 0xFF];
        }
#ifdef KAPPA_CRC_FOLDS
    __builtin_cpu_init();
    kappa_crc_may_fold = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

static inline uint32_t kappa_crc_by_table(uint32_t crc, const uint8_t *at, size_t size)
{
    while (size >= 8) {
        crc ^= at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = kappa_crc_table[7][crc & 0xFF] ^ kappa_crc_table[6][crc >> 8 & 0xFF] ^ kappa_crc_table[5][crc >> 16 & 0xFF]
            ^ kappa_crc_table[4][crc >> 24] ^ kappa_crc_table[3][at[4]] ^ kappa_crc_table[2][at[5]]
            ^ kappa_crc_table[1][at[6]] ^ kappa_crc_table[0][at[7]];
        at += 8;
        size -= 8;
    }
    while (size--)
        crc = crc >> 8 ^ kappa_crc_table[0][(crc ^ *at++) & 0xFF];
    return crc;
}

#ifdef KAPPA_CRC_FOLDS
#define KAPPA_LOAD(at) _mm_loadu_si128((const __m128i *)(at))
#define KAPPA_FOLD(value, by, more) \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(value, by, 0x00), _mm_clmulepi64_si128(value, by, 0x11)), more)

/* For 64 bytes or more, a multiple of 16. */
__attribute__((target("pclmul,sse4.1")))
static uint32_t kappa_crc_by_folding(uint32_t crc, const uint8_t *at, size_t size)
{
    const __m128i by_64 = _mm_set_epi64x(0x01C6E41596, 0x0154442BD4);
    const __m128i by_16 = _mm_set_epi64x(0x00CCAA009E, 0x01751997D0);
    const __m128i by_8 = _mm_set_epi64x(0, 0x0163CD6124);
    const __m128i polynomial = _mm_set_epi64x(0x01F7011641, 0x01DB710641);
    const __m128i low_words = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i one = _mm_xor_si128(KAPPA_LOAD(at), _mm_cvtsi32_si128((int)crc));
    __m128i two = KAPPA_LOAD(at + 16);
    __m128i three = KAPPA_LOAD(at + 32);
    __m128i four = KAPPA_LOAD(at + 48);
    __m128i rest;
    at += 64;
    size -= 64;
    for (; size >= 64; at += 64, size -= 64) {
        one = KAPPA_FOLD(one, by_64, KAPPA_LOAD(at));
        two = KAPPA_FOLD(two, by_64, KAPPA_LOAD(at + 16));
        three = KAPPA_FOLD(three, by_64, KAPPA_LOAD(at + 32));
        four = KAPPA_FOLD(four, by_64, KAPPA_LOAD(at + 48));
    }
    one = KAPPA_FOLD(one, by_16, two);
    one = KAPPA_FOLD(one, by_16, three);
    one = KAPPA_FOLD(one, by_16, four);
    for (; size >= 16; at += 16, size -= 16)
        one = KAPPA_FOLD(one, by_16, KAPPA_LOAD(at));
    /* 128 bits to 64, then what is left by Barrett's reduction to 32. */
    one = _mm_xor_si128(_mm_srli_si128(one, 8), _mm_clmulepi64_si128(one, by_16, 0x10));
    rest = _mm_srli_si128(one, 4);
    one = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(one, low_words), by_8, 0x00), rest);
    rest = _mm_clmulepi64_si128(_mm_and_si128(one, low_words), polynomial, 0x10);
    rest = _mm_clmulepi64_si128(_mm_and_si128(rest, low_words), polynomial, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(one, rest), 1);
}
#endif

static inline uint32_t kappa_crc31(const uint8_t *at, size_t size)
{
    uint32_t crc = 0xFFFFFFFFu;
#ifdef KAPPA_CRC_FOLDS
    if (size >= 64 && kappa_crc_may_fold) {
        size_t folded = size & ~(size_t)15;
        crc = kappa_crc_by_folding(crc, at, folded);
        at += folded;
        size -= folded;
    }
#endif
    return (kappa_crc_by_table(crc, at, size) ^ 0xFFFFFFFFu) & 0x7FFFFFFFu;
}

#endif
