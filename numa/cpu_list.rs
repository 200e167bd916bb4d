//! The kernel's list notation for CPUs and nodes: `0-3,8,10-11`.

/// One more than the largest CPU number that is believed. Linux is built for at most 8,192 CPUs; without a
/// limit a corrupt `0-4294967295` would ask for gigabytes.
pub const CPU_LIMIT: usize = 65_536;

/// Why a text is not a CPU list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuListError {
    /// A piece between commas is not a number or a range.
    #[error("{piece:?} is not a CPU number or a range such as 0-3")]
    NotANumber {
        /// The offending piece.
        piece: String,
    },
    /// A range runs from high to low.
    #[error("the range {first}-{last} runs backwards")]
    Backwards {
        /// The number before the dash.
        first: usize,
        /// The number after the dash.
        last: usize,
    },
    /// A number that no kernel can mean.
    #[error("CPU {cpu} is beyond the limit of {CPU_LIMIT}")]
    TooLarge {
        /// The number read.
        cpu: usize,
    },
}

/// Reads a list such as `0-3,8,10-11` into ascending numbers without repeats.
///
/// An empty text is an empty list: that is how the kernel describes a node without CPUs.
pub fn parse(text: &str) -> Result<Vec<usize>, CpuListError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut cpus = Vec::new();
    for piece in text.split(',') {
        let (first, last) = match piece.split_once('-') {
            Some((first, last)) => (number(first, piece)?, number(last, piece)?),
            None => {
                let cpu = number(piece, piece)?;
                (cpu, cpu)
            }
        };
        if first > last {
            return Err(CpuListError::Backwards { first, last });
        }
        cpus.extend(first..=last);
        if cpus.len() > 2 * CPU_LIMIT {
            // Repeated ranges may not grow the list without bound either.
            cpus.sort_unstable();
            cpus.dedup();
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

/// Writes numbers in the kernel's notation, whatever their order; an empty list is `none`.
pub fn format(cpus: &[usize]) -> String {
    let mut sorted = cpus.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for cpu in sorted {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    if runs.is_empty() {
        return "none".to_string();
    }
    let words: Vec<String> = runs
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    words.join(",")
}

fn number(digits: &str, piece: &str) -> Result<usize, CpuListError> {
    let digits = digits.trim();
    let not_a_number = || CpuListError::NotANumber { piece: piece.chars().take(40).collect() };
    // `parse` alone would accept a leading plus.
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(not_a_number());
    }
    let cpu: usize = digits.parse().map_err(|_| not_a_number())?;
    if cpu >= CPU_LIMIT { Err(CpuListError::TooLarge { cpu }) } else { Ok(cpu) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(parse("0-3,8,10-11\n"), Ok(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse("\n"), Ok(vec![]));
        assert_eq!(parse("5,4,4-6"), Ok(vec![4, 5, 6]));
    }

    #[test]
    fn says_what_is_wrong() {
        let said = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(said("0-3,x"), "\"x\" is not a CPU number or a range such as 0-3");
        assert_eq!(said("0,,1"), "\"\" is not a CPU number or a range such as 0-3");
        assert_eq!(said("\u{1b}[2J"), "\"\\u{1b}[2J\" is not a CPU number or a range such as 0-3");
        assert_eq!(said("+1"), "\"+1\" is not a CPU number or a range such as 0-3");
        assert_eq!(said("3-1"), "the range 3-1 runs backwards");
        assert_eq!(said("0-4294967295"), "CPU 4294967295 is beyond the limit of 65536");
        assert_eq!(
            said("99999999999999999999"),
            "\"99999999999999999999\" is not a CPU number or a range such as 0-3"
        );
    }

    #[test]
    fn writes_runs() {
        assert_eq!(format(&[11, 0, 1, 2, 3, 8, 10]), "0-3,8,10-11");
        assert_eq!(format(&[]), "none");
    }
}
