//! Interrupts as a vfio-user client takes them: eventfds.
//!
//! [`Interrupts`] is the state of one device. The control thread changes it by SET_IRQS; pollers raise
//! interrupts through an [`InterruptView`] each, which keeps a snapshot of the eventfds, so that raising one
//! takes no lock and a single system call, the write. As with the eventfds of a kernel driver, an interrupt
//! raised at the very moment its eventfd is replaced may go to the old one.
//!
//! INTx is a level that masks itself: it is raised once, and again after the client's UNMASK if the level is
//! still up. MSI-X vectors can be masked by the client too; what is raised meanwhile is remembered once.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::Errno;

use crate::vfio_user::device::InterruptDescription;
use crate::vfio_user::protocol::IrqInfo;
use crate::vfio_user::request::{IrqAction, IrqData, SetIrqs};

/// Interrupt type INTx.
pub const INTX: u32 = 0;
/// Interrupt type MSI-X.
pub const MSIX: u32 = 2;
/// Interrupt type "error": the device is beyond repair. Clients may connect it, but nothing here raises it: QEMU
/// stops the virtual machine at it, and what a guest can do to its device ends with CSTS.CFS and a reset.
pub const ERROR: u32 = 3;
/// Interrupt type "request": the device would like to be given back.
pub const REQUEST: u32 = 4;

/// The interrupt is masked.
const MASKED: u8 = 1;
/// A vector was raised while it was masked, or the INTx level is up.
const PENDING: u8 = 2;

/// The interrupts of one device.
#[derive(Debug)]
pub struct Interrupts {
    generation: AtomicU64,
    eventfds: Mutex<Arc<EventFds>>,
    intx: Line,
    vectors: Box<[Line]>,
}

/// One interrupt. Alone on its cache line, as different pollers raise different vectors.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    state: AtomicU8,
    raised: AtomicU64,
}

#[derive(Clone, Debug, Default)]
struct EventFds {
    generation: u64,
    intx: Option<Arc<OwnedFd>>,
    intx_unmask: Option<Arc<OwnedFd>>,
    vectors: Vec<Option<Arc<OwnedFd>>>,
    error: Option<Arc<OwnedFd>>,
    request: Option<Arc<OwnedFd>>,
}

impl Interrupts {
    /// A device with that many MSI-X vectors, none connected.
    #[must_use]
    pub fn new(vectors: u16) -> Arc<Self> {
        let count = usize::from(vectors);
        Arc::new(Self {
            generation: AtomicU64::new(0),
            eventfds: Mutex::new(Arc::new(EventFds { vectors: vec![None; count], ..EventFds::default() })),
            intx: Line::default(),
            vectors: std::iter::repeat_with(Line::default).take(count).collect(),
        })
    }

    /// What DEVICE_GET_IRQ_INFO says.
    #[must_use]
    pub fn describe(&self, index: u32) -> InterruptDescription {
        let (count, flags) = match index {
            INTX => (1, IrqInfo::EVENTFD | IrqInfo::MASKABLE | IrqInfo::AUTOMASKED),
            MSIX => (u32::try_from(self.vectors.len()).unwrap_or(u32::MAX), IrqInfo::EVENTFD),
            ERROR | REQUEST => (1, IrqInfo::EVENTFD),
            _ => (0, 0),
        };
        InterruptDescription { count, flags }
    }

    /// Carries out SET_IRQS, whose range the session has checked against [`Interrupts::describe`].
    ///
    /// # Errors
    /// EINVAL for an action that the interrupt type doesn't know or a file descriptor that isn't an eventfd.
    pub fn set(&self, request: &SetIrqs<'_>, fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let range = request.start as usize..(request.start + request.count) as usize;
        match (request.action, request.data) {
            (IrqAction::Trigger, IrqData::EventFds) => {
                let fds = fds.into_iter().map(accept_eventfd).collect::<Result<Vec<_>, _>>()?;
                self.connect(request.index, range.start, fds.into_iter().map(Some))
            }
            (IrqAction::Trigger, IrqData::NoEventFds) => {
                self.connect(request.index, range.start, range.map(|_| None))
            }
            (IrqAction::Trigger, IrqData::None) if request.count == 0 => {
                self.disconnect(request.index);
                Ok(())
            }
            (IrqAction::Trigger, data) => {
                let eventfds = self.eventfds();
                for place in selected(range, data) {
                    signal(eventfds.of(request.index, place));
                }
                Ok(())
            }
            (IrqAction::Mask | IrqAction::Unmask, IrqData::None | IrqData::Bool(_)) => {
                for place in selected(range, request.data) {
                    let line = self.line(request.index, place).ok_or(Errno::INVAL)?;
                    match request.action {
                        IrqAction::Mask => _ = line.state.fetch_or(MASKED, Ordering::AcqRel),
                        _ => self.unmask(request.index, place),
                    }
                }
                Ok(())
            }
            // QEMU with KVM ends an INTx this way, without a message.
            (IrqAction::Unmask, IrqData::EventFds) if request.index == INTX => {
                let fd = fds.into_iter().next().map(accept_eventfd).transpose()?;
                self.change(|eventfds| eventfds.intx_unmask = fd);
                Ok(())
            }
            (IrqAction::Unmask, IrqData::NoEventFds) if request.index == INTX => {
                self.change(|eventfds| eventfds.intx_unmask = None);
                Ok(())
            }
            (IrqAction::Mask | IrqAction::Unmask, _) => Err(Errno::INVAL),
        }
    }

    /// Closes every eventfd and forgets masks and what is pending, as the loss of the client does.
    pub fn clear(&self) {
        self.change(|eventfds| {
            let vectors = vec![None; eventfds.vectors.len()];
            *eventfds = EventFds { generation: eventfds.generation, vectors, ..EventFds::default() };
        });
        self.intx.state.store(0, Ordering::Release);
        for line in &self.vectors {
            line.state.store(0, Ordering::Release);
        }
    }

    /// Sets the level of INTx. Going up raises it, unless it is masked.
    pub fn set_intx(&self, level: bool) {
        if level {
            if self.intx.state.fetch_or(PENDING, Ordering::AcqRel) & PENDING == 0 {
                self.raise_intx();
            }
        } else {
            self.intx.state.fetch_and(!PENDING, Ordering::AcqRel);
        }
    }

    /// An eventfd to poll, where the client unmasks INTx by one: call [`Interrupts::take_intx_unmask`] when it
    /// is readable.
    #[must_use]
    pub fn intx_unmask_fd(&self) -> Option<Arc<OwnedFd>> {
        self.eventfds().intx_unmask.clone()
    }

    /// Whether the client's eventfd asks to unmask INTx; it asks once. Follow it by
    /// [`Interrupts::unmask_intx`].
    #[must_use]
    pub fn take_intx_unmask(&self) -> bool {
        self.intx_unmask_fd().is_some_and(|eventfd| rustix::io::read(&*eventfd, &mut [0; 8]).is_ok())
    }

    /// Unmasks INTx, and raises it again if its level is still up; so the level is to be up to date.
    pub fn unmask_intx(&self) {
        self.unmask(INTX, 0);
    }

    /// How often a vector was raised.
    #[must_use]
    pub fn raised(&self, vector: u16) -> u64 {
        self.vectors.get(usize::from(vector)).map_or(0, |line| line.raised.load(Ordering::Relaxed))
    }

    /// How often INTx was raised.
    #[must_use]
    pub fn intx_raised(&self) -> u64 {
        self.intx.raised.load(Ordering::Relaxed)
    }

    /// Whether a vector is pending (the PBA's bit).
    #[must_use]
    pub fn is_pending(&self, vector: u16) -> bool {
        self.vectors
            .get(usize::from(vector))
            .is_some_and(|line| line.state.load(Ordering::Relaxed) & PENDING != 0)
    }

    /// Whether the client takes MSI-X, so that INTx is silent.
    #[must_use]
    pub fn msix_in_use(&self) -> bool {
        self.eventfds().vectors.iter().any(Option::is_some)
    }

    fn eventfds(&self) -> Arc<EventFds> {
        Arc::clone(&self.eventfds.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn line(&self, index: u32, place: usize) -> Option<&Line> {
        match index {
            INTX if place == 0 => Some(&self.intx),
            MSIX => self.vectors.get(place),
            _ => None,
        }
    }

    fn change(&self, change: impl FnOnce(&mut EventFds)) {
        let mut current = self.eventfds.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = EventFds::clone(&current);
        change(&mut next);
        next.generation = self.generation.load(Ordering::Relaxed) + 1;
        let generation = next.generation;
        *current = Arc::new(next);
        self.generation.store(generation, Ordering::Release);
    }

    fn connect(
        &self,
        index: u32,
        start: usize,
        fds: impl Iterator<Item = Option<Arc<OwnedFd>>>,
    ) -> Result<(), Errno> {
        let fds: Vec<_> = fds.collect();
        let mut known = true;
        self.change(|eventfds| {
            for (place, fd) in (start..).zip(fds) {
                match eventfds.slot(index, place) {
                    Some(slot) => *slot = fd,
                    None => known = false,
                }
            }
        });
        if index == INTX {
            self.raise_intx();
        }
        if known { Ok(()) } else { Err(Errno::INVAL) }
    }

    fn disconnect(&self, index: u32) {
        match index {
            INTX => {
                self.change(|eventfds| {
                    eventfds.intx = None;
                    eventfds.intx_unmask = None;
                });
                self.intx.state.fetch_and(!MASKED, Ordering::AcqRel);
            }
            MSIX => {
                self.change(|eventfds| eventfds.vectors.fill(None));
                for line in &self.vectors {
                    line.state.store(0, Ordering::Release);
                }
            }
            ERROR => self.change(|eventfds| eventfds.error = None),
            REQUEST => self.change(|eventfds| eventfds.request = None),
            _ => {}
        }
    }

    fn unmask(&self, index: u32, place: usize) {
        let Some(line) = self.line(index, place) else { return };
        let before = line.state.fetch_and(!MASKED, Ordering::AcqRel);
        if index == INTX {
            self.raise_intx();
        } else if before & PENDING != 0 && line.state.fetch_and(!PENDING, Ordering::AcqRel) & PENDING != 0 {
            line.fire(self.eventfds().of(index, place));
        }
    }

    /// Raises INTx if its level is up, it isn't masked and the client takes it; it is masked then.
    fn raise_intx(&self) {
        let eventfds = self.eventfds();
        if eventfds.intx.is_none() {
            return;
        }
        let masked =
            self.intx.state.compare_exchange(PENDING, PENDING | MASKED, Ordering::AcqRel, Ordering::Relaxed);
        if masked.is_ok() {
            self.intx.fire(eventfds.intx.as_ref());
        }
    }
}

impl Line {
    fn fire(&self, eventfd: Option<&Arc<OwnedFd>>) {
        self.raised.fetch_add(1, Ordering::Relaxed);
        signal(eventfd);
    }
}

impl EventFds {
    fn slot(&mut self, index: u32, place: usize) -> Option<&mut Option<Arc<OwnedFd>>> {
        match (index, place) {
            (INTX, 0) => Some(&mut self.intx),
            (MSIX, _) => self.vectors.get_mut(place),
            (ERROR, 0) => Some(&mut self.error),
            (REQUEST, 0) => Some(&mut self.request),
            _ => None,
        }
    }

    fn of(&self, index: u32, place: usize) -> Option<&Arc<OwnedFd>> {
        match (index, place) {
            (INTX, 0) => self.intx.as_ref(),
            (MSIX, _) => self.vectors.get(place)?.as_ref(),
            (ERROR, 0) => self.error.as_ref(),
            (REQUEST, 0) => self.request.as_ref(),
            _ => None,
        }
    }
}

/// One poller's way to raise interrupts.
#[derive(Debug)]
pub struct InterruptView {
    interrupts: Arc<Interrupts>,
    eventfds: RefCell<Arc<EventFds>>,
    generation: Cell<u64>,
}

impl InterruptView {
    /// A view of `interrupts`.
    #[must_use]
    pub fn new(interrupts: Arc<Interrupts>) -> Self {
        let eventfds = interrupts.eventfds();
        Self { generation: Cell::new(eventfds.generation), eventfds: RefCell::new(eventfds), interrupts }
    }

    /// Goes over to the newest eventfds and lets go of earlier ones; costs a load if there are none. Raising
    /// does it too; an idle poller has to do it when the client is lost, or eventfds stay open.
    #[inline]
    pub fn update(&self) {
        if self.interrupts.generation.load(Ordering::Acquire) != self.generation.get() {
            let newest = self.interrupts.eventfds();
            self.generation.set(newest.generation);
            self.eventfds.replace(newest);
        }
    }

    /// Raises an MSI-X vector: one `write`, or none if it is masked or not connected.
    #[inline]
    pub fn raise(&self, vector: u16) {
        self.update();
        let place = usize::from(vector);
        let Some(line) = self.interrupts.vectors.get(place) else { return };
        if line.state.load(Ordering::Acquire) & MASKED != 0 && self.hold_back(line) {
            return;
        }
        line.fire(self.eventfds.borrow().of(MSIX, place));
    }

    /// Remembers a masked vector. Returns false if it was unmasked meanwhile and nobody else raises it.
    #[cold]
    fn hold_back(&self, line: &Line) -> bool {
        line.state.fetch_or(PENDING, Ordering::AcqRel);
        if line.state.load(Ordering::Acquire) & MASKED != 0 {
            return true;
        }
        // Whoever takes the bit away raises it.
        line.state.fetch_and(!PENDING, Ordering::AcqRel) & PENDING == 0
    }
}

/// The interrupts of `range` that an action applies to.
fn selected(range: std::ops::Range<usize>, data: IrqData<'_>) -> impl Iterator<Item = usize> {
    let start = range.start;
    range.filter(move |place| match data {
        IrqData::Bool(bytes) => bytes.get(place - start).is_some_and(|byte| *byte != 0),
        _ => true,
    })
}

/// An eventfd of the client that can't make us wait: a full counter, or something that isn't an eventfd at
/// all, would stop a poller.
fn accept_eventfd(fd: OwnedFd) -> Result<Arc<OwnedFd>, Errno> {
    // What has no place in a file system has no type: eventfds and their kin.
    if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::Unknown {
        return Err(Errno::INVAL);
    }
    let flags = fcntl_getfl(&fd)?;
    if !flags.contains(OFlags::NONBLOCK) {
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
    }
    Ok(Arc::new(fd))
}

#[inline]
fn signal(eventfd: Option<&Arc<OwnedFd>>) {
    if let Some(eventfd) = eventfd {
        // A counter that is full has been signalled already.
        let _ = rustix::io::write(&**eventfd, &1u64.to_ne_bytes());
    }
}

/// An eventfd as this host makes them: closed on exec and never blocking.
///
/// # Errors
/// The system is out of file descriptors.
pub fn new_eventfd() -> io::Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Takes an eventfd's count, 0 where it wasn't signalled.
#[must_use]
pub fn drain_eventfd(eventfd: BorrowedFd<'_>) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(eventfd.as_fd(), &mut count) {
        Ok(8) => u64::from_ne_bytes(count),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(index: u32, start: u32, count: u32, action: IrqAction, data: IrqData<'_>) -> SetIrqs<'_> {
        SetIrqs { index, start, count, action, data }
    }

    fn connect(interrupts: &Interrupts, index: u32, start: u32) -> OwnedFd {
        let eventfd = new_eventfd().unwrap();
        let theirs = eventfd.try_clone().unwrap();
        let connect = request(index, start, 1, IrqAction::Trigger, IrqData::EventFds);
        interrupts.set(&connect, vec![theirs]).unwrap();
        eventfd
    }

    #[test]
    fn intx_is_raised_once_until_it_is_unmasked() {
        let interrupts = Interrupts::new(2);
        interrupts.set_intx(true);
        let eventfd = connect(&interrupts, INTX, 0);
        assert_eq!(drain_eventfd(eventfd.as_fd()), 1, "a level that was up is raised when it is connected");
        interrupts.set_intx(false);
        interrupts.set_intx(true);
        assert_eq!(drain_eventfd(eventfd.as_fd()), 0);
        let unmask = request(INTX, 0, 1, IrqAction::Unmask, IrqData::None);
        interrupts.set(&unmask, vec![]).unwrap();
        assert_eq!(drain_eventfd(eventfd.as_fd()), 1);
        interrupts.set_intx(false);
        interrupts.set(&unmask, vec![]).unwrap();
        assert_eq!(drain_eventfd(eventfd.as_fd()), 0);
        interrupts.set_intx(true);
        assert_eq!(drain_eventfd(eventfd.as_fd()), 1);
        assert_eq!(interrupts.intx_raised(), 3);
    }

    #[test]
    fn intx_can_be_unmasked_by_an_eventfd() {
        let interrupts = Interrupts::new(1);
        let eventfd = connect(&interrupts, INTX, 0);
        let unmask = new_eventfd().unwrap();
        let by_eventfd = request(INTX, 0, 1, IrqAction::Unmask, IrqData::EventFds);
        interrupts.set(&by_eventfd, vec![unmask.try_clone().unwrap()]).unwrap();
        interrupts.set_intx(true);
        assert_eq!(drain_eventfd(eventfd.as_fd()), 1);
        assert!(!interrupts.take_intx_unmask());
        rustix::io::write(&unmask, &1u64.to_ne_bytes()).unwrap();
        assert!(interrupts.take_intx_unmask());
        interrupts.unmask_intx();
        assert_eq!(drain_eventfd(eventfd.as_fd()), 1);
    }

    #[test]
    fn a_masked_vector_is_held_back_once() {
        let interrupts = Interrupts::new(4);
        let view = InterruptView::new(Arc::clone(&interrupts));
        let eventfd = connect(&interrupts, MSIX, 3);
        view.raise(3);
        assert_eq!(drain_eventfd(eventfd.as_fd()), 1);
        interrupts.set(&request(MSIX, 2, 2, IrqAction::Mask, IrqData::Bool(&[0, 1])), vec![]).unwrap();
        view.raise(3);
        view.raise(3);
        assert_eq!(drain_eventfd(eventfd.as_fd()), 0);
        assert!(interrupts.is_pending(3));
        interrupts.set(&request(MSIX, 0, 4, IrqAction::Unmask, IrqData::None), vec![]).unwrap();
        assert_eq!(drain_eventfd(eventfd.as_fd()), 1);
        assert!(!interrupts.is_pending(3));
        view.raise(99);
    }

    #[test]
    fn views_follow_and_clear_closes() {
        let interrupts = Interrupts::new(1);
        let view = InterruptView::new(Arc::clone(&interrupts));
        let first = connect(&interrupts, MSIX, 0);
        view.raise(0);
        let second = connect(&interrupts, MSIX, 0);
        view.raise(0);
        assert_eq!((drain_eventfd(first.as_fd()), drain_eventfd(second.as_fd())), (1, 1));
        interrupts.set(&request(MSIX, 0, 1, IrqAction::Trigger, IrqData::None), vec![]).unwrap();
        assert_eq!(drain_eventfd(second.as_fd()), 1, "the client may trigger an interrupt itself");
        interrupts.clear();
        view.raise(0);
        assert_eq!(drain_eventfd(second.as_fd()), 0);
        assert!(!interrupts.msix_in_use());
        assert_eq!(interrupts.raised(0), 3);
    }

    #[test]
    fn what_could_block_is_refused() {
        let interrupts = Interrupts::new(1);
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let connect = request(MSIX, 0, 1, IrqAction::Trigger, IrqData::EventFds);
        assert_eq!(interrupts.set(&connect, vec![writer]), Err(Errno::INVAL));
        let blocking = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let ours = blocking.try_clone().unwrap();
        interrupts.set(&connect, vec![ours]).unwrap();
        rustix::io::write(&blocking, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        InterruptView::new(interrupts).raise(0);
    }
}
