//! `quadrille topo --verify`: whether memory and threads end up where they are sent.

use quadrille_numa::Partition;
use quadrille_numa::verify::{QuadrantFinding, verify};

use crate::failure::{Code, Failure};

/// What each quadrant takes on each of its nodes: some large pages for every thread.
const BYTES_EACH: usize = 16 << 20;

/// Takes, touches, asks and tells.
pub fn run(partition: &Partition) -> Result<(), Failure> {
    let findings = verify(partition, BYTES_EACH);
    for finding in &findings {
        say!("verify      {}", finding.line());
    }
    conclude(&findings)
}

fn conclude(findings: &[QuadrantFinding]) -> Result<(), Failure> {
    let wrong = findings.iter().filter(|finding| !finding.is_right()).count();
    if wrong == 0 {
        return Ok(());
    }
    let message = format!(
        "{wrong} of {} quadrants have memory or threads elsewhere than on their nodes and CPUs\n  hint: is memory left on \
         these nodes (numactl --hardware), and does the job own them (Mems_allowed_list in /proc/self/status)?",
        findings.len()
    );
    Err(Failure::new(Code::Environment, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quadrille_numa::memory::Census;
    use quadrille_numa::verify::NodeFinding;

    fn finding(on: usize) -> QuadrantFinding {
        let pages = Ok(Census { on: [(on, 8)].into(), ..Census::default() });
        let memories = vec![NodeFinding { kind: "DRAM", node: 1, pages }];
        QuadrantFinding { quadrant: 0, memories, small: None, threads: 1, astray: vec![], refused: vec![] }
    }

    #[test]
    fn pages_elsewhere_end_with_the_environments_code() {
        assert!(conclude(&[finding(1), finding(1)]).is_ok());
        let failure = conclude(&[finding(1), finding(2)]).unwrap_err();
        assert_eq!(failure.code, Code::Environment as u8);
        assert!(failure.message.starts_with("1 of 2 quadrants have"), "{failure}");
    }
}
