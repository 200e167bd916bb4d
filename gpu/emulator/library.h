// What the emulated libraries have in common: what they take for memory, and numbers as tensor cores take them.
#pragma once

#include "work.h"

#include <cstdint>
#include <cstring>

// How factors are rounded before they are multiplied; sums are of floats.
enum class Factors { FLOAT, TF32, BF16 };

// The nearest number with `bits` less of mantissa, and of two the even one. Of no infinities, which tests have none of.
inline float without_bits(float value, int bits) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    uint32_t kept = word >> bits & 1;
    word = (word + (1u << (bits - 1)) - 1 + kept) >> bits << bits;
    memcpy(&value, &word, sizeof word);
    return value;
}

inline float as_factor(float value, Factors how) {
    return how == Factors::FLOAT ? value : without_bits(value, how == Factors::TF32 ? 13 : 16);
}

// An array of a GPU, in bytes.
struct Range {
    char *start;
    size_t bytes;

    bool is_of(int device) const { return bytes > 0 && is_memory(device, start, bytes); }
    bool meets(const Range &other) const {
        return start < other.start + other.bytes && other.start < start + bytes;
    }
};

inline Range range(const void *start, size_t bytes) { return {static_cast<char *>(const_cast<void *>(start)), bytes}; }

// Workspace holds nothing before that anybody may count on, nor behind.
inline void spoil(const Range &workspace) {
    if (workspace.start) {
        memset(workspace.start, 0xff, workspace.bytes);
    }
}
