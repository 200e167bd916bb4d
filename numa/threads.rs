//! The plan of threads: which core each runs on, and which cores are kept for those that do not compute.
//!
//! The slowest quadrant decides how long an iteration takes, so a core is only given to another thread by default where
//! that costs next to nothing: from quadrants with more cores than the smallest (a KNL of 68 cores has 18/18/16/16), or with
//! very many. Whoever has no core of its own runs wherever the process may, and the system finds a place for it.

use std::fmt;
use std::str::FromStr;

use crate::cpu_list;

/// A quadrant that keeps this many cores for its crew loses at most 3 % by giving one away.
const MANY_CORES: usize = 32;

/// No machine is for reading alone.
const MOST_RESERVED: usize = 1024;

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Computes, in the crew of a quadrant.
    Compute,
    /// Leads a worker: hands tasks to its quadrants and waits for them.
    Main,
    /// Exchanges with other workers.
    Comm,
    /// Reads and decodes samples.
    Io,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compute => "compute",
            Self::Main => "main",
            Self::Comm => "comm",
            Self::Io => "io",
        })
    }
}

/// One thread and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread {
    /// What it does.
    pub role: Role,
    /// The worker that it belongs to.
    pub worker: usize,
    /// The quadrant that it works in, or one of whose cores it has.
    pub quadrant: Option<usize>,
    /// The CPU that it is pinned to; `None` if it runs wherever the process may.
    pub cpu: Option<usize>,
}

/// Which cores of each worker are kept for threads that do not compute (`--reserve`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reserve {
    /// One for each such thread where that costs the crews next to nothing.
    #[default]
    Auto,
    /// So many, even if crews get smaller; none for none.
    Cores {
        /// For the thread that leads a worker: 0 or 1.
        main: usize,
        /// For the thread that exchanges: 0 or 1.
        comm: usize,
        /// For threads that read and decode.
        io: usize,
    },
}

impl Reserve {
    /// No cores.
    pub const NONE: Self = Self::Cores { main: 0, comm: 0, io: 0 };
}

impl FromStr for Reserve {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "none" => return Ok(Self::NONE),
            _ => {}
        }
        let expected = "expected auto, none, or some of main, comm and io, such as main,comm,io=2";
        let (mut main, mut comm, mut io) = (0, 0, 0);
        for word in text.split(',') {
            let (name, count) = word.split_once('=').unwrap_or((word, "1"));
            let count: usize = count.trim().parse().map_err(|_| format!("{word:?}; {expected}"))?;
            let (place, most) = match name.trim() {
                "main" => (&mut main, 1),
                "comm" => (&mut comm, 1),
                "io" => (&mut io, MOST_RESERVED),
                _ => return Err(format!("{word:?}; {expected}")),
            };
            if *place != 0 || count == 0 || count > most {
                return Err(format!("{word:?}: 1 to {most} core(s), each role once; {expected}"));
            }
            *place = count;
        }
        Ok(Self::Cores { main, comm, io })
    }
}

/// What decides about the cores of threads that do not compute.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// How many workers share the quadrants evenly, one after the other.
    pub workers: usize,
    /// What is reserved.
    pub reserve: Reserve,
    /// Cores that a crew needs, if that is given. The others of a quadrant are free.
    pub crew_cores: Option<usize>,
    /// Whether crews may lose a core without being told to.
    pub may_shrink: bool,
}

/// A thread that does not compute, with the quadrant that gives it a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub role: Role,
    pub worker: usize,
    pub quadrant: Option<usize>,
}

/// Gives the threads of all workers that do not compute a quadrant to take a core from, its last ones first; `cores` are those
/// of each quadrant. Each quadrant keeps at least one.
pub(crate) fn reserve(cores: &[usize], wish: &Wish) -> Vec<Place> {
    let each = cores.len() / wish.workers.max(1);
    let smallest = cores.iter().copied().min().unwrap_or(0);
    let mut left = cores.to_vec();
    let mut places = Vec::new();
    for worker in 0..wish.workers.max(1) {
        let own = worker * each..(worker + 1) * each;
        for (role, asked) in roles(wish) {
            let can_give = |quadrant: &usize| {
                let left = left[*quadrant];
                let free = wish.crew_cores.is_some_and(|crew| left > crew.max(1));
                let costs_nothing = wish.may_shrink && (left > smallest || left > MANY_CORES);
                free || (left > 1 && (asked || wish.reserve == Reserve::Auto && costs_nothing))
            };
            let wants = asked || wish.reserve == Reserve::Auto;
            let givers = own.clone().filter(|quadrant| wants && can_give(quadrant));
            // The first of the largest.
            let quadrant = givers.reduce(|best, other| if left[other] > left[best] { other } else { best });
            if let Some(quadrant) = quadrant {
                left[quadrant] -= 1;
            }
            places.push(Place { role, worker, quadrant });
        }
    }
    places
}

/// The threads of a worker that do not compute, and whether a core is asked for each.
fn roles(wish: &Wish) -> Vec<(Role, bool)> {
    let (main, comm, io) = match wish.reserve {
        Reserve::Auto => (0, 0, 0),
        Reserve::Cores { main, comm, io } => (main, comm, io),
    };
    let mut roles = vec![(Role::Main, main > 0)];
    // Who is alone exchanges with nobody.
    if wish.workers > 1 || comm > 0 {
        roles.push((Role::Comm, comm > 0));
    }
    roles.extend((0..io.max(1)).map(|reader| (Role::Io, reader < io)));
    roles
}

/// What became of the wish, as a clause for people; `None` if nobody wished anything.
pub(crate) fn describe(threads: &[Thread], reserve: Reserve) -> Option<String> {
    if reserve == Reserve::NONE {
        return None;
    }
    let others = || threads.iter().filter(|thread| thread.role != Role::Compute);
    let (own, shared): (Vec<&Thread>, Vec<&Thread>) = others().partition(|thread| thread.cpu.is_some());
    let names = |of: &[&Thread]| {
        let present =
            [Role::Main, Role::Comm, Role::Io].into_iter().filter(|r| of.iter().any(|t| t.role == *r));
        present.map(|role| role.to_string()).collect::<Vec<_>>().join(", ")
    };
    let cpus: Vec<usize> = own.iter().filter_map(|thread| thread.cpu).collect();
    let first = format!("{} on CPUs {} of their own", names(&own), cpu_list::format(&cpus));
    let why = match reserve {
        Reserve::Auto => "a core for each would cost too much",
        Reserve::Cores { .. } => "there are no more cores, or none was asked for them",
    };
    let rest = format!("{} beside the crews, not pinned ({why})", names(&shared));
    Some(match (own.is_empty(), shared.is_empty()) {
        (true, true) => return None,
        (false, true) => first,
        (true, false) => rest,
        (false, false) => format!("{first}, {rest}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn givers(cores: &[usize], workers: usize, reserve_text: &str) -> Vec<(String, Option<usize>)> {
        let reserve_wish = reserve_text.parse().expect("a wish");
        let wish = Wish { workers, reserve: reserve_wish, crew_cores: None, may_shrink: true };
        reserve(cores, &wish).iter().map(|place| (place.role.to_string(), place.quadrant)).collect()
    }

    #[test]
    fn by_default_only_what_costs_nothing_is_given() {
        let of = |roles: &[(&str, Option<usize>)]| -> Vec<(String, Option<usize>)> {
            roles.iter().map(|(role, quadrant)| (role.to_string(), *quadrant)).collect()
        };
        assert_eq!(givers(&[18, 18, 16, 16], 1, "auto"), of(&[("main", Some(0)), ("io", Some(1))]));
        assert_eq!(givers(&[16; 4], 1, "auto"), of(&[("main", None), ("io", None)]));
        assert_eq!(givers(&[64], 1, "auto"), of(&[("main", Some(0)), ("io", Some(0))]));
        assert_eq!(givers(&[1, 1], 2, "auto")[..3], of(&[("main", None), ("comm", None), ("io", None)]));
        assert_eq!(givers(&[64], 1, "none"), of(&[("main", None), ("io", None)]));
    }

    #[test]
    fn what_is_asked_for_makes_an_uneven_chip_even() {
        let of_knl = givers(&[18, 18, 16, 16], 1, "main,comm,io=2");
        let quadrants: Vec<_> = of_knl.iter().map(|(_, quadrant)| *quadrant).collect();
        assert_eq!(quadrants, [Some(0), Some(1), Some(0), Some(1)]);
        // A quadrant keeps its last core.
        let few: Vec<_> = givers(&[2, 1], 1, "io=3").into_iter().filter(|(role, _)| role == "io").collect();
        assert_eq!(few.iter().filter(|(_, quadrant)| quadrant.is_some()).count(), 1);
    }

    #[test]
    fn spare_cores_are_used_first() {
        let wish = Wish { workers: 1, reserve: Reserve::Auto, crew_cores: Some(14), may_shrink: false };
        assert_eq!(reserve(&[16], &wish).iter().filter(|place| place.quadrant.is_some()).count(), 2);
        let wish = Wish { crew_cores: Some(16), ..wish };
        assert_eq!(reserve(&[16], &wish).iter().filter(|place| place.quadrant.is_some()).count(), 0);
    }

    #[test]
    fn wishes_are_read_and_odd_ones_refused() {
        assert_eq!("main,io=3".parse(), Ok(Reserve::Cores { main: 1, comm: 0, io: 3 }));
        assert_eq!(("auto".parse(), "none".parse()), (Ok(Reserve::Auto), Ok(Reserve::NONE)));
        for odd in ["", "cat", "main=2", "io=0", "io=-1", "io,io", "main,", "io=9999999999999999999999"] {
            assert!(odd.parse::<Reserve>().is_err(), "{odd}");
        }
    }
}
