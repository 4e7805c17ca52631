//! A device without a mind, and a thread that serves it.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use doorbell_vhost::doorbell_page::{DOORBELL_BYTES, DOORBELL_OFFSET, DoorbellPage};
use doorbell_vhost::interrupt::{InterruptView, Interrupts, new_eventfd};
use doorbell_vhost::memory::{MemoryView, Region, SharedMap};
use doorbell_vhost::vfio_user::connection::Lost;
use doorbell_vhost::vfio_user::device::{
    Device, InterruptDescription, IoEventFdDescription, MemoryRange, Progress, RegionDescription,
    RegionMapping, Ticket,
};
use doorbell_vhost::vfio_user::protocol::CONFIG_REGION;
use doorbell_vhost::vfio_user::request::SetIrqs;
use doorbell_vhost::vfio_user::server::{Session, SessionStatistics, Step};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

const DOORBELLS: std::ops::Range<u64> = DOORBELL_OFFSET..DOORBELL_OFFSET + DOORBELL_BYTES;

/// Bytes of BAR0.
pub const BAR_BYTES: u64 = 0x4000;

/// Registers that read back, a doorbell page, interrupts, eventfds. A write to 10h raises the MSI-X vector of
/// that number, one to 14h sets the level of INTx.
#[derive(Debug)]
pub struct Dummy {
    pub registers: Vec<u8>,
    pub config: Vec<u8>,
    pub page: Option<DoorbellPage>,
    pub interrupts: Arc<Interrupts>,
    pub interrupt_view: InterruptView,
    pub view: MemoryView,
    pub io_eventfds: Vec<(u64, OwnedFd)>,
    pub resets: u32,
    pub added: u32,
    pub removed: Vec<MemoryRange>,
    /// Hold unmaps and resets back until the next register write to 8.
    pub slow: bool,
    pub tickets: Vec<Ticket>,
    /// Finish the tickets now.
    pub finish: bool,
}

impl Dummy {
    pub fn new(memory: &Arc<SharedMap>, mapped: bool) -> Self {
        let interrupts = Interrupts::new(64);
        let io_eventfds = if mapped {
            Vec::new()
        } else {
            (0..20).map(|index| (DOORBELL_OFFSET + 8 + 4 * index, new_eventfd().unwrap())).collect()
        };
        Self {
            registers: vec![0; BAR_BYTES as usize],
            config: (0..4096).map(|index| (index % 251) as u8).collect(),
            page: mapped.then(|| DoorbellPage::new().unwrap()),
            interrupt_view: InterruptView::new(Arc::clone(&interrupts)),
            interrupts,
            view: MemoryView::new(Arc::clone(memory)),
            io_eventfds,
            resets: 0,
            added: 0,
            removed: Vec::new(),
            slow: false,
            tickets: Vec::new(),
            finish: false,
        }
    }

    fn later(&mut self, ticket: Ticket) -> Progress {
        if self.slow {
            self.tickets.push(ticket);
            Progress::Later
        } else {
            Progress::Done
        }
    }
}

impl Device for Dummy {
    fn region(&self, index: u32) -> RegionDescription<'_> {
        match index {
            0 => RegionDescription {
                size: BAR_BYTES,
                readable: true,
                writable: true,
                mapping: self.page.as_ref().map(|page| RegionMapping {
                    file: page.as_fd(),
                    file_offset: 0,
                    areas: page.areas(),
                }),
            },
            CONFIG_REGION => RegionDescription { size: 4096, readable: true, writable: true, mapping: None },
            _ => RegionDescription::default(),
        }
    }

    fn interrupts(&self, index: u32) -> InterruptDescription {
        self.interrupts.describe(index)
    }

    fn io_eventfds(&self, region: u32) -> Vec<IoEventFdDescription<'_>> {
        let all = self.io_eventfds.iter().map(|(offset, eventfd)| IoEventFdDescription {
            offset: *offset,
            size: 4,
            eventfd: eventfd.as_fd(),
        });
        all.filter(|_| region == 0).collect()
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) {
        match (region, &self.page) {
            (0, Some(page)) if DOORBELLS.contains(&offset) => {
                let register = &page.registers()[(offset - DOORBELL_OFFSET) as usize / 4];
                data.copy_from_slice(&register.load(Ordering::Relaxed).to_le_bytes()[..data.len()]);
            }
            (0, _) => data.copy_from_slice(&self.registers[offset as usize..][..data.len()]),
            _ => data.copy_from_slice(&self.config[offset as usize..][..data.len()]),
        }
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) {
        match (region, &self.page) {
            (0, Some(page)) if DOORBELLS.contains(&offset) => {
                for (index, dword) in data.as_chunks().0.iter().enumerate() {
                    let register = &page.registers()[(offset - DOORBELL_OFFSET) as usize / 4 + index];
                    register.store(u32::from_le_bytes(*dword), Ordering::Release);
                }
            }
            (0, _) => {
                self.registers[offset as usize..][..data.len()].copy_from_slice(data);
                match offset {
                    8 => self.finish = true,
                    0x10 => self.interrupt_view.raise(data[0].into()),
                    0x14 => self.interrupts.set_intx(data[0] != 0),
                    _ => {}
                }
            }
            _ => self.config[offset as usize..][..data.len()].copy_from_slice(data),
        }
    }

    fn set_irqs(&mut self, request: &SetIrqs<'_>, fds: Vec<OwnedFd>) -> Result<(), Errno> {
        self.interrupts.set(request, fds)
    }

    fn memory_added(&mut self, _region: &Region) {
        self.added += 1;
    }

    fn memory_removed(&mut self, ranges: &[MemoryRange], ticket: Ticket) -> Progress {
        self.removed.extend_from_slice(ranges);
        self.view.update();
        self.view.release_retired();
        self.later(ticket)
    }

    fn reset(&mut self, ticket: Ticket) -> Progress {
        self.resets += 1;
        self.later(ticket)
    }
}

/// What a server thread leaves behind.
pub struct Ended {
    pub device: Dummy,
    pub statistics: SessionStatistics,
    pub lost: Lost,
    pub released: bool,
}

/// A client's stream, and the thread that serves a [`Dummy`] at its other end.
pub fn serve(mapped: bool) -> (UnixStream, JoinHandle<Ended>) {
    let memory = SharedMap::new();
    serve_with(memory, move |memory| Dummy::new(memory, mapped), |_, _| {})
}

/// The same with a device to be made in the thread, and something to be done after each step.
pub fn serve_with(
    memory: Arc<SharedMap>,
    make: impl FnOnce(&Arc<SharedMap>) -> Dummy + Send + 'static,
    mut after: impl FnMut(&mut Dummy, &mut Session) + Send + 'static,
) -> (UnixStream, JoinHandle<Ended>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let mut device = make(&memory);
        let mut session = Session::new(ours, memory).unwrap();
        let lost = loop {
            match session.step(&mut device) {
                Err(lost) => break lost,
                Ok(step) => {
                    after(&mut device, &mut session);
                    if std::mem::take(&mut device.finish) {
                        for ticket in std::mem::take(&mut device.tickets) {
                            if session.finish(ticket).is_err() {
                                break;
                            }
                        }
                    }
                    if step == Step::Idle {
                        sleep(&session);
                    }
                }
            }
        };
        let statistics = session.statistics();
        let released = session.end();
        device.view.update();
        device.view.release_retired();
        device.interrupts.clear();
        device.interrupt_view.update();
        Ended { device, statistics, lost, released: released.is_complete() }
    });
    (theirs, thread)
}

fn sleep(session: &Session) {
    let mut fds = [
        PollFd::new(session, session.interest()),
        PollFd::from_borrowed_fd(session.release_fd(), PollFlags::IN),
    ];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 })).unwrap();
}

/// Set by a test to stop its helpers.
#[derive(Clone, Default)]
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
