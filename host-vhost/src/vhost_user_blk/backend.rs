//! The vhost-user session's state: what the frontend has said, and the queues that follow from it.

use std::fs::File;
use std::sync::Arc;

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use super::announce::Channel;
use super::dirty_log::{DirtyLog, LogTarget};
use super::disk::{Disk, F_LOG_ALL, F_PROTOCOL_FEATURES};
use super::guest_memory::GuestMemory;
use super::inflight::{self, InflightRegion};
use super::poller::BlkPoller;
use super::queue::{QueueConfig, Virtqueue};
use super::queue_log::QueueLog;
use super::ring::{MAX_QUEUE_SIZE, RingAddresses, RingError};
use crate::memory::MAX_REGIONS;

/// What is understood of the protocol. REPLY_ACK comes from the `vhost` crate.
const PROTOCOL_FEATURES: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::LOG_SHMFD)
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::BACKEND_REQ)
    .union(VhostUserProtocolFeatures::CONFIG)
    .union(VhostUserProtocolFeatures::INFLIGHT_SHMFD)
    .union(VhostUserProtocolFeatures::RESET_DEVICE)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS);

/// Memory slots that are offered (GET_MAX_MEM_SLOTS): QEMU's own limit for machines.
const MEMORY_SLOTS: u64 = 509;
const _: () = assert!(MEMORY_SLOTS <= MAX_REGIONS as u64);

/// One session with one frontend.
#[derive(Debug)]
pub(super) struct Backend {
    disk: Arc<Disk>,
    pollers: Arc<[BlkPoller]>,
    acked_features: u64,
    acked_protocol_features: u64,
    memory: GuestMemory,
    log: LogTarget,
    inflight: Option<InflightRegion>,
    vrings: Box<[Vring]>,
}

/// What the frontend has said of a queue.
#[derive(Debug, Default)]
struct Vring {
    size: u32,
    /// Addresses of the frontend's process: descriptor table, available ring, used ring.
    addresses: Option<[u64; 3]>,
    /// Where writes to the used ring are logged, a guest physical address.
    log: Option<u64>,
    base: u16,
    /// `Some(None)`: started, and nobody kicks.
    kick: Option<Option<File>>,
    call: Option<File>,
    err: Option<File>,
    enabled: bool,
    /// A poller has it.
    running: bool,
}

impl Backend {
    pub(super) fn new(disk: Arc<Disk>, pollers: Arc<[BlkPoller]>) -> Self {
        disk.reset();
        let vrings = (0..disk.queues()).map(|_| Vring::default()).collect();
        Self {
            disk,
            pollers,
            acked_features: 0,
            acked_protocol_features: 0,
            memory: GuestMemory::default(),
            log: LogTarget::default(),
            inflight: None,
            vrings,
        }
    }

    /// Stops every queue and forgets all. When this returns nothing touches the frontend's memory.
    pub(super) fn reset(&mut self) {
        self.stop_all();
        self.vrings.iter_mut().for_each(|vring| *vring = Vring::default());
        self.inflight = None;
        self.memory = GuestMemory::default();
        self.log = LogTarget::default();
        self.acked_features = 0;
        self.acked_protocol_features = 0;
        self.disk.reset();
        self.disk.announcer.set_channel(None);
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        self.vrings.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    fn poller(&self, index: u16) -> &BlkPoller {
        &self.pollers[usize::from(index) % self.pollers.len()]
    }

    /// Stops a queue, once nothing of it is in flight.
    fn stop(&mut self, index: u16) {
        let vring = &self.vrings[usize::from(index)];
        if !vring.running {
            return;
        }
        let taken = self.poller(index).take(index).recv();
        let vring = &mut self.vrings[usize::from(index)];
        vring.running = false;
        match taken {
            Ok(queue) => {
                vring.base = queue.base();
                let [kick, call, err] = queue.into_eventfds();
                vring.kick = Some(kick);
                vring.call = call;
                vring.err = err;
            }
            Err(_) => tracing::error!(queue = index, "a poller has ended"),
        }
    }

    fn stop_all(&mut self) {
        for index in 0..self.vrings.len() as u16 {
            self.stop(index);
        }
    }

    /// Stops all queues, makes a change, and starts them again.
    fn change(&mut self, change: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.stop_all();
        change(self)?;
        (0..self.vrings.len() as u16).try_for_each(|index| self.start(index))
    }

    fn logs(&self) -> bool {
        self.acked_features & F_LOG_ALL != 0
    }

    /// SET_LOG_FD: an eventfd to be told of everything that is logged.
    pub(super) fn set_log_fd(&mut self, fd: File) -> Result<()> {
        let call = without_blocking(Some(fd))?.map(Arc::new);
        self.change(|backend| {
            backend.log.call = call;
            Ok(())
        })
    }

    /// SET_BACKEND_REQ_FD: a socket for messages to the frontend.
    pub(super) fn set_channel(&mut self, fd: File) -> Result<()> {
        if !self.has_protocol_feature(VhostUserProtocolFeatures::BACKEND_REQ) {
            return Err(Error::InactiveOperation(VhostUserProtocolFeatures::BACKEND_REQ));
        }
        self.disk.announcer.set_channel(Some(Channel::new(fd).ok_or(Error::IncorrectFds)?));
        self.disk.announce_capacity();
        Ok(())
    }

    /// Whether the frontend took this of the protocol, which it may do before it takes the virtio features.
    pub(super) fn has_protocol_feature(&self, feature: VhostUserProtocolFeatures) -> bool {
        self.acked_protocol_features & feature.bits() != 0
    }

    /// Starts a queue if all is there that it needs.
    fn start(&mut self, index: u16) -> Result<()> {
        // Without that feature a ring is enabled from the start.
        let negotiated = self.acked_features & F_PROTOCOL_FEATURES != 0;
        let logs = self.logs();
        let vring = &mut self.vrings[usize::from(index)];
        let (Some(addresses), false) = (vring.addresses, vring.running) else { return Ok(()) };
        if vring.kick.is_none() || (negotiated && !vring.enabled) {
            return Ok(());
        }
        let translated = addresses.map(|address| self.memory.translate(address));
        let [Some(descriptors), Some(available), Some(used)] = translated else {
            return Err(refused(index, &RingError::Outside("ring")));
        };
        let size = u16::try_from(vring.size).map_err(|_| refused(index, &RingError::Size(vring.size)))?;
        // After a migration's last stop the medium may have another owner.
        self.disk.storage.claim().map_err(|error| {
            crate::rate_limit::warn_sometimes(|| tracing::warn!(queue = index, "no queue starts: {error}"));
            Error::ReqHandlerError(std::io::Error::other(error))
        })?;
        let config = QueueConfig {
            index,
            addresses: RingAddresses { descriptors, available, used },
            size,
            base: vring.base,
            features: self.acked_features,
            kick: vring.kick.take().flatten(),
            call: vring.call.take(),
            err: vring.err.take(),
            inflight: self.inflight.as_ref().and_then(|inflight| inflight.queue(index, size)),
            log: if logs { QueueLog::new(&self.log, self.memory.map(), vring.log, size) } else { None },
        };
        let queue = Virtqueue::new(config, Arc::clone(&self.disk), Arc::clone(self.memory.map()))
            .map_err(|error| refused(index, &error))?;
        vring.running = true;
        self.poller(index).run(Box::new(queue));
        // QEMU ignores what it is told before the device runs.
        if index == 0 {
            self.disk.announce_capacity();
        }
        Ok(())
    }
}

/// Logs why a queue can't be had.
fn refused(queue: u16, error: &RingError) -> Error {
    crate::rate_limit::warn_sometimes(|| {
        tracing::warn!(queue, "the frontend set a queue up that can't be: {error}");
    });
    Error::InvalidParam
}

/// An eventfd that a full counter, or something that isn't an eventfd, can't make us wait on.
fn without_blocking(file: Option<File>) -> Result<Option<File>> {
    if let Some(file) = &file {
        rustix::io::ioctl_fionbio(file, true).map_err(|errno| Error::ReqHandlerError(errno.into()))?;
    }
    Ok(file)
}

impl VhostUserBackendReqHandlerMut for Backend {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        // "No longer used", the specification says, and asks for all rings to be disabled.
        self.stop_all();
        self.vrings.iter_mut().for_each(|vring| vring.enabled = false);
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all();
        self.vrings.iter_mut().for_each(|vring| *vring = Vring::default());
        self.disk.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.disk.features())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.disk.features() != 0 {
            return Err(Error::FeatureMismatch);
        }
        self.change(|backend| {
            backend.acked_features = features;
            backend.disk.set_features(features);
            Ok(())
        })
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        self.change(|backend| {
            let mut memory = GuestMemory::default();
            for (region, file) in regions.iter().zip(&files) {
                let VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, mmap_offset } = *region;
                memory.add(guest_phys_addr, memory_size, user_addr, file, mmap_offset)?;
            }
            backend.memory = memory;
            Ok(())
        })?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let vring = self.vring(index)?;
        if vring.running {
            return Err(Error::InvalidOperation("the queue runs"));
        }
        if !num.is_power_of_two() || num > u32::from(MAX_QUEUE_SIZE) {
            return Err(refused(index as u16, &RingError::Size(num)));
        }
        vring.size = num;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        self.vring(index)?;
        // A frontend sets them again while the ring runs, to have the used ring logged or not.
        self.stop(index as u16);
        let vring = self.vring(index)?;
        vring.addresses = Some([descriptor, available, used]);
        vring.log = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
        self.start(index as u16)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let vring = self.vring(index)?;
        if vring.running {
            return Err(Error::InvalidOperation("the queue runs"));
        }
        vring.base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.vring(index)?;
        self.stop(index as u16);
        let vring = self.vring(index)?;
        vring.kick = None;
        let base = vring.base.into();
        if self.logs() && self.vrings.iter().all(|vring| !vring.running) {
            // The end of a migration: the next owner starts when the frontend has this answer.
            self.disk.storage.release().map_err(|error| {
                tracing::error!(%error, "the disk can't be handed over: it couldn't be made durable");
                Error::ReqHandlerError(error)
            })?;
        }
        Ok(VhostUserVringState::new(index, base))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.vring(index.into())?;
        self.stop(index.into());
        self.vring(index.into())?.kick = Some(fd);
        self.start(index.into())
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let fd = without_blocking(fd)?;
        let vring = self.vring(index.into())?;
        if vring.running {
            self.poller(index.into()).set_call(index.into(), fd);
        } else {
            vring.call = fd;
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let fd = without_blocking(fd)?;
        self.vring(index.into())?;
        self.stop(index.into());
        self.vring(index.into())?.err = fd;
        self.start(index.into())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(PROTOCOL_FEATURES)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if features & !PROTOCOL_FEATURES.bits() != 0 {
            return Err(Error::FeatureMismatch);
        }
        self.acked_protocol_features = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.disk.queues().into())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let vring = self.vring(index)?;
        vring.enabled = enable;
        if enable {
            self.start(index as u16)
        } else {
            self.stop(index as u16);
            Ok(())
        }
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        // The crate has checked that the range ends within a page.
        Ok(self.disk.read_config(offset, size))
    }

    fn set_config(&mut self, offset: u32, bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        if self.disk.write_config(offset, bytes, self.acked_features) {
            Ok(())
        } else {
            Err(Error::InvalidParam)
        }
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("a disk has no display"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("shared objects aren't offered"))
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let VhostUserInflight { num_queues, queue_size, .. } = *wanted;
        if num_queues > self.disk.queues() || queue_size > MAX_QUEUE_SIZE {
            return Err(Error::InvalidParam);
        }
        let (file, len_bytes) =
            inflight::create(num_queues, queue_size).map_err(|errno| Error::ReqHandlerError(errno.into()))?;
        Ok((VhostUserInflight::new(len_bytes, 0, num_queues, queue_size), file.into()))
    }

    fn set_inflight_fd(&mut self, told: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = *told;
        if num_queues > self.disk.queues() || queue_size > MAX_QUEUE_SIZE {
            return Err(Error::InvalidParam);
        }
        let region = InflightRegion::new(&file, mmap_offset, mmap_size, num_queues, queue_size)
            .map_err(|error| Error::ReqHandlerError(std::io::Error::other(error)))?;
        self.change(|backend| {
            backend.inflight = Some(region);
            Ok(())
        })
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MEMORY_SLOTS)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, mmap_offset } = **region;
        if self.memory.len() as u64 >= MEMORY_SLOTS {
            return Err(Error::InvalidParam);
        }
        self.change(|backend| {
            backend.memory.add(guest_phys_addr, memory_size, user_addr, &file, mmap_offset)
        })?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, .. } = **region;
        self.change(|backend| backend.memory.remove(guest_phys_addr, memory_size, user_addr))
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("device state isn't offered"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("device state isn't offered"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("shared memory regions aren't offered"))
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let log = DirtyLog::new(&file, log.mmap_offset, log.mmap_size).map_err(|error| {
            crate::rate_limit::warn_sometimes(|| {
                tracing::warn!("the frontend's dirty log can't be used: {error}")
            });
            Error::ReqHandlerError(std::io::Error::other(error))
        })?;
        self.change(|backend| {
            backend.log.log = Some(Arc::new(log));
            Ok(())
        })
    }
}
