//! The firmware's loop around the core.
//!
//! One [`Device`] is one controller with one namespace. [`Device::poll`] does a bounded amount of everything
//! that there is to do and returns; a board calls it for ever, and may sleep where [`Device::arm`] says so.

mod work;

use core::task::Poll;

use doorbell_core::controller::{
    Controller, ControllerConfig, HostReply, HostRequest, NamespaceConfig, NamespaceError,
};
use doorbell_core::doorbell::Registers;
use doorbell_core::group::{Armed, GroupConfig, QueueGroup};
use doorbell_core::message::GroupMessage;
use doorbell_core::spec::register::DOORBELLS;
use doorbell_core::spec::status::Status;
use doorbell_core::tag::Tag;
use heapless::Deque;

use crate::endpoint::{Endpoint, EndpointEvent, REGISTER_BYTES};
use crate::log::{debug, info, trace, warning};
use crate::media::Media;
use work::{Step, Work};

/// The namespace that every device has.
pub const NSID: u32 = 1;

/// Bus events that one turn takes.
const EVENTS_PER_POLL: u8 = 16;

/// Pieces of commands that one turn carries out.
const PIECES_PER_POLL: u8 = 16;

/// Turns after which the admin doorbells are looked at although nothing was heard of them: a mapped doorbell
/// makes no sound.
const ADMIN_TURNS: u8 = 32;

/// What a board decides.
#[derive(Clone, Copy, Debug)]
pub struct DeviceConfig {
    /// The controller. `groups`, `io_queues` and `write_cache` are the device's to set.
    pub controller: ControllerConfig,
    /// IEEE Extended Unique Identifier of the namespace, big-endian; not 0, and no two devices' the same.
    pub eui64: [u8; 8],
}

/// A controller and its I/O path.
///
/// `QUEUES` is the number of I/O queue pairs, `COMMANDS` the number of I/O commands that may be in flight over
/// all of them, `ERRORS` the entries of the Error Information log. The doorbell registers, `2 * (QUEUES + 1)` of
/// them, are an argument, so that they can be memory which the driver writes directly.
#[derive(Debug)]
pub struct Device<const QUEUES: usize, const COMMANDS: usize, const ERRORS: usize = 4> {
    controller: Controller<1, QUEUES, 1, ERRORS>,
    group: QueueGroup<QUEUES, COMMANDS, 1>,
    /// Commands in the order of their turns; the first one may wait for the medium.
    works: Deque<Work, COMMANDS>,
    /// The first command's call to the medium is to be repeated before any other.
    medium_is_busy: bool,
    /// A shutdown waits for a flush.
    flushing: bool,
    /// The endpoint waits to hear that a reset is done.
    resetting: bool,
    controller_due: bool,
    quiet_turns: u8,
}

impl<const QUEUES: usize, const COMMANDS: usize, const ERRORS: usize> Device<QUEUES, COMMANDS, ERRORS> {
    /// A device that is zero bytes throughout, to be started.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            controller: Controller::blank(),
            group: QueueGroup::blank(),
            works: Deque::new(),
            medium_is_busy: false,
            flushing: false,
            resetting: false,
            controller_due: false,
            quiet_turns: 0,
        }
    }

    /// Makes it a controller with the medium's blocks as its namespace; once, before the first
    /// [`Device::poll`].
    ///
    /// # Errors
    /// Where the medium's blocks can't be a namespace.
    pub fn start(&mut self, config: &DeviceConfig, media: &impl Media) -> Result<(), NamespaceError> {
        let controller = ControllerConfig {
            groups: 1,
            io_queues: u16::try_from(QUEUES).unwrap_or(u16::MAX),
            write_cache: media.has_write_cache(),
            ..config.controller
        };
        self.controller.configure(controller);
        let mdts_bytes = self.controller.config().mdts_bytes;
        self.group.configure(GroupConfig { mdts_bytes, posted_registers: false });
        let namespace = NamespaceConfig {
            size_blocks: media.size_blocks(),
            block_bytes: media.block_bytes(),
            read_only: false,
            deallocated_reads_zero: false,
            uuid: [0; 16],
            nguid: [0; 16],
            eui64: config.eui64,
        };
        self.controller.add_namespace(Some(NSID), namespace)?;
        self.controller_due = true;
        info!(
            "{=usize} queue pairs, {=usize} commands, {=u64} blocks",
            QUEUES,
            COMMANDS,
            media.size_blocks()
        );
        Ok(())
    }

    /// A bounded amount of what there is to do. Whether there was something: call again, else consider
    /// [`Device::arm`].
    pub fn poll<E: Endpoint>(
        &mut self,
        registers: &Registers,
        endpoint: &mut E,
        media: &mut impl Media,
    ) -> bool {
        let mut busy = self.take_events(registers, endpoint);
        self.quiet_turns = self.quiet_turns.wrapping_add(1);
        if self.controller_due || self.quiet_turns >= ADMIN_TURNS {
            self.quiet_turns = 0;
            busy |= self.control(registers, endpoint, media);
        }
        busy |= self.serve(registers, endpoint, media);
        self.interrupt(endpoint);
        busy
    }

    /// Prepares for sleep after a [`Device::poll`] that had nothing to do: whether the next move of the driver
    /// makes an [`EndpointEvent`], so that the core may wait for an interrupt of the endpoint block. Not for
    /// boards whose doorbells are mapped memory.
    pub fn arm(&mut self, registers: &Registers, endpoint: &mut impl Endpoint) -> bool {
        let idle = self.works.is_empty() && !self.controller_due && !self.flushing;
        idle && self.group.arm(endpoint, registers, false) == Armed::Sleep
    }

    /// Commands that have been fetched and not completed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.group.in_flight()
    }

    /// The core's controller, to read what it reports.
    #[must_use]
    pub const fn controller(&self) -> &Controller<1, QUEUES, 1, ERRORS> {
        &self.controller
    }

    fn take_events(&mut self, registers: &Registers, endpoint: &mut impl Endpoint) -> bool {
        for taken in 0..EVENTS_PER_POLL {
            let Some(event) = endpoint.poll_event() else { return taken != 0 };
            match event {
                EndpointEvent::Read { offset, len_bytes, tag } => {
                    let mut bytes = [0; 8];
                    let part = bytes.get_mut(..usize::from(len_bytes)).unwrap_or_default();
                    self.controller.read_register(offset, part);
                    endpoint.answer_read(tag, part);
                }
                EndpointEvent::Write { offset, len_bytes, value } => {
                    let bytes = value.to_le_bytes();
                    let part = bytes.get(..usize::from(len_bytes)).unwrap_or(&bytes);
                    if offset < DOORBELLS {
                        trace!("register {=u32:#x} = {=[u8]:02x}", offset, part);
                        self.controller.write_register(offset, part);
                        self.controller_due = true;
                    } else {
                        self.controller.handle_doorbell_write(registers, offset, part);
                        // The admin queue's two come first; one that isn't there raises an event.
                        self.controller_due |=
                            offset < DOORBELLS + 8 || (offset - DOORBELLS) as usize / 4 >= registers.len();
                    }
                }
                EndpointEvent::Reset(kind) => {
                    info!("reset by the bus");
                    self.controller.reset(kind);
                    self.resetting = true;
                    self.controller_due = true;
                }
            }
        }
        true
    }

    /// The control path: the controller, and what it and the group say to each other.
    fn control<E: Endpoint>(
        &mut self,
        registers: &Registers,
        endpoint: &mut E,
        media: &mut impl Media,
    ) -> bool {
        let was_ready = self.controller.is_ready();
        let now_ns = endpoint.now_ns();
        let mut busy = self.controller.poll(endpoint, registers, now_ns);
        while let Some((_, request)) = self.controller.poll_group_request() {
            debug!("{}", request);
            self.group.handle_request(endpoint, registers, request);
            busy = true;
        }
        if self.group.is_resetting() {
            self.give_up_works(endpoint, media);
        }
        while let Some(message) = self.group.poll_message() {
            self.hear(message);
            busy = true;
        }
        if let Some(HostRequest::FlushAll { abrupt: _ }) = self.controller.poll_host_request() {
            self.flushing = true;
        }
        if self.flushing
            && !self.medium_is_busy
            && let Poll::Ready(flushed) = media.flush()
        {
            self.flushing = false;
            let flushed = flushed.map_err(|error| error.status());
            self.controller.handle_host_reply(HostReply::FlushAll(flushed));
        }
        // One namespace that stays: nothing waits for its changes.
        while self.controller.poll_namespace_change().is_some() {}
        if self.resetting && self.controller.quiesced() {
            self.resetting = false;
            endpoint.reset_done();
        }
        if was_ready != self.controller.is_ready() {
            info!("ready: {=bool}", !was_ready);
            busy = true;
        }
        if E::PUBLISHES {
            let mut image = [0; REGISTER_BYTES];
            self.controller.read_register(0, &mut image);
            endpoint.publish_registers(&image);
        }
        self.controller_due = busy || self.flushing || self.resetting;
        busy
    }

    fn hear(&mut self, message: GroupMessage) {
        match message {
            GroupMessage::Event(_event) => warning!("{}", _event),
            GroupMessage::Reply(_reply) => debug!("{}", _reply),
        }
        self.controller.handle_group_message(0, message);
        self.controller_due = true;
    }

    /// The I/O path: fetches, carries out, completes.
    fn serve<E: Endpoint>(
        &mut self,
        registers: &Registers,
        endpoint: &mut E,
        media: &mut impl Media,
    ) -> bool {
        let mut busy = false;
        let mut pieces = PIECES_PER_POLL;
        while pieces > 0
            && !self.works.is_full()
            && let Some(command) = self.group.poll_command(endpoint, registers)
        {
            busy = true;
            trace!("command {=u16} of queue {=u16}", command.tag.slot, command.sqid);
            let mut work = Work::new(&command);
            // The first piece at once, where no other command comes first: most commands have no second.
            if self.works.is_empty() {
                pieces = pieces.wrapping_sub(1);
                match work.step(endpoint, media) {
                    Step::Ended(status) => {
                        self.complete(endpoint, work.tag, status);
                        continue;
                    }
                    Step::Waits => self.medium_is_busy = true,
                    Step::GoesOn => {}
                }
            }
            // The core has as many slots as this has places.
            let _ = self.works.push_back(work);
        }
        if let Some(tag) = self.group.poll_cancel() {
            self.cancel(tag, endpoint, media);
        }
        while pieces > 0
            && let Some(work) = self.works.front_mut()
        {
            pieces = pieces.wrapping_sub(1);
            match work.step(endpoint, media) {
                Step::Ended(status) => {
                    self.medium_is_busy = false;
                    let tag = work.tag;
                    self.works.pop_front();
                    self.complete(endpoint, tag, status);
                    busy = true;
                }
                Step::Waits => {
                    self.medium_is_busy = true;
                    break;
                }
                Step::GoesOn => {
                    self.medium_is_busy = false;
                    busy = true;
                    // The next one's turn: a long command holds up a short one by a piece of it.
                    if self.works.len() > 1
                        && let Some(work) = self.works.pop_front()
                    {
                        let _ = self.works.push_back(work);
                    }
                }
            }
        }
        while let Some(message) = self.group.poll_message() {
            self.hear(message);
            busy = true;
        }
        busy
    }

    #[inline]
    fn complete(&mut self, endpoint: &mut impl Endpoint, tag: Tag, status: Status) {
        if !status.is_success() {
            debug!("command {=u16} ends with {}", tag.slot, status);
        }
        let _ = self.group.complete(endpoint, tag, status);
    }

    fn interrupt(&mut self, endpoint: &mut impl Endpoint) {
        if self.group.wants_interrupt() {
            let now_ns = endpoint.now_ns();
            while let Some(vector) = self.group.poll_interrupt(now_ns) {
                endpoint.raise_msix(vector);
            }
        }
        if let Some(vector) = self.controller.poll_interrupt() {
            endpoint.raise_msix(vector);
        }
    }

    /// Whether the first command may be taken from the medium.
    fn medium_lets_go(&mut self, media: &mut impl Media) -> bool {
        if self.medium_is_busy && media.give_up() {
            self.medium_is_busy = false;
        }
        !self.medium_is_busy
    }

    /// An Abort: a command that hasn't come to its turn, or that the medium can give up, ends now.
    fn cancel(&mut self, tag: Tag, endpoint: &mut impl Endpoint, media: &mut impl Media) {
        for place in 0..self.works.len() {
            let Some(work) = self.works.pop_front() else { return };
            let is_it = work.tag == tag;
            if is_it && (place != 0 || self.medium_lets_go(media)) {
                let _ = self.group.complete(endpoint, tag, Status::ABORT_REQUESTED);
            } else {
                let _ = self.works.push_back(work);
            }
        }
    }

    /// A reset waits for the commands in flight: their completions go nowhere.
    fn give_up_works(&mut self, endpoint: &mut impl Endpoint, media: &mut impl Media) {
        let kept = usize::from(!self.medium_lets_go(media));
        while self.works.len() > kept
            && let Some(work) = self.works.pop_back()
        {
            let _ = self.group.complete(endpoint, work.tag, Status::ABORT_REQUESTED);
        }
    }
}

impl<const QUEUES: usize, const COMMANDS: usize, const ERRORS: usize> Default
    for Device<QUEUES, COMMANDS, ERRORS>
{
    fn default() -> Self {
        Self::new()
    }
}
