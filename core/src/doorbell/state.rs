//! A doorbell in a ring's record; the addresses of its shadow follow from the buffer.

use super::{Doorbell, Shadow};
use crate::message::DoorbellBuffer;
use crate::state::group::RingRecord;

impl Doorbell {
    /// Fills in what a record says of the doorbell.
    pub(crate) fn save(&self, ring: &mut RingRecord) {
        let Self { index: _, register, posted_registers: _, lag, shadow } = *self;
        ring.register = register.into();
        ring.lag = lag.into();
        if let Some(Shadow { address: _, event_idx: _, seen, published }) = shadow {
            ring.seen = seen.into();
            ring.published = published.into();
        }
    }

    /// The doorbell at `index` as it was saved. Touches neither memory nor registers. No buffer that was attached
    /// ends beyond the last address.
    pub(crate) fn restore(
        index: u32,
        ring: &RingRecord,
        buffer: Option<DoorbellBuffer>,
        posted_registers: bool,
    ) -> Self {
        let offset = u64::from(index).wrapping_mul(4);
        let shadow = buffer.map(|buffer| Shadow {
            address: buffer.shadow.wrapping_add(offset),
            event_idx: buffer.event_idx.wrapping_add(offset),
            seen: ring.seen.get(),
            published: ring.published.get(),
        });
        Self { index, register: ring.register.get(), posted_registers, lag: ring.lag.get(), shadow }
    }
}
