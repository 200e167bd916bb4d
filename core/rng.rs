//! Random numbers that depend on a counter only, never on who asked before.
//!
//! Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC11). A stream is
//! named by seed, purpose and worker; element `i` of a stream is a pure function of those and of `i`, so any
//! thread can compute any part, and a run resumes at any point with nothing stored.

/// What a stream of random numbers is used for. Streams of different purposes never overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Filling of the parameter with this index in the packed buffer.
    Filler(u32),
    /// The order in which a worker draws its samples.
    Sampling,
    /// Random changes to samples (mirror, crop).
    Transform,
    /// Random sizes of samples: block `k` of each of these holds numbers of draw `k`. The number is below 2^28.
    Resize(u32),
    /// Data made up for timing.
    Dummy,
    /// The seeds of a worker's steps.
    Step,
    /// What times of a virtual clock are longer by.
    Jitter,
    /// What the layer with this index draws in one step.
    Layer(u32),
}

impl Purpose {
    /// Its word of the counter, for devices that draw by a generator of their own.
    pub fn word(self) -> u32 {
        match self {
            Self::Sampling => 1,
            Self::Transform => 2,
            Self::Dummy => 3,
            Self::Step => 4,
            Self::Jitter => 5,
            Self::Resize(index) => 0x2000_0000 | index,
            Self::Layer(index) => 0x4000_0000 | index,
            Self::Filler(index) => 0x8000_0000 | index,
        }
    }
}

/// One stream of random numbers.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    key: [u32; 2],
    purpose: u32,
    worker: u32,
}

impl Stream {
    /// The stream of `purpose` for `worker` under `seed`.
    pub fn new(seed: u64, purpose: Purpose, worker: u32) -> Self {
        Self { key: [seed as u32, (seed >> 32) as u32], purpose: purpose.word(), worker }
    }

    /// The stream of another purpose under the same seed, for the same worker.
    pub fn for_purpose(&self, purpose: Purpose) -> Self {
        Self { purpose: purpose.word(), ..*self }
    }

    /// Block `counter` of the stream: four independent 32-bit words.
    pub fn block(&self, counter: u64) -> [u32; 4] {
        self.blocks(counter).map(|[word]| word)
    }

    /// Blocks `counter` to `counter + BLOCKS`, as [`Self::block`] gives them, word by word: many at once, in loops that
    /// a compiler turns into vectors of the tier for which it compiles the caller.
    #[inline(always)]
    pub fn blocks<const BLOCKS: usize>(&self, counter: u64) -> [[u32; BLOCKS]; 4] {
        let (mut low, mut high) = ([0; BLOCKS], [0; BLOCKS]);
        for i in 0..BLOCKS {
            let counter = counter.wrapping_add(i as u64);
            (low[i], high[i]) = (counter as u32, (counter >> 32) as u32);
        }
        philox4x32_10([low, high, [self.purpose; BLOCKS], [self.worker; BLOCKS]], self.key)
    }

    /// Element `i` as 32 random bits.
    pub fn bits(&self, i: u64) -> u32 {
        self.block(i / 4)[(i % 4) as usize]
    }

    /// Element `i`, uniform in [0, 1), with 24 bits of resolution.
    pub fn uniform(&self, i: u64) -> f32 {
        uniform(self.bits(i))
    }

    /// Elements `first`, `first + 1`, … as [`Self::uniform`] gives them.
    pub fn uniforms(&self, first: u64, out: &mut [f32]) {
        self.elements(first, out, |words| words.map(uniform));
    }

    /// Element `i` of a standard normal distribution (Box–Muller on one block).
    pub fn normal(&self, i: u64) -> f32 {
        normals(self.block(i / 2))[(i % 2) as usize]
    }

    /// Elements `first`, `first + 1`, … as [`Self::normal`] gives them.
    pub fn normals(&self, first: u64, out: &mut [f32]) {
        self.elements(first, out, normals);
    }

    /// Elements from `first` on, of which `of` makes `EACH` from each block.
    fn elements<const EACH: usize>(&self, first: u64, out: &mut [f32], of: impl Fn([u32; 4]) -> [f32; EACH]) {
        let (block, skipped) = (first / EACH as u64, (first % EACH as u64) as usize);
        let (begun, whole) = out.split_at_mut(((EACH - skipped) % EACH).min(out.len()));
        begun.copy_from_slice(&of(self.block(block))[skipped..][..begun.len()]);
        for (block, part) in (first.div_ceil(EACH as u64)..).zip(whole.chunks_mut(EACH)) {
            part.copy_from_slice(&of(self.block(block))[..part.len()]);
        }
    }
}

/// Random bits as a number in [0, 1).
fn uniform(bits: u32) -> f32 {
    (bits >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

/// Two numbers of a standard normal distribution.
fn normals([a, b, c, d]: [u32; 4]) -> [f32; 2] {
    [[a, b], [c, d]].map(|[a, b]| {
        // (0, 1] for the logarithm's sake.
        let u = (f64::from(a) + 1.0) / 4_294_967_296.0;
        let v = f64::from(b) / 4_294_967_296.0;
        ((-2.0 * u.ln()).sqrt() * (2.0 * std::f64::consts::PI * v).cos()) as f32
    })
}

/// The seed of everything that layers draw in one step of `worker`: another in each iteration and on each worker.
pub fn step_seed(seed: u64, worker: u32, iteration: u64) -> u64 {
    let [low, high, ..] = Stream::new(seed, Purpose::Step, worker).block(iteration);
    u64::from(high) << 32 | u64::from(low)
}

/// Where a layer draws its random numbers in a step: all that they depend on but the place of the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Draw {
    /// The step's seed ([`step_seed`]).
    pub seed: u64,
    /// The layer's place in its net.
    pub layer: u32,
    /// The first image of the task, counted over the worker's whole mini-batch. Element `i` of a blob is drawn at
    /// `first_image · (elements of an image) + i`.
    pub first_image: u64,
}

impl Draw {
    /// The layer's stream in this step.
    pub fn stream(&self) -> Stream {
        Stream::new(self.seed, Purpose::Layer(self.layer), 0)
    }
}

/// The Philox4x32 bijection with ten rounds, of `N` counters at once: word by word, side by side. A word is the lower
/// half of 64 bits, so that products need no widening.
#[inline(always)]
fn philox4x32_10<const N: usize>(counter: [[u32; N]; 4], mut key: [u32; 2]) -> [[u32; N]; 4] {
    const M0: u64 = 0xD251_1F53;
    const M1: u64 = 0xCD9E_8D57;
    const W0: u32 = 0x9E37_79B9;
    const W1: u32 = 0xBB67_AE85;
    const WORD: u64 = 0xffff_ffff;
    let mut words = [[0u64; N]; 4];
    for (wide, word) in words.as_flattened_mut().iter_mut().zip(counter.as_flattened()) {
        *wide = u64::from(*word);
    }
    for _ in 0..10 {
        let [mut a, mut b, mut c, mut d] = words;
        for i in 0..N {
            let (p0, p1) = (M0 * (a[i] & WORD), M1 * (c[i] & WORD));
            (a[i], b[i]) = ((p1 >> 32) ^ b[i] ^ u64::from(key[0]), p1);
            (c[i], d[i]) = ((p0 >> 32) ^ d[i] ^ u64::from(key[1]), p0);
        }
        words = [a, b, c, d];
        key = [key[0].wrapping_add(W0), key[1].wrapping_add(W1)];
    }
    let mut result = [[0; N]; 4];
    for (word, wide) in result.as_flattened_mut().iter_mut().zip(words.as_flattened()) {
        *word = *wide as u32;
    }
    result
}

/// The order in which a worker sees a data set: a fresh pseudo-random permutation every epoch, computed, not
/// stored. Draw `k` is position `k mod n` of epoch `k / n`; a four-round Feistel network over the next power of
/// four permutes the positions, and positions beyond `n` are walked out of their cycle.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    stream: Stream,
    samples: u64,
    half_bits: u32,
}

impl Sampler {
    /// The sampler of `worker` over `samples` samples (at least 1).
    pub fn new(seed: u64, worker: u32, samples: u64) -> Self {
        let samples = samples.max(1);
        let bits = 64 - (samples - 1).leading_zeros();
        Self {
            stream: Stream::new(seed, Purpose::Sampling, worker),
            samples,
            half_bits: bits.div_ceil(2).max(1),
        }
    }

    /// Index of the sample that is drawn as number `k`.
    pub fn index(&self, k: u64) -> u64 {
        let (epoch, mut position) = (k / self.samples, k % self.samples);
        loop {
            position = self.permute(epoch, position);
            if position < self.samples {
                return position;
            }
        }
    }

    fn permute(&self, epoch: u64, position: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (position >> self.half_bits, position & mask);
        for round in 0..4u64 {
            // One Philox block per round: counter = (right half, epoch and round).
            let word = self.stream.block((epoch * 4 + round) << 32 ^ right)[0];
            (left, right) = (right, (left ^ u64::from(word)) & mask);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with Random123 (`kat_vectors`).
    #[test]
    fn philox_gives_the_published_answers() {
        let one = |counter: [u32; 4], key| philox4x32_10(counter.map(|word| [word]), key).map(|[word]| word);
        assert_eq!(one([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(one([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            one([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn blocks_drawn_together_are_those_drawn_alone() {
        let stream = Stream::new(11, Purpose::Layer(3), 2);
        for first in [0, 5, u64::from(u32::MAX) - 3, u64::MAX - 2] {
            let together: [[u32; 9]; 4] = stream.blocks(first);
            for i in 0..9 {
                let alone = stream.block(first.wrapping_add(i as u64));
                assert_eq!(together.map(|word| word[i]), alone, "{i} of {first}");
            }
        }
    }

    #[test]
    fn elements_drawn_together_are_those_drawn_alone() {
        let stream = Stream::new(11, Purpose::Filler(3), 0);
        for (first, count) in [(0, 1), (0, 64), (3, 65), (5, 200), (1 << 34, 7)] {
            let [mut uniforms, mut normals] = [(); 2].map(|()| vec![f32::NAN; count]);
            stream.uniforms(first, &mut uniforms);
            stream.normals(first, &mut normals);
            for i in 0..count {
                let at = first + i as u64;
                assert_eq!(
                    [uniforms[i], normals[i]],
                    [stream.uniform(at), stream.normal(at)],
                    "{i} of {first}"
                );
            }
        }
    }

    #[test]
    fn every_epoch_is_another_permutation() {
        for n in [1u64, 2, 3, 5, 64, 1000, 1025] {
            let sampler = Sampler::new(7, 3, n);
            let epoch = |e: u64| (0..n).map(|k| sampler.index(e * n + k)).collect::<Vec<_>>();
            let (first, second) = (epoch(0), epoch(1));
            let mut sorted = first.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..n).collect::<Vec<_>>());
            assert!(n < 5 || first != second);
        }
    }

    #[test]
    fn workers_and_seeds_draw_differently() {
        let order =
            |seed, worker| (0..100).map(|k| Sampler::new(seed, worker, 5000).index(k)).collect::<Vec<_>>();
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }

    #[test]
    fn steps_workers_and_layers_draw_differently() {
        let words = |seed, worker, iteration, layer| {
            let draw = Draw { seed: step_seed(seed, worker, iteration), layer, first_image: 0 };
            draw.stream().block(0)
        };
        let all =
            [words(1, 0, 0, 2), words(2, 0, 0, 2), words(1, 1, 0, 2), words(1, 0, 1, 2), words(1, 0, 0, 3)];
        assert_eq!(all[0], words(1, 0, 0, 2));
        for (i, one) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other != one), "{i}");
        }
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let stream = Stream::new(42, Purpose::Filler(0), 0);
        let n = 100_000u64;
        let mean = |f: &dyn Fn(u64) -> f64| (0..n).map(f).sum::<f64>() / n as f64;
        assert!((mean(&|i| f64::from(stream.uniform(i))) - 0.5).abs() < 0.01);
        assert!(mean(&|i| f64::from(stream.normal(i))).abs() < 0.02);
        assert!((mean(&|i| f64::from(stream.normal(i)).powi(2)) - 1.0).abs() < 0.02);
    }
}
