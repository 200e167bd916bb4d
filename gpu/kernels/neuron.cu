// One function for all values. `kind` is the number of the function; a, b and c are its constants, as `layer/neuron.rs` lists
// them.

#define ABS 0
#define BNLL 1
#define CLIP 2
#define ELU 3
#define EXP 4
#define LOG 5
#define POWER 6
#define SIGMOID 7
#define SWISH 8
#define TANH 9
#define THRESHOLD 10

__device__ inline float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

__device__ inline float neuron(int kind, float x, float a, float b, float c) {
    switch (kind) {
    case ABS: return larger(x, -x);
    case BNLL: return x > 0.0f ? x + logf(1.0f + expf(-x)) : logf(1.0f + expf(x));
    case CLIP: return larger(a, smaller(x, b));
    case ELU: return larger(x, 0.0f) + a * (expf(smaller(x, 0.0f)) - 1.0f);
    case EXP: return b * expf(a * x);
    case LOG: return logf(b * x + c) * a;
    case POWER: {
        float inner = b * x + c;
        return a == 0.0f ? 1.0f : a == 1.0f ? inner : powf(inner, a);
    }
    case SIGMOID: return sigmoid(x);
    case SWISH: return x * sigmoid(a * x);
    case TANH: return tanhf(x);
    default: return x > a ? 1.0f : 0.0f;
    }
}

// dy / dx at the value that the layer keeps for it.
__device__ inline float derivative(int kind, float at, float a, float b, float c) {
    switch (kind) {
    case ABS: return at > 0.0f ? 1.0f : at < 0.0f ? -1.0f : 0.0f;
    case BNLL: {
        float e = expf(smaller(at, 50.0f));
        return e / (e + 1.0f);
    }
    case CLIP: return at >= a && at <= b ? 1.0f : 0.0f;
    case ELU: return at > 0.0f ? 1.0f : a >= 0.0f ? a + at : a * expf(at);
    case EXP: return at * a;
    case LOG: return 1.0f / (b * at + c) * (b * a);
    case POWER: {
        float slope = a * b;
        if (a == 1.0f) {
            return slope;
        }
        float inner = b * at + c;
        return a == 2.0f ? slope * inner : slope * powf(inner, a - 1.0f);
    }
    case SIGMOID: return at * (1.0f - at);
    case SWISH: {
        float s = sigmoid(a * at), y = at * s;
        return a * y + s * (1.0f - a * y);
    }
    case TANH: return 1.0f - at * at;
    default: return 0.0f;
    }
}

extern "C" __global__ void neuron_forward(const float* x, float* y, int kind, float a, float b, float c, int count) {
    u32 i = place();
    if (i < count) {
        y[i] = neuron(kind, x[i], a, b, c);
    }
}

extern "C" __global__ void neuron_backward(const float* dy, const float* at, float* dx, int kind, float a, float b, float c, int count) {
    u32 i = place();
    if (i < count) {
        dx[i] = dy[i] * derivative(kind, at[i], a, b, c);
    }
}
