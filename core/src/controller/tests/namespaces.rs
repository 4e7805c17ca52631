//! Namespaces that come, change and go.

use super::*;
use crate::namespace::Namespace;

const SHAPE: Namespace = Namespace { size_blocks: 1_000, block_shift: 9, read_only: false };

#[test]
fn a_namespace_is_seen_once_every_group_knows_it() {
    let mut bench = Bench::enabled();
    bench.groups[1].hold = true;
    assert_eq!(bench.controller.add_namespace(Some(3), namespace(1)), Ok(3));
    bench.run();
    assert_eq!(bench.requests(0), [GroupRequest::SetNamespace { nsid: 3, namespace: SHAPE }]);
    assert_eq!(bench.data(identify(2, 0))[0], 0);
    assert_eq!(bench.controller.poll_namespace_change(), None);
    bench.groups[1].release();
    bench.run();
    assert_eq!(bench.data(identify(2, 0))[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bench.controller.poll_namespace_change(), Some(NamespaceChange::Added { nsid: 3 }));
    assert_eq!(bench.controller.poll_namespace_change(), None);
}

#[test]
fn ready_waits_until_groups_know_the_namespaces() {
    let mut bench = Bench::new();
    bench.groups[0].hold = true;
    bench.controller.add_namespace(None, namespace(1)).expect("good");
    bench.write32(0x24, 0x001f_001f);
    bench.write64(0x28, ASQ);
    bench.write64(0x30, ACQ);
    bench.write32(CC, 0x0046_0001);
    bench.run();
    assert_eq!(bench.read32(CSTS), 0);
    bench.groups[0].release();
    bench.run();
    assert_eq!(bench.read32(CSTS), 1);
}

#[test]
fn changes_raise_the_event_and_enter_the_list() {
    let mut bench = Bench::with_namespace();
    bench.ok(set_feature(0x0b, 1 << 8));
    let cid = bench.submit(AER);
    bench.controller.add_namespace(None, namespace(2)).expect("good");
    bench.controller.resize_namespace(1, 2_000).expect("there");
    bench.run();
    let completions = bench.completions();
    assert_eq!(completions.len(), 1);
    assert_eq!((completions[0].cid, completions[0].result), (cid, 0x0004_0002));
    assert_eq!(bench.data(identify(0, 1))[..8], 2_000u64.to_le_bytes());
    assert_eq!(bench.data(get_log(4, 0, 4096))[..12], [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bench.data(get_log(4, 0, 4096))[..4], [0; 4], "read and therefore cleared");
}

#[test]
fn without_configuration_changes_raise_no_event() {
    let mut bench = Bench::with_namespace();
    bench.submit(AER);
    bench.controller.resize_namespace(1, 2_000).expect("there");
    bench.run();
    assert_eq!(bench.completions(), []);
}

#[test]
fn a_new_size_is_seen_once_every_group_knows_it() {
    let mut bench = Bench::with_namespace();
    bench.groups[0].hold = true;
    bench.controller.resize_namespace(1, 5_000).expect("there");
    bench.run();
    assert_eq!(bench.data(identify(0, 1))[..8], 1_000u64.to_le_bytes());
    bench.controller.resize_namespace(1, 6_000).expect("there");
    bench.groups[0].release();
    bench.run();
    assert_eq!(bench.data(identify(0, 1))[..8], 6_000u64.to_le_bytes());
}

#[test]
fn a_removed_namespace_is_gone_at_once_and_its_identifier_free_at_the_end() {
    let mut bench = Bench::with_namespace();
    assert_eq!(bench.controller.poll_namespace_change(), Some(NamespaceChange::Added { nsid: 1 }));
    bench.ok(set_feature(0x0b, 1 << 8));
    bench.submit(AER);
    bench.groups[1].hold = true;
    bench.controller.remove_namespace(1).expect("there");
    bench.run();
    assert_eq!(bench.completions().len(), 1);
    assert_eq!(bench.data(identify(2, 0))[0], 0);
    assert_eq!(bench.data(get_log(4, 0, 4096))[0], 1);
    assert_eq!(bench.controller.poll_namespace_change(), None, "a command is in flight");
    assert_eq!(bench.controller.add_namespace(Some(1), namespace(7)), Err(NamespaceError::InUse));
    assert_eq!(bench.controller.remove_namespace(1), Err(NamespaceError::NotFound));
    bench.groups[1].release();
    bench.run();
    assert_eq!(bench.controller.poll_namespace_change(), Some(NamespaceChange::Removed { nsid: 1 }));
    assert_eq!(bench.controller.add_namespace(None, namespace(1)), Ok(1));
}

#[test]
fn a_reset_that_overtakes_a_change_has_it_told_again() {
    let mut bench = Bench::with_namespace();
    bench.groups[0].hold = true;
    bench.controller.remove_namespace(1).expect("there");
    assert!(!bench.poll());
    assert_eq!(bench.controller.poll_group_request(), Some((0, GroupRequest::RemoveNamespace { nsid: 1 })));
    bench.write32(CC, 0x0046_0000);
    assert_eq!(bench.controller.poll_group_request(), Some((0, GroupRequest::Reset)));
    bench.reply(0, GroupReply::ResetDone);
    assert_eq!(bench.controller.poll_group_request(), Some((0, GroupRequest::RemoveNamespace { nsid: 1 })));
    bench.reply(0, GroupReply::Done);
    bench.run();
    bench.enable();
    assert_eq!(bench.data(identify(2, 0))[0], 0);
}

#[test]
fn namespaces_survive_resets() {
    let mut bench = Bench::with_namespace();
    bench.controller.reset(ResetKind::Flr);
    bench.run();
    bench.enable();
    assert_eq!(bench.data(identify(2, 0))[0], 1);
}

#[test]
fn bad_namespaces_are_refused() {
    let mut controller: Controller<1, 1, 2> = Controller::new(ControllerConfig::DEFAULT);
    let good = namespace(1);
    let add = |controller: &mut Controller<1, 1, 2>, nsid, config| controller.add_namespace(nsid, config);
    let mut refused = |nsid, config, error| assert_eq!(add(&mut controller, nsid, config), Err(error));
    refused(Some(0), good, NamespaceError::InvalidNsid);
    refused(Some(3), good, NamespaceError::InvalidNsid);
    refused(Some(u32::MAX), good, NamespaceError::InvalidNsid);
    refused(None, NamespaceConfig { block_bytes: 520, ..good }, NamespaceError::InvalidBlockSize);
    refused(None, NamespaceConfig { size_blocks: 0, ..good }, NamespaceError::InvalidSize);
    refused(None, NamespaceConfig { size_blocks: u64::MAX, ..good }, NamespaceError::InvalidSize);
    refused(None, NamespaceConfig { uuid: [0; 16], ..good }, NamespaceError::NoIdentifier);
    assert_eq!(controller.add_namespace(None, good), Ok(1));
    assert_eq!(controller.add_namespace(None, good), Err(NamespaceError::DuplicateIdentifier));
    assert_eq!(controller.add_namespace(Some(1), namespace(2)), Err(NamespaceError::InUse));
    assert_eq!(controller.add_namespace(None, namespace(2)), Ok(2));
    assert_eq!(controller.add_namespace(None, namespace(3)), Err(NamespaceError::Full));
    assert_eq!(controller.resize_namespace(1, 0), Err(NamespaceError::InvalidSize));
    assert_eq!(controller.resize_namespace(0, 1), Err(NamespaceError::NotFound));
    assert_eq!(controller.remove_namespace(3), Err(NamespaceError::NotFound));
}

#[test]
fn a_namespace_that_a_group_cannot_take_is_removed_again() {
    let mut bench = Bench::enabled();
    bench.groups[1].fail_next = Some(Status::INVALID_NAMESPACE);
    bench.controller.add_namespace(Some(9), namespace(1)).expect("good");
    bench.run();
    assert_eq!(bench.controller.poll_namespace_change(), Some(NamespaceChange::Removed { nsid: 9 }));
    assert_eq!(bench.data(identify(2, 0))[0], 0);
    assert_eq!(bench.requests(0).last(), Some(&GroupRequest::RemoveNamespace { nsid: 9 }));
}
