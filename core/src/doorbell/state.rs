//! A doorbell in a ring's record; the addresses of its shadow follow from the buffer.

use super::{Doorbell, Shadow};
use crate::message::DoorbellBuffer;
use crate::state::group::RingRecord;
use crate::state::{StateError, ensure};

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

    /// The doorbell at `index` as it was saved. Touches neither memory nor registers.
    pub(crate) fn restore(
        index: u32,
        ring: &RingRecord,
        buffer: Option<DoorbellBuffer>,
        posted_registers: bool,
    ) -> Result<Self, StateError> {
        ensure(ring.lag.get() <= ring.size.get(), "a doorbell's lag")?;
        let offset = u64::from(index).wrapping_mul(4);
        let shadow = match buffer {
            None => None,
            Some(buffer) => {
                let end = StateError::Inconsistent("a doorbell buffer at the end of memory");
                Some(Shadow {
                    address: buffer.shadow.checked_add(offset).ok_or(end)?,
                    event_idx: buffer.event_idx.checked_add(offset).ok_or(end)?,
                    seen: ring.seen.get(),
                    published: ring.published.get(),
                })
            }
        };
        Ok(Self { index, register: ring.register.get(), posted_registers, lag: ring.lag.get(), shadow })
    }
}
