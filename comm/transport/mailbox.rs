//! What has arrived at one rank and has not been received yet.

use std::collections::VecDeque;

use super::{Buffer, Tag};
use crate::error::Peer;

struct Message {
    from: usize,
    tag: Tag,
    payload: Buffer,
}

/// Messages in the order of their arrival. A rank has a handful at a time, so a search from the front is enough.
#[derive(Default)]
pub(super) struct Mailbox {
    messages: VecDeque<Message>,
}

impl Mailbox {
    /// Adds a message behind all others.
    pub(super) fn put(&mut self, from: usize, tag: Tag, payload: Buffer) {
        self.messages.push_back(Message { from, tag, payload });
    }

    /// Takes the message that came first among those asked for.
    pub(super) fn take(&mut self, awaited: Peer, tag: Tag) -> Option<(usize, Buffer)> {
        let index = self.find(awaited, tag)?;
        self.messages.remove(index).map(|message| (message.from, message.payload))
    }

    /// True if [`Mailbox::take`] would find a message.
    pub(super) fn holds(&self, awaited: Peer, tag: Tag) -> bool {
        self.find(awaited, tag).is_some()
    }

    /// Forgets everything: its owner will receive no more.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
    }

    fn find(&self, awaited: Peer, tag: Tag) -> Option<usize> {
        self.messages.iter().position(|message| message.tag == tag && awaited.admits(message.from))
    }
}
