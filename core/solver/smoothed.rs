//! The loss that is shown: the mean over the last iterations, computed as Caffe computes it.

/// The mean of the last losses, at most `window` of them (the solver's `average_loss`).
#[derive(Clone, Debug, PartialEq)]
pub struct SmoothedLoss {
    window: usize,
    losses: Vec<f32>,
    noted: u64,
    mean: f32,
}

impl SmoothedLoss {
    /// Without any loss yet; room for all that it will keep.
    pub fn new(window: usize) -> Self {
        let window = window.max(1);
        Self { window, losses: Vec::with_capacity(window), noted: 0, mean: 0.0 }
    }

    /// Takes the loss of the next iteration and returns the mean.
    pub fn note(&mut self, loss: f32) -> f32 {
        if self.losses.len() < self.window {
            self.losses.push(loss);
            let count = self.losses.len() as f32;
            self.mean = (self.mean * (count - 1.0) + loss) / count;
        } else {
            let oldest = &mut self.losses[(self.noted % self.window as u64) as usize];
            self.mean += (loss - std::mem::replace(oldest, loss)) / self.window as f32;
        }
        self.noted += 1;
        self.mean
    }

    /// The mean, as it was last returned.
    pub fn mean(&self) -> f32 {
        self.mean
    }

    /// The losses that it keeps, oldest first, for a snapshot.
    pub fn kept(&self) -> impl Iterator<Item = f32> {
        let full = self.losses.len() == self.window;
        let oldest = if full { (self.noted % self.window as u64) as usize } else { 0 };
        self.losses[oldest..].iter().chain(&self.losses[..oldest]).copied()
    }

    /// As it was when it kept these losses, oldest first, and had this mean; of more than its window, the latest.
    pub fn restored(window: usize, kept: &[f32], mean: f32) -> Self {
        let mut smoothed = Self::new(window);
        smoothed.losses.extend(&kept[kept.len().saturating_sub(smoothed.window)..]);
        let full = smoothed.losses.len() == smoothed.window;
        // The oldest comes first, so it is the next to be replaced.
        smoothed.noted = if full { 0 } else { smoothed.losses.len() as u64 };
        smoothed.mean = mean;
        smoothed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_mean_of_the_last_losses() {
        let mut smoothed = SmoothedLoss::new(3);
        let means: Vec<f32> = [3.0, 6.0, 0.0, 9.0, 3.0].map(|loss| smoothed.note(loss)).into();
        assert_eq!(means, [3.0, 4.5, 3.0, 5.0, 4.0]);
        assert_eq!(smoothed.kept().collect::<Vec<_>>(), [0.0, 9.0, 3.0]);
        let mut as_it_is = SmoothedLoss::new(1);
        assert_eq!([0.3, 0.1, 7.7].map(|loss| as_it_is.note(loss)).map(f32::is_finite), [true; 3]);
        assert!((as_it_is.mean() - 7.7).abs() < 1e-6);
    }

    #[test]
    fn what_was_kept_goes_on_with_the_same_bits() {
        let losses: Vec<f32> = (1..40).map(|i| 1.0 / i as f32).collect();
        for window in [1, 2, 5, 50] {
            for stop in [0, 1, 4, 5, 6, 17] {
                let mut whole = SmoothedLoss::new(window);
                losses[..stop].iter().for_each(|loss| _ = whole.note(*loss));
                let kept: Vec<f32> = whole.kept().collect();
                let mut resumed = SmoothedLoss::restored(window, &kept, whole.mean());
                for loss in &losses[stop..] {
                    assert_eq!(whole.note(*loss).to_bits(), resumed.note(*loss).to_bits(), "{window} {stop}");
                }
            }
        }
    }
}
