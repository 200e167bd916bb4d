//! The sources that rows of places see in a pass: runs of channels, block by block and tap by tap, in chunks.

use std::ops::Range;

use super::passes::{Pass, Passes};
use super::weights::Packing;
use crate::kernel::correlate::Run;
use crate::kernel::strip::Strip;

/// The sources of a pass, in packed order and in chunks. Rows whose taps see padding leave those taps out.
pub(super) struct Sources {
    /// How many.
    pub count: usize,
    /// Where each chunk begins and the last ends.
    starts: Vec<usize>,
    /// The runs of each kind of row, chunk by chunk, and where each chunk begins and the last ends.
    kinds: Vec<(Vec<Run>, Vec<usize>)>,
    /// The kind of each row of places.
    rows: Vec<usize>,
    /// The kind of each row and the next together, where that sees all that either of them does.
    pairs: Vec<Option<usize>>,
}

impl Sources {
    /// In how many chunks they are.
    pub fn chunks(&self) -> usize {
        self.starts.len() - 1
    }

    /// The sources of a chunk.
    pub fn of_chunk(&self, chunk: usize) -> Range<usize> {
        self.starts[chunk]..self.starts[chunk + 1]
    }

    /// One chunk, or all.
    pub fn those(&self, chunk: Option<usize>) -> Range<usize> {
        chunk.map_or(0..self.chunks(), |chunk| chunk..chunk + 1)
    }

    /// What a row sees of a chunk.
    pub fn of_row(&self, row: usize, chunk: usize) -> &[Run] {
        self.of_kind(self.rows[row], chunk)
    }

    /// What a row and the next see of a chunk, if they can be computed together: the strip holds zeros where a row sees
    /// padding.
    pub fn of_pair(&self, row: usize, chunk: usize) -> Option<&[Run]> {
        self.pairs[row].map(|kind| self.of_kind(kind, chunk))
    }

    fn of_kind(&self, kind: usize, chunk: usize) -> &[Run] {
        let (runs, starts) = &self.kinds[kind];
        &runs[starts[chunk]..starts[chunk + 1]]
    }
}

/// The sources of each pass: block of channels by block, tap by tap, cut into chunks of at most `most` sources.
pub(super) fn sources_of(
    passes: &Passes,
    strip: Option<&Strip>,
    packing: &Packing,
    plane_len: usize,
    most: usize,
) -> Vec<Sources> {
    let least = [0, 1].map(|a| passes.reach(a)[0]);
    let planes = packing.sources.div_ceil(packing.source_block);
    // In words, as is all below.
    let of = |pass: &Pass| {
        let mut first = 0;
        let mut runs = Vec::new();
        for plane in 0..planes {
            for tap in &pass.taps {
                let seen = [0, 1].map(|a| (tap.offset[a] - least[a]) as usize);
                let offset = plane * plane_len + strip.map_or(0, |s| s.tap(seen[0], seen[1]));
                let channels = packing.source_block.min(packing.sources - plane * packing.source_block);
                let len = packing.words(channels);
                runs.push((
                    Run { offset: offset as u32, len: len as u32, first: first as u32 },
                    tap.offset[0],
                ));
                first += len;
            }
        }
        let chunks = chunks(&runs, most);
        let mut seen_by: Vec<Vec<bool>> = Vec::new();
        let mut kinds = Vec::new();
        let rows = (0..passes.places[0]).map(|row| {
            let at = (row * passes.source_step[0]) as isize;
            let inside = |tap: isize| (0..passes.source[0] as isize).contains(&(at + tap));
            let seen: Vec<bool> = pass.taps.iter().map(|t| inside(t.offset[0])).collect();
            let known = seen_by.iter().position(|other| *other == seen);
            known.unwrap_or_else(|| {
                let (mut starts, mut visible) = (vec![0], Vec::new());
                for chunk in &chunks {
                    let seen =
                        runs[chunk.clone()].iter().filter(|(_, tap)| inside(*tap)).map(|(run, _)| *run);
                    // Blocks of channels keep a run for each tap, with which the next pixels are asked for.
                    match packing.source_block {
                        1 => visible.extend(joined(seen)),
                        _ => visible.extend(seen),
                    }
                    starts.push(visible.len());
                }
                kinds.push((visible, starts));
                seen_by.push(seen);
                kinds.len() - 1
            })
        });
        let rows: Vec<usize> = rows.collect();
        let both = |row: usize| {
            let second = &seen_by[*rows.get(row + 1)?];
            let both: Vec<bool> = seen_by[rows[row]].iter().zip(second).map(|(a, b)| *a || *b).collect();
            seen_by.iter().position(|seen| *seen == both)
        };
        let pairs = (0..rows.len()).map(both).collect();
        let begin = |chunk: &Range<usize>| runs.get(chunk.start).map_or(first, |(run, _)| run.first as usize);
        let starts = chunks.iter().map(begin).chain([first]).collect();
        Sources { count: first, starts, kinds, rows, pairs }
    };
    passes.passes.iter().map(of).collect()
}

/// Runs with those that go on where the last one ends as one: of plain planes, the taps of a row. A tile of few registers is done
/// with a single source before it has found the next run.
fn joined(runs: impl Iterator<Item = Run>) -> Vec<Run> {
    let mut joined: Vec<Run> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if [last.offset + last.len, last.first + last.len] == [run.offset, run.first] => {
                last.len += run.len;
            }
            _ => joined.push(run),
        }
    }
    joined
}

/// Cuts runs into near-equal chunks of at most `most` sources, but at least one run; always one chunk, even of no run.
fn chunks(runs: &[(Run, isize)], most: usize) -> Vec<Range<usize>> {
    let lens = || runs.iter().map(|(run, _)| run.len as usize);
    let (all, longest) = (lens().sum::<usize>(), lens().max().unwrap_or(1).max(1));
    let parts = all.div_ceil(most).max(1);
    let most = all.div_ceil(parts).next_multiple_of(longest).min(most);
    let mut chunks: Vec<Range<usize>> = Vec::new();
    let (mut start, mut sources) = (0, 0);
    for (i, (run, _)) in runs.iter().enumerate() {
        if sources > 0 && sources + run.len as usize > most {
            chunks.push(start..i);
            (start, sources) = (i, 0);
        }
        sources += run.len as usize;
    }
    chunks.push(start..runs.len());
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kernel::strip::Content;
    use crate::layer::convolution::passes::Tap;
    use crate::layer::convolution::weights::{Taps, Words};

    #[test]
    fn chunks_are_near_equal() {
        let cut = |blocks: usize, len: u32, most: usize| {
            let runs = vec![(Run { offset: 0, len, first: 0 }, 0); blocks];
            chunks(&runs, most).iter().map(|chunk| chunk.len() * len as usize).collect::<Vec<_>>()
        };
        assert_eq!(cut(128, 8, 320), [256; 4]);
        assert_eq!(cut(41, 8, 320), [168, 160]);
        assert_eq!(cut(256, 8, 320), [296, 296, 296, 296, 296, 296, 272]);
        assert_eq!(cut(40, 8, 320), [320]);
        // Whole runs, also where each is more than a chunk.
        assert_eq!(cut(3, 8, 5), [8; 3]);
        assert_eq!(cut(0, 8, 320), [0]);
    }

    /// Seven taps of a row, two channels, a stride of 2: columns 0, 2, 4 and 6 of a channel lie side by side, as 1, 3 and 5 do.
    #[test]
    fn taps_of_a_phase_of_plain_planes_are_one_run() {
        let taps = (0..7).map(|c| Tap { index: c, offset: [0, c as isize] }).collect();
        let pass = Pass { taps, first: [0; 2], step: [1; 2], places: [0..1, 0..4] };
        let (source, target, source_step, places) = ([1, 13], [1, 4], [1, 2], [1, 4]);
        let passes =
            Passes { passes: vec![pass], source, target, source_step, places, overlap: false }.by_phase();
        let strip = passes.strip(Content::Copy, 2, 1, 1);
        let packing = Packing {
            groups: 1,
            sources: 2,
            targets: 8,
            source_block: 1,
            words: Words::Numbers,
            kernel: Taps::all(7),
            vector: 8,
            tile_vectors: 2,
            targets_are_outputs: true,
            isa: Isa::Portable,
            passes: Packing::taps(&passes, 7),
        };
        let sources = sources_of(&passes, Some(&strip), &packing, strip.plane_len(), 100).remove(0);
        let runs: Vec<[usize; 3]> = sources
            .of_row(0, 0)
            .iter()
            .map(|run| [run.offset, run.len, run.first].map(|number| number as usize))
            .collect();
        let [even, odd] = [0, 1].map(|column| strip.tap(0, column));
        let second = strip.plane_len();
        assert_eq!(runs, [[even, 4, 0], [odd, 3, 4], [second + even, 4, 7], [second + odd, 3, 11]]);
        let order: Vec<usize> = passes.passes[0].taps.iter().map(|tap| tap.index).collect();
        assert_eq!(order, [0, 2, 4, 6, 1, 3, 5]);
    }
}
