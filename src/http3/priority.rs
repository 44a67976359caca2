//! The urgency of requests (RFC 9218). Whether responses that are not urgent arrive in turn or one after another, which the
//! same field says, is not read.

/// The urgency of requests that do not say it (RFC 9218, 4.1).
pub(crate) const USUAL_URGENCY: u8 = 3;

/// Returns the urgency in the values of a `Priority` field, from 0, which is the most urgent, to 7.
pub(crate) fn urgency<'a>(values: impl Iterator<Item = &'a [u8]>) -> u8 {
    let members = values.flat_map(|value| value.split(|byte| *byte == b','));
    let urgencies = members.filter_map(|member| {
        // Parameters follow the item.
        let item = member.split(|byte| *byte == b';').next()?;
        item.trim_ascii().strip_prefix(b"u=")
    });
    // Of several members with a name, the last one counts (RFC 9651, 3.2).
    match urgencies.last() {
        Some([digit @ b'0'..=b'7']) => digit - b'0',
        _ => USUAL_URGENCY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgencies_are_those_of_the_last_valid_member() {
        for (values, expected) in [
            (&[][..], 3),
            (&["u=0"], 0),
            (&["u=7, i"], 7),
            (&["i,u=1"], 1),
            (&["i", "a=1, \tu=2;x=5"], 2),
            (&["u=1", "u=5"], 5),
            (&["u=1, u=9"], 3),
            (&["u=8"], 3),
            (&["u=-1"], 3),
            (&["u=1.0"], 3),
            (&["u"], 3),
            (&["U=1"], 3),
            (&["x;u=1"], 3),
            (&["u=\"1\""], 3),
            (&["u= 1"], 3),
            (&[""], 3),
        ] {
            let found = urgency(values.iter().map(|value| value.as_bytes()));
            assert_eq!(found, expected, "{values:?}");
        }
    }
}
