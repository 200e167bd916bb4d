//! Caffe's messages: structs for the binary formats, descriptors for the text format. And those of machine and plan files.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MessageDescriptor};

// The schema holds all of Caffe, of which the program uses a part.
#[allow(missing_docs, dead_code, clippy::all)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/caffe.rs"));
}

pub(crate) use generated::*;

/// Messages of machine files.
#[allow(missing_docs, clippy::all)]
pub(crate) mod machine {
    include!(concat!(env!("OUT_DIR"), "/quadrille.rs"));
}

/// Messages of plan files.
#[allow(missing_docs, clippy::all)]
pub(crate) mod plan {
    include!(concat!(env!("OUT_DIR"), "/quadrille.plan.rs"));
}

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(include_bytes!(concat!(env!("OUT_DIR"), "/messages.descriptors")).as_slice())
        .expect("the build script compiled these descriptors")
});

/// The descriptor of the message `name` of the schema.
pub(crate) fn descriptor(name: &str) -> MessageDescriptor {
    POOL.get_message_by_name(&format!("caffe.{name}")).expect("only messages of the schema are asked for")
}

/// The descriptor of a machine file.
pub(crate) fn machine_descriptor() -> MessageDescriptor {
    POOL.get_message_by_name("quadrille.Machine").expect("the schema has it")
}

/// The descriptor of a plan file.
pub(crate) fn plan_descriptor() -> MessageDescriptor {
    POOL.get_message_by_name("quadrille.plan.Plan").expect("the schema has it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost_reflect::Kind;

    fn depth(message: &MessageDescriptor, above: usize) -> usize {
        assert!(above <= 8, "{} is part of a cycle", message.name());
        let children = message.fields().filter_map(|f| match f.kind() {
            Kind::Message(child) => Some(depth(&child, above + 1)),
            _ => None,
        });
        children.max().unwrap_or(above)
    }

    /// The text parser recurses along braces, of which the pass before it allows eight.
    #[test]
    fn messages_nest_no_deeper_than_six() {
        for message in ["NetParameter", "SolverParameter"] {
            assert!(depth(&descriptor(message), 1) <= 6, "{message}");
        }
    }
}
