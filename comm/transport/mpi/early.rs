//! Messages for endpoints that are not open yet.
//!
//! Endpoints are opened by other threads than the one that takes messages in, at any moment: also between two messages of one
//! sender and tag, whose order is a promise. So what comes for a group waits behind what waits for it already.

use super::shared::{Channel, Shared};
use super::wire::Address;
use crate::transport::Buffer;

/// See the top of the file.
#[derive(Default)]
pub(super) struct Early {
    messages: Vec<(Address, Buffer)>,
}

impl Early {
    /// Puts a message where its receiver finds it, or aside until it is there.
    pub(super) fn put(&mut self, shared: &Shared, address: Address, buffer: Buffer) {
        let waits = self.messages.iter().any(|(other, _)| other.channel == address.channel);
        match shared.channel(address.channel).filter(|_| !waits) {
            Some(channel) => hand_over(&channel, address, buffer),
            None => self.messages.push((address, buffer)),
        }
    }

    /// Hands over what waits for endpoints that are open by now.
    pub(super) fn hand_on(&mut self, shared: &Shared) {
        let messages = std::mem::take(&mut self.messages);
        messages.into_iter().for_each(|(address, buffer)| self.put(shared, address, buffer));
    }
}

fn hand_over(channel: &Channel, address: Address, buffer: Buffer) {
    let Address { from, to, tag, .. } = address;
    if let Some(Some(place)) = channel.places.get(to) {
        place.put(to, from, tag, buffer);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Peer;
    use crate::transport::place::Patience;
    use crate::transport::{Kind, Tag};

    const TEXT: Tag = Tag { exchange: 0, kind: Kind::Text };

    #[test]
    fn what_comes_after_endpoints_are_opened_stays_behind_what_came_before() {
        let patience = Patience { timeout: Duration::from_secs(60), grace: Duration::ZERO };
        let shared = Shared::new(0, 2, patience);
        let mut early = Early::default();
        let put = |early: &mut Early, channel: usize, value: f32| {
            let address = Address { channel, from: 1, to: 0, tag: TEXT };
            early.put(&shared, address, Buffer(vec![value]));
        };
        put(&mut early, 0, 1.0);
        put(&mut early, 0, 2.0);
        let groups = [0, 1].map(|number| shared.open(number, vec![0, 1]));
        put(&mut early, 0, 3.0);
        // What waits for one group holds up no other.
        put(&mut early, 1, 4.0);
        let found = |group: usize| {
            let place = groups[group].places[0].as_ref().expect("a rank of this process");
            let look = || place.look(0, Peer::Rank(1), TEXT).expect("nobody is gone");
            std::iter::from_fn(|| look().map(|(_, buffer)| buffer[0])).collect::<Vec<f32>>()
        };
        assert_eq!((found(0), found(1)), (vec![], vec![4.0]));
        early.hand_on(&shared);
        put(&mut early, 0, 5.0);
        assert_eq!(found(0), [1.0, 2.0, 3.0, 5.0]);
    }
}
