//! CRC-32 as of ISO-HDLC (Ethernet, zlib): reflected, polynomial 04C11DB7h, both ends inverted.

/// Remainders of the sixteen values of a nibble: 64 bytes where a table by bytes has a KiB.
const NIBBLES: [u32; 16] = {
    let mut nibbles = [0; 16];
    let mut rest: &mut [u32] = &mut nibbles;
    let mut value: u32 = 0;
    while let Some((place, later)) = rest.split_first_mut() {
        let mut remainder = value;
        let mut bit = 0;
        while bit < 4 {
            remainder = remainder >> 1 ^ if remainder & 1 != 0 { 0xedb8_8320 } else { 0 };
            bit += 1;
        }
        *place = remainder;
        rest = later;
        value += 1;
    }
    nibbles
};

/// The checksum of two pieces as if they were one.
pub(super) fn crc32(first: &[u8], second: &[u8]) -> u32 {
    let step =
        |crc: u32, nibble: u32| crc >> 4 ^ NIBBLES.get(((crc ^ nibble) & 0xf) as usize).copied().unwrap_or(0);
    !first.iter().chain(second).fold(!0, |crc, &byte| {
        let byte = u32::from(byte);
        step(step(crc, byte), byte >> 4)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_is_the_catalogue_s() {
        assert_eq!(crc32(b"1234", b"56789"), 0xcbf4_3926);
        assert_eq!(crc32(b"", b""), 0);
    }
}
