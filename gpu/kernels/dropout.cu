// Dropout with the random bits of `core/rng`: Philox4x32-10, a block of four words for four values.

__device__ inline void philox(u32 words[4], u32 key0, u32 key1) {
    for (int round = 0; round < 10; round++) {
        u64 first = (u64)0xD2511F53u * words[0], second = (u64)0xCD9E8D57u * words[2];
        u32 b = words[1], d = words[3];
        words[0] = (u32)(second >> 32) ^ b ^ key0;
        words[1] = (u32)second;
        words[2] = (u32)(first >> 32) ^ d ^ key1;
        words[3] = (u32)first;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

// y = x m with m 0 or `scale`; a value is dropped if the upper 24 of its bits are less than `threshold`. A thread treats the
// values of one random block, so THREADS threads do four times as many.
extern "C" __global__ void dropout(const float* x, float* y, const Scalars* scalars, u32 purpose, u32 threshold, float scale, int count) {
    u32 block = place(), begin = block * 4;
    if (begin >= count) {
        return;
    }
    u32 words[4] = {block, 0, purpose, 0};
    philox(words, (u32)scalars->seed, (u32)(scalars->seed >> 32));
    for (int word = 0; word < 4; word++) {
        u32 i = begin + word;
        if (i < count) {
            // A product, since what is not a number must stay so.
            y[i] = x[i] * (words[word] >> 8 < threshold ? 0.0f : scale);
        }
    }
}
