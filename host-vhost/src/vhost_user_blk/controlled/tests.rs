use doorbell_core::group::GroupConfig;

use super::*;
use crate::storage::{IoContextConfig, RamStorage, StorageConfig};

/// More than a command may carry, and no multiple of it.
const LARGE_BYTES: usize = CHUNK_BYTES as usize + (1 << 20) + 512;
const SIZE_BYTES: u64 = 2 * CHUNK_BYTES;

struct Rig {
    context: IoContext,
    queue: ControlledQueue,
    /// The same medium, straight.
    direct: StorageQueue,
}

impl Rig {
    fn new() -> Self {
        Self::over(Arc::new(RamStorage::new(SIZE_BYTES).expect("memory")))
    }

    fn over(storage: Arc<dyn Storage>) -> Self {
        let mut context = IoContext::new(IoContextConfig::default()).expect("a context");
        let mut open = || storage.open_queue(&mut context).expect("a queue");
        let (queue, direct) = (open(), open());
        let group = HostedGroup::native(GroupConfig { mdts_bytes: MDTS_BYTES, posted_registers: false });
        Self { context, queue: ControlledQueue::new(group, queue, storage), direct }
    }

    fn moves(&mut self, operation: Operation, offset_bytes: u64, pieces: &mut [&mut [u8]]) -> Submission {
        let len_bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        let pieces: Vec<_> = pieces
            .iter_mut()
            .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() })
            .collect();
        // SAFETY: the pieces are the caller's for as long as this call, and memory completes at once.
        let command = unsafe { StorageCommand::new(7, operation, offset_bytes, len_bytes, &pieces) };
        self.queue.submit(&mut self.context, &command)
    }

    fn without_data(&mut self, operation: Operation, offset_bytes: u64, len_bytes: u64) -> Submission {
        let command = StorageCommand::without_data(7, operation, offset_bytes, len_bytes);
        self.queue.submit(&mut self.context, &command)
    }

    fn medium(&mut self, offset_bytes: u64, len_bytes: usize) -> Vec<u8> {
        let mut found = vec![0; len_bytes];
        let piece = [libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: len_bytes }];
        // SAFETY: as above.
        let command =
            unsafe { StorageCommand::new(8, Operation::Read, offset_bytes, len_bytes as u64, &piece) };
        assert_eq!(self.direct.submit(&mut self.context, &command), DONE);
        found
    }
}

const DONE: Submission = Submission::Complete(Ok(()));

fn pattern(seed: u32, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 24) as u8).collect()
}

#[test]
fn a_request_of_several_commands_moves_every_byte_to_its_place() {
    let mut rig = Rig::new();
    // Pieces that no border of a command meets, one of which goes over it.
    let lengths = [1, 4096, CHUNK_BYTES as usize - 5000, 3000, LARGE_BYTES];
    let mut data = pattern(1, LARGE_BYTES);
    let cut = |data: &mut [u8], run: &mut dyn FnMut(&mut [&mut [u8]])| {
        let mut pieces = Vec::new();
        let mut rest = data;
        for length in lengths {
            let (piece, later) = rest.split_at_mut(length.min(rest.len()));
            pieces.push(piece);
            rest = later;
        }
        run(&mut pieces);
    };
    cut(&mut data, &mut |pieces| {
        assert_eq!(rig.moves(Operation::Write { fua: false }, 1024, pieces), DONE);
    });
    assert!(rig.medium(1024, LARGE_BYTES) == data);
    assert_eq!(rig.medium(0, 1024), [0; 1024]);
    let mut found = vec![0xee; LARGE_BYTES];
    cut(&mut found, &mut |pieces| assert_eq!(rig.moves(Operation::Read, 1024, pieces), DONE));
    assert!(found == data);
    cut(&mut found, &mut |pieces| assert_eq!(rig.moves(Operation::Compare, 1024, pieces), DONE));
    // In the second command.
    found[LARGE_BYTES - 1] ^= 1;
    cut(&mut found, &mut |pieces| {
        let miscompare = Submission::Complete(Err(StorageError::Miscompare));
        assert_eq!(rig.moves(Operation::Compare, 1024, pieces), miscompare);
    });
}

#[test]
fn ranges_of_several_commands_are_zeroed_exactly() {
    let zero = Operation::WriteZeroes { deallocate: false, fua: true };
    for operation in [zero, Operation::Deallocate] {
        let mut rig = Rig::new();
        let mut ones = vec![0xff; SIZE_BYTES as usize];
        assert_eq!(rig.moves(Operation::Write { fua: true }, 0, &mut [&mut ones]), DONE);
        assert_eq!(rig.without_data(operation, 512, LARGE_BYTES as u64), DONE);
        ones[512..512 + LARGE_BYTES].fill(0);
        assert!(rig.medium(0, SIZE_BYTES as usize) == ones, "{operation:?}");
        // Nothing is nothing, not one block.
        assert_eq!(rig.without_data(operation, 0, 0), DONE);
        assert_eq!(rig.medium(0, 1), [0xff]);
    }
}

#[test]
fn the_first_error_is_the_result_and_the_queue_goes_on() {
    let mut rig = Rig::new();
    let mut data = vec![1; 1024];
    let outside = Submission::Complete(Err(StorageError::OutOfRange));
    // The first command is inside, the second isn't.
    assert_eq!(rig.without_data(Operation::Verify, SIZE_BYTES - CHUNK_BYTES, CHUNK_BYTES + 512), outside);
    assert_eq!(rig.moves(Operation::Read, SIZE_BYTES - 512, &mut [&mut data]), outside);
    assert_eq!(rig.without_data(Operation::Flush, 0, 0), DONE);
    // More than once round the queues.
    for _ in 0..3 * usize::from(ENTRIES) {
        assert_eq!(rig.moves(Operation::Read, 0, &mut [&mut data]), DONE);
    }
    assert_eq!(data, [0; 1024]);
}

#[test]
fn a_read_only_disk_refuses_writes_alone() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(1 << 20).expect("a size");
    let path = file.path().to_owned();
    let config = StorageConfig::File { path, read_only: true, direct: crate::storage::Direct::Off };
    let mut rig = Rig::over(config.open().expect("a disk"));
    let mut data = vec![0; 512];
    let refused = Submission::Complete(Err(StorageError::ReadOnly));
    assert_eq!(rig.moves(Operation::Write { fua: false }, 0, &mut [&mut data]), refused);
    assert_eq!(rig.without_data(Operation::Deallocate, 0, 512), refused);
}
