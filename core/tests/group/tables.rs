//! What depends on the sizes of the tables.

use doorbell_core::group::{GroupConfig, QueueGroup};
use doorbell_core::testing::entry::flush;

use crate::Pair;

#[test]
fn a_command_waits_for_a_slot_and_is_fetched_when_one_frees() {
    let mut pair = Pair::<4, 2, 2>::with_queues(16, 16);
    for _ in 0..7 {
        pair.submit(1, flush(1));
    }
    assert_eq!(pair.fetch(), 2);
    assert!(pair.sleep());
    assert_eq!(pair.run().len(), 7);
}

/// The default tables have the sizes that the documentation promises.
#[test]
fn the_tables_are_small() {
    let sizes = [
        size_of::<QueueGroup<2, 32, 1>>(),
        size_of::<QueueGroup<16, 256, 16>>(),
        size_of::<QueueGroup<65, 1024, 16>>(),
    ];
    println!("bytes of QueueGroup<2, 32, 1>, <16, 256, 16>, <65, 1024, 16>: {sizes:?}");
    assert!(sizes[0] < 4096 && sizes[1] < 20_000 && sizes[2] < 80_000);
    static GROUP: std::sync::Mutex<QueueGroup> = std::sync::Mutex::new(QueueGroup::new(GroupConfig::DEFAULT));
    assert_eq!(GROUP.lock().map(|group| group.in_flight()).unwrap_or(1), 0);
}
