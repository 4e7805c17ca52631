//! Asynchronous events (NVM Express Base Specification 2.0, section 5.2): requests are held until there is
//! something to tell.

use crate::spec::admin::AsynchronousEvent;
use crate::spec::log::LogId;

/// Asynchronous Event Requests that are held (AERL + 1).
pub(super) const EVENT_REQUESTS: usize = 4;

/// AERL, 0's based.
pub(super) const AERL_Z: u8 = 3;

const _: () = assert!(AERL_Z as usize + 1 == EVENT_REQUESTS);

/// Something that a driver can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A write to a doorbell that doesn't exist.
    InvalidDoorbellRegister,
    /// A doorbell value that its queue can't have.
    InvalidDoorbellValue,
    /// The composite temperature is past a threshold.
    TemperatureThreshold,
    /// A namespace came, went or changed.
    NamespaceAttributeChanged,
}

/// Event types (AET).
const ERROR: u8 = 0;
const SMART: u8 = 1;
const NOTICE: u8 = 2;

impl Event {
    const ALL: [Self; 4] = [
        Self::InvalidDoorbellRegister,
        Self::InvalidDoorbellValue,
        Self::TemperatureThreshold,
        Self::NamespaceAttributeChanged,
    ];

    const fn bit(self) -> u8 {
        match self {
            Self::InvalidDoorbellRegister => 1,
            Self::InvalidDoorbellValue => 2,
            Self::TemperatureThreshold => 4,
            Self::NamespaceAttributeChanged => 8,
        }
    }

    const fn event_type(self) -> u8 {
        match self {
            Self::InvalidDoorbellRegister | Self::InvalidDoorbellValue => ERROR,
            Self::TemperatureThreshold => SMART,
            Self::NamespaceAttributeChanged => NOTICE,
        }
    }

    /// The page that tells more; reading it clears the event.
    const fn log_page(self) -> LogId {
        match self {
            Self::InvalidDoorbellRegister | Self::InvalidDoorbellValue => LogId::ERROR_INFORMATION,
            Self::TemperatureThreshold => LogId::SMART,
            Self::NamespaceAttributeChanged => LogId::CHANGED_NAMESPACES,
        }
    }

    /// Dword 0 of the completion.
    const fn result(self) -> AsynchronousEvent {
        let information = match self {
            Self::InvalidDoorbellRegister | Self::NamespaceAttributeChanged => 0,
            Self::InvalidDoorbellValue | Self::TemperatureThreshold => 1,
        };
        AsynchronousEvent::new().with_aet(self.event_type()).with_aei(information).with_lid(self.log_page().0)
    }
}

/// A place for an Asynchronous Event Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Request {
    None,
    Held(u16),
    /// Aborted; its completion waits for room.
    Aborted(u16),
}

/// Held requests and events that wait for one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Events {
    pub(super) requests: [Request; EVENT_REQUESTS],
    /// Events that haven't been told, by [`Event::bit`].
    pub(super) pending: u8,
    /// Event types (bit AET) that were told and not cleared yet: no more of these until the log page is read.
    pub(super) masked: u8,
}

/// A completion of an Asynchronous Event Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completion {
    Event { cid: u16, result: u32 },
    Aborted { cid: u16 },
}

impl Events {
    pub(super) const fn new() -> Self {
        Self { requests: [Request::None; EVENT_REQUESTS], pending: 0, masked: 0 }
    }

    /// Forgets requests (silently, as a reset demands) and events.
    pub(super) fn reset(&mut self) {
        *self = Self::new();
    }

    /// Whether no request is held or waits for its completion.
    pub(super) fn holds_nothing(&self) -> bool {
        self.requests.iter().all(|request| *request == Request::None)
    }

    /// Holds a request; whether there was room.
    pub(super) fn hold(&mut self, cid: u16) -> bool {
        match self.requests.iter_mut().find(|request| **request == Request::None) {
            Some(place) => {
                *place = Request::Held(cid);
                true
            }
            None => false,
        }
    }

    /// Aborts the held request `cid`; whether it was there.
    pub(super) fn abort(&mut self, cid: u16) -> bool {
        match self.requests.iter_mut().find(|request| **request == Request::Held(cid)) {
            Some(place) => {
                *place = Request::Aborted(cid);
                true
            }
            None => false,
        }
    }

    /// Notes an event; the same event again before it was told is one event.
    pub(super) fn raise(&mut self, event: Event) {
        self.pending |= event.bit();
    }

    /// A log page was read without Retain Asynchronous Event: its events are cleared.
    pub(super) fn log_page_read(&mut self, page: LogId) {
        for event in &Event::ALL {
            if event.log_page() == page {
                self.pending &= !event.bit();
                self.masked &= !1u8.wrapping_shl(u32::from(event.event_type()));
            }
        }
    }

    /// Whether [`Events::take_completion`] has one.
    pub(super) fn has_completion(&self) -> bool {
        let mut copy = *self;
        copy.take_completion().is_some()
    }

    /// The next completion; the caller has an entry of the completion queue for it.
    pub(super) fn take_completion(&mut self) -> Option<Completion> {
        for request in &mut self.requests {
            if let Request::Aborted(cid) = *request {
                *request = Request::None;
                return Some(Completion::Aborted { cid });
            }
        }
        let type_bit = |event: &Event| 1u8.wrapping_shl(u32::from(event.event_type()));
        let due = |event: &Event| self.pending & event.bit() != 0 && self.masked & type_bit(event) == 0;
        let event = *Event::ALL.iter().find(|event| due(event))?;
        for request in &mut self.requests {
            if let Request::Held(cid) = *request {
                *request = Request::None;
                self.pending &= !event.bit();
                self.masked |= type_bit(&event);
                return Some(Completion::Event { cid, result: event.result().into_bits() });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_the_specification_s() {
        assert_eq!(Event::InvalidDoorbellRegister.result().into_bits(), 0x0001_0000);
        assert_eq!(Event::InvalidDoorbellValue.result().into_bits(), 0x0001_0100);
        assert_eq!(Event::TemperatureThreshold.result().into_bits(), 0x0002_0101);
        assert_eq!(Event::NamespaceAttributeChanged.result().into_bits(), 0x0004_0002);
    }

    #[test]
    fn a_type_is_told_once_until_its_page_is_read() {
        let mut events = Events::new();
        assert!(events.hold(1) && events.hold(2) && events.hold(3));
        events.raise(Event::InvalidDoorbellValue);
        assert!(matches!(events.take_completion(), Some(Completion::Event { cid: 1, .. })));
        events.raise(Event::InvalidDoorbellRegister);
        assert_eq!(events.take_completion(), None, "same type");
        events.raise(Event::NamespaceAttributeChanged);
        assert!(matches!(events.take_completion(), Some(Completion::Event { cid: 2, .. })));
        events.log_page_read(LogId::ERROR_INFORMATION);
        assert_eq!(events.take_completion(), None, "what the page told needs no event");
        events.raise(Event::InvalidDoorbellRegister);
        assert!(matches!(events.take_completion(), Some(Completion::Event { cid: 3, result: 0x0001_0000 })));
    }
}
